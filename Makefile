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
    lint-workflows \
    oracle-nosql-kills \
    overhead \
    power-cuts \
    prediction \
    quick \
    quickstart \
    silicon \
    simulate \
    simulate-proof \
    slow-motion \
    spark-variants \
    test \
    vm \
    volume-kills \
    volume-performance

help:
	@echo "make quickstart   build, and see what three disks do to a database (10 to 17 minutes with the build)"
	@echo "make test         everything that must pass before a commit"
	@echo "make quick        the fast loop: unit tests, models and schemas, without root or other systems; prints its times"
	@echo "make gateway      build the S3 gateway, target/release/underlay-gateway"
	@echo "make lint         formatting, names and sentences, links, tables of docs/data, clippy, rings of modules, licences and versions of dependencies"
	@echo "make lint-workflows  check .github/workflows with actionlint (needs Go)"
	@echo "make exercise     a million random operations on every attachment and stack of layers, byte for byte"
	@echo "make vm           test ublk and the volume server against a stock Linux kernel in virtual machines, and the gateway's unit with systemd"
	@echo "make simulate     the volume stack for an hour, many hours of virtual time, under faults in any combination"
	@echo "make simulate-proof  plant known bugs one at a time, and say after how many seeds each is found"
	@echo "make gateway-simulate  the S3 gateway for an hour (MINUTES), in virtual time, under faults in any combination"
	@echo "make gateway-simulate-proof  plant known faults in the gateway one at a time, and say after how many seeds each is found"
	@echo "make power-cuts   a thousand power cuts under XFS, ext4 and RocksDB, and some with a second fault: what was acknowledged must be there"
	@echo "make volume-kills 500 kills of the volume server under load, more with a failing member or a full pool: whatever it had answered must be there"
	@echo "make gateway-kills  200 kills of the S3 gateway's engine under load while the store behind fails: whatever was acknowledged must be there"
	@echo "make je-ha-kills  20 kills of replicas and of masters of replicated Berkeley DB JE under load: whatever was acknowledged must be there"
	@echo "make oracle-nosql-kills  the same of storage nodes of Oracle NoSQL Database, from the installation that KVHOME names"
	@echo "make gateway-greedy  256 slow and greedy clients of each kind and 10,000 idle connections for ten minutes, the gateway in a control group of 256 MiB: others are served all the time"
	@echo "make spark-variants  Spark 4.1, below YARN, with the external shuffle service, on a cluster that runs already, and behind Alluxio and each way of the gateway"
	@echo "make overhead     measure what an attachment costs beside a plain loop device, and write docs/overhead.md"
	@echo "make silicon      play the loads under which drives were measured against their models, and write docs/silicon.md's tables"
	@echo "make fidelity     measure modelled against delivered by fio, and write docs/data/fidelity.json and its summary in docs/fidelity.md"
	@echo "make gateway-performance  measure the S3 gateway's hits, misses, writes, renames and metadata beside nginx's cache, the store itself and what PEERS names, and write docs/gateway-performance.md"
	@echo "make gateway-s3-tests S3_TESTS=DIR  run Ceph's s3-tests, checked out there, against the S3 gateway, and write docs/data/gateway-s3-tests.json"
	@echo "make gateway-suites MINIO_GO=DIR MINIO_JS=DIR VERSITYGW=DIR  run those suites, checked out there, against the S3 gateway, and write their parts of docs/data/gateway-suites.json (any of the three)"
	@echo "make volume-performance  measure what a volume over NVMe/TCP costs, and write docs/volume-performance.md"
	@echo "make jvm-hop             measure what the way to the Java child process costs, and write docs/jvm-child.md"
	@echo "make generator           measure the load generator beside YCSB and go-ycsb, and write docs/generator.md"
	@echo "make slow-motion  run RocksDB on flash at two factors of slow motion, on fewer CPUs and beside a busy program, and see whether all agree (about 25 minutes)"
	@echo "make certificate  hold the certificate against fio's log, on a quiet host and beside a busy program"
	@echo "make console-cost measure what the console costs a run while a page is open for MINUTES (60)"
	@echo "make prediction   predict each cell of measured runs (RUNS='runs/a runs/b') from the others, and write docs/data/prediction.json and its summary in docs/prediction.md"
	@echo "make book         the pages of docs/ as a book with the tables of docs/data, target/book/index.html"
	@echo "make install      build, and install the program, its man pages and completions below PREFIX ($(PREFIX))"
	@echo "make deb          a Debian package below target/debian"
	@echo "make dist         a tarball below target/dist with both programs, for Debian 12, Ubuntu 22.04 and newer, if it is built on Debian 12"
	@echo "make image        a container image, underlay:$(VERSION), with the S3 gateway in it"

quickstart: build
	$(AS_ROOT) $(UNDERLAY) run studies/quickstart.toml

# For the quickstart. The gateway needs other libraries and no RocksDB, so it has its own target.
build:
	@scripts/install-packages run
	cargo build --release --locked -p underlay-cli

gateway:
	@scripts/install-packages gateway
	$(AS_A_WHOLE) cargo build --release --locked -p underlay-gateway

test:
	@scripts/install-packages test
	@scripts/test

# Unit tests of every crate, test programs that need neither root nor another system, and the time of each.
quick:
	@scripts/install-packages run
	@scripts/test pure

lint-workflows:
	go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7

lint: target/tools/bin/cargo-deny
	cargo fmt --all --check
	scripts/tidy
	scripts/check-pages
	python3 -m unittest discover --quiet tests/book
	scripts/module-rings
	scripts/check-fuse-uring
	target/tools/bin/cargo-deny --locked check licenses bans sources
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	@# Nothing else compiles this workspace.
	cargo check --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz

# The pages of docs/ as a book, target/book/index.html. scripts/render-tables puts the tables of docs/data into it.
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

silicon:
	cargo build --release --locked -p underlay-storage --example measured_drives
	benches/silicon

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
