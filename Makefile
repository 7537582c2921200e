# SPDX-License-Identifier: Apache-2.0
# delaywheel: every target sets up what it needs (.venv, Java) and then does one thing.
.DEFAULT_GOAL := help
.PHONY: help demo test check nightly simulate interop pysparks lowest lint format docs bench clean java broker watchers warm
SHELL := /bin/bash

# Every process of the tests would compile all modules again, and rewrite the assertions of all tests.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --dist loadgroup --no-loadscope-reorder --durations 30 --durations-min 1
# Brokers mostly wait for due times, so there are more processes than cores where there are brokers.
FEW := --numprocesses 3
MANY := --numprocesses 4
# What `make nightly` runs in parts of less than an hour each; PART=2 is the second of them.
PARTS := 4
INSTALLED := .venv/.installed
COMMIT = $(shell git rev-parse HEAD 2>/dev/null || echo 0)

help:  ## say what can be made (this list)
	@echo "make TARGET, where TARGET is"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(INSTALLED) java  ## convert the small real store that ships with the project, and verify the result
	$(BIN)/delaywheel demo
	@echo "The command delaywheel is $(BIN)/delaywheel (or: source $(BIN)/activate)"

test: $(INSTALLED) java broker watchers  ## run the tests of the first tier, seven minutes (tests/README.md)
	$(PYTEST) --tier test $(FEW) $(PYTEST_MORE)

check: $(INSTALLED) java broker watchers  ## run what every commit has to pass beside `make test`
	$(PYTEST) --tier check --turn $(COMMIT) $(MANY) $(PYTEST_MORE)

nightly: $(INSTALLED) java broker watchers  ## run everything, all brokers, random seeds; PART=2 runs the second of four parts
	$(PYTEST) --tier nightly $(if $(PART),--part $(PART)/$(PARTS)) $(MANY) $(PYTEST_MORE)

simulate: $(INSTALLED)  ## run random stores with faults on a simulated disk: make simulate SEEDS=2000 FIRST=1
	$(BIN)/python -m tests.simulation.random_runs --focus every --seeds $(or $(SEEDS),200) --first $(or $(FIRST),1)

interop: $(INSTALLED) java broker  ## run all tests against real brokers: RocketMQ 4.9.7, 5.3.3, 5.4.0, 5.5.0 and 5.5.1
	$(PYTEST) -m interop $(MANY) $(PYTEST_MORE)

pysparks: $(INSTALLED) java  ## run the tests of Spark on the lowest and on the newest PySpark that we claim
	@for wanted in "==4.0.0" ">=4,<5"; do \
	  echo "== pyspark$$wanted"; rm -rf build/pyspark; $(BIN)/python -m venv build/pyspark && \
	  build/pyspark/bin/pip install -q "pyspark[sql]$$wanted" -e '.[dev]' && \
	  build/pyspark/bin/python -m pytest tests/migrate/spark/test_data_sources.py \
	    tests/migrate/spark/test_jobs.py tests/migrate/spark/test_connect.py || exit 1; done

lowest: $(INSTALLED)  ## run a few tests on the lowest versions of all dependencies that we claim
	$(BIN)/python -m tests.helpers.lowest

lint: $(INSTALLED)  ## check style and format (ruff) and types (mypy --strict)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## put imports in order and lay the code out
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

docs: $(INSTALLED)  ## write the generated parts of docs/FORMAT.md, CHECK.md and PERFORMANCE.md
	$(BIN)/python -m tools.generate_format
	$(BIN)/python -m tools.generate_check
	$(BIN)/python -m tools.generate_performance

# What `make bench` runs, one after the other; each of them within twenty minutes.
BENCHES := "start" "codec" "engines --parts schedule batch burst levels --rounds 5" \
  "engines --parts opening --name opening --rounds 3" \
  "engines --parts steady --name steady --steady-s 120 --rates 14000 50000 100000" \
  "hierarchy --seconds 40 --precisions 1000 1 --longest-delay-ms 600000 --pending 1000000 10000000" \
  "waiting" "power" "groups" \
  "convert --messages 1000000 4000000 16000000" "shapes" "fleet" "memory" "race --events levels burst" "race --events steady --name race-steady" "race_sample" "peers --rounds 2"

bench: $(INSTALLED) java broker  ## run every benchmark, two hours, and write docs/PERFORMANCE.md; wants a quiet machine; ONLY=race runs those that begin so
	@failed=0; for run in $(BENCHES); do case "$$run" in "$(ONLY)"*) \
	  echo "== $$run"; timeout --foreground 1200 $(BIN)/python -m benchmarks.$$run || failed=1;; esac; done; \
	$(BIN)/python -m tools.generate_performance; exit $$failed

clean:  ## remove the environment and everything built or cached
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: the environment follows pyproject.toml, Java is looked for each time -----------------

$(INSTALLED): pyproject.toml
	@.ci/setup python
	@touch $@

java:
	@.ci/setup java

broker:
	@.ci/setup broker

watchers:
	@.ci/setup watchers

# What the processes of a run would all do, where nothing is cached: compile the kernels (a run sees
# to it as well), and rewrite the assertions of all tests.
warm: $(INSTALLED)
	@$(BIN)/python -m tests.helpers.warm_kernels
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true
