//! From a study's storage configuration to what is attached: devices scaled down, named, and given backing files.

use std::path::{Path, PathBuf};

use underlay_attach::{
    AttachError, AttachSpec, AttachedStorage, Attachment as _, RealPaths, ResourceRegistry,
};
use underlay_record::{DeviceArrangement, DeviceDescription, DeviceId, StorageRecord, TopologyRecord};
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::{BackingSpec, DeviceSpec, InitialState, StackNode, StackSpec, VolumeSpec};

use super::volume_server::volume_name;
use crate::spec::{
    LinkSpec, PoolVolume, StorageLayout, StorageSource, StorageSpec, VolumeFilesystem, VolumeLayers,
};
use underlay_config::units::{format_bytes, rounded_bytes};

/// Capacities are whole multiples of this, so that every chunk size divides them.
const CAPACITY_UNIT_BYTES: u64 = 1 << 20;

/// The modelled devices of a storage configuration in order, node by node where each has its own. For a volume, the
/// devices of its pool: (name, medium, unscaled capacity).
fn devices(storage: &StorageSpec) -> Vec<(String, &CatalogueMedium, u64)> {
    let mut named = Vec::new();
    for spec in std::iter::repeat_n(storage.devices(), storage.nodes as usize).flatten() {
        for _ in 0..spec.count {
            let name = format!("{}.{}", spec.medium.name, named.len());
            named.push((name, &spec.medium, spec.capacity_bytes.unwrap_or(spec.medium.capacity_bytes())));
        }
    }
    named
}

/// The names of the devices that `devices` lists, in its order, without those of caches.
pub fn device_names(storage: &StorageSpec) -> Vec<String> {
    devices(storage).into_iter().map(|(name, ..)| name).collect()
}

/// The stack of a modelled storage configuration, with its backing files below `images`; `None` for any other.
pub fn stack(
    storage: &StorageSpec,
    images: &Path,
    data_scale: f64,
    dilation: f64,
    seed: u64,
) -> Option<StackSpec> {
    let StorageSource::Modelled { layout, layers, initial, .. } = &storage.source else { return None };
    let device = |name: String, medium: &CatalogueMedium, capacity_bytes: u64| {
        let units = (capacity_bytes as f64 / data_scale) as u64 / CAPACITY_UNIT_BYTES;
        let backing = BackingSpec::File(images.join(format!("{name}.img")));
        DeviceSpec {
            initial: *initial,
            ..DeviceSpec::new(name, Some(medium.clone()), units * CAPACITY_UNIT_BYTES, backing)
        }
    };
    let specs: Vec<DeviceSpec> = devices(storage)
        .into_iter()
        .map(|(name, medium, capacity_bytes)| device(name, medium, capacity_bytes))
        .collect();
    let of_a_node = (specs.len() / storage.nodes.max(1) as usize).max(1);
    let nodes = specs.chunks(of_a_node).enumerate();
    let volumes = nodes.flat_map(|(node, specs)| {
        let name = match storage.nodes {
            0 | 1 => storage.name.clone(),
            _ => format!("{}-node{}", storage.name, node + 1),
        };
        volumes_of(&name, layout, storage.devices(), specs.to_vec())
    });
    let over = |(index, volume): (usize, VolumeSpec)| {
        let root = with_layers(volume.root, layers, index, &device);
        VolumeSpec { root, ..volume }
    };
    Some(StackSpec { volumes: volumes.enumerate().map(over).collect(), dilation, seed })
}

