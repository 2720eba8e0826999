# Muster: the verbs of this repository. `make` lists them. A fresh machine needs Rust, make and python3 with pip.
.DEFAULT_GOAL := help
.PHONY: help demo chaos hostile test browser kubernetes laws schemas build tools bench release-data compat dist images clean

CARGO ?= cargo
target := $(or $(CARGO_TARGET_DIR),target)
# How long `make demo` runs, in seconds; until Ctrl-C if empty. From 180 on, and without an end, it also releases in waves.
DEMO_SECONDS ?=
# 1: `make demo` prints one JSON object at its end instead of the live view.
DEMO_JSON ?=
# How long `make chaos` injects faults, in seconds; agents; sites; seed of the schedule (drawn and printed if empty).
CHAOS_SECONDS ?= 600
CHAOS_AGENTS ?= 200
CHAOS_SITES ?= 8
CHAOS_SEED ?=
# Further flags of `make hostile`, such as '--only 5,12 --seconds 30 --json FILE'.
HOSTILE_FLAGS ?=
# Programs that `make dist` packages in place of building static ones.
PROGRAMS ?=
# Cases of each property in `make laws`, and worlds of each simulation; `make test` tries 256 cases, 160 and 40 worlds.
LAWS_CASES ?= 10000
LAWS_SEEDS ?= 5000

# The programs of the demo; their profile in Cargo.toml compiles in a sixth of the time of the one for releases.
demo_programs := $(foreach name,simulator publisher planner gateway agent ingest rollup ctl,--package muster-$(name))
demo_flags := $(if $(DEMO_SECONDS),--seconds '$(DEMO_SECONDS)') $(if $(filter 1 true yes,$(DEMO_JSON)),--json)

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a fleet of 20 agents on flapping links, live until Ctrl-C (DEMO_SECONDS=45 DEMO_JSON=1 for a report)
	@.ci/git
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --profile demo $(demo_programs) --bins >&2
	@exec '$(target)/demo/muster-simulator' demo $(demo_flags)

# Debug programs: their assertions and overflow checks are on.
chaos: ## kill, freeze, cut off and fill up every process on a secured hub with standbys for ten minutes; nothing may be lost (CHAOS_SECONDS=60 CHAOS_SEED=7)
	@.ci/git
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --workspace --bins >&2
	@exec '$(target)/debug/muster-simulator' chaos --seconds '$(CHAOS_SECONDS)' --agents '$(CHAOS_AGENTS)' \
		--sites '$(CHAOS_SITES)' --dir '$(target)/chaos' $(if $(CHAOS_SEED),--seed '$(CHAOS_SEED)')

hostile: ## a flooding device or an abusive reader beside twenty good devices on a secured hub: latency, memory, growth (HOSTILE_FLAGS='--only 5,12')
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --release --workspace --bins >&2
	@$(CARGO) bench --locked --package muster-tests --bench hostile -- $(HOSTILE_FLAGS)

test: ## everything that must hold before a change is shared; a summary ends it
	@.ci/test

browser: ## the pages in a real Chromium, installed on Debian as root: ten questions, 320 pixels, no script; target/screenshots
	@.ci/browser
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --workspace --bins >&2
	@exec env MUSTER_BROWSER=required $(CARGO) test --locked --package muster-tests --test gateway browser:: -- --test-threads 1

kubernetes: ## build Debian's Kubernetes API server once (8 minutes, into ~/.cache) and run the tests that need it
	@folder=$$(.ci/kubernetes/build) && exec env MUSTER_KUBERNETES="$$folder" \
		$(CARGO) test --locked --package muster-tests --test kubernetes -- --test-threads 1

laws: ## properties of the pure cores and both simulations with more cases than in a test (LAWS_CASES=10000 LAWS_SEEDS=5000)
	@status=0; \
	PROPTEST_CASES='$(LAWS_CASES)' $(CARGO) test --locked --no-fail-fast --package muster-domain --package muster-contract \
		--package muster-publisher --lib --test fold || status=1; \
	SIM_SEEDS='$(LAWS_SEEDS)' $(CARGO) test --locked --no-fail-fast --package muster-tests --test sim --test sim_rollouts \
		-- honest_ under_every_fault || status=1; \
	exit $$status

schemas: ## rewrite what the code determines: schemas/, its vectors and recorded refusals, OpenAPI, included files; read `git diff` then
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --workspace --bins >&2
	@UPDATE_SCHEMAS=1 $(CARGO) test --locked --package muster-domain --test fold vectors
	@UPDATE_SCHEMAS=1 $(CARGO) test --locked --package muster-identity --lib tokens_have_not_changed
	@UPDATE_SCHEMAS=1 $(CARGO) test --locked --package muster-tests --test schemas_fresh --test schemas_examples
	@UPDATE_SCHEMAS=1 $(CARGO) test --locked --package muster-tests --test gateway the_openapi_files
	@UPDATE_SCHEMAS=1 $(CARGO) test --locked --package muster-tests --test documentation a_page_shows

build: ## all programs, for debugging, into target/debug
	@$(CARGO) build --locked --workspace --bins

tools: ## a NATS server, Prometheus and the packages of Python and npm that tests and demo need
	@.ci/tools >&2

bench: ## the figures of tests/NUMBERS.md but the floods: pipeline, replay, time to truth, memory, restart, the past, PostgreSQL
	@.ci/fetch-nats-server >&2
	@$(CARGO) build --locked --release --workspace --bins >&2
	@$(CARGO) run --locked --release --package muster-domain --example fold_rate
	@$(CARGO) bench --locked --package muster-tests
	@$(CARGO) run --locked --release --package muster-domain --example query_latency

release-data: ## at a release: keep what this version writes in tests/release/VERSION, for the next ones to open
	@.ci/fetch-nats-server >&2
	@MUSTER_RELEASE_DATA=1 $(CARGO) test --locked --package muster-tests --test restore -- what_releases_wrote_is_opened

compat: ## build the release that CHANGELOG.md names last; run its agents on this hub and these agents on its hub
	@.ci/compat

dist: ## what a release ships, into dist/: deb packages, static archives, the list of components, checksums (PROGRAMS=target/debug)
	@PROGRAMS='$(PROGRAMS)' .ci/dist

images: ## build every image of compose/ from release programs of this machine, and check that each has at most 30 MiB
	@compose/offline.sh

clean: ## remove everything built, fetched or left by a demo
	@$(CARGO) clean
	@rm -rf .tools .demo
