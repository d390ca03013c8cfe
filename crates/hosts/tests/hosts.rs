//! Workers on this machine: their merged results, and how strangers and lost workers are treated.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509NameBuilder};
use underlay_hosts::frame::{FrameReader, MAX_BYTES, send};
use underlay_hosts::message::{CoordinatorRequest, PREFACE, WorkerAnswer, WorkerWelcome};
use underlay_hosts::{
    CertificateFiles, CombinedResults, ConnectionOpener, HostAddress, HostError, ProgressReport, RemoteJob,
    SharedToken, StoppedIn, TrustMethod, WorkerCoordinator, WorkerListener, WorkerProgress, WorkerServer,
};
use underlay_record::StoppedProcess;
use underlay_workload::client::{Client, ClientError};
use underlay_workload::{MemoryStore, RunWindow};

const WORDS: &str = "correct horse battery staple";

/// A worker in a thread of its own, which ends with this.
struct Running {
    address: String,
    stop: Arc<AtomicBool>,
    said: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A failed test is to say what failed, and not this.
            let _ = thread.join();
        }
    }
}

fn working(store: &MemoryStore) -> WorkerServer {
    let store = store.clone();
    WorkerServer::new(Box::new(move |job: &RemoteJob| -> Result<ConnectionOpener, String> {
        if job.system != "memory" {
            return Err(format!("there is no system '{}' here", job.system));
        }
        let store = store.clone();
        Ok(Box::new(move |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(store.client())) }))
    }))
}

fn worker(trust: &TrustMethod, store: &MemoryStore) -> Running {
    started(trust, working(store))
}

fn started(trust: &TrustMethod, worker: WorkerServer) -> Running {
    let listener = WorkerListener::open("127.0.0.1:0", trust).unwrap();
    let address = listener.address().unwrap().to_string();
    let stop = Arc::new(AtomicBool::new(false));
    let messages = Arc::new(Mutex::new(Vec::new()));
    let (own_stop, own_said) = (Arc::clone(&stop), Arc::clone(&messages));
    let thread = std::thread::spawn(move || {
        worker
            .serve(&listener, None, &own_stop, &|event| own_said.lock().unwrap().push(format!("{event:?}")));
    });
    Running { address, stop, said: messages, thread: Some(thread) }
}

fn token(words: &str) -> TrustMethod {
    TrustMethod::Token(SharedToken::new(words).unwrap())
}

fn job(mix: &str) -> RemoteJob {
    let property = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    RemoteJob {
        system: "memory".to_owned(),
        properties: vec![property("recordcount", "1000"), property("fieldcount", "1")],
        mix: Some(mix.to_owned()),
        threads: 4,
        arrivals: "constant".to_owned(),
        duration: Duration::MAX,
        series_intervals: 10,
        ..RemoteJob::default()
    }
}

fn parse_addresses(addresses: &[&str]) -> Vec<HostAddress> {
    addresses.iter().map(|address| HostAddress::parse(address, "underlay").unwrap()).collect()
}

fn run(workers: &[&Running], trust: &TrustMethod, job: &RemoteJob) -> Result<CombinedResults, HostError> {
    let addresses: Vec<&str> = workers.iter().map(|worker| worker.address.as_str()).collect();
    WorkerCoordinator::connect(&parse_addresses(&addresses), Some(trust))?.run(
        job,
        &AtomicBool::new(false),
        &|_, _| (),
    )
}

