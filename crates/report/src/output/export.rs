//! The comparison for scripts: JSON and CSV of the same cells under the same stable names.
//!
//! A key is never absent: what could not be measured is `null` in JSON and empty in CSV. Latencies are in
//! microseconds, throughput in operations per second, prices in US dollars, and all of them in modelled time.
//! An interval is a pair `{ "low", "high" }` of 95 % confidence.

mod ab;
mod benchmarks;
mod jobs;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::{
    BetterDirection, Certificate, CertificateVerdict, Disturbance, DisturbedBy, InputCertificate, MetricRow,
    RatePart, ReferenceTable,
};

use crate::comparison::{CellOutcome, CellResult, ComparisonRow, RowMetrics, RunComparison};
use crate::comparison::{inputs, search};
use crate::findings::claims::{self, ClaimVerdict};
use crate::findings::reference::accuracy::ReferenceAccuracy;
use crate::findings::reference::{self, PublishedComparison, ReferenceReading};
use crate::findings::warnings;
use crate::load::LoadedRun;
use crate::statistics::{ConfidenceInterval, IntervalEstimate};

pub use ab::{AbExport, ab_csv, ab_json};
pub use benchmarks::{BenchmarkExport, BenchmarkFigureExport};
pub use jobs::{BreakEvenExport, DirectoryExport, JobExport, PricesExport, StoragePriceExport};

/// The whole export.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReportExport {
    pub run: RunExport,
    pub cells: Vec<CellExport>,
    /// How close ours come to the published ratios; null without any to compare.
    pub accuracy: Option<ReferenceAccuracy>,
    /// The claims of the reference's paper.
    pub claims: Vec<ClaimExport>,
    /// The jobs' costs at the prices of different times; empty for a run without jobs, or without prices.
    pub prices: Vec<PricesExport>,
    pub warnings: Vec<WarningExport>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct RunExport {
    pub name: String,
    pub title: Option<String>,
    pub answer: String,
    pub started_at: String,
    pub baseline: String,
    pub repetitions: u32,
    pub seed: u64,
    pub short: bool,
    pub scale_time: f64,
    pub scale_data: f64,
    /// Repetitions that have been recorded, of those planned.
    pub finished: usize,
    pub planned: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ClaimExport {
    pub what: String,
    pub value: String,
    pub verdict: ClaimVerdict,
    /// Each check's finding, in words.
    pub findings: Vec<String>,
    /// Where the paper's own figures contradict it, in words.
    pub contradictions: Vec<String>,
}

/// One kind of operation of a cell.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OperationExport {
    pub count: u64,
    pub mean_us: f64,
    pub mean_interval_us: Option<ConfidenceInterval>,
    pub p999_us: Option<f64>,
    pub p999_interval_us: Option<ConfidenceInterval>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct WarningExport {
    pub text: String,
    pub cells: Vec<String>,
    pub remedy: Option<String>,
    pub doubtful: bool,
    /// `doubtful`, `turns` where a conclusion can turn with what no source gives, `note`.
    pub severity: warnings::WarningSeverity,
}

/// One cell over its repetitions.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CellExport {
    pub system: String,
    pub storage: String,
    pub workload: String,
    pub mix: String,
    pub distribution: String,
    pub threads: u32,
    /// Stand-alone servers that share data, threads and rate.
    pub servers: u32,
    /// Offered operations per second, the mean of a rate that changes; null in a closed loop, and where one was looked
    /// for.
    pub rate_per_s: Option<f64>,
    /// How the rate changes; empty where it does not.
    pub rate_parts: Vec<RatePart>,
    /// The limit of the search for a rate, and each repetition's result.
    pub find_rate: Option<String>,
    pub searches: Vec<SearchExport>,
    pub records: u64,
    pub data_bytes: u64,
    /// `completed`, `failed`, `unavailable`, `disturbed` (by hand, so that it has no figures) or `pending`.
    pub state: &'static str,
    /// Why it failed or what is missing.
    pub reason: Option<String>,
    /// Completed ones.
    pub repetitions: usize,
    pub throughput_per_s: Option<f64>,
    pub throughput_interval: Option<ConfidenceInterval>,
    pub latency_us: LatencyExport<Option<f64>>,
    pub latency_interval_us: LatencyExport<Option<ConfidenceInterval>>,
    /// By the kind of operation: `read`, `update`.
    pub operations: BTreeMap<String, OperationExport>,
    pub ratio_to_baseline: Option<f64>,
    pub ratio_interval: Option<ConfidenceInterval>,
    pub certificate: CertificateExport,
    /// Repetitions to which something was done on purpose; empty where that is none.
    pub disturbed: Vec<DisturbedExport>,
    /// How far what is known of the media carries it; null where nothing was modelled.
    pub inputs: Option<InputCertificate>,
    /// The share of device time that rests on figures that sources measured, 0 to 1; null where nothing was modelled.
    pub inputs_measured: Option<f64>,
    /// Whether what is concluded from it can turn with what no source gives.
    pub conclusion_can_turn: bool,
    /// Where the ratio would lie with all estimates half or double; null where it rests on none, and of the baseline.
    pub ratio_if_estimates_off: Option<ConfidenceInterval>,
    pub cost: CostExport,
    /// Null unless it is a batch job, which has no throughput and no latency.
    pub job: Option<JobExport>,
    /// Null unless it is a benchmark of the user's, which has figures of its own.
    pub benchmark: Option<BenchmarkExport>,
    /// Published figures that this cell is held against.
    pub reference: Vec<ReferenceExport>,
}

