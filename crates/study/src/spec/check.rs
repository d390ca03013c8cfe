//! Mistakes that only the whole study shows: whether its parts fit together.

mod benchmark;
mod compressed;
mod device_files;
mod event;
mod fault;
mod find_rate;
mod jobs;
mod memory;
mod nodes;
mod properties;
mod rate;
mod run;
mod servers;
mod short;
mod visibility;

use std::ops::Range;

use underlay_attach::dirty_limit::DEVICE_MIN_BYTES;
use underlay_config::units::{format_bytes, rounded_bytes};
use underlay_config::{Diagnostic, Diagnostics, Spanned, UnknownName};
use underlay_workload::{OperationKind, OperationMix};

use crate::spec::model::{StorageLayout, StorageSource, SystemSpec, VolumeFilesystem, scaled_down};
use crate::spec::read::{DataAmount, SectionSites, StorageSite, SystemSite, WorkloadSite};

pub(super) use run::check_run;
pub(super) use short::{check_short, cut_down};

/// Below this no data system stays within its budget: its program alone needs as much.
const MIN_MEMORY_BYTES: u64 = 32 << 20;
/// Devices are made in whole units of this.
const MIN_CACHE_BYTES: u64 = 1 << 20;
/// A volume's own needs on this machine, regardless of its size: journal, inodes, allocation groups. XFS refuses to be
/// created on less than 300 MiB (mkfs.xfs(8)); ext4 needs less.
const MIN_XFS_VOLUME_BYTES: u64 = 300 << 20;
const MIN_EXT4_VOLUME_BYTES: u64 = 64 << 20;
const MIN_BARE_VOLUME_BYTES: u64 = 1 << 20;
const FILESYSTEM_BYTES: u64 = 100 << 20;
/// A pool numbers the extents of a volume, 256 KiB each, by 32 bits.
const MAX_VOLUME_BYTES: u64 = 1 << 50;
/// The highest ratio of stored bytes to the records' own. For data that is only read, it covers indexes and checksums.
/// For data that is written, it covers garbage and a compaction in progress, by levels or universally (which rewrites
/// everything at once).
const ROOM_READ_ONLY: f64 = 1.3;
const ROOM_WRITTEN: f64 = 1.4;
const ROOM_UNIVERSAL: f64 = 2.2;
/// Fewer records are no realistic data set.
const MIN_RECORDS: u64 = 1000;
/// A larger study would run for weeks, so it must be a mistake.
const MAX_CELLS: u64 = 20_000;
/// This many operations put ten beyond the 99.9th percentile.
const OPERATIONS_FOR_P999: f64 = 10_000.0;

pub(super) fn check(sites: &SectionSites, findings: &mut Diagnostics) {
    check_baseline(sites, findings);
    check_size_of_matrix(sites, findings);
    for system in &sites.systems {
        check_memory(system, sites, findings);
        memory::check(system, sites, findings);
        servers::check(system, sites, findings);
        servers::check_roles(system, sites, findings);
        benchmark::note_system_clocks(system, sites, findings);
        for workload in &sites.workloads {
            check_capabilities(system, workload, findings);
            jobs::check(system, workload, findings);
            benchmark::check(system, workload, findings);
            benchmark::note_elsewhere(system, workload, findings);
            visibility::check(system, workload, findings);
            note_data_in_memory(system, workload, sites, findings);
        }
        // A role's storage configuration has no cells of its own, so it is checked separately below.
        for storage in sites.storages.iter().filter(|storage| !sites.is_for_a_role(storage)) {
            check_directories(system, storage, findings);
            benchmark::check_storage(system, storage, &sites.workloads, findings);
        }
    }
    for storage in &sites.storages {
        check_pace(storage, sites, findings);
        check_volumes(storage, sites, findings);
        device_files::note_large(storage, sites, findings);
        if sites.is_for_a_role(storage) {
            benchmark::check_role(storage, findings);
        }
    }
    check_dirty_limit(sites, findings);
    for workload in &sites.workloads {
        check_filtered_integrity(workload, findings);
        check_amounts(workload, sites, findings);
        jobs::check_amounts(workload, sites, findings);
        note_short_measurement(workload, sites, findings);
        rate::note_beyond_the_end(workload, sites, findings);
        find_rate::check_steps(workload, sites, findings);
        note_unused_distribution(workload, findings);
        properties::check(workload, findings);
        benchmark::note_clocks(workload, sites, findings);
        benchmark::check_factor(workload, sites, findings);
    }
    for site in &sites.faults {
        fault::check(site, sites, findings);
    }
    event::check_all(sites, findings);
    servers::check_settings_of_storages(sites, findings);
    servers::check_endpoints(sites, findings);
    nodes::check(sites, findings);
    note_foreign_reference(sites, findings);
}

