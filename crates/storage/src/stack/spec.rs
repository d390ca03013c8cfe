//! A storage as data: what a study describes and an attachment is given.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use underlay_record::{DeviceDescription, DeviceId};

use crate::catalogue::CatalogueMedium;
use crate::layers::cache::{CacheMode, CacheSettings};
use crate::layers::compress::CompressionCodec;
use crate::medium::InitialState;
use crate::stack::SecretPlaces;

/// Where a modelled device keeps its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackingSpec {
    /// A sparse file, made when it is not there. Flushed data outlives the process, but not a crash of the host: see
    /// [`FlushDurability::PageCache`].
    File(PathBuf),
    Memory,
    /// Keeps nothing and reads zeros: for measuring the path itself.
    Null,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// `hdd-7200-sata.0`
    pub name: String,
    /// The timing; absent for a device that completes at once.
    pub medium: Option<CatalogueMedium>,
    /// On this machine, that is after the data scale. The model keeps its medium's full-stroke seeks: a
    /// scaled disk has fewer cylinders, not a shorter arm.
    pub capacity_bytes: u64,
    pub backing: BackingSpec,
    /// The device's state before its first use.
    #[serde(default)]
    pub initial: InitialState,
    /// Keeps what is needed to lose unflushed writes by a power cut; costs a copy of every block written.
    #[serde(default)]
    pub power_cut_armed: bool,
}

impl DeviceSpec {
    /// Fresh, and not armed for power cuts.
    pub fn new(
        name: impl Into<String>,
        medium: Option<CatalogueMedium>,
        capacity_bytes: u64,
        backing: BackingSpec,
    ) -> DeviceSpec {
        let (initial, power_cut_armed) = (InitialState::default(), false);
        DeviceSpec { name: name.into(), medium, capacity_bytes, backing, initial, power_cut_armed }
    }

    /// Its description in a record.
    pub fn describe(&self) -> DeviceDescription {
        DeviceDescription {
            id: DeviceId::new(&self.name),
            medium: self.medium.as_ref().map(|medium| medium.name.clone()),
            capacity_bytes: self.medium.as_ref().map(CatalogueMedium::capacity_bytes),
            price_usd: self.medium.as_ref().map(CatalogueMedium::price_usd),
            starts_overwritten: self.medium.as_ref().map(|_| self.initial == InitialState::Steady),
            is_rented: self.medium.as_ref().is_some_and(|medium| medium.price.rented),
            price_source: self.medium.as_ref().map(CatalogueMedium::price_source),
        }
    }
}

/// A namespace of an NVMe subsystem that is reached over TCP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteSpec {
    /// As records call it: `pool/data`
    pub name: String,
    /// `127.0.0.1:4420`
    pub address: String,
    pub subsystem_nqn: String,
    pub nsid: u32,
    /// One that this host made for itself unless told.
    #[serde(default)]
    pub host_nqn: Option<String>,
    /// I/O queues, each a connection.
    #[serde(default = "remote_queues")]
    pub queues: u16,
    /// Commands that a queue may have in flight.
    #[serde(default = "remote_queue_depth")]
    pub queue_depth: u16,
    #[serde(default)]
    pub header_digest: bool,
    #[serde(default)]
    pub data_digest: bool,
    /// This host's secret, and the controller's, where it has to prove one.
    #[serde(flatten)]
    pub secrets: SecretPlaces,
    /// How long a lost connection is looked for before requests fail, in seconds.
    #[serde(default = "remote_loss_timeout_s")]
    pub loss_timeout_s: u32,
    /// It is refused where it holds anything: it was found blank, and is about to be formatted.
    #[serde(default)]
    pub must_be_blank: bool,
}

fn remote_queues() -> u16 {
    2
}

fn remote_queue_depth() -> u16 {
    128
}

/// The default of the kernel's initiator.
fn remote_loss_timeout_s() -> u32 {
    600
}

