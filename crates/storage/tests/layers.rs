//! Every layer, and trees of them, against what a block device promises: with requests that overtake each
//! other, failures, clean ends and power cuts.

mod queued_device;

use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use queued_device::{Pick, QueuedDevice, SECTOR};
use underlay_storage::device::{BlockDevice, DeviceError, Request};
use underlay_storage::layers::cache::{CacheMode, CacheSettings};
use underlay_storage::layers::compress::{Codec, CompressSettings};
use underlay_storage::layers::mirror::MirrorSettings;
use underlay_storage::layers::workers::Workers;
use underlay_storage::layers::{Cache, Compress, Mirror, Stripe};

const BLOCK: usize = 4096;
const SECTORS: usize = BLOCK / SECTOR;
const DEVICE_BLOCKS: usize = 160;

/// What is built over devices.
#[derive(Clone, Debug)]
enum Tree {
    Device,
    /// A device that is too small for all that the test uses.
    Small,
    Stripe(Vec<Tree>),
    Mirror(Vec<Tree>),
    /// With a capacity in blocks.
    Compress(Codec, usize, Box<Tree>),
    /// The fast one, then the slow one.
    Cache(CacheMode, Box<[Tree; 2]>),
}

fn build(tree: &Tree, devices: &mut impl Iterator<Item = QueuedDevice>) -> Arc<dyn BlockDevice> {
    match tree {
        Tree::Device | Tree::Small => devices.next().unwrap().as_device(),
        Tree::Stripe(members) => {
            let members = members.iter().map(|member| build(member, devices)).collect();
            Arc::new(Stripe::new(members, 2 * BLOCK as u64).unwrap())
        }
        Tree::Mirror(members) => {
            let members = members.iter().map(|member| build(member, devices)).collect();
            let settings = MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 };
            Arc::new(Mirror::open(members, settings).unwrap())
        }
        Tree::Compress(codec, blocks, member) => {
            let capacity_bytes = Some((blocks * BLOCK) as u64);
            let settings = CompressSettings { codec: *codec, chunk_bytes: 16 << 10, capacity_bytes };
            Arc::new(Compress::open(build(member, devices), settings, Workers::at_once()).unwrap())
        }
        Tree::Cache(mode, members) => {
            let (fast, slow) = (build(&members[0], devices), build(&members[1], devices));
            let settings = CacheSettings { bypass_bytes: 8 * BLOCK as u64, ..CacheSettings::new(*mode) };
            Arc::new(Cache::open(fast, slow, settings).unwrap())
        }
    }
}

/// The blocks of each device, in order.
fn sizes(tree: &Tree) -> Vec<usize> {
    match tree {
        Tree::Device => vec![DEVICE_BLOCKS],
        Tree::Small => vec![DEVICE_BLOCKS * 2 / 5],
        Tree::Stripe(members) | Tree::Mirror(members) => members.iter().flat_map(sizes).collect(),
        Tree::Compress(_, _, member) => sizes(member),
        Tree::Cache(_, members) => members.iter().flat_map(sizes).collect(),
    }
}

/// What one request put into a sector.
#[derive(Clone, Copy, Debug)]
struct Version {
    content: Content,
    began: u64,
    /// When it was answered.
    ended: Option<u64>,
    /// It was answered with success.
    good: bool,
    durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Zeros,
    /// Eight bytes repeated.
    Plain(u64),
    /// Nothing that a codec can make shorter.
    Noise(u64),
}

impl Content {
    fn sector(self, number: usize) -> Vec<u8> {
        match self {
            Content::Zeros => vec![0; SECTOR],
            Content::Plain(id) => id.to_le_bytes().repeat(SECTOR / 8),
            Content::Noise(id) => {
                let mut pick = Pick::new(id ^ ((number as u64) << 32));
                (0..SECTOR).map(|_| pick.below(256) as u8).collect()
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize, usize),
    Write {
        first: usize,
        count: usize,
        noise: bool,
        fua: bool,
    },
    Discard(usize, usize),
    Flush,
    /// So many requests happen, each on any device.
    Run(u8),
    Fail,
    PowerCut,
    CleanEnd,
    /// One device vanishes, or returns.
    Vanish,
    Return,
}

fn step() -> impl Strategy<Value = Step> {
    let extent = || (0..100usize, prop_oneof![3 => 1..4usize, 1 => 4..24usize]);
    prop_oneof![
        5 => extent().prop_map(|(first, count)| Step::Read(first, count)),
        8 => (extent(), any::<bool>(), prop::bool::weighted(0.15)).prop_map(|((first, count), noise, fua)| {
            Step::Write { first, count, noise, fua }
        }),
        2 => extent().prop_map(|(first, count)| Step::Discard(first, count)),
        3 => Just(Step::Flush),
        10 => (1..30u8).prop_map(Step::Run),
        1 => Just(Step::Fail),
        1 => Just(Step::PowerCut),
        1 => Just(Step::CleanEnd),
    ]
}

/// Without failures.
fn orderly_steps() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|steps| steps.into_iter().filter(|step| !matches!(step, Step::Fail)).collect())
}

