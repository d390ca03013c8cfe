//! `[short]`: what a study is cut down to under `--short`.

use std::time::Duration;

use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};

use super::devices::MAX_DEVICES;
use super::execution::{MAX_DATA, MAX_REPETITIONS, MAX_TIME, read_measured_time};
use super::system::MAX_SERVERS;
use super::workload::{DataAmount, WorkloadSite};
use super::{execution, jobs, mixes, rate, workload};
use crate::spec::model::StudyRate;

/// Overrides, with the places that later checks point at. `mixes`, `jobs`, `workloads` and `storages` say which of the
/// study's are kept; the other lists replace those of every workload. A list that is empty changes nothing.
#[derive(Default)]
pub(in crate::spec) struct ShortOverrides {
    /// Whether nothing is missing that could not be read.
    pub is_whole: bool,
    pub warmup: Option<Spanned<Duration>>,
    pub duration: Option<Spanned<Duration>>,
    pub repetitions: Option<u32>,
    pub mixes: Vec<Spanned<String>>,
    pub jobs: Vec<Spanned<String>>,
    pub workloads: Vec<Spanned<String>>,
    pub storages: Vec<Spanned<String>>,
    pub distributions: Vec<Spanned<&'static str>>,
    pub threads: Vec<Spanned<u32>>,
    pub rates: Vec<Spanned<StudyRate>>,
    pub amounts: Vec<Spanned<DataAmount>>,
    pub job_amounts: Option<Spanned<jobs::JobAmounts>>,
    pub servers: Option<Spanned<u32>>,
    pub pool_devices: Option<Spanned<u32>>,
    pub time: Option<Spanned<f64>>,
    pub data_scale: Option<Spanned<f64>>,
    pub dirty_limit: Option<Spanned<u64>>,
}

/// `workloads` are those of the full study, if nothing is missing from them.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    workloads: Option<&[WorkloadSite]>,
    findings: &mut Diagnostics,
) -> ShortOverrides {
    let Some(mut section) = root.take("short").and_then(|field| field.section("[short]", findings)) else {
        return ShortOverrides::default();
    };
    let mut short = ShortOverrides {
        warmup: section.take("warmup").and_then(|field| field.duration(true, findings)),
        duration: section.take("duration").and_then(|field| read_measured_time(&field, findings)),
        repetitions: section
            .take("repetitions")
            .and_then(|field| field.count(1..=MAX_REPETITIONS, findings))
            .map(|count| count.value),
        dirty_limit: section.take("dirty_limit").and_then(|field| field.bytes(findings)),
        ..ShortOverrides::default()
    };
    if let Some(field) = section.take("mixes") {
        short.mixes = mixes::read(&field, findings);
    }
    if let Some(field) = section.take("jobs") {
        short.jobs = jobs::read_names(&field, findings);
    }
    if let Some(field) = section.take("job_data") {
        // `[short]` names no workload here, so a job of any will do.
        let names = workloads.map(|workloads| -> Vec<&str> {
            let jobs = workloads.iter().flat_map(|workload| &workload.jobs);
            jobs.map(|job| job.spec.name.as_str()).collect()
        });
        let amounts = jobs::read_amounts(&field, names.as_deref(), findings);
        short.job_amounts = amounts.map(|amounts| Spanned::new(amounts, field.key_span));
    }
    if let Some(field) = section.take("workloads") {
        short.workloads =
            field.list(findings, |element, findings| element.text("the name of a workload", findings));
    }
    if let Some(field) = section.take("storages") {
        short.storages =
            field.list(findings, |element, findings| element.text("the name of a storage", findings));
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
            .with_context(records.key_span, "already given here"),
        ),
        (Some(records), None) => short.amounts = workload::read_records(&records, findings),
        (None, Some(data)) => short.amounts = workload::read_data(&data, findings),
        (None, None) => {}
    }
    let servers = section.take("servers").and_then(|field| field.count(1..=MAX_SERVERS, findings));
    let devices = section.take("pool_devices").and_then(|field| field.count(1..=MAX_DEVICES, findings));
    (short.servers, short.pool_devices) = (servers, devices);
    let mut factor = |key, largest| {
        let field = section.take(key)?;
        Some(Spanned::new(execution::read_factor(&field, largest, findings)?, field.span))
    };
    (short.time, short.data_scale) = (factor("time", MAX_TIME), factor("data_scale", MAX_DATA));
    section.finish(findings);
    short
}
