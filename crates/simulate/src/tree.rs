//! Layers over disks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underlay_storage::device::BlockDevice;
use underlay_storage::layers::cache::{CacheMode, CacheSettings};
use underlay_storage::layers::compress::{Codec, CompressSettings};
use underlay_storage::layers::mirror::MirrorSettings;
use underlay_storage::layers::workers::Workers;
use underlay_storage::layers::{Cache, Compress, Mirror, Stripe};
use underlay_sync::simulation::Random;

/// What is built over disks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tree {
    Disk,
    Stripe(Vec<Tree>),
    Mirror(Vec<Tree>),
    Compress(Box<Tree>),
    /// The fast one, then the slow one.
    ReadCache(Box<[Tree; 2]>),
    WriteBack(Box<[Tree; 2]>),
}

impl Tree {
    pub fn draw(random: &mut Random) -> Tree {
        let inner = |random: &mut Random| match random.below(4) {
            0 => Tree::Mirror(vec![Tree::Disk, Tree::Disk]),
            _ => Tree::Disk,
        };
        match random.below(6) {
            0 | 1 => {
                let count = 2 + random.below(2);
                Tree::Mirror((0..count).map(|_| Tree::Disk).collect())
            }
            2 => Tree::Stripe(vec![inner(random), inner(random)]),
            3 => Tree::Compress(Box::new(inner(random))),
            4 => Tree::WriteBack(Box::new([inner(random), inner(random)])),
            _ => Tree::ReadCache(Box::new([Tree::Disk, inner(random)])),
        }
    }

    pub fn disks(&self) -> usize {
        match self {
            Tree::Disk => 1,
            Tree::Stripe(members) | Tree::Mirror(members) => members.iter().map(Tree::disks).sum(),
            Tree::Compress(member) => member.disks(),
            Tree::ReadCache(members) | Tree::WriteBack(members) => members.iter().map(Tree::disks).sum(),
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
        let mut all = |members: &[Tree]| -> Result<Vec<Arc<dyn BlockDevice>>, String> {
            members.iter().map(|member| member.open(disks)).collect()
        };
        let said = |error: &dyn std::fmt::Display| error.to_string();
        Ok(match self {
            Tree::Disk => disks.next().ok_or("there are too few disks")?,
            Tree::Stripe(members) => {
                Arc::new(Stripe::new(all(members)?, 8192).map_err(|error| said(&error))?)
            }
            Tree::Mirror(members) => {
                let settings = MirrorSettings { region_bytes: 16 << 10, marked_regions: 2 };
                Arc::new(Mirror::open(all(members)?, settings).map_err(|error| said(&error))?)
            }
            Tree::Compress(member) => {
                let codec = Codec::Lz4;
                let settings = CompressSettings { codec, chunk_bytes: 16 << 10, capacity_bytes: None };
                let member = member.open(disks)?;
                let opened = Compress::open(member, settings, Workers::at_once());
                Arc::new(opened.map_err(|error| said(&error))?)
            }
            Tree::ReadCache(members) | Tree::WriteBack(members) => {
                let mode = match self {
                    Tree::ReadCache(_) => CacheMode::Read,
                    _ => CacheMode::WriteBack,
                };
                let opened = all(&members[..])?;
                let settings = CacheSettings { bypass_bytes: 8 * 4096, ..CacheSettings::new(mode) };
                let [fast, slow] = &opened[..] else { return Err("a cache has two members".into()) };
                let cache = Cache::open(Arc::clone(fast), Arc::clone(slow), settings);
                Arc::new(cache.map_err(|error| said(&error))?)
            }
        })
    }
}
