//! `[short]` compared with the study that it cuts down.

use std::collections::BTreeSet;
use std::ops::Range;

use underlay_config::{Diagnostic, Diagnostics, Spanned};

use crate::spec::model::StorageSource;
use crate::spec::read::{DataAmount, SectionSites, ShortOverrides, StorageSite, WorkloadSite};

/// Reports what [short] keeps or changes but the study does not have. Parts that could not be read may have it.
pub(in crate::spec) fn check_short(short: &ShortOverrides, sites: &SectionSites, findings: &mut Diagnostics) {
    let names: Vec<&str> = sites.workloads.iter().map(|workload| workload.name.as_str()).collect();
    for name in &short.workloads {
        if !names.contains(&name.value.as_str()) && !names.is_empty() {
            findings.push(does_not_exist("workload", name, &names));
        }
    }
    check_storages(short, sites, findings);
    if sites.has_all_of_workloads && !sites.workloads.is_empty() {
        let workloads = KeptWorkloads::new(short, sites);
        workloads.check_mixes(short, findings);
        workloads.check_jobs(short, findings);
        workloads.check_changes(short, findings);
    }
    // It replaces an existing value: one system with it is enough.
    if let Some(servers) = &short.servers
        && !sites.systems.is_empty()
        && sites.has_all_systems()
        && sites.systems.iter().all(|system| system.servers_span.is_none())
    {
        let message = "[short] changes `servers`, which no system has";
        let label = "expected `servers` in a section [system.NAME] as well";
        findings.push(Diagnostic::error(servers.span.clone(), message, label));
    }
    check_devices(short, sites, findings);
}

/// The workloads of the short form, before it cuts down their lists.
struct KeptWorkloads<'a> {
    workloads: Vec<&'a WorkloadSite>,
    /// Their name in messages.
    title: &'static str,
}