fn check_baseline(sites: &SectionSites, findings: &mut Diagnostics) {
    let names: Vec<&str> = sites.storage_names.iter().map(String::as_str).collect();
    match &sites.baseline {
        // An empty span at the beginning, since something that is missing has no position.
        None if names.len() > 1 => findings.push(
            Diagnostic::error(
                0..0,
                "the study has no `baseline`",
                format!("expected `baseline = \"{}\"` at the top", names[0]),
            )
            .with_help("it names the storage that the others are compared with"),
        ),
        Some(baseline) if !names.is_empty() && !names.contains(&baseline.value.as_str()) => {
            let message = format!("there is no storage `{}` for `baseline`", baseline.value.escape_debug());
            let expected = match names.as_slice() {
                [only] => format!("expected `{only}`"),
                many => format!("expected one of {}", many.join(", ")),
            };
            findings.push(Diagnostic::unknown(
                baseline.span.clone(),
                message,
                UnknownName::Value(&baseline.value),
                names.iter().copied(),
                expected,
            ));
        }
        _ => {}
    }
}

fn check_size_of_matrix(sites: &SectionSites, findings: &mut Diagnostics) {
    let of_workload = |workload: &WorkloadSite| {
        [
            workload.mixes.len(),
            workload.distributions.len().max(1),
            workload.threads.len(),
            workload.rates.len(),
            workload.amounts.len(),
        ]
        .iter()
        .fold(1u64, |product, &length| product.saturating_mul(length as u64))
        .saturating_add(workload.jobs.len() as u64)
        .saturating_add(u64::from(workload.is_benchmark))
    };
    let workloads = sites.workloads.iter().map(of_workload).fold(0, u64::saturating_add);
    let cells = workloads
        .saturating_mul(sites.systems.len() as u64)
        .saturating_mul(sites.storages.len() as u64)
        .saturating_mul(u64::from(sites.run.settings.repetitions));
    if cells > MAX_CELLS
        && let Some(widest) = sites.workloads.iter().max_by_key(|workload| of_workload(workload))
    {
        let message = format!("the matrix has {cells} cells, repetitions included");
        findings.push(
            Diagnostic::error(widest.key_span.clone(), message, "the longest lists are here")
                .with_help(format!("a study may have {MAX_CELLS}; shorten a list or lower `repetitions`")),
        );
    }
}

fn check_memory(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let here = system.spec.budget_here(sites.scale.value.data);
    // A system without storage needs no memory for it.
    if here < MIN_MEMORY_BYTES && !system.keeps_nothing() {
        let message = format!(
            "`memory` in [system.{}] is only {} on this machine",
            system.spec.name,
            rounded_bytes(here)
        );
        findings.push(too_small_here(system.memory_span.clone(), message, MIN_MEMORY_BYTES, "memory", sites));
    }
}

/// The finding about a size of the modelled machine that is too small here. `message` names what is left.
fn too_small_here(
    span: Range<usize>,
    message: String,
    least_bytes: u64,
    key: &str,
    sites: &SectionSites,
) -> Diagnostic {
    let label = format!("expected at least {} after the data scale", format_bytes(least_bytes));
    let finding = Diagnostic::error(span, message, label);
    let data = sites.scale.value.data;
    if data > 1.0 {
        finding
            .with_context(sites.scale.span.clone(), format!("divided by {data} here"))
            .with_help(format!("raise `{key}`, or lower `data` in [scale]"))
    } else {
        finding.with_help(format!("raise `{key}`"))
    }
}

