//! Every layer, and trees of them, against what a block device promises: with requests that overtake each
//! other, failures, clean ends and power cuts.

mod cache;
mod compress;
mod mirror;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::queued_device::{Pick, QueuedDevice, SECTOR};
use proptest::prelude::*;
use underlay_storage::device::{BlockDevice, DeviceError, DeviceRequest};
use underlay_storage::layers::cache::{CacheMode, CacheSettings};
use underlay_storage::layers::compress::{CompressSettings, CompressionCodec};
use underlay_storage::layers::mirror::MirrorSettings;
use underlay_storage::layers::workers::WorkerThreads;
use underlay_storage::layers::{CacheLayer, CompressLayer, Mirror, SectorLayer, Stripe};

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
    Compress(CompressionCodec, usize, Box<Tree>),
    /// The fast one, then the slow one.
    Cache(CacheMode, Box<[Tree; 2]>),
    /// Addressed in sectors of 512 bytes.
    Sectors(Box<Tree>),
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
            Arc::new(CompressLayer::open(build(member, devices), settings, WorkerThreads::inline()).unwrap())
        }
        Tree::Cache(mode, members) => {
            let (fast, slow) = (build(&members[0], devices), build(&members[1], devices));
            let settings = CacheSettings { bypass_bytes: 8 * BLOCK as u64, ..CacheSettings::new(*mode) };
            Arc::new(CacheLayer::open(fast, slow, settings).unwrap())
        }
        Tree::Sectors(member) => Arc::new(SectorLayer::new(build(member, devices))),
    }
}

