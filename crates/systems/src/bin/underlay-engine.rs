//! The engine without the rest of underlay, for the tests of this crate: `underlay-engine engine OPTIONS`.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let outcome = match words.split_first() {
        Some((subcommand, line)) if subcommand == "engine" => underlay_systems::rocksdb::engine::main(line),
        _ => {
            eprintln!("usage: underlay-engine engine OPTIONS (underlay starts it by itself)");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
