//! `[pool.NAME]`, and storage configurations that are volumes of a pool.

use std::cell::Cell;
use std::ops::Range;

use underlay_config::keys::{
    AnyText, BooleanKind, BytesKind, KeyKind, KeyRow, KeySection, OwnSchema, WordKind,
};
use underlay_config::{Diagnostic, Diagnostics, Field, Section, closest, sections_of};

use super::devices::{DEVICES, INITIAL, read_devices, read_filesystem, read_initial};
use super::layers::LayerFields;
use super::media_files::MediaReader;
use super::storage_site::StorageSite;
use crate::spec::model::{PoolSpec, PoolVolume, StorageSource, StorageSpec, VolumeTransport};

const POOL_DEVICES: KeyRow<OwnSchema> = KeyRow {
    example: "[{ medium = \"nvme-9300-max\", count = 8 }]",
    meaning: "Modelled devices, which need not be equal.",
    ..DEVICES
}
.required();
const POWER_CUT: KeyRow<BooleanKind> =
    KeyRow::new("power_cut", BooleanKind, "true", "The power of a device can be cut on command.").or("false");

/// `[pool.NAME]`
pub(in crate::spec) const POOL: KeySection = KeySection {
    path: "pool.NAME",
    meaning: "Devices of volume servers, for storages that are volumes.",
    keys: &[&POOL_DEVICES, &INITIAL, &POWER_CUT],
};

pub(super) const VOLUME_POOL: KeyRow<AnyText> = KeyRow::new(
    "pool",
    AnyText("the name of a pool"),
    "\"shared\"",
    "A volume of this [pool.NAME] for each server, over a network.",
);
pub(super) const TRANSPORT: KeyRow<WordKind<VolumeTransport>> = KeyRow::new(
    "transport",
    WordKind(&[("nvme-tcp", VolumeTransport::NvmeTcp)]),
    "\"nvme-tcp\"",
    "How a volume of a pool is reached.",
)
.or("\"nvme-tcp\"");
pub(super) const VOLUME_CAPACITY: KeyRow<BytesKind> =
    KeyRow::new("capacity", BytesKind, "\"4.9 TB\"", "Capacity of each server's volume of a pool.");
pub(super) const VOLUME_MIRROR: KeyRow<BooleanKind> =
    KeyRow::new("mirror", BooleanKind, "true", "Keeps two copies of a pool's volume, on two of its devices.")
        .or("false");

/// The pools of a study, and which of them are used.
pub(in crate::spec) struct StudyPools {
    sites: Vec<PoolSite>,
    /// All of them, including those that could not be read.
    names: Vec<String>,
}

struct PoolSite {
    spec: PoolSpec,
    key_span: Range<usize>,
    devices_span: Range<usize>,
    is_used: Cell<bool>,
}

/// Reads `[pool.NAME]` sections, if there are any.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> StudyPools {
    let Some(field) = root.take("pool") else { return StudyPools { sites: Vec::new(), names: Vec::new() } };
    let sections = sections_of(&field, "pool", "shared", findings);
    let names = sections.iter().map(|(name, _)| name.clone()).collect();
    let sites = sections
        .into_iter()
        .filter_map(|(name, section)| read_pool(name, section, media, findings))
        .collect();
    StudyPools { sites, names }
}

fn read_pool(
    name: String,
    mut section: Section<'_>,
    media: &MediaReader<'_>,
    findings: &mut Diagnostics,
) -> Option<PoolSite> {
    let key_span = section.span.clone();
    let devices = section.take_key(&POOL_DEVICES, findings);
    let initial = section.take_key(&INITIAL, findings);
    let power_cut = section.read(&POWER_CUT, findings).is_some_and(|power_cut| power_cut.value);
    section.finish(findings);
    let initial = read_initial(initial, findings);
    let field = devices?;
    // Volumes are cut from any devices: they need not be equal.
    let devices = read_devices(&field, None, media, findings)?;
    Some(PoolSite {
        spec: PoolSpec { name, devices, initial: initial?, power_cut },
        key_span,
        devices_span: field.span,
        is_used: Cell::new(false),
    })
}

impl StudyPools {
    /// Notes pools that no storage configuration uses.
    pub(super) fn note_unused(&self, findings: &mut Diagnostics) {
        for site in self.sites.iter().filter(|site| !site.is_used.get()) {
            let message = format!("no storage uses [pool.{}]", site.spec.name);
            let label = "it has no effect in this study";
            findings.push(Diagnostic::note(site.key_span.clone(), message, label).with_help(format!(
                "`pool = \"{}\"` in a [storage.NAME] makes that a volume of it",
                site.spec.name
            )));
        }
    }

