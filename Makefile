# make serve   set up everything, then serve the demo model on port 8080   (make serve ARGS="--port 9000")
# make test    set up everything, then run the tests                       (make test ARGS="tests/test_slab.py -x")
# make lint    style and types
# make setup   the set-up alone: .venv, libllama, demo model

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=

.NOTPARALLEL:  # one pip at a time
.PHONY: serve test lint format setup tools dev library model clean

serve: setup
	$(BIN)/llamarada serve --config configs/demo.toml $(ARGS)

test: setup dev
	$(BIN)/python -m pytest $(ARGS)

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: library model

library: $(VENV)/.installed
	./build_llama.sh --if-missing

model: $(VENV)/.installed
	@$(BIN)/llamarada model smollm2 >/dev/null

# Each stamp stands for one group of packages in setup.cfg.
$(VENV)/.installed: setup.cfg pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --editable '.[dev]'
	touch $@

$(VENV)/.tools: $(VENV)/.installed
	$(PIP) install --editable '.[build]'
	touch $@

dev: $(VENV)/.dev
tools: $(VENV)/.tools

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "llamarada needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache
