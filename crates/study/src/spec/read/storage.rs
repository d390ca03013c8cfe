//! `[storage.NAME]`: a combination of modelled devices, a volume of a pool, or real paths.

use std::path::PathBuf;

use serde_json::{Value, json};
use underlay_attach::read_ahead;
use underlay_config::keys::{
    AnyText, BytesKind, CountKind, KeyKind, KeyRow, KeySection, OwnSchema, WordKind, one_or_many_schema,
    words_schema,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned, named_sections};
use underlay_storage::catalogue::{self, LayoutPreset, PresetLayout, find_layout};
use underlay_storage::stack::InitialState;

use super::devices::{
    DEVICES, FILESYSTEM, INITIAL, MAX_DIRECTORIES, read_devices, read_filesystem, read_initial,
};
use super::layers::{CACHE, COMPRESS, LINK, LayerFields};
use super::media_files::MediaReader;
use super::pool;
use super::pool::{StudyPools, TRANSPORT, VOLUME_CAPACITY, VOLUME_MIRROR, VOLUME_POOL, VolumeFields};
use super::storage_site::StorageSite;
use super::system::{SettingsSite, setting_schema};
use crate::spec::model::{
    DeviceSpec, StorageLayout, StorageSource, StorageSpec, VolumeFilesystem, VolumeLayers,
};

const MIN_CHUNK_BYTES: u64 = 4 << 10;
const MAX_CHUNK_BYTES: u64 = 16 << 20;
const MAX_READ_AHEAD_BYTES: u64 = 64 << 20;

const PRESET: KeyRow<OwnSchema> = KeyRow::new(
    "preset",
    OwnSchema(|| words_schema(catalogue::layouts().iter().map(|layout| layout.name.as_str()))),
    "\"oracle-flash\"",
    "A layout of the catalogue: its devices and how they are put together.",
);
const PATHS: KeyRow<OwnSchema> = KeyRow::new(
    "paths",
    OwnSchema(|| one_or_many_schema(AnyText("").schema())),
    "[\"/mnt/disk\"]",
    "Directories on storage that you have, used as they are.",
);
const ELSEWHERE: KeyRow<AnyText> = KeyRow::new(
    "elsewhere",
    AnyText("a description of the cluster's storage, as in \"two NVMe drives a node\""),
    "\"two NVMe drives a node\"",
    "The storage of a cluster that runs already, in words.",
);
const LAYOUT: KeyRow<OwnSchema> = KeyRow::new(
    "layout",
    OwnSchema(|| words_schema(LAYOUTS)),
    "\"mirror\"",
    "How several devices become what a system sees: one striped volume, a directory each, everything on every \
     device, or one volume shown as several directories.",
)
.or("\"stripe\"");
const CHUNK: KeyRow<StripeChunk> = KeyRow::new(
    "chunk",
    StripeChunk,
    "\"64 KiB\"",
    "How much of a stripe or split goes to one device at a time. Not scaled.",
)
.or("\"512 KiB\"");
const DIRECTORIES: KeyRow<CountKind> = KeyRow::new(
    "directories",
    CountKind { min: 1, max: MAX_DIRECTORIES },
    "10",
    "Directories of a split volume.",
);
const PER: KeyRow<WordKind<bool>> = KeyRow::new(
    "per",
    WordKind(&[("server", false), ("node", true)]),
    "\"node\"",
    "Whether all nodes of a server share these devices, or each node of a system has them to itself.",
)
.or("\"server\"");
const READ_AHEAD: KeyRow<OwnSchema> = KeyRow::new(
    "read_ahead",
    OwnSchema(|| json!({ "anyOf": [BytesKind.schema(), { "const": "none" }] })),
    "\"16 KiB\"",
    "How far the kernel reads ahead on the block devices, or \"none\". Not scaled.",
)
.or_else("as far as this host does");
const SYSTEM: KeyRow<OwnSchema> = KeyRow::new(
    "system",
    OwnSchema(settings_schema),
    "{ compression = \"lz4\" }",
    "Settings of the system for this storage alone.",
);