    fn find(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<&PoolSite> {
        let name = VOLUME_POOL.kind.read(field, findings)?;
        if let Some(site) = self.sites.iter().find(|site| site.spec.name == name.value) {
            site.is_used.set(true);
            return Some(site);
        }
        if self.names.contains(&name.value) {
            // Its mistake has been reported already.
            return None;
        }
        let message = format!("there is no pool \"{}\"", name.value.escape_debug());
        let names = self.names.iter().map(String::as_str);
        findings.push(match closest(&name.value, names) {
            Some(meant) => Diagnostic::error(name.span, message, format!("did you mean \"{meant}\"?")),
            None if self.names.is_empty() => {
                Diagnostic::error(name.span, message, "expected a section [pool.NAME] of that name")
            }
            None => {
                let expected = format!("expected one of {}", self.names.join(", "));
                Diagnostic::error(name.span, message, expected)
            }
        });
        None
    }
}

/// The keys of a storage configuration that is a volume, as found.
pub(in crate::spec) struct VolumeFields<'a> {
    pub pool: Option<Field<'a>>,
    transport: Option<Field<'a>>,
    capacity: Option<Field<'a>>,
    mirror: Option<Field<'a>>,
}

impl<'a> VolumeFields<'a> {
    pub(super) fn take(section: &mut Section<'a>) -> Self {
        let [pool, transport, capacity, mirror] =
            section.take_each([VOLUME_POOL.name, TRANSPORT.name, VOLUME_CAPACITY.name, VOLUME_MIRROR.name]);
        VolumeFields { pool, transport, capacity, mirror }
    }

    /// Refuses keys that only a volume of a pool may have.
    pub(super) fn refuse(&self, findings: &mut Diagnostics) {
        for field in [&self.transport, &self.capacity, &self.mirror].into_iter().flatten() {
            let message = format!("{} goes only with `pool`", field.place);
            let finding =
                Diagnostic::error(field.key_span.clone(), message, "this storage is not a volume of a pool");
            findings.push(match field.key.as_str() {
                "capacity" => {
                    finding.with_help("a device's own goes in `devices = [{ medium = ..., capacity = ... }]`")
                }
                "mirror" => finding.with_help("layout = \"mirror\" keeps everything on every device"),
                _ => finding,
            });
        }
    }
}

/// A storage configuration with a volume of a pool for each server.
pub(in crate::spec) fn read_volume(
    name: String,
    title: &str,
    fields: VolumeFields<'_>,
    layers: LayerFields<'_>,
    filesystem: Option<Field<'_>>,
    pools: &StudyPools,
    findings: &mut Diagnostics,
) -> Option<StorageSite> {
    let field = fields.pool?;
    let pool = pools.find(&field, findings);
    let transport = match fields.transport {
        Some(field) => TRANSPORT.kind.read(&field, findings).map(|transport| transport.value),
        None => Some(TRANSPORT.default_value()),
    };
    let capacity_span = fields.capacity.as_ref().map(|capacity| capacity.span.clone());
    let capacity = match fields.capacity {
        Some(field) => VOLUME_CAPACITY.kind.read(&field, findings).map(|capacity| capacity.value),
        None => {
            let message = format!("{title} has no `capacity`");
            let label = "expected the size of each server's volume, as in `capacity = \"4 TB\"`";
            findings.push(Diagnostic::error(field.span.clone(), message, label));
            None
        }
    };
    let mirror = fields.mirror.map_or(Some(false), |mirror| mirror.boolean(findings));
    let layers = layers.read_of_volume(findings);
    let filesystem = read_filesystem(filesystem, findings);
    // After all fields, so that one pass reports the mistakes of each.
    let (pool, capacity_bytes, mirror, (compress, link)) = (pool?, capacity?, mirror?, layers?);
    let source = StorageSource::Volume(PoolVolume {
        pool: pool.spec.clone(),
        transport: transport?,
        capacity_bytes,
        compress,
        mirror,
        link,
        filesystem: filesystem?,
    });
    Some(StorageSite {
        spec: StorageSpec {
            name,
            source,
            per_node: false,
            nodes: 1,
            read_ahead_bytes: None,
            settings: Default::default(),
        },
        source_span: capacity_span.unwrap_or_else(|| field.span.clone()),
        layout_span: field.span,
        cache_span: None,
        pool_span: Some(pool.devices_span.clone()),
        settings: Default::default(),
        settings_span: 0..0,
    })
}

impl PoolVolume {
    /// Unscaled bytes of the pool's devices; each copy of a mirror takes its part.
    pub fn pool_bytes(&self) -> u64 {
        let each = self.pool.devices.iter().map(|device| {
            let bytes = device.capacity_bytes.unwrap_or(device.medium.capacity_bytes());
            bytes.saturating_mul(u64::from(device.count))
        });
        each.fold(0, u64::saturating_add)
    }
}
