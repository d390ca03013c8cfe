use std::io::Write;
use std::panic::catch_unwind;
use std::process::ExitCode;

use clap::Parser;
use underlay_simulate::cli::{SimulateArguments, run};
use underlay_simulate::problem::{FAILED_SEED, ScriptProblem};

fn main() -> ExitCode {
    let arguments = SimulateArguments::parse();
    let outcome = catch_unwind(|| run(arguments))
        .unwrap_or_else(|_| Err(ScriptProblem::Bug("a panic, reported above".into())));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED_SEED),
        Err(problem) => {
            if !problem.is_quiet() {
                // There is nobody left to tell when this fails, too.
                let _ = writeln!(std::io::stderr(), "underlay-simulate: {problem}");
            }
            ExitCode::from(problem.code())
        }
    }
}