fn step_with_vanishing() -> impl Strategy<Value = Step> {
    let orderly = step().prop_filter("errors are another test", |step| !matches!(step, Step::Fail));
    prop_oneof![8 => orderly, 1 => Just(Step::Vanish), 1 => Just(Step::Return)]
}

/// The device under test, and what each of its sectors may hold.
struct Rig {
    tree: Tree,
    devices: Vec<QueuedDevice>,
    top: Arc<dyn BlockDevice>,
    blocks: usize,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    time: u64,
    next_id: u64,
    /// By sector.
    history: Vec<Vec<Version>>,
    under_way: usize,
    /// A failure was caused, so that errors are no surprise.
    failures: bool,
    /// The process is dead: what it would have said counts no more.
    ended: bool,
    problems: Vec<String>,
}

impl Shared {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn answered<T>(&mut self, answer: &Result<T, DeviceError>, what: &str) {
        self.under_way -= 1;
        self.failures |= matches!(answer, Err(DeviceError::NoSpace));
        if let Err(error) = answer
            && !self.failures
        {
            self.problems.push(format!("{what} failed: {error}"));
        }
    }

    /// The contents that a read from `began` until now may find in a sector.
    fn readable(&self, sector: usize, began: u64) -> Vec<Content> {
        let versions = &self.history[sector];
        let dead = |version: &Version| {
            let over = |by: &Version| {
                by.good
                    && by.ended.is_some_and(|ended| ended < began)
                    && version.ended.is_some_and(|e| e < by.began)
            };
            versions.iter().any(over)
        };
        versions.iter().filter(|version| !dead(version)).map(|version| version.content).collect()
    }

    /// The contents that a sector may have after the power failed now.
    fn surviving(&self, sector: usize) -> Vec<Content> {
        let versions = &self.history[sector];
        let dead = |version: &Version| {
            versions.iter().any(|by| by.durable && version.ended.is_some_and(|ended| ended < by.began))
        };
        versions.iter().filter(|version| !dead(version)).map(|version| version.content).collect()
    }
}

impl Rig {
    fn new(tree: Tree) -> Rig {
        let images = sizes(&tree).into_iter().map(|blocks| vec![0; blocks * BLOCK]).collect();
        Rig::open(tree, images, None)
    }

