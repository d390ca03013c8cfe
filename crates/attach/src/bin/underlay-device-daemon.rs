//! The device daemon as a separate program, for programs that embed the attachment.

use std::io::{Write as _, stderr};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [option, config] = arguments.as_slice() else {
        return mistaken("usage: underlay-device-daemon --config FILE");
    };
    if option != "--config" {
        return mistaken(&format!(
            "unknown option {}; usage: underlay-device-daemon --config FILE",
            option.display()
        ));
    }
    let log = tracing_subscriber::fmt().with_writer(stderr).with_ansi(false).without_time();
    log.log_internal_errors(false).init();
    match underlay_attach::daemon::main(Path::new(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(stderr(), "{error}");
            ExitCode::from(underlay_attach::daemon::exit_code(&error))
        }
    }
}

fn mistaken(problem: &str) -> ExitCode {
    let _ = writeln!(stderr(), "{problem}");
    ExitCode::from(2)
}
