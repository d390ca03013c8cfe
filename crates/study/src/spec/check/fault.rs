//! Faults: whether each meets a device, in time.

use std::ops::Range;
use std::time::Duration;

use underlay_config::{Diagnostic, Diagnostics, UnknownName, units};
use underlay_storage::faults::ByteExtent;

use crate::spec::model::{DeviceSpec, FaultAct, StorageSource};
use crate::spec::read::{FaultSite, SectionSites, StorageSite};

/// Checks that something begins during the measurement.
pub(super) fn check_time(
    title: &str,
    time: Duration,
    at_span: &Range<usize>,
    sites: &SectionSites,
    findings: &mut Diagnostics,
) {
    // A duration that could not be read has its own finding, and this time can't be judged without it. The length of a
    // batch job is not known in advance.
    if !sites.run.has_duration || sites.workloads.iter().all(|workload| workload.is_batch) {
        return;
    }
    let wall = sites.run.settings.duration;
    let measured = wall.div_f64(sites.scale.value.time);
    if time < measured {
        return;
    }
    let message = format!("{title} comes after the measurement has ended");
    let label = format!("expected less than {}", units::format_duration(measured));
    let finding = Diagnostic::error(at_span.clone(), message, label);
    findings.push(if sites.scale.value.time > 1.0 {
        let context =
            format!("{} of the clock are so much shorter in slow motion", units::format_duration(wall));
        finding.with_context(sites.scale.span.clone(), context)
    } else {
        finding
    });
}

/// Mistakes that only the whole study shows: whether the fault meets a device in time.
pub(super) fn check(site: &FaultSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let FaultSite { spec, .. } = site;
    check_time(&format!("[fault.{}]", spec.name), spec.at, &site.at_span, sites, findings);
    let names: Vec<&str> = sites.storage_names.iter().map(String::as_str).collect();
    if let (Some(name), Some(span)) = (&spec.storage, &site.storage_span)
        && !names.contains(&name.as_str())
    {
        let message =
            format!("[fault.{}] is for a storage `{}`, which does not exist", spec.name, name.escape_debug());
        let expected = format!("expected one of {}", names.join(", "));
        findings.push(Diagnostic::unknown(
            span.clone(),
            message,
            UnknownName::Value(name),
            names.iter().copied(),
            expected,
        ));
        return;
    }
    for storage in sites.storages.iter().filter(|storage| spec.concerns(&storage.spec.name)) {
        if sites.is_for_a_role(storage) {
            // A fault for all storage configurations applies to the compared ones.
            if let Some(span) = &site.storage_span {
                let message = format!("[fault.{}] is for a storage that no cell is measured on", spec.name);
                let label = "expected a storage that is compared with others";
                findings.push(Diagnostic::error(span.clone(), message, label).with_help(
                    "it holds a part of what a system stores, beside each of the storages that are compared",
                ));
            }
            continue;
        }
        match &storage.spec.source {
            // A fault for all storage configurations skips those that do not support faults.
            StorageSource::Paths(_) | StorageSource::Volume(_) | StorageSource::Elsewhere(_)
                if spec.storage.is_none() => {}
            StorageSource::Volume(_) => {
                let message = format!("[fault.{}] is for a volume of a pool", spec.name);
                let span = site.storage_span.clone().unwrap_or(site.act_span.clone());
                findings.push(
                    Diagnostic::error(span, message, "expected a storage with `devices` of its own")
                        .with_context(storage.source_span.clone(), "a volume")
                        .with_help("the devices of a volume server take no faults; name another `storage`"),
                );
            }
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => {
                let message = format!("[fault.{}] is for real storage", spec.name);
                let span = site.storage_span.clone().unwrap_or(site.act_span.clone());
                findings.push(
                    Diagnostic::error(span, message, "expected a modelled storage")
                        .with_context(storage.source_span.clone(), "this is real")
                        .with_help("only a modelled device fails on command"),
                );
            }
            StorageSource::Modelled { devices, layers, .. } => {
                let cache_bytes = layers.cache.as_ref().map_or(0, |cache| cache.capacity_bytes);
                check_extent(site, storage, (devices.as_slice(), cache_bytes), sites, findings);
                let of_a_node: u32 = devices.iter().map(|device| device.count).sum();
                // The devices that every system of the study has.
                let fewest = sites.systems.iter().map(|system| storage.spec.under(&system.spec).nodes).min();
                let count = of_a_node.saturating_mul(fewest.unwrap_or(1));
                if let (Some(device), Some(span)) = (spec.device, &site.device_span)
                    && device >= count as usize
                {
                    let message = format!("[storage.{}] has no device {device}", storage.spec.name);
                    let label = match count {
                        1 => "expected 0, its only one".to_owned(),
                        count => format!("expected 0 to {}", count - 1),
                    };
                    findings.push(
                        Diagnostic::error(span.clone(), message, label)
                            .with_context(storage.source_span.clone(), "its devices"),
                    );
                }
            }
        }
    }
}

/// Checks that a device of the storage configuration has some of the bytes that the fault is limited to: no request
/// reaches beyond the device's end.
fn check_extent(
    site: &FaultSite,
    storage: &StorageSite,
    (devices, cache_bytes): (&[DeviceSpec], u64),
    sites: &SectionSites,
    findings: &mut Diagnostics,
) {
    let FaultAct::Device(fault) = &site.spec.act else { return };
    let Some(ByteExtent { start_bytes, end_bytes }) = fault.extent() else { return };
    let each: Vec<u64> = devices.iter().flat_map(DeviceSpec::capacities).collect();
    // Without a device it applies to all of them, including the cache's.
    let capacity_bytes = match site.spec.device {
        Some(index) if !each.is_empty() => each[index % each.len()],
        _ => each.into_iter().fold(cache_bytes, u64::max),
    };
    let (name, scale) = (&site.spec.name, sites.scale.value.data);
    let here = |bytes: u64| (bytes as f64 / scale) as u64;
    let capacity = units::rounded_bytes(capacity_bytes);
    let message = |verb: &str| {
        format!("the extent of [fault.{name}] {verb} beyond the devices of [storage.{}]", storage.spec.name)
    };
    if here(start_bytes) >= here(capacity_bytes) {
        let label = format!("expected a start below {capacity}: no request would meet the fault");
        findings.push(
            Diagnostic::error(site.act_span.clone(), message("begins"), label)
                .with_context(storage.source_span.clone(), "its devices"),
        );
    } else if end_bytes > capacity_bytes {
        let label = format!("nothing beyond {capacity} is ever requested");
        findings.push(
            Diagnostic::note(site.act_span.clone(), message("ends"), label)
                .with_context(storage.source_span.clone(), "its devices"),
        );
    }
}
