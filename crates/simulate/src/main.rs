use std::process::ExitCode;

use clap::Parser;
use underlay_simulate::cli::{Arguments, run};

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("underlay-simulate: {error:#}");
            ExitCode::from(2)
        }
    }
}
