//! `[storage.NAME]`: modelled devices put together, a volume of a pool, or real paths.

use std::ops::Range;
use std::path::PathBuf;

use underlay_storage::catalogue::{LayoutPreset, PresetLayout, find_layout};
use underlay_storage::stack::InitialState;

use super::layers::LayerFields;
use super::media_files::Media;
use super::pool::{self, Pools, VolumeFields};
use super::reader::{Field, Section, Spanned, named_sections};
use super::system::SettingsSite;
use super::{DeviceSpec, Filesystem, Layers, Layout, StorageSource, StorageSpec};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units::rounded_bytes;

/// One pacer serves all devices of a storage; beyond this the host is what would be measured.
pub(super) const DEVICES_MAX: u32 = 64;
/// More directories on one volume than any study has had use for.
const DIRECTORIES_MAX: u32 = 64;
/// What Linux's software RAID takes when it is not told (mdadm(8), `--chunk`).
const CHUNK_DEFAULT_BYTES: u64 = 512 << 10;
const CHUNK_MIN_BYTES: u64 = 4 << 10;
const CHUNK_MAX_BYTES: u64 = 16 << 20;

/// A storage with the places that later checks point at.
#[derive(Clone)]
pub(super) struct StorageSite {
    pub spec: StorageSpec,
    /// `devices` or `paths`.
    pub source_span: Range<usize>,
    /// `layout` where it is written, else `devices`.
    pub layout_span: Range<usize>,
    pub cache_span: Option<Range<usize>>,
    /// The devices of the pool that it is a volume of.
    pub pool_span: Option<Range<usize>>,
    /// `system`: settings that hold on this storage, with their places.
    pub settings: SettingsSite,
    pub settings_span: Range<usize>,
}

impl StorageSite {
    fn new(
        name: String,
        source: StorageSource,
        source_span: Range<usize>,
        layout_span: Range<usize>,
        cache_span: Option<Range<usize>>,
    ) -> Self {
        StorageSite {
            spec: StorageSpec { name, source, settings: Default::default() },
            source_span,
            layout_span,
            cache_span,
            pool_span: None,
            settings: SettingsSite::new(),
            settings_span: 0..0,
        }
    }

    /// Unscaled capacities of the volumes that a server will see; empty for real paths.
    pub fn volumes_bytes(&self) -> Vec<u64> {
        let (devices, layout) = match &self.spec.source {
            StorageSource::Modelled { devices, layout, .. } => (devices, layout),
            StorageSource::Volume(volume) => return vec![volume.capacity_bytes],
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => return Vec::new(),
        };
        let each = devices.iter().flat_map(|device| {
            let bytes = device.capacity_bytes.unwrap_or(device.medium.capacity_bytes());
            std::iter::repeat_n(bytes, device.count as usize)
        });
        match layout {
            Layout::Stripe { .. } | Layout::Split { .. } => vec![each.fold(0, u64::saturating_add)],
            Layout::Mirror => each.min().into_iter().collect(),
            Layout::Jbod => each.collect(),
        }
    }

    /// How many directories a system will get.
    pub fn directories(&self) -> usize {
        match &self.spec.source {
            StorageSource::Modelled { layout: Layout::Split { directories, .. }, .. } => {
                *directories as usize
            }
            StorageSource::Modelled { layout: Layout::Jbod, devices, .. } => {
                devices.iter().map(|device| device.count as usize * device.directories as usize).sum()
            }
            StorageSource::Modelled { .. } | StorageSource::Volume(_) => self.volumes_bytes().len(),
            StorageSource::Paths(paths) => paths.len(),
            StorageSource::Elsewhere(_) => 1,
        }
    }
}

/// The names of all storages, and those of them that are described without a mistake.
pub(super) fn read(
    root: &mut Section<'_>,
    media: &Media<'_>,
    findings: &mut Diagnostics,
) -> (Vec<String>, Vec<StorageSite>) {
    let pools = pool::read(root, media, findings);
    let sections = named_sections(root, "storage", "hdd", findings);
    let names = sections.iter().map(|(name, _)| name.clone()).collect();
    let sites = sections
        .into_iter()
        .filter_map(|(name, mut section)| {
            let own =
                section.take("system").map(|field| (field.key_span.clone(), read_system(&field, findings)));
            let mut site = read_storage(name, section, media, &pools, findings)?;
            if let Some((span, settings)) = own {
                site.spec.settings =
                    settings.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect();
                (site.settings, site.settings_span) = (settings, span);
            }
            Some(site)
        })
        .collect();
    pools.note_unused(findings);
    (names, sites)
}

