//! From a study's storage to what is attached: devices scaled down, named, and given backing files.

use std::path::{Path, PathBuf};

use underlay_attach::{AttachError, AttachSpec, Attached, Attachment as _, RealPaths, Registry};
use underlay_record::{DeviceDescription, StorageRecord};
use underlay_storage::catalogue::Medium;
use underlay_storage::stack::{BackingSpec, DeviceSpec, Node, StackSpec, VolumeSpec};

use crate::spec::{Filesystem, Layout, StorageSource, StorageSpec};

/// Capacities are whole multiples of this, so that every chunk size divides them.
const CAPACITY_UNIT_BYTES: u64 = 1 << 20;

/// The modelled devices of a storage in order: (name, medium, unscaled capacity).
fn devices(storage: &StorageSpec) -> Vec<(String, &Medium, u64)> {
    let StorageSource::Modelled { devices, .. } = &storage.source else { return Vec::new() };
    let mut named = Vec::new();
    for spec in devices {
        for _ in 0..spec.count {
            let name = format!("{}.{}", spec.medium.name, named.len());
            named.push((name, &spec.medium, spec.capacity_bytes.unwrap_or(spec.medium.capacity_bytes())));
        }
    }
    named
}

/// The stack of a modelled storage with its backing files below `images`; `None` for real paths.
pub fn stack(
    storage: &StorageSpec,
    images: &Path,
    data_scale: f64,
    dilation: f64,
    seed: u64,
) -> Option<StackSpec> {
    let StorageSource::Modelled { layout, initial, .. } = &storage.source else { return None };
    let specs: Vec<DeviceSpec> = devices(storage)
        .into_iter()
        .map(|(name, medium, capacity_bytes)| {
            let units = (capacity_bytes as f64 / data_scale) as u64 / CAPACITY_UNIT_BYTES;
            let backing = BackingSpec::File(images.join(format!("{name}.img")));
            DeviceSpec {
                initial: *initial,
                ..DeviceSpec::new(name, Some(medium.clone()), units * CAPACITY_UNIT_BYTES, backing)
            }
        })
        .collect();
    let volumes = match layout {
        Layout::Mirror => unimplemented!("XXX layers"),
        Layout::Stripe { chunk_bytes } | Layout::Split { chunk_bytes, .. } => {
            vec![VolumeSpec::striped(&storage.name, specs, *chunk_bytes)]
        }
        Layout::Jbod => specs
            .into_iter()
            .enumerate()
            .map(|(index, device)| VolumeSpec {
                name: format!("{}-{index}", storage.name),
                root: Node::Device(device),
            })
            .collect(),
    };
    Some(StackSpec { volumes, dilation, seed })
}

/// The backing files that a stack uses.
pub fn image_files(stack: &StackSpec) -> Vec<PathBuf> {
    let devices = stack.volumes.iter().flat_map(VolumeSpec::devices);
    devices
        .filter_map(|device| match &device.backing {
            BackingSpec::File(path) => Some(path.clone()),
            BackingSpec::Memory | BackingSpec::Null => None,
        })
        .collect()
}

pub fn filesystem(storage: &StorageSpec) -> underlay_attach::Filesystem {
    match &storage.source {
        StorageSource::Modelled { filesystem: Filesystem::Ext4, .. } => underlay_attach::Filesystem::Ext4,
        _ => underlay_attach::Filesystem::Xfs,
    }
}

/// How a stack is attached: formatted anew, or with the file system that its images hold.
pub fn attach_spec(storage: &StorageSpec, stack: StackSpec, mount_root: &Path, format: bool) -> AttachSpec {
    AttachSpec {
        stack,
        filesystem: filesystem(storage),
        mount_root: mount_root.to_path_buf(),
        mount_point: None,
        format,
    }
}

/// Attaches real directories: a fresh folder in each.
pub fn attach_paths(storage: &StorageSpec, registry: &Registry) -> Result<Attached, AttachError> {
    let StorageSource::Paths(paths) = &storage.source else {
        unreachable!("only real paths are attached as such");
    };
    let spec = AttachSpec {
        stack: StackSpec { volumes: Vec::new(), dilation: 1.0, seed: 0 },
        filesystem: underlay_attach::Filesystem::default(),
        mount_root: PathBuf::new(),
        mount_point: None,
        format: false,
    };
    RealPaths::new(paths.clone()).attach(&spec, registry)
}

/// What the record says of a storage.
pub fn describe(storage: &StorageSpec, attachment: &str) -> StorageRecord {
    let (filesystem, layout) = match &storage.source {
        StorageSource::Modelled { filesystem, layout, devices, .. } => {
            let single = devices.iter().map(|device| device.count).sum::<u32>() == 1;
            let layout = match layout {
                _ if single => "single".to_owned(),
                Layout::Stripe { chunk_bytes } => format!("stripe, chunks of {} KiB", chunk_bytes / 1024),
                Layout::Jbod => "jbod".to_owned(),
                Layout::Mirror => "mirror".to_owned(),
                Layout::Split { directories, .. } => format!("split into {directories} directories"),
            };
            (Some(filesystem.name().to_owned()), layout)
        }
        StorageSource::Paths(_) => (None, "paths".to_owned()),
    };
    let descriptions = match &storage.source {
        StorageSource::Modelled { .. } => devices(storage)
            .into_iter()
            .map(|(name, medium, _used_bytes)| DeviceDescription {
                name,
                medium: Some(medium.name.clone()),
                // The price buys all of it, however much the study uses.
                capacity_bytes: Some(medium.capacity_bytes()),
                price_usd: Some(medium.price_usd()),
                price_source: Some(medium.price_source()),
            })
            .collect(),
        StorageSource::Paths(paths) => paths
            .iter()
            .map(|path| DeviceDescription {
                name: path.display().to_string(),
                ..DeviceDescription::default()
            })
            .collect(),
    };
    StorageRecord { attachment: attachment.to_owned(), filesystem, layout, devices: descriptions }
}