/// The blocks of each device, in order.
fn sizes(tree: &Tree) -> Vec<usize> {
    match tree {
        Tree::Device => vec![DEVICE_BLOCKS],
        Tree::Small => vec![DEVICE_BLOCKS * 2 / 5],
        Tree::Stripe(members) | Tree::Mirror(members) => members.iter().flat_map(sizes).collect(),
        Tree::Compress(_, _, member) | Tree::Sectors(member) => sizes(member),
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
    /// This many requests happen, each on any device.
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
    /// The unit of requests, and how many there are.
    block_bytes: usize,
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
    /// The process is dead: what it would have said no longer counts.
    ended: bool,
    problems: Vec<String>,
}

impl Shared {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn answered<T>(&mut self, answer: &Result<T, DeviceError>, description: &str) {
        self.under_way -= 1;
        self.failures |= matches!(answer, Err(DeviceError::NoSpace));
        if let Err(error) = answer
            && !self.failures
        {
            self.problems.push(format!("{description} failed: {error}"));
        }
    }

    /// The contents that a read from `began` until now may find in a sector.
    fn readable(&self, sector: usize, began: u64) -> Vec<Content> {
        let versions = &self.history[sector];
        let dead = |version: &Version| {
            let over = |successor: &Version| {
                successor.good
                    && successor.ended.is_some_and(|ended| ended < began)
                    && version.ended.is_some_and(|e| e < successor.began)
            };
            versions.iter().any(over)
        };
        versions.iter().filter(|version| !dead(version)).map(|version| version.content).collect()
    }

    /// The contents that a sector may have after the power failed now.
    fn surviving(&self, sector: usize) -> Vec<Content> {
        let versions = &self.history[sector];
        let dead = |version: &Version| {
            versions.iter().any(|successor| {
                successor.durable && version.ended.is_some_and(|ended| ended < successor.began)
            })
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
        let block_bytes = top.geometry().block_bytes as usize;
        let blocks = top.geometry().capacity_bytes as usize / block_bytes;
        let sectors = blocks * (block_bytes / SECTOR);
        let (allowed, next_id) = before.unwrap_or_else(|| (vec![vec![Content::Zeros]; sectors], 1));
        let all = || {
            let buffer = vec![1; blocks * block_bytes];
            top.execute(DeviceRequest::Read { offset_bytes: 0, buffer }).expect("an opened device reads")
        };
        let (content, again) = (all(), all());
        assert!(content == again, "two reads differ, with no write in between");
        let history = allowed
            .iter()
            .enumerate()
            .map(|(sector, allowed)| {
                let found = &content[sector * SECTOR..][..SECTOR];
                let is_found = |content: &&Content| content.sector(sector) == found;
                let content = *allowed.iter().find(is_found).unwrap_or_else(|| {
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
        Rig { tree, devices, top, block_bytes, blocks, shared: Arc::new(Mutex::new(shared)) }
    }

    /// Sectors of a block.
    fn sectors(&self) -> usize {
        self.block_bytes / SECTOR
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
        let (block_bytes, sectors) = (self.block_bytes, self.sectors());
        let shared = Arc::clone(&self.shared);
        let began = {
            let mut shared = self.lock();
            shared.under_way += 1;
            shared.tick()
        };
        let buffer = vec![1; count * block_bytes];
        let request = DeviceRequest::Read { offset_bytes: (first * block_bytes) as u64, buffer };
        let done = move |answer: Result<Vec<u8>, DeviceError>| {
            let mut shared = shared.lock().unwrap();
            if shared.ended {
                return;
            }
            shared.answered(&answer, "a read");
            let Ok(bytes) = answer else { return };
            assert_eq!(bytes.len(), count * block_bytes);
            for (index, found) in bytes.chunks(SECTOR).enumerate() {
                let sector = first * sectors + index;
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
        let sectors = first * self.sectors()..(first + count) * self.sectors();
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
        let offset_bytes = (first * self.block_bytes) as u64;
        let request = match noise {
            None => DeviceRequest::Discard { offset_bytes, length_bytes: (count * self.block_bytes) as u64 },
            Some(_) => {
                let data = sectors.clone().flat_map(|sector| content.sector(sector)).collect();
                DeviceRequest::Write { offset_bytes, data, fua }
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
        self.top.submit(DeviceRequest::Flush, Box::new(done));
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
        let sectors = 0..self.blocks * self.sectors();
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
    let configured = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { configured.cases } else { count };
    ProptestConfig { cases, failure_persistence: None, ..configured }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn device_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Device, &steps, seed);
    }

    #[test]
    fn stripe_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Stripe(vec![Tree::Device; 3]), &steps, seed);
    }

    #[test]
    fn mirror_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Mirror(vec![Tree::Device; 2]), &steps, seed);
    }

    /// Nobody above a mirror hears of a member that vanishes with what it had not made durable, and returns.
    #[test]
    fn mirror_with_flapping_member_keeps_contract(
        steps in prop::collection::vec(step_with_vanishing(), 1..80),
        members in 2..4usize,
        seed in any::<u64>(),
    ) {
        promises_hold(&Tree::Mirror(vec![Tree::Device; members]), &steps, seed);
    }

    #[test]
    fn compressed_volume_keeps_contract(steps in steps(), seed in any::<u64>()) {
        let codec = if seed % 8 == 0 { CompressionCodec::Zstd(1) } else { CompressionCodec::Lz4 };
        promises_hold(&Tree::Compress(codec, 60, Box::new(Tree::Device)), &steps, seed);
    }

    /// It runs full, and no request that failed for that has changed anything.
    #[test]
    fn overcommitted_compressed_volume_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Compress(CompressionCodec::Lz4, 200, Box::new(Tree::Device)), &steps, seed);
    }

    #[test]
    fn read_cache_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Cache(CacheMode::Read, Box::new([Tree::Small, Tree::Device])), &steps, seed);
    }

    #[test]
    fn write_back_cache_keeps_contract(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Cache(CacheMode::WriteBack, Box::new([Tree::Small, Tree::Device])), &steps, seed);
    }

    /// Parts of blocks are written by reading the rest first, while others write beside them.
    #[test]
    fn sectors_of_512_bytes_keep_their_promises(steps in steps(), seed in any::<u64>()) {
        promises_hold(&Tree::Sectors(Box::new(Tree::Device)), &steps, seed);
    }

    #[test]
    fn sectors_of_512_bytes_on_layers_keep_their_promises(
        tree in tree(),
        steps in orderly_steps(),
        seed in any::<u64>(),
    ) {
        promises_hold(&Tree::Sectors(Box::new(tree)), &steps, seed);
    }

    #[test]
    fn layer_tree_keeps_contract(
        tree in tree(),
        steps in orderly_steps(),
        seed in any::<u64>(),
    ) {
        promises_hold(&tree, &steps, seed);
    }

    #[test]
    fn layer_tree_with_failing_requests_keeps_contract(
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
        Just(Tree::Compress(CompressionCodec::Lz4, 60, Box::new(Tree::Device))),
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
                Tree::Compress(CompressionCodec::Lz4, 50, Box::new(stripe))
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
    device.execute(DeviceRequest::Write { offset_bytes, data, fua: false }).map(|_| ())
}

fn read(device: &Arc<dyn BlockDevice>, block: u64, count: usize) -> Vec<u8> {
    let buffer = vec![9; count * BLOCK];
    device.execute(DeviceRequest::Read { offset_bytes: block * BLOCK as u64, buffer }).unwrap()
}

fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    (0..blocks * SECTORS).flat_map(|sector| Content::Noise(seed).sector(sector)).collect()
}