#[test]
fn workers_load_records_once_and_share_rate() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let workers = [worker(&trust, &store), worker(&trust, &store), worker(&trust, &store)];
    let workers = workers.each_ref();
    let loaded = run(&workers, &trust, &job("load")).unwrap();
    let counts = (loaded.measured.operations, loaded.measured.errors, store.record_count());
    assert_eq!(counts, (1000, 0, 1000));
    assert!(loaded.lost.is_empty());
    let shares: Vec<(u32, u64)> = loaded.hosts.iter().map(|host| (host.threads, host.operations)).collect();
    assert_eq!(shares, [(1, 333), (1, 333), (2, 334)]);

    // The same workers again, with a number of operations.
    let limited = RemoteJob { operation_limit: Some(5_000), ..job("a") };
    let together = run(&workers, &trust, &limited).unwrap();
    assert_eq!(together.measured.operations, 5_000);
    assert_eq!(together.measured.latency.histogram.count(), 5_000);
    assert_eq!(together.hosts.iter().map(|host| host.operations).sum::<u64>(), 5_000);
    let by_operation = &together.measured.by_operation;
    assert_eq!(by_operation.values().map(|stats| stats.count).sum::<u64>(), 5_000);
    assert_eq!(together.measured.series.iter().map(|point| point.operations).sum::<u64>(), 5_000);

    // And with a rate: 400 operations are due in all.
    let rated = RemoteJob { rate_per_s: Some(1000.0), duration: Duration::from_millis(400), ..job("b") };
    let together = run(&workers, &trust, &rated).unwrap();
    assert_eq!(together.measured.latency.histogram.count(), 400);
    assert_eq!(together.measured.by_operation.values().map(|stats| stats.missing).sum::<u64>(), 0);
}

/// Clients in Java run in a process of their own.
#[test]
fn worker_reports_pauses_and_operations_outside_window() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let client =
        StoppedProcess { name: "java".to_owned(), pid: 7, stopped_wall_s: 2.0, ..StoppedProcess::default() };
    let stopped = client.clone();
    let watch = move || -> StoppedIn {
        let stopped = stopped.clone();
        Box::new(move |window: &RunWindow| {
            assert!(window.began < window.ended && window.warm_up == Duration::from_millis(100));
            vec![stopped.clone()]
        })
    };
    let worker = started(&trust, working(&store).watched_by(Box::new(watch)));
    let loading = RemoteJob { rate_per_s: Some(2_000.0), warmup: Duration::from_millis(100), ..job("load") };
    let together = run(&[&worker], &trust, &loading).unwrap();
    assert_eq!(together.measured.stopped_processes, [client]);
    assert_eq!(together.measured.operations + together.outside, 1000);
    assert_eq!(store.record_count(), 1000);
}

/// The answer to a stranger who sends these bytes, and then waits.
fn heard_by_stranger(worker: &Running, bytes: &[u8]) -> Vec<u8> {
    let mut stranger = TcpStream::connect(&worker.address).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stranger.write_all(bytes);
    let _ = stranger.shutdown(Shutdown::Write);
    let mut heard = Vec::new();
    let _ = stranger.read_to_end(&mut heard);
    heard
}

#[test]
fn strangers_get_nowhere() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let worker = worker(&trust, &store);
    let error = run(&[&worker], &token("another horse battery"), &job("load")).unwrap_err();
    assert!(matches!(error, HostError::Refused { .. }), "{error}");
    assert!(error.to_string().ends_with("is the token the same on both sides?"), "{error}");
    // A peer that sends data without a handshake gets at most TLS's own alert, and never the preface.
    let mut request = Vec::new();
    send(&mut request, &CoordinatorRequest::Prepare(Box::new(job("load")))).unwrap();
    for bytes in [&[0xff; 100][..], b"", b"GET / HTTP/1.1\r\n\r\n", &request] {
        let heard = heard_by_stranger(&worker, bytes);
        assert!(heard.len() <= 7, "{heard:?}");
    }
    assert_eq!(store.record_count(), 0);
    let refused = || worker.said.lock().unwrap().iter().filter(|words| words.starts_with("Refused")).count();
    // It says so after it has closed the connection.
    for _ in 0..1000 {
        if refused() == 5 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(refused(), 5, "{:?}", worker.said);
    // It goes on.
    run(&[&worker], &trust, &job("load")).unwrap();
    assert_eq!(store.record_count(), 1000);
}

/// More of them than may wait for their handshake at once, and all of them stay.
#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let worker = worker(&trust, &store);
    let strangers: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&worker.address).unwrap()).collect();
    run(&[&worker], &trust, &job("load")).unwrap();
    assert_eq!(store.record_count(), 1000);
    drop(strangers);
}

