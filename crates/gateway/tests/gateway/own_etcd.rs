//! An etcd of a test's own, which loses what the test wants it to lose.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::free;

const TIMEOUT: Duration = Duration::from_secs(150);

/// An etcd of the test's own.
pub(crate) struct Etcd {
    child: Option<Child>,
    directory: PathBuf,
    pub(crate) client: SocketAddr,
    peer: SocketAddr,
}

impl Etcd {
    pub(crate) fn start(directory: &Path) -> Etcd {
        let mut etcd = Etcd { child: None, directory: directory.to_owned(), client: free(), peer: free() };
        etcd.go_on();
        etcd
    }

    pub(crate) fn go_on(&mut self) {
        let (client, peer) = (format!("http://{}", self.client), format!("http://{}", self.peer));
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("etcd.log"))
            .unwrap();
        let child = Command::new("etcd")
            .args(["--name", "test", "--data-dir"])
            .arg(self.directory.join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd (scripts/install-packages test)");
        self.child = Some(child);
        let begun = Instant::now();
        while TcpStream::connect(self.client).is_err() {
            assert!(begun.elapsed() < TIMEOUT, "etcd does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn data(&self) -> PathBuf {
        self.directory.join("etcd")
    }

    fn older(&self) -> PathBuf {
        self.directory.join("etcd.older")
    }

    /// Remembers what it has, while it is killed.
    pub(crate) fn keep(&self) {
        copy(&self.data(), &self.older());
    }

    /// It has that again, and nothing newer.
    pub(crate) fn bring_back(&self) {
        self.lose();
        std::fs::rename(self.older(), self.data()).unwrap();
    }

    /// It has nothing any more.
    pub(crate) fn lose(&self) {
        std::fs::remove_dir_all(self.data()).unwrap();
    }

    /// Others write something of theirs so many times.
    pub(crate) fn advance(&self, times: u64) {
        // The key is "other".
        let body = "{\"key\":\"b3RoZXI=\",\"value\":\"eA==\"}";
        let request = format!(
            "POST /v3/kv/put HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let (mut done, begun) = (0, Instant::now());
        while done < times {
            let mut answer = String::new();
            let asked = TcpStream::connect(self.client).and_then(|mut stream| {
                stream.write_all(request.as_bytes())?;
                stream.read_to_string(&mut answer)
            });
            // It has no leader at first.
            done += u64::from(asked.is_ok() && answer.starts_with("HTTP/1.1 200"));
            assert!(begun.elapsed() < TIMEOUT, "{answer}");
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}
