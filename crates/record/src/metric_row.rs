//! A metric with everything that a reader needs to show it, so that reports, tables and exports are loops over rows.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::benchmark::BetterDirection;

/// One metric of one measurement. A row carries its own description: a reader of another version shows it, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricRow {
    /// For scripts, with the unit last: `delivered_p99_us`. Columns of CSV are called so.
    pub id: Cow<'static, str>,
    /// For people: `delivered p99`.
    pub title: Cow<'static, str>,
    /// `us`, `%`, `B/s`, as benchmarks spell them.
    pub unit: Cow<'static, str>,
    /// Absent where neither direction is a good one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<BetterDirection>,
    pub value: f64,
}

/// The description of a metric, of which there is one for all its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricDescription {
    pub id: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub better: Option<BetterDirection>,
}

impl MetricDescription {
    /// A row with this value. There is none for a value that is no number: JSON has no such thing.
    pub fn row(&self, value: f64) -> Option<MetricRow> {
        value.is_finite().then(|| MetricRow {
            id: self.id.into(),
            title: self.title.into(),
            unit: self.unit.into(),
            better: self.better,
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_reads_back_as_written() {
        let described = MetricDescription {
            id: "moon_phase",
            title: "moon phase",
            unit: "%",
            better: Some(BetterDirection::Lower),
        };
        let row = described.row(12.5).unwrap();
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(
            text,
            r#"{"id":"moon_phase","title":"moon phase","unit":"%","better":"lower","value":12.5}"#
        );
        assert_eq!(serde_json::from_str::<MetricRow>(&text).unwrap(), row);
        assert_eq!([f64::NAN, f64::INFINITY].map(|value| described.row(value)), [None, None]);
    }
}