/// Several workers that make a table at the same time could make two.
#[test]
fn first_worker_alone_creates_missing_data() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let has_table = Arc::new(AtomicBool::new(false));
    let worker = |makes_table: bool| {
        let (store, has_table) = (store.clone(), Arc::clone(&has_table));
        let connector = move |_: &RemoteJob| -> Result<ConnectionOpener, String> {
            if makes_table {
                std::thread::sleep(Duration::from_millis(300));
                has_table.store(true, Ordering::SeqCst);
            } else if !has_table.load(Ordering::SeqCst) {
                return Err("there is no table".to_owned());
            }
            let store = store.clone();
            Ok(Box::new(move |_| -> Result<Box<dyn Client>, ClientError> { Ok(Box::new(store.client())) }))
        };
        started(&trust, WorkerServer::new(Box::new(connector)))
    };
    let workers = [worker(true), worker(false), worker(false)];
    run(&workers.each_ref(), &trust, &job("load")).unwrap();
    assert_eq!(store.record_count(), 1000);
    // Where the first one fails, the others don't try, and all are free again.
    has_table.store(false, Ordering::SeqCst);
    let [first, other, _] = workers.each_ref();
    let error = run(&[other, first], &trust, &job("load")).unwrap_err();
    assert!(error.to_string().ends_with("there is no table"), "{error}");
    assert!(!has_table.load(Ordering::SeqCst));
    run(&[first, other], &trust, &job("load")).unwrap();
}

#[test]
fn worker_accepts_a_single_coordinator() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let worker = worker(&trust, &store);
    let first = WorkerCoordinator::connect(&parse_addresses(&[&worker.address]), Some(&trust)).unwrap();
    let error =
        WorkerCoordinator::connect(&parse_addresses(&[&worker.address]), Some(&trust)).map(drop).unwrap_err();
    assert!(
        error.to_string().ends_with("it is working for another coordinator: wait until that has finished"),
        "{error}"
    );
    first.run(&job("load"), &AtomicBool::new(false), &|_, _| ()).unwrap();
    let twice = parse_addresses(&[&worker.address, &worker.address]);
    let error = WorkerCoordinator::connect(&twice, Some(&trust)).map(drop).unwrap_err();
    assert!(error.to_string().contains("is listed twice"), "{error}");
    let error = WorkerCoordinator::connect(&parse_addresses(&[&worker.address]), None).map(drop).unwrap_err();
    assert!(error.to_string().contains("give a token or certificates"), "{error}");
}

#[test]
fn impossible_job_is_refused_before_start() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let workers = [worker(&trust, &store), worker(&trust, &store)];
    let other_job = RemoteJob { system: "oracle".to_owned(), ..job("load") };
    let error = run(&workers.each_ref(), &trust, &other_job).unwrap_err();
    assert!(error.to_string().ends_with("failed: there is no system 'oracle' here"), "{error}");
    assert_eq!(store.record_count(), 0);
    let error = run(&workers.each_ref(), &trust, &job("d")).unwrap_err();
    assert!(matches!(error, HostError::Job(_)), "{error}");
}

/// Damage to bytes on their way.
#[derive(Default)]
struct Weather {
    delay_ms: AtomicU64,
    is_cut: AtomicBool,
    is_frozen: AtomicBool,
}

