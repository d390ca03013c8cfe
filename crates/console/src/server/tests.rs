//! Requests as a browser, a monitor, a program of the user, and somebody who should not come in would make them.

mod answers;
mod commands;
mod entering;
mod pages;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use underlay_record::live::FEED_FILE;
use underlay_record::{
    CellEnd, CellState, FeedEntry, FeedLine, LiveLoad, LiveSample, NodeState, RunExplanation,
};

use super::*;
use crate::host::{
    FaultAction, LiveServiceInfo, NodeAction, RunAction, RunningRun, ServedStorageInfo, StorageDevice,
    StudyCheck, StudyMistake,
};

const MARKUP: &str = "<script>alert(1)</script>";

/// The storage whose process takes a command and does not answer until the test says so.
const HUNG: &str = "hung";

/// A host on which one run goes on.
#[derive(Default)]
struct Fake {
    running: Vec<RunningRun>,
    commands: Mutex<Vec<String>>,
    /// What a command for [`HUNG`] waits for.
    hung: Mutex<()>,
}

impl ConsoleHost for Fake {
    fn running(&self) -> Vec<RunningRun> {
        self.running.clone()
    }
    fn command_run(&self, _: &Path, command: RunAction) -> Result<(), String> {
        self.commands.lock().unwrap().push(format!("{command:?}"));
        Ok(())
    }
    fn nodes(&self, _: u32) -> Vec<NodeState> {
        Vec::new()
    }
    fn command_node(&self, _: u32, node: &str, _: NodeAction) -> Result<String, String> {
        Err(format!("there is no {node}"))
    }
    fn storages(&self) -> Vec<ServedStorageInfo> {
        let device = |name: &str, powered| StorageDevice {
            name: name.to_owned(),
            powered,
            ..StorageDevice::default()
        };
        vec![
            ServedStorageInfo {
                id: "x".to_owned(),
                command: MARKUP.to_owned(),
                ..ServedStorageInfo::default()
            },
            ServedStorageInfo {
                id: "dark".to_owned(),
                devices: vec![device("sda", false), device("sdb", false), device("sdc", true)],
                ..ServedStorageInfo::default()
            },
        ]
    }
    fn fault(&self, storage: &str, _: Option<&str>, action: &FaultAction) -> Result<String, String> {
        match storage {
            HUNG => {
                self.commands.lock().unwrap().push("it hangs".to_owned());
                drop(self.hung.lock());
                Ok("after all".to_owned())
            }
            "good" => {
                self.commands.lock().unwrap().push(format!("{action:?}"));
                Ok("done".to_owned())
            }
            _ => Err("no".to_owned()),
        }
    }
    fn services(&self) -> Vec<LiveServiceInfo> {
        Vec::new()
    }
    fn stop_service(&self, process: u32) -> Result<String, String> {
        Err(format!("there is no {process}"))
    }
    fn explain(&self, _: &underlay_report::LoadedRun) -> RunExplanation {
        RunExplanation::default()
    }
    fn check(&self, file: &Path, text: &str) -> StudyCheck {
        if text.starts_with("sound") {
            return StudyCheck { has_short: !text.contains("without"), ..StudyCheck::default() };
        }
        let message = format!("unknown word {text}");
        let file = Some(file.display().to_string());
        StudyCheck {
            mistakes: vec![StudyMistake {
                file,
                line: Some(3),
                column: Some(1),
                message,
                ..StudyMistake::default()
            }],
            ..StudyCheck::default()
        }
    }
    fn study_title(&self, _: &str) -> Option<String> {
        Some(MARKUP.to_owned())
    }
    fn start(&self, study: &Path, below: &Path, short: bool) -> Result<PathBuf, String> {
        if std::fs::read_to_string(study).unwrap() == "sound but not here" {
            return Err("not here".to_owned());
        }
        self.commands.lock().unwrap().push(format!("start, short: {short}"));
        Ok(below.join("begun"))
    }
}

