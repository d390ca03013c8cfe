//! A run's statistics beside its measurement, in a form that can be sent and added up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use underlay_record::Histogram;
use underlay_workload::{BothLatencies, EdgeLatencies, OperationKind, RawAnswer, YcsbStatistics};

type ByEnding = BTreeMap<(OperationKind, RawAnswer), BothLatencies>;

/// [`YcsbStatistics`] on their way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SentParticulars {
    failed: Vec<EndingCount>,
    parts: Vec<EndingCount>,
    #[serde(default)]
    edges: Vec<EdgesOf>,
    checks: Histogram,
    closings: Histogram,
}

/// Operations across the edges of the measured time, by the name of the kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EdgesOf {
    kind: String,
    unsent: Histogram,
    overdue: Histogram,
}

/// Operations of one kind that ended in one way, by the names of both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EndingCount {
    kind: String,
    answer: String,
    intended: Histogram,
    service: Histogram,
}

impl From<YcsbStatistics> for SentParticulars {
    fn from(particulars: YcsbStatistics) -> Self {
        let endings = |by_ending: ByEnding| {
            let ending =
                |((kind, answer), latencies): ((OperationKind, RawAnswer), BothLatencies)| EndingCount {
                    kind: kind.name().to_owned(),
                    answer: answer.name().to_owned(),
                    intended: latencies.intended,
                    service: latencies.service,
                };
            by_ending.into_iter().map(ending).collect()
        };
        SentParticulars {
            failed: endings(particulars.failed),
            parts: endings(particulars.parts),
            edges: particulars.edges.into_iter().map(EdgesOf::from).collect(),
            checks: particulars.checks,
            closings: particulars.closings,
        }
    }
}

impl From<(OperationKind, EdgeLatencies)> for EdgesOf {
    fn from((kind, EdgeLatencies { unsent, overdue }): (OperationKind, EdgeLatencies)) -> Self {
        EdgesOf { kind: kind.name().to_owned(), unsent, overdue }
    }
}

fn kind_of(name: &str) -> Option<OperationKind> {
    OperationKind::ALL.into_iter().find(|kind| kind.name() == name)
}

impl SentParticulars {
    /// Adds them to those of other workers. A name that nobody knows is left out.
    pub fn add_to(&self, whole: &mut YcsbStatistics) {
        let add = |endings: &[EndingCount], by_ending: &mut ByEnding| {
            for ending in endings {
                let kind = kind_of(&ending.kind);
                let answer = RawAnswer::ALL.into_iter().find(|answer| answer.name() == ending.answer);
                if let Some(key) = kind.zip(answer) {
                    let latencies = by_ending.entry(key).or_default();
                    latencies.intended.merge(&ending.intended);
                    latencies.service.merge(&ending.service);
                }
            }
        };
        add(&self.failed, &mut whole.failed);
        add(&self.parts, &mut whole.parts);
        for edges in &self.edges {
            if let Some(kind) = kind_of(&edges.kind) {
                let whole = whole.edges.entry(kind).or_default();
                whole.unsent.merge(&edges.unsent);
                whole.overdue.merge(&edges.overdue);
            }
        }
        whole.checks.merge(&self.checks);
        whole.closings.merge(&self.closings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values_ns: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values_ns.iter().for_each(|&ns| histogram.record_ns(ns));
        histogram
    }

    fn particulars(values_ns: &[u64]) -> YcsbStatistics {
        let both = BothLatencies { intended: histogram(values_ns), service: histogram(&[7]) };
        YcsbStatistics {
            failed: [((OperationKind::Read, RawAnswer::Missing), both.clone())].into(),
            parts: [((OperationKind::Update, RawAnswer::Found), both)].into(),
            edges: [(
                OperationKind::Scan,
                EdgeLatencies { unsent: histogram(values_ns), overdue: histogram(values_ns) },
            )]
            .into(),
            checks: histogram(values_ns),
            closings: histogram(&[1_000]),
        }
    }

    #[test]
    fn sent_particulars_are_summed() {
        let mut whole = YcsbStatistics::default();
        for values_ns in [&[1_000, 2_000][..], &[3_000_000]] {
            let sent = SentParticulars::from(particulars(values_ns));
            let text = serde_json::to_string(&sent).unwrap();
            serde_json::from_str::<SentParticulars>(&text).unwrap().add_to(&mut whole);
        }
        let mut expected = particulars(&[1_000, 2_000, 3_000_000]);
        for both in expected.failed.values_mut().chain(expected.parts.values_mut()) {
            both.service = histogram(&[7, 7]);
        }
        expected.closings = histogram(&[1_000, 1_000]);
        assert_eq!(whole, expected);
    }

    #[test]
    fn names_that_nobody_knows_are_left_out() {
        let mut sent = SentParticulars::from(particulars(&[1]));
        sent.failed[0].kind = "fetch".to_owned();
        sent.parts[0].answer = "perhaps".to_owned();
        let mut whole = YcsbStatistics::default();
        sent.add_to(&mut whole);
        assert!(whole.failed.is_empty() && whole.parts.is_empty());
    }
}