/// A way to a worker with weather on it.
fn relay(worker: &str) -> (String, Arc<Weather>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let weather = Arc::new(Weather::default());
    let (worker, own) = (worker.to_owned(), Arc::clone(&weather));
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(worker).unwrap();
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        let ways = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
        for (from, to) in ways {
            let weather = Arc::clone(&own);
            std::thread::spawn(move || pass_on(from, to, &weather));
        }
    });
    (address, weather)
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, weather: &Weather) {
    let mut buffer = [0; 64 << 10];
    while !weather.is_cut.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                std::thread::sleep(Duration::from_millis(weather.delay_ms.load(Ordering::Relaxed)));
                if !weather.is_frozen.load(Ordering::Relaxed) && to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn lost_worker_is_named_and_others_count() {
    let trust = token(WORDS);
    for (cut, expected) in
        [(true, "was lost: the connection ended"), (false, "was lost: it was silent for 2 s")]
    {
        let store = MemoryStore::new();
        let workers = [worker(&trust, &store), worker(&trust, &store)];
        run(&workers.each_ref(), &trust, &job("load")).unwrap();
        let (relayed, weather) = relay(&workers[1].address);
        let addresses = parse_addresses(&[&workers[0].address, &relayed]);
        let coordinator =
            WorkerCoordinator::connect_with_patience(&addresses, Some(&trust), Duration::from_secs(2))
                .unwrap();
        let long = RemoteJob { rate_per_s: Some(400.0), duration: Duration::from_secs(3), ..job("c") };
        let seen = Mutex::new((ProgressReport::default(), Vec::new()));
        let turn = |report: &ProgressReport, workers: &[WorkerProgress]| {
            *seen.lock().unwrap() = (*report, workers.to_vec());
            // Its reports had some of its operations by then.
            if report.operations > 250 {
                weather.is_cut.store(cut, Ordering::Relaxed);
                weather.is_frozen.store(true, Ordering::Relaxed);
            }
        };
        let together = coordinator.run(&long, &AtomicBool::new(false), &turn).unwrap();
        assert_eq!(together.lost.len(), 1);
        let lost = &together.lost[0];
        assert_eq!(lost.error.to_string(), format!("worker {relayed} {expected}"));
        assert!(lost.last.operations > 0 && lost.last.operations <= 600, "{:?}", lost.last);
        // Half of the threads, and so of the arrivals.
        assert_eq!((together.hosts.len(), together.measured.latency.histogram.count()), (1, 600));
        assert_eq!(together.hosts[0].worker, workers[0].address);
        let (whole, each) = seen.into_inner().unwrap();
        assert!(whole.operations >= 600);
        // The one has ended and the other is lost: none of them does anything now.
        assert_eq!((whole.has_ended, whole.throughput_per_s), (true, 0.0));
        let outcomes: Vec<(&str, bool)> = each.iter().map(|one| (one.worker.as_str(), one.is_lost)).collect();
        assert_eq!(outcomes, [(workers[0].address.as_str(), false), (relayed.as_str(), true)]);
        assert!(each[0].report.operations >= 500, "{:?}", each[0]);
    }
}

#[test]
fn run_without_workers_is_an_error() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let worker = worker(&trust, &store);
    let (relayed, weather) = relay(&worker.address);
    let coordinator = WorkerCoordinator::connect(&parse_addresses(&[&relayed]), Some(&trust)).unwrap();
    let long = RemoteJob { rate_per_s: Some(400.0), duration: Duration::from_secs(600), ..job("c") };
    let cut = |_: &ProgressReport, _: &[WorkerProgress]| weather.is_cut.store(true, Ordering::Relaxed);
    let error = coordinator.run(&long, &AtomicBool::new(false), &cut).unwrap_err();
    assert!(matches!(&error, HostError::Lost { worker, .. } if *worker == relayed), "{error}");
}

/// One way is long, and one clock began later. Nobody begins before all know when to, and the record has how exactly
/// they began together.
#[test]
fn worker_behind_slow_link_starts_with_others() {
    let trust = token(WORDS);
    let stores = [MemoryStore::new(), MemoryStore::new()];
    let near = worker(&trust, &stores[0]);
    std::thread::sleep(Duration::from_millis(30));
    let far = worker(&trust, &stores[1]);
    let (relayed, weather) = relay(&far.address);
    let coordinator =
        WorkerCoordinator::connect(&parse_addresses(&[&near.address, &relayed]), Some(&trust)).unwrap();
    let delay = Duration::from_millis(40);
    weather.delay_ms.store(delay.as_millis() as u64, Ordering::Relaxed);
    let first = Mutex::new(None);
    let told_of = |_: &ProgressReport, _: &[WorkerProgress]| {
        let counts = || stores.each_ref().map(MemoryStore::record_count);
        first.lock().unwrap().get_or_insert_with(counts);
    };
    let together = coordinator.run(&job("load"), &AtomicBool::new(false), &told_of).unwrap();
    assert_eq!(*first.lock().unwrap(), Some([0, 0]), "somebody began before all had the start command");
    assert_eq!(stores.each_ref().map(MemoryStore::record_count), [500, 500]);
    let uncertainties: Vec<Duration> = together.hosts.iter().map(|host| host.start_uncertainty).collect();
    assert!(uncertainties[1] >= delay, "{uncertainties:?}");
    assert!(together.start_spread >= delay * 2, "{:?}", together.start_spread);
    assert!(together.hosts.iter().all(|host| host.clock_gain_ns.is_some()));
}

