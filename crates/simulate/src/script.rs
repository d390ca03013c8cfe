//! What happens in a simulation, as a text that can be shortened and kept.

mod scenes;

use serde::{Deserialize, Serialize};
use underlay_sync::simulation::SimulationRng;

use crate::disk::FailurePoint;
use crate::tree::DeviceTree;

/// A run, to the last detail: the same script does the same each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultScript {
    /// Decides every latency and the order of what happens at once.
    pub seed: u64,
    pub setup: ScriptSetup,
    pub steps: Vec<ScriptStep>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "subject")]
pub enum ScriptSetup {
    /// A pool and its volumes, in the process of who uses them or behind NVMe/TCP.
    Volumes(VolumesSetup),
    /// A stack of layers.
    Layers(LayersSetup),
    /// The file system of the directory attachment.
    Directory(DirectorySetup),
    /// A journal without anything around it.
    Journal(JournalSetup),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumesSetup {
    pub members: u32,
    /// Of each member, in extents of 256 KiB: a small pool gets full.
    pub extents: u32,
    pub volumes: Vec<VolumeSetup>,
    /// Reached by initiator and target, not directly.
    pub is_remote: bool,
    /// What was answered outlives the server's process.
    pub has_host_memory: bool,
    /// A failed flush has lost what it was to write, and the next one succeeds.
    pub forgets_failed_flush: bool,
    /// Before one lock in this many another thread gets a turn; 0 is never.
    pub yield_every: u64,
}

impl VolumesSetup {
    pub fn are_mirrored(&self) -> bool {
        self.members > 1 && self.volumes.iter().all(|volume| volume.mirror)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSetup {
    pub blocks: u32,
    pub mirror: bool,
    pub compress: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayersSetup {
    pub tree: DeviceTree,
    pub blocks: u32,
    /// Of each disk. Where there is little more than the volume takes, places are soon used again.
    pub disk_kib: u64,
    pub yield_every: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectorySetup {
    pub tree: DeviceTree,
    pub files: u32,
    /// A failed flush has lost what it was to write, and the next one succeeds.
    pub forgets_failed_flush: bool,
    pub yield_every: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalSetup {
    /// How long the owner's snapshot is.
    pub snapshot_mib: u64,
    /// The disk answers before the request's call returns.
    pub answers_at_once: bool,
    pub yield_every: u64,
}

/// Numbers are taken modulo what there is, so that a script stays one when steps are left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScriptStep {
    // Of the user; none of them waits.
    Write {
        volume: u32,
        block: u32,
        count: u32,
        fua: bool,
    },
    Read {
        volume: u32,
        block: u32,
        count: u32,
    },
    Discard {
        volume: u32,
        block: u32,
        count: u32,
    },
    Flush {
        volume: u32,
    },
    /// A host of another name writes, or a second process of the same host if the block's number is odd.
    Intrude {
        volume: u32,
        block: u32,
    },
    // Of files.
    WriteFile {
        file: u32,
        block: u32,
        count: u32,
    },
    SyncFile {
        file: u32,
    },
    ReplaceFile {
        file: u32,
        by: u32,
    },
    RemoveFile {
        file: u32,
    },
    TruncateFile {
        file: u32,
        blocks: u32,
    },
    // Of the administrator; in a task of their own.
    Snapshot {
        volume: u32,
        writable: bool,
    },
    Delete {
        volume: u32,
    },
    Resize {
        volume: u32,
        blocks: u32,
    },
    Resync {
        member: u32,
    },
    // Time.
    Pause {
        us: u64,
    },
    Settle,
    // Faults.
    Fail {
        member: u32,
        what: FailurePoint,
        count: u32,
    },
    Vanish {
        member: u32,
    },
    /// It vanishes, and may lose its power.
    PullOut {
        member: u32,
    },
    /// What was in the cache of a disk that was pulled out is lost, or a part of it.
    LosePower {
        member: u32,
    },
    Return {
        member: u32,
    },
    Slow {
        member: u32,
        factor: u32,
    },
    Lie {
        member: u32,
    },
    Break {
        which: u64,
    },
    BreakAll,
    /// All connections break at the host's end; what it has sent arrives at the next release.
    Strand,
    Stall,
    Release,
    /// The server's process dies, and another one begins.
    KillServer,
    /// The server's host loses power, and comes back.
    CutPower,
    KillHost,
    /// Another pool is served under the same name.
    OtherServer,
}

/// A part of the stack that can be simulated by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SimulationSubject {
    Pool,
    Remote,
    Layers,
    Directory,
    Journal,
}

const LARGE_DISK_KIB: u64 = 3072;
/// Barely enough for the volume and what its layers reserve.
const SMALL_DISK_KIB: u64 = 704;

/// A script that the seed decides, of one subject or of any.
pub fn generate(seed: u64, subject: Option<SimulationSubject>) -> FaultScript {
    let mut random = SimulationRng::new(seed);
    let subject = subject.unwrap_or_else(|| match random.below(40) {
        0..=11 => SimulationSubject::Pool,
        12..=23 => SimulationSubject::Remote,
        24..=31 => SimulationSubject::Layers,
        32..=38 => SimulationSubject::Directory,
        _ => SimulationSubject::Journal,
    });
    let setup = match subject {
        SimulationSubject::Pool => {
            ScriptSetup::Volumes(VolumesSetup { is_remote: false, ..some_volumes(&mut random) })
        }
        SimulationSubject::Remote => {
            ScriptSetup::Volumes(VolumesSetup { is_remote: true, ..some_volumes(&mut random) })
        }
        SimulationSubject::Layers => ScriptSetup::Layers(some_layers(&mut random)),
        SimulationSubject::Directory => ScriptSetup::Directory(some_directory(&mut random)),
        SimulationSubject::Journal => ScriptSetup::Journal(some_journal(&mut random)),
    };
    generate_for(seed, setup, &mut random)
}

fn generate_for(seed: u64, setup: ScriptSetup, random: &mut SimulationRng) -> FaultScript {
    let count = 20 + random.below(160);
    // Each script has its own mixture: what all of them had in moderation none would have in excess.
    let mixture = StepWeights::draw(random);
    let is_large = matches!(&setup, ScriptSetup::Journal(journal) if journal.snapshot_mib > 8);
    // Each checkpoint of a large snapshot takes its time.
    let count = if is_large { 10 } else { count };
    let mut steps: Vec<ScriptStep> = (0..count).map(|_| mixture.step(&setup, random)).collect();
    for _ in 0..random.below(3) {
        let index = random.below(steps.len() as u64 + 1) as usize;
        steps.splice(index..index, scenes::draw(&setup, random));
    }
    FaultScript { seed, setup, steps }
}

fn some_yields(random: &mut SimulationRng) -> u64 {
    *random.pick(&[0, 0, 0, 40, 400])
}

fn some_volumes(random: &mut SimulationRng) -> VolumesSetup {
    let members = 1 + random.below(4) as u32;
    let mirrors = members > 1 && !random.one_in(5);
    let count = 1 + random.below(2);
    let volumes = (0..count).map(|_| VolumeSetup {
        blocks: *random.pick(&[64, 200, 512, 1100]),
        mirror: mirrors && !random.one_in(4),
        compress: random.one_in(3),
    });
    VolumesSetup {
        volumes: volumes.collect(),
        members,
        extents: *random.pick(&[6, 12, 24, 48]),
        is_remote: random.one_in(2),
        has_host_memory: !random.one_in(4),
        forgets_failed_flush: random.one_in(3),
        yield_every: some_yields(random),
    }
}

fn some_layers(random: &mut SimulationRng) -> LayersSetup {
    let tree = DeviceTree::draw(random);
    let disk_kib = if random.one_in(2) { SMALL_DISK_KIB } else { LARGE_DISK_KIB };
    LayersSetup { tree, blocks: 96, disk_kib, yield_every: some_yields(random) }
}

fn some_directory(random: &mut SimulationRng) -> DirectorySetup {
    let tree = if random.one_in(3) {
        DeviceTree::Mirror(vec![DeviceTree::Disk, DeviceTree::Disk])
    } else {
        DeviceTree::Disk
    };
    DirectorySetup {
        tree,
        files: 1 + random.below(6) as u32,
        forgets_failed_flush: random.one_in(2),
        yield_every: some_yields(random),
    }
}

fn some_journal(random: &mut SimulationRng) -> JournalSetup {
    // Large snapshots take their time: few of them.
    let snapshot_mib = if random.one_in(12) { 48 + random.below(16) } else { random.below(3) };
    JournalSetup { snapshot_mib, answers_at_once: random.one_in(3), yield_every: some_yields(random) }
}

/// How often each kind of step comes.
struct StepWeights {
    changes: u64,
    reads: u64,
    flushes: u64,
    administration: u64,
    member_faults: u64,
    connection_faults: u64,
    crashes: u64,
    pauses: u64,
    settles: u64,
    /// Writes go to this many blocks only, so that they meet.
    blocks: u32,
    longest: u32,
}

impl StepWeights {
    fn draw(random: &mut SimulationRng) -> StepWeights {
        let mut weight = |most: u64| if random.one_in(4) { 0 } else { 1 + random.below(most) };
        StepWeights {
            reads: weight(10),
            flushes: weight(12),
            administration: weight(4),
            member_faults: weight(6),
            connection_faults: weight(4),
            crashes: weight(4),
            pauses: weight(12),
            settles: weight(4),
            changes: 20,
            blocks: *random.pick(&[2, 8, 64, 100_000]),
            longest: *random.pick(&[1, 4, 20, 150]),
        }
    }

    fn step(&self, setup: &ScriptSetup, random: &mut SimulationRng) -> ScriptStep {
        let weights = [
            self.changes,
            self.reads,
            self.flushes,
            self.administration,
            self.member_faults,
            self.connection_faults,
            self.crashes,
            self.pauses,
            self.settles,
        ];
        let mut remaining = random.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| match remaining.checked_sub(*weight) {
            Some(left) => {
                remaining = left;
                false
            }
            None => true,
        });
        match kind.unwrap_or(0) {
            0 => self.change(setup, random),
            1 => self.read(random),
            2 => match setup {
                ScriptSetup::Directory(_) => ScriptStep::SyncFile { file: random.next_u32() },
                _ => ScriptStep::Flush { volume: random.next_u32() },
            },
            3 => self.administer(setup, random),
            4 => member_fault(random),
            5 => connection_fault(setup, random),
            6 => crash(setup, random),
            7 => ScriptStep::Pause { us: *random.pick(&[10, 100, 1_000, 10_000, 1_000_000, 6_000_000]) },
            _ => ScriptStep::Settle,
        }
    }

    fn place(&self, random: &mut SimulationRng) -> (u32, u32) {
        (random.next_u32() % self.blocks, 1 + random.below(u64::from(self.longest)) as u32)
    }

    fn change(&self, setup: &ScriptSetup, random: &mut SimulationRng) -> ScriptStep {
        let (block, count) = self.place(random);
        let volume = random.next_u32();
        if matches!(setup, ScriptSetup::Directory(_)) {
            let file = random.next_u32();
            return match random.below(12) {
                0 => ScriptStep::ReplaceFile { file, by: random.next_u32() },
                1 => ScriptStep::RemoveFile { file },
                2 => ScriptStep::TruncateFile { file, blocks: block % 40 },
                _ => ScriptStep::WriteFile { file, block: block % 40, count: count.min(20) },
            };
        }
        match random.below(8) {
            0 => ScriptStep::Discard { volume, block, count },
            1 => ScriptStep::Write { volume, block, count, fua: true },
            _ => ScriptStep::Write { volume, block, count, fua: false },
        }
    }

    fn read(&self, random: &mut SimulationRng) -> ScriptStep {
        let (block, count) = self.place(random);
        ScriptStep::Read { volume: random.next_u32(), block, count }
    }

    fn administer(&self, setup: &ScriptSetup, random: &mut SimulationRng) -> ScriptStep {
        match setup {
            ScriptSetup::Volumes(_) => {}
            ScriptSetup::Journal(_) => return ScriptStep::Resync { member: 0 },
            ScriptSetup::Layers(_) | ScriptSetup::Directory(_) => return ScriptStep::Settle,
        }
        let volume = random.next_u32();
        match random.below(8) {
            0 | 1 => ScriptStep::Snapshot { volume, writable: random.one_in(2) },
            2 => ScriptStep::Delete { volume },
            3 => ScriptStep::Resize { volume, blocks: *random.pick(&[1, 63, 64, 65, 300, 1200]) },
            _ => ScriptStep::Resync { member: random.next_u32() },
        }
    }
}

fn member_fault(random: &mut SimulationRng) -> ScriptStep {
    let member = random.next_u32();
    match random.below(16) {
        0..=2 => ScriptStep::Vanish { member },
        3..=6 => ScriptStep::Return { member },
        7 => ScriptStep::Slow { member, factor: *random.pick(&[1, 10, 300]) },
        8 if random.one_in(8) => ScriptStep::Lie { member },
        _ => {
            let point = *random.pick(&[FailurePoint::Read, FailurePoint::Write, FailurePoint::Flush]);
            ScriptStep::Fail { member, what: point, count: 1 + random.below(3) as u32 }
        }
    }
}

fn connection_fault(setup: &ScriptSetup, random: &mut SimulationRng) -> ScriptStep {
    if !matches!(setup, ScriptSetup::Volumes(VolumesSetup { is_remote: true, .. })) {
        return member_fault(random);
    }
    match random.below(14) {
        0..=3 => ScriptStep::Break { which: random.next_u64() },
        4..=6 => ScriptStep::BreakAll,
        7 | 8 => ScriptStep::Stall,
        9 => ScriptStep::Strand,
        10..=12 => ScriptStep::Release,
        _ => ScriptStep::Intrude { volume: random.next_u32(), block: random.next_u32() % 64 },
    }
}

fn crash(setup: &ScriptSetup, random: &mut SimulationRng) -> ScriptStep {
    let is_remote = matches!(setup, ScriptSetup::Volumes(VolumesSetup { is_remote: true, .. }));
    match random.below(10) {
        0..=3 => ScriptStep::KillServer,
        4..=6 => ScriptStep::CutPower,
        7 | 8 if is_remote => ScriptStep::KillHost,
        9 if is_remote && random.one_in(4) => ScriptStep::OtherServer,
        _ => ScriptStep::CutPower,
    }
}