/// Devices arranged by the layout, without layers.
fn volumes_of(
    name: &str,
    layout: &StorageLayout,
    entries: &[crate::spec::DeviceSpec],
    specs: Vec<DeviceSpec>,
) -> Vec<VolumeSpec> {
    match layout {
        StorageLayout::Stripe { chunk_bytes } => vec![VolumeSpec::striped(name, specs, *chunk_bytes)],
        StorageLayout::Split { chunk_bytes, directories } => {
            let volume = VolumeSpec::striped(name, specs, *chunk_bytes);
            vec![VolumeSpec { directories: *directories, ..volume }]
        }
        StorageLayout::Mirror => {
            let members = specs.into_iter().map(StackNode::Device).collect();
            vec![VolumeSpec::new(name, StackNode::Mirror { members })]
        }
        StorageLayout::Jbod => {
            let directories =
                entries.iter().flat_map(|entry| std::iter::repeat_n(entry.directories, entry.count as usize));
            let each = specs.into_iter().zip(directories).enumerate();
            each.map(|(index, (device, directories))| {
                let volume = VolumeSpec::new(format!("{name}-{index}"), StackNode::Device(device));
                VolumeSpec { directories, ..volume }
            })
            .collect()
        }
    }
}

/// Puts the storage configuration's layers on a volume, from the devices up. Each volume has its own cache device.
fn with_layers(
    mut node: StackNode,
    layers: &VolumeLayers,
    volume: usize,
    device: &impl Fn(String, &CatalogueMedium, u64) -> DeviceSpec,
) -> StackNode {
    if let Some(cache) = &layers.cache {
        let name = format!("{}.cache-{volume}", cache.medium.name);
        let fast = StackNode::Device(device(name, &cache.medium, cache.capacity_bytes));
        node = StackNode::cache(cache.mode, fast, node);
    }
    if let Some(codec) = layers.compress {
        node = StackNode::compress(codec, node);
    }
    if let Some(LinkSpec { bandwidth_mb_s, latency_us }) = layers.link {
        node = StackNode::Link { bandwidth_mb_s, latency_us, member: Box::new(node) };
    }
    node
}

/// The devices of a volume's pool, after the data scale, and empty.
pub fn pool_devices(storage: &StorageSpec, data_scale: f64) -> Vec<DeviceSpec> {
    let initial = match &storage.source {
        StorageSource::Volume(volume) => volume.pool.initial,
        _ => InitialState::default(),
    };
    let device = |(name, medium, capacity_bytes): (String, &CatalogueMedium, u64)| {
        let units = (capacity_bytes as f64 / data_scale) as u64 / CAPACITY_UNIT_BYTES;
        let capacity_bytes = units * CAPACITY_UNIT_BYTES;
        DeviceSpec {
            initial,
            ..DeviceSpec::new(name, Some(medium.clone()), capacity_bytes, BackingSpec::Null)
        }
    };
    devices(storage).into_iter().map(device).collect()
}

/// The stack of one server's volume, reached through `way`.
pub fn stack_of_volume(storage: &StorageSpec, way: StackNode, dilation: f64, seed: u64) -> StackSpec {
    let link = match &storage.source {
        StorageSource::Volume(volume) => volume.link,
        _ => None,
    };
    let root = match link {
        Some(LinkSpec { bandwidth_mb_s, latency_us }) => {
            StackNode::Link { bandwidth_mb_s, latency_us, member: Box::new(way) }
        }
        None => way,
    };
    StackSpec { volumes: vec![VolumeSpec::new(&storage.name, root)], dilation, seed }
}

/// The device below each directory of a server, in order, under its name in the record. `None` where there are several,
/// or it is unknown.
pub fn devices_of_directories(storage: &StorageSpec) -> Vec<Option<String>> {
    if let StorageSource::Paths(paths) = &storage.source {
        return paths.iter().map(|path| Some(path.display().to_string())).collect();
    }
    let stack = stack(storage, Path::new(""), 1.0, 1.0, 0);
    let volumes = stack.iter().flat_map(|stack| &stack.volumes);
    volumes
        .flat_map(|volume| {
            let device = match volume.devices().as_slice() {
                [only] => Some(only.name.clone()),
                _ => None,
            };
            std::iter::repeat_n(device, volume.directories as usize)
        })
        .collect()
}

