"""`python -m benchmarks [names]`: runs the named benchmarks, or all, against the running server.

A benchmark is a module of this package with `run(client, data_dir) -> dict`; `SERVER = False` in it means
that it needs no server and is given no client. One that lacks its data or a server is skipped with a line
that says so. Exit status: 1 if a bar is missed.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks.common import Skipped, connect, write_json


def discover() -> dict[str, ModuleType]:
    """All benchmarks by name. Helpers are not imported: some need Django's settings."""
    folder = Path(__file__).parent
    names = sorted(
        module.name
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if "\ndef run(" in (folder / f"{module.name}.py").read_text()
    )
    return {name: importlib.import_module(f"benchmarks.{name}") for name in names}


def main() -> int:
    found = discover()
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(found)}; default: all")
    names = parser.parse_args().names or list(found)
    if unknown := [name for name in names if name not in found]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(found)}")
    data = os.environ.get("LOOM_DATA")
    missed = False
    for name in names:
        module = found[name]
        try:
            client = connect() if getattr(module, "SERVER", True) else None
            try:
                result = module.run(client, Path(data) if data else None)
            finally:
                if client is not None:
                    client.close()
        except Skipped as reason:
            print(f"{name}: skipped, {reason}")
            continue
        print(f"written: {write_json(name, result)}")
        for bar, met in result.get("bars", {}).items():
            print(f"{'met   ' if met else 'MISSED'}  {bar}")
            missed = missed or not met
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
