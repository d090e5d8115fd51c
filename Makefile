# Everything a newcomer types. Two commands are enough: `make run` and `make test`.
#
#   LOOM_HOME=dir LOOM_BIND=host:port make run     another home, another address
#   make run BACKGROUND=1 ... make stop            the same, without holding the terminal
#
# All paths are relative, so a folder with spaces in its name works.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
MANAGE := $(PY) manage.py
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes

# A make started from `make run` must not hand its own flags and job slots to the servers.
unexport MAKEFLAGS MFLAGS MAKELEVEL

# A worker has servers of its own. A file's tests stay together, for they share what is dear to start, and the
# files keep their order: sorted by the number of their tests, the few long ones would come last.
WORKERS     ?= 2
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev run stop test coverage soak lint docs bench demo requirements

help:
	@echo 'make run     set up once, then serve console, REST, MCP and worker (Ctrl-C ends it)'
	@echo 'make stop    end a server that runs in the background'
	@echo 'make demo    load sample conversations and search them (DATA=file for your own)'
	@echo 'make test    the whole suite; needs no service on this machine (WORKERS=n processes, ARGS for pytest)'
	@echo 'make coverage  the same, and how much of the code it runs; 90 % at least'
	@echo 'make soak    races, kill loops and deep property runs (SOAK_SECONDS=n bounds them)'
	@echo 'make lint    ruff, mypy, import-linter, migrations check'
	@echo 'make docs    write the generated reference'
	@echo 'make bench   benchmarks (LOOM_DATA=folder with the outside data)'

$(PY):
	@echo 'making the virtual environment $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Loomsite needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another with: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The stamps make a second run start at once and work offline.
$(VENV)/.runtime: requirements.txt | $(PY)
	@echo 'installing pinned requirements (once)'
	@$(PIP_INSTALL) -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	@echo 'installing pinned requirements for tests and checks (once)'
	@$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@

setup: $(VENV)/.runtime

setup-dev: $(VENV)/.dev

# The same as `manage.py up` and `down`, without loading Django first.
run: setup
	@exec $(PY) -m loomsite.embedded up $(if $(BACKGROUND),--detach)

stop: setup
	@exec $(PY) -m loomsite.embedded down

demo: setup
	@exec $(MANAGE) demo $(if $(DATA),"$(DATA)")

test: setup-dev
	@$(PY) -m pytest -m "not soak" $(IN_PARALLEL) $(ARGS)

coverage: setup-dev
	@$(PY) -m pytest -m "not soak" $(IN_PARALLEL) --cov --cov-report=term --cov-fail-under=90 $(ARGS)

soak: setup-dev
	@$(PY) -m pytest -m soak $(ARGS)

lint: setup-dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'
	@$(PY) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run

docs: setup
	@$(MANAGE) ops --write-docs

bench: setup-dev
	@$(PY) -m benchmarks $(ARGS)

# Only for maintainers: pin again after a change to a .in file.
requirements: setup-dev
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-config \
	  --no-emit-index-url --no-emit-find-links --no-header requirements.in -o requirements.txt
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-config \
	  --no-emit-index-url --no-emit-find-links --no-header requirements-dev.in -o requirements-dev.txt
