//! Storage configurations that could be bought: devices of the catalogue and their arrangement.

use underlay_record::PriceSum;
use underlay_storage::catalogue::{CatalogueMedium, LayoutPreset, PresetLayout};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, VolumeSpec};

use super::{OfferCache, OfferPart, StorageGoal};

/// Bytes on one device before the stripe continues on the next: a study's default.
pub(super) const CHUNK_BYTES: u64 = 512 << 10;
/// Devices are whole multiples of this, as in a study.
const CAPACITY_UNIT_BYTES: u64 = 1 << 20;

/// Equal devices, and the number of directories on each.
#[derive(Clone, Debug)]
pub(super) struct OfferDevices {
    pub medium: CatalogueMedium,
    pub count: u32,
    pub directories: u32,
}

/// Devices that replace the point's own.
#[derive(Clone, Debug)]
pub(super) struct DeviceChoice {
    pub name: String,
    pub devices: Vec<OfferDevices>,
    pub layout: PresetLayout,
    /// A device in front of all of them.
    pub cache: Option<(CatalogueMedium, CacheMode)>,
    /// A layout of the catalogue.
    pub preset: Option<String>,
}

impl DeviceChoice {
    /// This many devices of a medium as one volume, perhaps with a cache.
    pub(super) fn striped(
        medium: &CatalogueMedium,
        count: u32,
        cache: Option<(&CatalogueMedium, CacheMode)>,
    ) -> DeviceChoice {
        let suffix = cache.map(|(fast, mode)| format!(" + {} {}", fast.name, mode_in_words(mode)));
        DeviceChoice {
            name: format!("{count} x {}{}", named(medium), suffix.unwrap_or_default()),
            devices: vec![OfferDevices { medium: medium.clone(), count, directories: 1 }],
            layout: PresetLayout::Stripe { chunk_bytes: CHUNK_BYTES },
            cache: cache.map(|(fast, mode)| (fast.clone(), mode)),
            preset: None,
        }
    }

    /// This many slow devices and a fast one, each with its own directories. The fast one has more in proportion to its
    /// size.
    pub(super) fn side_by_side(slow: &CatalogueMedium, count: u32, fast: &CatalogueMedium) -> DeviceChoice {
        let directories = (fast.capacity_bytes() / slow.capacity_bytes().max(1)).clamp(1, 16) as u32;
        DeviceChoice {
            name: format!("{count} x {} beside {}", named(slow), fast.name),
            devices: vec![
                OfferDevices { medium: slow.clone(), count, directories: 1 },
                OfferDevices { medium: fast.clone(), count: 1, directories },
            ],
            layout: PresetLayout::Jbod,
            cache: None,
            preset: None,
        }
    }

    /// A published layout.
    ///
    /// # Errors
    /// When one of its media is not in the catalogue.
    pub(super) fn from_layout(layout: &LayoutPreset) -> Result<DeviceChoice, String> {
        let devices: Vec<OfferDevices> =
            layout.media().map(|(medium, count)| OfferDevices { medium, count, directories: 1 }).collect();
        if devices.len() < layout.devices.len() || devices.is_empty() {
            return Err("its medium is not known".to_owned());
        }
        Ok(DeviceChoice {
            name: layout.name.clone(),
            devices,
            layout: layout.layout,
            cache: None,
            preset: Some(layout.name.clone()),
        })
    }

    pub(super) fn count(&self) -> u32 {
        self.devices.iter().map(|one| one.count).sum::<u32>() + u32::from(self.cache.is_some())
    }

    /// The number of devices that hold data, without the cache's.
    pub(super) fn holding(&self) -> u32 {
        self.devices.iter().map(|one| one.count).sum()
    }

    pub(super) fn price(&self) -> PriceSum {
        let cache = self.cache.as_ref().map(|(medium, _)| medium.price());
        self.devices.iter().map(|one| one.medium.price() * f64::from(one.count)).chain(cache).sum()
    }

