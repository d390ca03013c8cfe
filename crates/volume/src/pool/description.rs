//! What is asked of a pool and its volumes, and what they tell of themselves.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underlay_storage::clock::{ModelClock, RealClock};
use underlay_storage::device::DeviceError;
use underlay_storage::journal::JournalError;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::layers::mirror::MirrorError;
use underlay_storage::layers::workers::WorkerThreads;

use super::host_memory::HostMemory;
use crate::rate::RateLimits;

/// How a pool is opened.
#[derive(Clone)]
pub struct PoolSettings {
    /// By which volumes are held to their limits: the clock of the modelled devices, so that slow motion slows both.
    pub clock: Arc<dyn ModelClock>,
    /// Who compresses; on the caller's thread unless told.
    pub workers: WorkerThreads,
    /// How long the map of all volumes may get when a pool is made; 256 bytes for each 256 KiB of the pool unless
    /// told. A pool that exists keeps its own.
    pub map_bytes: Option<u64>,
    /// Where what was answered and not flushed outlives the process; without it, the end of the process is a power cut.
    pub host_memory: Option<HostMemory>,
    /// A pool that is not there yet is made on devices that hold other data, which is lost.
    pub format: bool,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            clock: Arc::new(RealClock::new(1.0)),
            workers: WorkerThreads::inline(),
            map_bytes: None,
            host_memory: None,
            format: false,
        }
    }
}

/// What a volume is to be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// A multiple of 4 KiB. Space is taken only for what is written.
    pub capacity_bytes: u64,
    /// In chunks of 16 KiB, each on its own.
    pub compress: Option<CompressionCodec>,
    /// Two copies, on different members.
    pub mirror: bool,
    pub limits: RateLimits,
}

impl VolumeSpec {
    /// Neither compressed nor mirrored nor limited.
    pub fn new(capacity_bytes: u64) -> VolumeSpec {
        VolumeSpec { capacity_bytes, compress: None, mirror: false, limits: RateLimits::default() }
    }
}

/// What may be done to a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotAccess {
    ReadOnly,
    Writable,
}

/// A volume as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeInfo {
    pub name: String,
    /// Unlike any other volume's of any pool, and never used again.
    pub identity: u64,
    pub capacity_bytes: u64,
    pub compress: Option<CompressionCodec>,
    pub mirror: bool,
    pub limits: RateLimits,
    pub access: SnapshotAccess,
    /// The volume that it is a snapshot of, if that still exists.
    pub origin: Option<String>,
    /// Written and not discarded.
    pub used_bytes: u64,
    /// The same as it is stored: compressed, one copy. What snapshots share counts for each.
    pub stored_bytes: u64,
    /// Some of it is on one member only that should be on two.
    pub degraded: bool,
}

/// Whether a member holds what mirrored volumes keep on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    InUse,
    /// It failed: its copies of mirrored data are old and are not read.
    Out,
    /// It is being brought up to date.
    Resyncing,
    /// It could not be read when the pool was opened, beside another one that is out. It has missed nothing, and is
    /// used as soon as it answers.
    Unread,
    /// What a process before this one could not flush to it has yet to be written again: flushes of what is on it fail
    /// until a resync, or the next opening of the pool, has done so.
    Doubtful,
}

impl MemberState {
    /// Of a device, as in `it is out of use`.
    pub fn describe(self) -> &'static str {
        match self {
            MemberState::InUse => "in use",
            MemberState::Out => "out of use",
            MemberState::Resyncing => "being brought up to date",
            MemberState::Unread => "not answering since the pool was opened",
            MemberState::Doubtful => "lacking data that could not be flushed to it",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// For data.
    pub space_bytes: u64,
    pub free_bytes: u64,
    pub state: MemberState,
}

/// A pool as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    pub identity: u64,
    pub space_bytes: u64,
    /// In whole extents of 256 KiB; compressed volumes find room in begun ones as well.
    pub free_bytes: u64,
    /// What all volumes' maps take, and may take.
    pub map_bytes: u64,
    pub map_limit_bytes: u64,
    /// What the journal takes on each member that has it, so that a map of the longest kind always fits.
    pub journal_bytes: u64,
    /// How many members have the journal: the first ones.
    pub journal_members: usize,
    pub members: Vec<MemberInfo>,
}

