//! Writing to standard output: a closed pipe (`| head`) is no error, and colour is for terminals.

use std::io::{IsTerminal as _, Write as _};

/// Prints text and ends it with a line break if it has none.
pub fn print(text: &str) {
    let text = crate::harmless::harmless(text);
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    if !text.ends_with('\n') {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}

pub fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns of the terminal, 100 where there is none.
pub fn width() -> usize {
    // SAFETY: winsize is plain old data, and the call only writes into it.
    let columns = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        if libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) == 0 { size.ws_col } else { 0 }
    };
    if columns == 0 { 100 } else { usize::from(columns).clamp(60, 160) }
}
