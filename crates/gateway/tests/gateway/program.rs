//! The program itself, with a configuration of the test's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const KEY: &str = "TESTKEY";
pub(crate) const SECRET: &str = "a-secret-of-the-test-only";

/// A gateway that is running. It is killed with the test.
pub(crate) struct Program {
    child: Child,
    pub(crate) directory: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    config: PathBuf,
    /// Its limit of open files, if that is another one than that of the test.
    most_files: Option<u64>,
}

/// A port that nobody has at the moment.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_underlay-gateway"))
}

impl Program {
    /// Starts one with these sections behind the usual ones, and waits until it is ready.
    pub(crate) fn start(directory: &Path, sections: &str) -> Program {
        let mut program = Program::start_without_waiting(directory, "", sections);
        program.wait_ready();
        program
    }

    /// Starts one whose bucket `lake` is a directory, with these lines before the first section.
    pub(crate) fn start_over_directory(directory: &Path, lines: &str) -> Program {
        let objects = directory.join("objects");
        std::fs::create_dir_all(&objects).unwrap();
        let sections = format!("[bucket.lake]\nstore = \"{}\"\nwrite = \"back\"\n", objects.display());
        let mut program = Program::start_without_waiting(directory, lines, &sections);
        program.wait_ready();
        program
    }

    /// Starts one, with these lines before the first section as well.
    pub(crate) fn start_without_waiting(directory: &Path, lines: &str, sections: &str) -> Program {
        let local = "journal = \"1 GiB\"\nmemory = \"64 MiB\"\n";
        Program::start_with(directory, (lines, local), sections)
    }

    /// Starts one with these lines about its local directory, and waits until it is ready.
    pub(crate) fn start_with_local(directory: &Path, of_local: &str, sections: &str) -> Program {
        let mut program = Program::start_with(directory, ("", of_local), sections);
        program.wait_ready();
        program
    }

    /// Starts one that is to make do with little memory, and waits until it is ready.
    pub(crate) fn start_small(directory: &Path, sections: &str) -> Program {
        let local = "journal = \"1 GiB\"\nmemory = \"16 MiB\"\nmetadata_memory = \"16 MiB\"\n";
        let mut program = Program::start_with(directory, ("", local), sections);
        program.wait_ready();
        program
    }

    fn start_with(directory: &Path, of_config: (&str, &str), sections: &str) -> Program {
        let (config, addresses) = write_config(directory, of_config, sections);
        Program::spawned(directory, config, addresses, None)
    }

    /// Starts one by a configuration that something else has written.
    pub(crate) fn start_as_written(
        directory: &Path,
        config: &Path,
        address: SocketAddr,
        admin: SocketAddr,
    ) -> Program {
        let config = config.to_owned();
        Program::spawned(directory, config, (address, admin), None)
    }

    fn spawned(
        directory: &Path,
        config: PathBuf,
        (address, admin): (SocketAddr, SocketAddr),
        most_files: Option<u64>,
    ) -> Program {
        let child = spawn(&config, most_files);
        Program { child, directory: directory.to_owned(), address, admin, config, most_files }
    }

    /// Starts one that may have so many files open, and waits until it is ready.
    pub(crate) fn start_with_files(directory: &Path, most: u64, sections: &str) -> Program {
        let local = "journal = \"1 GiB\"\nmemory = \"64 MiB\"\n";
        let (config, addresses) = write_config(directory, ("", local), sections);
        let mut program = Program::spawned(directory, config, addresses, Some(most));
        program.wait_ready();
        program
    }

    pub(crate) fn wait_ready(&mut self) {
        let begun = Instant::now();
        while !self.ask("/health/ready", "").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            if let Some(status) = self.child.try_wait().unwrap() {
                let log =
                    std::fs::read_to_string(self.directory.join("gateway.toml.log")).unwrap_or_default();
                panic!("the gateway ended with {status}: {log}");
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the gateway is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An answer of the admin port, whole.
    pub(crate) fn ask(&self, path: &str, header: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.admin).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n{header}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.directory.join("local/admin-token")).unwrap().trim().to_owned()
    }

