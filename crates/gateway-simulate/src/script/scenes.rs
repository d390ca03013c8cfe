//! Sequences of common steps that seldom arise by chance. A scene may change the set-up.

use super::chances::{MIB, one_in, some_u32};
use super::{
    BodyFraming, BodyPace, ClientCondition, ClientHeaders, ClientOperation, RuleConsistency, ScriptPart,
    ScriptSetup, ScriptStep, StoreFaults, StoreKind, UploadEnd,
};
use crate::world::SplitMix64;

/// Numbers of the keys in scenes: see `client::KEYS`.
const A: u32 = 0;
const B: u32 = 1;
const RAW: u32 = 7;
const TMP: u32 = 10;
const TMP_LAST: u32 = 11;
const BEHIND: u32 = 12;
const CAPITAL: u32 = 13;
const BIG: u32 = 15;
const FROM: u32 = 18;
const TO: u32 = 19;
/// More than a gateway with the least memory keeps pending.
const MANY_NAMES: u32 = 17_000;
/// As many keys as S3 itself lists on a page.
const MIN_LONG_PAGE: usize = 1000;

type SceneFunction = fn(&mut ScriptSetup, &mut SplitMix64) -> Vec<ScriptStep>;

/// Names, and how often each scene comes.
const SCENES: [(&str, SceneFunction, u64); 17] = [
    ("odd-headers", odd_headers, 3),
    ("failed-sync", failed_sync, 6),
    ("one-chunk", one_chunk, 3),
    ("last-character", last_character, 3),
    ("copies-above-the-limit", copies_above_the_limit, 3),
    ("long-headers", long_headers, 2),
    ("full-disk", full_disk, 4),
    ("rules", rules_come_and_go, 6),
    ("rescued", rescued, 3),
    ("greedy", greedy, 3),
    ("late-answers", late_answers, 6),
    ("large-objects", large_objects, 3),
    ("renames", renames, 3),
    ("linked", linked, 3),
    ("folding", folding, 1),
    ("several-gateways", several_gateways, 6),
    ("many-names", many_names, 1),
];

/// The names of all scenes.
pub fn scene_names() -> impl Iterator<Item = &'static str> {
    SCENES.iter().map(|(name, ..)| *name)
}

/// The scene of this name, or a random one.
pub(super) fn draw(
    setup: &mut ScriptSetup,
    random: &mut SplitMix64,
    wanted: Option<&str>,
) -> Vec<ScriptStep> {
    let mut remaining = random.below(SCENES.iter().map(|(_, _, weight)| weight).sum());
    for (name, scene, weight) in SCENES {
        match (wanted, remaining.checked_sub(weight)) {
            (Some(wanted), _) if wanted != name => {}
            (Some(_), _) | (None, None) => return scene(setup, random),
            (None, Some(left)) => remaining = left,
        }
    }
    Vec::new()
}

fn act(client: usize, operation: ClientOperation) -> ScriptStep {
    ScriptStep::Do { client, operation }
}

fn put(key: u32, size: u32) -> ClientOperation {
    ClientOperation::Put {
        key,
        size,
        condition: ClientCondition::None,
        headers: ClientHeaders::Plain,
        framing: BodyFraming::Whole,
        pace: BodyPace::Full,
    }
}

fn put_with(key: u32, size: u32, headers: ClientHeaders) -> ClientOperation {
    ClientOperation::Put {
        key,
        size,
        condition: ClientCondition::None,
        headers,
        framing: BodyFraming::Whole,
        pace: BodyPace::Full,
    }
}

fn copy(from: u32, to: u32) -> ClientOperation {
    ClientOperation::Copy { from, to, replaces_headers: false, condition: ClientCondition::None }
}

fn get(key: u32) -> ClientOperation {
    ClientOperation::Get { key, range: None, pace: BodyPace::Full }
}

fn probe(key: u32, within_ms: u64) -> ClientOperation {
    ClientOperation::Probe { key, within_ms }
}

fn wait(ms: u64) -> ScriptStep {
    ScriptStep::Wait { ms }
}

fn writes_back(setup: &mut ScriptSetup) {
    setup.settings.write_back_ms = Some(1000);
    setup.settings.consistency = RuleConsistency::Exclusive;
}

/// Objects with headers that no request can carry.
fn odd_headers(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    let mut steps = Vec::new();
    for key in 0..1 + random.below(8) as u32 {
        steps.push(act(0, put_with(key, 16, ClientHeaders::EncodedLineFeed)));
    }
    steps.extend([wait(5000), act(0, put(A, 100)), wait(10_000)]);
    steps
}

