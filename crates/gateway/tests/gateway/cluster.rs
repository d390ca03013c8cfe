//! Several gateways over one store, with a real etcd: they come and go, are killed and paused, and etcd is down at the
//! wrong moment.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::own_etcd::Etcd;
use crate::program::{Program, command, free};
use crate::signed::{Reply, ask, tags};

/// A lease: short, so that its end is soon, and long enough for a machine that has other things to do.
const TTL_S: u64 = 8;
/// For what takes a lease or two.
const TIMEOUT: Duration = Duration::from_secs(150);

/// What a test's gateways share.
struct Site {
    etcd: Etcd,
    objects: PathBuf,
    directory: tempfile::TempDir,
    write: &'static str,
}

impl Site {
    fn new(write: &'static str) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let objects = directory.path().join("objects");
        std::fs::create_dir_all(&objects).unwrap();
        let secret = directory.path().join("cluster.secret");
        std::fs::write(&secret, "a secret of the cluster's own").unwrap();
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        Site { etcd: Etcd::start(directory.path()), objects, directory, write }
    }

    fn sections(&self, name: &str) -> String {
        format!(
            "[bucket.lake]\nstore = \"{}\"\n{}\n[limits]\npatience = \"10 s\"\ndrain = \"60 s\"\n\
             [cluster]\netcd = [\"http://{}\"]\nname = \"{name}\"\nlisten = \"{}\"\nttl = \"{TTL_S} s\"\nsecret_file = \"{}\"\n",
            self.objects.display(),
            self.write,
            self.etcd.client,
            free(),
            self.directory.path().join("cluster.secret").display()
        )
    }

    fn gateway(&self, name: &str) -> Program {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        Program::start(&directory, &self.sections(name))
    }
}

fn content(key: &str, version: u64) -> Vec<u8> {
    let mut bytes = format!("{key} {version} ").into_bytes();
    bytes.resize(3000 + (version % 7) as usize * 40_000, b'x');
    bytes
}

fn version_of(key: &str, bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
    let version = text.strip_prefix(&format!("{key} ")).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let version = version.unwrap_or_else(|| panic!("{key} has {text:?}"));
    assert!(bytes == content(key, version), "{key}: not the bytes of version {version}");
    version
}