/// What [`super::VolumePool::check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    pub volumes: usize,
    /// Extents of 256 KiB that are mapped, over all volumes.
    pub extents: u64,
    /// What is wrong, in words; empty for a pool that is consistent.
    pub problems: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("a pool has 1 to 255 members, not {0}")]
    Members(usize),
    #[error(
        "member {index} of the pool has {capacity_bytes} bytes, but {needed_bytes} are needed: use larger devices"
    )]
    TooSmall { index: usize, capacity_bytes: u64, needed_bytes: u64 },
    #[error("the pool has more than 2^32 extents of 256 KiB: make several pools")]
    TooLarge,
    #[error("member {index} has blocks of {block_bytes} bytes; a pool needs blocks that divide 4096")]
    Blocks { index: usize, block_bytes: u32 },
    #[error("member {index} holds data that is not a pool's, and a pool is created on blank devices only")]
    NotBlank { index: usize },
    #[error("member {index} is blank, but others belong to a pool: put back the device that was there")]
    Missing { index: usize },
    #[error("member {index} does not fit: {problem}")]
    OtherPool { index: usize, problem: String },
    #[error(
        "the pool's map is inconsistent ({0}): restore the devices, or create the pool again, which loses its data"
    )]
    Map(String),
    #[error("the pool's journal: {0}")]
    Journal(#[from] JournalError),
    #[error("the mirrored journal of the pool: {0}")]
    Mirror(#[from] MirrorError),
    #[error("a device of the pool failed: {0}")]
    Device(#[from] DeviceError),
    #[error("there is no volume '{0}' in the pool; `list` shows those that exist")]
    NoVolume(String),
    #[error("there is already a volume '{0}': delete it or choose another name")]
    Exists(String),
    #[error(
        "'{0}' is not a valid volume name: use 1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit"
    )]
    Name(String),
    #[error("a volume of {capacity_bytes} bytes is not possible: {problem}")]
    Capacity { capacity_bytes: u64, problem: &'static str },
    #[error("{0}")]
    Codec(String),
    #[error("a mirrored volume needs two members in use; the pool has {0}")]
    TooFewToMirror(usize),
    #[error("a pool has at most {0} volumes")]
    TooManyVolumes(usize),
    #[error(
        "the map of all volumes is limited to {limit_bytes} bytes and has no room for this: delete a snapshot, or discard"
    )]
    MapFull { limit_bytes: u64 },
    #[error("there is no member {0}")]
    NoMember(usize),
    #[error("member {0} is still failing: {1}")]
    MemberFails(usize, #[source] DeviceError),
    #[error(
        "there is only one copy of the journal: the other of the first two members could not take its own; \
             opening the pool tries again"
    )]
    JournalOnce,
    #[error("member {0} could not be brought up to date and stays out: {1}")]
    NotResynced(usize, #[source] DeviceError),
    #[error(
        "the two copies of a region of volume '{volume}' may differ, because the pool ended in the middle of \
             overwriting it, and can't be made equal ({error}). Make sure that members {} and {}, counted from 0, can \
             be read and written, and open the pool again", members[0], members[1]
    )]
    NotAlike {
        volume: String,
        members: [usize; 2],
        #[source]
        error: DeviceError,
    },
    #[error("acknowledged, unflushed writes can't be kept in {}: {source}", directory.display())]
    HostMemory { directory: PathBuf, source: std::io::Error },
    #[error("acknowledged, unflushed writes can't be read from `unflushed.*` in {}: {source}", directory.display())]
    UnreadNotes { directory: PathBuf, source: std::io::Error },
    #[error("a thread can't be started: {0}")]
    Thread(#[from] std::io::Error),
}
