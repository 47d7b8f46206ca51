# The front door. Every target sets up what it needs on a machine that has only Python (3.11 or newer) and make;
# a second call reuses it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
USABLE := $(VENV)/.usable
READY := $(VENV)/.ready
ENGINE := src/heed/backends/cpu/engine.so

.PHONY: help setup demo chromium test sanitize slow endless check docs wheel format clean

help: ## what can be made here
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

setup: $(READY) $(ENGINE) ## a virtual environment with the exact versions of constraints.txt

# What using heed takes, and besides what working on it takes.
$(USABLE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("heed needs Python 3.11 or newer, found " + sys.version.split()[0] + "; choose one with make PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $(USABLE)

# torch's CPU build brings no Triton, whose interpreter runs the GPU kernels' tests on a CPU. Not in constraints.txt:
# torch's CUDA builds need the version that they name.
$(READY): $(USABLE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -c 'import triton' 2> /dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check triton==3.9.0 \
		|| echo "no Triton: the GPU kernels are not tested"
	@touch $(READY)

# Installing heed builds the engine in C; this builds it again when its sources have changed.
$(ENGINE): $(wildcard src/heed/backends/cpu/csrc/*.[ch] src/heed/backends/cpu/csrc/build.py) | $(USABLE)
	@$(BIN)/python src/heed/backends/cpu/csrc/build.py $(ENGINE) || echo "heed runs on torch's operators, which are slower"

demo: $(USABLE) $(ENGINE) ## train a small model before your eyes and look inside it
	$(BIN)/heed demo

# Pages are proven in a real browser. Where it can be had without asking for a password it is installed; else those tests
# are skipped and say so.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		(apt-get update && apt-get install --yes --no-install-recommends chromium) > /dev/null 2>&1 || echo "no Chromium: tests of pages are skipped"; \
	fi

test: $(READY) $(ENGINE) chromium ## what heed computes, proven
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

sanitize: $(READY) ## the engine in C under address, undefined-behaviour and thread sanitizers
	$(BIN)/python -m tests.backends.cpu.engine_tests

slow: $(READY) $(ENGINE) ## the claims that take minutes to prove
	$(BIN)/python -m pytest -m slow

endless: $(READY) $(ENGINE) ## a run that is killed 500 times, a server that is sent 70,000 requests
	$(BIN)/python -m pytest -m endless

check: $(READY) ## style, types, and that imports go one way
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY) ## the documentation as a site: build/docs/index.html, readable without a network
	$(BIN)/sphinx-build --fail-on-warning --quiet docs build/docs
	@echo "open build/docs/index.html"

# manylinux_2_28 is what torch's wheels need. The engine uses libc only, in versions of its symbols that are older still.
wheel: $(READY) ## wheels for Linux in dist/: for x86-64, and for ARM where there is a cross compiler
	for target in x86_64:gcc aarch64:aarch64-linux-gnu-gcc; do \
		command -v $${target#*:} > /dev/null || continue; \
		rm -rf build/lib* build/bdist*; \
		CC=$${target#*:} CFLAGS=-DHEED_OLD_GLIBC $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
			--wheel-dir dist --config-settings=--build-option=--plat-name=manylinux_2_28_$${target%%:*} . || exit 1; \
	done
	@ls dist/*.whl

format: $(READY) ## put the code in the house's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## forget the set-up and everything built
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist src/*.egg-info $(ENGINE)
