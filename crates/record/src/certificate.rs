//! The fidelity certificate: what shows that a run measured what it claims.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::metric_row::{MetricDescription, MetricRow};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateVerdict {
    /// Every check passed.
    Faithful,
    /// A check failed: the figures are shown, marked.
    Doubtful,
    /// Nothing was modelled, so there is nothing to certify but the generator.
    RealStorage,
    /// Something was done to it on purpose while it ran: a device failed on command, a node was sent away. Its figures
    /// are of that, even if all checks passed.
    Disturbed,
}

impl CertificateVerdict {
    /// As people read it.
    pub fn describe(self) -> &'static str {
        match self {
            CertificateVerdict::Faithful => "faithful",
            CertificateVerdict::Doubtful => "doubtful",
            CertificateVerdict::RealStorage => "real storage",
            CertificateVerdict::Disturbed => "disturbed",
        }
    }
}

/// Which check it is: verdicts depend on this, and never on the name that people read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckId {
    DeviceLatencyMean,
    DeviceLatencyP50,
    DeviceLatencyP99,
    ReadLatencyMean,
    WriteLatencyMean,
    FlushLatencyMean,
    PathOverhead,
    StorageUsed,
    OperationsAnswered,
    HiddenRecords,
    CheckedValues,
    AcknowledgedWrites,
    Clients,
    LostTasks,
    Window,
    OfferedRate,
    GeneratorHeadroom,
    ScheduleLateness,
    ProcessPauses,
    GeneratorDelays,
    MemoryBudget,
    CpuBudget,
    SystemCpu,
    CpuSpeed,
    CpuSlices,
    WaitForCpu,
    EmulationCpu,
    OwnTime,
    StolenTime,
}

/// Titles of earlier versions, which their records keep.
const EARLIER_TITLES: [(&str, CheckId); 2] =
    [("own time", CheckId::OwnTime), ("stolen time", CheckId::StolenTime)];

impl CheckId {
    pub const ALL: [CheckId; 29] = [
        CheckId::DeviceLatencyMean,
        CheckId::DeviceLatencyP50,
        CheckId::DeviceLatencyP99,
        CheckId::ReadLatencyMean,
        CheckId::WriteLatencyMean,
        CheckId::FlushLatencyMean,
        CheckId::PathOverhead,
        CheckId::StorageUsed,
        CheckId::OperationsAnswered,
        CheckId::HiddenRecords,
        CheckId::CheckedValues,
        CheckId::AcknowledgedWrites,
        CheckId::Clients,
        CheckId::LostTasks,
        CheckId::Window,
        CheckId::OfferedRate,
        CheckId::GeneratorHeadroom,
        CheckId::ScheduleLateness,
        CheckId::ProcessPauses,
        CheckId::GeneratorDelays,
        CheckId::MemoryBudget,
        CheckId::CpuBudget,
        CheckId::SystemCpu,
        CheckId::CpuSpeed,
        CheckId::CpuSlices,
        CheckId::WaitForCpu,
        CheckId::EmulationCpu,
        CheckId::OwnTime,
        CheckId::StolenTime,
    ];

    /// As people read it.
    pub fn title(self) -> &'static str {
        match self {
            CheckId::DeviceLatencyMean => "device latency mean",
            CheckId::DeviceLatencyP50 => "device latency p50",
            CheckId::DeviceLatencyP99 => "device latency p99",
            CheckId::ReadLatencyMean => "read latency mean",
            CheckId::WriteLatencyMean => "write latency mean",
            CheckId::FlushLatencyMean => "flush latency mean",
            CheckId::PathOverhead => "path overhead",
            CheckId::StorageUsed => "storage used",
            CheckId::OperationsAnswered => "operations answered",
            CheckId::HiddenRecords => "hidden records",
            CheckId::CheckedValues => "checked values",
            CheckId::AcknowledgedWrites => "acknowledged writes",
            CheckId::Clients => "clients",
            CheckId::LostTasks => "lost tasks",
            CheckId::Window => "window",
            CheckId::OfferedRate => "offered rate",
            CheckId::GeneratorHeadroom => "generator headroom",
            CheckId::ScheduleLateness => "schedule lateness",
            CheckId::ProcessPauses => "process pauses",
            CheckId::GeneratorDelays => "generator delays",
            CheckId::MemoryBudget => "memory budget",
            CheckId::CpuBudget => "CPU budget",
            CheckId::SystemCpu => "system CPU",
            CheckId::CpuSpeed => "CPU speed",
            CheckId::CpuSlices => "CPU slices",
            CheckId::WaitForCpu => "wait for CPU",
            CheckId::EmulationCpu => "emulation CPU",
            CheckId::OwnTime => "think time",
            CheckId::StolenTime => "CPU steal",
        }
    }

    /// `None` where this version has no check of that name.
    pub fn from_title(title: &str) -> Option<CheckId> {
        let earlier = EARLIER_TITLES.into_iter().find(|(earlier, _)| *earlier == title);
        earlier.map(|(_, id)| id).or_else(|| CheckId::ALL.into_iter().find(|id| id.title() == title))
    }

    /// Whether slower motion can mend a failure of it: the host's delays and the generator's costs are the same at each
    /// factor, and the slower the motion, the less of modelled time they are.
    pub fn is_mended_by_slower_motion(self) -> bool {
        matches!(
            self,
            CheckId::DeviceLatencyMean
                | CheckId::DeviceLatencyP50
                | CheckId::DeviceLatencyP99
                | CheckId::ReadLatencyMean
                | CheckId::WriteLatencyMean
                | CheckId::FlushLatencyMean
                | CheckId::PathOverhead
                | CheckId::GeneratorHeadroom
                | CheckId::ScheduleLateness
                | CheckId::GeneratorDelays
                | CheckId::SystemCpu
                | CheckId::WaitForCpu
                | CheckId::EmulationCpu
        )
    }
}