/// What is below each directory of one of this many servers, in order: the volume, under the name of layers and pool
/// volumes, and its devices, under their names in the record.
pub fn below_directories(
    storage: &StorageSpec,
    server: usize,
    servers: usize,
) -> Vec<(Option<String>, Vec<DeviceId>)> {
    let shared = |name: String| DeviceId::new(name);
    let own = |name: &str| DeviceId { server: server_number(server, servers), ..DeviceId::new(name) };
    match &storage.source {
        StorageSource::Modelled { .. } => {
            let stack = stack(storage, Path::new(""), 1.0, 1.0, 0);
            let volumes = stack.iter().flat_map(|stack| &stack.volumes);
            let below = |volume: &VolumeSpec| {
                let devices = volume.devices().into_iter().map(|device| own(&device.name)).collect();
                std::iter::repeat_n((Some(volume.name.clone()), devices), volume.directories as usize)
            };
            volumes.flat_map(below).collect()
        }
        StorageSource::Volume(_) => {
            let devices = device_names(storage).into_iter().map(shared).collect();
            vec![(u32::try_from(server).ok().map(volume_name), devices)]
        }
        StorageSource::Paths(paths) => {
            paths.iter().map(|path| (None, vec![shared(path.display().to_string())])).collect()
        }
        StorageSource::Elsewhere(_) => Vec::new(),
    }
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

/// `None` where the system gets the block devices themselves.
pub fn filesystem(storage: &StorageSpec) -> Option<underlay_attach::FilesystemKind> {
    match &storage.source {
        StorageSource::Modelled { filesystem, .. } | StorageSource::Volume(PoolVolume { filesystem, .. }) => {
            match filesystem {
                VolumeFilesystem::Ext4 => Some(underlay_attach::FilesystemKind::Ext4),
                VolumeFilesystem::Xfs => Some(underlay_attach::FilesystemKind::Xfs),
                VolumeFilesystem::None => None,
            }
        }
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => {
            Some(underlay_attach::FilesystemKind::default())
        }
    }
}

/// How a stack is attached: newly formatted, or with the file system in its images.
pub fn attach_spec(storage: &StorageSpec, stack: StackSpec, mount_root: &Path, format: bool) -> AttachSpec {
    AttachSpec {
        stack,
        filesystem: filesystem(storage),
        mount_root: mount_root.to_path_buf(),
        mount_point: None,
        format,
    }
}

/// Attaches real directories, with a fresh directory in each.
///
/// # Errors
/// When one of them is not a directory, or can't be written to.
pub fn attach_paths(
    storage: &StorageSpec,
    registry: &ResourceRegistry,
) -> Result<AttachedStorage, AttachError> {
    let StorageSource::Paths(paths) = &storage.source else {
        unreachable!("only real paths are attached as such");
    };
    let spec = AttachSpec {
        stack: StackSpec { volumes: Vec::new(), dilation: 1.0, seed: 0 },
        filesystem: Some(underlay_attach::FilesystemKind::default()),
        mount_root: PathBuf::new(),
        mount_point: None,
        format: false,
    };
    RealPaths::new(paths.clone()).attach(&spec, registry)
}

/// A system's topology with the device below each directory.
pub(super) fn with_devices(mut topology: TopologyRecord, storage: &StorageSpec) -> TopologyRecord {
    let devices = devices_of_directories(storage);
    for copy in topology.shards.iter_mut().flat_map(|shard| &mut shard.copies) {
        let index = copy.directory.and_then(|directory| usize::try_from(directory).ok());
        copy.device = index.and_then(|index| devices.get(index).cloned().flatten()).map(DeviceId::new);
    }
    topology
}

/// The record's description of a storage configuration under `servers` servers: each server's own devices, or those of
/// the shared pool. The storage of the system's roles follows, server by server.
pub fn describe(
    storage: &StorageSpec,
    roles: &[(&str, &StorageSpec)],
    servers: u32,
    attachment: &str,
) -> StorageRecord {
    let all = servers as usize;
    let with_place = |device: DeviceDescription, server: usize, role: Option<&str>| DeviceDescription {
        id: DeviceId { server: server_number(server, all), role: role.map(str::to_owned), ..device.id },
        ..device
    };
    let (filesystem, arrangement, layout, mut devices) = match &storage.source {
        StorageSource::Modelled { filesystem, layout, devices, layers, .. } => {
            let single = devices.iter().map(|device| device.count).sum::<u32>() == 1;
            let of_each = (0..all).flat_map(|server| {
                described(storage).into_iter().map(move |device| with_place(device, server, None))
            });
            let mut words = describe_layout(layout, devices, layers, single);
            if storage.nodes > 1 {
                words.push_str(&format!(", for each of {} nodes", storage.nodes));
            }
            let arrangement = match layout {
                StorageLayout::Split { .. } => DeviceArrangement::Split,
                // A single device needs no arrangement, whatever the layout.
                _ if single => DeviceArrangement::Single,
                StorageLayout::Stripe { .. } => DeviceArrangement::Stripe,
                StorageLayout::Jbod => DeviceArrangement::Jbod,
                StorageLayout::Mirror => DeviceArrangement::Mirror,
            };
            (filesystem.made().map(str::to_owned), Some(arrangement), words, of_each.collect())
        }
        StorageSource::Volume(volume) => {
            let described = devices(storage).into_iter().map(|(name, medium, capacity_bytes)| {
                let spec = DeviceSpec::new(name, Some(medium.clone()), capacity_bytes, BackingSpec::Null);
                DeviceSpec { initial: volume.pool.initial, ..spec }.describe()
            });
            let words = volume_in_words(volume, servers);
            let filesystem = volume.filesystem.made().map(str::to_owned);
            (filesystem, Some(DeviceArrangement::Pool), words, described.collect::<Vec<_>>())
        }
        // For real directories, the study knows only the paths.
        StorageSource::Paths(paths) => {
            let described = |path: &PathBuf| DeviceDescription {
                id: DeviceId::new(path.display().to_string()),
                ..DeviceDescription::default()
            };
            (None, Some(DeviceArrangement::Paths), "paths".to_owned(), paths.iter().map(described).collect())
        }
        StorageSource::Elsewhere(words) => (None, None, words.clone(), Vec::new()),
    };
    for server in 0..all {
        for (role, storage) in roles {
            devices
                .extend(described(storage).into_iter().map(|device| with_place(device, server, Some(role))));
        }
    }
    let usable_bytes = usable_bytes(storage, servers);
    let layout = match storage.read_ahead_bytes {
        Some(0) => format!("{layout}, no read-ahead"),
        Some(bytes) => format!("{layout}, read-ahead of {}", format_bytes(bytes)),
        None => layout,
    };
    StorageRecord {
        attachment: attachment.to_owned(),
        filesystem,
        arrangement,
        layout,
        devices,
        usable_bytes,
    }
}

/// The devices of a stack, as sold.
fn described(storage: &StorageSpec) -> Vec<DeviceDescription> {
    let stack = stack(storage, Path::new(""), 1.0, 1.0, 0);
    let devices = stack.iter().flat_map(|stack| &stack.volumes).flat_map(VolumeSpec::devices);
    devices.map(DeviceSpec::describe).collect()
}

/// How a record distinguishes servers, where there are several.
pub fn server_number(server: usize, servers: usize) -> Option<u32> {
    (servers > 1).then(|| u32::try_from(server + 1).unwrap_or(u32::MAX))
}

/// The devices' capacity as sold, counting each byte once; `None` for real paths.
fn usable_bytes(storage: &StorageSpec, servers: u32) -> Option<u64> {
    let each = devices(storage).into_iter().map(|(_, medium, _used_bytes)| medium.capacity_bytes());
    match &storage.source {
        StorageSource::Modelled { layout: StorageLayout::Mirror, .. } => {
            each.min().map(|one| one * u64::from(servers) * u64::from(storage.nodes))
        }
        StorageSource::Modelled { .. } => Some(each.sum::<u64>() * u64::from(servers)),
        StorageSource::Volume(volume) => {
            let copies = if volume.mirror { 2 } else { 1 };
            Some(each.sum::<u64>() / copies)
        }
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => None,
    }
}

/// `4 volumes of 4.9 TB in a pool, mirrored, lz4, over nvme-tcp, link of 12500 MB/s and 10 us`
fn volume_in_words(volume: &PoolVolume, servers: u32) -> String {
    let mut words = vec![match servers {
        1 => format!("a volume of {} in a pool", rounded_bytes(volume.capacity_bytes)),
        many => format!("{many} volumes of {} in a pool", rounded_bytes(volume.capacity_bytes)),
    }];
    if volume.mirror {
        words.push("mirrored".to_owned());
    }
    words.extend(volume.compress.map(|codec| codec_in_words(codec).to_owned()));
    words.push(format!("over {}", volume.transport.name()));
    words.extend(volume.link.map(link_in_words));
    words.join(", ")
}

fn codec_in_words(codec: CompressionCodec) -> &'static str {
    match codec {
        CompressionCodec::Lz4 => "lz4",
        CompressionCodec::Zstd(_) => "zstd",
    }
}