    fn open(tree: Tree, images: Vec<Vec<u8>>, before: Option<(Vec<Vec<Content>>, u64)>) -> Rig {
        let devices: Vec<QueuedDevice> = images.into_iter().map(QueuedDevice::new).collect();
        let top = build(&tree, &mut devices.clone().into_iter());
        let blocks = top.geometry().capacity_bytes as usize / BLOCK;
        let (allowed, next_id) = before.unwrap_or_else(|| (vec![vec![Content::Zeros]; blocks * SECTORS], 1));
        let all = || {
            let buffer = vec![1; blocks * BLOCK];
            top.execute(Request::Read { offset_bytes: 0, buffer }).expect("an opened device reads")
        };
        let (content, again) = (all(), all());
        assert!(content == again, "two reads differ, with no write in between");
        let history = allowed
            .iter()
            .enumerate()
            .map(|(sector, allowed)| {
                let found = &content[sector * SECTOR..][..SECTOR];
                let is = |content: &&Content| content.sector(sector) == found;
                let content = *allowed.iter().find(is).unwrap_or_else(|| {
                    panic!("sector {sector} holds {:?}..., allowed are {allowed:?}", &found[..8])
                });
                vec![Version { content, began: 0, ended: Some(0), good: true, durable: true }]
            })
            .collect();
        for device in &devices {
            device.set_at_once(false);
        }
        let shared = Shared {
            time: 0,
            next_id,
            history,
            under_way: 0,
            failures: false,
            ended: false,
            problems: Vec::new(),
        };
        Rig { tree, devices, top, blocks, shared: Arc::new(Mutex::new(shared)) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap()
    }

    fn extent(&self, first: usize, count: usize) -> (usize, usize) {
        let first = first % self.blocks;
        (first, count.min(self.blocks - first))
    }

    fn read(&self, first: usize, count: usize) {
        let (first, count) = self.extent(first, count);
        let shared = Arc::clone(&self.shared);
        let began = {
            let mut shared = self.lock();
            shared.under_way += 1;
            shared.tick()
        };
        let request = Request::Read { offset_bytes: (first * BLOCK) as u64, buffer: vec![1; count * BLOCK] };
        let done = move |answer: Result<Vec<u8>, DeviceError>| {
            let mut shared = shared.lock().unwrap();
            if shared.ended {
                return;
            }
            shared.answered(&answer, "a read");
            let Ok(bytes) = answer else { return };
            assert_eq!(bytes.len(), count * BLOCK);
            for (index, found) in bytes.chunks(SECTOR).enumerate() {
                let sector = first * SECTORS + index;
                let allowed = shared.readable(sector, began);
                if !allowed.iter().any(|content| content.sector(sector) == found) {
                    let problem = format!("sector {sector} reads {:?}, allowed: {allowed:?}", &found[..8]);
                    shared.problems.push(problem);
                    return;
                }
            }
        };
        self.top.submit(request, Box::new(done));
    }

    /// A write of `content`, or a discard.
    fn change(&self, first: usize, count: usize, noise: Option<bool>, fua: bool) {
        let (first, count) = self.extent(first, count);
        let sectors = first * SECTORS..(first + count) * SECTORS;
        let (content, began) = {
            let mut shared = self.lock();
            shared.under_way += 1;
            shared.next_id += 1;
            let content = match noise {
                None => Content::Zeros,
                Some(false) => Content::Plain(shared.next_id),
                Some(true) => Content::Noise(shared.next_id),
            };
            let began = shared.tick();
            for sector in sectors.clone() {
                let version = Version { content, began, ended: None, good: false, durable: false };
                shared.history[sector].push(version);
            }
            (content, began)
        };
        let offset_bytes = (first * BLOCK) as u64;
        let request = match noise {
            None => Request::Discard { offset_bytes, length_bytes: (count * BLOCK) as u64 },
            Some(_) => {
                let data = sectors.clone().flat_map(|sector| content.sector(sector)).collect();
                Request::Write { offset_bytes, data, fua }
            }
        };
        let shared = Arc::clone(&self.shared);
        let done = move |answer: Result<Vec<u8>, DeviceError>| {
            let mut shared = shared.lock().unwrap();
            if shared.ended {
                return;
            }
            shared.answered(&answer, "a change");
            let ended = shared.tick();
            for sector in sectors {
                let own = shared.history[sector].iter_mut().find(|version| version.began == began);
                let Some(version) = own else { continue };
                (version.ended, version.good) = (Some(ended), answer.is_ok());
                version.durable = answer.is_ok() && fua;
            }
        };
        self.top.submit(request, Box::new(done));
    }

    fn flush(&self) {
        let began = {
            let mut shared = self.lock();
            shared.under_way += 1;
            shared.tick()
        };
        let shared = Arc::clone(&self.shared);
        let done = move |answer: Result<Vec<u8>, DeviceError>| {
            let mut shared = shared.lock().unwrap();
            if shared.ended {
                return;
            }
            shared.answered(&answer, "a flush");
            if answer.is_err() {
                return;
            }
            for sector in 0..shared.history.len() {
                for version in &mut shared.history[sector] {
                    version.durable |= version.good && version.ended.is_some_and(|ended| ended < began);
                }
            }
        };
        self.top.submit(Request::Flush, Box::new(done));
    }

    fn run(&self, pick: &mut Pick) -> bool {
        let able: Vec<&QueuedDevice> = self.devices.iter().filter(|device| device.waiting() > 0).collect();
        !able.is_empty() && able[pick.below(able.len())].step(pick)
    }

    fn run_until_idle(&self, pick: &mut Pick) {
        while self.run(pick) {}
        let shared = self.lock();
        assert_eq!(shared.under_way, 0, "requests without an answer");
    }

    fn check(&self) {
        let shared = self.lock();
        assert!(shared.problems.is_empty(), "{}: {:?}", "a promise was broken", shared.problems);
    }

    fn end(self, power_cut: bool, pick: &mut Pick) -> Rig {
        let sectors = 0..self.blocks * SECTORS;
        let (images, allowed): (Vec<Vec<u8>>, Vec<Vec<Content>>) = if power_cut {
            self.lock().ended = true;
            let images = self.devices.iter().map(|device| device.cut(pick)).collect();
            let shared = self.lock();
            (images, sectors.map(|sector| shared.surviving(sector)).collect())
        } else {
            self.run_until_idle(pick);
            self.flush();
            self.run_until_idle(pick);
            let mut shared = self.lock();
            shared.ended = true;
            let now = shared.tick();
            let failed = shared.failures;
            let allowed = sectors.map(|s| if failed { shared.surviving(s) } else { shared.readable(s, now) });
            let allowed = allowed.collect();
            (self.devices.iter().map(QueuedDevice::image).collect(), allowed)
        };
        self.check();
        let (tree, next_id) = (self.tree.clone(), self.lock().next_id);
        drop(self);
        Rig::open(tree, images, Some((allowed, next_id)))
    }
}

fn promises_hold(tree: &Tree, steps: &[Step], seed: u64) {
    let mut pick = Pick::new(seed);
    let mut rig = Rig::new(tree.clone());
    for step in steps {
        match step {
            Step::Read(first, count) => rig.read(*first, *count),
            Step::Write { first, count, noise, fua } => rig.change(*first, *count, Some(*noise), *fua),
            Step::Discard(first, count) => rig.change(*first, *count, None, false),
            Step::Flush => rig.flush(),
            Step::Run(count) => (0..*count).for_each(|_| {
                rig.run(&mut pick);
            }),
            Step::Fail => {
                let able: Vec<&QueuedDevice> =
                    rig.devices.iter().filter(|device| device.waiting() > 0).collect();
                if !able.is_empty() {
                    rig.lock().failures = true;
                    able[pick.below(able.len())].fail(&mut pick);
                }
            }
            // Always the same one: of two that take turns the last to come back has not all data yet.
            Step::Vanish => rig.devices[0].set_gone(true),
            Step::Return => rig.devices[0].come_back(&mut pick),
            Step::PowerCut => rig = rig.end(true, &mut pick),
            Step::CleanEnd => rig = rig.end(false, &mut pick),
        }
        rig.check();
    }
    rig.run_until_idle(&mut pick);
    rig.check();
    rig.end(true, &mut pick);
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..60)
}