impl RemoteSpec {
    /// With the usual queues, without digests and secrets.
    pub fn new(
        name: impl Into<String>,
        address: impl Into<String>,
        subsystem_nqn: impl Into<String>,
        nsid: u32,
    ) -> RemoteSpec {
        RemoteSpec {
            name: name.into(),
            address: address.into(),
            subsystem_nqn: subsystem_nqn.into(),
            nsid,
            host_nqn: None,
            queues: remote_queues(),
            queue_depth: remote_queue_depth(),
            header_digest: false,
            data_digest: false,
            secrets: SecretPlaces::default(),
            loss_timeout_s: remote_loss_timeout_s(),
            must_be_blank: false,
        }
    }

    /// Its description in a record.
    pub fn describe(&self) -> DeviceDescription {
        DeviceDescription { id: DeviceId::new(&self.name), ..DeviceDescription::default() }
    }
}

/// One block device that a program will see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeSpec {
    pub name: String,
    pub root: StackNode,
    /// As how many directories the volume is shown, `dir-0` and on, if more than one.
    #[serde(default = "one")]
    pub directories: u32,
}

fn one() -> u32 {
    1
}

/// A device, or a layer over what lies below it.
// There are few of them, and they are read once: a box would only be in the way.
#[expect(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StackNode {
    Device(DeviceSpec),
    /// It is elsewhere. Nothing is modelled of it here, and the network to it is a real one.
    Remote(RemoteSpec),
    Stripe {
        /// Bytes on one member before the stripe goes on to the next.
        chunk_bytes: u64,
        members: Vec<StackNode>,
    },
    /// The same on every member.
    Mirror {
        members: Vec<StackNode>,
    },
    /// Stored compressed.
    Compress {
        codec: CompressionCodec,
        /// The bytes that are compressed as one.
        #[serde(default = "compressed_chunk_bytes")]
        chunk_bytes: u32,
        /// As long as the member's space for chunks unless told.
        #[serde(default)]
        capacity_bytes: Option<u64>,
        member: Box<StackNode>,
    },
    /// A fast device before a slow one.
    Cache {
        mode: CacheMode,
        fast: Box<StackNode>,
        slow: Box<StackNode>,
        /// Longer requests pass by.
        #[serde(default = "cache_bypass_bytes")]
        bypass_bytes: u64,
        /// Of a write-back cache: more than this is written back.
        #[serde(default = "cache_dirty_percent")]
        dirty_percent: u32,
    },
    /// A link to the member, with this bandwidth each way.
    Link {
        bandwidth_mb_s: f64,
        /// The way there alone.
        latency_us: f64,
        member: Box<StackNode>,
    },
}

fn compressed_chunk_bytes() -> u32 {
    16 << 10
}

fn cache_bypass_bytes() -> u64 {
    CacheSettings::new(CacheMode::Read).bypass_bytes
}

fn cache_dirty_percent() -> u32 {
    CacheSettings::new(CacheMode::Read).dirty_percent
}

impl StackNode {
    /// A cache with its usual settings.
    pub fn cache(mode: CacheMode, fast: StackNode, slow: StackNode) -> StackNode {
        let (bypass_bytes, dirty_percent) = (cache_bypass_bytes(), cache_dirty_percent());
        StackNode::Cache { mode, fast: Box::new(fast), slow: Box::new(slow), bypass_bytes, dirty_percent }
    }

    /// Compression with its usual settings.
    pub fn compress(codec: CompressionCodec, member: StackNode) -> StackNode {
        let chunk_bytes = compressed_chunk_bytes();
        StackNode::Compress { codec, chunk_bytes, capacity_bytes: None, member: Box::new(member) }
    }

    /// The nodes directly below.
    pub fn members(&self) -> Vec<&StackNode> {
        match self {
            StackNode::Device(_) | StackNode::Remote(_) => Vec::new(),
            StackNode::Stripe { members, .. } | StackNode::Mirror { members } => members.iter().collect(),
            StackNode::Compress { member, .. } | StackNode::Link { member, .. } => vec![member],
            StackNode::Cache { fast, slow, .. } => vec![fast, slow],
        }
    }

    /// All devices below that are elsewhere, in order.
    pub fn remotes(&self) -> Vec<&RemoteSpec> {
        match self {
            StackNode::Remote(remote) => vec![remote],
            layer => layer.members().into_iter().flat_map(StackNode::remotes).collect(),
        }
    }