/// `system`: whatever it holds is held against the study's systems later.
fn read_system(field: &Field<'_>, findings: &mut Diagnostics) -> SettingsSite {
    let Some(mut section) = field.section(field.place.clone(), findings) else { return SettingsSite::new() };
    let fields = section.take_rest();
    fields
        .into_iter()
        .filter_map(|field| Some((field.key.clone(), (field.setting(findings)?, field.key_span))))
        .collect()
}

fn read_storage(
    name: String,
    mut section: Section<'_>,
    media: &Media<'_>,
    pools: &Pools,
    findings: &mut Diagnostics,
) -> Option<StorageSite> {
    let key_span = section.span.clone();
    let preset_field = section.take("preset");
    let devices_field = section.take("devices");
    let paths_field = section.take("paths");
    let elsewhere_field = section.take("elsewhere");
    let layout_field = section.take("layout");
    let chunk_field = section.take("chunk");
    let directories_field = section.take("directories");
    let layer_fields = LayerFields::take(&mut section);
    let volume_fields = VolumeFields::take(&mut section);
    let initial_field = section.take("initial");
    let filesystem_field = section.take("filesystem");
    let title = section.title.clone();
    section.finish(findings);

    if let Some(preset) = &preset_field {
        let described = [&devices_field, &paths_field, &layout_field, &chunk_field, &directories_field];
        if let Some(field) = described.into_iter().flatten().next() {
            let message = format!("{} does not go with `preset`", field.place);
            let finding = Diagnostic::error(field.key_span.clone(), message, "the preset says it already");
            findings.push(finding.with_context(preset.span.clone(), "as this one does"));
            return None;
        }
    }
    if let Some(field) = &elsewhere_field {
        let fields = [
            preset_field,
            devices_field,
            paths_field,
            layout_field,
            chunk_field,
            directories_field,
            initial_field,
            filesystem_field,
            volume_fields.pool,
        ];
        return read_elsewhere(
            name,
            field,
            fields.into_iter().flatten().chain(layer_fields.into_fields()),
            findings,
        );
    }
    if let Some(pool) = &volume_fields.pool {
        let described = [
            (&preset_field, "the pool has the devices"),
            (&devices_field, "the pool has the devices"),
            (&paths_field, "a volume is modelled, and this is real"),
            (&layout_field, "the volume server puts devices together"),
            (&chunk_field, "the volume server puts devices together"),
            (&directories_field, "a volume is one directory"),
            (&initial_field, "it stands in the pool's section"),
        ];
        let mut is_sound = true;
        for (field, why) in described {
            let Some(field) = field else { continue };
            let message = format!("{} does not go with `pool`", field.place);
            let finding = Diagnostic::error(field.key_span.clone(), message, why);
            findings.push(finding.with_context(pool.span.clone(), "a volume of this pool"));
            is_sound = false;
        }
        return is_sound
            .then(|| {
                let (layers, volume) = (layer_fields, volume_fields);
                pool::read_volume(name, &title, volume, layers, filesystem_field, pools, findings)
            })
            .flatten();
    }
    volume_fields.refuse(findings);
    match (devices_field, paths_field) {
        (None, None) if preset_field.is_some() => {
            let field = preset_field?;
            let preset = read_preset(&field, findings);
            let layers = layer_fields.read(media, findings);
            let initial = read_initial(initial_field, findings);
            let filesystem = read_filesystem(filesystem_field, findings);
            let (devices, layout) = preset?;
            let source = StorageSource::Modelled {
                devices,
                layout,
                layers: layers?,
                initial: initial?,
                filesystem: filesystem?,
            };
            let cache_span = layer_fields.cache_span();
            Some(StorageSite::new(name, source, field.span.clone(), field.span, cache_span))
        }
        (None, None) => {
            let message = format!("{title} says neither `devices`, `preset`, `pool` nor `paths`");
            let label = "expected `devices = [{ medium = \"hdd-7200-sata\" }]` or `paths = [\"/mnt/disk\"]`";
            findings.push(Diagnostic::error(key_span, message, label));
            None
        }
        (Some(devices), Some(paths)) => {
            let message = format!("{title} is modelled and real at once");
            findings.push(
                Diagnostic::error(paths.key_span, message, "expected either `devices` or `paths`")
                    .with_context(devices.key_span, "modelled here")
                    .with_help("make two storages of it: they can then be compared"),
            );
            None
        }
        (None, Some(paths)) => {
            let modelled_only =
                [layout_field, chunk_field, directories_field, initial_field, filesystem_field];
            for field in modelled_only.into_iter().flatten().chain(layer_fields.into_fields()) {
                let message = format!("{} does not go with `paths`", field.place);
                findings.push(
                    Diagnostic::error(field.key_span, message, "real directories are used as they are")
                        .with_help("leave it out, or describe modelled `devices` instead"),
                );
            }
            let source = read_paths(&paths, findings)?;
            Some(StorageSite::new(name, source, paths.span.clone(), paths.span, None))
        }
        (Some(devices), None) => {
            let layout_span = layout_field.as_ref().map_or(devices.span.clone(), |field| field.span.clone());
            let layout = read_layout(layout_field, chunk_field, directories_field, findings);
            let layers = layer_fields.read(media, findings);
            let initial = read_initial(initial_field, findings);
            let filesystem = read_filesystem(filesystem_field, findings);
            let source_span = devices.span.clone();
            let devices = read_devices(&devices, layout, media, findings)?;
            let source = StorageSource::Modelled {
                devices,
                layout: layout?,
                layers: layers?,
                initial: initial?,
                filesystem: filesystem?,
            };
            let cache_span = layer_fields.cache_span();
            Some(StorageSite::new(name, source, source_span, layout_span, cache_span))
        }
    }
}

