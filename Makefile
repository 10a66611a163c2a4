# Start with `make demo` or `make test`. Targets create .venv first if they need it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo tour test test-all test-nightly lint format docs init check-init clean
.PHONY: bench-sandbox bench-docker bench-tasks bench-lint bench-ledger bench-gateway bench-workers
.PHONY: bench-training bench-filter

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Plimsoll needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.11"; exit 1; }
	@echo "installing torch and the other packages into $(VENV); this takes a few minutes and prints nothing ..."
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train a tiny policy on generated tasks: one to four minutes on two cores
	@$(BIN)/plimsoll run examples/demo.toml $(ARGS)

tour: $(READY)  ## run the oracle, nop and a scripted policy over example tasks, then broken ones
	@echo "== the oracle runs each task's own solution: every reward should be 1"
	@$(BIN)/plimsoll eval examples/tasks --agent oracle
	@echo
	@echo "== nop does nothing: every reward should be 0"
	@$(BIN)/plimsoll eval examples/tasks --agent nop
	@echo
	@echo "== an agent asks a policy, here a script, through the gateway"
	@$(BIN)/plimsoll eval examples/tasks/off-by-one --agent shell \
	  --policy scripted:examples/policies/off-by-one.toml
	@echo
	@echo "== tasks whose graders are broken: void with a cause, never a number"
	@$(BIN)/plimsoll eval examples/broken --agent oracle || test $$? -eq 3

# Quick tests run in three workers a core, with one thread each, because more threads would compete for the
# cores. Byte code is cached, because tests start thousands of processes.
QUICK := not slow and not docker and not ray and not alone

test: $(READY)  ## run the quick tests in a few minutes; skip tests whose parts are missing
	@$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m "$(QUICK)" $(ARGS)

test-all: $(READY)  ## run all tests in lanes; .ci/run provides Docker, Ray and agents
	.ci/tests

test-nightly: $(READY)  ## run the long tests: 20,000 seeds, ten minutes of chaos, the tiny recipe, the demo
	PLIMSOLL_TEST_NIGHTLY=yes $(BIN)/python -m pytest -v -m nightly $(ARGS)

lint: $(READY)  ## check style, types and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## apply the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## build the documentation site from docs/ into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "built site/; to read it: $(BIN)/python -m mkdocs serve"

init: $(READY)  ## build the init of containers (pid 1) for each machine type
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ziglang
	$(BIN)/python src/plimsoll/sandboxes/container/init/build.py

check-init: $(READY)  ## check that the built init matches its source
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ziglang
	$(BIN)/python src/plimsoll/sandboxes/container/init/build.py --check

bench-sandbox: $(READY)  ## measure sandboxes and trials, beside bare unshare and Docker
	$(BIN)/python bench/bench_sandbox.py $(ARGS)

bench-filter: $(READY)  ## measure the cost of the system call filter of local sandboxes
	$(BIN)/python bench/bench_filter.py $(ARGS)

bench-docker: $(READY)  ## measure trials on Docker, beside plain API calls and Harbor
	$(BIN)/python bench/bench_docker.py $(ARGS)

bench-tasks: $(READY)  ## measure loading 4,000 tasks
	$(BIN)/python bench/bench_tasks.py $(ARGS)

bench-lint: $(READY)  ## measure linting 1,000 tasks
	$(BIN)/python bench/bench_lint.py $(ARGS)

bench-ledger: $(READY)  ## measure writing, deciding and opening the ledger, and its memory
	$(BIN)/python bench/bench_ledger.py $(ARGS)

bench-gateway: $(READY)  ## measure the gateway, beside a bare pass-through and LiteLLM
	$(BIN)/python bench/bench_gateway.py $(ARGS)

bench-workers: $(READY)  ## measure memory and cost of a worker over many rollouts, beside verifiers
	$(BIN)/python bench/bench_workers.py $(ARGS)

bench-training: $(READY)  ## measure asynchronous training, beside synchronous
	$(BIN)/python bench/bench_training.py $(ARGS)

clean:  ## remove the virtual environment, caches and runs
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache runs site
