//! The common part of storages and pools: devices of media, their initial state, the file system above them.

use serde_json::{Value, json};
use underlay_config::keys::{
    BooleanKind, BytesKind, CountKind, KeyKind, KeyRow, KeySection, OwnSchema, WordKind, list_schema,
    words_schema,
};
use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics, Field, Spanned};
use underlay_storage::catalogue;
use underlay_storage::stack::InitialState;

use super::media_files::{DeviceKeys, MediaReader};
use crate::spec::model::{DeviceSpec, StorageLayout, VolumeFilesystem};

/// One pacer serves all devices of a storage; with more, the host would be measured.
pub(in crate::spec) const MAX_DEVICES: u32 = 64;
/// More directories on one volume than any study has needed.
pub(in crate::spec) const MAX_DIRECTORIES: u32 = 64;

pub(super) const DEVICES: KeyRow<OwnSchema> = KeyRow::new(
    "devices",
    OwnSchema(|| list_schema(device_schema())),
    "[{ medium = \"hdd-7200-sata\", count = 6 }]",
    "Modelled devices.",
);
// Steady by default: what a device does on its first day rarely matters.
pub(super) const INITIAL: KeyRow<WordKind<InitialState>> = KeyRow::new(
    "initial",
    WordKind(&[("steady", InitialState::Steady), ("fresh", InitialState::Fresh)]),
    "\"fresh\"",
    "The devices' history: new, or overwritten until their speed is stable.",
)
.or("\"steady\"");
pub(super) const FILESYSTEM: KeyRow<WordKind<VolumeFilesystem>> = KeyRow::new(
    "filesystem",
    WordKind(&[
        ("xfs", VolumeFilesystem::Xfs),
        ("ext4", VolumeFilesystem::Ext4),
        ("none", VolumeFilesystem::None),
    ]),
    "\"ext4\"",
    "The file system; \"none\" gives a system that commands run the block devices.",
)
.or("\"xfs\"");

pub(super) const MEDIUM: KeyRow<OwnSchema> = KeyRow::new(
    "medium",
    OwnSchema(medium_schema),
    "\"hdd-7200-sata\"",
    "One of the catalogue (`underlay media list`), or a file that ends in .toml.",
)
.required();
const COUNT: KeyRow<CountKind> =
    KeyRow::new("count", CountKind { min: 1, max: MAX_DEVICES }, "6", "Number of equal devices.").or("1");
const CAPACITY: KeyRow<BytesKind> =
    KeyRow::new("capacity", BytesKind, "\"2 TB\"", "Capacity of each, which is no larger than the medium's.")
        .or_else("the medium's own");
const LARGER_THAN_MEDIUM: KeyRow<BooleanKind> =
    KeyRow::new("larger_than_medium", BooleanKind, "true", "Allows a device that nobody sells.").or("false");
const DIRECTORIES: KeyRow<CountKind> = KeyRow::new(
    "directories",
    CountKind { min: 1, max: MAX_DIRECTORIES },
    "10",
    "Under layout \"jbod\": shows each device as this many directories.",
)
.or("1");

/// An element of `devices`. Its other keys are parameters of the medium.
pub(in crate::spec) const DEVICE: KeySection = KeySection {
    path: "storage.NAME.devices",
    meaning: "Modelled devices. Other keys are numbers of the medium's model: `underlay media show` prints them.",
    keys: &[&MEDIUM, &COUNT, &CAPACITY, &LARGER_THAN_MEDIUM, &DIRECTORIES],
};

fn device_schema() -> Value {
    let mut device = DEVICE.schema();
    device["additionalProperties"] = json!({
        "type": ["number", "boolean"],
        "description": "A number or property of the medium's [model], in the place of its own (`underlay media show`).",
    });
    device
}

fn medium_schema() -> Value {
    let names = words_schema(catalogue::builtin().iter().map(|medium| medium.name.as_str()));
    json!({ "anyOf": [names, { "type": "string", "pattern": "\\.toml$" }] })
}

