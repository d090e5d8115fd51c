"""`python -m loomsite.embedded up|down`."""

import sys

from loomsite.embedded.cli import main

sys.exit(main())