/// A failed sync, a start that could rely on lost pages, and a power cut.
fn failed_sync(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    let gateway = 0;
    let mut steps = vec![ScriptStep::Heal];
    if one_in(random, 2) {
        // These names fill several pages, and later writes leave some of them alone.
        steps.push(act(0, ClientOperation::Many { count: 100 + random.below(300) as u32 }));
    }
    steps.extend([ScriptStep::Barrier, ScriptStep::FailSyncs { gateway, count: 1 + random.below(2) as u32 }]);
    for _ in 0..1 + random.below(5) {
        // An empty object reaches the metadata; with a body, its segment's sync would fail first.
        let size = *random.pick(&[0, 0, 100]);
        steps.push(act(0, put(random.below(5) as u32, size)));
    }
    steps.push(wait(3000));
    if one_in(random, 2) {
        steps.extend([ScriptStep::Kill { gateway }, ScriptStep::Start { gateway }]);
    }
    if one_in(random, 2) {
        steps.extend((0..random.below(5)).map(|_| act(0, put(BEHIND, 5000))));
    }
    steps.push(ScriptStep::Barrier);
    if one_in(random, 3) {
        steps.push(ScriptStep::DropPages { gateway });
        steps.extend((0..5).map(|key| act(0, get(key))));
        steps.push(ScriptStep::Barrier);
    }
    steps.extend([ScriptStep::CutPower { gateway }, ScriptStep::Start { gateway }]);
    steps.extend((0..5).map(|key| act(0, get(key))));
    steps
}

/// Bodies of one chunk, some of them slow, and endless documents.
fn one_chunk(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    let framing = match one_in(random, 2) {
        true => BodyFraming::Signed { chunk_bytes: 64 << 20 },
        false => BodyFraming::Trailer { chunk_bytes: 64 << 20 },
    };
    let slow = ClientOperation::Put {
        key: A,
        size: 3 << 20,
        condition: ClientCondition::None,
        headers: ClientHeaders::Plain,
        framing,
        pace: BodyPace::Slow { bytes_per_s: 30_000 },
    };
    let document = ClientOperation::Document { bytes: 64 << 20, pace: BodyPace::Full };
    vec![ScriptStep::Heal, act(0, slow), act(setup.clients - 1, document), ScriptStep::Barrier]
}

/// A key whose group ends with the last character of Unicode.
fn last_character(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    if one_in(random, 2) {
        setup.settings.rules = vec![("tmp/".to_owned(), RuleConsistency::Revalidate)];
    }
    let list = |page| ClientOperation::List { prefix: 0, has_delimiter: true, page };
    vec![
        act(0, put(TMP, 16)),
        act(0, put(TMP_LAST, 16)),
        act(0, put(BEHIND, 16)),
        act(0, list(1000)),
        act(0, list(*random.pick(&[1, 2]))),
        ScriptStep::Barrier,
    ]
}

/// Copies that the store refuses, as S3 does above 5 GiB.
fn copies_above_the_limit(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.store.most_copy_bytes = Some(MIB / 2);
    let mut steps = vec![
        ScriptStep::Heal,
        act(0, put(BIG, MIB as u32)),
        ScriptStep::Barrier,
        wait(20_000),
        act(0, copy(BIG, TO)),
    ];
    if one_in(random, 2) {
        steps.extend([ScriptStep::Barrier, act(0, ClientOperation::Delete { key: BIG })]);
    }
    steps.push(wait(60_000));
    steps
}

fn long_headers(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    let bytes = *random.pick(&[6000, 7300, 8100, 9000, 20_000, 50_000]);
    vec![act(0, put_with(B, 16, ClientHeaders::Long { bytes })), wait(5000), act(0, get(B))]
}

