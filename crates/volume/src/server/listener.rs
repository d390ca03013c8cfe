//! The answering side of the control socket.

use std::fs;
use std::io;
use std::path::Path;

use underlay_files::control_socket::{Answer, ControlSocket};

use super::protocol::{FailureKind, MAX_LINE_BYTES, PoolCommand, PoolReply, parse};

/// Makes the socket, for this user alone, and does what commands say by `obey`, which several threads call at once. A
/// socket that is there is taken for what a killed server left: the caller holds the pool's lock.
pub(super) fn listen(
    path: &Path,
    obey: impl Fn(PoolCommand) -> PoolReply + Send + Sync + 'static,
) -> io::Result<ControlSocket> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let answer = move |line: &[u8]| match parse(line) {
        Ok(command) => Answer::from(obey(command)),
        Err(problem) => Answer::from(PoolReply::Failed { kind: FailureKind::Mistake, problem }),
    };
    ControlSocket::listen(path, MAX_LINE_BYTES, answer)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::super::connection::PoolConnection;
    use super::*;

    #[test]
    fn listener_answers_every_line_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        // A killed server leaves its socket.
        drop(UnixListener::bind(&path).unwrap());
        let obey = |command: PoolCommand| match command {
            PoolCommand::Ping => PoolReply::Done,
            _ => PoolReply::Failed { kind: FailureKind::Failed, problem: "no".into() },
        };
        let listener = listen(&path, obey).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut connection = PoolConnection::open(&path).unwrap();
        assert_eq!(connection.ask(&PoolCommand::Ping).unwrap(), PoolReply::Done);
        assert!(matches!(connection.ask(&PoolCommand::List).unwrap(), PoolReply::Failed { .. }));
        assert_eq!(connection.ask(&PoolCommand::Ping).unwrap(), PoolReply::Done);
        let mut noise = UnixStream::connect(&path).unwrap();
        noise.write_all(b"what?\n").unwrap();
        let mut answer = String::new();
        BufReader::new(&noise).read_line(&mut answer).unwrap();
        assert!(answer.contains("not a command"), "{answer}");
        drop(listener);
        assert!(!path.exists());
        assert!(PoolConnection::is_nobody(&PoolConnection::open(&path).unwrap_err()));
    }
}
