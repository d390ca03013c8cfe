//! `[short]`: the form to which `--short` cuts a study down.

use std::time::Duration;

use underlay_config::keys::{
    AnyText, AnyWord, BytesKind, CountKind, DurationKind, FactorKind, KeyDefault, KeyRow, KeySection,
    ListKind, OwnSchema, WholeKind,
};
use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};

use super::devices::MAX_DEVICES;
use super::execution::MeasuredTime;
use super::system::MAX_SERVERS;
use super::workload::{DataAmount, WorkloadSite};
use super::{execution, jobs, mixes, rate, workload};
use crate::spec::model::StudyRate;

/// Overrides, with the positions that later checks need. `mixes`, `jobs`, `workloads` and `storages` say which of the
/// study's are kept; the other lists replace those of every workload. An empty list changes nothing.
#[derive(Default)]
pub(in crate::spec) struct ShortOverrides {
    /// Whether everything could be read.
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

/// A key of another section, whose value it replaces.
const fn replacing<K: Copy>(row: KeyRow<K>, meaning: &'static str) -> KeyRow<K> {
    KeyRow { default: KeyDefault::Nothing, meaning, ..row }
}

const OF_RUN: &str = "Replaces the same key of [run].";
const OF_WORKLOADS: &str = "Replaces the same key of every workload but jobs.";

const WARMUP: KeyRow<DurationKind> = replacing(execution::WARMUP, OF_RUN);
const DURATION: KeyRow<MeasuredTime> = replacing(execution::DURATION, OF_RUN);
const REPETITIONS: KeyRow<CountKind> = replacing(execution::REPETITIONS, OF_RUN);
const DIRTY_LIMIT: KeyRow<BytesKind> = replacing(execution::DIRTY_LIMIT, OF_RUN);
const MIXES: KeyRow<OwnSchema> = replacing(mixes::MIXES, "The mixes that are kept.");
const JOBS: KeyRow<OwnSchema> = replacing(jobs::JOBS, "The jobs that are kept.");
const JOB_DATA: KeyRow<OwnSchema> =
    KeyRow { name: "job_data", ..replacing(jobs::JOB_DATA, "Replaces the `data` of jobs.") };
const WORKLOADS: KeyRow<ListKind<AnyText>> = KeyRow::new(
    "workloads",
    ListKind(AnyText("the name of a workload")),
    "[\"ycsb\"]",
    "The workloads that are kept.",
);
const STORAGES: KeyRow<ListKind<AnyText>> = KeyRow::new(
    "storages",
    ListKind(AnyText("the name of a storage")),
    "[\"hdd\", \"nvme\"]",
    "The storages that are kept: the baseline, and others.",
);
const DISTRIBUTION: KeyRow<ListKind<AnyWord>> = replacing(workload::DISTRIBUTION, OF_WORKLOADS);
const THREADS: KeyRow<ListKind<CountKind>> = replacing(workload::THREADS, OF_WORKLOADS);
const RATE: KeyRow<OwnSchema> = replacing(rate::RATE, OF_WORKLOADS);
const AMOUNT: &str = "Replaces the amount of data of every workload but jobs.";
const RECORDS: KeyRow<ListKind<WholeKind>> = replacing(workload::RECORDS, AMOUNT);
const DATA: KeyRow<OwnSchema> = replacing(workload::DATA, AMOUNT);
const SERVERS: KeyRow<CountKind> = KeyRow::new(
    "servers",
    CountKind { min: 1, max: MAX_SERVERS },
    "2",
    "Servers of every system that has `servers`.",
);
const POOL_DEVICES: KeyRow<CountKind> = KeyRow::new(
    "pool_devices",
    CountKind { min: 1, max: MAX_DEVICES },
    "4",
    "Devices of each entry of a pool's `devices`.",
);
const TIME: KeyRow<FactorKind> = replacing(execution::TIME, "Replaces `time` of [scale].");
const DATA_SCALE: KeyRow<FactorKind> =
    KeyRow { name: "data_scale", ..replacing(execution::DATA_SCALE, "Replaces `data` of [scale].") };

/// `[short]`
pub(in crate::spec) const SHORT: KeySection = KeySection {
    path: "short",
    meaning: "What `--short` changes.",
    keys: &[
        &WARMUP,
        &DURATION,
        &REPETITIONS,
        &DIRTY_LIMIT,
        &MIXES,
        &JOBS,
        &JOB_DATA,
        &WORKLOADS,
        &STORAGES,
        &DISTRIBUTION,
        &THREADS,
        &RATE,
        &RECORDS,
        &DATA,
        &SERVERS,
        &POOL_DEVICES,
        &TIME,
        &DATA_SCALE,
    ],
};

/// `workloads` are those of the full study, if all could be read.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    workloads: Option<&[WorkloadSite]>,
    findings: &mut Diagnostics,
) -> ShortOverrides {
    let Some(mut section) = root.take(SHORT.path).and_then(|field| field.section("[short]", findings)) else {
        return ShortOverrides::default();
    };
    let mut short = ShortOverrides {
        warmup: section.read(&WARMUP, findings),
        duration: section.read(&DURATION, findings),
        repetitions: section.read(&REPETITIONS, findings).map(|count| count.value),
        dirty_limit: section.read(&DIRTY_LIMIT, findings),
        ..ShortOverrides::default()
    };
    if let Some(field) = section.take(MIXES.name) {
        short.mixes = mixes::read(&field, findings);
    }
    if let Some(field) = section.take(JOBS.name) {
        short.jobs = jobs::read_names(&field, findings);
    }
    if let Some(field) = section.take(JOB_DATA.name) {
        // `[short]` names no workload here, so a job of any workload is fine.
        let names = workloads.map(|workloads| -> Vec<&str> {
            let jobs = workloads.iter().flat_map(|workload| &workload.jobs);
            jobs.map(|job| job.spec.name.as_str()).collect()
        });
        let amounts = jobs::read_amounts(&field, names.as_deref(), findings);
        short.job_amounts = amounts.map(|amounts| Spanned::new(amounts, field.key_span));
    }
    if let Some(workloads) = section.read(&WORKLOADS, findings) {
        short.workloads = workloads.value;
    }
    if let Some(storages) = section.read(&STORAGES, findings) {
        short.storages = storages.value;
    }
    if let Some(distributions) = section.read(&DISTRIBUTION, findings) {
        short.distributions = distributions.value;
    }
    if let Some(threads) = section.read(&THREADS, findings) {
        short.threads = threads.value;
    }
    if let Some(field) = section.take(RATE.name) {
        short.rates = rate::read_rates(&field, findings);
    }
    match (section.take(RECORDS.name), section.take(DATA.name)) {
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
    short.servers = section.read(&SERVERS, findings);
    short.pool_devices = section.read(&POOL_DEVICES, findings);
    short.time = section.read(&TIME, findings);
    short.data_scale = section.read(&DATA_SCALE, findings);
    section.finish(findings);
    short
}
