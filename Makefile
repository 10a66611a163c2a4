# Two commands set everything up: `make demo` and `make test`. Both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo tour test test-all test-nightly lint format docs init check-init clean
.PHONY: bench-sandbox bench-docker bench-tasks bench-lint bench-ledger bench-gateway bench-workers
.PHONY: bench-training bench-filter

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Plimsoll needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.11"; exit 1; }
	@echo "setting up $(VENV): torch and what else training needs, some minutes without a word ..."
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "the venv module is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)  ## train a tiny policy on generated tasks, in two to four minutes on two cores
	@$(BIN)/plimsoll run examples/demo.toml $(ARGS)

tour: $(READY)  ## run the oracle, nop and a scripted policy over example tasks, then broken ones
	@echo "== the oracle runs each task's own solution: every reward should be 1"
	@$(BIN)/plimsoll eval examples/tasks --agent oracle
	@echo
	@echo "== nop does nothing: what a task gives for it, it gives for free"
	@$(BIN)/plimsoll eval examples/tasks --agent nop
	@echo
	@echo "== an agent asks a policy, here a script, through the gateway"
	@$(BIN)/plimsoll eval examples/tasks/off-by-one --agent shell \
	  --policy scripted:examples/policies/off-by-one.toml
	@echo
	@echo "== tasks whose graders are broken: void with a cause, never a number"
	@$(BIN)/plimsoll eval examples/broken --agent oracle || test $$? -eq 3

# Two workers a core share the quick tests, with one thread each: with more they would wait for each
# other. Byte code is kept, because tests start thousands of processes.
QUICK := not slow and not engine and not cluster and not alone

test: $(READY)  ## run the quick tests, in a few minutes; tests of missing parts are skipped
	@$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m "$(QUICK)" $(ARGS)

test-all: $(READY)  ## run all tests, in lanes; .ci/run has Docker, Ray and agents for them
	.ci/tests

test-nightly: $(READY)  ## 20,000 seeds, ten minutes of chaos, the recipe of the tiny policy, the whole demo
	PLIMSOLL_TEST_NIGHTLY=yes $(BIN)/python -m pytest -v -m nightly $(ARGS)

lint: $(READY)  ## check style, types and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## put the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## build the documentation site from docs/ into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)
	@echo "built site/: read it with $(BIN)/python -m mkdocs serve"

init: $(READY)  ## build the init that runs as pid 1 in containers, for each kind of machine
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ziglang
	$(BIN)/python src/plimsoll/sandboxes/container/init/build.py

check-init: $(READY)  ## build it again, and see that it is the one that is kept here
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ziglang
	$(BIN)/python src/plimsoll/sandboxes/container/init/build.py --check

bench-sandbox: $(READY)  ## how fast sandboxes and trials are, beside bare unshare and Docker
	$(BIN)/python bench/bench_sandbox.py $(ARGS)

bench-filter: $(READY)  ## what the system call filter of local sandboxes costs a call
	$(BIN)/python bench/bench_filter.py $(ARGS)

bench-docker: $(READY)  ## how fast trials on Docker are, beside plain API calls and Harbor
	$(BIN)/python bench/bench_docker.py $(ARGS)

bench-tasks: $(READY)  ## how fast a folder of 4,000 tasks loads
	$(BIN)/python bench/bench_tasks.py $(ARGS)

bench-lint: $(READY)  ## how fast a folder of 1,000 tasks is linted
	$(BIN)/python bench/bench_lint.py $(ARGS)

bench-ledger: $(READY)  ## how fast the ledger is written, decides and opens, and what it holds
	$(BIN)/python bench/bench_ledger.py $(ARGS)

bench-gateway: $(READY)  ## what the gateway costs, beside a bare pass-through and LiteLLM
	$(BIN)/python bench/bench_gateway.py $(ARGS)

bench-workers: $(READY)  ## what a worker holds and costs over many rollouts, beside verifiers
	$(BIN)/python bench/bench_workers.py $(ARGS)

bench-training: $(READY)  ## how much faster training at once with rollouts is than in turn
	$(BIN)/python bench/bench_training.py $(ARGS)

clean:  ## remove the virtual environment, caches and runs
	rm -rf $(VENV) .pytest_cache .ruff_cache runs site
