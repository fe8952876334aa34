# What a person types. `make help` lists it; each target installs what it needs first.
PYTHON ?= python3
N ?=
AREA ?=
MINUTES ?=
SIZE ?= 1
BASELINE ?=
BESIDE ?=
SECONDS ?= 120
SEED ?=
BACKEND ?= emulators
ARGS ?=
STAMP := .venv/installed
QUICK_STAMP := .venv/installed-for-quick
BENCH_STAMP := .venv/installed-for-bench

.DEFAULT_GOAL := help
.PHONY: setup demo test test-all test-browser quick check docs sim sim-feed sim-guards callers chaos beside bench bench-large bench-compare pictures mutants release clean help

setup: $(STAMP) ## install the project and its tools into .venv (only when pyproject.toml or constraints.txt changed)

$(STAMP): pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	touch $@ $(QUICK_STAMP)

# A fifth of it, in bytes: without Spark, the site, a browser, and what examples show.
$(QUICK_STAMP): pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[test]' -c constraints.txt
	touch $@

demo: setup ## writers are killed, recovery cleans up, you watch (ARGS="--seconds 10 --seed 7")
	.venv/bin/python -m emulators demo $(ARGS)

# Tests start hundreds of interpreters. Without the compiled files each would compile the project again.
export PYTHONDONTWRITEBYTECODE :=

# Files run beside each other, on every core; each worker starts the emulators that its files need.
PARALLEL := @.ci/parallel
QUICK := tests/changelog tests/tiered tests/recovery tests/contracts tests/store tests/test_architecture.py --ignore=tests/recovery/audit --ignore=tests/recovery/cli --ignore=tests/recovery/feed --ignore=tests/recovery/http/test_page.py

test: setup ## the tests, on all cores; some long ones are in make sim alone (ARGS="-k swap")
	.venv/bin/python -m pytest $(PARALLEL) $(ARGS)

test-all: ## the tests on each of Python 3.11 to 3.14 that this machine has, in a .venv of its own in build/ (ARGS="-k swap")
	.ci/test-all $(ARGS)

test-browser: setup ## the status page and links in chromium, without a screen (SCREENSHOTS=DIR keeps pictures)
	.venv/bin/python -m pytest -m browser tests/recovery/http/test_page.py tests/tiered/asgi/test_browser.py $(ARGS)

quick: $(QUICK_STAMP) ## tests on asyncio that need no emulator and no process of their own, less audit, feed and commands, in two minutes (ARGS="-k swap")
	.venv/bin/python -m pytest $(PARALLEL) -m "not slow" -k "not trio" $(QUICK) $(ARGS)

check: setup ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/mypy

docs: setup ## the site, in build/site/index.html; a link that leads nowhere is an error (ARGS="--site-dir DIR")
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict $(ARGS)

SIMULATION := .venv/bin/python -m emulators.simulation
FEED_WORLDS := .venv/bin/python -m emulators.feed_worlds
CALLERS := .venv/bin/python -m emulators.callers

sim: setup ## all that is simulated; or seeds alone, by number or time (N=1000, MINUTES=30, ARGS=--record); or one, replayed (SEED=7)
ifneq ($(SEED),)
	$(SIMULATION) seed $(SEED) $(ARGS)