/// The storage of a cluster that runs already: told in words, since nothing here has a hand in it.
fn read_elsewhere<'a>(
    name: String,
    field: &Field<'a>,
    others: impl Iterator<Item = Field<'a>>,
    findings: &mut Diagnostics,
) -> Option<StorageSite> {
    let words = field.text("what the cluster's storage is, as in \"two NVMe drives a node\"", findings)?;
    for other in others {
        let message = format!("{} does not go with `elsewhere`", other.place);
        let label = "the cluster runs already, on what it has";
        findings.push(Diagnostic::error(other.key_span, message, label));
    }
    let source = StorageSource::Elsewhere(words.value);
    Some(StorageSite::new(name, source, words.span.clone(), words.span, None))
}

/// Steady unless told: what a device does on its first day is rarely what is asked.
pub(super) fn read_initial(field: Option<Field<'_>>, findings: &mut Diagnostics) -> Option<InitialState> {
    let Some(field) = field else { return Some(InitialState::Steady) };
    field.word(&["steady", "fresh"], findings).map(|word| match word.value {
        "fresh" => InitialState::Fresh,
        _ => InitialState::Steady,
    })
}

pub(super) fn read_filesystem(field: Option<Field<'_>>, findings: &mut Diagnostics) -> Option<Filesystem> {
    let Some(field) = field else { return Some(Filesystem::Xfs) };
    field.word(&["xfs", "ext4"], findings).map(|word| match word.value {
        "ext4" => Filesystem::Ext4,
        _ => Filesystem::Xfs,
    })
}

/// A layout of the catalogue by its name.
fn read_preset(field: &Field<'_>, findings: &mut Diagnostics) -> Option<(Vec<DeviceSpec>, Layout)> {
    let name = field.text("the name of a layout, as in \"accumulo-hdd\"", findings)?;
    match find_layout(&name.value) {
        Ok(preset) => Some(devices_of(&preset)),
        Err(unknown) => {
            let message = format!("unknown layout \"{}\"", name.value.escape_debug());
            let label = match unknown.suggestions.first() {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None => "expected a layout of the catalogue".to_owned(),
            };
            let finding = Diagnostic::error(name.span, message, label);
            findings.push(finding.with_help("`underlay media list` shows the layouts below the media"));
            None
        }
    }
}

fn devices_of(preset: &LayoutPreset) -> (Vec<DeviceSpec>, Layout) {
    let devices = preset.media().map(|(medium, count)| DeviceSpec {
        medium,
        count,
        capacity_bytes: None,
        directories: 1,
    });
    let layout = match preset.layout {
        PresetLayout::Stripe { chunk_bytes } => Layout::Stripe { chunk_bytes },
        PresetLayout::Jbod => Layout::Jbod,
        PresetLayout::Mirror => Layout::Mirror,
        PresetLayout::Split { chunk_bytes, directories } => Layout::Split { chunk_bytes, directories },
    };
    (devices.collect(), layout)
}

