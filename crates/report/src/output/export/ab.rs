//! Two runs beside each other, for scripts.

use schemars::JsonSchema;
use serde::Serialize;

use super::quoted;
use crate::comparison::ab::{AbComparison, MetricChange};
use crate::statistics::{ConfidenceInterval, IntervalEstimate};

/// The export of two runs. Keys are never absent: what is not known is `null`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AbExport<'a> {
    runs: [RunName<'a>; 2],
    sentence: String,
    cells: Vec<AbCellExport<'a>>,
    differences: &'a [String],
    left_out: &'a [String],
    cautions: &'a [String],
}

#[derive(Debug, Serialize, JsonSchema)]
struct RunName<'a> {
    name: &'a str,
    started_at: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AbCellExport<'a> {
    system: &'a str,
    storage: &'a str,
    workload: &'a str,
    is_doubtful: bool,
    /// The study disturbs it, in both runs.
    is_disturbed: bool,
    figures: Vec<FigureExport>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FigureExport {
    /// `throughput_per_s`, `mean_us`, `p99_us`, `duration_s`, or a benchmark's figure by its name and unit: `throughput
    /// (tps)`.
    metric: String,
    a: ExportedValue,
    b: ExportedValue,
    ratio: f64,
    ratio_interval: Option<ConfidenceInterval>,
    p_value: Option<f64>,
    p_corrected: Option<f64>,
    /// `better`, `worse`, `none-seen`, `unknown`.
    change: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ExportedValue {
    value: f64,
    interval: Option<ConfidenceInterval>,
}

impl From<IntervalEstimate> for ExportedValue {
    fn from(one: IntervalEstimate) -> Self {
        ExportedValue { value: one.value, interval: one.interval }
    }
}

fn change_name(change: MetricChange) -> &'static str {
    match change {
        MetricChange::Better => "better",
        MetricChange::Worse => "worse",
        MetricChange::NoneSeen => "none-seen",
        MetricChange::Unknown => "unknown",
    }
}

const CSV_COLUMNS: &str = "system,storage,workload,is_doubtful,is_disturbed,metric,a,a_low,a_high,b,b_low,b_high,ratio,ratio_low,ratio_high,\
p_value,p_corrected,change";

/// Both runs as CSV, a line a figure of each cell that both have; what is not known is empty.
pub fn ab_csv(ab: &AbComparison) -> String {
    let format_optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let with_ends = |value: f64, interval: Option<ConfidenceInterval>| {
        [
            value.to_string(),
            format_optional(interval.map(|one| one.low)),
            format_optional(interval.map(|one| one.high)),
        ]
    };
    let mut text = format!("{CSV_COLUMNS}\r\n");
    for cell in &ab.cells {
        for figure in &cell.figures {
            let mut fields = vec![
                quoted(&cell.system),
                quoted(&cell.storage),
                quoted(&cell.workload),
                cell.is_doubtful.to_string(),
                cell.is_disturbed.to_string(),
            ];
            fields.push(quoted(&figure.metric.name()));
            fields.extend(with_ends(figure.a.value, figure.a.interval));
            fields.extend(with_ends(figure.b.value, figure.b.interval));
            fields.extend(with_ends(figure.ratio.value, figure.ratio.interval));
            fields.extend([format_optional(figure.p_value), format_optional(figure.corrected)]);
            fields.push(change_name(figure.change()).to_owned());
            text.push_str(&fields.join(","));
            text.push_str("\r\n");
        }
    }
    text
}

/// Both runs as indented JSON, one object: `runs`, `sentence`, `cells`, `differences`, `left_out`, `cautions`.
pub fn ab_json(ab: &AbComparison) -> String {
    let run = |index: usize| RunName { name: &ab.names[index], started_at: &ab.started_at[index] };
    let cells = ab.cells.iter().map(|cell| AbCellExport {
        system: &cell.system,
        storage: &cell.storage,
        workload: &cell.workload,
        is_doubtful: cell.is_doubtful,
        is_disturbed: cell.is_disturbed,
        figures: cell
            .figures
            .iter()
            .map(|figure| FigureExport {
                metric: figure.metric.name(),
                a: figure.a.into(),
                b: figure.b.into(),
                ratio: figure.ratio.value,
                ratio_interval: figure.ratio.interval,
                p_value: figure.p_value,
                p_corrected: figure.corrected,
                change: change_name(figure.change()),
            })
            .collect(),
    });
    let export = AbExport {
        runs: [run(0), run(1)],
        sentence: ab.sentence(),
        cells: cells.collect(),
        differences: &ab.differences,
        left_out: &ab.left_out,
        cautions: &ab.cautions,
    };
    let mut text = serde_json::to_string_pretty(&export).expect("plain data becomes JSON");
    text.push('\n');
    text
}
