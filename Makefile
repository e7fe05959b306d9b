# vitviz: `make app` starts the app, `make test` runs every check. Works with GNU make 3.81 and newer.
#
# Both install into .venv, which belongs to this file: a broken one is made anew.

PYTHON ?= python3
# What is compiled is kept: without, every worker and every process of a test compiles the whole project anew.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt
INSTALLS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help app test quick test-long oldest newest docs gallery release clean

help:
	@echo 'make app      install vitviz into .venv and start the app; its address is printed'
	@echo 'make test     lint, format check, type check and all tests, in 5 minutes on two fast cores; installs a browser where there is none'
	@echo 'make quick    lint, types and the quick ones of the tests that need no page, no other process and no other package: 30 seconds'
	@echo 'make test-long  what make test shows once, again and again: draws against the packages, an hour of hostile files; VITVIZ_TEST_SEED=7 draws others'
	@echo 'make oldest   the tests of the library, without the app, with the lowest version of every package that pyproject.toml names'
	@echo 'make newest   make test with the newest version of every package'
	@echo 'make docs     build the site of docs/ into build/docs, and check every link of it'
	@echo 'make gallery  write thirteen explorers as a static Space into build/gallery'
	@echo 'make release  compile the kernels of the page anew and compare them; build wheel and sdist into dist, and check what is in them'
	@echo 'make clean    remove .venv, the caches and what building and testing left'
	@echo
	@echo 'ARGS="..."    is passed on: make app ARGS="--port 7861", make test ARGS="-k layout"'
	@echo 'PYTHON=...    makes .venv with another Python (3.10 or newer): make app PYTHON=python3.12'

app: $(VENV)/.app
	$(BIN)/vitviz app $(ARGS)

# Two workers compute while two wait for browsers and processes; six are not faster.
WORKERS := --workers 4

# One process each, beside the tests, whose collection is one as well; what fails is shown below them.
CHECKS := $(BIN)/lint-imports --no-logo && $(BIN)/node node_modules/.bin/tsc && $(BIN)/mypy \
  && $(BIN)/node --test tests/page/*.test.js
BESIDE_CHECKS = mkdir -p build; ($(CHECKS)) >build/checks.txt 2>&1 & checks=$$!; $(1); tests=$$?; \
  wait $$checks; checked=$$?; test $$checked = 0 || cat build/checks.txt; exit $$((tests | checked))

test: $(VENV)/.test node_modules/.package-lock.json
	$(BIN)/python -m tests.browser
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(call BESIDE_CHECKS,$(BIN)/python -m pytest $(WORKERS) $(ARGS))

# Modules that are left out whole are not even imported: Gradio and the packages of the parity tests take seconds.
# Nothing here waits, so that a third worker would be of no use.
SLOW := browser|process|parity|hostile|slow
QUICK = $(BIN)/python -m pytest --workers 2 \
  -m 'not long and not browser and not process and not parity and not hostile and not slow' \
  --ignore=tests/ui $(addprefix --ignore=,$(shell grep -rlE '^pytestmark = .*mark\.($(SLOW))' tests)) $(ARGS)
quick: $(VENV)/.test node_modules/.package-lock.json
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(call BESIDE_CHECKS,$(QUICK))

# What it drew is printed; the seed is fixed, so that a failure comes again.
test-long: $(VENV)/.test
	$(BIN)/python -m tests.browser
	$(BIN)/python -m pytest -m long -s $(ARGS)

# Fresh environments, which uv resolves from pyproject.toml: no second list of versions, and no constraints.
UV_INSTALL = rm -rf build/$@ && $(PYTHON) -m venv build/$@ && build/$@/bin/python -m pip install --quiet uv \
  && build/$@/bin/uv pip install --quiet --python build/$@/bin/python

oldest:
	$(UV_INSTALL) --resolution lowest-direct --editable '.[atlas,captum,heif,hub,test-library,train,video]'
	build/$@/bin/uv pip list --python build/$@/bin/python
	build/$@/bin/python -m pytest $(WORKERS) -m 'not long and not browser and not process and not hostile and not parity' \
	  --ignore=tests/ui --ignore=tests/project \
	  $(addprefix --ignore=,$(shell grep -rlE '^pytestmark = .*mark\.parity|^from (playwright|tests\.driver|vitviz\.ui( |\.(handlers|models)))' \
	  --include='test_*.py' tests)) $(ARGS)

newest:
	$(UV_INSTALL) --editable '.[mcp,test]'
	build/$@/bin/uv pip list --python build/$@/bin/python
	build/$@/bin/python -m tests.browser
	build/$@/bin/python -m pytest $(WORKERS) $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --builder html --conf-dir docs/site --doctree-dir build/doctrees \
	  . build/docs $(ARGS)
	$(BIN)/python -m docs.site.check build/docs

gallery: $(VENV)/.app
	$(BIN)/python -m docs.site.gallery

release: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m tests.kernels
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.distributions dist

clean:
	rm -rf $(VENV) node_modules build dist .mypy_cache .pytest_cache .ruff_cache .gradio tests/artefacts
	find app.py vitviz tests docs -name __pycache__ -prune -exec rm -rf {} +

# The stamps say what was installed; they are older than a changed pyproject.toml or constraints.txt.
$(VENV)/.app: $(VENV)/pyvenv.cfg $(INSTALLS)
	$(INSTALL) --editable '.[app]'
	@touch $@

$(VENV)/.test: $(VENV)/pyvenv.cfg $(INSTALLS)
	$(INSTALL) --editable '.[test]'
	@touch $(VENV)/.app $@

# TypeScript, which checks the modules of the page; npm writes this file.
node_modules/.package-lock.json: $(VENV)/.test package.json package-lock.json
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund
	@touch $@

$(VENV)/.docs: $(VENV)/pyvenv.cfg $(INSTALLS)
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.release: $(VENV)/pyvenv.cfg $(INSTALLS)
	$(INSTALL) --editable '.[release]'
	@touch $@

# A .venv that was interrupted while it was made, or whose Python is gone, counts as absent.
ifneq ($(shell test ! -e $(VENV)/.unfinished && $(BIN)/python -c 'import pip' 2>/dev/null && echo usable),usable)
.PHONY: $(VENV)/pyvenv.cfg
endif

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo 'vitviz needs Python 3.10 or newer: install it, or name one, as in: make app PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'This Python has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)' >&2; exit 1; }
	rm -rf $(VENV)
	@mkdir $(VENV) && touch $(VENV)/.unfinished
	$(PYTHON) -m venv $(VENV)
	@rm $(VENV)/.unfinished