/// As many as PROPTEST_CASES says, if it does.
fn cases(count: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { asked.cases } else { count };
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn a_device_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Device, &steps, seed);
    }

    #[test]
    fn a_stripe_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Stripe(vec![Tree::Device; 3]), &steps, seed);
    }

    #[test]
    fn a_mirror_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, seed);
    }

    /// Nobody above a mirror hears of a member that vanishes with what it had not made durable, and returns.
    #[test]
    fn a_mirror_keeps_its_promises_while_a_member_comes_and_goes(
        steps in prop::collection::vec(step_with_vanishing(), 1..80),
        members in 2..4usize,
        seed in any::<u64>(),
    ) {
        promises_hold(&Tree::Mirror(vec![Tree::Device; members]), &steps, seed);
    }

    #[test]
    fn a_compressed_volume_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        let codec = if seed % 8 == 0 { Codec::Zstd(1) } else { Codec::Lz4 };
        promises_hold(&Tree::Compress(codec, 60, Box::new(Tree::Device)), &steps, seed);
    }

    /// It runs full, and no request that failed for that has changed anything.
    #[test]
    fn a_compressed_volume_larger_than_its_device_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Compress(Codec::Lz4, 200, Box::new(Tree::Device)), &steps, seed);
    }

    #[test]
    fn a_read_cache_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Cache(CacheMode::Read, Box::new([Tree::Small, Tree::Device])), &steps, seed);
    }

    #[test]
    fn a_write_back_cache_keeps_its_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Cache(CacheMode::WriteBack, Box::new([Tree::Small, Tree::Device])), &steps, seed);
    }

    #[test]
    fn a_tree_of_layers_keeps_its_promises(
        tree in tree(),
        steps in orderly_steps(),
        seed in any::<u64>(),
    ) {
        promises_hold(&tree, &steps, seed);
    }

    #[test]
    fn a_tree_of_layers_keeps_its_promises_with_failing_requests(
        tree in tree(),
        steps in steps(),
        seed in any::<u64>(),
    ) {
        promises_hold(&tree, &steps, seed);
    }
}

/// Up to three layers over each other.
fn tree() -> impl Strategy<Value = Tree> {
    let mode = || prop_oneof![Just(CacheMode::Read), Just(CacheMode::WriteBack)];
    let low = prop_oneof![
        Just(Tree::Device),
        Just(Tree::Stripe(vec![Tree::Device; 2])),
        Just(Tree::Mirror(vec![Tree::Device; 2])),
        Just(Tree::Compress(Codec::Lz4, 60, Box::new(Tree::Device))),
        mode().prop_map(|mode| Tree::Cache(mode, Box::new([Tree::Small, Tree::Device]))),
    ];
    let over = move |below: BoxedStrategy<Tree>| {
        let pair = || prop::collection::vec(below.clone(), 2);
        prop_oneof![
            pair().prop_map(Tree::Stripe),
            pair().prop_map(Tree::Mirror),
            (mode(), below.clone()).prop_map(|(mode, slow)| Tree::Cache(mode, Box::new([Tree::Small, slow]))),
            (mode(), below.clone())
                .prop_map(|(mode, fast)| Tree::Cache(mode, Box::new([fast, Tree::Device]))),
            below.clone().prop_map(|member| {
                let stripe = Tree::Stripe(vec![member, Tree::Device, Tree::Device]);
                Tree::Compress(Codec::Lz4, 50, Box::new(stripe))
            }),
        ]
        .boxed()
    };
    let middle = over(low.boxed());
    prop_oneof![middle.clone(), over(middle)]
}