/// Objects with and without bodies fill the disk while the store is down.
fn full_disk(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.settings.disk_bytes = 256 * MIB;
    setup.settings.journal_bytes = 512 * MIB;
    setup.settings.requests = 32;
    setup.settings.rules.clear();
    setup.clients = 4;
    let gateway = 0;
    let mut steps = vec![
        ScriptStep::Heal,
        ScriptStep::Start { gateway },
        wait(2000),
        ScriptStep::Store(StoreFaults { is_down: true, ..StoreFaults::default() }),
        // With next to no room left, an empty object finds out first.
        ScriptStep::FillDisk {
            gateway,
            left_bytes: *random.pick(&[70 * MIB, 80 * MIB, 90 * MIB, 0, 16 << 10, MIB]),
        },
    ];
    for number in 0..8 {
        steps.push(act(number % 4, put(number as u32, 5 << 20)));
    }
    for number in 0..60 {
        let headers = ClientHeaders::Long { bytes: 6900 };
        steps.push(act(number % 4, put_with((number % 10) as u32, 0, headers)));
    }
    if !one_in(random, 4) {
        steps.extend([
            wait(5000),
            ScriptStep::FillDisk { gateway, left_bytes: *random.pick(&[0, MIB, 20 * MIB]) },
        ]);
        steps
            .extend((0..4).map(|client| {
                act(client, ClientOperation::Begin { key: A, count: 300, header_bytes: 6900 })
            }));
        steps.push(ScriptStep::Barrier);
    }
    steps.push(wait(20_000));
    if one_in(random, 2) {
        steps.extend([ScriptStep::Kill { gateway }, ScriptStep::Start { gateway }, wait(5000)]);
    }
    steps.extend([ScriptStep::Store(StoreFaults::default()), wait(60_000)]);
    steps
}

/// Between starts a rule is removed, narrowed or restored.
fn rules_come_and_go(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    let gateway = 0;
    let shared = *random.pick(&[RuleConsistency::Revalidate, RuleConsistency::Ttl { ms: 3000 }]);
    let rules = [
        vec![("raw/".to_owned(), shared)],
        // Removed; below that, narrowed, and with another consistency.
        Vec::new(),
        vec![("raw/x/".to_owned(), shared)],
        vec![("raw/".to_owned(), RuleConsistency::Exclusive)],
    ];
    setup.settings.consistency = RuleConsistency::Exclusive;
    setup.settings.rules = rules[0].clone();
    let mut steps = Vec::new();
    for _ in 0..1 + random.below(3) {
        for key in RAW..RAW + 3 {
            steps.push(act(0, put(key, 16 + some_u32(random) % 5000)));
        }
        if one_in(random, 2) {
            steps.push(act(0, ClientOperation::Others { key: RAW, size: Some(50) }));
        }
        steps.push(ScriptStep::Barrier);
        let mut settings = setup.settings.clone();
        settings.rules = random.pick(&rules).clone();
        settings.consistency = match one_in(random, 4) {
            true => shared,
            false => RuleConsistency::Exclusive,
        };
        let end =
            if one_in(random, 3) { ScriptStep::Kill { gateway } } else { ScriptStep::Terminate { gateway } };
        steps.extend([
            end,
            // Longer than the gateway may take to drain.
            wait(90_000),
            ScriptStep::Configure(settings),
            ScriptStep::Start { gateway },
            wait(10_000),
        ]);
        for key in RAW..RAW + 3 {
            steps.push(act(0, get(key)));
        }
        let list = ClientOperation::List { prefix: 2, has_delimiter: false, page: 1000 };
        let if_absent = ClientOperation::Put {
            key: RAW,
            size: 20,
            condition: ClientCondition::IfAbsent,
            headers: ClientHeaders::Plain,
            framing: BodyFraming::Whole,
            pace: BodyPace::Full,
        };
        steps.extend([
            act(0, list),
            act(0, if_absent),
            act(0, ClientOperation::Delete { key: RAW + 1 }),
            ScriptStep::Barrier,
        ]);
    }
    steps
}

/// Uploads that copy a byte of deleted objects.
fn rescued(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.settings.journal_bytes = 16 * MIB;
    setup.settings.disk_bytes = 1024 * MIB;
    setup.settings.uploads_expire_s = 7 * 24 * 3600;
    let mut steps = vec![ScriptStep::Heal];
    let keys = [BIG, BIG + 1, BIG + 2];
    for key in keys {
        steps.extend([act(0, put(key, 10 << 20)), ScriptStep::Barrier, wait(20_000)]);
    }
    for key in keys {
        let parts = vec![ScriptPart::Copied { from: key, at: some_u32(random), size: 1 }];
        steps.push(act(0, ClientOperation::Upload { key: A, parts, end: UploadEnd::Leave }));
        steps.push(act(0, ClientOperation::Delete { key }));
    }
    steps.extend([ScriptStep::Barrier, wait(300_000), act(0, probe(B, 600_000)), ScriptStep::Barrier]);
    steps
}

