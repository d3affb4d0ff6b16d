# Every target makes .venv and installs what it needs, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -q
export NUMBA_NUM_THREADS ?= 2

.PHONY: demo demo-parties check test chromium bench-accounting bench-noise bench-mean bench-linear \
	bench-linear-speed bench-utility bench-torch bench-product bench-parties bench-audit torture torture-parties clean

DATA ?= data

$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(PIP) install -c constraints.txt -e ".[bench]"
	touch $@

$(VENV)/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e ".[demo]"
	touch $@

demo: $(VENV)/demo
	rm -rf build/demo
	$(BIN)/python examples/demo.py build/demo

demo-parties: $(VENV)/dev
	$(BIN)/python examples/three_hospitals.py

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_layers.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: $(VENV)/dev chromium
	$(BIN)/pytest

# The pages are looked at in a real browser. Where it cannot be installed, those tests say so and are skipped.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || true

bench-accounting: $(VENV)/bench
	$(BIN)/python benchmarks/accounting.py

bench-noise: $(VENV)/dev
	$(BIN)/python benchmarks/noise.py

bench-mean: $(VENV)/dev
	$(BIN)/python benchmarks/mean.py

# Peers live in an environment of their own: diffprivlib needs an older scikit-learn.
.venv-peers/done: constraints.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip --disable-pip-version-check -q install -c constraints.txt diffprivlib "scikit-learn<1.6" "opacus>=1.6,<1.7" torch
	touch $@

bench-linear: $(VENV)/bench .venv-peers/done
	$(BIN)/python benchmarks/linear.py --data $(DATA) --peers .venv-peers/bin/python

bench-linear-speed: $(VENV)/bench
	$(BIN)/python benchmarks/linear_speed.py

bench-utility: $(VENV)/dev
	$(BIN)/python benchmarks/utility.py

bench-torch: $(VENV)/bench
	$(BIN)/python benchmarks/pytorch.py

bench-product: $(VENV)/dev
	$(BIN)/python benchmarks/product.py

bench-parties: $(VENV)/dev
	$(BIN)/python benchmarks/parties.py

bench-audit: $(VENV)/bench
	$(BIN)/python benchmarks/audit.py

torture: $(VENV)/dev
	$(BIN)/python benchmarks/torture.py

torture-parties: $(VENV)/dev
	$(BIN)/python benchmarks/torture_parties.py

clean:
	rm -rf $(VENV) .venv-peers build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
