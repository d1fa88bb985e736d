# Everything a fresh clone needs is Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable
# One thread a test worker: two workers on two cores must not fight over them.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: setup demo test test-slow check docs bench clean

setup: $(VENV)/.dev

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.core: $(BIN)/uv pyproject.toml constraints.txt
	$(INSTALL) .
	touch $@

# Compiled at once: tests start some sixty processes, and where Python may not write bytecode each would compile anew.
$(VENV)/.dev: $(BIN)/uv pyproject.toml constraints.txt
	UV_COMPILE_BYTECODE=1 $(INSTALL) '.[dev]'
	touch $@ $(VENV)/.core

demo: $(VENV)/.core
	$(BIN)/doubtless demo

test: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadscope -m "not slow and not gpu"

test-slow: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python -m pytest -m "slow and not gpu"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Into site/, to be opened from there: it needs no server. The variable silences what the theme says of its own future.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.dev
	$(BIN)/doubtless bench demo

clean:
	rm -rf $(VENV) dist build site