/// Clients that occupy shared resources, and one that has to be served.
fn greedy(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.settings.requests = 4;
    setup.settings.journal_bytes = 32 * MIB;
    setup.clients = 8;
    let ms = 1_200_000;
    let kind = random.below(6);
    let one = |number: usize| match kind {
        0 => ClientOperation::Document { bytes: 64 << 10, pace: BodyPace::Stalled { ms } },
        1 => ClientOperation::Get { key: BIG, range: None, pace: BodyPace::Stalled { ms } },
        2 => ClientOperation::Put {
            key: 2 + number as u32,
            size: 8 << 20,
            condition: ClientCondition::None,
            headers: ClientHeaders::Plain,
            framing: BodyFraming::Whole,
            pace: BodyPace::Stalled { ms },
        },
        3 => ClientOperation::Idle { connections: 300, ms: ms / 2 },
        4 => ClientOperation::Forged { key: BIG, count: 300 },
        _ => ClientOperation::Put {
            key: 2 + number as u32,
            size: 6 << 20,
            condition: ClientCondition::None,
            headers: ClientHeaders::Plain,
            framing: BodyFraming::Whole,
            pace: BodyPace::Slow { bytes_per_s: 100 },
        },
    };
    let mut steps = vec![ScriptStep::Heal, act(0, put(BIG, 4 << 20)), ScriptStep::Barrier];
    steps.extend((1..8).map(|number| act(number, one(number))));
    steps.extend([wait(2000), act(0, probe(A, 900_000)), wait(400_000), act(0, probe(B, 900_000))]);
    steps
}

/// Requests that the store carries out after reporting their failure, and newer versions of the same objects.
fn late_answers(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    setup.settings.consistency = RuleConsistency::Exclusive;
    if one_in(random, 4) {
        setup.settings.write_back_ms = None;
    } else {
        setup.settings.write_back_ms = Some(100);
    }
    let late = StoreFaults { landing_late: 700, late_ms: 100_000, ..StoreFaults::default() };
    let key = random.below(3) as u32;
    let mut steps = vec![ScriptStep::Barrier, ScriptStep::Store(late), act(0, put(key, 100))];
    steps.push(wait(*random.pick(&[1000, 3000])));
    if one_in(random, 2) {
        steps.push(ScriptStep::Store(StoreFaults::default()));
    }
    steps.push(match one_in(random, 3) {
        true => act(0, ClientOperation::Delete { key }),
        false => act(0, put(key, 5000)),
    });
    if one_in(random, 3) {
        steps.extend([wait(4000), ScriptStep::Kill { gateway: 0 }, ScriptStep::Start { gateway: 0 }]);
    }
    steps.push(wait(5000));
    steps.extend([ScriptStep::Store(StoreFaults::default()), wait(130_000), act(0, get(key))]);
    steps
}

/// Large objects on their way to a slow store, in parts and several at once.
fn large_objects(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.settings.flushes = 8;
    setup.settings.memory_bytes = 16 * MIB;
    setup.settings.journal_bytes = 256 * MIB;
    setup.settings.disk_bytes = 4096 * MIB;
    let slow = StoreFaults { stalling: 1000, stall_ms: 20_000, ..StoreFaults::default() };
    let mut steps = vec![ScriptStep::Store(slow)];
    steps.extend((0..4 + random.below(3) as u32).map(|key| act(0, put(key, 20 << 20))));
    steps.extend([
        ScriptStep::Barrier,
        wait(60_000),
        ScriptStep::Store(StoreFaults::default()),
        wait(60_000),
    ]);
    steps
}

/// Renames to and fro: two objects exchange their names.
fn renames(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    let mut steps = vec![
        ScriptStep::Heal,
        act(0, put(FROM, 100_000)),
        act(0, put(TO, 5000)),
        wait(*random.pick(&[0, 20_000])),
    ];
    for _ in 0..1 + random.below(3) {
        steps.extend([
            act(0, copy(FROM, A)),
            act(0, copy(TO, FROM)),
            act(0, copy(A, TO)),
            act(0, ClientOperation::Delete { key: A }),
            wait(*random.pick(&[0, 500, 10_000])),
        ]);
    }
    steps
}

fn set_up_directory(setup: &mut ScriptSetup, kind: StoreKind) {
    writes_back(setup);
    setup.gateways = 1;
    setup.settings.rules.clear();
    setup.store.kind = kind;
    setup.store.most_copy_bytes = None;
}