    /// SIGKILL, and started again over the same directory.
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn start_again(&mut self) {
        self.start_again_without_waiting();
        self.wait_ready();
    }

    pub(crate) fn start_again_without_waiting(&mut self) {
        self.child = spawn(&self.config, self.most_files);
    }

    /// Starts it again, which has to fail, and returns what it had to say.
    pub(crate) fn start_in_vain(&mut self) -> String {
        self.child = spawn(&self.config, self.most_files);
        let status = self.child.wait().unwrap();
        let log = std::fs::read_to_string(self.directory.join("gateway.toml.log")).unwrap();
        assert_eq!(status.code(), Some(4), "{log}");
        log
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGSTOP.
    pub(crate) fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// SIGHUP.
    pub(crate) fn reload(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// SIGTERM, and how it ended, with what it had to say.
    pub(crate) fn stop(mut self) -> (std::process::ExitStatus, String) {
        self.terminate();
        let status = self.child.wait().unwrap();
        (status, std::fs::read_to_string(self.directory.join("gateway.toml.log")).unwrap())
    }

    /// From now on no write to a file behind this many bytes succeeds.
    pub(crate) fn limit_files(&self, bytes: u64) {
        let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    }

    pub(crate) fn count_open_files(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap().count() as u64
    }

    /// The limit with which it can open so many files more. The kernel limits numbers, and closed files leave gaps.
    pub(crate) fn limit_with_free(&self, free: usize) -> u64 {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let used: std::collections::BTreeSet<u64> = names.map(|name| name.parse().unwrap()).collect();
        (0..).filter(|number| !used.contains(number)).nth(free).unwrap()
    }

    /// From now on it may have so many files open. More can be allowed later.
    pub(crate) fn limit_open_files(&self, most: u64) {
        use rustix::process::{Resource, Rlimit, prlimit};
        let pid = rustix::process::Pid::from_child(&self.child);
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: Some(most), maximum };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    }

    /// Waits for it to end by itself. Returns how it did, with what it had to say.
    pub(crate) fn wait_end(&mut self) -> (std::process::ExitStatus, String) {
        let begun = Instant::now();
        loop {
            let has_ended = self.child.try_wait().unwrap();
            let log = std::fs::read_to_string(self.directory.join("gateway.toml.log")).unwrap();
            if let Some(status) = has_ended {
                return (status, log);
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the gateway goes on: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn config(&self) -> &Path {
        &self.config
    }
}

/// With these lines before the first section, and about the local directory.
fn write_config(
    directory: &Path,
    (lines, of_local): (&str, &str),
    sections: &str,
) -> (PathBuf, (SocketAddr, SocketAddr)) {
    let (address, admin) = (free(), free());
    let local = directory.join("local");
    let text = format!(
        "listen = \"{address}\"\n{lines}[local]\ndirectory = \"{}\"\n{of_local}\
         [admin]\nlisten = \"{admin}\"\n\
         [key.test]\nid = \"{KEY}\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"*\", may = [\"read\", \"write\"] }}]\n\
         [key.reader]\nid = \"READER\"\nsecret_env = \"GATEWAY_SECRET\"\nallow = [{{ bucket = \"lake\", prefix = \"open/\", may = [\"read\"] }}]\n{sections}",
        local.display()
    );
    let config = directory.join("gateway.toml");
    std::fs::write(&config, text).unwrap();
    (config, (address, admin))
}

fn spawn(config: &Path, most_files: Option<u64>) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(config.with_extension("toml.log"))
        .unwrap();
    // What goes beyond a limit of files is an error then, and not the end. A control group counts what is taken from
    // the first byte on.
    let script = "trap '' XFSZ; [ -z \"$MAX_OPEN_FILES\" ] || ulimit -n \"$MAX_OPEN_FILES\"; [ -z \"$UNDERLAY_GATEWAY_CGROUP\" ] || echo $$ > \"$UNDERLAY_GATEWAY_CGROUP/cgroup.procs\"; exec \"$0\" \"$@\"";
    Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_underlay-gateway"), "serve"])
        .arg(config)
        .env("GATEWAY_SECRET", SECRET)
        .env("MAX_OPEN_FILES", most_files.map(|most| most.to_string()).unwrap_or_default())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
