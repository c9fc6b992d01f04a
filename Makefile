# Each target works from a fresh clone: it makes .venv and installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests and runs use one thread per process: sums then always add in one order, and two cores serve two processes.
export OMP_NUM_THREADS = 1

.PHONY: demo test test-slow check bench clean

demo: $(VENV)/installed
	$(BIN)/fedwmsam run

test: $(VENV)/installed
	$(BIN)/python -m pytest

test-slow: $(VENV)/installed $(VENV)/simulation/installed
	$(BIN)/python -m pytest -m slow

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Tables to paste, on the output; `make bench BENCH="--skip-peers --repeats 2"` passes options on.
bench: $(VENV)/installed
	@$(BIN)/python benchmarks/bench.py $(BENCH)

$(VENV)/installed: pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Flower's simulation needs Ray, which pins what others need otherwise: an environment of its own, for its test alone.
$(VENV)/simulation/installed: $(VENV)/installed
	test -d $(VENV)/simulation || $(PYTHON) -m venv $(VENV)/simulation
	$(VENV)/simulation/bin/pip install --quiet --constraint constraints.txt --editable '.[flower-simulation]'
	touch $@

clean:
	rm -rf $(VENV) benchmarks/.environments build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
