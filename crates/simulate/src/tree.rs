//! Layers over disks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underlay_storage::device::BlockDevice;
use underlay_storage::layers::cache::{CacheMode, CacheSettings};
use underlay_storage::layers::compress::{CompressSettings, CompressionCodec};
use underlay_storage::layers::mirror::MirrorSettings;
use underlay_storage::layers::workers::WorkerThreads;
use underlay_storage::layers::{CacheLayer, CompressLayer, Mirror, Stripe};
use underlay_sync::simulation::SimulationRng;

/// What is built over disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceTree {
    Disk,
    Stripe(Vec<DeviceTree>),
    Mirror(Vec<DeviceTree>),
    Compress(Box<DeviceTree>),
    /// The fast one, then the slow one.
    ReadCache(Box<[DeviceTree; 2]>),
    WriteBack(Box<[DeviceTree; 2]>),
}

impl DeviceTree {
    pub fn draw(random: &mut SimulationRng) -> DeviceTree {
        let inner = |random: &mut SimulationRng| match random.below(4) {
            0 => DeviceTree::Mirror(vec![DeviceTree::Disk, DeviceTree::Disk]),
            _ => DeviceTree::Disk,
        };
        match random.below(6) {
            0 | 1 => {
                let count = 2 + random.below(2);
                DeviceTree::Mirror((0..count).map(|_| DeviceTree::Disk).collect())
            }
            2 => DeviceTree::Stripe(vec![inner(random), inner(random)]),
            3 => DeviceTree::Compress(Box::new(inner(random))),
            4 => DeviceTree::WriteBack(Box::new([inner(random), inner(random)])),
            _ => DeviceTree::ReadCache(Box::new([DeviceTree::Disk, inner(random)])),
        }
    }

    pub fn disks(&self) -> usize {
        match self {
            DeviceTree::Disk => 1,
            DeviceTree::Stripe(members) | DeviceTree::Mirror(members) => {
                members.iter().map(DeviceTree::disks).sum()
            }
            DeviceTree::Compress(member) => member.disks(),
            DeviceTree::ReadCache(members) | DeviceTree::WriteBack(members) => {
                members.iter().map(DeviceTree::disks).sum()
            }
        }
    }

    /// Waits for the disks.
    ///
    /// # Errors
    /// What a layer says.
    pub fn open(
        &self,
        disks: &mut impl Iterator<Item = Arc<dyn BlockDevice>>,
    ) -> Result<Arc<dyn BlockDevice>, String> {
        let mut all = |members: &[DeviceTree]| -> Result<Vec<Arc<dyn BlockDevice>>, String> {
            members.iter().map(|member| member.open(disks)).collect()
        };
        let message_of = |error: &dyn std::fmt::Display| error.to_string();
        Ok(match self {
            DeviceTree::Disk => disks.next().ok_or("there are too few disks")?,
            DeviceTree::Stripe(members) => {
                Arc::new(Stripe::new(all(members)?, 8192).map_err(|error| message_of(&error))?)
            }
            DeviceTree::Mirror(members) => {
                let settings = MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 };
                Arc::new(Mirror::open(all(members)?, settings).map_err(|error| message_of(&error))?)
            }
            DeviceTree::Compress(member) => {
                let codec = CompressionCodec::Lz4;
                let settings = CompressSettings { codec, chunk_bytes: 16 << 10, capacity_bytes: None };
                let member = member.open(disks)?;
                let opened = CompressLayer::open(member, settings, WorkerThreads::inline());
                Arc::new(opened.map_err(|error| message_of(&error))?)
            }
            DeviceTree::ReadCache(members) | DeviceTree::WriteBack(members) => {
                let mode = match self {
                    DeviceTree::ReadCache(_) => CacheMode::Read,
                    _ => CacheMode::WriteBack,
                };
                let opened = all(&members[..])?;
                let settings = CacheSettings { bypass_bytes: 8 * 4096, ..CacheSettings::new(mode) };
                let [fast, slow] = &opened[..] else { return Err("a cache has two members".into()) };
                let cache = CacheLayer::open(Arc::clone(fast), Arc::clone(slow), settings);
                Arc::new(cache.map_err(|error| message_of(&error))?)
            }
        })
    }
}