/// Stands before the name of a check that failed while the rate was looked for.
const SEARCH_PREFIX: &str = "search: ";

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Absent where this version does not know the check.
    #[serde(default, deserialize_with = "known_id", skip_serializing_if = "Option::is_none")]
    pub id: Option<CheckId>,
    /// For people: `device latency p50`, `search: system CPU` ...
    pub name: String,
    /// It is about the search for the rate, and not about the measured window.
    #[serde(default, skip_serializing_if = "is_false")]
    pub in_search: bool,
    pub passed: bool,
    /// The measured value and its limit, in words with units.
    pub finding: String,
    /// How bad that is, to be compared with the same check of other cells: the larger, the worse. Absent where one
    /// failure is as bad as another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extent: Option<f64>,
    /// The remedy when it did not pass.
    pub remedy: Option<String>,
}

impl Check {
    /// One whose failures are all as bad, and without a remedy.
    pub fn new(id: CheckId, passed: bool, finding: impl Into<String>) -> Check {
        Check {
            id: Some(id),
            name: id.title().to_owned(),
            in_search: false,
            passed,
            finding: finding.into(),
            extent: None,
            remedy: None,
        }
    }

    #[must_use]
    pub fn with_extent(self, extent: f64) -> Check {
        Check { extent: Some(extent), ..self }
    }

    /// A check that passed needs none and keeps none.
    #[must_use]
    pub fn with_remedy(self, remedy: &str) -> Check {
        Check { remedy: (!self.passed).then(|| remedy.to_owned()), ..self }
    }

    /// The same, of the search for the rate.
    #[must_use]
    pub fn moved_to_search(self) -> Check {
        Check { name: format!("{SEARCH_PREFIX}{}", self.name), in_search: true, ..self }
    }

    /// Whether both check the same thing, in the same part of the measurement.
    pub fn is_like(&self, other: &Check) -> bool {
        match (self.id, other.id) {
            (None, None) => self.name == other.name,
            (one, another) => one == another && self.in_search == other.in_search,
        }
    }

    /// Older records have no id, and the name alone tells.
    pub(crate) fn identify(&mut self) {
        if self.id.is_none() {
            let plain = self.name.strip_prefix(SEARCH_PREFIX);
            self.in_search |= plain.is_some();
            self.id = CheckId::from_title(plain.unwrap_or(&self.name));
        }
    }
}

/// For serde: a later version may have checks that this one does not know, and the rest of its record reads well.
pub(crate) fn known_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CheckId>, D::Error> {
    Value::deserialize(deserializer).map(|id| serde_json::from_value(id).ok())
}

/// The metrics of a certificate that has each as a key of its own, as version 0.2 wrote them.
#[derive(Deserialize)]
pub(crate) struct EarlierMetrics {
    modelled_p50_us: Option<f64>,
    modelled_p99_us: Option<f64>,
    delivered_p50_us: Option<f64>,
    delivered_p99_us: Option<f64>,
    floor_us: Option<f64>,
    steal_share: Option<f64>,
}

