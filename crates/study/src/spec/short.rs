//! `[short]`: what a study is cut down to under `--short`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::checks::Sites;
use super::execution::{self, DATA_MAX, REPETITIONS_MAX, TIME_MAX};
use super::jobs;
use super::reader::{Section, Spanned};
use super::storage::DEVICES_MAX;
use super::system::SERVERS_MAX;
use super::workload::{self, Amount, WorkloadSite};
use super::{Rate, StorageSource, rate};
use crate::diagnostics::{Diagnostic, Diagnostics};

/// Overrides. `mixes`, `jobs` and `workloads` say which of the study's are kept; the other lists replace those of every
/// workload. A list that is empty changes nothing.
#[derive(Default)]
pub(super) struct Short {
    warmup: Option<Spanned<Duration>>,
    duration: Option<Spanned<Duration>>,
    repetitions: Option<u32>,
    mixes: Vec<Spanned<&'static str>>,
    jobs: Vec<Spanned<String>>,
    workloads: Vec<Spanned<String>>,
    distributions: Vec<Spanned<&'static str>>,
    threads: Vec<Spanned<u32>>,
    rates: Vec<Spanned<Rate>>,
    amounts: Vec<Spanned<Amount>>,
    job_amounts: Option<jobs::Amounts>,
    servers: Option<Spanned<u32>>,
    pool_devices: Option<Spanned<u32>>,
    time: Option<Spanned<f64>>,
    data_scale: Option<Spanned<f64>>,
    dirty_limit: Option<Spanned<u64>>,
}

/// `workloads` are those of the full study.
pub(super) fn read(root: &mut Section<'_>, workloads: &[WorkloadSite], findings: &mut Diagnostics) -> Short {
    let Some(mut section) = root.take("short").and_then(|field| field.section("[short]", findings)) else {
        return Short::default();
    };
    let mut short = Short {
        warmup: section.take("warmup").and_then(|field| field.duration(true, findings)),
        duration: section.take("duration").and_then(|field| field.duration(false, findings)),
        repetitions: section
            .take("repetitions")
            .and_then(|field| field.count(1..=REPETITIONS_MAX, findings))
            .map(|count| count.value),
        dirty_limit: section.take("dirty_limit").and_then(|field| field.bytes(findings)),
        ..Short::default()
    };
    if let Some(field) = section.take("mixes") {
        short.mixes = workload::read_mixes(&field, findings);
    }
    if let Some(field) = section.take("jobs") {
        short.jobs = jobs::read_names(&field, findings);
    }
    if let Some(field) = section.take("job_data") {
        let jobs = workloads.iter().flat_map(|workload| &workload.jobs);
        let names: Vec<&str> = jobs.map(|job| job.spec.name.as_str()).collect();
        short.job_amounts = jobs::read_amounts(&field, &names, findings);
    }
    if let Some(field) = section.take("workloads") {
        short.workloads =
            field.list(findings, |element, findings| element.text("the name of a workload", findings));
    }
    if let Some(field) = section.take("distribution") {
        short.distributions = workload::read_distributions(&field, findings);
    }
    if let Some(field) = section.take("threads") {
        short.threads = workload::read_threads(&field, findings);
    }
    if let Some(field) = section.take("rate") {
        short.rates = rate::read_rates(&field, findings);
    }
    match (section.take("records"), section.take("data")) {
        (Some(records), Some(data)) => findings.push(
            Diagnostic::error(
                data.key_span,
                "[short] gives the amount of data twice",
                "expected either `records` or `data`",
            )
            .with_context(records.key_span, "given here already"),
        ),
        (Some(records), None) => short.amounts = workload::read_records(&records, findings),
        (None, Some(data)) => short.amounts = workload::read_data(&data, findings),
        (None, None) => {}
    }
    let servers = section.take("servers").and_then(|field| field.count(1..=SERVERS_MAX, findings));
    let devices = section.take("pool_devices").and_then(|field| field.count(1..=DEVICES_MAX, findings));
    (short.servers, short.pool_devices) = (servers, devices);
    let mut factor = |key, largest| {
        let field = section.take(key)?;
        Some(Spanned::new(execution::read_factor(&field, largest, findings)?, field.span))
    };
    (short.time, short.data_scale) = (factor("time", TIME_MAX), factor("data_scale", DATA_MAX));
    section.finish(findings);
    short
}

