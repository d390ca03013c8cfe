# Two commands do all the set-up: `make quickstart` runs a first study, `make test` runs all tests.
UNDERLAY = target/release/underlay
# A modelled device is a block device with a file system on it: mounting one takes root.
AS_ROOT = $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=CI)

# Whole-program optimisation takes a minute more to build, and the server then serves more small requests.
AS_A_WHOLE = CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1

VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)
PREFIX = /usr/local

# Operations of `make exercise` on each stack.
OPERATIONS = 1000000
# Minutes that `make simulate` and `make gateway-simulate` run.
MINUTES = 60
# Kills of the server in `make volume-kills`.
KILLS = 500
# Peers for `make gateway-performance` outside Debian's paths: `--nginx PATH`, `--alluxio DIR_OR_JARS`, `--tag PATH`.
PEERS =
# Seconds that `make gateway-greedy` runs.
GREEDY_SECONDS ?= 600
export GREEDY_SECONDS
# Kills of the gateway's engine in `make gateway-kills`.
GATEWAY_KILLS = 200
# Replicas that `make je-ha-kills` kills, and as many masters.
MEMBER_KILLS = 20

.PHONY: \
    book \
    build \
    certificate \
    clean \
    console-cost \
    deb \
    dist \
    exercise \
    fidelity \
    gateway \
    gateway-greedy \
    gateway-kills \
    gateway-performance \
    gateway-s3-tests \
    gateway-simulate \
    gateway-simulate-proof \
    gateway-suites \
    generator \
    help \
    image \
    install \
    je-ha-kills \
    jvm-hop \
    lint \
    oracle-nosql-kills \
    overhead \
    power-cuts \
    prediction \
    quick \
    quickstart \
    schema \
    simulate \
    simulate-proof \
    slow-motion \
    spark-variants \
    test \
    vm \
    volume-kills \
    volume-performance

help:
	@echo "make quickstart              build, and compare three disks under RocksDB (10 minutes with the build)"
	@echo "make quick                   the fast loop: tests that need neither root nor other systems, with their times"
	@echo "make test                    every test; must pass before a commit"
	@echo "make lint                    formatting, names, sentences, links, clippy, module rings, licences, dependencies"
	@echo "make gateway                 build the S3 gateway, target/release/underlay-gateway"
	@echo
	@echo "make exercise                a million random operations on every attachment and stack, compared byte for byte"
	@echo "make simulate                the volume stack in virtual time for an hour (MINUTES), under all kinds of faults"
	@echo "make simulate-proof          plant known bugs, and count the seeds until the simulator finds each"
	@echo "make gateway-simulate        the S3 gateway in virtual time for an hour (MINUTES), under all kinds of faults"
	@echo "make gateway-simulate-proof  plant known faults in the gateway, and count the seeds until each is found"
	@echo "make power-cuts              a thousand power cuts under XFS, ext4 and RocksDB, some with a second fault"
	@echo "make volume-kills            500 kills of the volume server under load, more with bad members or full pools"
	@echo "make gateway-kills           200 kills of the S3 gateway's engine under load, over a failing store"
	@echo "make gateway-greedy          slow and greedy clients against the gateway in 256 MiB for ten minutes"
	@echo "make je-ha-kills             20 kills of replicas and of masters of replicated Berkeley DB JE"
	@echo "make oracle-nosql-kills      20 kills of storage nodes of Oracle NoSQL Database, installed at KVHOME"
	@echo "make spark-variants          Spark 4.1, on YARN, on an external cluster, and behind each cache and gateway mode"
	@echo "make vm                      ublk, volume server and the gateway's systemd unit in virtual machines"
	@echo
	@echo "make overhead                measure attachments beside a plain loop device; writes docs/overhead.md"
	@echo "make fidelity                compare modelled and delivered times by fio; writes docs/fidelity.md"
	@echo "make generator               measure the load generator beside YCSB and go-ycsb; writes docs/generator.md"
	@echo "make jvm-hop                 measure the hop to the Java child process; writes docs/jvm-child.md"
	@echo "make volume-performance      measure volumes over NVMe/TCP; writes docs/volume-performance.md"
	@echo "make gateway-performance     measure the S3 gateway and PEERS; writes docs/gateway-performance.md"
	@echo "make gateway-s3-tests        run Ceph's s3-tests in S3_TESTS=DIR; writes docs/gateway-s3-tests.md"
	@echo "make gateway-suites          suites in MINIO_GO=, MINIO_JS=, VERSITYGW=DIR; writes docs/gateway-suites.md"
	@echo "make prediction              predict each cell of RUNS='DIR ...' from the others; writes docs/prediction.md"
	@echo "make slow-motion             RocksDB at two slow-motion factors, on fewer CPUs, beside other work (25 min)"
	@echo "make certificate             compare the certificate with fio's log, on a quiet host and beside a busy program"
	@echo "make console-cost            measure the cost of an open console page to a run, for MINUTES (60)"
	@echo
	@echo "make book                    the pages of docs/ as a book, target/book/index.html"
	@echo "make schema                  write docs/schemas anew"
	@echo "make install                 build and install programs, man pages, completions below PREFIX ($(PREFIX))"
	@echo "make deb                     a Debian package below target/debian"
	@echo "make dist                    a tarball for Debian 12, Ubuntu 22.04 and newer, if built on Debian 12"
	@echo "make image                   a container image, underlay:$(VERSION), with the S3 gateway in it"