pub(in crate::spec) fn read_initial(
    field: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<InitialState> {
    let Some(field) = field else { return Some(INITIAL.default_value()) };
    INITIAL.kind.read(&field, findings).map(|initial| initial.value)
}

pub(in crate::spec) fn read_filesystem(
    field: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<VolumeFilesystem> {
    let Some(field) = field else { return Some(FILESYSTEM.default_value()) };
    FILESYSTEM.kind.read(&field, findings).map(|filesystem| filesystem.value)
}

pub(in crate::spec) fn read_devices(
    field: &Field<'_>,
    layout: Option<StorageLayout>,
    media: &MediaReader<'_>,
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
    // Next to one that could not be read, it may be a mirror of two.
    if let (Some(StorageLayout::Mirror), [only], [_]) = (layout, devices.as_slice(), elements.as_slice())
        && only.value.count == 1
    {
        findings.push(Diagnostic::error(
            only.span.clone(),
            "a mirror of one device",
            "expected two or more, as in `count = 2`",
        ));
        return None;
    }
    // Counts come from the file, so their sum may be too large.
    let total = devices.iter().fold(0, |sum: u32, device| sum.saturating_add(device.value.count));
    if total > MAX_DEVICES {
        let message = format!("{} are {total} devices", field.place);
        findings.push(Diagnostic::error(
            field.span.clone(),
            message,
            format!("expected at most {MAX_DEVICES} in one storage"),
        ));
        return None;
    }
    let layout_word = match layout {
        Some(StorageLayout::Stripe { .. } | StorageLayout::Split { .. }) => "stripe",
        Some(StorageLayout::Mirror) => "mirror",
        Some(StorageLayout::Jbod) | None => "",
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
    // Without the one that could not be read, it would be a different storage configuration.
    let complete = !devices.is_empty() && devices.len() == elements.len();
    complete.then(|| devices.into_iter().map(|device| device.value).collect())
}

fn read_device(
    element: &Field<'_>,
    layout: Option<StorageLayout>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> Option<DeviceSpec> {
    let mut section = element.section(format!("an element of {}", element.place), findings)?;
    let medium = section.take_key(&MEDIUM, findings);
    let count = section.read_optional(&COUNT, findings);
    let capacity = section.read_optional(&CAPACITY, findings);
    let may_be_larger = section.read(&LARGER_THAN_MEDIUM, findings);
    let directories = section.take_key(&DIRECTORIES, findings);
    let title = section.title.clone();
    // All other keys are parameters of the medium.
    let changes = section.take_rest();

    let directories = match directories {
        None => DIRECTORIES.default_value(),
        Some(field) if layout == Some(StorageLayout::Jbod) => DIRECTORIES.kind.read(&field, findings)?.value,
        Some(field) => {
            let message = format!("{} goes only with layout = \"jbod\"", field.place);
            findings.push(
                Diagnostic::error(field.key_span, message, "this device is one of a volume, or of a pool")
                    .with_help("layout = \"split\" shows one volume over all devices as several directories"),
            );
            return None;
        }
    };
    let capacity = capacity?;
    let allows_larger = may_be_larger.is_some_and(|larger| larger.value);
    let keys = DeviceKeys {
        capacity: capacity.clone(),
        beyond: allows_larger,
        changes: &changes,
        title: &title,
        own_keys: &DEVICE.names(),
    };
    let medium = media.find_device(&medium?, &keys, findings)?;
    let count = count?.map_or_else(|| COUNT.default_value(), |count| count.value);
    if let Some(capacity) = &capacity
        && capacity.value > medium.capacity_bytes()
        && !allows_larger
    {
        let message = format!("`capacity` in {title} is larger than its medium");
        let label = format!("\"{}\" has {}", medium.name, rounded_bytes(medium.capacity_bytes()));
        let help =
            "use `count` for several devices; for one that no shop sells, set `larger_than_medium = true`";
        findings.push(Diagnostic::error(capacity.span.clone(), message, label).with_help(help));
        return None;
    }
    let capacity_bytes = capacity.map(|capacity| capacity.value);
    Some(DeviceSpec { medium, count, capacity_bytes, directories })
}
