# Two commands do everything from nothing: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export FLWR_TELEMETRY_ENABLED ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0

.PHONY: run test lint docs check bench clean

run: $(READY)
	$(BIN)/bouquet compare fedavg local ditto --engine ray --seeds 0,1,2 -c data.name=digits \
		-c data.clients=20 -c data.classes-per-client=4 -c data.test-fraction=0.8

test: $(READY)
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/oxlint --deny-warnings bouquet/watch/web tests/unit/web
	$(MAKE) --no-print-directory docs

# Material says at every start what comes after it: known, and in docs/adr/0036. (Quiet, it would count no warnings.)
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: lint test

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) runs build dist site-build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Plain pip: other installers would take torch's CUDA build.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(READY)
