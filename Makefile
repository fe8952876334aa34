# What a person types. `make help` lists it; each target installs what it needs first.
PYTHON ?= python3
N ?=
AREA ?=
MINUTES ?=
SIZE ?= 1
BASELINE ?=
SECONDS ?= 120
SEED ?=
BACKEND ?= emulators
ARGS ?=
UV := $(shell command -v uv)
STAMP := .venv/installed
QUICK_STAMP := .venv/installed-for-quick
DEMO_STAMP := .venv/installed-for-demo

.DEFAULT_GOAL := help
.PHONY: setup demo up test night quick check docs sim sim-feed sim-guards callers chaos bench bench-compare pictures mutants release clean help

# $(call install,EXTRA,SENTENCE,STAMPS): says first what comes. With uv where it is; pip may know another index, so it is asked next.
# Nothing is compiled that nobody imports: that takes as long as all else.
OLD := import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, and $(PYTHON) is older: make PYTHON=python3.12")
define install
	@echo '$(2)'
	@test -x .venv/bin/pip || { $(PYTHON) -c '$(OLD)' && { \
	    $(if $(UV),$(UV) venv --quiet --seed --allow-existing --python "$$(command -v $(PYTHON))" .venv ||) $(PYTHON) -m venv .venv; }; }
	@$(if $(UV),$(UV) pip install --quiet --python .venv/bin/python -e '.[$(1)]' -c constraints.txt ||) \
	    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[$(1)]' -c constraints.txt
	@touch $(3)
endef

setup: $(STAMP) ## install the project and its tools into .venv (only when pyproject.toml or constraints.txt changed)

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev,First all that the project needs goes into .venv: 2.1 GB and some minutes.,$@ $(QUICK_STAMP) $(DEMO_STAMP))

# A fifth of it, in bytes: without Spark, the site, a browser, and what examples show.
$(QUICK_STAMP): pyproject.toml constraints.txt
	$(call install,test,First what this needs goes into .venv: 450 MB and a minute or two.,$@ $(DEMO_STAMP))

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,demo,First what the demo needs goes into .venv: 250 MB and half a minute. Then it runs for as long.,$@)

demo: $(DEMO_STAMP) ## writers are killed, recovery cleans up, you watch (ARGS="--seconds 10 --seed 7")
	.venv/bin/python -m emulators demo $(ARGS)

up: $(QUICK_STAMP) ## emulators of Bigtable and GCS to try a store on, until Ctrl-C (BACKEND=postgres+s3)
	.venv/bin/python -m emulators up --backend $(BACKEND) $(ARGS)

# Tests start hundreds of interpreters. Without the compiled files each would compile the project again.
export PYTHONDONTWRITEBYTECODE :=

# Files run beside each other, on every core; each worker starts the emulators that its files need.
PARALLEL := @.ci/parallel
THIRDS := $(if $(ARGS),,--thirds)
TIERS := protocol payload transfer embedded bigtable gcs s3 postgres kinds testing
QUICK := tests/changelog tests/store tests/contracts $(TIERS:%=tests/tiered/%) $(wildcard tests/tiered/test_*.py) tests/recovery/status

test: setup ## the tests, on all cores; what is long is left to make night (ARGS="-k swap")
	.venv/bin/python -m pytest $(PARALLEL) $(THIRDS) $(ARGS)

night: setup ## what make test leaves out, and longer runs; the last line says what ran (ARGS="worlds guards", MINUTES=60)
	MINUTES=$(MINUTES) .ci/night $(ARGS)

quick: $(QUICK_STAMP) ## the core on asyncio (changelog, store, tiers, contracts), without servers and processes, in a minute (ARGS="-k swap")
	.venv/bin/python -m pytest $(PARALLEL) $(THIRDS) -m "not slow" -k "not trio" $(QUICK) $(ARGS)

check: setup ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/mypy

docs: setup ## the site, in build/site/index.html; a link that leads nowhere is an error (ARGS="--site-dir DIR")
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict $(ARGS)

SIMULATION := .venv/bin/python -m emulators.simulation
FEED_WORLDS := .venv/bin/python -m emulators.feed_worlds
CALLERS := .venv/bin/python -m emulators.callers

sim: setup ## fresh worlds, by number or time (N=1000, MINUTES=30, ARGS=--record); or one, replayed call by call (SEED=7)
ifneq ($(SEED),)
	$(SIMULATION) seed $(SEED) $(ARGS)
else
	$(SIMULATION) run $(if $(N),--seeds $(N)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
endif

sim-feed: setup ## worlds with a change feed: seeds, by number; or one, replayed (N=1000, SEED=7, ARGS=--guards)
	$(FEED_WORLDS) $(if $(SEED),--seed $(SEED),$(if $(N),--seeds $(N),$(if $(ARGS),,--seeds 1000))) $(ARGS)

sim-guards: setup ## knocks out each guard of the protocol in turn, and counts the seeds until the simulation finds out
	$(SIMULATION) guards $(ARGS)

callers: setup ## callers that use the API correctly and wrongly (N=1000, MINUTES=60, SEED=7, ARGS=--command: the command)
	$(CALLERS) $(if $(SEED),--seed $(SEED)) $(if $(N),--seeds $(N)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

chaos: setup ## the demo on the emulators, frozen and cut off, with a soak, for SECONDS seconds (SECONDS=120, SEED=, BACKEND=postgres+s3)
	.venv/bin/python -m emulators demo --backend $(BACKEND) --soak --seconds $(SECONDS) --writers 6 $(if $(SEED),--seed $(SEED)) $(ARGS)

INTO := $(if $(filter 1,$(SIZE)),--docs docs/benchmarks.md)

bench: setup ## figures beside what a user would pick; SIZE=1 writes benchmarks/results and docs/benchmarks.md, BASELINE=1 the baseline (ARGS="--only audit")
	rm -rf build/figures
	.venv/bin/python -m benchmarks.production --size $(SIZE) $(INTO) $(ARGS)
	$(if $(BASELINE),-).venv/bin/python -m benchmarks.baseline
	$(if $(BASELINE),.venv/bin/python -m benchmarks.baseline --write)

bench-compare: ## what make bench measured last, beside benchmarks/baseline.json; the exit code is 1 if something got worse
	.venv/bin/python -m benchmarks.baseline

pictures: setup ## draws the pictures of docs/statistics.md again, from simulated runs
	.venv/bin/python -m benchmarks.statistics_pictures

mutants: setup ## breaks one line of an area, N times, and counts what no test notices (AREA=status, N=60, ARGS="--seed 2")
	.venv/bin/python -m benchmarks.mutants $(if $(AREA),--area $(AREA)) $(if $(N),--number $(N)) $(ARGS)

release: ## builds, checks and proves a release in dist/, from a clean checkout: all but the upload (ARGS="build twine", ARGS=--list)
	.ci/release $(ARGS)

clean: ## remove what tests and builds left here; .venv stays
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
