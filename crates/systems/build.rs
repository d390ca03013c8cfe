//! Checks that the RocksDB that was asked for can be had, and says how to get it, before a compiler says it worse.
//! Notes the versions of clients for the record.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["ROCKSDB_COMPILE", "ROCKSDB_INCLUDE_DIR", "ROCKSDB_STATIC", "ROCKSDB_LIB_DIR"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if let Some(problem) = problem() {
        // Printed for the user; a panic would bury it in a backtrace.
        eprintln!("\n{problem}\n");
        std::process::exit(1);
    }
    if std::env::var_os("ROCKSDB_STATIC").is_some() {
        link_statically();
    }
    println!("cargo:rustc-env=UNDERLAY_RUST_ROCKSDB_VERSION={}", locked_version("rocksdb"));
    println!("cargo:rustc-env=UNDERLAY_RUST_SCYLLA_VERSION={}", locked_version("scylla"));
}

/// `make dist`: the distribution's librocksdb.a goes into the program, whose other libraries do not bring what it
/// calls. libzstd is linked as ever.
fn link_statically() {
    let directory = std::env::var("ROCKSDB_LIB_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={directory}");
    for library in ["snappy", "lz4", "bz2", "z"] {
        println!("cargo:rustc-link-lib=static={library}");
    }
}

/// What keeps the rocksdb crate from building, and what to do about it.
fn problem() -> Option<String> {
    let from_source = std::env::var_os("CARGO_FEATURE_ROCKSDB_FROM_SOURCE").is_some();
    // As the build of librocksdb-sys reads them.
    let compile = std::env::var("ROCKSDB_COMPILE")
        .is_ok_and(|value| value == "1" || value.eq_ignore_ascii_case("true"));
    let headers = std::env::var("ROCKSDB_INCLUDE_DIR").unwrap_or_else(|_| "rocksdb/include".to_owned());
    let bundled = headers == "rocksdb/include";
    match (from_source, compile) {
        (true, true) if bundled => None,
        (true, _) => Some(
            "The feature rocksdb-from-source needs ROCKSDB_COMPILE=1 and ROCKSDB_INCLUDE_DIR=rocksdb/include in the \
             environment: compile the bundled RocksDB, with its own headers."
                .to_owned(),
        ),
        (false, true) => Some(
            "ROCKSDB_COMPILE=1 compiles the bundled RocksDB: add the feature rocksdb-from-source, which gives it its \
             compression libraries, or unset the variable."
                .to_owned(),
        ),
        (false, false) if bundled || Path::new(&headers).join("rocksdb/c.h").exists() => None,
        (false, false) => Some(format!(
            "There is no rocksdb/c.h in {headers}. Install the library (Debian: apt install librocksdb-dev libclang-dev), \
             or compile the bundled one, some 15 minutes on 2 cores:\n\
             ROCKSDB_COMPILE=1 ROCKSDB_INCLUDE_DIR=rocksdb/include cargo build --features underlay-systems/rocksdb-from-source"
        )),
    }
}

/// The version of a crate in Cargo.lock, for the record of a run.
fn locked_version(name: &str) -> String {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    println!("cargo:rerun-if-changed={}", lock.display());
    let text = std::fs::read_to_string(lock).unwrap_or_default();
    let version = text.split("[[package]]").find_map(|package| {
        let mut lines = package.lines().map(str::trim);
        lines.find(|&line| line == format!("name = \"{name}\""))?;
        Some(lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned())
    });
    version.unwrap_or_else(|| "unknown".to_owned())
}
