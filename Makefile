# make run    builds Weir and starts it with its own demo model: a stream to look at, no account needed
# make failover  shows a target dying in the middle of its answer's beginning, and what the client gets
# make test   everything that must hold before a change is merged, in this order, stopping at the first failure
# make setup  what the tests need and is missing; quick when all is there
#
# One target folder for all of it. Two profiles are built: dev (tests, clippy, docs) and fuzz.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

CARGO        ?= cargo
FUZZ_SECONDS ?= 60
FAILOVER_PORT ?= 8089
SOAK_MINUTES ?= 20
WEIR         := target/debug/weir
CHROMIUM     ?= chromium
VENV         := target/venv
PYTHON       := $(VENV)/bin/python
NODE_TESTS   := tests/sdk/node
REQUIREMENTS := tests/sdk/python/requirements.txt
FUZZ_TARGETS := $(sort $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))))

# Where promtool and prometheus are: one folder.
PROMETHEUS   := $(or $(patsubst %/promtool,%,$(shell command -v prometheus >/dev/null && command -v promtool)),target/prometheus/usr/bin)

export CARGO_TARGET_DIR := $(CURDIR)/target

# A clone without the recorded streams beside it tests every rule on its own golden streams, and says so.
ifeq ($(wildcard ../shared/captures/index.json)$(WEIR_SHARED)$(WEIR_NO_SHARED),)
export WEIR_NO_SHARED := 1
endif
ifdef WEIR_NO_SHARED
test: no-recordings
endif

.PHONY: help setup setup-build setup-cargo setup-postgres setup-redis setup-prometheus setup-python setup-node setup-chromium run failover test lint fmt clippy unit doc \
        conf prom sdk console fuzz fuzz-short deny bench soak count count-accept setup-bench setup-valgrind dist dist-files dist-tar dist-sums dist-test setup-deb clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- set-up

setup: setup-build setup-cargo setup-postgres setup-redis setup-prometheus setup-python setup-node setup-chromium setup-valgrind ## installs what is missing for `make test`

# Installs system packages when run as root on a machine with apt-get; elsewhere says what is missing.
# $(1) command that must exist, $(2) package that brings it
define need
	@if ! command -v $(1) >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "setup: apt-get install $(2)"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(2); } >/dev/null; \
	  else \
	    echo "setup: '$(1)' is missing: install the package '$(2)' and try again" >&2; exit 1; \
	  fi; \
	fi
endef

setup-build:
	$(call need,cmake,cmake)
	$(call need,c++,g++)
	@command -v $(CARGO) >/dev/null || { echo "setup: 'cargo' is missing: install Rust (rustup) and try again" >&2; exit 1; }

setup-cargo: setup-build
	@for tool in nextest deny fuzz; do \
	  $(CARGO) $$tool --version >/dev/null 2>&1 || { echo "setup: cargo install cargo-$$tool"; $(CARGO) install --locked cargo-$$tool; }; \
	done

# The ledger's sink is tested against a server of its own, started by the test on a free port.
setup-postgres:
	$(call need,pg_lsclusters,postgresql)

# The store of limits alike. redis-tools has the server's program without its service.
setup-redis:
	$(call need,redis-check-rdb,redis-tools)