impl<'a> KeptWorkloads<'a> {
    fn new(short: &ShortOverrides, sites: &'a SectionSites) -> KeptWorkloads<'a> {
        let all: Vec<&WorkloadSite> = sites.workloads.iter().collect();
        let is_known =
            |name: &Spanned<String>| sites.workloads.iter().any(|workload| workload.name == name.value);
        // A name that could not be read, or that no workload has, was meant to keep another one.
        if short.workloads.is_empty() || !short.is_whole || !short.workloads.iter().all(is_known) {
            return KeptWorkloads { workloads: all, title: "no workload" };
        }
        let is_kept =
            |workload: &&WorkloadSite| short.workloads.iter().any(|name| name.value == workload.name);
        KeptWorkloads {
            workloads: all.into_iter().filter(is_kept).collect(),
            title: "no workload that it keeps",
        }
    }

    /// Reports mixes that could not be kept.
    fn check_mixes(&self, short: &ShortOverrides, findings: &mut Diagnostics) {
        let mixes = self.workloads.iter().flat_map(|workload| &workload.mixes);
        let names: BTreeSet<&str> = mixes.map(|mix| mix.value.as_str()).collect();
        for mix in short.mixes.iter().filter(|mix| !names.contains(mix.value.as_str())) {
            let message = format!("[short] keeps mix \"{}\", which {} has", mix.value, self.title);
            let label = one_of(&names, "expected a workload with `mixes`");
            findings.push(Diagnostic::error(mix.span.clone(), message, label));
        }
    }

    /// Reports jobs that could not be kept, and sizes of jobs that are not kept.
    fn check_jobs(&self, short: &ShortOverrides, findings: &mut Diagnostics) {
        let jobs = self.workloads.iter().flat_map(|workload| &workload.jobs);
        let names: BTreeSet<&str> = jobs.map(|job| job.spec.name.as_str()).collect();
        let lacking = "expected a workload of `kind = \"jobs\"`";
        for job in short.jobs.iter().filter(|job| !names.contains(job.value.as_str())) {
            let message =
                format!("[short] keeps job \"{}\", which {} has", job.value.escape_debug(), self.title);
            findings.push(Diagnostic::error(job.span.clone(), message, one_of(&names, lacking)));
        }
        let Some(amounts) = &short.job_amounts else { return };
        if names.is_empty() {
            let message = format!("[short] changes `job_data`, but {} runs jobs", self.title);
            findings.push(Diagnostic::error(amounts.span.clone(), message, lacking));
            return;
        }
        let is_kept = |name: &str| {
            let is_listed = short.jobs.is_empty() || short.jobs.iter().any(|job| job.value == name);
            names.contains(name) && (is_listed || !short.is_whole)
        };
        for (name, span) in amounts.value.named().filter(|(name, _)| !is_kept(name)) {
            let message = format!(
                "[short] changes the data of job \"{}\", which it does not keep",
                name.escape_debug()
            );
            let label = "expected the jobs that it keeps, or this one among them";
            findings.push(Diagnostic::error(span.clone(), message, label));
        }
    }

    /// Reports keys without effect, since no workload has what they replace.
    fn check_changes(&self, short: &ShortOverrides, findings: &mut Diagnostics) {
        let mut refuse = |key: &str, span: Option<&Range<usize>>, reason: &str, label: &str| {
            if let Some(span) = span {
                let message = format!("[short] changes `{key}`, but {reason}");
                findings.push(Diagnostic::error(span.clone(), message, label));
            }
        };
        if self.workloads.iter().all(|workload| workload.is_batch) {
            let reason = format!("{} runs batch jobs", self.title.replacen("no", "every", 1));
            let label = "expected none: jobs take as long as they take";
            refuse("warmup", short.warmup.as_ref().map(|warmup| &warmup.span), &reason, label);
            refuse("duration", short.duration.as_ref().map(|duration| &duration.span), &reason, label);
        }
        if !self.workloads.iter().any(|workload| workload.sends_requests()) {
            let reason = format!("{} sends requests", self.title);
            let label = "expected a workload with `mixes`";
            refuse("distribution", first_span(&short.distributions), &reason, label);
            refuse("threads", first_span(&short.threads), &reason, label);
            refuse("rate", first_span(&short.rates), &reason, label);
            let key = match short.amounts.first().map(|amount| &amount.value) {
                Some(DataAmount::Records(_)) => "records",
                _ => "data",
            };
            refuse(key, first_span(&short.amounts), &reason, label);
        }
    }
}

fn first_span<T>(list: &[Spanned<T>]) -> Option<&Range<usize>> {
    list.first().map(|first| &first.span)
}

fn one_of(names: &BTreeSet<&str>, without_any: &str) -> String {
    match names.is_empty() {
        true => without_any.to_owned(),
        false => format!("expected one of {}", names.iter().copied().collect::<Vec<_>>().join(", ")),
    }
}

/// Reports keys without effect, since no kept storage configuration has such devices.
fn check_devices(short: &ShortOverrides, sites: &SectionSites, findings: &mut Diagnostics) {
    if !sites.has_all_storages() || sites.storages.is_empty() {
        return;
    }
    let is_known = |name: &Spanned<String>| sites.storage_names.contains(&name.value);
    // A name that could not be read, or that no storage configuration has, was meant to keep another one.
    let keeps_all = short.storages.is_empty() || !short.is_whole || !short.storages.iter().all(is_known);
    let baseline = sites.baseline_name();
    let is_kept = |storage: &&StorageSite| {
        keeps_all
            || sites.is_for_a_role(storage)
            || baseline.as_deref() == Some(storage.spec.name.as_str())
            || short.storages.iter().any(|name| name.value == storage.spec.name)
    };
    let storages: Vec<&StorageSite> = sites.storages.iter().filter(is_kept).collect();
    let title = if keeps_all { "no storage" } else { "no storage that it keeps" };
    if let Some(devices) = &short.pool_devices
        && !storages.iter().any(|storage| matches!(storage.spec.source, StorageSource::Volume(_)))
    {
        let message = format!("[short] changes `pool_devices`, but {title} uses a pool");
        let label = "expected a section [pool.NAME], and a storage of it";
        findings.push(Diagnostic::error(devices.span.clone(), message, label));
    }
    if let Some(limit) = &short.dirty_limit
        && !storages.iter().any(|storage| storage.spec.is_modelled())
    {
        let message = format!("[short] changes `dirty_limit`, but {title} is modelled");
        let label = "expected a storage with `devices` or `pool`";
        findings.push(Diagnostic::error(limit.span.clone(), message, label));
    }
}

fn does_not_exist(kind: &str, name: &Spanned<String>, names: &[&str]) -> Diagnostic {
    let message = format!("[short] keeps {kind} \"{}\", which does not exist", name.value.escape_debug());
    Diagnostic::error(name.span.clone(), message, format!("expected one of {}", names.join(", ")))
}

fn check_storages(short: &ShortOverrides, sites: &SectionSites, findings: &mut Diagnostics) {
    let compared = sites.storage_names.iter().filter(|name| !sites.role_storages.contains(*name));
    let names: Vec<&str> = compared.map(String::as_str).collect();
    for name in short.storages.iter().filter(|name| !sites.storage_names.contains(&name.value)) {
        findings.push(does_not_exist("storage", name, &names));
    }
    let (Some(first), Some(baseline)) = (short.storages.first(), sites.baseline_name()) else { return };
    // It may be the name that could not be read.
    if short.is_whole && !short.storages.iter().any(|name| name.value == baseline) {
        let message =
            format!("[short] does not keep storage \"{baseline}\", to which the others are compared");
        let label = format!("expected \"{baseline}\" among them");
        findings.push(Diagnostic::error(first.span.clone(), message, label));
    }
}

/// Removes all storage configurations except these and those that hold a part of a system's data. A missing baseline is
/// a separate mistake.
fn keep_storages(names: &[Spanned<String>], sites: &mut SectionSites) {
    let baseline = sites.baseline_name();
    let is_kept =
        |name: &str| names.iter().any(|selected| selected.value == name) || baseline.as_deref() == Some(name);
    let roles = &sites.role_storages;
    sites.storages.retain(|storage| is_kept(&storage.spec.name) || roles.contains(&storage.spec.name));
    sites.storage_names.retain(|name| is_kept(name) || roles.contains(name));
    sites.faults.retain(|fault| fault.spec.storage.as_deref().is_none_or(is_kept));
}

/// The study cut down. A workload without any of the short form's mixes is left out.
pub(in crate::spec) fn cut_down(short: ShortOverrides, mut sites: SectionSites) -> SectionSites {
    if let Some(warmup) = short.warmup {
        sites.run.settings.warmup = warmup.value;
    }
    if let Some(duration) = short.duration {
        (sites.run.settings.duration, sites.run.has_duration) = (duration.value, true);
        // Findings about it must point into [short].
        sites.run.duration_span = Some(duration.span);
    }
    if let Some(repetitions) = short.repetitions {
        sites.run.settings.repetitions = repetitions;
    }
    if let Some(limit) = short.dirty_limit {
        sites.run.settings.dirty_limit_bytes = Some(limit.value);
        sites.run.dirty_limit_span = Some(limit.span);
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
                workload.jobs.iter_mut().for_each(|job| amounts.value.apply(job));
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