impl EarlierMetrics {
    pub(crate) fn rows(&self) -> Vec<MetricRow> {
        use certificate_metrics::*;
        let each = [
            (MODELLED_P50, self.modelled_p50_us),
            (MODELLED_P99, self.modelled_p99_us),
            (DELIVERED_P50, self.delivered_p50_us),
            (DELIVERED_P99, self.delivered_p99_us),
            (PATH_FLOOR, self.floor_us),
            (CPU_STEAL, self.steal_share.map(|share| share * 100.0)),
        ];
        each.into_iter().filter_map(|(described, value)| described.row(value?)).collect()
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    pub verdict: CertificateVerdict,
    pub checks: Vec<Check>,
    /// What the verdict rests on, each with its title and unit: the descriptions are [`certificate_metrics`]. A metric
    /// that was not measured has no row.
    #[serde(default)]
    pub metrics: Vec<MetricRow>,
}

/// The metrics of a certificate. One more is a constant here and a row where it is measured, in the certificate of a
/// study's cell; reports, exports and the console show all rows.
pub mod certificate_metrics {
    use crate::benchmark::BetterDirection;
    use crate::metric_row::MetricDescription;

    const fn latency(id: &'static str, title: &'static str) -> MetricDescription {
        MetricDescription { id, title, unit: "us", better: None }
    }

    /// Over all devices of the cell, in modelled time: what the models asked for ...
    pub const MODELLED_P50: MetricDescription = latency("modelled_p50_us", "modelled p50");
    pub const MODELLED_P99: MetricDescription = latency("modelled_p99_us", "modelled p99");
    /// ... and what the program got.
    pub const DELIVERED_P50: MetricDescription = latency("delivered_p50_us", "delivered p50");
    pub const DELIVERED_P99: MetricDescription = latency("delivered_p99_us", "delivered p99");
    /// The smallest latency that this machine can model at this scale, in modelled time.
    pub const PATH_FLOOR: MetricDescription = latency("floor_us", "smallest possible");
    /// The part of the wall clock that the hypervisor took from this machine while measuring.
    pub const CPU_STEAL: MetricDescription = MetricDescription {
        id: "cpu_steal_percent",
        title: "CPU steal",
        unit: "%",
        better: Some(BetterDirection::Lower),
    };
}

impl Certificate {
    /// The checks that did not pass.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.passed)
    }

    /// The value of a metric; `None` where it was not measured.
    pub fn metric(&self, described: &MetricDescription) -> Option<f64> {
        self.metrics.iter().find(|row| row.id == described.id).map(|row| row.value)
    }

    /// Whether a check failed, also where the verdict is about something else.
    pub fn is_doubtful(&self) -> bool {
        self.verdict == CertificateVerdict::Doubtful || self.failed().next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn check_titles_lead_back_to_their_ids() {
        let titles: BTreeSet<&str> = CheckId::ALL.into_iter().map(CheckId::title).collect();
        assert_eq!(titles.len(), CheckId::ALL.len());
        for id in CheckId::ALL {
            assert_eq!(CheckId::from_title(id.title()), Some(id));
            let mut plain = Check { id: None, ..Check::new(id, true, "") };
            let mut searched = plain.clone().moved_to_search();
            searched.in_search = false;
            for check in [&mut plain, &mut searched] {
                check.identify();
            }
            assert_eq!((plain.id, plain.in_search), (Some(id), false));
            assert_eq!((searched.id, searched.in_search), (Some(id), true));
        }
    }

    #[test]
    fn check_list_has_all_ids_of_schema() {
        let schema = schemars::schema_for!(CheckId).to_value();
        let listed = json!(CheckId::ALL);
        assert_eq!((&schema["enum"], listed[0].as_str()), (&listed, Some("device-latency-mean")));
    }

    #[test]
    fn unknown_checks_keep_their_names_alone() {
        let [id, name] = ["moon-phase", "moon phase"];
        let written = json!({"id": id, "name": name, "passed": false, "finding": "full", "remedy": null});
        let mut check: Check = serde_json::from_value(written).unwrap();
        check.identify();
        assert_eq!((check.id, check.name.as_str(), check.in_search), (None, "moon phase", false));
        let searched = check.clone().moved_to_search();
        assert!(check.is_like(&check) && !check.is_like(&searched));
    }

    #[test]
    fn passed_check_is_written_without_a_remedy() {
        let check = |passed| Check::new(CheckId::StolenTime, passed, "").with_extent(0.1).with_remedy("wait");
        assert_eq!((check(true).remedy, check(false).remedy.as_deref()), (None, Some("wait")));
        let written = serde_json::to_value(check(true)).unwrap();
        assert_eq!((&written["id"], &written["name"]), (&json!("stolen-time"), &json!("CPU steal")));
        assert!(written.get("in_search").is_none(), "{written}");
    }

    #[test]
    fn titles_of_earlier_versions_are_understood() {
        for (title, id) in EARLIER_TITLES {
            assert_eq!(CheckId::from_title(title), Some(id));
            assert!(id.title() != title, "{title} is no earlier title");
        }
    }
}