quickstart: build
	$(AS_ROOT) $(UNDERLAY) run studies/quickstart.toml

# For the quickstart. The gateway needs other libraries and no RocksDB, so it has its own target.
build:
	@scripts/install-packages run
	cargo build --release --locked -p underlay-cli

gateway:
	@scripts/install-packages gateway
	$(AS_A_WHOLE) cargo build --release --locked -p underlay-gateway

# The virtual machine uses programs that the tests have built: a stock kernel connects to the volume server.
test:
	@scripts/install-packages test
	@scripts/test
	tests/vm/run-nvme-tcp target/vm

# Unit tests of every crate, test programs that need neither root nor another system, and the time of each.
quick:
	@scripts/install-packages run
	@scripts/test pure

lint: target/tools/bin/cargo-deny
	cargo fmt --all --check
	scripts/tidy
	scripts/check-pages
	scripts/module-rings
	scripts/check-fuse-uring
	target/tools/bin/cargo-deny --locked check licenses bans sources
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	@# Nothing else compiles this workspace.
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz

# The pages of docs/ as a book, target/book/index.html.
book: target/tools/bin/mdbook
	scripts/check-pages
	target/tools/bin/mdbook build

target/tools/bin/mdbook:
	cargo install mdbook --version =0.5.4 --locked --no-default-features --features search --root target/tools

# Takes some minutes, once.
target/tools/bin/cargo-deny:
	cargo install cargo-deny --version =0.20.2 --locked --root target/tools

exercise:
	@scripts/install-packages test
	@UNDERLAY_EXERCISE_OPERATIONS=$(OPERATIONS) scripts/exercise

vm:
	@scripts/install-packages test
	cargo build --locked -p underlay-cli -p underlay-attach -p underlay-gateway --bins
	tests/vm/run target/vm
	tests/vm/run-nvme-tcp target/vm
	tests/vm/run-gateway-unit target/vm

simulate:
	@scripts/install-packages test
	cargo run --release --locked -p underlay-simulate -- run --minutes $(MINUTES)

simulate-proof:
	@scripts/install-packages test
	cargo run --release --locked -p underlay-simulate -- prove

gateway-simulate:
	@scripts/install-packages test
	cargo run --release --locked -p underlay-gateway-simulate -- run --minutes $(MINUTES)

gateway-simulate-proof:
	@scripts/install-packages test
	cargo run --release --locked -p underlay-gateway-simulate -- prove

power-cuts:
	@scripts/install-packages test
	@scripts/power-cuts

volume-kills:
	@scripts/install-packages test
	@UNDERLAY_VOLUME_KILLS=$(KILLS) scripts/volume-kills

gateway-kills:
	@scripts/install-packages test
	UNDERLAY_GATEWAY_KILLS=$(GATEWAY_KILLS) cargo test --locked -p underlay-gateway --test gateway kills

gateway-greedy:
	@scripts/install-packages test
	scripts/gateway-greedy

je-ha-kills:
	@scripts/install-packages test
	@RUST_TEST_NOCAPTURE=1 UNDERLAY_JE_HA_KILLS=$(MEMBER_KILLS) scripts/test -p underlay-systems --test je members_killed

