"""ASGI entry of the web server: REST and console, whose requests reach a thread only when they are whole."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loomsite.settings")
_wsgi = get_wsgi_application()

from loomsite.doors.buffered import Buffered  # noqa: E402 (Django must be set up before)

application = Buffered(_wsgi)
