# Entry points. On a fresh Debian or Ubuntu machine, as root or with sudo, these two install all
# that they need:
#
#   make demo     a volume, a mirror, a fabric and a dying node, in three minutes
#   make test     everything that must pass
#
# CARGO_FLAGS passes options to cargo, such as CARGO_FLAGS=--offline.

# rustup installs here, which the PATH of an open shell lacks.
export PATH := $(PATH):$(HOME)/.cargo/bin
# The program that the demo and `make torture` drive. `make test` drives the one that cargo builds
# with the tests, with assertions: another build would take a sixth of its time.
export FLAGSTONE_BIN := $(CURDIR)/target/release/flagstone
TESTED_BIN := $(CURDIR)/target/debug/flagstone

# Seed of the property tests; an empty one draws new cases in every run.
PROPTEST_RNG_SEED ?= 2026
ifneq ($(PROPTEST_RNG_SEED),)
export PROPTEST_RNG_SEED
endif

CARGO_FLAGS ?=
# Seeds of each scenario of `make simulate`.
SEEDS ?= 0..1000
# Events in each of the eight tests of `make torture`.
ROUNDS ?= 200
# Target and seconds of `make fuzz`.
TARGET ?= all
TIME ?= 60
# Seconds of each of the 33 measurements of `make demo`, and the directory of its file.
DEMO_SECONDS ?= 2
DEMO_DIR ?= target
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build test lint licenses unit test-crates test-program test-guest simulate torture fuzz fuzz-smoke demo demo-smoke package bench clean

help: ## show this
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: ## install missing packages and Rust
	@scripts/setup.sh

build: setup ## the program, target/release/flagstone
	cargo build $(CARGO_FLAGS) --release --package flagstone

# In sequence, whatever -j says: they share the CPUs and the disk.
test: ## everything that must pass
	@set -e; parts=; for part in setup lint unit simulate fuzz-smoke demo-smoke; do \
	    begin=$$(date +%s); \
	    $(MAKE) --no-print-directory $$part; \
	    parts="$$parts, $$part $$(($$(date +%s) - begin)) s"; \
	done; echo "make test: all passed ($${parts#, })"

lint: ## formatting, clippy with warnings denied, spelling, licenses of dependencies
	cargo fmt --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	scripts/lint.sh

licenses: ## write THIRD-PARTY-LICENSES again, after a change of dependencies
	UPDATE_DOCS=1 cargo test $(CARGO_FLAGS) --quiet --package flagstone-tests --test repository

# The tests of the program wait for clients and processes most of the time, so they run beside those
# of the crates, after all are built. Each part selects enough packages to get the features of that
# build: another selection would compile most of it again.
TESTED := --workspace --exclude flagstone-sim
# Their tests have names that tests of the program have, too.
NAMESAKES := $(addprefix --exclude flagstone-,limit nbd nvmf-host nvmf-target)
# Hosts in QEMU's emulation take as long as many of the others together.
GUEST_TESTS := --test kernel_guest
PROGRAM_TESTS := $(filter-out kernel_guest,$(patsubst tests/tests/%.rs,%,$(wildcard tests/tests/*.rs)))

unit test-crates test-program test-guest demo-smoke: export FLAGSTONE_BIN := $(TESTED_BIN)

unit: setup ## cargo test of the whole workspace: units, and real clients against the real program
	@scripts/test-servers.sh
	cargo test $(CARGO_FLAGS) $(TESTED) --no-run
	@$(MAKE) --no-print-directory -j3 test-crates test-program test-guest

test-crates:
	cargo test $(CARGO_FLAGS) $(TESTED) --no-fail-fast --lib --bins
	cargo test $(CARGO_FLAGS) $(TESTED) --no-fail-fast --exclude flagstone-tests --test '*'
	cargo test $(CARGO_FLAGS) $(TESTED) --doc

test-program:
	cargo test $(CARGO_FLAGS) $(TESTED) --no-fail-fast $(NAMESAKES) $(addprefix --test ,$(PROGRAM_TESTS))

test-guest:
	cargo test $(CARGO_FLAGS) $(TESTED) $(GUEST_TESTS)

simulate: ## whole clusters under faults, in simulated time: SEEDS=0..1000
	cargo test $(CARGO_FLAGS) --profile simulation --package flagstone-sim
	cargo run $(CARGO_FLAGS) --profile simulation --package flagstone-sim -- --seeds $(SEEDS)

torture: build ## kill, pause, disconnect, power off and fill up mirrored nodes: ROUNDS=200
	FLAGSTONE_MIRROR_ROUNDS=$(ROUNDS) cargo test $(CARGO_FLAGS) --package flagstone-tests \
	    --test mirror --test mirror_async --test mirror_fio -- --nocapture survive fio_checksums

fuzz: setup ## fuzz for long: TARGET=nvme_target TIME=3600 (seconds)
	fuzz/run $(TARGET) $(TIME)

fuzz-smoke: ## every fuzz target for a few seconds
	fuzz/run all 3

demo: build ## in three minutes: a volume attached, a pool, a mirror, a fabric, a dying node; one report
	$(FLAGSTONE_BIN) lab demo --dir $(DEMO_DIR) --runtime $(DEMO_SECONDS)s --results target/demo $(DEMO_ARGS)

demo-smoke: setup
	cargo test $(CARGO_FLAGS) $(TESTED) --no-run
	$(FLAGSTONE_BIN) lab demo --dir target --runtime 100ms --size 64m --results target/demo-smoke

package: setup ## .deb and .rpm for x86_64 and aarch64, in target/packages
	scripts/package.sh

bench: ## list the benchmarks and their commands
	@echo "Each prints ratios measured in one run. Nothing else should use the machine."
	@echo
	@echo "The target on our client, against a bare TCP exchange of the same bytes:"
	@echo "  cargo run --profile distribution -p flagstone-benches --bin floor -- --rw read --depth 32"
	@echo "  (also --rw write, --depth 1 and 128, --device memory, --io-engine threads)"
	@echo "What the load generator itself costs:"
	@echo "  cargo run --profile distribution -p flagstone-load --example generator_cost"
	@echo "A volume on a file against the file itself, over NVMe/TCP and NBD:"
	@echo "  make demo DEMO_SECONDS=10 DEMO_DIR=/a/directory/on/the/disk   (results in target/demo/summary.json)"

clean: ## delete build output; fuzz/corpus stays
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
