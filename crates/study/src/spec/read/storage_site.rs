//! A storage configuration as read, with the positions that later checks need.

use std::ops::Range;

use super::system::SettingsSite;
use crate::spec::model::{DeviceSpec, StorageLayout, StorageSource, StorageSpec};

/// A storage configuration with the positions that later checks need.
#[derive(Clone)]
pub(in crate::spec) struct StorageSite {
    pub spec: StorageSpec,
    /// `devices` or `paths`.
    pub source_span: Range<usize>,
    /// `layout` if present, else `devices`.
    pub layout_span: Range<usize>,
    pub cache_span: Option<Range<usize>>,
    /// The devices of its pool.
    pub pool_span: Option<Range<usize>>,
    /// `system`: settings that apply to this storage configuration, with their positions.
    pub settings: SettingsSite,
    pub settings_span: Range<usize>,
}

impl StorageSite {
    pub(crate) fn new(
        name: String,
        source: StorageSource,
        source_span: Range<usize>,
        layout_span: Range<usize>,
        cache_span: Option<Range<usize>>,
    ) -> Self {
        StorageSite {
            spec: StorageSpec {
                name,
                source,
                per_node: false,
                nodes: 1,
                read_ahead_bytes: None,
                settings: Default::default(),
            },
            source_span,
            layout_span,
            cache_span,
            pool_span: None,
            settings: SettingsSite::new(),
            settings_span: 0..0,
        }
    }

    /// Unscaled capacities of the volumes of a server, or of each node that has its own; empty for real paths.
    pub(crate) fn volumes_bytes(&self) -> Vec<u64> {
        let (devices, layout) = match &self.spec.source {
            StorageSource::Modelled { devices, layout, .. } => (devices, layout),
            StorageSource::Volume(volume) => return vec![volume.capacity_bytes],
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => return Vec::new(),
        };
        let each = devices.iter().flat_map(DeviceSpec::capacities);
        match layout {
            StorageLayout::Stripe { .. } | StorageLayout::Split { .. } => {
                vec![each.fold(0, u64::saturating_add)]
            }
            StorageLayout::Mirror => each.min().into_iter().collect(),
            StorageLayout::Jbod => each.collect(),
        }
    }

    /// The number of directories of a system, or of each node that has its own.
    pub(crate) fn directories(&self) -> usize {
        match &self.spec.source {
            StorageSource::Modelled { layout: StorageLayout::Split { directories, .. }, .. } => {
                *directories as usize
            }
            StorageSource::Modelled { layout: StorageLayout::Jbod, devices, .. } => {
                devices.iter().map(|device| device.count as usize * device.directories as usize).sum()
            }
            StorageSource::Modelled { .. } | StorageSource::Volume(_) => self.volumes_bytes().len(),
            StorageSource::Paths(paths) => paths.len(),
            StorageSource::Elsewhere(_) => 1,
        }
    }
}
