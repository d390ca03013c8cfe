//! `underlay worker` and `underlay ycsb --workers` as a user types them: hosts are network namespaces with a cable to
//! the coordinator's.

mod support;

use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use support::{Playground, fake_ssh, secret, stderr, stdout, wait_for};
use underlay_systems::network_namespace::NetworkNamespace;

const PORT: u16 = 7400;

/// Namespaces with cables between need root and `ip`. In CI their lack is a failure, elsewhere it is said.
fn can_lay_cables() -> bool {
    let has_ip =
        Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    let able = NetworkNamespace::create("test").is_ok() && has_ip;
    assert!(able || std::env::var_os("CI").is_none(), "CI must run these tests as root with iproute2");
    if !able {
        eprintln!("NOT RUN: this test makes network namespaces, which needs root and `ip` (iproute2)");
    }
    able
}

/// Hosts, each in its own namespace, and the one that coordinates.
struct Hosts {
    playground: Playground,
    coordinator: Arc<NetworkNamespace>,
    /// As many as were ever started: addresses are not used again.
    count: u8,
}

/// A worker's process.
struct Worker {
    child: Child,
    address: String,
    log: PathBuf,
    _namespace: Arc<NetworkNamespace>,
}

impl Worker {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Hosts {
    fn new() -> Self {
        let playground = Playground::new();
        secret(&playground, "token", WORDS);
        std::fs::create_dir(playground.path("tmp")).unwrap();
        Hosts { playground, coordinator: NetworkNamespace::create("test").unwrap(), count: 0 }
    }

    /// Where workers keep what they need for a run.
    fn temporary(&self) -> PathBuf {
        self.playground.path("tmp")
    }

    /// How many folders workers have now for sockets and logs, wherever they may make one.
    fn scratch_folders(&self) -> usize {
        let runtime = std::fs::read_dir(self.playground.path("runtime")).unwrap().flatten();
        let scratch = runtime.filter(|entry| entry.file_name().to_string_lossy().starts_with("worker-"));
        scratch.count() + std::fs::read_dir(self.temporary()).unwrap().count()
    }

    /// A host whose worker has these `--trust` options, connected to the coordinator's host by a cable.
    fn worker(&mut self, trust: &[&str]) -> Worker {
        self.worker_by(&[], trust)
    }

