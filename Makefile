# Every target makes .venv and installs what it needs, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -q
export NUMBA_NUM_THREADS ?= 2

.PHONY: demo check test bench-accounting bench-noise bench-mean torture clean

$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(PIP) install -c constraints.txt -e ".[bench]"
	touch $@

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

demo: $(VENV)/demo
	$(BIN)/python examples/first_steps.py

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py

test: $(VENV)/dev
	$(BIN)/pytest

bench-accounting: $(VENV)/bench
	$(BIN)/python benchmarks/accounting.py

bench-noise: $(VENV)/dev
	$(BIN)/python benchmarks/noise.py

bench-mean: $(VENV)/dev
	$(BIN)/python benchmarks/mean.py

torture: $(VENV)/dev
	$(BIN)/python benchmarks/torture.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
