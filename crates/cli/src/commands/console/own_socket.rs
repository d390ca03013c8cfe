//! A new address of a console that runs, asked for on its Unix socket.

use std::io::{IsTerminal as _, Read as _, Write as _, stdout};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;

use super::{address_in_words, valid_for};
use crate::exit_codes::ExitFailure;
use crate::output;

const LIMIT: Duration = Duration::from_secs(20);
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// The console's answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum ConsoleAnswer {
    Address { address: String },
    File { file: PathBuf },
    Refused { problem: String },
}

/// Prints it to a terminal; elsewhere it goes into a file for this user alone, whose path is printed.
pub(super) fn new_address(own_folder: &Path, port: Option<u16>) -> Result<ExitCode, ExitFailure> {
    let socket = choose_socket(underlay_console::sockets(own_folder), port)?;
    let body = if stdout().is_terminal() { "" } else { "into=file" };
    match ask(&socket, body)
        .map_err(|problem| ExitFailure::Failed(format!("{}: {problem}", socket.display())))?
    {
        ConsoleAnswer::Address { address } => output::print(&address_in_words(&address)),
        ConsoleAnswer::File { file } => {
            output::print(&format!("console  its address is in {} for {}", file.display(), valid_for()));
        }
        ConsoleAnswer::Refused { problem } => return Err(ExitFailure::Failed(problem)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The one that is meant: of several, that of the port.
fn choose_socket(sockets: Vec<PathBuf>, port: Option<u16>) -> Result<PathBuf, ExitFailure> {
    let is_of_port = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        port.is_none_or(|port| {
            let rest = name.strip_prefix(&format!("console-{port}"));
            rest.is_some_and(|rest| rest.starts_with(['.', '-']))
        })
    };
    let mut meant: Vec<PathBuf> = sockets.into_iter().filter(is_of_port).collect();
    match (meant.len(), port) {
        (1, _) => Ok(meant.remove(0)),
        (0, None) => Err(ExitFailure::Mistake(
            "no console of yours runs on this host: `underlay console` starts one. Where it was started with another \
             UNDERLAY_RUNTIME_DIR, set that here too"
                .to_owned(),
        )),
        (0, Some(port)) => Err(ExitFailure::Mistake(format!("no console of yours listens at port {port}"))),
        (count, _) => {
            let names: Vec<String> = meant.iter().map(|path| path.display().to_string()).collect();
            Err(ExitFailure::Mistake(format!(
                "{count} consoles of yours run: add --listen 127.0.0.1:PORT, by the ports in {}",
                names.join(", ")
            )))
        }
    }
}

fn ask(socket: &Path, body: &str) -> Result<ConsoleAnswer, String> {
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        write!(
            stream,
            "POST /addresses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error| error.to_string())?;
    parsed(&answer).ok_or_else(|| "it gave an unexpected answer: is it another version?".to_owned())
}

fn parsed(answer: &[u8]) -> Option<ConsoleAnswer> {
    let (_, body) = std::str::from_utf8(answer).ok()?.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_selects_among_several_consoles() {
        let all = ["console-7100.socket", "console-7100-9.socket", "console-71.socket"].map(PathBuf::from);
        let chosen = |sockets: &[PathBuf], port: Option<u16>| {
            choose_socket(sockets.to_vec(), port).map_err(|failure| failure.to_string())
        };
        assert_eq!(chosen(&all, Some(71)).unwrap(), all[2]);
        assert_eq!(chosen(&all[..1], None).unwrap(), all[0]);
        for (sockets, port, expected) in [
            (&all[..], None, "--listen"),
            (&all[..], Some(7100), "2 consoles"),
            (&all[..], Some(1), "port 1"),
            (&all[..0], None, "starts one"),
        ] {
            assert!(chosen(sockets, port).unwrap_err().contains(expected), "{port:?}");
        }
    }

    #[test]
    fn answer_of_other_program_is_ignored() {
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        for body in ["", "[]", "{}", "{\"valid_s\":1}", "nothing"] {
            assert!(parsed(format!("{head}{body}").as_bytes()).is_none(), "{body}");
        }
        assert!(parsed(b"\xff\r\n\r\n{}").is_none());
        let found = parsed(format!("{head}{{\"address\":\"http://x/\",\"valid_s\":300}}").as_bytes());
        assert!(matches!(found, Some(ConsoleAnswer::Address { address }) if address == "http://x/"));
    }
}