/// A rate that was looked for.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SearchExport {
    pub repetition: u32,
    /// Null where even the lowest rate that was tried fails.
    pub holds_per_s: Option<f64>,
    /// Null where nothing that was tried fails.
    pub fails_per_s: Option<f64>,
    pub confirmed: u32,
    pub confirmations: u32,
    /// Whether it was found as nearly as was asked.
    pub is_closed: bool,
    pub steps: usize,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct LatencyExport<T> {
    pub mean: T,
    pub p50: T,
    pub p99: T,
    pub p999: T,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CertificateExport {
    /// `faithful`, `doubtful`, `real-storage`, `disturbed`, or null where nothing was certified.
    pub verdict: Option<CertificateVerdict>,
    /// Names of the failed checks.
    pub failed_checks: Vec<String>,
    /// In the order of the records.
    pub metrics: Vec<MetricExport>,
}

/// A metric over the repetitions that have it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MetricExport {
    /// With the unit last: `delivered_p99_us`. The CSV has a column `certificate_` and this.
    pub id: String,
    pub title: String,
    pub unit: String,
    pub better: Option<BetterDirection>,
    /// The mean of the repetitions.
    pub value: f64,
    pub min: f64,
    pub max: f64,
}

impl MetricExport {
    /// One for each metric of the rows, in the order in which they first occur.
    fn summarize<'a>(rows: impl IntoIterator<Item = &'a MetricRow>) -> Vec<MetricExport> {
        let mut by_metric: Vec<Vec<&MetricRow>> = Vec::new();
        for row in rows {
            match by_metric.iter_mut().find(|found| found[0].id == row.id) {
                Some(found) => found.push(row),
                None => by_metric.push(vec![row]),
            }
        }
        let summarize_one = |rows: Vec<&MetricRow>| {
            let values: Vec<f64> = rows.iter().map(|row| row.value).collect();
            MetricExport {
                id: rows[0].id.to_string(),
                title: rows[0].title.to_string(),
                unit: rows[0].unit.to_string(),
                better: rows[0].better,
                value: values.iter().sum::<f64>() / values.len() as f64,
                min: values.iter().copied().fold(f64::INFINITY, f64::min),
                max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            }
        };
        by_metric.into_iter().map(summarize_one).collect()
    }
}