/// A console over a directory of one run, which ends with this.
struct Served {
    address: SocketAddr,
    /// Where browsers are served.
    name: String,
    /// As a terminal shows it.
    url: String,
    /// It reads.
    token: String,
    socket: PathBuf,
    host: Arc<Fake>,
    folder: tempfile::TempDir,
    own_folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The head of a run of two cells, with markup wherever somebody else's words may be.
fn head() -> String {
    let cell = |storage: &str| {
        serde_json::json!({
            "cell": {
                "id": format!("null/{storage}/w-c"), "system": "null", "storage": storage, "workload": "w", "servers": 1,
                "data_bytes": 1,
                "work": { "kind": "requests", "mix": "c", "distribution": "uniform", "threads": 1, "records": 1, "rate": { "kind": "unthrottled" } }
            },
            "repetition": 1, "file": format!("{}.json", storage.len())
        })
    };
    serde_json::json!({
        "schema": underlay_record::SCHEMA_VERSION, "name": "study", "title": MARKUP, "started_at": "2026-11-25T02:00:00Z",
        "study_toml": "", "systems": ["null"], "storages": [MARKUP, "b"], "baseline": "b", "scale": { "time": 1.0, "data": 1.0 },
        "seed": 1, "short": false, "repetitions": 1, "warmup_wall_s": 0.0, "duration_wall_s": 1.0,
        "machine": { "hostname": "x", "cpu": "x", "cores": 1, "memory_bytes": 1, "kernel": "x", "distribution": "x", "virtualisation": null },
        "versions": {}, "plan": [cell(MARKUP), cell("b")], "reference": null
    })
    .to_string()
}

fn feed() -> String {
    let load = LiveLoad { throughput_per_s: 1234.0, mean_us: 10.0, p50_us: 9.0, p99_us: 99.0, errors: 0 };
    let sample = LiveSample {
        position: Some(1),
        phase: "measuring".to_owned(),
        progress: Some(0.5),
        load: Some(load),
        ..LiveSample::default()
    };
    let entries = [
        FeedEntry::Begun { version: 1, process: 1, process_start_ticks: 1 },
        FeedEntry::Planned { total: 2, finished: 0, remaining_s: 60.0 },
        FeedEntry::Notice { what: MARKUP.to_owned() },
        FeedEntry::CellStarted { position: 0 },
        FeedEntry::CellEnded(CellEnd {
            position: 0,
            state: CellState::Failed,
            reason: Some(MARKUP.to_owned()),
            wall_s: 1.0,
            remaining_s: 30.0,
        }),
        FeedEntry::CellStarted { position: 1 },
        FeedEntry::Sample(Box::new(sample)),
    ];
    let line = |(at_ms, entry)| serde_json::to_string(&FeedLine { at_ms, entry }).unwrap() + "\n";
    // It goes on now.
    ((crate::page::now_s() * 1e3) as u64..).zip(entries).map(line).collect()
}

impl Served {
    fn start() -> Served {
        Served::start_for(None)
    }