/// Whether each block device of each storage configuration gets a workable part of the limit. If it is enough for the
/// storage configuration with the most devices, it is enough for all.
fn check_dirty_limit(sites: &SectionSites, findings: &mut Diagnostics) {
    let (Some(limit_bytes), Some(span)) = (sites.run.settings.dirty_limit_bytes, &sites.run.dirty_limit_span)
    else {
        return;
    };
    let limited_devices = |storage: &StorageSite| match &storage.spec.source {
        StorageSource::Modelled { devices, layout: StorageLayout::Jbod, .. } => {
            Some(devices.iter().map(|device| u64::from(device.count)).sum::<u64>())
        }
        StorageSource::Modelled { .. } | StorageSource::Volume(_) => Some(1),
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => None,
    };
    // From the end, so that the first of several equal ones is named.
    let limited = sites.storages.iter().rev().filter_map(|site| Some((site, limited_devices(site)?)));
    let Some((storage, devices)) = limited.max_by_key(|(_, devices)| *devices) else { return };
    // Each node's devices have their own limit, like its memory.
    let part = scaled_down(limit_bytes, sites.scale.value.data) / devices.max(1);
    if part >= DEVICE_MIN_BYTES {
        return;
    }
    let shared = match devices {
        1 => "the device".to_owned(),
        many => format!("each of {many} devices"),
    };
    let message = format!(
        "`dirty_limit` is only {} on this machine for {shared} of [storage.{}]",
        rounded_bytes(part),
        storage.spec.name
    );
    let least_bytes = DEVICE_MIN_BYTES * devices;
    findings.push(too_small_here(span.clone(), message, least_bytes, "dirty_limit", sites));
}

