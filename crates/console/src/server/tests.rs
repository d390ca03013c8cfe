//! Requests as a browser, a script, and somebody who should not come in would make them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;

use underlay_record::live::FEED_FILE;
use underlay_record::{CellEnd, CellState, Explained, FeedEntry, FeedLine, LiveLoad, LiveSample, NodeState};

use super::*;
use crate::host::{Checked, FaultAction, Mistake, NodeAction, RunAction, Running, Service, Storage};

const MARKUP: &str = "<script>alert(1)</script>";

/// A host on which one run goes on.
#[derive(Default)]
struct Fake {
    running: Vec<Running>,
    commands: Mutex<Vec<String>>,
}

impl Host for Fake {
    fn running(&self) -> Vec<Running> {
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
    fn storages(&self) -> Vec<Storage> {
        vec![Storage { id: "x".to_owned(), command: MARKUP.to_owned(), ..Storage::default() }]
    }
    fn fault(&self, _: &str, _: Option<&str>, _: &FaultAction) -> Result<String, String> {
        Err("no".to_owned())
    }
    fn services(&self) -> Vec<Service> {
        Vec::new()
    }
    fn stop_service(&self, process: u32) -> Result<String, String> {
        Err(format!("there is no {process}"))
    }
    fn explain(&self, _: &underlay_report::LoadedRun) -> Explained {
        Explained::default()
    }
    fn check(&self, _: &Path, text: &str) -> Checked {
        let message = format!("unknown word {text}");
        Checked {
            mistakes: vec![Mistake { line: Some(3), column: Some(1), message, ..Mistake::default() }],
            ..Checked::default()
        }
    }
    fn study_title(&self, _: &str) -> Option<String> {
        Some(MARKUP.to_owned())
    }
    fn start(&self, _: &Path, _: &Path, _: bool) -> Result<PathBuf, String> {
        Err("not here".to_owned())
    }
}

/// A console over a directory of one run, which ends with this.
struct Served {
    address: SocketAddr,
    /// Where browsers are served.
    name: String,
    /// As it is printed.
    url: String,
    token: String,
    host: Arc<Fake>,
    folder: tempfile::TempDir,
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
        let running = vec![Running { directory: run.canonicalize().unwrap(), process: 1 }];
        let host = Arc::new(Fake { running, ..Fake::default() });
        let token = Secret::generate().unwrap();
        let options = Options {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            runs: folder.path().to_owned(),
            opens_on: opens_on.map(str::to_owned),
            studies: folder.path().to_owned(),
            names: Names::new(["lab.example".to_owned()]),
            token: Some(token.clone()),
            on_used: Box::new(|_| {}),
            tls: None,
        };
        let console = Console::listen(options, Arc::clone(&host) as Arc<dyn Host>).unwrap();
        let address = console.address();
        let url = console.url();
        let name = url.trim_start_matches("http://").split('/').next().unwrap().to_owned();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || console.run(&flag).unwrap());
        let token = token.reveal().to_owned();
        Served { address, name, url, token, host, folder, stop, thread: Some(thread) }
    }

    fn host_name(&self) -> String {
        self.name.clone()
    }

    /// Sends these lines and a body, and reads the answer to its end.
    fn raw(&self, lines: &[String], body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
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

    fn bearer(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    /// What a browser has once it has opened the address that was printed.
    fn cookie(&self) -> String {
        let answer = self.get(&format!("/?token={}", self.token), &[]);
        let line = answer.lines().find(|line| line.to_lowercase().starts_with("set-cookie:")).unwrap();
        let value = line.split_once(':').unwrap().1.trim();
        assert!(value.contains("HttpOnly") && value.contains("SameSite=Strict"), "{value}");
        assert!(!value.contains(&self.token), "{value}");
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
        let at = page.find("name=\"form\" value=\"").unwrap() + 19;
        page[at..].split('"').next().unwrap().to_owned()
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

#[test]
fn the_token_is_exchanged_for_a_cookie_and_a_wrong_one_for_nothing() {
    let served = Served::start();
    let first = served.get(&format!("/runs/one?span=30m&token={}", served.token), &[]);
    assert_eq!(status(&first), 303);
    assert!(first.to_lowercase().contains("location: /runs/one?span=30m\r\n"), "{first}");
    assert_eq!(status(&served.get("/", &[&served.cookie()])), 200);
    assert_eq!(status(&served.get("/api/runs", &[&served.bearer()])), 200);
    let forged = format!("Cookie: underlay-console={}", served.token);
    for (path, header) in [
        ("/", "X: y"),
        ("/", forged.as_str()),
        ("/", "Authorization: Bearer wrong"),
        ("/", "Authorization: Basic wrong"),
        ("/?token=wrong", "X: y"),
        ("/?token=", "X: y"),
        ("/assets/console.js", "X: y"),
        ("/metrics", "X: y"),
        ("/stream?topic=runs", "X: y"),
    ] {
        let answer = served.get(path, &[header]);
        assert!(matches!(status(&answer), 401 | 403), "{path}: {answer}");
        assert!(!answer.to_lowercase().contains("set-cookie"), "{answer}");
    }
    // The redirect stays here.
    let elsewhere = served.get(&format!("//evil.example/?token={}", served.token), &[]);
    assert!(!elsewhere.to_lowercase().contains("location: //"), "{elsewhere}");
}

#[test]
fn a_name_that_was_made_to_lead_here_is_not_answered() {
    let served = Served::start();
    let cookie = served.cookie();
    // Every port of an address gets its cookies: they count at the name of this start alone.
    for (name, by_cookie, by_token) in [
        ("rebound.example", 421, 421),
        ("127.0.0.1.rebound.example:80", 421, 421),
        ("u-0123.localhost:7100", 421, 421),
        ("lab.example:9", 401, 200),
        ("localhost", 401, 200),
        ("127.0.0.1:7100", 401, 200),
        ("[::1]:7", 401, 200),
        (served.name.as_str(), 200, 200),
    ] {
        let with = |header: String| {
            status(&served.raw(&["GET / HTTP/1.1".to_owned(), format!("Host: {name}"), header], ""))
        };
        assert_eq!((with(cookie.clone()), with(served.bearer())), (by_cookie, by_token), "{name}");
    }
    let exchanged = [format!("GET /?token={} HTTP/1.1", served.token), format!("Host: {}", served.address)];
    assert!(!served.raw(&exchanged, "").to_lowercase().contains("set-cookie"));
    // The rebound page sends the token that it may have been given, and its own name as the origin.
    let lines = [
        "GET /api/runs HTTP/1.1".to_owned(),
        "Host: rebound.example".to_owned(),
        "Origin: http://rebound.example".to_owned(),
        served.bearer(),
    ];
    assert_eq!(status(&served.raw(&lines, "")), 421);
    let without = ["GET / HTTP/1.1".to_owned(), cookie];
    assert!(status(&served.raw(&without, "")) >= 400);
}

#[test]
fn a_page_of_somebody_elses_commands_nothing() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    let body = format!("form={word}&confirmed=yes&position=1");
    for headers in [
        vec![cookie.as_str(), "Origin: http://evil.example"],
        vec![cookie.as_str(), "Origin: null"],
        vec![cookie.as_str()],
        vec![cookie.as_str(), own.as_str(), "Sec-Fetch-Site: cross-site"],
        vec![own.as_str()],
    ] {
        for action in ["skip", "stop", "nodes", "faults"] {
            let answer = served.post(&format!("/runs/one/{action}"), &headers, &body);
            assert!(matches!(status(&answer), 401 | 403), "{headers:?}: {answer}");
        }
    }
    // Not even where it comes from here, without the word of a form of ours.
    for wrong in ["confirmed=yes&position=1", "form=guessed&confirmed=yes&position=1"] {
        assert_eq!(status(&served.post("/runs/one/skip", &[&cookie, &own], wrong)), 403);
    }
    // Nor is anything read by one.
    assert_eq!(status(&served.get("/api/runs", &[&cookie, "Origin: http://evil.example"])), 403);
    assert_eq!(status(&served.get("/api/runs", &[&cookie, "Sec-Fetch-Site: cross-site"])), 403);
    assert!(served.commands().is_empty());
}

#[test]
fn no_address_does_anything_by_get() {
    let served = Served::start();
    for action in [
        "/runs/one/skip?position=1&confirmed=yes",
        "/runs/one/stop",
        "/runs/one/nodes",
        "/runs/one/faults",
        "/host/faults",
        "/studies/save",
        "/studies/check",
    ] {
        assert_eq!(status(&served.get(action, &[&served.bearer()])), 405, "{action}");
    }
    assert!(served.commands().is_empty());
}

#[test]
fn what_is_done_is_asked_before_and_a_script_means_what_it_says() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    let question = served.post("/runs/one/skip", &[&cookie, &own], &format!("form={word}&position=1"));
    assert!(status(&question) == 200 && question.contains("name=\"confirmed\""), "{question}");
    assert!(served.commands().is_empty());
    let done =
        served.post("/runs/one/skip", &[&cookie, &own], &format!("form={word}&position=1&confirmed=yes"));
    assert_eq!(status(&done), 303, "{done}");
    assert_eq!(status(&served.post("/runs/one/stop", &[&served.bearer()], "")), 200);
    assert_eq!(served.commands(), ["Skip(1)", "Stop"]);
    assert_eq!(status(&served.post("/runs/one/skip", &[&served.bearer()], "position=9")), 404);
    assert_eq!(status(&served.post("/runs/one/nodes", &[&served.bearer()], "node=n&action=stop")), 409);
}

#[test]
fn markup_in_names_reasons_and_events_is_text() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(study, MARKUP).unwrap();
    std::fs::write(served.folder.path().join("one/cells/x.log"), format!("first\n{MARKUP}\n")).unwrap();
    for path in [
        "/",
        "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/runs/one",
        "/runs/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/host",
        "/studies",
        "/studies/edit?file=s.toml",
        "/runs/one/logs?file=%3Cscript%3Ealert(1)%3C/script%3E",
        "/runs/one/logs?file=cells/x.log",
        "/pieces?topic=log/one/cells/x.log",
        "/compare?run=%3Cscript%3Ealert(1)%3C/script%3E&run=one",
    ] {
        let answer = served.get(path, &[&served.cookie()]);
        assert!(!answer.contains("<script>"), "{path}: {answer}");
    }
    assert!(served.get("/runs/one", &[&served.cookie()]).contains("&lt;script&gt;alert(1)"));
    for log in ["/runs/one/logs?file=cells/x.log", "/pieces?topic=log/one/cells/x.log"] {
        assert!(served.get(log, &[&served.cookie()]).contains("&lt;script&gt;alert(1)"), "{log}");
    }
    // Pieces come as HTML too.
    let pieces = served.get("/pieces?topic=run/5m/one", &[&served.bearer()]);
    assert!(pieces.contains("&lt;script&gt;") && !pieces.contains("<script>"), "{pieces}");
    // What a form sends back is no HTML either.
    let own = format!("Origin: http://{}", served.host_name());
    let word = served.form_word();
    let checked =
        served.post("/studies/check", &[&served.cookie(), &own], &format!("form={word}&text=%3Cscript%3E"));
    assert!(checked.contains("line 3") && !checked.contains("<script>"), "{checked}");
}