else ifneq ($(N)$(MINUTES),)
	$(SIMULATION) run $(if $(N),--seeds $(N)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
else
	TIERED_SIM_SEEDS=1000 .venv/bin/python -m pytest --timeout 0 tests/crash $(ARGS)
	TIERED_SIM_SEEDS=1000 .venv/bin/python -m pytest --timeout 0 -m sim --ignore=tests/crash $(ARGS)
	.venv/bin/python docs/protocol/model.py --all
	.venv/bin/python docs/protocol/feed_model.py --all
	$(SIMULATION).bounded
	.venv/bin/python -m emulators.feed
	$(FEED_WORLDS) --seeds 1000 --crashes --mutations 3000
	$(SIMULATION) run --seeds 2000
	$(CALLERS) --seeds 5000
	$(CALLERS) --seeds 300 --command
endif

minio: setup ## the contracts on MinIO, which is built once, for ten minutes
	.venv/bin/python -c "import anyio; from emulators.s3.servers import MINIO; anyio.run(MINIO.ready)"
	TIERED_SIM_SEEDS=1000 .venv/bin/python -m pytest --timeout 0 -m sim -k s3-minio tests/contracts $(ARGS)

sim-feed: setup ## worlds with a change feed: seeds, by number; or one, replayed (N=1000, SEED=7, ARGS=--guards)
	$(FEED_WORLDS) $(if $(SEED),--seed $(SEED),$(if $(N),--seeds $(N),$(if $(ARGS),,--seeds 1000))) $(ARGS)

sim-guards: setup ## knocks out each guard of the protocol in turn, and counts the seeds until the simulation finds out
	$(SIMULATION) guards $(ARGS)

callers: setup ## callers that use the API and the command correctly and wrongly (MINUTES=60, N=1000, SEED=7, ARGS=--command)
ifneq ($(SEED),)
	$(CALLERS) --seed $(SEED) $(ARGS)
else ifneq ($(N)$(MINUTES),)
	$(CALLERS) $(if $(N),--seeds $(N)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)
else
	$(CALLERS) --seeds 5000 $(ARGS)
	$(CALLERS) --seeds 300 --command
endif

chaos: setup ## the demo on the emulators, frozen and cut off, with a soak, for SECONDS seconds (SECONDS=120, SEED=, BACKEND=postgres+s3)
	.venv/bin/python -m emulators demo --backend $(BACKEND) --soak --seconds $(SECONDS) --writers 6 $(if $(SEED),--seed $(SEED)) $(ARGS)

beside: setup ## the last release and this checkout on one store: worlds and real processes, with kills (ARGS=COMMIT: beside that)
	.ci/beside $(ARGS)

# Other people's software, beside which ours is measured. Tests and services need none of it.
INTO := $(if $(filter 1,$(SIZE)),--docs docs/benchmarks.md)

$(BENCH_STAMP): $(STAMP)
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' -c constraints.txt
	touch $@

bench: $(BENCH_STAMP) ## figures beside what a user would pick; SIZE=1 writes benchmarks/results and docs/benchmarks.md, BASELINE=1 the baseline (BESIDE=DIR)
	rm -rf build/figures
	.venv/bin/python -m benchmarks.overload --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.command $(INTO) $(if $(BESIDE),--beside $(BESIDE))
	.venv/bin/python -m benchmarks.embedded --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.embedded_rows --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.postgres --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.facade --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.files --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.audit --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.audit_stages --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.findings --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.inventory --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.feed --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.s3 --size $(SIZE) $(INTO)
	.venv/bin/python -m benchmarks.production --size $(SIZE) $(INTO) $(ARGS)
	$(if $(BASELINE),-).venv/bin/python -m benchmarks.baseline
	$(if $(BASELINE),.venv/bin/python -m benchmarks.baseline --write)

bench-large: $(BENCH_STAMP) ## the sizes that take long, in one round each; writes benchmarks/results
	.venv/bin/python -m benchmarks.audit --size 10 --growth --docs docs/benchmarks.md
	.venv/bin/python -m benchmarks.feed --size 5 --large --docs docs/benchmarks.md

bench-compare: ## what make bench measured last, beside benchmarks/baseline.json; the exit code is 1 if something got worse
	.venv/bin/python -m benchmarks.baseline

pictures: setup ## draws the pictures of docs/statistics.md again, from simulated runs
	.venv/bin/python -m benchmarks.statistics_pictures

mutants: setup ## breaks one line of an area, N times, and counts what no test notices (AREA=status, N=60, ARGS="--seed 2")
	.venv/bin/python -m benchmarks.mutants $(if $(AREA),--area $(AREA)) $(if $(N),--number $(N)) $(ARGS)

release: ## builds, checks and proves a release in dist/, from a clean checkout: all but the upload (ARGS="--only build", ARGS=--list)
	.ci/release $(ARGS)

clean: ## remove what tests and builds left here; .venv stays
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