impl StorageSpec {
    /// A layout of the catalogue on devices of so many bytes each, or as large as their media if those are smaller.
    pub fn of_layout(preset: &LayoutPreset, device_bytes: u64, initial: InitialState) -> StorageSpec {
        let (mut devices, layout) = devices_of(preset);
        for device in &mut devices {
            device.capacity_bytes = Some(device_bytes.min(device.medium.capacity_bytes()));
        }
        let (layers, filesystem) = (Layers::default(), Filesystem::Xfs);
        let source = StorageSource::Modelled { devices, layout, layers, initial, filesystem };
        StorageSpec { name: preset.name.clone(), source, settings: Default::default() }
    }
}

fn read_paths(field: &Field<'_>, findings: &mut Diagnostics) -> Option<StorageSource> {
    let paths = field.list(findings, |element, findings| {
        let text = element.text("a directory, as in \"/mnt/disk\"", findings)?;
        if text.value.trim().is_empty() || text.value.contains('\0') {
            element.invalid("expected a directory, as in \"/mnt/disk\"", findings);
            return None;
        }
        Some(Spanned::new(PathBuf::from(text.value), text.span))
    });
    (!paths.is_empty()).then(|| StorageSource::Paths(paths.into_iter().map(|path| path.value).collect()))
}

fn read_layout(
    layout: Option<Field<'_>>,
    chunk: Option<Field<'_>>,
    directories: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<Layout> {
    let layout = match layout {
        Some(field) => Some(field.word(&["stripe", "jbod", "mirror", "split"], findings)?),
        None => None,
    };
    let word = layout.as_ref().map_or("stripe", |layout| layout.value);
    // Where a key of another layout stands, the layout is what the reader should look at.
    let foreign = |field: &Field<'_>, why: &str, findings: &mut Diagnostics| {
        let message = format!("{} does not go with layout \"{word}\"", field.place);
        let finding = Diagnostic::error(field.key_span.clone(), message, why);
        findings.push(match &layout {
            Some(layout) => finding.with_context(layout.span.clone(), layout_meaning(word)),
            None => finding.with_help("layout = \"split\" shows one volume as several directories"),
        });
    };
    if let (Some(field), false) = (&directories, word == "split") {
        foreign(field, "each volume is one directory", findings);
        return None;
    }
    if let (Some(field), true) = (&chunk, matches!(word, "jbod" | "mirror")) {
        foreign(field, "nothing is striped", findings);
        return None;
    }
    let chunk_bytes = chunk.as_ref().map(|field| read_chunk(field, findings));
    let chunk_bytes = chunk_bytes.unwrap_or(Some(CHUNK_DEFAULT_BYTES));
    match word {
        "jbod" => Some(Layout::Jbod),
        "mirror" => Some(Layout::Mirror),
        "split" => {
            let Some(field) = directories else {
                let span = layout.map_or(0..0, |layout| layout.span);
                findings.push(Diagnostic::error(
                    span,
                    "layout \"split\" without `directories`",
                    "expected a number of directories beside it, as in `directories = 10`",
                ));
                return None;
            };
            let directories = field.count(1..=DIRECTORIES_MAX, findings)?.value;
            Some(Layout::Split { chunk_bytes: chunk_bytes?, directories })
        }
        _ => Some(Layout::Stripe { chunk_bytes: chunk_bytes? }),
    }
}

fn layout_meaning(word: &str) -> &'static str {
    match word {
        "jbod" => "each device is a directory of its own",
        "mirror" => "each device holds everything",
        "split" => "one volume, shown as several directories",
        _ => "one volume over all devices",
    }
}

fn read_chunk(field: &Field<'_>, findings: &mut Diagnostics) -> Option<u64> {
    let bytes = field.bytes(findings)?.value;
    if !bytes.is_power_of_two() || !(CHUNK_MIN_BYTES..=CHUNK_MAX_BYTES).contains(&bytes) {
        field.invalid("expected a power of two from \"4 KiB\" to \"16 MiB\"", findings);
        return None;
    }
    Some(bytes)
}

