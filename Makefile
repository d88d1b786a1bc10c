# `make help` lists the targets. Every target that needs Python first brings .venv in line with
# requirements.lock; nothing outside this folder is written, apart from package caches.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The first interpreter of at least 3.11; looked up only when the environment is made.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

# Parallelism is over sites, agents, folds and test workers, never inside numerical libraries.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export MPLBACKEND ?= Agg
# Empty means no: hundreds of tests start an interpreter, which then reads what is compiled.
export PYTHONDONTWRITEBYTECODE :=
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

PYTEST := $(BIN)/python -m pytest
WORKERS ?= 2
# Processes of a deployment wait for one another much of the time.
FLOWER_WORKERS ?= 3
# What a test takes decides its suite: tests/durations.py. Kinds that need more than Python are apart.
KINDS := not faults and not flower and not r and not postgresql and not image
FAST := not slow and not long and not nightly and not replication and $(KINDS)
NIGHTLY := (long or nightly)
STYLED := src tests tools hatch_build.py $(wildcard replications benchmarks examples)

.PHONY: help venv lock demo docs test test-quick test-slow test-faults test-flower test-postgresql test-r test-image \
	test-nightly durations mutants golden fuzz check check-style format bench replicate docs-table stale \
	dist image links clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r t d; do \
		printf '  make %-18s %s\n' "$$t" "$$d"; done

venv: $(STAMP) ## make .venv from requirements.lock

# pip reads the machine's own package settings, uv is only faster: when uv cannot fetch, pip does.
# Of all modules that come with it a few are used, and those are compiled when they are.
$(STAMP): requirements.lock pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
		if [ -z "$(PYTHON)" ]; then \
			echo "make: no Python >= 3.11 found on PATH: install one, or name it with make PYTHON=..." >&2; \
			exit 1; \
		fi; \
		echo "making $(VENV) (first time: a few minutes)"; \
		$(PYTHON) -m venv $(VENV); \
	fi
	@{ command -v uv >/dev/null 2>&1 \
		&& uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; } \
	|| $(BIN)/python -m pip install --quiet --no-compile --require-hashes \
		--only-binary :all: -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## solve requirements.lock again (needs uv)
	uv pip compile pyproject.toml --all-extras --generate-hashes --universal --python-version 3.11 \
		--no-config --custom-compile-command "make lock" \
		--output-file requirements.lock --quiet

demo: $(STAMP) ## run the demonstration and say where its report is
	@touch $(VENV)/.demo-started
	$(BIN)/consilience demo
	@report=$$(find . -name .venv -prune -o -name 'report.html' -newer $(VENV)/.demo-started -print); \
	if [ -z "$$report" ]; then echo "make demo: the demonstration wrote no report.html" >&2; exit 1; fi; \
	echo "Report: $$report"; \
	echo "The program is $(BIN)/consilience; after '. $(BIN)/activate' it is called consilience"

test: $(STAMP) ## the test suite
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(FAST)"

test-quick: $(STAMP) ## the tests that take less than 70 ms each
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(FAST) and not medium"

test-slow: $(STAMP) ## statistical tests, guides, demonstrations, small slices of the papers' tables
	$(PYTEST) -n $(WORKERS) --dist worksteal \
		-m "(slow or replication) and not long and not nightly and $(KINDS)"

test-faults: $(STAMP) ## crashes, absences, damaged messages
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "faults and not nightly and not long"

test-flower: $(STAMP) ## a Flower deployment on loopback
	$(PYTEST) -n $(FLOWER_WORKERS) --dist loadscope -m "flower and not nightly and not long"

test-postgresql: $(STAMP) ## tables from a PostgreSQL server, which the tests start themselves
	$(PYTEST) -m "postgresql"

test-r: $(STAMP) ## the client for R, where R and its package jsonlite are
	$(PYTEST) -m "r"

test-image: $(STAMP) ## the container image, where docker, podman or buildah works
	$(PYTEST) -m "image"

test-nightly: $(STAMP) ## all that the suites leave out: whole products, long simulations
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(NIGHTLY) and $(KINDS)"
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(NIGHTLY) and faults"
	$(PYTEST) -n $(FLOWER_WORKERS) --dist loadscope -m "$(NIGHTLY) and flower"
	CONSILIENCE_PICTURES=all $(PYTEST) -n $(WORKERS) --dist worksteal tests/report