fn link_in_words(link: LinkSpec) -> String {
    format!("link of {} MB/s and {} us", link.bandwidth_mb_s, link.latency_us)
}

/// `mirror, write-back cache of 64 GB, zstd`; `jbod, ssd-mapreduce as 10 directories`
fn describe_layout(
    layout: &StorageLayout,
    devices: &[crate::spec::DeviceSpec],
    layers: &VolumeLayers,
    single: bool,
) -> String {
    let mut words = vec![match layout {
        StorageLayout::Split { directories, .. } => format!("split into {directories} directories"),
        _ if single => "single".to_owned(),
        StorageLayout::Stripe { chunk_bytes } => format!("stripe, chunks of {} KiB", chunk_bytes / 1024),
        StorageLayout::Jbod => "jbod".to_owned(),
        StorageLayout::Mirror => "mirror".to_owned(),
    }];
    let split = devices.iter().filter(|device| device.directories > 1);
    words.extend(split.map(|device| format!("{} as {} directories", device.medium.name, device.directories)));
    words.extend(layers.cache.as_ref().map(|cache| {
        let mode = match cache.mode {
            CacheMode::Read => "read",
            CacheMode::WriteBack => "write-back",
        };
        format!("{mode} cache of {}", format_bytes(cache.capacity_bytes))
    }));
    words.extend(layers.compress.map(|codec| codec_in_words(codec).to_owned()));
    words.extend(layers.link.map(link_in_words));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Study;

    fn storage(text: &str) -> StorageSpec {
        let study = format!(
            "name = \"x\"\n[system.rocksdb]\nmemory = \"2 GiB\"\n[storage.it]\n{text}\n[workload.ycsb]\n\
             data = \"16 GB\"\nmixes = [\"a\"]\nthreads = 8\n"
        );
        Study::parse("x.toml", &study, false)
            .unwrap_or_else(|mistakes| panic!("{mistakes}"))
            .storages
            .remove(0)
    }

    #[test]
    fn layers_lie_on_one_another_in_the_documented_order() {
        let storage = storage(
            "devices = [{ medium = \"hdd-7200-sata\", count = 2 }]\nlayout = \"mirror\"\n\
             cache = { medium = \"optane-p4800x\", capacity = \"64 GB\", mode = \"write-back\" }\n\
             compress = \"zstd\"\nlink = { bandwidth = \"25 Gbit/s\", latency = \"20 us\" }",
        );
        let stack = stack(&storage, Path::new("/images"), 1000.0, 1.0, 7).unwrap();
        let [volume] = stack.volumes.as_slice() else { panic!("one volume") };
        let StackNode::Link { member, bandwidth_mb_s, .. } = &volume.root else { panic!("a link") };
        assert!((bandwidth_mb_s - 3125.0).abs() < 1e-9);
        let StackNode::Compress { member, codec: CompressionCodec::Zstd(_), .. } = &**member else {
            panic!("compression")
        };
        let StackNode::Cache { fast, slow, mode: CacheMode::WriteBack, .. } = &**member else {
            panic!("a cache")
        };
        assert!(matches!(&**slow, StackNode::Mirror { members } if members.len() == 2));
        assert_eq!(fast.devices()[0].capacity_bytes, 61 << 20);
        let names: Vec<&str> = volume.devices().iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["optane-p4800x.cache-0", "hdd-7200-sata.0", "hdd-7200-sata.1"]);
        assert_eq!(device_names(&storage), names[1..], "the first device is a disk and not the cache");
        let record = describe(&storage, &[], 1, "fuse+loop");
        assert_eq!(record.layout, "mirror, write-back cache of 64 GB, zstd, link of 3125 MB/s and 20 us");
        assert_eq!(record.arrangement, Some(DeviceArrangement::Mirror));
        let described: Vec<&str> = record.devices.iter().map(|device| device.id.name.as_str()).collect();
        assert_eq!(described, names);
        // A mirror of two devices with a cache has the size of one.
        assert_eq!(record.usable_bytes, Some(6_000_000_000_000));
    }

    #[test]
    fn nodes_may_have_own_devices() {
        let alone = storage(
            "devices = [{ medium = \"hdd-7200-sata\", count = 2 }]\nper = \"node\"\nlayout = \"stripe\"\n\
             cache = { medium = \"optane-p4800x\", capacity = \"64 GB\", mode = \"read\" }",
        );
        assert!(alone.per_node);
        let of_three = StorageSpec { nodes: 3, ..alone.clone() };
        let stack = stack(&of_three, Path::new("/images"), 1000.0, 1.0, 7).unwrap();
        let names: Vec<&str> = stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["it-node1", "it-node2", "it-node3"]);
        assert_eq!(image_files(&stack).len(), 9);
        let second: Vec<&str> =
            stack.volumes[1].devices().iter().map(|device| device.name.as_str()).collect();
        assert_eq!(second, ["optane-p4800x.cache-1", "hdd-7200-sata.2", "hdd-7200-sata.3"]);
        let (one, three) = (describe(&alone, &[], 1, "fuse+loop"), describe(&of_three, &[], 1, "fuse+loop"));
        assert!(three.layout.ends_with("read cache of 64 GB, for each of 3 nodes"), "{}", three.layout);
        assert_eq!(three.usable_bytes, one.usable_bytes.map(|bytes| 3 * bytes));
        assert_eq!(three.devices.len(), 9);
    }

    #[test]
    fn jbod_device_may_have_several_directories() {
        let mut hybrid = storage("devices = [{ medium = \"hdd-mapreduce\" }]\nlayout = \"jbod\"");
        let StorageSource::Modelled { devices, .. } = &mut hybrid.source else { panic!("modelled") };
        devices[0].count = 2;
        let ssd = underlay_storage::catalogue::find("ssd-mapreduce").unwrap();
        let split = crate::spec::DeviceSpec { medium: ssd, count: 1, directories: 3, ..devices[0].clone() };
        devices.push(split);
        let stack = stack(&hybrid, Path::new("/images"), 1000.0, 1.0, 7).unwrap();
        let directories: Vec<u32> = stack.volumes.iter().map(|volume| volume.directories).collect();
        assert_eq!(directories, [1, 1, 3]);
        let below: Vec<Option<String>> = devices_of_directories(&hybrid);
        let below: Vec<&str> = below.iter().map(|name| name.as_deref().unwrap()).collect();
        let ssd = "ssd-mapreduce.2";
        assert_eq!(below, ["hdd-mapreduce.0", "hdd-mapreduce.1", ssd, ssd, ssd]);
        assert_eq!(describe(&hybrid, &[], 1, "fuse+loop").layout, "jbod, ssd-mapreduce as 3 directories");
    }

    #[test]
    fn jbod_directories_have_own_caches() {
        let storage = storage(
            "devices = [{ medium = \"hdd-7200-sata\", count = 1 }]\nlayout = \"jbod\"\n\
             cache = { medium = \"optane-p4800x\", capacity = \"64 GB\", mode = \"read\" }",
        );
        let mut twice = storage.clone();
        let StorageSource::Modelled { devices, .. } = &mut twice.source else { panic!("modelled") };
        devices[0].count = 2;
        let stack = stack(&twice, Path::new("/images"), 1000.0, 1.0, 7).unwrap();
        assert_eq!(stack.volumes.len(), 2);
        assert_eq!(image_files(&stack).len(), 4);
    }
}