    /// Whether requests reach the devices below as they came, split at most.
    pub(crate) fn is_direct(&self) -> bool {
        match self {
            StackNode::Device(_) => true,
            StackNode::Stripe { members, .. } => members.iter().all(StackNode::is_direct),
            StackNode::Remote(_)
            | StackNode::Link { .. }
            | StackNode::Mirror { .. }
            | StackNode::Compress { .. }
            | StackNode::Cache { .. } => false,
        }
    }

    /// Whether every device below has logical sectors of 512 bytes. Compression works in blocks of 4 KiB (as dm-vdo
    /// does unless it emulates others), and what is elsewhere has the blocks that its server gives it.
    fn has_small_sectors(&self) -> bool {
        match self {
            StackNode::Device(device) => {
                device.medium.as_ref().is_some_and(CatalogueMedium::has_small_sectors)
            }
            StackNode::Remote(_) | StackNode::Compress { .. } => false,
            layer => layer.members().into_iter().all(StackNode::has_small_sectors),
        }
    }

    /// All devices below, in order, but for those that are elsewhere.
    pub fn devices(&self) -> Vec<&DeviceSpec> {
        match self {
            StackNode::Device(device) => vec![device],
            layer => layer.members().into_iter().flat_map(StackNode::devices).collect(),
        }
    }

    /// Changes every device below, in order, but for those that are elsewhere.
    pub fn for_each_device(&mut self, change: &mut impl FnMut(&mut DeviceSpec)) {
        match self {
            StackNode::Device(device) => change(device),
            StackNode::Remote(_) => {}
            StackNode::Stripe { members, .. } | StackNode::Mirror { members } => {
                members.iter_mut().for_each(|member| member.for_each_device(change));
            }
            StackNode::Compress { member, .. } | StackNode::Link { member, .. } => {
                member.for_each_device(change)
            }
            StackNode::Cache { fast, slow, .. } => {
                fast.for_each_device(change);
                slow.for_each_device(change);
            }
        }
    }
}

impl VolumeSpec {
    /// Shown as one directory.
    pub fn new(name: impl Into<String>, root: StackNode) -> VolumeSpec {
        VolumeSpec { name: name.into(), root, directories: 1 }
    }

    /// A device alone, or several striped.
    pub fn striped(name: impl Into<String>, devices: Vec<DeviceSpec>, chunk_bytes: u64) -> VolumeSpec {
        let mut members: Vec<StackNode> = devices.into_iter().map(StackNode::Device).collect();
        let root = match members.len() {
            1 => members.remove(0),
            _ => StackNode::Stripe { chunk_bytes, members },
        };
        VolumeSpec::new(name, root)
    }

    pub fn devices(&self) -> Vec<&DeviceSpec> {
        self.root.devices()
    }

    pub fn remotes(&self) -> Vec<&RemoteSpec> {
        self.root.remotes()
    }

    /// Whether a disk below it makes it seek, alone or striped with other devices. Kernel and programs treat such a
    /// device differently; filesystems choose their allocation by it.
    pub fn is_rotational(&self) -> bool {
        let turns = |device: &DeviceSpec| device.medium.as_ref().is_some_and(|m| m.model.is_rotational());
        self.devices().into_iter().any(turns)
    }
}

impl VolumeSpec {
    /// Whether programs may address it in sectors of 512 bytes, which takes every device below it.
    pub fn has_small_sectors(&self) -> bool {
        self.root.has_small_sectors()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackSpec {
    pub volumes: Vec<VolumeSpec>,
    /// Slow motion: `scale.time` of the study.
    pub dilation: f64,
    pub seed: u64,
}

impl StackSpec {
    /// Whether any request to it is dated back: see [`crate::paced::Paced`].
    pub fn has_path(&self) -> bool {
        let takes_time = |device: &&DeviceSpec| device.medium.is_some();
        let mut direct = self.volumes.iter().filter(|volume| volume.root.is_direct());
        direct.any(|volume| volume.devices().iter().any(takes_time))
    }
}
