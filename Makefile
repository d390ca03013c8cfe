# Two commands do all the set-up: `make quickstart` runs the main job, `make test` passes the tests.
UNDERLAY = target/release/underlay
# A modelled device is a block device with a file system on it: mounting one takes root.
AS_ROOT = $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=CI)

# How many operations `make exercise` does on each stack.
OPERATIONS = 1000000

.PHONY: quickstart build test lint exercise overhead fidelity schema clean help

help:
	@echo "make quickstart   build, and see what three disks do to a database (about 10 minutes)"
	@echo "make test         everything that must pass before a commit"
	@echo "make lint         formatting and clippy"
	@echo "make exercise     a million random operations on every attachment and stack of layers, byte for byte"
	@echo "make overhead     measure what an attachment costs beside a plain loop device, and write docs/overhead.md"
	@echo "make fidelity     measure modelled against delivered by fio, and write docs/fidelity.md"
	@echo "make schema       write docs/run-record.schema.json anew"

quickstart: build
	$(AS_ROOT) $(UNDERLAY) run studies/quickstart.toml

build:
	@scripts/install-packages run
	cargo build --release --locked

test:
	@scripts/install-packages test
	@scripts/test

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings

exercise:
	@scripts/install-packages test
	@UNDERLAY_EXERCISE_OPERATIONS=$(OPERATIONS) scripts/exercise

overhead:
	@scripts/install-packages test
	cargo build --release --locked -p underlay-attach --example bare_device
	$(AS_ROOT) scripts/with-fuse-uring benches/overhead

fidelity: build
	@scripts/install-packages test
	$(AS_ROOT) benches/fidelity

schema: build
	$(UNDERLAY) schema > docs/run-record.schema.json

clean:
	cargo clean
