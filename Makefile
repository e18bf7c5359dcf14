# make demo             run the demo, in about a minute
# make test             test the product, in under three minutes
# make test-full        run every test: all presets and norm families, databases, browser, kills
# make check-published  check the stored results and the pages that are generated from them
# make soak             run servers under load for more than an hour and write SOAK_RESULT. A
#                       smaller run: KILLS=5 PICTURES=300 MINUTES=5; 0 leaves a part out.
# All of them build .venv once and reuse it. Tests on PostgreSQL need BITTA_TEST_POSTGRES:
# run ". .ci/services" in the same shell first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

KILLS ?= 100
PICTURES ?= 10000
MINUTES ?= 30
SOAK_RESULT ?= reproduction/results/serving/soak.json

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -n auto --dist worksteal

.PHONY: demo test test-full check-published soak lint types clean

demo: $(VENV)/.demo
	$(BIN)/bitta demo

test: $(VENV)/.dev
	$(PYTEST) -m "not full"

test-full: $(VENV)/.dev
	$(PYTEST)

check-published: $(VENV)/.dev
	$(PYTEST) tests/published

soak: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python scripts/soak.py --kills $(KILLS) \
	  --pictures $(PICTURES) --minutes $(MINUTES) --out $(SOAK_RESULT)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint deploy/Dockerfile

types: $(VENV)/.dev
	$(BIN)/mypy

$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[report,terminal]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist bitta-demo bitta-runs bitta-speed bitta-serve-demo