WHICH ?= not long and not nightly
durations: $(STAMP) ## run the suites and record what each test takes, which decides its suite
	$(PYTEST) -n $(WORKERS) --dist worksteal --write-durations -m "$(WHICH) and $(KINDS)"

mutants: $(STAMP) ## put small faults into the code, one at a time: which do the tests find?
	$(BIN)/python -m tools.mutants --workers $(WORKERS) --marks "$(FAST)" \
		--marks "slow and not long and not nightly and $(KINDS)" $(ONLY)

golden: $(STAMP) ## whether results, transcripts, pages and commands are those of build/golden.json
	PYTHONPATH=. $(BIN)/python -m tools.golden $(if $(WRITE),--write)

# The search needs no atheris, but is many times faster with it; it goes into a folder of its own
# because it is not built for every system.
SECONDS ?= 60
fuzz: $(STAMP) ## search for SECONDS (60) for bytes on which a reader fails; corpus in tests/fuzz
	@[ -d build/fuzz/atheris ] || { rm -rf build/fuzz/installing; \
		$(BIN)/python -m pip install --quiet --only-binary :all: --target build/fuzz/installing \
			atheris==3.0.0 && mv build/fuzz/installing build/fuzz/atheris; } \
		|| echo "make fuzz: atheris is not built for this system"
	PYTHONPATH=. $(BIN)/python -m tools.fuzz_decoder --seconds $(SECONDS)

check: check-style test-quick ## format, lint, types, import contracts, stale results, quick tests

check-style: $(STAMP)
	$(BIN)/ruff format --check --quiet $(STYLED)
	$(BIN)/ruff check --quiet $(STYLED)
	PYTHONPATH= $(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.stale_results
	$(PYTEST) -m "medium or slow" tests/test_architecture.py
	$(PYTEST) tests/docs/test_methods_page.py

format: $(STAMP) ## format and repair what ruff can repair
	$(BIN)/ruff format $(STYLED)
	$(BIN)/ruff check --fix $(STYLED)

stale: $(STAMP) ## fail when a replication result is older than its code
	$(BIN)/python -m tools.stale_results --strict

bench: $(STAMP) ## run every benchmark, or one: make bench ONE=benchmarks/x.py
	@set -e; for script in $(or $(ONE),$(sort $(wildcard benchmarks/*.py)),benchmarks/*.py); do \
		echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script; done

replicate: $(STAMP) ## run every replication, or one: make replicate TABLE=paper/table
	@set -e; for script in $(or $(TABLE:%=replications/%/run.py),$(sort $(wildcard replications/*/*/run.py)),replications/*/*/run.py); do \
		echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script; done

docs: $(STAMP) ## build the documentation site into build/site; fails where a page or a link has a fault
	PYTHONPATH=. $(BIN)/python -m tools.docs_site

links: docs ## ask other sites for the pages that the documentation links, where there is a network
	PYTHONPATH=. $(BIN)/python -m tools.docs_site --links

docs-table: $(STAMP) ## write the generated tables (every tools/table_*.py)
	@set -e; for script in $(or $(sort $(wildcard tools/table_*.py)),tools/table_*.py); do \
		echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script; done

# Built twice: what differs between two builds nobody could build again to compare.
dist: $(STAMP) ## build wheel and source archive into dist, twice, and compare the two
	@rm -rf dist build/dist
	$(BIN)/python -m hatchling build --directory dist
	@$(BIN)/python -m hatchling build --directory build/dist >/dev/null
	@for file in dist/*; do cmp "$$file" "build/$$file" || exit 1; done
	@cd dist && $(CURDIR)/$(BIN)/python -c "import hashlib, os; \
		[print(hashlib.sha256(open(f, 'rb').read()).hexdigest(), f) for f in sorted(os.listdir('.'))]"

image: $(STAMP) ## the container image into dist, by docker, podman or buildah; KEY=FILE signs it
	PYTHONPATH=. $(BIN)/python -m tools.image build $(if $(KEY),--key $(KEY))

clean: ## remove caches and builds
	rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