impl Short {
    /// Reports mixes that no workload of the study has: they could not be kept.
    pub fn check(&self, sites: &Sites, findings: &mut Diagnostics) {
        let has: Vec<_> =
            sites.workloads.iter().flat_map(|workload| &workload.mixes).map(|mix| mix.value).collect();
        for mix in self.mixes.iter().filter(|mix| !has.contains(&mix.value) && !has.is_empty()) {
            let message = format!("[short] keeps mix \"{}\", which no workload has", mix.value);
            let label = format!("expected one of {}", has.join(", "));
            findings.push(Diagnostic::error(mix.span.clone(), message, label));
        }
        for name in &self.workloads {
            let has: Vec<&str> = sites.workloads.iter().map(|workload| workload.name.as_str()).collect();
            if !has.contains(&name.value.as_str()) && !has.is_empty() {
                let message =
                    format!("[short] keeps workload \"{}\", which is not there", name.value.escape_debug());
                let label = format!("expected one of {}", has.join(", "));
                findings.push(Diagnostic::error(name.span.clone(), message, label));
            }
        }
        let jobs = sites.workloads.iter().flat_map(|workload| &workload.jobs);
        let has: BTreeSet<&str> = jobs.map(|job| job.spec.name.as_str()).collect();
        for job in self.jobs.iter().filter(|job| !has.contains(job.value.as_str())) {
            let message =
                format!("[short] keeps job \"{}\", which no workload has", job.value.escape_debug());
            let label = if has.is_empty() {
                "expected a workload of `kind = \"jobs\"`".to_owned()
            } else {
                format!("expected one of {}", has.iter().copied().collect::<Vec<_>>().join(", "))
            };
            findings.push(Diagnostic::error(job.span.clone(), message, label));
        }
        if let Some(servers) = &self.servers
            && !sites.systems.is_empty()
            && sites.systems.iter().all(|system| system.servers_span.is_none())
        {
            let message = "[short] changes `servers`, which no system has";
            let label = "expected `servers` in a section [system.NAME] as well";
            findings.push(Diagnostic::error(servers.span.clone(), message, label));
        }
        let is_volume = |source: &StorageSource| matches!(source, StorageSource::Volume(_));
        if let Some(devices) = &self.pool_devices
            && !sites.storages.is_empty()
            && !sites.storages.iter().any(|storage| is_volume(&storage.spec.source))
        {
            let message = "[short] changes `pool_devices`, and no storage is of a pool";
            let label = "expected a section [pool.NAME], and a storage of it";
            findings.push(Diagnostic::error(devices.span.clone(), message, label));
        }
    }

    /// The study cut down. A workload that has none of the short form's mixes is left out of it.
    pub fn applied_to(self, mut sites: Sites) -> Sites {
        if let Some(warmup) = self.warmup {
            sites.run.settings.warmup = warmup.value;
        }
        if let Some(duration) = self.duration {
            sites.run.settings.duration = duration.value;
            sites.run.duration_span = Some(duration.span);
        }
        if let Some(repetitions) = self.repetitions {
            sites.run.settings.repetitions = repetitions;
        }
        if let Some(limit) = self.dirty_limit {
            sites.run.settings.dirty_limit_bytes = Some(limit.value);
            sites.run.dirty_limit_span = limit.span;
        }
        if let Some(servers) = &self.servers {
            for system in sites.systems.iter_mut().filter(|system| system.servers_span.is_some()) {
                system.spec.servers = servers.value;
                system.servers_span = Some(servers.span.clone());
            }
        }
        if let Some(count) = &self.pool_devices {
            for storage in &mut sites.storages {
                let StorageSource::Volume(volume) = &mut storage.spec.source else { continue };
                volume.pool.devices.iter_mut().for_each(|device| device.count = count.value);
                storage.pool_span = Some(count.span.clone());
            }
        }
        if let Some(time) = self.time {
            (sites.scale.value.time, sites.scale.span) = (time.value, time.span);
        }
        if let Some(data) = self.data_scale {
            (sites.scale.value.data, sites.scale.span) = (data.value, data.span);
        }
        if !self.workloads.is_empty() {
            sites.workloads.retain(|workload| self.workloads.iter().any(|kept| kept.value == workload.name));
        }
        for workload in &mut sites.workloads {
            if !self.mixes.is_empty() {
                workload.mixes.retain(|mix| self.mixes.iter().any(|kept| kept.value == mix.value));
            }
            if !self.jobs.is_empty() {
                workload.jobs.retain(|job| self.jobs.iter().any(|kept| kept.value == job.spec.name));
            }
            if workload.is_batch {
                if let Some(amounts) = &self.job_amounts {
                    workload.jobs.iter_mut().for_each(|job| amounts.apply(job));
                }
                continue;
            }
            replace(&mut workload.distributions, &self.distributions);
            replace(&mut workload.threads, &self.threads);
            replace(&mut workload.rates, &self.rates);
            replace(&mut workload.amounts, &self.amounts);
        }
        sites.workloads.retain(|workload| !workload.is_empty());
        sites
    }
}

fn replace<T: Clone>(list: &mut Vec<T>, short: &[T]) {
    if !short.is_empty() {
        *list = short.to_vec();
    }
}