#[test]
fn stop_ends_run_on_all_workers() {
    let (store, trust) = (MemoryStore::new(), token(WORDS));
    let workers = [worker(&trust, &store), worker(&trust, &store)];
    let addresses = parse_addresses(&[&workers[0].address, &workers[1].address]);
    let stop = AtomicBool::new(false);
    let endless = RemoteJob { duration: Duration::from_secs(3600), rate_per_s: Some(100.0), ..job("c") };
    let coordinator = WorkerCoordinator::connect(&addresses, Some(&trust)).unwrap();
    let error = coordinator.run(&endless, &stop, &|_, _| stop.store(true, Ordering::Relaxed)).unwrap_err();
    assert!(matches!(error, HostError::Stopped), "{error}");
    // They are free again.
    run(&workers.each_ref(), &trust, &job("load")).unwrap();
    assert_eq!(store.record_count(), 1000);
}

/// Over two pipes, as ssh gives them: nothing is to be proven, the rest is the same.
#[test]
fn worker_answers_on_standard_streams() {
    let store = MemoryStore::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let output = theirs.try_clone().unwrap();
    let own = store.clone();
    let serving =
        std::thread::spawn(move || working(&own).serve_streams(theirs, output, &AtomicBool::new(false)));
    let mut preface = [0; PREFACE.len()];
    ours.read_exact(&mut preface).unwrap();
    assert_eq!(preface, PREFACE);
    let mut reader = FrameReader::new();
    let welcome: WorkerWelcome = reader.receive(&mut ours, MAX_BYTES).unwrap();
    assert!(welcome.cores > 0 && !welcome.is_taken);
    let mut ask = |request: CoordinatorRequest| -> WorkerAnswer {
        send(&mut ours, &request).unwrap();
        reader.receive(&mut ours, MAX_BYTES).unwrap()
    };
    assert_eq!(ask(CoordinatorRequest::Report), WorkerAnswer::Failed("nothing was prepared".to_owned()));
    let part = job("load").divided(1).unwrap().remove(0);
    assert_eq!(ask(CoordinatorRequest::Prepare(Box::new(part))), WorkerAnswer::Done);
    assert_eq!(ask(CoordinatorRequest::Collect), WorkerAnswer::Failed("its run is not finished".to_owned()));
    // A begin that is over, or years ahead, is no begin.
    assert!(matches!(ask(CoordinatorRequest::Start { at_ns: 0 }), WorkerAnswer::Failed(_)));
    assert!(matches!(ask(CoordinatorRequest::Start { at_ns: u64::MAX }), WorkerAnswer::Failed(_)));
    let WorkerAnswer::Time { now_ns } = ask(CoordinatorRequest::Time) else { panic!("no time") };
    let part = job("load").divided(1).unwrap().remove(0);
    assert_eq!(ask(CoordinatorRequest::Prepare(Box::new(part))), WorkerAnswer::Done);
    assert_eq!(ask(CoordinatorRequest::Start { at_ns: now_ns + 1_000_000_000 }), WorkerAnswer::Done);
    loop {
        match ask(CoordinatorRequest::Report) {
            WorkerAnswer::Report(report) if report.has_ended => break,
            WorkerAnswer::Report(_) => std::thread::sleep(Duration::from_millis(20)),
            other => panic!("{other:?}"),
        }
    }
    let WorkerAnswer::Measured(part) = ask(CoordinatorRequest::Collect) else { panic!("no measurement") };
    assert_eq!((part.measured.operations, store.record_count()), (1000, 1000));
    drop(ours);
    serving.join().unwrap().unwrap();
}