    /// Its capacity if its directories fill evenly.
    pub(super) fn capacity_bytes(&self) -> f64 {
        let each = |one: &OfferDevices| one.medium.capacity_bytes() as f64;
        let smallest = self.devices.iter().map(each).fold(f64::INFINITY, f64::min);
        match self.layout {
            PresetLayout::Mirror => smallest,
            PresetLayout::Jbod => {
                let directories: u32 = self.devices.iter().map(|one| one.count * one.directories).sum();
                let fullest = self.devices.iter().map(|one| each(one) / f64::from(one.directories));
                f64::from(directories) * fullest.fold(f64::INFINITY, f64::min)
            }
            _ => smallest * f64::from(self.holding()),
        }
    }

    /// Whether each device is one directory, or several.
    pub(super) fn has_directories(&self) -> bool {
        self.layout == PresetLayout::Jbod && self.holding() > 1
    }

    pub(super) fn layout_name(&self) -> &'static str {
        match self.layout {
            _ if self.holding() == 1 => "single",
            PresetLayout::Mirror => "mirror",
            PresetLayout::Jbod => "jbod",
            _ => "stripe",
        }
    }

    pub(super) fn parts(&self) -> Vec<OfferPart> {
        let part = |one: &OfferDevices| OfferPart {
            medium: one.medium.name.clone(),
            devices: one.count,
            directories: one.directories,
            capacity_bytes: one.medium.volume.as_ref().map(|_| one.medium.capacity_bytes() as f64),
        };
        self.devices.iter().map(part).collect()
    }

    pub(super) fn cache(&self) -> Option<OfferCache> {
        self.cache.as_ref().map(|(medium, mode)| OfferCache {
            medium: medium.name.clone(),
            capacity_bytes: medium.capacity_bytes() as f64,
            mode: match mode {
                CacheMode::Read => "read",
                CacheMode::WriteBack => "write-back",
            },
        })
    }

    /// After the data scale, as in a study.
    pub(super) fn volumes(&self, wanted: &StorageGoal) -> Vec<VolumeSpec> {
        let device = |name: String, medium: &CatalogueMedium| {
            let units = (medium.capacity_bytes() as f64 / wanted.data_scale) as u64 / CAPACITY_UNIT_BYTES;
            let capacity_bytes = (units * CAPACITY_UNIT_BYTES).max(CAPACITY_UNIT_BYTES);
            DeviceSpec {
                initial: wanted.initial,
                ..DeviceSpec::new(name, Some(medium.clone()), capacity_bytes, BackingSpec::Null)
            }
        };
        let mut devices: Vec<(DeviceSpec, u32)> = Vec::new();
        for one in &self.devices {
            for _ in 0..one.count {
                let name = format!("{}.{}", one.medium.name, devices.len());
                devices.push((device(name, &one.medium), one.directories));
            }
        }
        // One directory each, as in a study.
        if self.layout == PresetLayout::Jbod {
            let alone = |(device, directories)| VolumeSpec {
                directories,
                ..VolumeSpec::striped("volume", vec![device], CHUNK_BYTES)
            };
            return devices.into_iter().map(alone).collect();
        }
        let devices: Vec<DeviceSpec> = devices.into_iter().map(|(device, _)| device).collect();
        let volume = match self.layout {
            PresetLayout::Mirror => {
                let members = devices.into_iter().map(StackNode::Device).collect();
                VolumeSpec::new("volume", StackNode::Mirror { members })
            }
            PresetLayout::Stripe { chunk_bytes } | PresetLayout::Split { chunk_bytes, .. } => {
                VolumeSpec::striped("volume", devices, chunk_bytes)
            }
            PresetLayout::Jbod => unreachable!("answered above"),
        };
        let Some((medium, mode)) = &self.cache else { return vec![volume] };
        let fast = StackNode::Device(device(format!("{}.cache-0", medium.name), medium));
        vec![VolumeSpec { root: StackNode::cache(*mode, fast, volume.root), ..volume }]
    }
}

/// `ebs-gp2 of 2 TiB`: a volume that is sold by size needs the size in its name.
fn named(medium: &CatalogueMedium) -> String {
    match &medium.volume {
        Some(_) => format!("{} of {}", medium.name, medium.size_text()),
        None => medium.name.clone(),
    }
}

fn mode_in_words(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::Read => "as read cache",
        CacheMode::WriteBack => "as write-back cache",
    }
}