# promtool and prometheus. Unpacked, not installed: the package would start a service.
setup-prometheus: $(PROMETHEUS)/promtool
target/prometheus/usr/bin/promtool:
	@command -v apt-get >/dev/null || { echo "setup: 'promtool' and 'prometheus' are missing: install Prometheus and try again" >&2; exit 1; }
	@echo "setup: unpack the package prometheus below target/"
	@rm -rf target/prometheus && mkdir -p target/prometheus
	@{ [ "$$(id -u)" != 0 ] || apt-get update -qq; cd target/prometheus && apt-get download -qq prometheus; } >/dev/null 2>&1 || { \
	  echo "setup: apt-get could not download the package prometheus" >&2; exit 1; }
	@dpkg-deb -x target/prometheus/*.deb target/prometheus && rm target/prometheus/*.deb
	@touch $@

setup-python: $(VENV)/.ready
$(VENV)/.ready: $(REQUIREMENTS)
	$(call need,python3,python3)
	@python3 -c 'import ensurepip' 2>/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null; } || { \
	  echo "setup: python3 has no venv: install the package 'python3-venv' and try again" >&2; exit 1; }
	@mkdir -p target
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)
	@touch $@

setup-node: $(NODE_TESTS)/node_modules/.ready
$(NODE_TESTS)/node_modules/.ready: $(NODE_TESTS)/package-lock.json
	$(call need,npm,nodejs npm)
	cd $(NODE_TESTS) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# The browser for the console's tests.
setup-chromium:
	$(call need,$(CHROMIUM),chromium)

# ---------------------------------------------------------------- run

run: setup-build ## builds Weir, starts it with the demo model and prints lines to paste
	$(CARGO) run --locked --quiet -- demo

failover: setup-build ## shows a first target dying after its message_start, and the second one's answer
	$(call need,curl,curl)
	@$(CARGO) build --locked --quiet
	@log=$$(mktemp); url=http://127.0.0.1:$(FAILOVER_PORT); \
	$(WEIR) demo --listen 127.0.0.1:$(FAILOVER_PORT) --admin 127.0.0.1:0 >/dev/null 2>$$log & weir=$$!; \
	trap 'kill $$weir; rm -f $$log' EXIT; \
	while kill -0 $$weir && ! curl -s -o /dev/null $$url; do sleep 0.1; done; \
	curl -sSN $$url/v1/messages -H 'x-api-key: weir-demo-key' -H 'content-type: application/json' \
	  -d '{"model":"demo-failover","max_tokens":12,"stream":true,"messages":[{"role":"user","content":"Hello"}]}'; \
	echo "What the client did not notice:"; \
	for _ in $$(seq 150); do grep -o '"attempts":.*' $$log && exit 0; sleep 0.2; done; exit 1

# ---------------------------------------------------------------- test

test: setup fmt clippy unit doc conf prom sdk console fuzz-short count deny ## every test, in CI's order

.PHONY: no-recordings
no-recordings:
	@echo '**********************************************************************************' >&2
	@echo '* ../shared is not there: the recorded streams of real providers are NOT replayed *' >&2
	@echo '**********************************************************************************' >&2

lint: fmt clippy doc deny ## the checks that run no test

fmt:
	$(CARGO) fmt --check

clippy: setup-build
	$(CARGO) clippy --locked --all-targets -- -D warnings

unit: setup-cargo
	$(CARGO) nextest run --locked
	$(CARGO) test --locked --doc --quiet

doc: setup-build
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items

# Each example file by `weir check`, and against the schema that `weir schema` prints.
conf: $(VENV)/.ready setup-build
	$(CARGO) build --locked
	$(PYTHON) tests/conf/check.py $(WEIR) $(filter-out conf/prices.yaml,$(wildcard conf/*.yaml))

# Dashboard and rules name only what exists, alerts fire when they should, and a real Prometheus reads the metrics.
prom: $(VENV)/.ready setup-build setup-prometheus setup-redis
	$(CARGO) build --locked
	$(PYTHON) tests/prometheus/check.py $(WEIR) $(PROMETHEUS)

# The official SDKs against the real binary.
sdk: $(VENV)/.ready $(NODE_TESTS)/node_modules/.ready setup-build
	$(CARGO) build --locked
	$(PYTHON) tests/sdk/run --weir $(WEIR)
	$(PYTHON) -W error tests/sdk/promises --weir $(WEIR)

# The pages for people in a real browser; screenshots in target/console. The chart library in the binary is npm's, which
# `npm ci` has compared with the integrity in package-lock.json.
console: $(VENV)/.ready $(NODE_TESTS)/node_modules/.ready setup-chromium setup-build ## the console in a browser, with screenshots
	cmp src/console/vendor/uPlot.iife.min.js $(NODE_TESTS)/node_modules/uplot/dist/uPlot.iife.min.js
	cmp src/console/vendor/uPlot.min.css $(NODE_TESTS)/node_modules/uplot/dist/uPlot.min.css
	cmp src/console/vendor/uPlot.LICENSE $(NODE_TESTS)/node_modules/uplot/LICENSE
	$(CARGO) build --locked
	$(PYTHON) tests/console/run --weir $(WEIR) --chromium "$$(command -v $(CHROMIUM))"

deny: setup-cargo
	$(CARGO) deny --locked check bans licenses sources

# ---------------------------------------------------------------- fuzz

# -s none: no sanitizer, since there is no unsafe code to find and a stable compiler will do
# (RUSTC_BOOTSTRAP lets it take the coverage flags).
fuzz: setup-cargo ## each fuzz target for FUZZ_SECONDS (60)
	@for target in $(FUZZ_TARGETS); do \
	  echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
	  RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run --target-dir $(CURDIR)/target -s none $$target -- \
	    -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1; \
	done

fuzz-short:
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=10

# ---------------------------------------------------------------- packages

DIST        := target/dist
DIST_BINARY ?= target/release/weir
VERSION     := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
TARBALL     := weir-$(VERSION)-$(shell uname -s | tr A-Z a-z)-$(shell uname -m)

dist: setup-build setup-deb ## release tarball and .deb with checksums, below target/dist
	CARGO_PROFILE_RELEASE_STRIP=symbols $(CARGO) build --locked --release --bin weir
	@$(MAKE) --no-print-directory dist-files dist-tar
	$(CARGO) deb --locked --no-build --no-strip --output $(DIST)/
	@$(MAKE) --no-print-directory dist-sums

setup-deb: setup-build
	@$(CARGO) deb --version >/dev/null 2>&1 || { echo "setup: cargo install cargo-deb"; $(CARGO) install --locked cargo-deb; }

# Completions and manual pages, from the definition of the command itself.
dist-files:
	@rm -rf $(DIST) && mkdir -p $(DIST)/share/man $(DIST)/share/completions
	@$(DIST_BINARY) man --folder $(DIST)/share/man
	@$(DIST_BINARY) completions bash > $(DIST)/share/completions/weir.bash
	@$(DIST_BINARY) completions zsh > $(DIST)/share/completions/_weir
	@$(DIST_BINARY) completions fish > $(DIST)/share/completions/weir.fish

dist-tar:
	@mkdir -p $(DIST)/$(TARBALL)
	@cp $(DIST_BINARY) LICENSE README.md CHANGELOG.md $(DIST)/$(TARBALL)/
	@cp -r conf $(DIST)/share $(DIST)/$(TARBALL)/
	@tar -C $(DIST) --sort=name --owner=0 --group=0 --numeric-owner -czf $(DIST)/$(TARBALL).tar.gz $(TARBALL)
	@rm -r $(DIST)/$(TARBALL)

# Needs root, an overlay and a .deb; what the machine does not allow is left out aloud.
dist-test: ## whether the .deb of `make dist` installs, starts and answers over TLS
	@tests/package/check.sh $(DIST)/weir_*.deb

dist-sums:
	@cd $(DIST) && sha256sum *.tar.gz $$(ls *.deb 2>/dev/null) > SHA256SUMS && cat SHA256SUMS

# ---------------------------------------------------------------- numbers

# On a quiet machine. BENCH_QUICK=1 for a first look; one scenario: $(CARGO) bench --bench load -- a
bench: setup-bench ## Weir next to stock Pingora, nginx and HAProxy; what its parts cost (8 minutes; BENCH_QUICK=1: 2)
	$(CARGO) bench --locked --bench pure
	$(CARGO) bench --locked --bench load

soak: setup-bench ## 20 minutes of churn and abandoned streams: fails if memory, descriptors, threads or series grow
	$(CARGO) bench --locked --bench load -- soak $(SOAK_MINUTES)

# Our own crate optimised, everything else as the tests have it: the counts need no release build.
COUNT := CARGO_INCREMENTAL=0 $(CARGO) bench --profile dev --locked --quiet --bench instructions \
  --config 'profile.dev.package.weir.opt-level=3' --config 'profile.dev.package.weir.codegen-units=1' \
  --config 'profile.dev.package.weir.debug-assertions=false' --config 'profile.dev.package.weir.overflow-checks=false'

count: setup-valgrind ## instructions of scanner, meter, relay and body edit, against the budget in bench/
	$(COUNT)

count-accept: setup-valgrind ## makes the counts of now the budget
	$(COUNT) -- accept

setup-valgrind: setup-build
	$(call need,valgrind,valgrind)

# RUNLEVEL=1: the packages' own services stay off.
setup-bench: export RUNLEVEL := 1
setup-bench: setup-build
	$(call need,nginx,nginx-light)
	$(call need,haproxy,haproxy)

clean: ## removes all that was built or installed below this folder
	rm -rf target $(NODE_TESTS)/node_modules fuzz/artifacts fuzz/coverage
