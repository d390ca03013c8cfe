//! `[short]` held against the study that it cuts down.

use std::collections::BTreeSet;

use underlay_config::{Diagnostic, Diagnostics, Spanned};

use crate::spec::model::StorageSource;
use crate::spec::read::{SectionSites, ShortOverrides};

/// Reports mixes that no workload of the study has: they could not be kept.
pub(in crate::spec) fn check_short(short: &ShortOverrides, sites: &SectionSites, findings: &mut Diagnostics) {
    let mixes = sites.workloads.iter().flat_map(|workload| &workload.mixes);
    let names: Vec<&str> = mixes.map(|mix| mix.value.as_str()).collect();
    // Without any mix there is nothing to expect.
    for mix in short.mixes.iter().filter(|mix| !names.contains(&mix.value.as_str()) && !names.is_empty()) {
        let message = format!("[short] keeps mix \"{}\", which no workload has", mix.value);
        let label = format!("expected one of {}", names.join(", "));
        findings.push(Diagnostic::error(mix.span.clone(), message, label));
    }
    let names: Vec<&str> = sites.workloads.iter().map(|workload| workload.name.as_str()).collect();
    for name in &short.workloads {
        if !names.contains(&name.value.as_str()) && !names.is_empty() {
            findings.push(does_not_exist("workload", name, &names));
        }
    }
    check_storages(short, sites, findings);
    let jobs = sites.workloads.iter().flat_map(|workload| &workload.jobs);
    let names: BTreeSet<&str> = jobs.map(|job| job.spec.name.as_str()).collect();
    for job in short.jobs.iter().filter(|job| !names.contains(job.value.as_str())) {
        let message = format!("[short] keeps job \"{}\", which no workload has", job.value.escape_debug());
        let label = if names.is_empty() {
            "expected a workload of `kind = \"jobs\"`".to_owned()
        } else {
            format!("expected one of {}", names.iter().copied().collect::<Vec<_>>().join(", "))
        };
        findings.push(Diagnostic::error(job.span.clone(), message, label));
    }
    // It replaces a value that has to be there: one system with it is enough.
    if let Some(servers) = &short.servers
        && !sites.systems.is_empty()
        && sites.systems.iter().all(|system| system.servers_span.is_none())
    {
        let message = "[short] changes `servers`, which no system has";
        let label = "expected `servers` in a section [system.NAME] as well";
        findings.push(Diagnostic::error(servers.span.clone(), message, label));
    }
    let is_volume = |source: &StorageSource| matches!(source, StorageSource::Volume(_));
    if let Some(devices) = &short.pool_devices
        && !sites.storages.is_empty()
        && !sites.storages.iter().any(|storage| is_volume(&storage.spec.source))
    {
        let message = "[short] changes `pool_devices`, but no storage uses a pool";
        let label = "expected a section [pool.NAME], and a storage of it";
        findings.push(Diagnostic::error(devices.span.clone(), message, label));
    }
}

fn does_not_exist(kind: &str, name: &Spanned<String>, names: &[&str]) -> Diagnostic {
    let message = format!("[short] keeps {kind} \"{}\", which does not exist", name.value.escape_debug());
    Diagnostic::error(name.span.clone(), message, format!("expected one of {}", names.join(", ")))
}

fn check_storages(short: &ShortOverrides, sites: &SectionSites, findings: &mut Diagnostics) {
    let compared = || sites.storages.iter().filter(|storage| !sites.is_for_a_role(storage));
    let names: Vec<&str> = compared().map(|storage| storage.spec.name.as_str()).collect();
    for name in short.storages.iter().filter(|name| !sites.storage_names.contains(&name.value)) {
        findings.push(does_not_exist("storage", name, &names));
    }
    let (Some(first), Some(baseline)) = (short.storages.first(), sites.baseline_name()) else { return };
    if !short.storages.iter().any(|name| name.value == baseline) {
        let message =
            format!("[short] does not keep storage \"{baseline}\", to which the others are compared");
        let label = format!("expected \"{baseline}\" among them");
        findings.push(Diagnostic::error(first.span.clone(), message, label));
    }
}