#[test]
fn what_somebody_else_wrote_into_a_study_is_not_lost_without_a_word() {
    let served = Served::start();
    let study = served.folder.path().join("s.toml");
    std::fs::write(&study, "theirs").unwrap();
    let (own, word) = (format!("Origin: http://{}", served.host_name()), served.form_word());
    let save = |read: &str| {
        let body = format!("form={word}&file=s.toml&text=mine&then=save&read={read}");
        served.post("/studies/save", &[&served.cookie(), &own], &body)
    };
    let refused = save(&actions::mark_of("what it was when I began"));
    assert!(refused.contains("It was not saved") && refused.contains("mine"), "{refused}");
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "theirs");
    // Whoever knows what is there may replace it.
    assert_eq!(status(&save(&actions::mark_of("theirs"))), 303);
    assert_eq!(std::fs::read_to_string(&study).unwrap(), "mine");
    // And nothing is written elsewhere.
    let body = format!("form={word}&file=../s.toml&text=mine&then=save");
    assert!(served.post("/studies/save", &[&served.cookie(), &own], &body).contains("can't be a study"));
}

#[test]
fn every_answer_has_a_strict_policy_and_no_page_needs_more() {
    let served = Served::start();
    for path in [
        "/",
        "/runs/one",
        "/host",
        "/studies",
        "/studies/edit",
        "/nothing",
        "/api/runs",
        "/assets/console.js",
    ] {
        let answer = served.get(path, &[&served.cookie()]).replace("\r\n", "\n");
        let (head, body) = answer.split_once("\n\n").unwrap();
        let policy =
            head.lines().find(|line| line.to_lowercase().starts_with("content-security-policy:")).unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        for header in
            ["x-content-type-options: nosniff", "referrer-policy: same-origin", "x-frame-options: deny"]
        {
            assert!(head.to_lowercase().contains(header), "{path}: {head}");
        }
        if head.contains("text/html") {
            assert!(
                !body.contains(" style=\"") && !body.contains(" onclick") && !body.contains("<style"),
                "{path}"
            );
        }
    }
    let export = served.get("/runs/one/export", &[&served.cookie()]);
    assert!(
        export.contains("attachment; filename=\"one.html\"") && export.contains("While it ran"),
        "{export}"
    );
    assert!(!export.contains("<script>alert"), "{export}");
    // A report has styles in itself, and in exchange no origin and no scripts.
    let report = served.get("/runs/one/report", &[&served.cookie()]);
    assert!(report.contains("sandbox; default-src 'none'") && !report.contains("script-src"), "{report}");
    // One that may not run is an error in the browser's console. A page that was saved has it.
    assert!(!report.contains("<script") && export.contains("<script>addEventListener"), "{report}");
}