    /// With an address that opens on a run.
    fn start_for(opens_on: Option<&str>) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("one");
        std::fs::create_dir_all(run.join("cells")).unwrap();
        std::fs::write(run.join("run.json"), head()).unwrap();
        std::fs::write(run.join(FEED_FILE), feed()).unwrap();
        let running = vec![RunningRun { directory: run.canonicalize().unwrap(), process: 1 }];
        let host = Arc::new(Fake { running, ..Fake::default() });
        let token = AccessSecret::generate().unwrap();
        let own_folder = tempfile::tempdir().unwrap();
        let options = ConsoleOptions {
            listen: ListenAddress::At((Ipv4Addr::LOCALHOST, 0).into()),
            runs: folder.path().to_owned(),
            opens_on: opens_on.map(str::to_owned),
            studies: folder.path().to_owned(),
            names: HostNames::new(["lab.example".to_owned()]),
            token: Some(token.clone()),
            own_folder: own_folder.path().to_owned(),
            tls: None,
        };
        let console = ConsoleServer::listen(options, Arc::clone(&host) as Arc<dyn ConsoleHost>).unwrap();
        let (address, socket) = (console.address(), console.socket().to_owned());
        let url = console.new_address().unwrap();
        let name = url.trim_start_matches("http://").split('/').next().unwrap().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || console.run(&flag, &|| ()).unwrap());
        let token = token.reveal().to_owned();
        Served { address, name, url, token, socket, host, folder, own_folder, stop, thread: Some(thread) }
    }

    fn host_name(&self) -> String {
        self.name.clone()
    }

    /// Sends these lines and a body, and reads the answer to its end.
    fn raw(&self, lines: &[String], body: &str) -> String {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self::exchange(stream, lines, body)
    }

    /// The same by the Unix socket.
    fn own_raw(&self, lines: &[String], body: &str) -> String {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self::exchange(stream, lines, body)
    }

    fn exchange(mut stream: impl std::io::Read + std::io::Write, lines: &[String], body: &str) -> String {
        let head = lines.join("\r\n");
        write!(stream, "{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str, more: &[&str]) -> String {
        let mut lines = vec![format!("GET {path} HTTP/1.1"), format!("Host: {}", self.host_name())];
        lines.extend(more.iter().map(|line| (*line).to_owned()));
        self.raw(&lines, "")
    }

    /// As a program of this user does: what it reads, and what it commands.
    fn own_get(&self, path: &str) -> String {
        self.own_raw(&[format!("GET {path} HTTP/1.1"), "Host: localhost".to_owned()], "")
    }

    fn own_post(&self, path: &str, body: &str) -> String {
        let form = "Content-Type: application/x-www-form-urlencoded".to_owned();
        self.own_raw(&[format!("POST {path} HTTP/1.1"), "Host: localhost".to_owned(), form], body)
    }

    /// What opens a session, once.
    fn new_secret(&self) -> String {
        let answer = json(&self.own_post("/addresses", ""));
        answer["address"].as_str().unwrap().split_once("?token=").unwrap().1.to_owned()
    }

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    /// What a browser has once it has opened the address that was printed.
    fn cookie(&self) -> String {
        let secret = self.new_secret();
        let answer = self.get(&format!("/?token={secret}"), &[]);
        let line = answer.lines().find(|line| line.to_lowercase().starts_with("set-cookie:")).unwrap();
        let value = line.split_once(':').unwrap().1.trim();
        assert!(value.contains("HttpOnly") && value.contains("SameSite=Strict"), "{value}");
        assert!(!value.contains(&secret), "{value}");
        format!("Cookie: {}", value.split(';').next().unwrap())
    }

    fn post(&self, path: &str, more: &[&str], body: &str) -> String {
        let mut lines = vec![
            format!("POST {path} HTTP/1.1"),
            format!("Host: {}", self.host_name()),
            "Content-Type: application/x-www-form-urlencoded".to_owned(),
        ];
        lines.extend(more.iter().map(|line| (*line).to_owned()));
        self.raw(&lines, body)
    }

    /// The word that forms of the run's page have.
    fn form_word(&self) -> String {
        let page = self.get("/runs/one", &[&self.cookie()]);
        let start = page.find("name=\"form\" value=\"").unwrap() + 19;
        page[start..].split('"').next().unwrap().to_owned()
    }

    fn commands(&self) -> Vec<String> {
        self.host.commands.lock().unwrap().clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let outcome = self.thread.take().unwrap().join();
        assert!(outcome.is_ok() || std::thread::panicking());
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The body of an answer, which has to be JSON.
fn json(answer: &str) -> serde_json::Value {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_lowercase().contains("content-type: application/json"), "{answer}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}