    /// The same, started by another command.
    fn worker_by(&mut self, launcher: &[&str], trust: &[&str]) -> Worker {
        let number = self.count;
        self.count += 1;
        let namespace = NetworkNamespace::create("test").unwrap();
        let listen = format!("0.0.0.0:{PORT}");
        let mut arguments = vec!["worker", "--listen", &listen];
        arguments.extend(trust);
        let mut plain = self.playground.underlay(&arguments);
        plain.env("TMPDIR", self.temporary());
        let mut command = match launcher {
            [] => plain,
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(plain.get_program()).args(plain.get_args());
                command.current_dir(self.playground.folder.path());
                command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
                command
            }
        };
        let log = self.playground.path(&format!("worker-{number}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
        namespace.enter(&mut command);
        let mut child = command.spawn().unwrap();
        let (mut line, output) = (String::new(), child.stdout.take().unwrap());
        BufReader::new(output).read_line(&mut line).unwrap();
        let mut worker =
            Worker { child, address: format!("10.77.{number}.2:{PORT}"), log, _namespace: namespace };
        if !line.starts_with("listens on 0.0.0.0:7400") {
            worker.kill();
            panic!("{line:?}, {}", worker.said());
        }
        self.lay_cable(number, &worker);
        worker
    }

    /// Between the coordinator's `10.77.N.1` and the worker's `10.77.N.2`.
    fn lay_cable(&self, number: u8, worker: &Worker) {
        let ip = |namespace: &NetworkNamespace, words: String| {
            let mut command = Command::new("ip");
            namespace.enter(command.args(words.split(' ')));
            let output = command.output().unwrap();
            assert!(output.status.success(), "ip {words}: {}", stderr(&output));
        };
        let (here, remote) = (&self.coordinator, &worker._namespace);
        let pid = worker.child.id();
        ip(here, format!("link add v{number} type veth peer name cable netns {pid}"));
        ip(here, format!("addr add 10.77.{number}.1/24 dev v{number}"));
        ip(here, format!("link set v{number} up"));
        ip(remote, format!("addr add 10.77.{number}.2/24 dev cable"));
        ip(remote, "link set cable up".to_owned());
    }

    /// `underlay ycsb` on workers, with the rest of its arguments in a line.
    fn ycsb(&self, phase: &str, workers: &[&Worker], rest: &str) -> Command {
        let addresses: Vec<&str> = workers.iter().map(|worker| worker.address.as_str()).collect();
        let addresses = addresses.join(",");
        let mut arguments = vec!["ycsb", phase, "null", "--workers", &addresses];
        arguments.extend(rest.split_whitespace());
        let mut command = self.playground.underlay(&arguments);
        self.coordinator.enter(&mut command);
        command
    }

    fn output(&self, phase: &str, workers: &[&Worker], rest: &str) -> Output {
        self.ycsb(phase, workers, rest).output().unwrap()
    }
}

const WORDS: &str = "correct horse battery staple";
const TOKEN: [&str; 2] = ["--token-file", "token"];

/// Waits until the status lines of a run tell of operations, and gives what was said until then.
fn until_under_way(errors: &mut impl BufRead) -> String {
    let mut log = String::new();
    loop {
        let begin = log.len();
        assert!(errors.read_line(&mut log).unwrap() > 0, "{log}");
        let status = log[begin..].split_once(" sec: ").and_then(|(_, rest)| rest.split_once(" operations"));
        if status.is_some_and(|(count, _)| count.parse::<u64>().unwrap() > 0) {
            return log;
        }
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).unwrap()
}

#[test]
fn two_workers_do_exactly_what_was_asked_for() {
    if !can_lay_cables() {
        return;
    }
    let mut hosts = Hosts::new();
    let (one, other) = (hosts.worker(&TOKEN), hosts.worker(&TOKEN));
    let workers = [&one, &other];
    let loaded = hosts.output("load", &workers, "--token-file token --threads 2 -p recordcount=1001");
    assert_eq!(loaded.status.code(), Some(0), "{}", stderr(&loaded));
    let text = stdout(&loaded);
    for line in ["[INSERT], Operations, 1001", "[HOSTS], Workers, 2", "[HOSTS], Lost, 0"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains(&format!("[WORKER {}], Operations, 500", one.address)), "{text}");
    assert!(text.contains(&format!("[WORKER {}], Operations, 501", other.address)), "{text}");

    let rest = "--token-file token --threads 4 --mix a -p recordcount=1000 -p operationcount=20001 --json";
    let measured = json(&hosts.output("run", &workers, rest));
    assert_eq!(measured["operations"], 20_001);
    assert_eq!(measured["latency"]["us"]["count"], 20_001);
    let count = |value: &serde_json::Value, key: &str| value[key].as_u64().unwrap();
    let by_operation = measured["by_operation"].as_object().unwrap();
    assert_eq!(by_operation.values().map(|stats| count(stats, "count")).sum::<u64>(), 20_001);
    let parts = measured["hosts"]["workers"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| count(part, "operations")).collect::<Vec<_>>(), [10_000, 10_001]);
    assert_eq!(parts.iter().map(|part| count(part, "threads")).collect::<Vec<_>>(), [2, 2]);
    // With a file for YCSB's own lines, those of the hosts are on standard output.
    let rest =
        "--token-file token --threads 2 --mix c -p recordcount=10 -p operationcount=10 -p exportfile=lines";
    let output = hosts.output("run", &workers, rest);
    assert!(stdout(&output).starts_with("[HOSTS], Workers, 2\n"), "{}", stdout(&output));
    assert!(
        std::fs::read_to_string(hosts.playground.path("lines")).unwrap().contains("[READ], Operations, 10")
    );
    // Two round trips were at least some hundred nanoseconds long.
    assert!(measured["hosts"]["start_spread_us"].as_f64().unwrap() > 0.1);
    assert!(measured["hosts"]["lost"].as_array().unwrap().is_empty());
}

#[test]
fn killed_worker_is_named_and_other_results_are_kept() {
    if !can_lay_cables() {
        return;
    }
    let mut hosts = Hosts::new();
    let (one, mut other) = (hosts.worker(&TOKEN), hosts.worker(&TOKEN));
    let rest = "--token-file token --threads 4 --mix c --rate 500 --duration 3 -s -p status.interval=1 -p recordcount=1000";
    let mut command = hosts.ycsb("run", &[&one, &other], rest);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut log = until_under_way(&mut errors);
    other.kill();
    errors.read_to_string(&mut log).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{log}");
    let lost = format!("worker {} was lost: the connection ended", other.address);
    let last = log.trim_end().lines().last().unwrap();
    assert!(last.starts_with(&format!("underlay: {lost}")), "{log}");
    assert!(last.ends_with("the measurements of the other 1 of 2 workers were kept"), "{log}");
    let text = stdout(&output);
    let reads = text.lines().find_map(|line| line.strip_prefix("[READ], Operations, ")).unwrap();
    assert!((1..=750).contains(&reads.parse::<u64>().unwrap()), "{text}");
    assert!(text.contains("[HOSTS], Workers, 1") && text.contains("[HOSTS], Lost, 1"), "{text}");
    assert!(!text.contains(&other.address), "{text}");
    // What it left is known, and goes when it is asked to.
    assert_eq!(hosts.scratch_folders(), 1);
    assert_eq!(hosts.playground.output(&["clean"]).status.code(), Some(0));
    assert_eq!(hosts.scratch_folders(), 0);
}

#[test]
fn killed_coordinator_frees_its_workers() {
    if !can_lay_cables() {
        return;
    }
    let mut hosts = Hosts::new();
    let (one, other) = (hosts.worker(&TOKEN), hosts.worker(&TOKEN));
    let workers = [&one, &other];
    let rest = "--token-file token --threads 4 --mix c --rate 500 --duration 3600 -s -p status.interval=1 -p recordcount=1000";
    let mut command = hosts.ycsb("run", &workers, rest);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until_under_way(&mut BufReader::new(child.stderr.take().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    for worker in workers {
        wait_for("the worker to be free", Duration::from_secs(20), || worker.said().contains("is gone"));
    }
    // Nothing of the run is left, and the next coordinator is served.
    assert_eq!(hosts.scratch_folders(), 0);
    let rest = "--token-file token --threads 2 --mix c -p recordcount=10 -p operationcount=10 --json";
    assert_eq!(json(&hosts.output("run", &workers, rest))["operations"], 10);
}

#[test]
fn client_without_token_is_refused() {
    if !can_lay_cables() {
        return;
    }
    let mut hosts = Hosts::new();
    secret(&hosts.playground, "wrong", "correct horse battery stable");
    let worker = hosts.worker(&TOKEN);
    let rest = "--threads 1 --mix c -p recordcount=10 -p operationcount=10";
    let output = hosts.output("run", &[&worker], &format!("{rest} --token-file wrong"));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("is the token the same on both sides?"), "{}", stderr(&output));
    wait_for("the worker to say so", Duration::from_secs(20), || worker.said().contains("was refused"));
    assert!(!worker.said().contains("coordinates") && !worker.said().contains(WORDS), "{}", worker.said());
    let output = hosts.output("run", &[&worker], rest);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("give a token or certificates"), "{}", stderr(&output));
    let output = hosts.output("run", &[&worker], &format!("{rest} --token-file token"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// An authority, or a certificate that it signed for an address.
fn certificate(issuer: Option<&(X509, PKey<Private>)>, name: &str) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&subject).unwrap();
    builder.set_issuer_name(issuer.map_or(&subject, |(authority, _)| authority.subject_name())).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    let extension = match issuer {
        None => BasicConstraints::new().critical().ca().build().unwrap(),
        Some((authority, _)) => {
            let context = builder.x509v3_context(Some(authority), None);
            SubjectAlternativeName::new().ip(name).build(&context).unwrap()
        }
    };
    builder.append_extension(extension).unwrap();
    builder.sign(issuer.map_or(&key, |(_, key)| key), MessageDigest::sha256()).unwrap();
    (builder.build(), key)
}

/// Writes an authority's certificate and one that it signed, and gives the arguments for them.
fn certificates(
    playground: &Playground,
    name: &str,
    authority: &(X509, PKey<Private>),
    address: &str,
) -> String {
    let (own, key) = certificate(Some(authority), address);
    let write = |kind: &str, pem: Vec<u8>| {
        let file = format!("{name}-{kind}.pem");
        secret(playground, &file, &String::from_utf8(pem).unwrap());
        file
    };
    format!(
        "--authority {} --certificate {} --key {}",
        write("authority", authority.0.to_pem().unwrap()),
        write("certificate", own.to_pem().unwrap()),
        write("key", key.private_key_to_pem_pkcs8().unwrap())
    )
}

#[test]
fn client_without_certificate_is_refused() {
    if !can_lay_cables() {
        return;
    }
    let mut hosts = Hosts::new();
    let (ours, theirs) = (certificate(None, "ours"), certificate(None, "theirs"));
    let of_worker = certificates(&hosts.playground, "worker", &ours, "10.77.0.2");
    let of_coordinator = certificates(&hosts.playground, "coordinator", &ours, "10.77.0.1");
    let of_stranger = certificates(&hosts.playground, "stranger", &theirs, "10.77.0.1");
    // The stranger believes the worker, but is not believed.
    std::fs::copy(
        hosts.playground.path("worker-authority.pem"),
        hosts.playground.path("stranger-authority.pem"),
    )
    .unwrap();
    let worker = hosts.worker(&of_worker.split(' ').collect::<Vec<_>>());
    let rest = "--threads 1 --mix c -p recordcount=10 -p operationcount=10";
    for trust in [of_stranger.as_str(), "--token-file token"] {
        let output = hosts.output("run", &[&worker], &format!("{rest} {trust}"));
        assert_eq!(output.status.code(), Some(4), "{trust}: {}", stderr(&output));
    }
    wait_for("the worker to say so", Duration::from_secs(20), || {
        // Both times; the second has no separate line.
        worker.said().contains("was refused")
    });
    assert!(!worker.said().contains("coordinates"), "{}", worker.said());
    let output = hosts.output("run", &[&worker], &format!("{rest} {of_coordinator}"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Its clock is a day ahead of everybody's.
#[test]
fn worker_with_other_clock_starts_with_others() {
    let ahead = ["unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child"];
    let works = |command: &[&str]| Command::new(command[0]).args(&command[1..]).arg("true").status();
    if !can_lay_cables() {
        return;
    }
    if !works(&ahead).is_ok_and(|status| status.success()) {
        eprintln!(
            "NOT RUN: this test gives a worker a time namespace, which this kernel or its unshare(1) has not"
        );
        return;
    }
    let mut hosts = Hosts::new();
    let (one, other) = (hosts.worker(&TOKEN), hosts.worker_by(&ahead, &TOKEN));
    let rest = "--token-file token --threads 2 --mix c --rate 1000 --duration 1 -p recordcount=10 --json";
    let measured = json(&hosts.output("run", &[&one, &other], rest));
    assert_eq!(measured["latency"]["us"]["count"], 1000);
    let spread_us = measured["hosts"]["start_spread_us"].as_f64().unwrap();
    assert!(spread_us < 3600e6, "an hour is less than the clocks are apart: {spread_us} us");
}

#[test]
fn workers_are_started_over_ssh() {
    let playground = Playground::new();
    let path = fake_ssh(&playground, "for last; do :; done\nexec sh -c \"$last\"");
    let run = |path: &str, program: &str| {
        let rest = "--threads 2 --mix b -p recordcount=1000 -p operationcount=5000 --json --remote-program";
        let mut arguments = vec!["ycsb", "run", "null", "--workers", "ssh:me@one,ssh:two"];
        arguments.extend(rest.split(' ').chain([program]));
        playground.underlay(&arguments).env("PATH", path).output().unwrap()
    };
    let program = env!("CARGO_BIN_EXE_underlay");
    let measured = json(&run(&path, program));
    assert_eq!(measured["operations"], 5000);
    let names: Vec<&str> = measured["hosts"]["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| worker["worker"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ssh:me@one", "ssh:two"]);

    // What the shell there says is passed on.
    let output = run(&path, "/nowhere/underlay");
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("/nowhere/underlay"), "{}", stderr(&output));
    // A worker of another version.
    let welcome = r#"{"version":"0.0.9","cores":1,"is_taken":false}"#;
    let hello =
        format!(r"printf 'underlay-worker 1\n\{:o}\0\0\0%s' '{welcome}'; exec sleep 20", welcome.len());
    let output = run(&fake_ssh(&playground, &hello), program);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).trim_end().ends_with("expected the same"), "{}", stderr(&output));
    // A shell that greets spoils the way.
    let path = fake_ssh(&playground, "echo 'Welcome to this fine host, dear user!'; exec sleep 20");
    let output = run(&path, program);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("it sent "), "{}", stderr(&output));
}

