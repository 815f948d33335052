PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint format bench clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp ## Compute the error of n-token attention on a Gaussian law and plot it
	@mkdir -p attnlimit-out
	$(BIN)/attnlimit curve --measure gaussian --dim 50 --horizon 1.5 --n 1e1:1e9:17 --plot attnlimit-out/demo.png
	@echo "The plot is in attnlimit-out/demo.png; the table is above."

test: lint ## Run the whole gate: lint, then pytest with doctests and README snippets
	$(BIN)/pytest

lint: .venv/.stamp ## Check style, format, types and the order of the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.stamp ## Fix what ruff can fix, then format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.stamp ## Run the benchmarks
	$(BIN)/python -m benchmarks

clean: ## Remove caches and build output; keep .venv and results
	rm -rf dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The pinned torch goes in first and the pinned build backend beside it; an open range
# for torch would bring gigabytes of CUDA packages.
.venv/.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit("attnlimit needs Python 3.11 or newer, but $(PYTHON) is " + v + ". Name another: make PYTHON=python3.12 ...")'
	@echo "Installing the pinned packages into .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) torch hatchling editables
	@$(PIP) --no-build-isolation -e ".[dev]"
	@touch $@