/// An authority, or a certificate that it signed for a host.
fn certificate(issuer: Option<(&X509, &PKey<Private>)>, host: &str) -> (X509, PKey<Private>) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", host).unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    let mut serial = BigNum::new().unwrap();
    serial.rand(64, MsbOption::MAYBE_ZERO, false).unwrap();
    builder.set_serial_number(&serial.to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(issuer.map_or(&name, |(authority, _)| authority.subject_name())).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    match issuer {
        None => {
            builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
        }
        Some((authority, _)) => {
            let extension = {
                let context = builder.x509v3_context(Some(authority), None);
                let mut names = SubjectAlternativeName::new();
                match host.parse::<std::net::IpAddr>() {
                    Ok(_) => names.ip(host),
                    Err(_) => names.dns(host),
                };
                names.build(&context).unwrap()
            };
            builder.append_extension(extension).unwrap();
        }
    }
    builder.sign(issuer.map_or(&key, |(_, key)| key), MessageDigest::sha256()).unwrap();
    (builder.build(), key)
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A certificate of `authority` for `host`, as files.
fn files(folder: &Path, name: &str, authority: &(X509, PKey<Private>), host: &str) -> TrustMethod {
    let (own, key) = certificate(Some((&authority.0, &authority.1)), host);
    let file = |kind: &str, bytes: &[u8]| write(folder, &format!("{name}-{kind}.pem"), bytes);
    TrustMethod::Certificates(CertificateFiles {
        authority: file("authority", &authority.0.to_pem().unwrap()),
        certificate: file("certificate", &own.to_pem().unwrap()),
        key: file("key", &key.private_key_to_pem_pkcs8().unwrap()),
    })
}

#[test]
fn certificates_let_in_those_who_hold_them() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (certificate(None, "ours"), certificate(None, "theirs"));
    let files = |name: &str, authority, host: &str| files(folder.path(), name, authority, host);
    let store = MemoryStore::new();
    let worker = worker(&files("worker", &ours, "127.0.0.1"), &store);
    let good = files("coordinator", &ours, "coordinator.example");
    // Ours by an authority of the same name, and their authority's certificate with ours to verify by.
    let same_name = certificate(None, "ours");
    let TrustMethod::Certificates(ours_only) = good.clone() else { unreachable!() };
    let TrustMethod::Certificates(theirs_only) = files("theirs", &theirs, "127.0.0.1") else {
        unreachable!()
    };
    let mixed = TrustMethod::Certificates(CertificateFiles { authority: ours_only.authority, ..theirs_only });
    for stranger in
        [files("stranger", &theirs, "127.0.0.1"), files("same", &same_name, "127.0.0.1"), mixed, token(WORDS)]
    {
        let error = run(&[&worker], &stranger, &job("load")).unwrap_err();
        assert!(matches!(error, HostError::Refused { .. }), "{error}");
    }
    assert_eq!(store.record_count(), 0);
    let loaded = run(&[&worker], &good, &job("load")).unwrap();
    assert_eq!((loaded.measured.operations, store.record_count()), (1000, 1000));
    // A worker with a good certificate that is another host's.
    let other_worker = self::worker(&files("elsewhere", &ours, "elsewhere.example"), &store);
    let error = run(&[&other_worker], &good, &job("load")).unwrap_err();
    assert!(matches!(error, HostError::Refused { .. }), "{error}");
    // No certificate at all: TLS without one gets as far as the worker's alert.
    let bare = bare_tls_client(&worker.address);
    assert!(bare.is_err() || bare.is_ok_and(|heard| heard.is_empty()));
}

/// The answer to a client without a certificate, which takes any of the worker's.
fn bare_tls_client(address: &str) -> std::io::Result<Vec<u8>> {
    use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVerifyMode};
    let mut builder = SslContext::builder(SslMethod::tls_client()).unwrap();
    builder.set_verify(SslVerifyMode::NONE);
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = SslStream::new(Ssl::new(&builder.build()).unwrap(), stream).unwrap();
    stream.connect().map_err(std::io::Error::other)?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard)?;
    Ok(heard)
}
