# make demo: see it work.  make test: prove it works.  Both build .venv once and reuse it.
# make soak: an hour and more of it under load; KILLS=5 PICTURES=300 MINUTES=2 is shorter, 0 none.
# It writes SOAKED. PostgreSQL's part needs BITTA_TEST_POSTGRES: ". .ci/services" in the same shell.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

KILLS ?= 100
PICTURES ?= 10000
MINUTES ?= 30
SOAKED ?= results/serving/soak.json

.PHONY: demo test soak lint types clean

demo: $(VENV)/.demo
	$(BIN)/bitta demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -n auto --dist worksteal

soak: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python scripts/soak.py --kills $(KILLS) \
	  --pictures $(PICTURES) --minutes $(MINUTES) --out $(SOAKED)

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