/// Everything that a test asks of a device that answers at once.
fn write(device: &Arc<dyn BlockDevice>, block: u64, data: Vec<u8>) -> Result<(), DeviceError> {
    let offset_bytes = block * BLOCK as u64;
    device.execute(Request::Write { offset_bytes, data, fua: false }).map(|_| ())
}

fn read(device: &Arc<dyn BlockDevice>, block: u64, count: usize) -> Vec<u8> {
    let buffer = vec![9; count * BLOCK];
    device.execute(Request::Read { offset_bytes: block * BLOCK as u64, buffer }).unwrap()
}

fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    (0..blocks * SECTORS).flat_map(|sector| Content::Noise(seed).sector(sector)).collect()
}

mod mirror {
    use super::*;

    fn mirrored(devices: &[QueuedDevice]) -> Mirror {
        let members = devices.iter().map(QueuedDevice::as_device).collect();
        Mirror::open(members, MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 }).unwrap()
    }

    fn devices() -> Vec<QueuedDevice> {
        (0..2).map(|_| QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK])).collect()
    }

    #[test]
    fn a_member_that_was_away_is_brought_up_to_date_before_it_is_read() {
        let devices = devices();
        let mirror = Arc::new(mirrored(&devices));
        let device: Arc<dyn BlockDevice> = mirror.clone();
        write(&device, 0, noise(100, 1)).unwrap();
        device.execute(Request::Flush).unwrap();
        devices[1].set_gone(true);
        write(&device, 10, noise(3, 2)).unwrap();
        assert_eq!((mirror.health().in_sync, mirror.health().out), (1, 1));
        device.execute(Request::Flush).unwrap();
        write(&device, 70, noise(3, 3)).unwrap();
        devices[1].set_gone(false);
        // A flush looks for it.
        device.execute(Request::Flush).unwrap();
        let health = mirror.health();
        assert_eq!((health.in_sync, health.out, health.resyncing), (2, 0, 0));
        assert!(health.resynced_bytes >= 2 * (16 << 10), "{health:?}");
        assert!(health.resynced_bytes < 100 * BLOCK as u64, "more was copied than it had missed: {health:?}");
        let expected = read(&device, 0, 100);
        // Whatever the other one has is not asked for any more.
        devices[0].set_gone(true);
        assert!(read(&device, 0, 100) == expected);
        assert_eq!(mirror.health().in_sync, 1);
    }

    #[test]
    fn the_last_member_is_never_left_out() {
        let devices = devices();
        let mirror = Arc::new(mirrored(&devices));
        let device: Arc<dyn BlockDevice> = mirror.clone();
        devices.iter().for_each(|device| device.set_gone(true));
        assert!(write(&device, 0, noise(1, 1)).is_err());
        assert!(device.execute(Request::Flush).is_err());
        assert_eq!(mirror.health().in_sync, 1);
        devices.iter().for_each(|device| device.set_gone(false));
        write(&device, 0, noise(1, 2)).unwrap();
        device.execute(Request::Flush).unwrap();
        assert_eq!(mirror.health().in_sync, 2);
        assert!(read(&device, 0, 1) == noise(1, 2));
    }

    #[test]
    fn a_stale_member_does_not_win_after_a_restart() {
        for stale in 0..2 {
            let devices = devices();
            let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
            write(&device, 0, noise(4, 1)).unwrap();
            device.execute(Request::Flush).unwrap();
            devices[stale].set_gone(true);
            write(&device, 0, noise(4, 2)).unwrap();
            drop(device);
            let devices: Vec<QueuedDevice> =
                devices.iter().map(|device| QueuedDevice::new(device.image())).collect();
            let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
            for (other, member) in devices.iter().enumerate() {
                member.set_gone(true);
                assert!(read(&device, 0, 4) == noise(4, 2), "member {stale} was away, {other} is now");
                member.set_gone(false);
                device.execute(Request::Flush).unwrap();
            }
        }
    }

    /// Found by the property: a member whose unflushed data was gone was read before others had answered the
    /// request that it had failed.
    #[test]
    fn a_member_that_failed_is_not_read_while_the_others_are_still_at_it() {
        for seed in 0..32 {
            let steps = [
                Step::Write { first: 14, count: 20, noise: false, fua: false },
                Step::Run(4),
                Step::Write { first: 0, count: 1, noise: false, fua: false },
                Step::Vanish,
                Step::Return,
                Step::Read(0, 1),
                Step::Read(0, 15),
                Step::Read(14, 10),
            ];
            promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, seed);
        }
    }

    /// Found by the property: the member that was being brought up to date had the latest journal.
    #[test]
    fn a_member_that_was_being_brought_up_to_date_does_not_rule_after_a_restart() {
        let steps = [
            Step::Write { first: 0, count: 1, noise: false, fua: false },
            Step::PowerCut,
            Step::Write { first: 52, count: 13, noise: false, fua: false },
            Step::Flush,
            Step::Write { first: 0, count: 1, noise: false, fua: false },
            Step::Read(0, 1),
            Step::Read(0, 1),
            Step::Run(18),
            Step::Write { first: 0, count: 5, noise: false, fua: false },
            Step::Fail,
            Step::Flush,
            Step::Read(0, 1),
            Step::Fail,
            Step::Run(7),
            Step::PowerCut,
        ];
        promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, 514_537_313_823_687_215);
    }

    #[test]
    fn reads_go_to_the_member_with_less_to_do() {
        let devices = devices();
        let device: Arc<dyn BlockDevice> = Arc::new(mirrored(&devices));
        devices.iter().for_each(|device| device.set_at_once(false));
        for block in 0..10 {
            let buffer = vec![0; BLOCK];
            let request = Request::Read { offset_bytes: block * BLOCK as u64, buffer };
            device.submit(request, Box::new(|answer| assert!(answer.is_ok())));
        }
        assert_eq!((devices[0].waiting(), devices[1].waiting()), (5, 5));
        let mut pick = Pick::new(1);
        devices.iter().for_each(|device| while device.step(&mut pick) {});
    }
}

