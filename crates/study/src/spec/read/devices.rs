//! The common part of storages and pools: devices of media, their initial state, the file system above them.

use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics, Field, Spanned};
use underlay_storage::stack::InitialState;

use super::media_files::{DeviceKeys, MediaReader};
use crate::spec::model::{DeviceSpec, StorageLayout, VolumeFilesystem};

/// One pacer serves all devices of a storage; beyond this the host is what would be measured.
pub(in crate::spec) const MAX_DEVICES: u32 = 64;
/// More directories on one volume than any study has had use for.
pub(in crate::spec) const MAX_DIRECTORIES: u32 = 64;

/// Steady unless told: what a device does on its first day is rarely what is asked.
pub(in crate::spec) fn read_initial(
    field: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<InitialState> {
    let Some(field) = field else { return Some(InitialState::Steady) };
    field.word(&["steady", "fresh"], findings).map(|word| match word.value {
        "fresh" => InitialState::Fresh,
        _ => InitialState::Steady,
    })
}

pub(in crate::spec) fn read_filesystem(
    field: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<VolumeFilesystem> {
    let Some(field) = field else { return Some(VolumeFilesystem::Xfs) };
    field.word(&["xfs", "ext4", "none"], findings).map(|word| match word.value {
        "ext4" => VolumeFilesystem::Ext4,
        "none" => VolumeFilesystem::None,
        _ => VolumeFilesystem::Xfs,
    })
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
    // Beside one that could not be read it may be a mirror of two.
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
    // Without one that could not be read it would be another storage.
    let complete = !devices.is_empty() && devices.len() == elements.len();
    complete.then(|| devices.into_iter().map(|device| device.value).collect())
}

/// The keys of a device that are not its medium's.
const KEYS: [&str; 5] = ["medium", "count", "capacity", "larger_than_medium", "directories"];

fn read_device(
    element: &Field<'_>,
    layout: Option<StorageLayout>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> Option<DeviceSpec> {
    let mut section = element.section(format!("an element of {}", element.place), findings)?;
    let medium = section.require("medium", "medium = \"hdd-7200-sata\"", findings);
    let count = section.take("count").map(|field| field.count(1..=MAX_DEVICES, findings));
    let capacity = section.take("capacity").map(|field| field.bytes(findings));
    let may_be_larger = section.take("larger_than_medium").map(|field| field.boolean(findings));
    let directories = section.take("directories");
    let title = section.title.clone();
    // All other keys are parameters of the medium.
    let changes = section.take_rest();

    let directories = match directories {
        None => 1,
        Some(field) if layout == Some(StorageLayout::Jbod) => {
            field.count(1..=MAX_DIRECTORIES, findings)?.value
        }
        Some(field) => {
            let message = format!("{} goes only with layout = \"jbod\"", field.place);
            findings.push(
                Diagnostic::error(field.key_span, message, "this device is one of a volume, or of a pool")
                    .with_help("layout = \"split\" shows one volume over all devices as several directories"),
            );
            return None;
        }
    };
    let capacity = match capacity {
        Some(capacity) => Some(capacity?),
        None => None,
    };
    let allows_larger = may_be_larger.is_some_and(|larger| larger == Some(true));
    let keys = DeviceKeys {
        capacity: capacity.clone(),
        beyond: allows_larger,
        changes: &changes,
        title: &title,
        own_keys: &KEYS,
    };
    let medium = media.find_device(&medium?, &keys, findings)?;
    let count = match count {
        Some(count) => count?.value,
        None => 1,
    };
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