pub(super) fn read_devices(
    field: &Field<'_>,
    layout: Option<Layout>,
    media: &Media<'_>,
    findings: &mut Diagnostics,
) -> Option<Vec<DeviceSpec>> {
    if !field.is_array() {
        field.mismatch("an array of devices, as in `[{ medium = \"hdd-7200-sata\", count = 6 }]`", findings);
        return None;
    }
    let elements = field.one_or_many(findings);
    let mut devices: Vec<Spanned<DeviceSpec>> = Vec::new();
    for element in &elements {
        if let Some(device) = read_device(element, layout, media, findings) {
            devices.push(Spanned::new(device, element.span.clone()));
        }
    }
    if let (Some(Layout::Mirror), [only]) = (layout, devices.as_slice())
        && only.value.count == 1
    {
        findings.push(Diagnostic::error(
            only.span.clone(),
            "a mirror of one device",
            "expected two or more, as in `count = 2`",
        ));
        return None;
    }
    let total = devices.iter().fold(0, |sum: u32, device| sum.saturating_add(device.value.count));
    if total > DEVICES_MAX {
        let message = format!("{} are {total} devices", field.place);
        findings.push(Diagnostic::error(
            field.span.clone(),
            message,
            format!("expected at most {DEVICES_MAX} in one storage"),
        ));
        return None;
    }
    let layout_word = match layout {
        Some(Layout::Stripe { .. } | Layout::Split { .. }) => "stripe",
        Some(Layout::Mirror) => "mirror",
        Some(Layout::Jbod) | None => "",
    };
    if let (false, Some(first)) = (layout_word.is_empty(), devices.first()) {
        let shape = |device: &DeviceSpec| {
            (device.medium.name.clone(), device.capacity_bytes.unwrap_or(device.medium.capacity_bytes()))
        };
        for other in devices.iter().filter(|other| shape(&other.value) != shape(&first.value)) {
            findings.push(
                Diagnostic::error(
                    other.span.clone(),
                    format!("the devices of a {layout_word} are not equal"),
                    "expected the same medium and capacity",
                )
                .with_context(first.span.clone(), "as here")
                .with_help(
                    format!("a {layout_word} goes at the pace of its slowest device; layout = \"jbod\" keeps them apart"),
                ),
            );
        }
    }
    let complete = !devices.is_empty() && devices.len() == elements.len();
    complete.then(|| devices.into_iter().map(|device| device.value).collect())
}

fn read_device(
    element: &Field<'_>,
    layout: Option<Layout>,
    media: &Media<'_>,
    findings: &mut Diagnostics,
) -> Option<DeviceSpec> {
    let mut section = element.section(format!("an element of {}", element.place), findings)?;
    let medium = section.require("medium", "medium = \"hdd-7200-sata\"", findings);
    let count = section.take("count").map(|field| field.count(1..=DEVICES_MAX, findings));
    let capacity = section.take("capacity").map(|field| field.bytes(findings));
    let may_be_larger = section.take("larger_than_medium").map(|field| field.boolean(findings));
    let directories = section.take("directories");
    let title = section.title.clone();
    section.finish(findings);

    let directories = match directories {
        None => 1,
        Some(field) if layout == Some(Layout::Jbod) => field.count(1..=DIRECTORIES_MAX, findings)?.value,
        Some(field) => {
            let message = format!("{} goes with layout = \"jbod\" alone", field.place);
            findings.push(
                Diagnostic::error(field.key_span, message, "this device is one of a volume, or of a pool")
                    .with_help("layout = \"split\" shows one volume over all devices as several directories"),
            );
            return None;
        }
    };
    let medium = media.find(&medium?, findings)?;
    let count = match count {
        Some(count) => count?.value,
        None => 1,
    };
    let capacity_bytes = match capacity {
        Some(capacity) => {
            let capacity = capacity?;
            let may_be_larger = may_be_larger.is_some_and(|larger| larger == Some(true));
            if capacity.value > medium.capacity_bytes() && !may_be_larger {
                let message = format!("`capacity` in {title} is larger than its medium");
                let label = format!("\"{}\" has {}", medium.name, rounded_bytes(medium.capacity_bytes()));
                let finding = Diagnostic::error(capacity.span, message, label);
                findings.push(
                    finding
                        .with_help(
                            "several make more: `count`. For a device that no shop has, say `larger_than_medium = true`",
                        ),
                );
                return None;
            }
            Some(capacity.value)
        }
        None => None,
    };
    Some(DeviceSpec { medium, count, capacity_bytes, directories })
}
