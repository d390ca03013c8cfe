//! `[storage.NAME]`: modelled devices put together, or real paths.

use std::ops::Range;
use std::path::PathBuf;

use underlay_storage::catalogue;

use super::reader::{Field, Section, Spanned, named_sections};
use super::{DeviceSpec, Filesystem, Layout, StorageSource, StorageSpec, suggest};
use crate::diagnostics::{Diagnostic, Diagnostics};

/// One pacer serves all devices of a storage; beyond this the host is what would be measured.
const DEVICES_MAX: u32 = 64;
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
}

impl StorageSite {
    /// Unscaled capacities of the volumes that a system will see; empty for real paths.
    pub fn volumes_bytes(&self) -> Vec<u64> {
        let StorageSource::Modelled { devices, layout, .. } = &self.spec.source else {
            return Vec::new();
        };
        let each = devices.iter().flat_map(|device| {
            let bytes = device.capacity_bytes.unwrap_or(device.medium.capacity_bytes());
            std::iter::repeat_n(bytes, device.count as usize)
        });
        match layout {
            Layout::Stripe { .. } => vec![each.fold(0, u64::saturating_add)],
            Layout::Jbod => each.collect(),
        }
    }

    /// How many directories a system will get.
    pub fn directories(&self) -> usize {
        match &self.spec.source {
            StorageSource::Modelled { .. } => self.volumes_bytes().len(),
            StorageSource::Paths(paths) => paths.len(),
        }
    }
}

/// The names of all storages, and those of them that are described without a mistake.
pub(super) fn read(root: &mut Section<'_>, findings: &mut Diagnostics) -> (Vec<String>, Vec<StorageSite>) {
    let sections = named_sections(root, "storage", "hdd", findings);
    let names = sections.iter().map(|(name, _)| name.clone()).collect();
    let sites =
        sections.into_iter().filter_map(|(name, section)| read_storage(name, section, findings)).collect();
    (names, sites)
}

