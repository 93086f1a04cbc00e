# One command each; CI calls the same. Needs only Debian with make and python3.
.DEFAULT_GOAL := help
.PHONY: help dev try format lint check test conformance chaos images cluster cluster-down shell demo docs bench bench-peers bench-publishers bench-operator bench-replay release clean
bin := .venv/bin

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

dev: ## Set up PostgreSQL, the brokers and the Python environment, whatever is missing
	@dev/setup

try: ## The quickest try, without Kubernetes: PostgreSQL, Kafka, one relay, an event seen arriving
	@dev/setup try
	@$(bin)/python examples/quickstart.py

format: dev ## Format the code, and repair what ruff can repair
	$(bin)/ruff format
	$(bin)/ruff check --fix

lint: dev
	$(bin)/ruff format --check
	$(bin)/ruff check
	$(bin)/mypy
	$(bin)/lint-imports

check: lint ## Format, lint, types, imports, unit tests: a minute
	$(bin)/pytest -q tests/unit

test: lint ## Everything that `check` does, and all tests: real PostgreSQL, Kafka, Kubernetes, Spark; SUITES=... for some
	@dev/setup cluster
	@$(bin)/python -m dev.cluster prepare --tests
	@$(bin)/python -m dev.images
	$(bin)/python -m dev.testing $(SUITES)

# Without the few that need a cluster or Helm, which take longer to build than these to run.
conformance: dev ## Run the tests that show the specification's statements, and write docs/conformance.md
	$(bin)/pytest -q -m 'spec and not cluster' --ignore=tests/chart --ignore=tests/crds --ignore=tests/e2e
	$(bin)/python -m dev.reference conformance

chaos: dev ## Lose the connection at every statement, before and after the commit: all cases, CASE=... for one
	OUTBOX_CHAOS=all $(if $(CASE),OUTBOX_CHAOS_CASE='$(CASE)') $(bin)/pytest -q tests/chaos

images: ## Build the images that changed: operator, relay, spark, servers for tests; PUSH=REGISTRY pushes them
	@dev/setup cluster
	@$(bin)/python -m dev.images $(if $(PUSH),--push $(PUSH))

cluster: ## A real Kubernetes with the images in it: existing, kind or the built-in node; heals it
	@dev/setup cluster
	@$(bin)/python -m dev.cluster up

# Not by .venv, which a fresh clone does not have: these two need only Python.
cluster-down: ## Take it down, leaving nothing behind
	@python3 -m dev.cluster down

shell: ## A shell with kubectl, helm and KUBECONFIG for it
	@python3 -m dev.cluster shell

demo: ## See it once, on a real cluster: orders, a killed pod, nothing lost, a dead event brought back
	@dev/setup cluster
	@$(bin)/python -m dev.demo

docs: dev ## Write docs/configuration.md, resources.md, conformance.md and crds/ again from their sources
	$(bin)/python -m dev.reference

bench: dev ## Measure: throughput, latency, CPU, WAL, memory, growth
	$(bin)/python -m bench

bench-peers: dev ## The same work done by other relays, tuned: ratios, bars, plots; 80 minutes
	$(bin)/python -m bench.peers

bench-publishers: ## Every kind of destination on its real server, beside Debezium Server's sink of it
	@dev/setup bench
	$(bin)/python -m bench.publishers

bench-operator: dev ## Five hundred relays on one operator
	$(bin)/python -m bench.operator_scale

bench-replay: dev ## Bulk replay: rows per second, and what live traffic feels of it
	$(bin)/python -m bench.replay

release: ## All that users need, into dist/: chart, images with SBOMs, wheel, checksums; VERSION=1.2.3
	@dev/setup cluster
	@$(bin)/python -m dev.release '$(VERSION)'

clean: ## Remove the Python environment and all caches of this folder
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
