# Every target makes .venv and installs what it needs, so each works on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -q
export NUMBA_NUM_THREADS ?= 2
# Tests start many processes, and without byte code each of them would compile every source file anew.
unexport PYTHONDONTWRITEBYTECODE

# Two tests at a time; a file's tests stay together, so that they share its servers and compiled kernels.
WORKERS ?= 2
PYTEST  := $(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: tape demo demo-parties check docs pictures axe metrics reference test test-all test-compat test-oldest test-flower coverage coverage-trusted mutants dist chromium bench-accounting bench-accounting-suites bench-accounting-everywhere bench-risk bench-noise bench-mean bench-linear bench-chart bench-additive bench-safety bench-preview \
	bench-linear-speed bench-scale bench-utility bench-torch bench-check bench-product bench-parties bench-joint bench-low-bits bench-audit bench-units bench-statistics scorecard torture torture-parties torture-cluster clean

DATA ?= data

$(VENV)/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

# One of the peers needs an older attrs.
$(VENV)/bench: $(VENV)/dev
	grep -v '^attrs==' constraints.txt > $(VENV)/constraints-bench.txt
	$(PIP) install -c $(VENV)/constraints-bench.txt -e ".[bench]"
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
	$(BIN)/python benchmarks/metrics.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Screenshots and the picture of the building, for the documentation and the README.
pictures: $(VENV)/dev chromium
	$(BIN)/python docs/site/pictures.py

# Structure and wording of the code in numbers: trusted lines, names, words, and the files that a call runs through.
metrics: $(VENV)/dev
	$(BIN)/python benchmarks/metrics.py

reference: $(VENV)/dev
	$(BIN)/python benchmarks/reference.py

# Everything that a change must pass.
test: $(VENV)/dev chromium axe
	$(PYTEST) -m "not slow"
	$(MAKE) coverage-trusted

test-all: $(VENV)/dev chromium axe
	$(PYTEST)

# Lines and branches that the tests run through, compiled kernels excepted: those never pass through Python.
coverage: $(VENV)/dev chromium axe
	rm -rf build/coverage
	$(PYTEST) --cov --cov-report=html --cov-report=term:skip-covered

# Every line and branch of the gate, ledger, certificates, events and plans' data, by their own tests.
COVERED := $(foreach name,trusted/* events/* guarantee.py plan/procedure.py plan/stage.py \
	$(addprefix ledger/,filters.py ledger.py ledger_log.py ledger_state.py postgres.py store.py till.py) \
	$(addprefix certificate/,certificate.py guarantees.py signatures.py verification.py),src/discreet/$(name))
comma := ,
# Whole files and thousands of alterations, which run without coverage before.
WITHOUT := --deselect tests/certificate/test_certificate.py::test_certificates_altered_by_someone_who_repairs_the_digest \
	--deselect tests/trusted/test_boundary.py
coverage-trusted: $(VENV)/dev
	$(BIN)/pytest tests/trusted tests/ledger tests/certificate tests/events tests/plan/test_stage.py \
		tests/plan/test_lying_plan.py tests/test_guarantee.py tests/test_epsilon_delta.py -q -n $(WORKERS) \
		-m "not slow" --ignore=tests/ledger/test_faults.py $(WITHOUT) --cov --cov-branch --cov-report=
	$(BIN)/coverage report --include="$(subst $() $(),$(comma),$(strip $(COVERED)))" --show-missing --fail-under=100

# One changed operator, constant or statement of a trusted file at a time: the tests must notice. Takes hours for all.
MUTATE ?= trusted
mutants: $(VENV)/dev
	$(BIN)/python benchmarks/mutants.py $(MUTATE)

dist: $(VENV)/dev
	rm -rf build/lib dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"

# The pages are looked at in a real browser. Where it cannot be installed, those tests say so and are skipped.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -qq update \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || true

# Accessibility is judged by axe-core. Where there is no npm, those tests say so and are skipped.
axe:
	@[ -e build/npm/node_modules/axe-core ] || ! command -v npm >/dev/null \
		|| npm install --silent --no-audit --no-fund --prefix build/npm axe-core@4.14.0 >/dev/null 2>&1 || true

bench-accounting: $(VENV)/bench
	$(BIN)/python benchmarks/accounting.py

bench-accounting-suites: $(VENV)/bench
	$(BIN)/python benchmarks/accounting_suites.py

bench-accounting-everywhere: $(VENV)/dev
	$(BIN)/python benchmarks/accounting_everywhere.py

# Every noisy sum of small seeded fits, compared with another commit bit for bit: what moving code must leave alone.
REF ?= main
tape: $(VENV)/dev
	$(BIN)/python benchmarks/tape.py --against $(REF)

# Noise for a limit on reconstruction: by the power of attacks, and by way of one epsilon.
bench-risk: $(VENV)/dev
	$(BIN)/python benchmarks/risk.py

bench-noise: $(VENV)/dev
	$(BIN)/python benchmarks/noise.py

bench-mean: $(VENV)/dev
	$(BIN)/python benchmarks/mean.py

# Peers live in an environment of their own: diffprivlib needs an older scikit-learn.
.venv-peers/done:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip --disable-pip-version-check -q install diffprivlib "scikit-learn<1.6" "opacus>=1.6,<1.7" torch==2.13.0
	touch $@

# The libraries to which discreet.compat adapts, one of which needs an older attrs.
.venv-compat/done: pyproject.toml
	$(PYTHON) -m venv .venv-compat
	.venv-compat/bin/pip --disable-pip-version-check -q install -e . pytest hypothesis "opacus>=1.6,<1.7" torch==2.13.0 \
		"dp-accounting>=0.6,<0.7"
	touch $@

# The adapters, driven by Opacus and dp-accounting themselves.
test-compat: .venv-compat/done
	.venv-compat/bin/pytest tests/compat -p no:cacheprovider

# llvmlite goes with numba; it is not a requirement of ours.
.venv-oldest/done: pyproject.toml constraints.txt constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	sed -n 's/==.*/==/p' constraints-oldest.txt > .venv-oldest/names.txt
	grep -v -F -i -f .venv-oldest/names.txt constraints.txt | grep -v '^llvmlite==' \
		| cat - constraints-oldest.txt > .venv-oldest/constraints.txt
	.venv-oldest/bin/pip --disable-pip-version-check -q install -c .venv-oldest/constraints.txt -e ".[dev]"
	touch $@

# The oldest versions of NumPy, SciPy, numba, scikit-learn and PyTorch that pyproject.toml allows.
test-oldest: .venv-oldest/done chromium axe
	.venv-oldest/bin/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder -p no:cacheprovider -m "not slow"

# Flower needs older versions of protobuf, rich, starlette and typer than the rest.
.venv-flower/done: pyproject.toml
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/pip --disable-pip-version-check -q install -e ".[torch]" pytest hypothesis "flwr>=1.41,<1.42" torch==2.13.0
	touch $@

# A site of a Flower federation, with Flower itself: messages, and three sites with secure aggregation over loopback.
test-flower: .venv-flower/done
	.venv-flower/bin/pytest tests/adapters/test_flower_site.py -p no:cacheprovider

.venv-ebm/done:
	$(PYTHON) -m venv .venv-ebm
	.venv-ebm/bin/pip --disable-pip-version-check -q install "interpret-core>=0.7,<0.8"
	touch $@

bench-linear: $(VENV)/bench .venv-peers/done
	$(BIN)/python benchmarks/linear.py --data $(DATA) --peers .venv-peers/bin/python

# Accuracy against epsilon, ours and the peers: the README's chart.
bench-chart: $(VENV)/bench .venv-peers/done .venv-ebm/done
	$(BIN)/python benchmarks/chart.py --data $(DATA) --peer dp-ebm=.venv-ebm/bin/python \
		--peer diffprivlib=.venv-peers/bin/python --peer opacus=.venv-peers/bin/python

# Measured fits beside the ranges that model.preview tells before them.
bench-preview: $(VENV)/bench
	$(BIN)/python -W ignore benchmarks/preview.py --data $(DATA)

bench-additive: $(VENV)/bench .venv-ebm/done
	$(BIN)/python benchmarks/additive.py --data $(DATA) --peers .venv-ebm/bin/python

# Curves beside lines on tables that are hard for curves: nowhere may they be worse.
bench-safety: $(VENV)/dev
	$(BIN)/python -W ignore benchmarks/curves_safety.py --data $(DATA)

bench-units: $(VENV)/dev
	$(BIN)/python benchmarks/units.py
	$(BIN)/python benchmarks/people_speed.py
	$(BIN)/python benchmarks/evaluation.py --data $(DATA)
	$(BIN)/python benchmarks/inference.py --data $(DATA)

.venv-statistics/done:
	$(PYTHON) -m venv .venv-statistics
	.venv-statistics/bin/pip --disable-pip-version-check -q install diffprivlib "scikit-learn<1.6" opendp
	touch $@

bench-statistics: $(VENV)/dev .venv-statistics/done
	$(BIN)/python benchmarks/table_statistics.py --peers .venv-statistics/bin/python

bench-linear-speed: $(VENV)/bench
	$(BIN)/python benchmarks/linear_speed.py

# Rows that do not fit into memory, in files, and on a cluster; ratios in one run.
bench-scale: $(VENV)/dev
	$(BIN)/python benchmarks/scale.py

bench-utility: $(VENV)/dev
	$(BIN)/python benchmarks/utility.py

bench-torch: $(VENV)/bench
	$(BIN)/python benchmarks/pytorch.py

bench-check: $(VENV)/bench
	$(BIN)/python benchmarks/check.py

bench-product: $(VENV)/dev
	$(BIN)/python benchmarks/product.py

bench-parties: $(VENV)/dev
	$(BIN)/python benchmarks/parties.py

bench-joint: $(VENV)/dev
	$(BIN)/python benchmarks/joint.py --data $(DATA)

bench-low-bits: $(VENV)/dev
	$(BIN)/python benchmarks/low_bits.py

bench-audit: $(VENV)/bench
	$(BIN)/python benchmarks/audit.py

# 31 attacks on the installed package; then the same on broken twins, each of which must be caught.
scorecard: $(VENV)/dev
	$(BIN)/python benchmarks/scorecard
	$(BIN)/python benchmarks/scorecard --twins

torture: $(VENV)/dev
	$(BIN)/python benchmarks/torture.py
	$(BIN)/python benchmarks/torture_fits.py

torture-parties: $(VENV)/dev
	$(BIN)/python benchmarks/torture_parties.py

torture-cluster: $(VENV)/dev
	$(BIN)/python benchmarks/torture_cluster.py
	$(BIN)/python benchmarks/torture_cluster.py --kills 12 --twin sums
	$(BIN)/python benchmarks/torture_cluster.py --kills 12 --twin charges

clean:
	rm -rf $(VENV) .venv-peers .venv-compat .venv-flower .venv-oldest .venv-ebm .venv-statistics build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