mod compress {
    use super::*;

    fn compressed(device: &QueuedDevice, blocks: usize) -> Arc<Compress> {
        let settings = CompressSettings {
            codec: Codec::Zstd(3),
            chunk_bytes: 16 << 10,
            capacity_bytes: Some((blocks * BLOCK) as u64),
        };
        Arc::new(Compress::open(device.as_device(), settings, Workers::at_once()).unwrap())
    }

    #[test]
    fn a_full_device_refuses_and_a_discard_makes_room() {
        let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
        let compress = compressed(&device, 400);
        let volume: Arc<dyn BlockDevice> = compress.clone();
        let space = compress.figures().space_bytes as usize / BLOCK;
        let mut written = 0;
        let full = loop {
            match write(&volume, written, noise(4, written)) {
                Ok(()) => written += 4,
                Err(error) => break error,
            }
        };
        assert_eq!(full, DeviceError::NoSpace);
        assert_eq!(written as usize, space / 4 * 4, "nothing is lost to bookkeeping");
        // What was there before is untouched, and compressible data fits no better into nothing.
        assert!(read(&volume, written - 4, 4) == noise(4, written - 4));
        assert!(read(&volume, written, 4).iter().all(|byte| *byte == 0));
        // Writing over takes new space first.
        assert_eq!(write(&volume, 0, noise(4, 77)), Err(DeviceError::NoSpace));
        assert!(read(&volume, 0, 4) == noise(4, 0));
        volume.execute(Request::Discard { offset_bytes: 0, length_bytes: 8 * BLOCK as u64 }).unwrap();
        write(&volume, 300, noise(4, 5)).unwrap();
        write(&volume, 8, vec![0; 4 * BLOCK]).unwrap();
        write(&volume, 8, noise(4, 6)).unwrap();
        volume.execute(Request::Flush).unwrap();
        drop((volume, compress));
        let again: Arc<dyn BlockDevice> = compressed(&QueuedDevice::new(device.image()), 400);
        assert!(read(&again, 300, 4) == noise(4, 5) && read(&again, 8, 4) == noise(4, 6));
        assert!(read(&again, 0, 8).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn figures_say_what_is_stored() {
        let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
        let compress = compressed(&device, 400);
        let volume: Arc<dyn BlockDevice> = compress.clone();
        write(&volume, 0, noise(4, 1)).unwrap();
        write(&volume, 4, vec![7; 8 * BLOCK]).unwrap();
        write(&volume, 12, vec![0; 8 * BLOCK]).unwrap();
        let figures = compress.figures();
        assert_eq!(figures.logical_bytes, 12 * BLOCK as u64);
        assert_eq!(
            figures.used_bytes,
            6 * BLOCK as u64,
            "four units for noise, one for each chunk of sevens"
        );
        assert!((16384..17000).contains(&figures.stored_bytes), "{figures:?}");
    }

    #[test]
    fn a_volume_is_not_read_with_another_codec_or_other_chunks() {
        let device = QueuedDevice::new(vec![0; 4 * DEVICE_BLOCKS * BLOCK]);
        let open = |codec, chunk_bytes| {
            let settings = CompressSettings { codec, chunk_bytes, capacity_bytes: None };
            Compress::open(device.as_device(), settings, Workers::at_once()).map(|_| ())
        };
        open(Codec::Zstd(3), 16 << 10).unwrap();
        open(Codec::Zstd(5), 16 << 10).expect("levels read each other's");
        for (codec, chunk_bytes, name) in [(Codec::Lz4, 16, "lz4/16"), (Codec::Zstd(3), 32, "zstd/32")] {
            let problem = open(codec, chunk_bytes << 10).unwrap_err().to_string();
            assert!(problem.contains("'zstd/16'") && problem.contains(name), "{problem}");
        }
    }

    #[test]
    fn another_layers_device_is_refused_by_name() {
        let device = QueuedDevice::new(vec![0; DEVICE_BLOCKS * BLOCK]);
        compressed(&device, 60);
        let cache = Cache::open(
            device.as_device(),
            QueuedDevice::new(vec![0; 64 * BLOCK]).as_device(),
            CacheSettings::new(CacheMode::WriteBack),
        );
        let problem = cache.map(|_| ()).unwrap_err().to_string();
        assert!(problem.contains("a journal of 'zstd/16', not of 'wb-cache'"), "{problem}");
    }
}

mod cache {
    use super::*;

    fn cached(mode: CacheMode, fast: &QueuedDevice, slow: &QueuedDevice) -> Arc<Cache> {
        let settings = CacheSettings { bypass_bytes: 16 * BLOCK as u64, ..CacheSettings::new(mode) };
        Arc::new(Cache::open(fast.as_device(), slow.as_device(), settings).unwrap())
    }

    fn device(blocks: usize) -> QueuedDevice {
        QueuedDevice::new(vec![0; blocks * BLOCK])
    }

    #[test]
    fn what_is_read_twice_is_read_from_the_fast_device() {
        let (fast, slow) = (device(64), device(200));
        let cache = cached(CacheMode::Read, &fast, &slow);
        let volume: Arc<dyn BlockDevice> = cache.clone();
        write(&volume, 0, noise(20, 1)).unwrap();
        for _ in 0..3 {
            assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
        }
        let figures = cache.figures();
        assert_eq!((figures.read_hits, figures.read_misses), (20, 10));
        // A long one passes by.
        read(&volume, 100, 40);
        assert_eq!(cache.figures().cached_bytes, 10 * BLOCK as u64);
        slow.set_gone(true);
        assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
        slow.set_gone(false);
        // Nor does a fast device that is gone keep anything from being read.
        fast.set_gone(true);
        assert!(read(&volume, 2, 10) == noise(20, 1)[2 * BLOCK..12 * BLOCK]);
    }

    /// Found by the property of trees: a write to a slot that was just being released. The slot
    /// became clean under way, and could be given to another block.
    #[test]
    fn a_slot_that_is_being_written_is_not_given_away() {
        let write = |first, count, fua| Step::Write { first, count, noise: false, fua };
        let compress = Tree::Compress(Codec::Lz4, 60, Box::new(Tree::Device));
        let fast = Tree::Mirror(vec![compress, Tree::Device]);
        let steps = [
            write(0, 1, false),
            Step::Discard(1, 1),
            write(32, 1, true),
            write(30, 3, false),
            Step::Flush,
            Step::Run(17),
            Step::Read(17, 3),
            Step::Flush,
            Step::Run(28),
            write(1, 2, true),
            Step::Run(8),
            Step::Run(5),
            write(27, 1, false),
            write(3, 1, false),
            Step::Discard(4, 1),
            Step::Run(12),
            Step::Run(2),
            Step::Run(24),
            write(27, 3, false),
            Step::Run(28),
            Step::Read(3, 3),
            Step::Read(5, 2),
            Step::CleanEnd,
        ];
        let tree = Tree::Cache(CacheMode::WriteBack, Box::new([fast, Tree::Device]));
        promises_hold(&tree, &steps, 16_988_551_351_670_070_338);
    }

    /// Found by the property of trees: a block was written back, and its slot given away, while a write over
    /// it was still on its way to the fast device. It arrived in what was another block's by then.
    #[test]
    fn a_slot_that_is_being_written_over_is_not_released() {
        let write = |first, count, noise| Step::Write { first, count, noise, fua: false };
        let compress = Tree::Stripe(vec![
            Tree::Cache(CacheMode::Read, Box::new([Tree::Small, Tree::Device])),
            Tree::Device,
            Tree::Device,
        ]);
        let slow = Tree::Stripe(vec![Tree::Device; 2]);
        let tree = Tree::Stripe(vec![
            Tree::Cache(CacheMode::WriteBack, Box::new([Tree::Small, slow])),
            Tree::Compress(Codec::Lz4, 50, Box::new(compress)),
        ]);
        let steps = [
            write(44, 1, false),
            Step::CleanEnd,
            Step::Read(85, 1),
            Step::Write { first: 92, count: 6, noise: true, fua: true },
            Step::Run(10),
            Step::Discard(9, 1),
            Step::Fail,
            write(74, 21, false),
            Step::Run(25),
            write(90, 10, true),
            Step::Read(78, 3),
            write(62, 15, true),
            write(65, 1, false),
            Step::Flush,
            write(59, 3, false),
            Step::Run(21),
            write(69, 1, false),
            write(40, 1, false),
            write(7, 3, false),
            write(51, 3, true),
            Step::Read(67, 2),
            write(90, 1, false),
            Step::Flush,
            write(57, 4, true),
            Step::Read(78, 1),
            Step::Flush,
            Step::Run(23),
            Step::Flush,
            write(10, 7, false),
        ];
        promises_hold(&tree, &steps, 17_998_490_143_286_228_725);
    }

    /// The journal still called it dirty when it went to another block.
    #[test]
    fn a_slot_whose_release_failed_is_not_given_away() {
        // Some of what fails has reached the device all the same.
        for seed in 0..8 {
            let mut pick = Pick::new(seed);
            let (fast, slow) = (device(64), device(200));
            let volume: Arc<dyn BlockDevice> = cached(CacheMode::WriteBack, &fast, &slow);
            write(&volume, 0, noise(2, 1)).unwrap();
            volume.execute(Request::Flush).unwrap();
            fast.set_at_once(false);
            let third = Request::Write { offset_bytes: 2 * BLOCK as u64, data: noise(1, 2), fua: false };
            volume.submit(third, Box::new(|answer| assert!(answer.is_ok())));
            // It makes one dirty block too many: they are read and written back, and the journal is to say so.
            assert!(fast.step(&mut pick) && fast.step(&mut pick));
            assert!(fast.fail(&mut pick) && fast.waiting() == 0);
            fast.set_at_once(true);
            // Dirty once more, written back once more, and then other blocks for their slots.
            write(&volume, 0, noise(3, 3)).unwrap();
            for block in (3..60).step_by(3) {
                write(&volume, block, noise(1, 10 + block)).unwrap();
            }
            drop(volume);
            let (fast, slow) = (QueuedDevice::new(fast.image()), QueuedDevice::new(slow.image()));
            let volume: Arc<dyn BlockDevice> = cached(CacheMode::WriteBack, &fast, &slow);
            assert!(read(&volume, 0, 3) == noise(3, 3), "seed {seed}");
        }
    }

    #[test]
    fn write_back_keeps_to_its_share_of_dirty_blocks_and_survives_a_restart() {
        let (fast, slow) = (device(200), device(200));
        let cache = cached(CacheMode::WriteBack, &fast, &slow);
        let volume: Arc<dyn BlockDevice> = cache.clone();
        for block in 0..60 {
            write(&volume, block, noise(1, block)).unwrap();
        }
        let figures = cache.figures();
        assert_eq!(figures.write_hits, 60);
        assert!(figures.written_back_bytes > 0, "{figures:?}");
        assert!(figures.dirty_bytes <= 16 * BLOCK as u64, "a tenth of some 160 slots: {figures:?}");
        volume.execute(Request::Flush).unwrap();
        let dirty = cache.figures().dirty_bytes;
        assert!(dirty > 0);
        drop((volume, cache));
        let (fast, slow) = (QueuedDevice::new(fast.image()), QueuedDevice::new(slow.image()));
        let cache = cached(CacheMode::WriteBack, &fast, &slow);
        assert_eq!(cache.figures().dirty_bytes, dirty);
        let volume: Arc<dyn BlockDevice> = cache;
        for block in 0..60 {
            assert!(read(&volume, block, 1) == noise(1, block));
        }
    }
}
