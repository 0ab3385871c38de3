# raftlog: `make help` lists the targets. Only `fix` edits files of the repository (and `lock` the lock files).

PYTHON ?= # the interpreter of .venv; .ci/lib chooses one where it is empty
PY := .venv/bin/python
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup setup-env setup-java demo demo-picture quick test test-all check fix modules lock sim chaos long notebook coverage peers bench bench-spark image docs wheel release test-compiled clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 - \2/p' $(MAKEFILE_LIST)

setup: ## .venv with the locked packages, a Java runtime, the Toxiproxy server; does nothing the second time
	@.ci/setup java toxiproxy

# Each target sets up what it needs and no more: the Toxiproxy server has to be built, Java may have to be fetched.
setup-env:
	@.ci/setup

setup-java:
	@.ci/setup java

demo: setup-java ## the whole job on real input: INPUT=file to use your own, KEEP=1 to leave the cluster up
	@.venv/bin/raftlog demo $(if $(INPUT),--input "$(INPUT)") $(if $(KEEP),--keep) $(ARGS)

demo-picture: setup-java ## docs/demo.svg and docs/console.png from runs of today
	@$(PY) -m tests.house.demo_picture
	@$(PY) -m tests.house.console_picture

quick: setup-env ## the core, the state machine, the replica, HTTP, and twelve worlds of the simulator: while you work
	@.ci/test quick $(ARGS)

test: setup check ## check, then every kind of test: before every merge
	@.ci/test test $(ARGS)

test-all: setup ## check, types of Python 3.14, then every test that does not take minutes: what CI runs
	@.ci/setup pyright opensearch
	@.ci/check all
	@.ci/test all $(ARGS)

check: setup-env ## formatting, lint, types, imports, house rules; never edits
	@.ci/check

fix: setup-env ## the only target that edits: formatting and safe lint repairs
	@$(PY) -m ruff check -q --fix-only .
	@$(PY) -m ruff format -q .
	@$(PY) -m tests.house.client_reference
	@$(PY) -m tests.house.metrics_page
	@$(PY) -m tests.house.dashboard

modules: setup-env ## print the layers of the import contracts, and what each module says that it is for
	@$(PY) -m tests.house.architecture

lock: ## write requirements.lock from pyproject.toml
	@.ci/lock

sim: setup-env ## the deterministic simulator: 1,000 seeds on all cores; COMPILED=1 runs compiled modules; ARGS="..." goes to `raftlog sim`
	@.ci/existing sim $(ARGS)

chaos: setup ## real processes under real faults, for ten minutes; ARGS="..." goes to `raftlog chaos` instead
	@.ci/existing chaos $(ARGS)

long: setup ## the tests that take minutes; ARGS="..." goes to pytest
	@.ci/existing long $(ARGS)

notebook: setup-java ## run docs/examples/readings.ipynb as Jupyter does; ARGS=--rewrite keeps what it shows
	@$(PY) -m pytest -q -m long tests/spark_export/tables/test_notebook.py $(ARGS)

coverage: setup-env ## which branches of raft/ and statemachine/ their own tests take, against docs/testing.md
	@$(PY) -m tests.house.branch_coverage $(ARGS)

image: setup-env ## the image of a node, by docker, podman or buildah; BASE=image, TAG=name
	@.ci/image

docs: setup-env ## the site of the docs in dist/site, with Sphinx
	@.ci/docs

wheel: setup-env ## both wheels into dist/: one with compiled modules for this machine, and the pure one
	@.ci/wheels

release: setup-env ## sdist and wheels of the last commit into dist/, with their hashes and an SBOM; CONTRIBUTING.md has the steps
	@.ci/release

test-compiled: setup-env ## the tests of raft, statemachine, cluster and acceptance on the installed wheel with compiled modules
	@.ci/existing test-compiled $(ARGS)

peers: setup-env ## what the benchmarks compare and load with, in .tools, versions and hashes pinned; names what cannot be had
	@.ci/peers

bench: setup-env peers ## the benchmarks; ARGS="..." goes to `python -m bench`
	@.ci/existing bench $(ARGS)

bench-spark: setup-java ## Spark over the log, beside Parquet and Kafka; ARGS="..." goes to `python -m bench.spark`
	@.ci/existing bench-spark $(ARGS)

clean: ## remove everything that these targets made
	@.ci/clean
