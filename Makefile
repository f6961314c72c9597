# `make help` lists the targets. Overrides: PYTHON=/path/to/python, WORKERS=4, KILLS=50, ARGS="-k name".

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.setup-done
WORKERS ?= 2
KILLS   ?= 50
ARGS    ?=
PYTEST  := $(BIN)/python -m pytest
# What `make test` runs over Spark Connect as well: sessions and errors, a guard, a scenario, streams with and without
# state, a filter that counts. The whole suite: `make test-connect`.
OVER_CONNECT := \
	tests/runtime/test_connect.py tests/pipelines/test_streams.py \
	$(addprefix tests/patterns/error_management/test_dead_letter.py::test_, a_rejected_row_names_every_rule_it_broke \
	  each_row_is_in_exactly_one_half the_batch_example_reads_its_source_once_and_parts_it \
	  too_many_bad_rows_or_no_place_for_them_publish_nothing a_pipeline_keeps_the_account_through_failures_of_every_kind) \
	tests/patterns/data_value/test_stateful_sessionizer.py \
	tests/patterns/error_management/test_filter_interceptor.py::test_each_row_removed_counts_once_in_python_and_in_sql_alike \
	tests/pipelines/test_scenarios.py::test_a_late_order_is_repaired_where_it_belongs_and_nowhere_else

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-connect check lint bench chaos clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## virtual environment, pinned dependencies, jars (once; quiet when done)
	@:

$(STAMP): pyproject.toml constraints.txt
	@set -eu; \
	python="$$(PYTHON="$(PYTHON)" sh tools/find-python.sh)"; \
	PYTHONPATH=src "$$python" -m lakewright.runtime.java; \
	echo "Setting up $(VENV) with $$("$$python" --version) ..."; \
	test -x $(BIN)/python || "$$python" -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"; \
	$(BIN)/python -m lakewright.runtime.jars; \
	$(BIN)/python -m lakewright.runtime.class_archive; \
	touch $(STAMP); \
	echo "Ready. Try: make demo"

demo: setup ## from landing files to gold tables, every row accounted for
	@$(BIN)/lakewright demo $(ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

# While the Connect server starts, what pytest makes of all tests' assertions is made once, for the workers after it.
test: lint ## style, layers and the whole suite
	@$(BIN)/python -m lakewright.testing.airflow
	@$(BIN)/python -m compileall -q -x templates src/lakewright platforms  # for the many processes that tests start
	@$(if $(ARGS),:,$(PYTEST) -q --collect-only > /dev/null 2>&1 & \
	  $(PYTEST) -q -n $(WORKERS) --dist loadfile -m "not chaos" --engine connect $(OVER_CONNECT))
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not chaos" $(ARGS)

test-connect: setup ## the whole suite over a local Spark Connect server
	@$(PYTEST) -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not chaos" --engine connect tests $(ARGS)

check: lint ## style, layers, types, docs in step with the code
	@$(BIN)/mypy
	@if [ -d tests/docs ]; then $(PYTEST) -q tests/docs; fi

bench: setup ## measure against hand-written Spark (a quiet machine, please)
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: setup ## random kills of a running platform (KILLS=50)
	@LAKEWRIGHT_KILLS=$(KILLS) $(PYTEST) -q -m chaos tests $(ARGS)

clean: ## remove what setup and tests made here (the jar cache stays)
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
