//! The device daemon as a program of its own, for programs that embed the attachment.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [option, config] = arguments.as_slice() else {
        eprintln!("usage: underlay-device-daemon --config FILE");
        return ExitCode::from(2);
    };
    if option != "--config" {
        eprintln!("unknown option {}; usage: underlay-device-daemon --config FILE", option.display());
        return ExitCode::from(2);
    }
    match underlay_attach::daemon::main(Path::new(config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