/// A repetition to which something was done on purpose.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DisturbedExport {
    pub repetition: u32,
    /// A disturbance by hand weighs more than the study's own.
    pub by: DisturbedBy,
    /// Not among the cell's figures.
    pub is_left_out: bool,
    pub what: Vec<Disturbance>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct CostExport {
    /// List price of the devices; three years' rent where they are rented.
    pub price_usd: Option<f64>,
    /// The part of `price_usd` that is three years' rent: 0 where everything is bought.
    pub price_rent_usd: Option<f64>,
    /// Of the price, so rent where that is rent.
    pub usd_per_tb: Option<f64>,
    /// The price for each 1,000 operations per second, so rent where that is rent.
    pub usd_per_kops: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ReferenceExport {
    pub paper: String,
    pub metric: String,
    /// `table` or `prose`.
    pub from: String,
    pub published: f64,
    /// In the metric's unit, as are the published value and the interval.
    pub ours: Option<f64>,
    pub ours_interval: Option<ConfidenceInterval>,
    pub published_ratio: Option<f64>,
    pub ours_ratio: Option<f64>,
    pub ours_ratio_interval: Option<ConfidenceInterval>,
    pub reading: ReferenceReading,
    /// Our data where that is less than the published data.
    pub ours_less_data_bytes: Option<f64>,
}

/// The run's cells as indented JSON, one object: `run`, `cells`, `claims`, `prices`, `warnings`.
pub fn json(loaded: &LoadedRun) -> String {
    let mut text = serde_json::to_string_pretty(&export(loaded)).expect("plain data becomes JSON");
    text.push('\n');
    text
}

/// The data behind [`json`] and [`csv`].
pub fn export(loaded: &LoadedRun) -> ReportExport {
    let comparison = RunComparison::from_loaded(loaded);
    let run = &loaded.run;
    let table = run.reference.as_ref();
    let figures = table.map(|table| reference::compare(table, &comparison)).unwrap_or_default();
    let mut cells = Vec::new();
    for (index, row) in comparison.rows.iter().enumerate() {
        for result in row.cells.iter().flatten() {
            let published: Vec<&PublishedComparison> = figures
                .iter()
                .filter(|candidate| {
                    candidate.row == Some(index) && candidate.figure.storage == result.cell.storage
                })
                .collect();
            let baseline = comparison
                .baseline_index()
                .and_then(|baseline_index| row.cells.get(baseline_index)?.as_ref());
            // Against itself the baseline has no range.
            let baseline = baseline.filter(|baseline| baseline.cell.storage != result.cell.storage);
            cells.push(cell_export(row, result, baseline, &published, table));
        }
    }
    let warnings = warnings::collect(loaded, &comparison)
        .into_iter()
        .map(|warning| WarningExport {
            doubtful: warning.severity == warnings::WarningSeverity::Doubtful,
            severity: warning.severity,
            text: warning.text,
            cells: warning.cells,
            remedy: warning.remedy,
        })
        .collect();
    let judged = table.map(|table| claims::judge(table, &comparison)).unwrap_or_default();
    let claims = judged.into_iter().map(|one| ClaimExport {
        what: one.claim.what.clone(),
        value: one.claim.value.clone(),
        verdict: one.verdict,
        findings: one.findings,
        contradictions: one.contradictions,
    });
    let claims = claims.collect();
    let accuracy = ReferenceAccuracy::from_figures(&figures);
    ReportExport {
        run: RunExport {
            name: run.name.clone(),
            title: run.title.clone(),
            answer: crate::findings::answer::summarize(loaded, &comparison),
            started_at: run.started_at.clone(),
            baseline: run.baseline.clone(),
            repetitions: run.repetitions,
            seed: run.seed,
            short: run.short,
            scale_time: run.scale.time,
            scale_data: run.scale.data,
            finished: loaded.finished(),
            planned: loaded.planned(),
        },
        cells,
        accuracy,
        claims,
        prices: jobs::prices(table, &comparison),
        warnings,
    }
}

fn cell_export(
    row: &ComparisonRow,
    result: &CellResult,
    baseline: Option<&CellResult>,
    published: &[&PublishedComparison],
    table: Option<&ReferenceTable>,
) -> CellExport {
    let cell = result.cell;
    let figures = result.figures();
    let (state, reason) = match &result.outcome {
        CellOutcome::Measured(_) | CellOutcome::Job(_) | CellOutcome::Benchmark(_) => ("completed", None),
        CellOutcome::Failed { reason } => ("failed", Some(reason.clone())),
        CellOutcome::Unavailable { missing, remedy } => ("unavailable", Some(format!("{missing}: {remedy}"))),
        CellOutcome::Disturbed { reason } => ("disturbed", Some(reason.clone())),
        CellOutcome::Skipped { .. } => {
            ("skipped", result.records.iter().find_map(|record| record.status.reason()))
        }
        CellOutcome::Pending => ("pending", None),
    };
    let latency = |pick: fn(&RowMetrics) -> Option<IntervalEstimate>| figures.and_then(pick);
    let each = [
        latency(|figures| figures.mean_us),
        latency(|figures| figures.p50_us),
        latency(|figures| figures.p99_us),
        latency(|figures| figures.p999_us),
    ];
    let [mean, p50, p99, p999] = each.map(|one| one.map(|estimate| estimate.value));
    let intervals = each.map(|one| one.and_then(|estimate| estimate.interval));
    let cost = result.storage().and_then(crate::cell::cost::StorageCost::from_storage);
    let ratio = match (result.job(), result.benchmark()) {
        (Some(job), _) => job.performance,
        (_, Some(benchmark)) => benchmark.first().and_then(|figure| figure.performance),
        (None, None) => figures.and_then(|figures| figures.ratio),
    };
    let mut failed_checks: Vec<String> =
        result.certificates().flat_map(Certificate::failed).map(|check| check.name.clone()).collect();
    failed_checks.sort();
    // Repetitions mostly fail the same checks, and each name is to be there once.
    failed_checks.dedup();
    let requests = cell.requests();
    CellExport {
        system: row.system.to_owned(),
        storage: cell.storage.clone(),
        workload: cell.label(),
        mix: cell.mix_or_job().to_owned(),
        distribution: requests.map_or(String::new(), |requests| requests.distribution.clone()),
        threads: requests.map_or(0, |requests| requests.threads),
        servers: cell.servers,
        rate_per_s: cell.rate_per_s(),
        rate_parts: cell.rate_parts().to_vec(),
        find_rate: cell.rate_within().map(str::to_owned),
        searches: search::list_searches(result)
            .into_iter()
            .map(|(repetition, found)| SearchExport {
                repetition,
                holds_per_s: found.holds_per_s,
                fails_per_s: found.fails_per_s,
                confirmed: found.confirmed,
                confirmations: found.confirmations,
                is_closed: found.is_closed,
                steps: found.steps.len(),
            })
            .collect(),
        records: requests.map_or(0, |requests| requests.records),
        data_bytes: cell.data_bytes,
        state,
        reason,
        repetitions: match (result.job(), result.benchmark()) {
            (Some(job), _) => job.repetitions,
            (_, Some(benchmark)) => benchmark.repetitions,
            (None, None) => figures.map_or(0, |figures| figures.repetitions),
        },
        throughput_per_s: figures.map(|figures| figures.throughput_per_s.value),
        throughput_interval: figures.and_then(|figures| figures.throughput_per_s.interval),
        latency_us: LatencyExport { mean, p50, p99, p999 },
        latency_interval_us: LatencyExport {
            mean: intervals[0],
            p50: intervals[1],
            p99: intervals[2],
            p999: intervals[3],
        },
        operations: figures.map(operations).unwrap_or_default(),
        ratio_to_baseline: ratio.map(|ratio| ratio.value),
        ratio_interval: ratio.and_then(|ratio| ratio.interval),
        certificate: CertificateExport {
            verdict: result.verdict(),
            failed_checks,
            metrics: MetricExport::summarize(
                result.certificates().flat_map(|certificate| &certificate.metrics),
            ),
        },
        disturbed: disturbed(result),
        inputs: inputs::find_certificate(result).cloned(),
        inputs_measured: inputs::find_certificate(result).map(InputCertificate::measured),
        conclusion_can_turn: result.can_turn,
        ratio_if_estimates_off: ratio
            .zip(baseline)
            .and_then(|(ratio, baseline)| inputs::range(ratio.value, result, baseline)),
        cost: CostExport {
            price_usd: cost.as_ref().map(|cost| cost.price.usd),
            price_rent_usd: cost.as_ref().map(|cost| cost.price.rent_usd),
            usd_per_tb: cost.as_ref().and_then(|cost| cost.usd_per_tb()),
            usd_per_kops: match (&cost, figures) {
                (Some(cost), Some(figures)) => cost.usd_per_kops(figures.throughput_per_s.value),
                _ => None,
            },
        },
        job: result.job().map(jobs::job),
        benchmark: result.benchmark().map(benchmarks::benchmark),
        reference: published
            .iter()
            .map(|one| ReferenceExport {
                paper: table.map_or(String::new(), |table| table.paper.clone()),
                metric: one.figure.metric.to_string(),
                from: one.figure.from.clone(),
                published: one.figure.value,
                ours: one.ours.map(|estimate| estimate.value),
                ours_interval: one.ours.and_then(|estimate| estimate.interval),
                published_ratio: one.published_ratio,
                ours_ratio: one.our_ratio.map(|ratio| ratio.value),
                ours_ratio_interval: one.our_ratio.and_then(|ratio| ratio.interval),
                reading: one.reading,
                ours_less_data_bytes: one.less_data.map(|less| less.bytes),
            })
            .collect(),
    }
}

fn disturbed(result: &CellResult) -> Vec<DisturbedExport> {
    let shown = result.records.iter().map(|record| (record, false));
    let left_out = result.disturbed.iter().map(|record| (record, true));
    let each = shown.chain(left_out).filter_map(|(record, is_left_out)| {
        let disturbed_by = record.disturbed_by()?;
        let disturbances = record.disturbances();
        Some(DisturbedExport {
            repetition: record.repetition,
            by: disturbed_by,
            is_left_out,
            what: disturbances,
        })
    });
    each.collect()
}

fn operations(figures: &RowMetrics) -> BTreeMap<String, OperationExport> {
    let each = figures.operations.iter().map(|(kind, one)| {
        let export = OperationExport {
            count: one.count,
            mean_us: one.mean_us.value,
            mean_interval_us: one.mean_us.interval,
            p999_us: one.p999_us.map(|estimate| estimate.value),
            p999_interval_us: one.p999_us.and_then(|estimate| estimate.interval),
        };
        (kind.clone(), export)
    });
    each.collect()
}

/// The columns of [`csv`] that every run has: the keys of JSON, a nested one joined by `_`.
///
/// `published`, `published_ratio` and `reading` are of the first published throughput.
pub const CSV_COLUMNS: [&str; 66] = [
    "run",
    "started_at",
    "system",
    "storage",
    "workload",
    "mix",
    "distribution",
    "threads",
    "rate_per_s",
    "records",
    "data_bytes",
    "state",
    "reason",
    "repetitions",
    "throughput_per_s",
    "throughput_low",
    "throughput_high",
    "latency_us_mean",
    "latency_us_mean_low",
    "latency_us_mean_high",
    "latency_us_p50",
    "latency_us_p50_low",
    "latency_us_p50_high",
    "latency_us_p99",
    "latency_us_p99_low",
    "latency_us_p99_high",
    "latency_us_p999",
    "latency_us_p999_low",
    "latency_us_p999_high",
    "ratio_to_baseline",
    "ratio_low",
    "ratio_high",
    "certificate_verdict",
    "certificate_failed_checks",
    "inputs_verdict",
    "inputs_covered",
    "inputs_estimated",
    "inputs_own_time",
    "inputs_measured",
    "conclusion_can_turn",
    "ratio_if_estimates_off_low",
    "ratio_if_estimates_off_high",
    "price_usd",
    "price_rent_usd",
    "usd_per_tb",
    "usd_per_kops",
    "reference_paper",
    "reference_metric",
    "reference_published",
    "reference_ours",
    "reference_published_ratio",
    "reference_ours_ratio",
    "reference_reading",
    "reference_count",
    "job_duration_s",
    "job_duration_low",
    "job_duration_high",
    "job_shuffled_bytes",
    "job_io_bytes",
    "benchmark_figure",
    "benchmark_unit",
    "benchmark_value",
    "benchmark_low",
    "benchmark_high",
    "disturbed_by",
    "repetitions_left_out",
];

/// The run's cells as CSV (RFC 4180): a header of [`CSV_COLUMNS`] and the metrics of certificates, then a line a cell.
pub fn csv(loaded: &LoadedRun) -> String {
    let export = export(loaded);
    let mut metric_ids: Vec<&str> = Vec::new();
    for metric in export.cells.iter().flat_map(|cell| &cell.certificate.metrics) {
        if !metric_ids.contains(&metric.id.as_str()) {
            metric_ids.push(&metric.id);
        }
    }
    let metric_columns = metric_ids.iter().map(|id| format!("certificate_{id}"));
    let columns: Vec<String> =
        CSV_COLUMNS.iter().map(|column| (*column).to_owned()).chain(metric_columns).collect();
    let mut text = columns.iter().map(|column| quoted(column)).collect::<Vec<_>>().join(",");
    text.push_str("\r\n");
    for cell in &export.cells {
        let run = [export.run.name.clone(), export.run.started_at.clone()];
        let metric_fields = metric_ids.iter().map(|id| {
            let found = cell.certificate.metrics.iter().find(|metric| metric.id == *id);
            found.map_or(String::new(), |metric| metric.value.to_string())
        });
        let fields: Vec<String> = run.into_iter().chain(csv_fields(cell)).chain(metric_fields).collect();
        assert_eq!(fields.len(), columns.len(), "a field for each column");
        text.push_str(&fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(","));
        text.push_str("\r\n");
    }
    text
}

fn csv_fields(cell: &CellExport) -> Vec<String> {
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let ends = |interval: Option<ConfidenceInterval>| {
        [optional(interval.map(|one| one.low)), optional(interval.map(|one| one.high))]
    };
    let mut fields = vec![
        cell.system.clone(),
        cell.storage.clone(),
        cell.workload.clone(),
        cell.mix.clone(),
        cell.distribution.clone(),
        cell.threads.to_string(),
        optional(cell.rate_per_s),
        cell.records.to_string(),
        cell.data_bytes.to_string(),
        cell.state.to_owned(),
        cell.reason.clone().unwrap_or_default(),
        cell.repetitions.to_string(),
        optional(cell.throughput_per_s),
    ];
    fields.extend(ends(cell.throughput_interval));
    let (values, intervals) = (&cell.latency_us, &cell.latency_interval_us);
    for (value, interval) in [
        (values.mean, intervals.mean),
        (values.p50, intervals.p50),
        (values.p99, intervals.p99),
        (values.p999, intervals.p999),
    ] {
        fields.push(optional(value));
        fields.extend(ends(interval));
    }
    fields.push(optional(cell.ratio_to_baseline));
    fields.extend(ends(cell.ratio_interval));
    fields.push(cell.certificate.verdict.map_or(String::new(), |verdict| plain(&verdict)));
    fields.push(cell.certificate.failed_checks.join("; "));
    let inputs = cell.inputs.as_ref();
    fields.push(inputs.map_or(String::new(), |inputs| inputs.verdict.name().to_owned()));
    fields.push(optional(inputs.map(|inputs| inputs.covered.all)));
    fields.push(optional(inputs.map(|inputs| inputs.estimated)));
    fields.push(optional(inputs.and_then(|inputs| inputs.own_time)));
    fields.push(optional(cell.inputs_measured));
    fields.push(cell.conclusion_can_turn.to_string());
    fields.extend(ends(cell.ratio_if_estimates_off));
    fields.extend(
        [cell.cost.price_usd, cell.cost.price_rent_usd, cell.cost.usd_per_tb, cell.cost.usd_per_kops]
            .map(optional),
    );
    let first =
        cell.reference.iter().find(|one| one.metric == "throughput_per_s").or_else(|| cell.reference.first());
    match first {
        Some(one) => fields.extend([
            one.paper.clone(),
            one.metric.clone(),
            one.published.to_string(),
            optional(one.ours),
            optional(one.published_ratio),
            optional(one.ours_ratio),
            plain(&one.reading),
        ]),
        None => fields.extend(std::iter::repeat_n(String::new(), 7)),
    }
    fields.push(cell.reference.len().to_string());
    let job = cell.job.as_ref();
    fields.push(optional(job.map(|job| job.duration_s)));
    fields.extend(ends(job.and_then(|job| job.duration_interval_s)));
    fields.push(optional(job.map(|job| job.shuffled_bytes)));
    fields.push(optional(job.and_then(|job| job.io_bytes)));
    // A line has room for one: the JSON has all.
    let first = cell.benchmark.as_ref().and_then(|benchmark| benchmark.figures.first());
    fields.push(first.map_or(String::new(), |figure| figure.name.clone()));
    fields.push(first.map_or(String::new(), |figure| figure.unit.clone()));
    fields.push(optional(first.map(|figure| figure.value)));
    fields.extend(ends(first.and_then(|figure| figure.interval)));
    // Of what the line shows; what was left out shows nothing.
    let has_figures = cell.state == "completed";
    let disturbed_by =
        cell.disturbed.iter().filter(|one| !(has_figures && one.is_left_out)).map(|one| one.by).max();
    fields.push(disturbed_by.map_or(String::new(), |disturbed_by| plain(&disturbed_by)));
    fields.push(cell.disturbed.iter().filter(|one| one.is_left_out).count().to_string());
    fields
}

/// A unit variant's name as serde writes it.
fn plain<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

fn quoted(field: &str) -> String {
    // A spreadsheet would calculate it. A number is one.
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']) && field.parse::<f64>().is_err();
    let field = &if is_formula { format!("'{field}") } else { field.to_owned() };
    if field.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_cells_are_never_formulas() {
        for (field, written) in [
            ("hdd", "hdd"),
            ("-1.5", "-1.5"),
            ("+3", "+3"),
            ("=HYPERLINK(\"http://e\",\"x\")", "\"'=HYPERLINK(\"\"http://e\"\",\"\"x\"\")\""),
            ("-a", "'-a"),
            ("@x", "'@x"),
        ] {
            assert_eq!(quoted(field), written);
        }
    }
}
