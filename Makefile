# Two commands do all the set-up: `make demo` runs the main job, `make test` the tests.
# VENV names the environment; PYTHON the interpreter it is made from (3.10 or newer).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
WORKERS ?= 2

.PHONY: demo test unit interpret gpu lint types wheel

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	touch $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/autoswizzle demo

test: unit interpret gpu

unit: $(INSTALLED)
	$(BIN)/python -m pytest tests/unit -n $(WORKERS)

interpret: $(INSTALLED)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/interpret -n $(WORKERS)

gpu: $(INSTALLED)
	$(BIN)/python -m pytest tests/gpu -m gpu

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy
	$(BIN)/mypy --follow-imports silent --allow-untyped-calls --no-warn-return-any benchmarks/*.py

wheel: $(INSTALLED)
	$(BIN)/python -m build --outdir dist