#[test]
fn a_run_is_watched_by_people_scripts_and_monitors_alike() {
    let served = Served::start();
    let page = served.get("/runs/one", &[&served.cookie()]);
    for shown in ["1,234", "measuring", "failed", "running", "svg class=\"chart\"", "Stop the run"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    let json = served.get("/api/runs/one", &[&served.bearer()]);
    let body: serde_json::Value = serde_json::from_str(json.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["cells"][0]["state"], "failed");
    assert_eq!(body["cells"][1]["state"], "running");
    assert_eq!(body["latest"]["sample"]["load"]["throughput_per_s"], 1234.0);
    assert!(served.get("/api/runs/one/samples", &[&served.bearer()]).contains("\"p99_us\":99.0"));
    assert!(served.get("/api/runs/one/events", &[&served.bearer()]).contains("\"kind\":\"notice\""));
    let metrics = served.get("/metrics", &[&served.bearer()]);
    for line in [
        "underlay_run_cells{run=\"one\",state=\"failed\"} 1",
        "underlay_run_cells{run=\"one\",state=\"cannot_run\"} 0",
        "underlay_cell_throughput_per_second{run=\"one\",cell=\"null/b/w-c\"} 1234",
        "underlay_cell_latency_seconds{run=\"one\",cell=\"null/b/w-c\",quantile=\"0.99\"} 0.000099",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let text = metrics.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(crate::metrics::rules::broken(text), Vec::<String>::new(), "{text}");
}

#[test]
fn a_run_that_was_written_anew_under_its_name_has_nothing_of_the_one_before() {
    let served = Served::start();
    let events = || served.get("/api/runs/one/events", &[&served.bearer()]);
    assert!(events().contains("alert(1)"));
    let run = served.folder.path().join("one");
    let started = "2026-11-25T02:00:00Z";
    for (started_at, notice) in [(started, "of the second"), ("2026-11-25T03:00:00Z", "of the third")] {
        std::fs::remove_dir_all(&run).unwrap();
        std::fs::create_dir_all(run.join("cells")).unwrap();
        std::fs::write(run.join("run.json"), head().replace(started, started_at)).unwrap();
        let entry = FeedEntry::Notice { what: notice.to_owned() };
        let line = serde_json::to_string(&FeedLine { at_ms: 1_764_000_100_000, entry }).unwrap();
        std::fs::write(run.join(FEED_FILE), line + "\n").unwrap();
        let told = events();
        assert!(told.contains(notice) && !told.contains("alert(1)"), "{told}");
        let samples = served.get("/api/runs/one/samples", &[&served.bearer()]);
        assert!(samples.ends_with("[]"), "{samples}");
    }
}

#[test]
fn what_is_no_sound_run_is_listed_with_what_is_wrong_and_its_own_page_says_the_same() {
    let served = Served::start();
    let add = |name: &str, head: &str| {
        let run = served.folder.path().join(name);
        std::fs::create_dir_all(run.join("cells")).unwrap();
        std::fs::write(run.join("run.json"), head).unwrap();
        run
    };
    let damaged = add("damaged", &head());
    std::fs::write(damaged.join("cells/1.json"), "{").unwrap();
    add("headless", "{\"schema\":");
    let json = |path: &str| -> serde_json::Value {
        let answer = served.get(path, &[&served.bearer()]);
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let listed = json("/api/runs");
    let of = |name: &str| listed.as_array().unwrap().iter().find(|run| run["name"] == name).unwrap().clone();
    assert_eq!(of("damaged")["cells"]["unreadable"], 1, "{listed}");
    assert!(of("headless")["problem"].as_str().unwrap().contains("run.json"), "{listed}");
    let list = served.get("/", &[&served.cookie()]);
    assert!(list.contains("1 unreadable") && list.contains("it is not a record"), "{list}");
    let own = json("/api/runs/damaged");
    assert_eq!(own["cells"][1]["state"], "unreadable", "{own}");
    let page = served.get("/runs/damaged", &[&served.cookie()]);
    assert!(page.contains("1 unreadable") && page.contains("0 of 2 cells ended"), "{page}");
    assert!(served.get("/?q=unreadable", &[&served.cookie()]).contains("/runs/damaged"));
}

#[test]
fn a_run_that_the_console_was_started_for_is_waited_for() {
    let served = Served::start_for(Some("two"));
    assert!(served.url.contains("/runs/two?token="), "{}", served.url);
    let waiting = served.get("/runs/two", &[&served.cookie()]);
    assert!(status(&waiting) == 200 && waiting.contains("http-equiv=\"refresh\""), "{waiting}");
    assert_eq!(status(&served.get("/runs/three", &[&served.cookie()])), 404);
    let run = served.folder.path().join("two");
    std::fs::create_dir_all(run.join("cells")).unwrap();
    std::fs::write(run.join("run.json"), head()).unwrap();
    let begun = served.get("/runs/two", &[&served.cookie()]);
    assert!(!begun.contains("http-equiv") && begun.contains("0 of 2 cells ended"), "{begun}");
}

#[test]
fn a_question_has_its_focus_on_what_does_nothing() {
    let served = Served::start();
    let (cookie, word) = (served.cookie(), served.form_word());
    let own = format!("Origin: http://{}", served.host_name());
    for (body, words) in [
        ("action=vanish&device=d", "XFS shuts down for good"),
        ("action=slow&device=d&factor=10&for_s=30", "take 10 times as long, for 30"),
        ("action=slow&device=d&factor=10&for_s=", "until its faults are cleared"),
    ] {
        let question = served.post("/host/faults", &[&cookie, &own], &format!("form={word}&{body}"));
        assert!(status(&question) == 200 && question.contains(words), "{question}");
        let focused = question.split('<').find(|tag| tag.contains("autofocus")).unwrap();
        assert!(focused.starts_with("a ") && focused.ends_with("No, go back"), "{focused}");
    }
    let wrong = served.post("/host/faults", &[&served.bearer()], "action=slow&factor=2&for_s=soon");
    assert!(wrong.contains("for_s: expected a number"), "{wrong}");
}

#[test]
fn a_stream_tells_what_changes_and_one_too_many_is_refused() {
    let served = Served::start();
    let open = || {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(
            stream,
            "GET /stream?topic=run/5m/one&topic=nonsense HTTP/1.1\r\nHost: {}\r\n{}\r\n\r\n",
            served.host_name(),
            served.bearer()
        )
        .unwrap();
        stream
    };
    // Reads until a text comes.
    let until = |stream: &mut TcpStream, wanted: &str| {
        let (mut text, mut chunk) = (String::new(), [0; 4096]);
        while !text.contains(wanted) {
            let count = stream.read(&mut chunk).unwrap();
            assert!(count > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
        text
    };
    let mut first = open();
    // The name of its topic is its end.
    let begun = until(&mut first, "\"topic\":\"run/5m/one\"");
    assert!(begun.contains("text/event-stream") && begun.contains("event-list"), "{begun}");
    let entry = FeedEntry::Notice { what: "a later notice".to_owned() };
    let line = serde_json::to_string(&FeedLine { at_ms: 1_764_000_100_000, entry }).unwrap();
    let feed = served.folder.path().join("one").join(FEED_FILE);
    std::fs::OpenOptions::new()
        .append(true)
        .open(feed)
        .unwrap()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
    until(&mut first, "a later notice");
    let (mut more, mut refused) = (Vec::new(), 0);
    for _ in 0..stream::MAX_STREAMS {
        // One after the other: on a busy host too many that have shown nothing yet would be ended.
        let mut stream = open();
        refused += usize::from(status(&until(&mut stream, "\r\n\r\n")) == 503);
        more.push(stream);
    }
    assert_eq!(refused, 1);
    // Whoever goes leaves a place.
    for stream in more {
        let _ = stream.shutdown(Shutdown::Both);
    }
    let begun = std::time::Instant::now();
    while !until(&mut open(), "\r\n\r\n").contains("200 OK") {
        assert!(begun.elapsed() < Duration::from_secs(30), "no place became free");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn it_listens_for_this_host_alone() {
    let options = Options {
        listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
        runs: PathBuf::from("."),
        opens_on: None,
        studies: PathBuf::from("."),
        names: Names::default(),
        token: None,
        on_used: Box::new(|_| {}),
        tls: None,
    };
    let Err(ConsoleError::Mistake(refused)) = Console::listen(options, Arc::new(Fake::default())) else {
        panic!("it listens for everybody")
    };
    assert!(refused.contains("ssh -L"), "{refused}");
}