/// Leaves out all storages but these, and those that hold a part of what a system stores. Where the baseline is
/// missing, that is a mistake by itself.
fn keep_storages(names: &[Spanned<String>], sites: &mut SectionSites) {
    let baseline = sites.baseline_name();
    let is_kept =
        |name: &str| names.iter().any(|selected| selected.value == name) || baseline.as_deref() == Some(name);
    let roles: BTreeSet<String> = sites
        .storages
        .iter()
        .filter(|storage| sites.is_for_a_role(storage))
        .map(|storage| storage.spec.name.clone())
        .collect();
    sites.storages.retain(|storage| is_kept(&storage.spec.name) || roles.contains(&storage.spec.name));
    sites.storage_names.retain(|name| is_kept(name) || roles.contains(name));
    sites.faults.retain(|fault| fault.spec.storage.as_deref().is_none_or(is_kept));
}

/// The study cut down. A workload that has none of the short form's mixes is left out of it.
pub(in crate::spec) fn cut_down(short: ShortOverrides, mut sites: SectionSites) -> SectionSites {
    if let Some(warmup) = short.warmup {
        sites.run.settings.warmup = warmup.value;
    }
    if let Some(duration) = short.duration {
        sites.run.settings.duration = duration.value;
        // Findings about it then point into [short].
        sites.run.duration_span = Some(duration.span);
    }
    if let Some(repetitions) = short.repetitions {
        sites.run.settings.repetitions = repetitions;
    }
    if let Some(limit) = short.dirty_limit {
        sites.run.settings.dirty_limit_bytes = Some(limit.value);
        sites.run.dirty_limit_span = limit.span;
    }
    if let Some(servers) = &short.servers {
        for system in sites.systems.iter_mut().filter(|system| system.servers_span.is_some()) {
            system.spec.servers = servers.value;
            system.servers_span = Some(servers.span.clone());
        }
    }
    if let Some(count) = &short.pool_devices {
        for storage in &mut sites.storages {
            let StorageSource::Volume(volume) = &mut storage.spec.source else { continue };
            volume.pool.devices.iter_mut().for_each(|device| device.count = count.value);
            storage.pool_span = Some(count.span.clone());
        }
    }
    if let Some(time) = short.time {
        (sites.scale.value.time, sites.scale.span) = (time.value, time.span);
        sites.scale.time_is_given = true;
    }
    if let Some(data) = short.data_scale {
        (sites.scale.value.data, sites.scale.span) = (data.value, data.span);
    }
    if !short.storages.is_empty() {
        keep_storages(&short.storages, &mut sites);
    }
    if !short.workloads.is_empty() {
        sites
            .workloads
            .retain(|workload| short.workloads.iter().any(|selected| selected.value == workload.name));
    }
    for workload in &mut sites.workloads {
        if !short.mixes.is_empty() {
            workload.mixes.retain(|mix| short.mixes.iter().any(|selected| selected.value == mix.value));
        }
        if !short.jobs.is_empty() {
            workload.jobs.retain(|job| short.jobs.iter().any(|selected| selected.value == job.spec.name));
        }
        if workload.is_batch {
            if let Some(amounts) = &short.job_amounts {
                workload.jobs.iter_mut().for_each(|job| amounts.apply(job));
            }
            continue;
        }
        if workload.is_benchmark {
            continue;
        }
        replace(&mut workload.distributions, &short.distributions);
        replace(&mut workload.threads, &short.threads);
        replace(&mut workload.rates, &short.rates);
        replace(&mut workload.amounts, &short.amounts);
    }
    sites.workloads.retain(|workload| !workload.is_empty());
    sites
}

fn replace<T: Clone>(list: &mut Vec<T>, short: &[T]) {
    if !short.is_empty() {
        *list = short.to_vec();
    }
}
