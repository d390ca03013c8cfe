//! The log of long-lived commands and the libraries: a line for each event on standard error, with its level.

use std::io::{self, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::arguments::LogLevel;
use crate::terminal_escape::harmless;

/// Events of other libraries are theirs to look into, not the user's.
const OWN_TARGETS: &str = "underlay";

/// For a server: with the time.
pub(crate) fn init_for_server(level: LogLevel) {
    let lines = fmt::layer().with_ansi(false).with_writer(|| StderrLog).log_internal_errors(false);
    let chosen = Targets::new().with_target(OWN_TARGETS, filter(level));
    // There is one already where tests run commands in one process.
    let _ = tracing_subscriber::registry().with(lines).with(chosen).try_init();
}

/// For a command that somebody watches: warnings and errors, without the time.
pub(crate) fn init_for_command() {
    let lines = fmt::layer().with_ansi(false).with_target(false).without_time();
    let lines = lines.with_writer(|| StderrLog).log_internal_errors(false);
    let chosen = Targets::new().with_target(OWN_TARGETS, LevelFilter::WARN);
    let _ = tracing_subscriber::registry().with(lines).with(chosen).try_init();
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
}

/// Standard error, whether anybody reads it or not.
struct StderrLog;

impl Write for StderrLog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(harmless(&String::from_utf8_lossy(line)).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