/// `[storage.NAME]`
pub(in crate::spec) const STORAGE: KeySection = KeySection {
    path: "storage.NAME",
    meaning: "What the systems stand on.",
    keys: &[
        &DEVICES,
        &PRESET,
        &VOLUME_POOL,
        &PATHS,
        &ELSEWHERE,
        &LAYOUT,
        &CHUNK,
        &DIRECTORIES,
        &PER,
        &READ_AHEAD,
        &CACHE,
        &COMPRESS,
        &LINK,
        &TRANSPORT,
        &VOLUME_CAPACITY,
        &VOLUME_MIRROR,
        &INITIAL,
        &FILESYSTEM,
        &SYSTEM,
    ],
};

/// A storage configuration, with exactly one source.
pub(in crate::spec) fn schema() -> Value {
    let mut schema = STORAGE.schema();
    let sources = [DEVICES.name, PRESET.name, VOLUME_POOL.name, PATHS.name, ELSEWHERE.name];
    schema["oneOf"] = sources.iter().map(|source| json!({ "required": [source] })).collect();
    schema
}

/// A table of settings; the systems know them.
fn settings_schema() -> Value {
    json!({ "type": "object", "additionalProperties": setting_schema() })
}

/// The names of all storage configurations, and those among them without a mistake.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> (Vec<String>, Vec<StorageSite>) {
    let pools = pool::read(root, media, findings);
    let sections = named_sections(root, "storage", "hdd", findings);
    let names = sections.iter().map(|(name, _)| name.clone()).collect();
    let sites = sections
        .into_iter()
        .filter_map(|(name, mut section)| {
            let own = section
                .take(SYSTEM.name)
                .map(|field| (field.key_span.clone(), read_system(&field, findings)));
            let per = section.take(PER.name);
            let read_ahead = section.take(READ_AHEAD.name);
            let mut site = read_storage(name, section, media, &pools, findings)?;
            if let Some(field) = per {
                site.spec.per_node = read_per_node(&field, &site, findings)?;
            }
            if let Some(field) = read_ahead {
                site.spec.read_ahead_bytes = Some(read_read_ahead(&field, &site, findings)?);
            }
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

/// `system`: its keys are checked against the study's systems later.
fn read_system(field: &Field<'_>, findings: &mut Diagnostics) -> SettingsSite {
    let Some(mut section) = field.section(field.place.clone(), findings) else { return SettingsSite::new() };
    let fields = section.take_rest();
    fields
        .into_iter()
        .filter_map(|field| Some((field.key.clone(), (field.setting(findings)?, field.key_span))))
        .collect()
}

/// `per`: whether each node has the devices to itself.
fn read_per_node(field: &Field<'_>, site: &StorageSite, findings: &mut Diagnostics) -> Option<bool> {
    let per_node = PER.kind.read(field, findings)?.value;
    if per_node && !matches!(site.spec.source, StorageSource::Modelled { .. }) {
        let message = format!("{} goes with `devices` and `preset` only", field.place);
        let label = match site.spec.source {
            StorageSource::Volume(_) => "each server has one volume of a pool",
            _ => "this storage is there already, for all nodes together",
        };
        let finding = Diagnostic::error(field.span.clone(), message, label);
        findings.push(finding.with_context(site.source_span.clone(), "this storage"));
        return None;
    }
    Some(per_node)
}

/// `read_ahead`: in whole pages, or none.
fn read_read_ahead(field: &Field<'_>, site: &StorageSite, findings: &mut Diagnostics) -> Option<u64> {
    let bytes = match field.as_text() {
        Some("none") => 0,
        _ => field.bytes(findings)?.value,
    };
    if bytes % read_ahead::UNIT_BYTES != 0 || bytes > MAX_READ_AHEAD_BYTES {
        field.invalid("expected a multiple of \"4 KiB\" up to \"64 MiB\", or \"none\"", findings);
        return None;
    }
    if !site.spec.is_modelled() {
        let message = format!("{} goes with modelled devices only", field.place);
        let finding = Diagnostic::error(field.span.clone(), message, "these disks are used as they are");
        findings.push(finding.with_context(site.source_span.clone(), "this storage"));
        return None;
    }
    Some(bytes)
}

fn read_storage(
    name: String,
    mut section: Section<'_>,
    media: &MediaReader<'_>,
    pools: &StudyPools,
    findings: &mut Diagnostics,
) -> Option<StorageSite> {
    let key_span = section.span.clone();
    let keys =
        [PRESET.name, DEVICES.name, PATHS.name, ELSEWHERE.name, LAYOUT.name, CHUNK.name, DIRECTORIES.name];
    let [
        preset_field,
        devices_field,
        paths_field,
        elsewhere_field,
        layout_field,
        chunk_field,
        directories_field,
    ] = section.take_each(keys);
    let layer_fields = LayerFields::take(&mut section);
    let volume_fields = VolumeFields::take(&mut section);
    let [initial_field, filesystem_field] = section.take_each([INITIAL.name, FILESYSTEM.name]);
    let title = section.title.clone();
    // It refuses the remaining fields, so all fields are taken before, for any kind of storage.
    section.finish(findings);

    if let Some(preset) = &preset_field {
        let described = [&devices_field, &paths_field, &layout_field, &chunk_field, &directories_field];
        if let Some(field) = described.into_iter().flatten().next() {
            let message = format!("{} does not go with `preset`", field.place);
            let finding = Diagnostic::error(field.key_span.clone(), message, "the preset already says it");
            findings.push(finding.with_context(preset.span.clone(), "as this one does"));
            return None;
        }
    }
    // Before `pool`: next to `elsewhere`, that is one of the misplaced fields.
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
            (&paths_field, "a volume is modelled, but this is real"),
            (&layout_field, "the volume server puts devices together"),
            (&chunk_field, "the volume server puts devices together"),
            (&directories_field, "a volume is one directory"),
            (&initial_field, "it stands in the pool's section"),
        ];
        let mut is_sound = true;
        for (field, reason) in described {
            let Some(field) = field else { continue };
            let message = format!("{} does not go with `pool`", field.place);
            let finding = Diagnostic::error(field.key_span.clone(), message, reason);
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
    // There is no pool from here on, so fields of a volume are misplaced.
    volume_fields.refuse(findings);
    match (devices_field, paths_field) {
        (None, None) if preset_field.is_some() => {
            let field = preset_field?;
            let preset = read_preset(&field, findings);
            let layers = layer_fields.read(media, findings);
            let initial = read_initial(initial_field, findings);
            let filesystem = read_filesystem(filesystem_field, findings);
            // After all other parts, so that one pass reports the mistakes of each.
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
            let message =
                format!("{title} needs one of `devices`, `preset`, `pool`, `paths` and `elsewhere`");
            let label = "expected `devices = [{ medium = \"hdd-7200-sata\" }]` or `paths = [\"/mnt/disk\"]`";
            findings.push(Diagnostic::error(key_span, message, label));
            None
        }
        (Some(devices), Some(paths)) => {
            let message = format!("{title} is both modelled and real");
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

/// The storage of an external cluster: described in words, since Underlay does not control it.
fn read_elsewhere<'a>(
    name: String,
    field: &Field<'a>,
    others: impl Iterator<Item = Field<'a>>,
    findings: &mut Diagnostics,
) -> Option<StorageSite> {
    let words = ELSEWHERE.kind.read(field, findings)?;
    for other in others {
        let message = format!("{} does not go with `elsewhere`", other.place);
        let label = "the cluster is already running, on its own storage";
        findings.push(Diagnostic::error(other.key_span, message, label));
    }
    let source = StorageSource::Elsewhere(words.value);
    Some(StorageSite::new(name, source, words.span.clone(), words.span, None))
}

/// A layout of the catalogue by its name.
fn read_preset(field: &Field<'_>, findings: &mut Diagnostics) -> Option<(Vec<DeviceSpec>, StorageLayout)> {
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

fn devices_of(preset: &LayoutPreset) -> (Vec<DeviceSpec>, StorageLayout) {
    let devices = preset.media().map(|(medium, count)| DeviceSpec {
        medium,
        count,
        capacity_bytes: None,
        directories: 1,
    });
    let layout = match preset.layout {
        PresetLayout::Stripe { chunk_bytes } => StorageLayout::Stripe { chunk_bytes },
        PresetLayout::Jbod => StorageLayout::Jbod,
        PresetLayout::Mirror => StorageLayout::Mirror,
        PresetLayout::Split { chunk_bytes, directories } => StorageLayout::Split { chunk_bytes, directories },
    };
    (devices.collect(), layout)
}

impl StorageSpec {
    /// A layout of the catalogue on devices of the given size, or of their media's size if that is smaller.
    pub fn from_layout(preset: &LayoutPreset, device_bytes: u64, initial: InitialState) -> StorageSpec {
        let (mut devices, layout) = devices_of(preset);
        for device in &mut devices {
            device.capacity_bytes = Some(device_bytes.min(device.medium.capacity_bytes()));
        }
        let (layers, filesystem) = (VolumeLayers::default(), VolumeFilesystem::Xfs);
        let source = StorageSource::Modelled { devices, layout, layers, initial, filesystem };
        StorageSpec {
            name: preset.name.clone(),
            source,
            per_node: false,
            nodes: 1,
            read_ahead_bytes: None,
            settings: Default::default(),
        }
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
    // Not a mistake: a study may be checked on a different host than the one it is for.
    for path in paths.iter().filter(|path| !path.value.is_dir()) {
        let shown = path.value.display();
        let message = match path.value.metadata() {
            Ok(_) => format!("{shown} is not a directory"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                format!("there is no directory {shown} on this host")
            }
            Err(error) => format!("{shown} can't be looked at: {error}"),
        };
        let label = "a run needs this directory";
        findings.push(Diagnostic::note(path.span.clone(), message, label).with_help(
            "create it, name another one, or run the study on the host and as the user that has it",
        ));
    }
    for path in paths.iter().filter(|path| path.value.is_dir()) {
        let shown = path.value.display();
        let message = match underlay_files::total_bytes(&path.value) {
            None => format!("{shown} is on a file system that has no room for files"),
            Some(_) if underlay_files::is_read_only(&path.value) => format!("{shown} is read-only"),
            Some(_) => continue,
        };
        let help = "name a directory of the storage that you want to measure";
        findings.push(Diagnostic::note(path.span.clone(), message, "a run writes here").with_help(help));
    }
    (!paths.is_empty()).then(|| StorageSource::Paths(paths.into_iter().map(|path| path.value).collect()))
}

const LAYOUTS: [&str; 4] = ["stripe", "jbod", "mirror", "split"];
/// Other names of our layouts.
const RAID_LEVELS: [(&str, &str); 6] = [
    ("raid0", "stripe"),
    ("raid-0", "stripe"),
    ("striped", "stripe"),
    ("raid1", "mirror"),
    ("raid-1", "mirror"),
    ("mirrored", "mirror"),
];

fn read_layout(
    layout: Option<Field<'_>>,
    chunk: Option<Field<'_>>,
    directories: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<StorageLayout> {
    let layout = match layout {
        Some(field) => {
            if let Some(&(level, meant)) =
                RAID_LEVELS.iter().find(|(level, _)| field.as_text() == Some(level))
            {
                let message = format!("unknown value \"{level}\" for {}", field.place);
                let finding =
                    Diagnostic::error(field.span.clone(), message, format!("did you mean \"{meant}\"?"));
                findings.push(finding.with_help(format!("`layout` is one of {}", LAYOUTS.join(", "))));
                return None;
            }
            Some(field.word(&LAYOUTS, findings)?)
        }
        None => None,
    };
    let word = layout.as_ref().map_or("stripe", |layout| layout.value);
    // If a key of another layout is present, the message should point to the layout.
    let foreign = |field: &Field<'_>, reason: &str, findings: &mut Diagnostics| {
        let message = format!("{} does not go with layout \"{word}\"", field.place);
        let finding = Diagnostic::error(field.key_span.clone(), message, reason);
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
    let chunk_bytes = match &chunk {
        Some(field) => CHUNK.kind.read(field, findings).map(|chunk| chunk.value),
        None => Some(CHUNK.default_value()),
    };
    match word {
        "jbod" => Some(StorageLayout::Jbod),
        "mirror" => Some(StorageLayout::Mirror),
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
            let directories = DIRECTORIES.kind.read(&field, findings)?.value;
            Some(StorageLayout::Split { chunk_bytes: chunk_bytes?, directories })
        }
        _ => Some(StorageLayout::Stripe { chunk_bytes: chunk_bytes? }),
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

/// Bytes of a stripe on one device. The default is that of Linux's software RAID (mdadm(8), `--chunk`).
#[derive(Clone, Copy, Debug)]
struct StripeChunk;

impl KeyKind for StripeChunk {
    type Value = u64;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<u64>> {
        let bytes = field.bytes(findings)?;
        if !bytes.value.is_power_of_two() || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&bytes.value) {
            field.invalid("expected a power of two from \"4 KiB\" to \"16 MiB\"", findings);
            return None;
        }
        Some(bytes)
    }

    fn describe(&self) -> String {
        "a power of two from \"4 KiB\" to \"16 MiB\"".to_owned()
    }

    fn schema(&self) -> Value {
        BytesKind.schema()
    }
}