/// At a terminal it comes to all that run there, and ssh would be gone before the run has ended.
#[test]
fn ctrl_c_ends_a_run_over_ssh_in_order() {
    let playground = Playground::new();
    let path = fake_ssh(&playground, "for last; do :; done\nexec sh -c \"$last\"");
    let rest = "--threads 2 --mix b --rate 500 --duration 3600 -s -p status.interval=1 -p recordcount=1000 --remote-program";
    let mut arguments = vec!["ycsb", "run", "null", "--workers", "ssh:one,ssh:two"];
    arguments.extend(rest.split(' ').chain([env!("CARGO_BIN_EXE_underlay")]));
    let mut command = playground.underlay(&arguments);
    command.env("PATH", path).process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut log = until_under_way(&mut errors);
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    errors.read_to_string(&mut log).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{log}");
    assert!(!log.contains("lost"), "{log}");
    wait_for("its workers to end", Duration::from_secs(20), || playground.left_behind().is_empty());
}

#[test]
fn senseless_request_is_refused_before_connecting() {
    let playground = Playground::new();
    secret(&playground, "token", "correct horse battery staple");
    secret(&playground, "short", "password");
    playground.write("open", "correct horse battery staple");
    std::fs::set_permissions(playground.path("open"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let cases: [(&str, &str); 18] = [
        ("worker --listen 7400 --token-file token", "expected HOST:PORT"),
        ("worker --listen 127.0.0.1:0 --token-file .", "is a directory"),
        ("worker --listen 127.0.0.1:0", "expected --token-file, or --authority"),
        ("worker", "--listen"),
        ("worker --listen 127.0.0.1:0 --token-file short", "expected at least 16"),
        ("worker --listen 127.0.0.1:0 --token-file open", "open to everybody"),
        ("worker --listen 127.0.0.1:0 --token-file none", "can't be read"),
        ("worker --listen 127.0.0.1:0 --authority a --key k", "--certificate"),
        ("worker --stdio --token-file token", "cannot be used with"),
        ("worker --stdio --may-connect 10.0.0.0/8", "'10.0.0.0/8' is not a host"),
        ("worker --stdio --may-connect [::1", "such as 10.0.0.1:9042, [::1]:9042"),
        ("ycsb run null --workers nowhere --token-file token", "expected HOST:PORT or ssh:USER@HOST"),
        ("ycsb run null --workers ssh:-oProxyCommand=x --token-file token", "is not a host"),
        ("ycsb run null --workers a:1,b:1 --threads 1 --token-file token", "1 client threads for 2 workers"),
        ("ycsb run null --workers a:1 --mix d --token-file token", "adds or deletes records"),
        ("ycsb run rocksdb --workers a:1 --token-file token", "a system that is already running"),
        ("ycsb run null --workers a:1 --token-file token --hlog log", "cannot be used with"),
        ("ycsb run null --token-file token", "expected --workers"),
    ];
    for (line, expected) in cases {
        let output = playground.output(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{line}: {}", stderr(&output));
    }
    // Nobody listens there.
    let output = playground.output(&[
        "ycsb",
        "run",
        "null",
        "--workers",
        "127.0.0.1:1",
        "--token-file",
        "token",
        "--mix",
        "c",
    ]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("worker 127.0.0.1:1 can't be reached"), "{}", stderr(&output));
}

#[test]
fn idle_worker_ends() {
    let playground = Playground::new();
    secret(&playground, "token", "correct horse battery staple");
    let line = "worker --listen 127.0.0.1:0 --token-file token --end-when-idle 0.2";
    let output = playground.output(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("listens on 127.0.0.1:"), "{}", stdout(&output));
    assert!(playground.left_behind().is_empty());
}
