# What can be done here. On a fresh Debian or Ubuntu machine, as root or with sudo, both of these
# do all the set-up that they need; it is quick the second time:
#
#   make demo     a volume, a mirror, a fabric and a dying node, in three minutes
#   make test     everything that must pass
#
# Set CARGO_FLAGS for cargo's own options, such as CARGO_FLAGS=--offline.

# rustup's place, for a machine that has just been set up.
export PATH := $(PATH):$(HOME)/.cargo/bin
# With it, the tests drive the program that users run, and build it once.
export FLAGSTONE_BIN := $(CURDIR)/target/release/flagstone

# Property tests draw the same cases in every run; give another seed, or an empty one for chance.
PROPTEST_RNG_SEED ?= 2026
ifneq ($(PROPTEST_RNG_SEED),)
export PROPTEST_RNG_SEED
endif

CARGO_FLAGS ?=
# Simulated clusters of `make simulate`, each scenario from each of these seeds.
SEEDS ?= 0..1300
# Of `make torture`: events in each of its five tests.
ROUNDS ?= 200
# Of `make fuzz`: which target, and how many seconds.
TARGET ?= all
TIME ?= 60
# Of `make demo`: seconds of each of its 29 measurements, and where its file is made.
DEMO_SECONDS ?= 2
DEMO_DIR ?= target
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup build test lint unit simulate torture fuzz fuzz-smoke demo demo-smoke bench clean

help: ## show this
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: ## install what is missing: packages, and Rust
	@scripts/setup.sh

build: setup ## the program, target/release/flagstone
	cargo build $(CARGO_FLAGS) --release --package flagstone

# One after the other, whatever -j says: they share the CPUs and the disk.
test: ## everything that must pass
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory simulate
	@$(MAKE) --no-print-directory fuzz-smoke
	@$(MAKE) --no-print-directory demo-smoke
	@echo "make test: all passed"

lint: ## formatting and clippy, warnings denied
	cargo fmt --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

unit: build ## cargo test of the whole workspace: units, and real clients against the real program
	cargo test $(CARGO_FLAGS) --workspace

simulate: ## whole clusters under faults, in simulated time: SEEDS=0..1300
	cargo run $(CARGO_FLAGS) --release --package flagstone-sim -- --seeds $(SEEDS)

torture: build ## mirrored nodes die, stall, are cut off and run full, under load: ROUNDS=200
	FLAGSTONE_MIRROR_ROUNDS=$(ROUNDS) cargo test $(CARGO_FLAGS) --package flagstone-tests \
	    --test mirror --test mirror_fio -- --nocapture survive fio_finds

fuzz: setup ## fuzz for long: TARGET=nvme_target TIME=3600 (seconds)
	fuzz/run $(TARGET) $(TIME)

fuzz-smoke: ## every fuzz target for a few seconds
	fuzz/run all 3

demo: build ## in three minutes: a volume attached, a mirror, a fabric, a dying node; one report
	cargo run $(CARGO_FLAGS) --quiet --release --package flagstone-demo -- \
	    --flagstone $(FLAGSTONE_BIN) --dir $(DEMO_DIR) --seconds $(DEMO_SECONDS) $(DEMO_ARGS)

demo-smoke: build
	cargo run $(CARGO_FLAGS) --quiet --release --package flagstone-demo -- \
	    --flagstone $(FLAGSTONE_BIN) --dir target --seconds 0.1 --size-mib 64 \
	    --results target/demo-smoke

bench: ## what can be measured, with the commands
	@echo "Each prints ratios measured in one run. Nothing else should use the machine."
	@echo
	@echo "The target on our client, against a bare TCP exchange of the same bytes:"
	@echo "  cargo run --release -p flagstone-benches --bin floor -- --rw read --depth 32"
	@echo "  (also --rw write, --depth 1 and 128, --device memory, --driver threads)"
	@echo "What the load generator itself costs:"
	@echo "  cargo run --release -p flagstone-load --example generator_cost"
	@echo "A volume on a file against the file itself, over NVMe/TCP and NBD:"
	@echo "  make demo DEMO_SECONDS=10 DEMO_DIR=/a/directory/on/the/disk DEMO_ARGS='--json demo.json'"

clean: ## all that was built; what was fuzzed stays in fuzz/corpus
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
