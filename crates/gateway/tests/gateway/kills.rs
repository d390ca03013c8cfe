//! SIGKILL under load. A child runs the engine over a store that fails, stalls and, in some rounds, lies, and says
//! before and after each operation what it does. It is killed at any moment, the opening included, and opened again:
//! exactly the acknowledged objects are there, byte for byte, and reads beside the writes find nothing else either.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use underlay_gateway::engine::{
    CompletedPart, CopyRequest, GatewayEngine, ListEntry, ListRequest, WriteConditions,
};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::BackendKind;
use underlay_sync::Mutex;

use crate::rig::{BUCKET, Ground, body_of, content, delete, get, in_directory, put};

const CHILD: &str = "UNDERLAY_GATEWAY_KILLED_CHILD";
/// `make gateway-kills` sets more.
const KILLS: &str = "UNDERLAY_GATEWAY_KILLS";
const KEYS: u64 = 12;
/// Where the child reads what it begins with, beside the store.
const KNOWN: &str = "known";
/// What the store takes in parts.
const LONG: usize = 9 << 20;

/// What an object may be: its seed and size, or nothing.
type State = Option<(u64, usize)>;

fn bytes_of(state: State) -> Option<Bytes> {
    state.map(|(seed, size)| content(seed, size))
}

/// Every third round the store lies.
fn is_lying(round: u64) -> bool {
    round % 3 == 1
}

/// Every fourth has objects that go to the store in parts.
fn has_long(round: u64) -> bool {
    round % 4 == 2
}

fn ground(store: &Path) -> Ground {
    let mut ground = Ground::new(in_directory(store), BackendKind::Directory);
    ground.write = underlay_gateway::config::WriteMode::Back { after: Duration::from_millis(3) };
    ground.journal_bytes = 1 << 30;
    // Who asks again for an object of many blocks need not have all of them anew.
    ground.memory_bytes = 64 << 20;
    ground
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}

/// One line, by one write: a kill cuts between lines at worst in one, which then has no end.
fn say(line: &str) {
    std::io::stdout().write_all(format!("@{line}\n").as_bytes()).unwrap();
}

fn name(key: u64) -> String {
    format!("dir{}/key{key}", key % 3)
}

/// What the objects are and were, for those who read beside the writes.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<u64, History>>);

/// Of a key: its states from the beginning on, the last of which may be in flight still.
#[derive(Default)]
struct History {
    states: Vec<State>,
    settled: usize,
}

impl Seen {
    fn read(path: &Path) -> Seen {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut seen: BTreeMap<u64, History> =
            (0..KEYS).map(|key| (key, History { states: vec![None], settled: 0 })).collect();
        for line in text.lines() {
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            seen.insert(words[0], History { states: vec![Some((words[1], words[2] as usize))], settled: 0 });
        }
        Seen(Mutex::new(seen))
    }

    fn with<T>(&self, key: u64, work: impl FnOnce(&mut History) -> T) -> T {
        work(self.0.lock().entry(key).or_default())
    }

    fn begin(&self, key: u64, state: State) {
        self.with(key, |history| history.states.push(state));
    }

    fn done(&self, key: u64) {
        self.with(key, |history| history.settled = history.states.len() - 1);
    }

    fn now(&self, key: u64) -> State {
        self.with(key, |history| history.states[history.settled])
    }

    /// Reads an object: it has to be what it is or becomes meanwhile. That the store gives nothing now is no answer,
    /// and no harm.
    async fn check(&self, engine: &Arc<GatewayEngine>, key: u64) {
        let settled_before = self.with(key, |history| history.settled);
        let found = match get(engine, &name(key), None).await {
            Ok(bytes) => Some(bytes),
            Err(GatewayError::NoSuchKey) => None,
            Err(GatewayError::Store(_) | GatewayError::StoreAway(_)) => return,
            Err(error) => return say(&format!("wrong {key}: {error}")),
        };
        let possible = self.with(key, |history| history.states[settled_before..].to_vec());
        if !possible.iter().any(|state| bytes_of(*state) == found) {
            say(&format!("wrong {key}: {:?} bytes, of {possible:?}", found.map(|bytes| bytes.len())));
        }
    }
}