/// Repeated copies in a directory.
fn linked(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    set_up_directory(setup, StoreKind::Directory);
    let mut steps = vec![ScriptStep::Heal, act(0, put(FROM, 5000)), ScriptStep::Barrier, wait(5000)];
    for _ in 0..2 + random.below(2) {
        steps.extend([act(0, copy(FROM, TO)), ScriptStep::Barrier, wait(5000)]);
    }
    if one_in(random, 2) {
        steps.extend([
            act(0, ClientOperation::Delete { key: FROM }),
            act(0, ClientOperation::Delete { key: TO }),
            wait(5000),
        ]);
    }
    steps
}

/// A directory that ignores case.
fn folding(setup: &mut ScriptSetup, _: &mut SplitMix64) -> Vec<ScriptStep> {
    set_up_directory(setup, StoreKind::Folding);
    vec![ScriptStep::Heal, act(0, put(A, 100)), act(0, put(CAPITAL, 200)), wait(10_000), act(0, get(A))]
}

/// More names that the store lacks than memory may hold. The store lists them in long pages: with three keys on a
/// page, each listing would take 6,000 requests.
fn many_names(setup: &mut ScriptSetup, _: &mut SplitMix64) -> Vec<ScriptStep> {
    writes_back(setup);
    setup.settings.memory_bytes = 4 * MIB;
    setup.settings.requests = 32;
    setup.store.page = setup.store.page.max(MIN_LONG_PAGE);
    vec![
        ScriptStep::Heal,
        ScriptStep::Store(StoreFaults { is_down: true, ..StoreFaults::default() }),
        act(0, ClientOperation::Many { count: MANY_NAMES }),
        ScriptStep::Barrier,
        ScriptStep::Heal,
    ]
}

/// Several gateways share a store; one is stopped for longer than its lease, or killed.
fn several_gateways(setup: &mut ScriptSetup, random: &mut SplitMix64) -> Vec<ScriptStep> {
    if setup.store.kind != StoreKind::S3 {
        return Vec::new();
    }
    setup.gateways = 2 + random.below(2) as usize;
    setup.clients = 3;
    let gateway = random.below(setup.gateways as u64) as usize;
    let mut steps = Vec::new();
    let work = |steps: &mut Vec<ScriptStep>, random: &mut SplitMix64| {
        for _ in 0..6 {
            let client = random.below(3) as usize;
            let key = random.below(6) as u32;
            steps.push(act(client, if one_in(random, 3) { get(key) } else { put(key, 100) }));
        }
    };
    work(&mut steps, random);
    match random.below(4) {
        0 => {
            steps.push(ScriptStep::Stop { gateway });
            work(&mut steps, random);
            // The first is within the lease, and the others are beyond it.
            steps.push(wait(*random.pick(&[3000, 15_000, 60_000])));
            work(&mut steps, random);
            steps.push(ScriptStep::Continue { gateway });
            work(&mut steps, random);
        }
        1 => {
            steps.push(ScriptStep::Kill { gateway });
            work(&mut steps, random);
            steps.extend([wait(20_000), ScriptStep::Start { gateway }]);
            work(&mut steps, random);
        }
        2 => {
            steps.push(ScriptStep::Terminate { gateway });
            work(&mut steps, random);
            // Longer than the gateway may take to drain.
            steps.extend([wait(70_000), ScriptStep::Start { gateway }]);
            work(&mut steps, random);
        }
        _ => {
            steps.push(ScriptStep::StopEtcd);
            work(&mut steps, random);
            steps.extend([wait(20_000), ScriptStep::StartEtcd, wait(20_000)]);
            work(&mut steps, random);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::super::generate;
    use super::*;

    /// Seed 96 once had 17,000 names in pages of three: its listings alone outlasted the last check.
    #[test]
    fn scenes_with_many_names_list_few_pages() {
        const MAX_PAGES: usize = 500;
        let names = |step: &ScriptStep| match step {
            ScriptStep::Do { operation: ClientOperation::Many { count }, .. } => *count as usize,
            _ => 0,
        };
        let mut scripts_with_many = 0;
        for seed in 0..1000 {
            for scene in [None, Some("many-names")] {
                let script = generate(seed, scene);
                let most = script.steps.iter().map(names).max().unwrap_or(0);
                assert!(most / script.setup.store.page <= MAX_PAGES, "seed {seed}, scene {scene:?}");
                scripts_with_many += usize::from(most >= MANY_NAMES as usize);
            }
        }
        assert!(scripts_with_many >= 1000, "{scripts_with_many}");
    }
}