fn checks_integrity(workload: &WorkloadSite) -> bool {
    workload.properties.get("dataintegrity").is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// Values that can't be checked.
fn check_integrity(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    if checks_integrity(workload)
        && system.capabilities.is_some_and(|capabilities| capabilities.keeps_nothing)
    {
        let message = format!("`dataintegrity` checks what is read, but {} keeps nothing", system.spec.kind);
        let label = "expected a system that keeps what is written";
        let error = Diagnostic::error(workload.key_span.clone(), message, label);
        findings.push(error.with_context(system.key_span.clone(), "the system"));
    }
}

/// Values that would be reported wrong although they are correct, whatever the system.
fn check_filtered_integrity(workload: &WorkloadSite, findings: &mut Diagnostics) {
    let has_scans = workload.all_mixes().iter().any(|mix| asks_for(&mix.value, &[OperationKind::Scan]));
    if let (true, true, Some(filter)) = (checks_integrity(workload), has_scans, &workload.scan_filter) {
        let message = "`dataintegrity` checks whole records, but `scan_filter` leaves out parts of them";
        let error = Diagnostic::error(workload.key_span.clone(), message, "expected one of the two");
        findings.push(error.with_context(filter.span.clone(), "the filter"));
    }
}

fn check_capabilities(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    check_integrity(system, workload, findings);
    let Some(capabilities) = system.capabilities else { return };
    for mix in &workload.all_mixes() {
        let lacking = if asks_for(&mix.value, &[OperationKind::Scan]) && !capabilities.scan {
            "scan"
        } else if asks_for(&mix.value, &[OperationKind::Delete]) && !capabilities.delete {
            "delete"
        } else {
            continue;
        };
        let message = format!("mix \"{}\" needs {lacking}, which {} cannot do", mix.value, system.spec.kind);
        findings.push(
            Diagnostic::error(
                mix.span.clone(),
                message,
                "expected a mix that every system of the study can do",
            )
            .with_context(system.key_span.clone(), "the system")
            .with_help("leave the mix out, or write a separate study for this system"),
        );
    }
}

fn check_directories(system: &SystemSite, storage: &StorageSite, findings: &mut Diagnostics) {
    let Some(capabilities) = system.capabilities else { return };
    let directories = storage.directories();
    if directories > 1 && !capabilities.many_directories {
        let message = format!(
            "[storage.{}] gives {directories} directories, but {} uses one",
            storage.spec.name, system.spec.kind
        );
        let label = match storage.spec.source {
            StorageSource::Modelled { .. } | StorageSource::Volume(_) => {
                "expected layout = \"stripe\" for this system"
            }
            StorageSource::Paths(_) | StorageSource::Elsewhere(_) => "expected one path for this system",
        };
        findings.push(
            Diagnostic::error(storage.layout_span.clone(), message, label)
                .with_context(system.key_span.clone(), "the system"),
        );
    }
}

/// Slow motion slows devices down, but not real ones: their metrics would come out too fast.
fn check_pace(storage: &StorageSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let time = sites.scale.value.time;
    if time > 1.0 && !storage.spec.is_modelled() {
        let message = format!(
            "[storage.{}] is real storage, which [scale] time = {time} can't slow down",
            storage.spec.name
        );
        findings.push(
            Diagnostic::error(
                storage.layout_span.clone(),
                message,
                "expected modelled devices, or [scale] time = 1",
            )
            .with_context(sites.scale.span.clone(), "the scale"),
        );
    }
}

/// Whether the file system can be created on each volume, and hold the data.
fn check_volumes(storage: &StorageSite, sites: &SectionSites, findings: &mut Diagnostics) {
    use OperationKind::{Delete, Insert, ReadModifyWrite, Update};
    let (filesystem, cache) = match &storage.spec.source {
        StorageSource::Modelled { filesystem, layers, .. } => (filesystem, layers.cache.as_ref()),
        StorageSource::Volume(volume) => (&volume.filesystem, None),
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => return,
    };
    let scale = sites.scale.value.data;
    if let (Some(cache), Some(span)) = (cache, &storage.cache_span)
        && cache.capacity_bytes as f64 / scale < MIN_CACHE_BYTES as f64
    {
        let here = rounded_bytes((cache.capacity_bytes as f64 / scale) as u64);
        let message = format!("the cache of [storage.{}] is only {here} on this machine", storage.spec.name);
        let label = format!("expected at least {} after the data scale", format_bytes(MIN_CACHE_BYTES));
        findings.push(
            Diagnostic::error(span.clone(), message, label)
                .with_help("give it more `capacity`, or lower `data` in [scale]"),
        );
    }
    let volumes: Vec<u64> =
        storage.volumes_bytes().into_iter().map(|bytes| scaled_down(bytes, scale)).collect();
    let smallest_allowed = match filesystem {
        VolumeFilesystem::Xfs => MIN_XFS_VOLUME_BYTES,
        VolumeFilesystem::Ext4 => MIN_EXT4_VOLUME_BYTES,
        VolumeFilesystem::None => MIN_BARE_VOLUME_BYTES,
    };
    let smallest = volumes.iter().copied().min().unwrap_or(0);
    if smallest < smallest_allowed {
        let message = format!(
            "a volume of [storage.{}] is only {} on this machine",
            storage.spec.name,
            rounded_bytes(smallest)
        );
        let label = format!("{} needs {}", filesystem.name(), format_bytes(smallest_allowed));
        findings.push(
            Diagnostic::error(storage.source_span.clone(), message, label)
                .with_help("use more or larger devices, or lower `data` in [scale]"),
        );
        return;
    }
    check_pool(storage, sites, findings);
    if sites.is_for_a_role(storage) {
        return;
    }
    let overhead = FILESYSTEM_BYTES.saturating_mul(volumes.len() as u64);
    let room_here = volumes.iter().copied().fold(0, u64::saturating_add).saturating_sub(overhead);
    // For storage per node: as much as all nodes together can hold before the first is full.
    let room_here = (room_here as f64 / nodes::share_of_a_node(storage, sites)) as u64;
    for workload in &sites.workloads {
        jobs::check_room(storage, room_here, workload, scale, findings);
        let written = [Update, Insert, ReadModifyWrite, Delete];
        let read_only = !workload.all_mixes().iter().any(|mix| asks_for(&mix.value, &written));
        let universal = sites.systems.iter().any(|system| compacts_everything(&system.spec));
        let factor = match (read_only, universal) {
            (true, _) => ROOM_READ_ONLY,
            (false, false) => ROOM_WRITTEN,
            (false, true) => ROOM_UNIVERSAL,
        };
        for amount in &workload.amounts {
            let data_bytes =
                amount.value.records(workload.record_bytes()).saturating_mul(workload.record_bytes());
            // Each of several servers stores its share.
            let data_bytes = data_bytes / servers::fewest(sites);
            let stored = compressed::stored_share(storage, workload, sites);
            let needed_here = (scaled_down(data_bytes, scale) as f64 * stored * factor) as u64;
            if needed_here <= room_here {
                continue;
            }
            let modelled = |here: u64| rounded_bytes((here as f64 * scale) as u64);
            let message = format!(
                "{} of data does not fit [storage.{}] with the room that its files need",
                rounded_bytes(data_bytes),
                storage.spec.name
            );
            let label = match stored < 1.0 {
                true => format!(
                    "compressed to {:.0} %, and {factor} times as much for what is not yet compacted: {}",
                    stored * 100.0,
                    modelled(needed_here)
                ),
                false => format!("needs {factor} times as much: {}", modelled(needed_here)),
            };
            let mut room = format!("room for {} here", modelled(room_here));
            if scale > 1.0 {
                room.push_str(", the filesystem's own share taken off");
            }
            findings.push(
                Diagnostic::error(amount.span.clone(), message, label)
                    .with_context(storage.source_span.clone(), room)
                    .with_help("use less data, or more or larger devices"),
            );
        }
    }
}

/// Whether its compaction may need room for a second copy of all data.
fn compacts_everything(system: &SystemSpec) -> bool {
    underlay_systems::find(&system.kind).is_some_and(|kind| kind.compacts_everything(&system.settings))
}

/// A pool may promise more than it has, but must hold the expected data.
fn check_pool(storage: &StorageSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let (StorageSource::Volume(volume), Some(span)) = (&storage.spec.source, &storage.pool_span) else {
        return;
    };
    let devices: u32 = volume.pool.devices.iter().map(|device| device.count).sum();
    if volume.mirror && devices < 2 {
        let message = format!("[storage.{}] is mirrored, but its pool has one device", storage.spec.name);
        findings.push(Diagnostic::error(span.clone(), message, "expected two devices or more"));
    }
    let here = scaled_down(volume.capacity_bytes, sites.scale.value.data);
    if here >= MAX_VOLUME_BYTES {
        let message =
            format!("a volume of [storage.{}] is {} on this machine", storage.spec.name, rounded_bytes(here));
        let label = format!("expected less than {}", format_bytes(MAX_VOLUME_BYTES));
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
    let copies = if volume.mirror { 2 } else { 1 };
    for workload in &sites.workloads {
        for amount in &workload.amounts {
            let records = amount.value.records(workload.record_bytes());
            // The servers' shares come together again in the pool.
            let stored = records.saturating_mul(workload.record_bytes()).saturating_mul(copies);
            let pool_bytes = volume.pool_bytes();
            // Bytes that don't repeat can't be compressed.
            let shortest = match volume.compress {
                Some(_) => (stored as f64 * (1.0 - workload.compressibility())) as u64,
                None => stored,
            };
            if shortest > pool_bytes {
                let message = format!("{} of data does not fit its pool", rounded_bytes(stored));
                let label = format!("[pool.{}] has {}", volume.pool.name, rounded_bytes(pool_bytes));
                let finding = Diagnostic::error(amount.span.clone(), message, label);
                let finding = finding.with_context(span.clone(), "the pool's devices");
                let help = match (volume.mirror, volume.compress) {
                    (true, _) => "a mirrored volume stores everything twice",
                    (false, Some(_)) => {
                        "even compressed: values repeat in the share that the property `compressibility` says, \
                             0.5 when left out"
                    }
                    (false, None) => "use less data, or more or larger devices",
                };
                findings.push(finding.with_help(help));
            }
        }
    }
}

fn check_amounts(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let scale = sites.scale.value.data;
    let most_threads = workload.threads.iter().max_by_key(|threads| threads.value);
    let mut fewest: Option<(u64, &Spanned<DataAmount>)> = None;
    // No message names the workload: in [short], one amount stands for all of them.
    for amount in &workload.amounts {
        let records = amount.value.records(workload.record_bytes());
        let bytes = u128::from(records) * u128::from(workload.record_bytes());
        if bytes > u128::from(u64::MAX / 4) {
            let message = "the data exceed four exabytes";
            findings.push(Diagnostic::error(amount.span.clone(), message, "expected less data"));
            continue;
        }
        let here = scaled_down(records, scale) / servers::most(sites);
        if here < MIN_RECORDS {
            let message = format!("there are only {here} records on this machine");
            let label = format!("expected at least {MIN_RECORDS} after the data scale");
            findings.push(
                Diagnostic::error(amount.span.clone(), message, label)
                    .with_help("ask for more data, or lower `data` in [scale]"),
            );
        } else if fewest.is_none_or(|(least, _)| here < least) {
            fewest = Some((here, amount));
        }
    }
    if let (Some(threads), Some((here, amount))) = (most_threads, fewest)
        && u64::from(threads.value) > here / 2
    {
        let message = format!("{} threads are too many for {here} records", threads.value);
        findings.push(
            Diagnostic::error(threads.span.clone(), message, "expected fewer threads")
                .with_context(amount.span.clone(), "the records, after the data scale"),
        );
    }
}

fn note_data_in_memory(
    system: &SystemSite,
    workload: &WorkloadSite,
    sites: &SectionSites,
    findings: &mut Diagnostics,
) {
    // Next to published figures, a size that fits in memory is one of the paper's own points.
    if sites.reference.is_some() || system.keeps_nothing() {
        return;
    }
    // A program's own memory holds no stored data.
    let cache_bytes = memory::cache_bytes(system, sites);
    for amount in &workload.amounts {
        let records = amount.value.records(workload.record_bytes());
        let bytes = records.saturating_mul(workload.record_bytes());
        if system.spec.share(bytes) <= cache_bytes {
            let message = format!(
                "{} of data fits in the memory of [system.{}]",
                rounded_bytes(system.spec.share(bytes)),
                system.spec.name
            );
            findings.push(
                Diagnostic::note(
                    amount.span.clone(),
                    message,
                    "reads will come from memory, not from the storage",
                )
                .with_context(system.memory_span.clone(), "the memory")
                .with_help("use at least four times as much data as memory to see the storage"),
            );
        }
    }
}

fn note_short_measurement(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    // A modelled second takes `time` seconds here, so fewer of them fit into the duration.
    let modelled_s = sites.run.settings.duration.as_secs_f64() / sites.scale.value.time;
    let slowest = workload
        .rates
        .iter()
        .filter_map(|rate| rate.value.steady_per_s().map(|per_s| (per_s, rate)))
        .min_by(|left, right| left.0.total_cmp(&right.0));
    let Some((per_s, rate)) = slowest else { return };
    let operations = per_s * modelled_s;
    if operations < OPERATIONS_FOR_P999 {
        let message = format!("at {per_s} operations per second a measurement has {operations:.0} of them");
        let finding = Diagnostic::note(rate.span.clone(), message, "its p99.9 rests on fewer than ten")
            .with_help(format!("{OPERATIONS_FOR_P999} operations are enough: raise `duration`"));
        findings.push(match &sites.run.duration_span {
            Some(span) => finding.with_context(span.clone(), "the measurement"),
            None => finding,
        });
    }
}

fn note_unused_distribution(workload: &WorkloadSite, findings: &mut Diagnostics) {
    let ordered =
        |mix: &Spanned<String>| OperationMix::parse(&mix.value).is_ok_and(|mix| mix.visits_every_record());
    if let Some(first) = workload.distributions.first()
        && !workload.mixes.is_empty()
        && workload.mixes.iter().all(ordered)
    {
        findings.push(Diagnostic::note(
            first.span.clone(),
            format!("[workload.{}] has no mix that uses a distribution", workload.name),
            "load and delete go through all keys in order",
        ));
    }
}

fn note_foreign_reference(sites: &SectionSites, findings: &mut Diagnostics) {
    let Some(reference) = &sites.reference else { return };
    let mut published: Vec<&str> =
        reference.value.figures.iter().map(|figure| figure.storage.as_str()).collect();
    published.sort_unstable();
    published.dedup();
    let ours = |name: &&str| sites.storages.iter().any(|site| site.spec.name == **name);
    if !published.is_empty() && !published.iter().any(ours) {
        findings.push(Diagnostic::note(
            reference.span.clone(),
            format!("{} has figures for other storages than this study's", reference.value.paper),
            format!("name a storage {} to see them beside yours", published.join(" or ")),
        ));
    }
}

/// Whether a mix has operations of one of these kinds.
fn asks_for(mix: &str, kinds: &[OperationKind]) -> bool {
    OperationMix::parse(mix).is_ok_and(|mix| kinds.iter().any(|&kind| mix.share(kind) > 0.0))
}
