//! Standard output and standard error.
//!
//! Scripts read standard output: a reader that closes it early (`| head`) has read enough, and any other failed write
//! ends the program with an error. People watch standard error: where nobody does, the work goes on.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use underlay_sync::UnsimulatedMutex;

use crate::terminal_escape::harmless;

/// The error that broke standard output; later writes are then pointless.
static BROKEN: UnsimulatedMutex<Option<io::Error>> = UnsimulatedMutex::new(None);

/// Prints text and ends it with a line break if it has none.
pub(crate) fn print(text: &str) {
    let text = harmless(text);
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| match text.ends_with('\n') {
        true => Ok(()),
        false => out.write_all(b"\n"),
    });
    keep(written.and_then(|()| out.flush()));
}

/// Remembers what went wrong with standard output first, for [`broken`].
pub(crate) fn keep(written: io::Result<()>) {
    let Err(error) = written else { return };
    if error.kind() != io::ErrorKind::BrokenPipe {
        BROKEN.lock().get_or_insert(error);
    }
}

/// Why not all of standard output was written. To be asked for once, at the end.
pub(crate) fn broken() -> Option<io::Error> {
    BROKEN.lock().take()
}

/// Says a line on standard error, where anyone may watch.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", harmless(&without_error_numbers(&line.to_string())));
}

/// The text without the numbers that the standard library puts behind the cause of an I/O error: `(os error 2)`.
pub(crate) fn without_error_numbers(text: &str) -> Cow<'_, str> {
    const BEFORE: &str = " (os error ";
    let mut passed = Cow::Borrowed(text);
    let mut searched = 0;
    while let Some(found) = passed[searched..].find(BEFORE).map(|found| searched + found) {
        searched = found + BEFORE.len();
        let digits = passed[searched..].chars().take_while(char::is_ascii_digit).count();
        if digits > 0 && passed[searched + digits..].starts_with(')') {
            passed.to_mut().replace_range(found..=searched + digits, "");
            searched = found;
        }
    }
    passed
}

/// Whether standard output is to be coloured.
pub(crate) fn colour() -> bool {
    wants_colour(is_terminal())
}

/// Whether a person reads standard output from a screen.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The same of standard error.
pub(crate) fn colour_of_errors() -> bool {
    wants_colour(io::stderr().is_terminal())
}

/// <https://no-color.org>, and terminals that know no escapes.
fn wants_colour(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A table as the terminal has room for it; whole where nobody but a program or a file gets it.
pub(crate) fn table(table: &comfy_table::Table) -> String {
    underlay_report::terminal::fitted(table, columns().unwrap_or(usize::MAX))
}

/// A mark or name, and beside it a text in as many lines as the terminal makes of it, below each other from column
/// `indent` on.
pub(crate) fn wrap_after_head(head: &str, indent: usize, text: &str) -> String {
    let Some(columns) = columns() else { return format!("{head:<indent$}{text}") };
    // A narrow one has no room for columns.
    let (first, indent) = match columns < indent + 30 {
        true => (format!("{}\n", head.trim_end()), 4),
        false => (format!("{head:<indent$}"), indent),
    };
    let lines = underlay_report::terminal::wrap(text, columns - indent, "");
    let blank = " ".repeat(indent);
    let first = if first.ends_with('\n') { first + &blank } else { first };
    first + &lines.join(&format!("\n{blank}"))
}

/// Sentences in as many lines as the terminal makes of them.
pub(crate) fn paragraph(text: &str) -> String {
    wrap_after_head("", 0, text)
}

/// Columns of the terminal, 100 where there is none.
pub(crate) fn width() -> usize {
    columns().unwrap_or(100)
}

fn columns() -> Option<usize> {
    // SAFETY: winsize is plain old data, and the call only writes into it.
    let columns = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        if libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) == 0 { size.ws_col } else { 0 }
    };
    (columns > 0).then(|| usize::from(columns).clamp(40, 160))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_printed_without_number() {
        let cleaned = |text: &str| without_error_numbers(text).into_owned();
        assert_eq!(cleaned("a: No such file or directory (os error 2)"), "a: No such file or directory");
        assert_eq!(cleaned("a (os error 2), b (os error 13). c"), "a, b. c");
        for other in ["", "plain", "(os error )", " (os error x)", " (os error 2", " (os error 2é)"] {
            assert_eq!(cleaned(other), other);
        }
    }
}