oracle-nosql-kills:
	@RUST_TEST_NOCAPTURE=1 UNDERLAY_ORACLE_NOSQL_KILLS=$(MEMBER_KILLS) scripts/test -p underlay-systems --test oracle_nosql storage_nodes_killed

spark-variants:
	@scripts/install-packages test
	@scripts/test --workspace --test spark_variants -- --ignored

overhead:
	@scripts/install-packages test
	cargo build --release --locked -p underlay-attach --example bare_device
	$(AS_ROOT) scripts/with-fuse-uring benches/overhead

fidelity: build
	@scripts/install-packages test
	$(AS_ROOT) benches/fidelity

gateway-performance: gateway
	cargo build --release --locked -p underlay-gateway --examples
	benches/gateway --whole $(PEERS)

gateway-s3-tests: gateway
	benches/gateway-s3-tests $(S3_TESTS)

gateway-suites: gateway
	benches/gateway-suites $(if $(MINIO_GO),--minio-go "$(MINIO_GO)") $(if $(MINIO_JS),--minio-js "$(MINIO_JS)") $(if $(VERSITYGW),--versitygw "$(VERSITYGW)")

volume-performance:
	cargo build --release --locked -p underlay-volume --example volume_bench
	$(AS_ROOT) benches/volume

jvm-hop:
	@scripts/install-packages test
	cargo build --release --locked -p underlay-systems --example jvm_hop
	benches/jvm-hop

generator: build
	@scripts/install-packages test
	benches/generator

slow-motion: build
	@scripts/install-packages run
	$(AS_ROOT) benches/slow-motion

certificate: build
	@scripts/install-packages test
	$(AS_ROOT) benches/certificate

console-cost: build
	$(AS_ROOT) benches/console --minutes $(MINUTES)

# Runs to predict: by default the newest.
RUNS = $(lastword $(sort $(wildcard runs/*)))

prediction: build
	benches/prediction $(RUNS)

schema: build
	for output in study record report comparison check doctor predict held-out explain advise-storage advise-memory; do $(UNDERLAY) schema $$output > docs/schemas/$$output.json; done

install: build gateway
	@scripts/package-files $(UNDERLAY) target/package
	$(AS_ROOT) install -D -m 755 $(UNDERLAY) $(DESTDIR)$(PREFIX)/bin/underlay
	$(AS_ROOT) install -D -m 755 target/release/underlay-gateway $(DESTDIR)$(PREFIX)/bin/underlay-gateway
	sed 's|/usr/bin/underlay-gateway|$(PREFIX)/bin/underlay-gateway|' contrib/systemd/underlay-gateway.service > target/package/underlay-gateway.service
	$(AS_ROOT) install -D -m 644 target/package/underlay-gateway.service $(DESTDIR)$(PREFIX)/lib/systemd/system/underlay-gateway.service
	$(AS_ROOT) install -D -m 644 contrib/sysusers.d/underlay-gateway.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/underlay-gateway.conf
	$(AS_ROOT) install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 target/package/man/*.1
	$(AS_ROOT) install -D -m 644 target/package/completions/underlay.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/underlay
	$(AS_ROOT) install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions target/package/completions/_underlay
	$(AS_ROOT) install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d target/package/completions/underlay.fish

# deploy/deb.md lists the package's contents.
deb: build gateway target/tools/bin/cargo-deb
	@scripts/package-files $(UNDERLAY) target/package
	PATH="$(CURDIR)/target/tools/bin:$$PATH" cargo deb --package underlay-cli --no-build --no-strip --locked

# Takes some minutes, once.
target/tools/bin/cargo-deb:
	cargo install cargo-deb --version =3.8.0 --locked --root target/tools

# Distributions have different versions of RocksDB, so this program links it statically, in its own target directory.
DIST = target/static/release
dist: gateway
	@scripts/install-packages run
	ROCKSDB_STATIC=1 ROCKSDB_LIB_DIR="$$(dirname "$$(realpath "$$(cc -print-file-name=librocksdb.a)")")" \
		cargo build --release --locked -p underlay-cli --target-dir target/static
	@scripts/dist $(DIST)/underlay target/release/underlay-gateway $(VERSION)

image: build gateway
	@scripts/image underlay:$(VERSION)

clean:
	cargo clean