fn read_storage(name: String, mut section: Section<'_>, findings: &mut Diagnostics) -> Option<StorageSite> {
    let key_span = section.span.clone();
    let devices_field = section.take("devices");
    let paths_field = section.take("paths");
    let layout_field = section.take("layout");
    let chunk_field = section.take("chunk");
    let filesystem_field = section.take("filesystem");
    let title = section.title.clone();
    section.finish(findings);

    match (devices_field, paths_field) {
        (None, None) => {
            let message = format!("{title} says neither `devices` nor `paths`");
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
            for field in [layout_field, chunk_field, filesystem_field].into_iter().flatten() {
                let message = format!("{} does not go with `paths`", field.place);
                findings.push(
                    Diagnostic::error(field.key_span, message, "real directories are used as they are")
                        .with_help("leave it out, or describe modelled `devices` instead"),
                );
            }
            let source = read_paths(&paths, findings)?;
            Some(StorageSite {
                spec: StorageSpec { name, source },
                source_span: paths.span.clone(),
                layout_span: paths.span,
            })
        }
        (Some(devices), None) => {
            let layout_span = layout_field.as_ref().map_or(devices.span.clone(), |field| field.span.clone());
            let layout = read_layout(layout_field, chunk_field, findings);
            let filesystem = match filesystem_field {
                Some(field) => field.word(&["xfs", "ext4"], findings).map(|word| match word.value {
                    "ext4" => Filesystem::Ext4,
                    _ => Filesystem::Xfs,
                }),
                None => Some(Filesystem::Xfs),
            };
            let source_span = devices.span.clone();
            let devices = read_devices(&devices, layout, findings)?;
            let source = StorageSource::Modelled { devices, layout: layout?, filesystem: filesystem? };
            Some(StorageSite { spec: StorageSpec { name, source }, source_span, layout_span })
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
    (!paths.is_empty()).then(|| StorageSource::Paths(paths.into_iter().map(|path| path.value).collect()))
}

fn read_layout(
    layout: Option<Field<'_>>,
    chunk: Option<Field<'_>>,
    findings: &mut Diagnostics,
) -> Option<Layout> {
    let layout = match layout {
        Some(field) => Some(field.word(&["stripe", "jbod"], findings)?),
        None => None,
    };
    let chunk_bytes = chunk.as_ref().map(|field| read_chunk(field, findings));
    match (layout, chunk) {
        (Some(Spanned { value: "jbod", span }), Some(chunk)) => {
            let message = format!("{} does not go with layout \"jbod\"", chunk.place);
            findings.push(
                Diagnostic::error(chunk.key_span, message, "nothing is striped")
                    .with_context(span, "each device is a directory of its own"),
            );
            None
        }
        (Some(Spanned { value: "jbod", .. }), None) => Some(Layout::Jbod),
        _ => Some(Layout::Stripe { chunk_bytes: chunk_bytes.unwrap_or(Some(CHUNK_DEFAULT_BYTES))? }),
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

fn read_devices(
    field: &Field<'_>,
    layout: Option<Layout>,
    findings: &mut Diagnostics,
) -> Option<Vec<DeviceSpec>> {
    if !field.is_array() {
        field.mismatch("an array of devices, as in `[{ medium = \"hdd-7200-sata\", count = 6 }]`", findings);
        return None;
    }
    let elements = field.one_or_many(findings);
    let mut devices: Vec<Spanned<DeviceSpec>> = Vec::new();
    for element in &elements {
        if let Some(device) = read_device(element, findings) {
            devices.push(Spanned::new(device, element.span.clone()));
        }
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
    if let (Some(Layout::Stripe { .. }), Some(first)) = (layout, devices.first()) {
        let shape = |device: &DeviceSpec| {
            (device.medium.name.clone(), device.capacity_bytes.unwrap_or(device.medium.capacity_bytes()))
        };
        for other in devices.iter().filter(|other| shape(&other.value) != shape(&first.value)) {
            findings.push(
                Diagnostic::error(
                    other.span.clone(),
                    "the devices of a stripe are not equal",
                    "expected the same medium and capacity",
                )
                .with_context(first.span.clone(), "as here")
                .with_help(
                    "a stripe goes at the pace of its slowest device; layout = \"jbod\" keeps them apart",
                ),
            );
        }
    }
    let complete = !devices.is_empty() && devices.len() == elements.len();
    complete.then(|| devices.into_iter().map(|device| device.value).collect())
}

fn read_device(element: &Field<'_>, findings: &mut Diagnostics) -> Option<DeviceSpec> {
    let mut section = element.section(format!("an element of {}", element.place), findings)?;
    let medium = section.require("medium", "medium = \"hdd-7200-sata\"", findings);
    let count = section.take("count").map(|field| field.count(1..=DEVICES_MAX, findings));
    let capacity = section.take("capacity").map(|field| field.bytes(findings));
    section.finish(findings);

    let name = medium?.text("the name of a medium", findings)?;
    let names: Vec<&str> = catalogue::builtin().iter().map(|medium| medium.name.as_str()).collect();
    let Ok(medium) = catalogue::find(&name.value) else {
        let message = format!("unknown medium \"{}\"", name.value.escape_debug());
        let known = format!("the catalogue has {}", names.join(", "));
        findings.push(match suggest::closest(&name.value, names.iter().copied()) {
            Some(meant) => {
                Diagnostic::error(name.span, message, format!("did you mean \"{meant}\"?")).with_help(known)
            }
            None => {
                Diagnostic::error(name.span, message, "expected a medium of the catalogue").with_help(known)
            }
        });
        return None;
    };
    let count = match count {
        Some(count) => count?.value,
        None => 1,
    };
    let capacity_bytes = match capacity {
        Some(capacity) => Some(capacity?.value),
        None => None,
    };
    Some(DeviceSpec { medium, count, capacity_bytes })
}