/// The child: does as it likes until it is killed. It begins with what its directory has.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let (directory, seed) = arguments.rsplit_once(':').unwrap();
    let (directory, seed): (&Path, u64) = (Path::new(directory), seed.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let ground = ground(&directory.join("store"));
        ground.mood.failing.store(200, Ordering::Relaxed);
        ground.mood.stalling.store(200, Ordering::Relaxed);
        if is_lying(seed) {
            ground.mood.failing.store(50, Ordering::Relaxed);
            ground.mood.lying.store(150, Ordering::Relaxed);
        }
        let engine = ground.open(&directory.join("local")).await;
        let seen = Arc::new(Seen::read(&directory.join(KNOWN)));
        say("open");
        let mut tasks = Vec::new();
        // Each has keys of its own, so that the order of its operations is known.
        for worker in 0..3_u64 {
            let (engine, seen) = (Arc::clone(&engine), Arc::clone(&seen));
            tasks.push(tokio::spawn(async move {
                let mut random = Random(seed_of(seed, worker));
                loop {
                    operate(&engine, &seen, worker, has_long(seed), &mut random).await;
                }
            }));
        }
        for reader in 3..5 {
            let (engine, seen) = (Arc::clone(&engine), Arc::clone(&seen));
            tasks.push(tokio::spawn(async move {
                let mut random = Random(seed_of(seed, reader));
                loop {
                    seen.check(&engine, random.below(KEYS)).await;
                    // What is in the journal or the cache is there at once, and the others want their turn.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }));
        }
        // They go on until the kill.
        let (ended, ..) = futures_util::future::select_all(tasks).await;
        say(&format!("wrong: {:?}", ended.map_err(|error| error.to_string())));
    });
}

fn seed_of(round: u64, task: u64) -> u64 {
    round.wrapping_mul(1000) + task
}

async fn operate(engine: &Arc<GatewayEngine>, seen: &Seen, worker: u64, has_long: bool, random: &mut Random) {
    let mut key = || random.below(KEYS / 3) * 3 + worker;
    let (target, other) = (key(), key());
    let (name_at, name_other) = (name(target), name(other));
    let sizes = [0, 100, 5000, 66_000, 200_000];
    let (seed, size) = (random.below(u64::MAX / 4), sizes[random.below(sizes.len() as u64) as usize]);
    let size = if has_long && random.below(3) == 0 { LONG } else { size };
    match random.below(10) {
        0..5 => {
            say(&format!("put {target} {seed} {size}"));
            seen.begin(target, Some((seed, size)));
            put(engine, &name_at, &content(seed, size), WriteConditions::default()).await.unwrap();
        }
        5 | 6 if target != other => {
            say(&format!("copy {target} {other}"));
            let state = seen.now(target);
            if state.is_some() {
                seen.begin(other, state);
            }
            let request = CopyRequest {
                from: (BUCKET.to_owned(), name_at),
                to: (BUCKET.to_owned(), name_other),
                ..CopyRequest::default()
            };
            match engine.copy(request).await {
                Ok(_) if state.is_some() => {}
                Err(GatewayError::NoSuchKey) if state.is_none() => return say(&format!("nothing {other}")),
                outcome => {
                    return say(&format!("wrong {target}: copied as {outcome:?}, and it is {state:?}"));
                }
            }
            seen.done(other);
            return say(&format!("done {other}"));
        }
        7 => {
            let size = if has_long { LONG } else { 5 << 20 };
            say(&format!("put {target} {seed} {size}"));
            seen.begin(target, Some((seed, size)));
            let upload = engine
                .create_upload(BUCKET, &name_at, ObjectHeaders::default(), Vec::new(), None)
                .await
                .unwrap();
            let bytes = content(seed, size);
            let stored = engine
                .upload_part(
                    BUCKET,
                    &name_at,
                    &upload,
                    1,
                    size as u64,
                    &[],
                    body_of(&bytes),
                    Box::new(|_, _| Ok(())),
                )
                .await
                .unwrap();
            let parts =
                vec![CompletedPart { number: 1, etag: stored.etag, checksums: ObjectChecksums::default() }];
            engine
                .complete_upload(
                    BUCKET,
                    &name_at,
                    &upload,
                    parts,
                    WriteConditions::default(),
                    ObjectChecksums::default(),
                    None,
                )
                .await
                .unwrap();
        }
        8 => return seen.check(engine, target).await,
        _ => {
            say(&format!("delete {target}"));
            seen.begin(target, None);
            delete(engine, &name_at).await.unwrap();
        }
    }
    seen.done(target);
    say(&format!("done {target}"));
}

/// What is known from the child's lines: what was acknowledged, and what may have been done besides.
#[derive(Default)]
struct Known {
    acknowledged: BTreeMap<u64, State>,
    under_way: BTreeMap<u64, State>,
}

impl Known {
    fn read(&mut self, line: &str) {
        let Some(line) = line.strip_prefix('@') else { return };
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        let now = |model: &Known, key: u64| model.acknowledged.get(&key).copied().flatten();
        match words[0] {
            "put" => drop(self.under_way.insert(number(1), Some((number(2), number(3) as usize)))),
            "delete" => drop(self.under_way.insert(number(1), None)),
            "copy" => {
                let state = now(self, number(1));
                self.under_way.insert(number(2), state);
            }
            "done" => {
                if let Some(state) = self.under_way.remove(&number(1)) {
                    self.acknowledged.insert(number(1), state);
                }
            }
            "nothing" => drop(self.under_way.remove(&number(1))),
            "wrong" => panic!("{line}"),
            _ => {}
        }
    }

    /// What was found is what was, from now on.
    async fn compare(&mut self, engine: &Arc<GatewayEngine>, may_fail: bool, round: u64) {
        for key in 0..KEYS {
            let acknowledged = self.acknowledged.get(&key).copied().flatten();
            let possible = match self.under_way.get(&key) {
                Some(state) => vec![acknowledged, *state],
                None => vec![acknowledged],
            };
            let mut tries = 0;
            let found = loop {
                match get(engine, &name(key), None).await {
                    Ok(bytes) => break Some(bytes),
                    Err(GatewayError::NoSuchKey) => break None,
                    Err(GatewayError::Store(_) | GatewayError::StoreAway(_)) if may_fail && tries < 1000 => {
                        tries += 1
                    }
                    Err(error) => panic!("round {round}, {}: {error}", name(key)),
                }
            };
            let state = possible.iter().find(|state| bytes_of(**state) == found);
            let state = state.unwrap_or_else(|| {
                panic!(
                    "round {round}, {}: found {:?} bytes, expected one of {possible:?}",
                    name(key),
                    found.map(|bytes| bytes.len())
                )
            });
            self.acknowledged.insert(key, *state);
        }
        self.under_way.clear();
        self.compare_names(engine, round).await;
    }

    /// LIST and HEAD say the same as GET.
    async fn compare_names(&self, engine: &Arc<GatewayEngine>, round: u64) {
        let listing =
            engine.list(BUCKET, &ListRequest { most: 1000, ..ListRequest::default() }).await.unwrap();
        let listed: BTreeMap<String, u64> = listing
            .entries
            .iter()
            .map(|entry| match entry {
                ListEntry::Object(key, record) => (key.clone(), record.size_bytes),
                other => panic!("round {round}: {}", other.name()),
            })
            .collect();
        let expected = self.acknowledged.iter();
        let expected: BTreeMap<String, u64> =
            expected.filter_map(|(key, state)| Some((name(*key), state.as_ref()?.1 as u64))).collect();
        assert_eq!(listed, expected, "round {round}");
        for key in 0..KEYS {
            let head = engine.resolve(BUCKET, &name(key)).await.map(|resolved| resolved.record.size_bytes);
            assert_eq!(head.ok(), expected.get(&name(key)).copied(), "round {round}, {}", name(key));
        }
    }

    /// For the next child.
    fn write(&self, path: &Path) {
        let entries = self.acknowledged.iter();
        let lines =
            entries.filter_map(|(key, state)| state.map(|(seed, size)| format!("{key} {seed} {size}\n")));
        std::fs::write(path, lines.collect::<String>()).unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_kills() {
    let kills: u64 = std::env::var(KILLS).ok().map_or(12, |text| text.parse().expect("a number of kills"));
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut model, mut random) = (Known::default(), Random(42));
    for round in 0..kills {
        let argument = format!("{}:{round}", directory.path().display());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::child", "--nocapture", "--quiet"])
            .env(CHILD, argument)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        // Every fourth is killed while it opens, the others while they work.
        let wait = match round % 4 {
            3 => random.below(60),
            _ => {
                let mut line = String::new();
                while !line.contains("@open") {
                    line.clear();
                    assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended before it had opened");
                }
                random.below(if has_long(round) { 1500 } else { 400 })
            }
        };
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
            model.read(line.trim_end());
            line.clear();
        }
        runtime.block_on(async {
            let ground = ground(&directory.path().join("store"));
            // The store is no better while we look.
            ground.mood.failing.store(100, Ordering::Relaxed);
            ground.mood.lying.store(if is_lying(round) { 100 } else { 0 }, Ordering::Relaxed);
            let engine = ground.open(&directory.path().join("local")).await;
            model.compare(&engine, true, round).await;
            engine.close().await;
        });
        model.write(&directory.path().join(KNOWN));
    }
    runtime.block_on(async {
        let ground = ground(&directory.path().join("store"));
        let engine = ground.open(&directory.path().join("local")).await;
        ground.drain(&engine).await;
        model.compare(&engine, false, kills).await;
        let expected: BTreeMap<String, Bytes> = model
            .acknowledged
            .iter()
            .filter_map(|(key, state)| Some((name(*key), bytes_of(*state)?)))
            .collect();
        let stored: BTreeMap<String, Bytes> = ground.stored().await.into_iter().collect();
        assert!(stored.keys().eq(expected.keys()), "{:?} and {:?}", stored.keys(), expected.keys());
        assert!(stored == expected);
    });
}