/// Asks until it gets an answer, through failures and moves.
fn insist(address: SocketAddr, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let begun = Instant::now();
    loop {
        match ask(address, method, target, headers, body) {
            Ok(reply) if reply.status < 500 => return reply,
            outcome => {
                let answer = outcome.map(|reply| format!("{} {}", reply.status, reply.text()));
                assert!(begun.elapsed() < TIMEOUT, "{method} {target}: {answer:?}");
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn put(address: SocketAddr, key: &str, version: u64) {
    let reply = insist(address, "PUT", &format!("/lake/{key}"), &[], &content(key, version));
    assert_eq!(reply.status, 200, "{key}: {}", reply.text());
}

fn get(address: SocketAddr, key: &str) -> Option<u64> {
    let reply = insist(address, "GET", &format!("/lake/{key}"), &[], b"");
    match reply.status {
        200 => Some(version_of(key, &reply.body)),
        404 => None,
        status => panic!("{key}: {status} {}", reply.text()),
    }
}

/// All keys, by pages of seven.
fn list(address: SocketAddr, prefix: &str, delimiter: bool) -> Vec<String> {
    let (mut names, mut token) = (Vec::new(), None);
    loop {
        let token_text = token.map_or(String::new(), |token: String| format!("continuation-token={token}&"));
        let delimiter_text = if delimiter { "delimiter=%2F&" } else { "" };
        let target = format!("/lake?{token_text}{delimiter_text}list-type=2&max-keys=7&prefix={prefix}");
        let reply = insist(address, "GET", &target, &[], b"");
        assert_eq!(reply.status, 200, "{}", reply.text());
        let text = reply.text();
        names.extend(tags(&text, "Key"));
        names.extend(
            text.split("<CommonPrefixes>").skip(1).flat_map(|rest| tags(rest, "Prefix").into_iter().next()),
        );
        token = reply.tag("NextContinuationToken");
        if token.is_none() {
            names.sort();
            return names;
        }
    }
}

fn keys() -> Vec<String> {
    (0..60).map(|index| format!("dir{}/key{index}", index % 24)).collect()
}

/// What a gateway says of itself.
fn slots(program: &Program, field: &str) -> u64 {
    let header = format!("Authorization: Bearer {}\r\n", program.token());
    let answer = program.ask("/status", &header).unwrap_or_default();
    let begin = format!("\"{field}\":");
    let rest = answer.split_once(&begin).map_or("", |(_, rest)| rest);
    rest.split([',', '}', '.']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn wait_until(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < TIMEOUT, "{condition}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn gateways_divide_the_keys_and_hand_them_over() {
    let site = Site::new("write = \"back\"\nflush_after = \"200 ms\"");
    let (a, b) = (site.gateway("a"), site.gateway("b"));
    for (version, key) in (1..).zip(keys()) {
        put(if version % 2 == 0 { a.address } else { b.address }, &key, version);
    }
    wait_until("both have a share", || {
        slots(&a, "served_slots") > 50
            && slots(&b, "served_slots") > 50
            && slots(&a, "served_slots") + slots(&b, "served_slots") == 256
    });
    let expected: Vec<String> = keys().into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    for gateway in [&a, &b] {
        for (version, key) in (1..).zip(keys()) {
            assert_eq!(get(gateway.address, &key), Some(version), "{key}");
        }
        assert_eq!(list(gateway.address, "", false), expected);
        assert_eq!(list(gateway.address, "dir1%2F", false).len(), 3);
        let groups: BTreeSet<String> =
            keys().iter().map(|key| format!("{}/", key.split_once('/').unwrap().0)).collect();
        assert_eq!(list(gateway.address, "", true), groups.into_iter().collect::<Vec<_>>());
        assert!(slots(gateway, "forwarded") > 0);
    }
    // From each directory to each other: some of these are of two owners.
    for index in 0..8 {
        let (from, to) = (format!("dir{index}/key{index}"), format!("copy{index}/x"));
        let source = format!("/lake/{from}");
        let reply = insist(a.address, "PUT", &format!("/lake/{to}"), &[("x-amz-copy-source", &source)], b"");
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert!(reply.tag("ETag").is_some(), "{}", reply.text());
        let (copied, original) =
            (insist(b.address, "GET", &format!("/lake/{to}"), &[], b""), content(&from, index + 1));
        assert!(copied.body == original, "{to}");
        let missing = insist(
            a.address,
            "PUT",
            &format!("/lake/{to}"),
            &[("x-amz-copy-source", "/lake/nowhere/x")],
            b"",
        );
        assert_eq!(missing.status, 404, "{}", missing.text());
    }
    // An upload, with a part of another's object; it is listed wherever one asks.
    for index in 0..4 {
        let target = format!("/lake/upload{index}/x");
        let upload =
            insist(a.address, "POST", &format!("{target}?uploads="), &[], b"").tag("UploadId").unwrap();
        let listed = insist(b.address, "GET", "/lake?uploads=", &[], b"");
        assert!(listed.text().contains(&upload), "{}", listed.text());
        let part = insist(
            b.address,
            "PUT",
            &format!("{target}?partNumber=1&uploadId={upload}"),
            &[("x-amz-copy-source", "/lake/dir3/key3")],
            b"",
        );
        let etag = part.tag("ETag").unwrap_or_else(|| panic!("{}", part.text()));
        let list = format!(
            "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
        );
        let done = insist(a.address, "POST", &format!("{target}?uploadId={upload}"), &[], list.as_bytes());
        assert!(done.status == 200 && done.tag("ETag").is_some(), "{}", done.text());
        assert!(insist(b.address, "GET", &target, &[], b"").body == content("dir3/key3", 4));
    }
    // Many at once, of several owners.
    let deleted_keys: Vec<String> = (0..8)
        .map(|index| format!("copy{index}/x"))
        .chain((0..4).map(|index| format!("upload{index}/x")))
        .collect();
    let list_of: String =
        deleted_keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
    let body = format!("<Delete>{list_of}</Delete>");
    let md5 = {
        use base64::Engine as _;
        let digest = openssl::hash::hash(openssl::hash::MessageDigest::md5(), body.as_bytes()).unwrap();
        base64::engine::general_purpose::STANDARD.encode(digest)
    };
    let deleted = insist(b.address, "POST", "/lake?delete=", &[("content-md5", &md5)], body.as_bytes());
    assert_eq!(tags(&deleted.text(), "Deleted").len(), deleted_keys.len(), "{}", deleted.text());
    assert_eq!(list(a.address, "", false), expected);
    // Tags can't move with a slot, so the gateway refuses them.
    assert_eq!(
        ask(a.address, "PUT", "/lake/dir1/key1", &[("x-amz-tagging", "a=b")], b"").unwrap().status,
        501
    );
    // Nobody can tell from outside whose key a form is for.
    let form = [("content-type", "multipart/form-data; boundary=x")];
    assert_eq!(ask(a.address, "POST", "/lake", &form, b"--x--").unwrap().status, 501);
    // The gateways' own port is for gateways.
    let config = std::fs::read_to_string(a.config()).unwrap();
    let inner = config.split("listen = \"").nth(3).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!(ask(inner.parse().unwrap(), "GET", "/lake/dir1/key1", &[], b"").unwrap().status, 403);
    assert_eq!(ask(inner.parse().unwrap(), "POST", "/lake", &form, b"--x--").unwrap().status, 501);

    // A third one comes, and one goes.
    let c = site.gateway("c");
    wait_until("the third has a share", || slots(&c, "served_slots") > 40 && slots(&c, "served_slots") < 256);
    for (version, key) in (1..).zip(keys()) {
        assert_eq!(get(c.address, &key), Some(version), "{key}");
        put(c.address, &key, version + 100);
    }
    let (status, log) = b.stop();
    assert!(status.success(), "{log}");
    for (version, key) in (101..).zip(keys()) {
        assert_eq!(get(a.address, &key), Some(version), "{key}");
        assert_eq!(get(c.address, &key), Some(version), "{key}");
    }
    assert_eq!(list(c.address, "", false), expected);
    for program in [a, c] {
        let config = program.config().to_owned();
        let (status, log) = program.stop();
        assert!(status.success() && !log.contains("not in their store"), "{log}");
        let check = command().arg("check").arg(&config).output().unwrap();
        assert!(check.status.success(), "{check:?}");
    }
    for (version, key) in (101..).zip(keys()) {
        assert!(std::fs::read(site.objects.join(&key)).unwrap() == content(&key, version), "{key}");
    }
}

/// Ends the load also when a test fails in the middle of it: its threads are waited for.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A key, the version that was acknowledged last, and those with an unknown outcome.
#[derive(Default)]
struct Known {
    acknowledged: u64,
    unknown: BTreeSet<u64>,
    next: u64,
}

/// Writers and readers of keys of their own, who note each answer. A reader is never given what was overwritten before.
struct Load {
    known: Vec<Mutex<Known>>,
    is_over: AtomicBool,
}

impl Load {
    fn key(index: usize) -> String {
        format!("load{index}/key")
    }

    fn write(&self, index: usize, address: SocketAddr) {
        let mut state = self.known[index].lock().unwrap();
        state.next += 1;
        let version = state.next;
        let key = Load::key(index);
        match ask(address, "PUT", &format!("/lake/{key}"), &[], &content(&key, version)) {
            Ok(reply) if reply.status == 200 => state.acknowledged = version,
            Ok(reply) if reply.status < 500 => panic!("{key}: {} {}", reply.status, reply.text()),
            _ => drop(state.unknown.insert(version)),
        }
    }

    fn read(&self, index: usize, address: SocketAddr) {
        let state = self.known[index].lock().unwrap();
        let key = Load::key(index);
        if let Ok(reply) = ask(address, "GET", &format!("/lake/{key}"), &[], b"") {
            match reply.status {
                200 => {
                    let found = version_of(&key, &reply.body);
                    let is_possible = found == state.acknowledged || state.unknown.contains(&found);
                    assert!(
                        is_possible,
                        "{key}: found {found}, acknowledged {}, unknown {:?}",
                        state.acknowledged, state.unknown
                    );
                }
                404 => assert_eq!(state.acknowledged, 0, "{key} is not there"),
                500.. => {}
                status => panic!("{key}: {status} {}", reply.text()),
            }
        }
    }

    fn run(&self, addresses: &[SocketAddr], writes_all: bool) {
        std::thread::scope(|scope| {
            for worker in 0..3 {
                scope.spawn(move || {
                    let mut turn = worker;
                    while !self.is_over.load(Ordering::Relaxed) {
                        for index in (0..self.known.len()).filter(|index| index % 3 == worker) {
                            turn += 1;
                            let address = addresses[turn % addresses.len()];
                            if writes_all || index % 2 == 0 {
                                self.write(index, address);
                            }
                            self.read(index, addresses[(turn / 2) % addresses.len()]);
                        }
                    }
                });
            }
        });
    }

    /// Every key is what it has to be, at every gateway.
    fn compare(&self, addresses: &[SocketAddr]) {
        for (index, state) in self.known.iter().enumerate() {
            let (state, key) = (state.lock().unwrap(), Load::key(index));
            let found: BTreeSet<Option<u64>> = addresses.iter().map(|address| get(*address, &key)).collect();
            assert_eq!(found.len(), 1, "{key}: {found:?}");
            let found = found.into_iter().next().flatten().unwrap_or(0);
            let is_possible = found == state.acknowledged || state.unknown.contains(&found);
            assert!(
                is_possible,
                "{key}: found {found}, acknowledged {}, unknown {:?}",
                state.acknowledged, state.unknown
            );
        }
    }
}

#[test]
fn killed_or_paused_gateways_lose_nothing() {
    let site = Site::new("write = \"back\"\nflush_after = \"100 ms\"");
    let (a, mut b) = (site.gateway("a"), site.gateway("b"));
    let addresses = [a.address, b.address];
    wait_until("both have a share", || {
        slots(&a, "served_slots") + slots(&b, "served_slots") == 256 && slots(&b, "served_slots") > 50
    });
    let load = Load { known: (0..24).map(|_| Mutex::default()).collect(), is_over: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let over = Over(&load.is_over);
        let running = scope.spawn(|| load.run(&addresses, true));
        std::thread::sleep(Duration::from_secs(4));
        // Killed under load, and back at once: the lease that it had has to end first.
        b.kill_and_start();
        std::thread::sleep(Duration::from_secs(2));
        // Paused for much longer than its lease, with connections and writes in flight, and let go on where it was.
        b.pause();
        std::thread::sleep(Duration::from_secs(TTL_S * 2));
        b.go_on();
        std::thread::sleep(Duration::from_secs(4));
        // Again, and killed in the middle of it.
        b.pause();
        std::thread::sleep(Duration::from_secs(TTL_S + 2));
        b.kill_and_start();
        std::thread::sleep(Duration::from_secs(2));
        drop(over);
        running.join().unwrap();
    });
    load.compare(&addresses);
    let acknowledged: u64 = load.known.iter().map(|state| state.lock().unwrap().acknowledged).sum();
    assert!(acknowledged > 100, "{acknowledged}");
}

#[test]
fn data_only_on_dead_gateway_is_waited_for() {
    let site = Site::new("write = \"back\"\nflush_after = \"3600 s\"");
    let (a, mut b) = (site.gateway("a"), site.gateway("b"));
    wait_until("both have a share", || {
        slots(&a, "served_slots") + slots(&b, "served_slots") == 256 && slots(&b, "served_slots") > 50
    });
    for (version, key) in (1..).zip(keys()) {
        put(a.address, &key, version);
    }
    let dirty = slots(&b, "dirty_slots");
    assert!(dirty > 0 && dirty < 30, "{dirty}");
    b.kill();
    // Its clean slots move, its dirty ones don't.
    wait_until("the clean slots have moved", || {
        slots(&a, "nowhere_slots") == dirty && slots(&a, "served_slots") == 256 - dirty
    });
    let (mut here, mut waiting) = (0, Vec::new());
    for (version, key) in (1..).zip(keys()) {
        let reply = ask(a.address, "GET", &format!("/lake/{key}"), &[], b"").unwrap();
        match reply.status {
            200 => {
                assert_eq!(version_of(&key, &reply.body), version);
                here += 1;
            }
            // Never that it is not there.
            503 => waiting.push((key, version)),
            status => panic!("{key}: {status} {}", reply.text()),
        }
    }
    assert!(here > 0 && !waiting.is_empty(), "{here} {waiting:?}");
    assert_eq!(ask(a.address, "PUT", &format!("/lake/{}", waiting[0].0), &[], b"x").unwrap().status, 503);
    // A listing without them would be a lie; one of a prefix that is here is none.
    assert_eq!(ask(a.address, "GET", "/lake?list-type=2&prefix=", &[], b"").unwrap().status, 503);
    let members = command()
        .arg("members")
        .arg(a.config())
        .env("GATEWAY_SECRET", crate::program::SECRET)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&members.stdout).into_owned();
    assert!(printed.contains("b  gone") && printed.contains(&format!("{dirty} of them with")), "{printed}");
    b.start_again();
    for (key, version) in &waiting {
        assert_eq!(get(a.address, key), Some(*version), "{key}");
    }
    assert_eq!(list(a.address, "", false).len(), keys().len());

    // Nobody is given up who is there.
    let abandon = |name: &str| {
        let output = command()
            .arg("abandon")
            .arg(a.config())
            .arg(name)
            .env("GATEWAY_SECRET", crate::program::SECRET)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, printed) = abandon("b");
    assert!(code == Some(4) && printed.contains("gateway b is there"), "{printed}");
    put(a.address, &waiting[0].0, 500);
    b.kill();
    wait_until("it is gone", || slots(&a, "nowhere_slots") > 0);
    // The other gateway may take a slot just now: then it is to be repeated.
    let is_repeated = |printed: &str| printed.contains("something has changed in etcd at the same time");
    let mut abandoned = (0..20).map(|_| abandon("b")).skip_while(|(_, printed)| is_repeated(printed));
    let (code, printed) = abandoned.next().expect("something changes again and again");
    assert!(code == Some(0) && printed.contains("are lost"), "{printed}");
    wait_until("all is here", || slots(&a, "served_slots") == 256);
    // What the store had stays, and what it had not is lost, as was said.
    assert_eq!(get(a.address, &waiting[0].0), None);
    put(a.address, &waiting[0].0, 501);
    // The one that was given up has what nobody may see any more.
    let log = b.start_in_vain();
    assert!(log.contains("given up by") && log.contains("what to do"), "{log}");
    assert_eq!(get(a.address, &waiting[0].0), Some(501));
}

#[test]
fn cluster_without_etcd_stops_answering_and_loses_nothing() {
    let mut site = Site::new("write = \"back\"\nflush_after = \"200 ms\"");
    let (mut a, b) = (site.gateway("a"), site.gateway("b"));
    let addresses = [a.address, b.address];
    wait_until("both have a share", || {
        slots(&a, "served_slots") + slots(&b, "served_slots") == 256 && slots(&b, "served_slots") > 50
    });
    let load = Load { known: (0..12).map(|_| Mutex::default()).collect(), is_over: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let over = Over(&load.is_over);
        let running = scope.spawn(|| load.run(&addresses, false));
        std::thread::sleep(Duration::from_secs(2));
        site.etcd.kill();
        wait_until("the leases are over", || {
            addresses.iter().all(|address| {
                ask(*address, "GET", "/lake/load0/key", &[], b"").is_ok_and(|reply| reply.status == 503)
            })
        });
        // What it answers for a key of the other says nothing of its own lease.
        wait_until("it is not ready", || {
            a.ask("/health/ready", "").is_some_and(|reply| reply.starts_with("HTTP/1.1 503"))
        });
        site.etcd.go_on();
        wait_until("they are back", || {
            addresses.iter().all(|address| {
                ask(*address, "GET", "/lake/load0/key", &[], b"").is_ok_and(|reply| reply.status == 200)
            })
        });
        // And a gateway dies while etcd is down, and starts before it is up.
        site.etcd.kill();
        a.kill();
        a.start_again_without_waiting();
        std::thread::sleep(Duration::from_secs(TTL_S));
        site.etcd.go_on();
        a.wait_ready();
        drop(over);
        running.join().unwrap();
    });
    load.compare(&addresses);
    // Etcd with older data may say of a slot that it is clean, which is not: everybody stops, also where etcd is soon
    // as far as it was.
    wait_until("all slots are clean", || [&a, &b].iter().all(|program| slots(program, "dirty_slots") == 0));
    site.etcd.kill();
    site.etcd.keep();
    site.etcd.go_on();
    put(a.address, "load0/key", 1_000_000);
    site.etcd.kill();
    site.etcd.bring_back();
    site.etcd.go_on();
    site.etcd.advance(200);
    let log_of = |program: &Program| {
        std::fs::read_to_string(program.directory.join("gateway.toml.log")).unwrap_or_default()
    };
    for program in [&a, &b] {
        wait_until("it has noticed", || {
            let log = log_of(program);
            log.contains("etcd is older than it was") || log.contains("a gateway has stopped the cluster")
        });
        assert_eq!(ask(program.address, "GET", "/lake/load0/key", &[], b"").unwrap().status, 503);
    }
    // Etcd that has forgotten everything is no new cluster.
    site.etcd.kill();
    site.etcd.lose();
    site.etcd.go_on();
    std::thread::sleep(Duration::from_secs(TTL_S * 2));
    for address in addresses {
        assert_eq!(ask(address, "GET", "/lake/load0/key", &[], b"").unwrap().status, 503);
    }
    a.kill();
    let log = a.start_in_vain();
    assert!(log.contains("etcd no longer has the cluster"), "{log}");
    // What is here can be stored all the same, where somebody vouches for what etcd can't say.
    let drain = |more: &[&str]| {
        let output = command()
            .args(["drain", "--without-etcd"])
            .args(more)
            .arg(a.config())
            .env("GATEWAY_SECRET", crate::program::SECRET)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, printed) = drain(&[]);
    assert!(code == Some(4) && printed.contains("repeat this with --not-abandoned"), "{printed}");
    let (code, printed) = drain(&["--not-abandoned"]);
    assert_eq!(code, Some(0), "{printed}");
    assert!(site.objects.join("%underlay-cluster").exists());
}

/// An upload that was left behind keeps its slot here; the rest is handed over, and nobody waits for it.
#[test]
fn stopping_gateway_ignores_abandoned_upload() {
    let site = Site::new("write = \"back\"");
    let sections = site.sections("a").replace("drain = \"60 s\"", "drain = \"1 h\"");
    let directory = site.directory.path().join("a");
    std::fs::create_dir_all(&directory).unwrap();
    let mut program = Program::start(&directory, &sections);
    let begun = insist(program.address, "POST", "/lake/left/behind?uploads=", &[], b"");
    let upload = begun.tag("UploadId").unwrap();
    put(program.address, "a", 1);
    program.terminate();
    let (status, log) = program.wait_end();
    assert!(status.success(), "{log}");
    let line = format!("1 uploads are unfinished, and their parts are here: {upload} to lake/left/behind");
    assert!(log.contains(&line), "{log}");
    assert!(site.objects.join("a").exists());
}
