//! Rates that change while they are measured: what was offered in each stretch of time, and how it was answered.

use underlay_record::{Cell, MeasuredWindow, RatePart};

use crate::comparison::{ComparisonRow, RunComparison};
use crate::quantity;

/// Stretches that a ramp is shown in.
const STRETCHES_OF_A_RAMP: usize = 8;

/// A stretch of the measured time, over all repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TimeStretch {
    /// From the start of the measurement, in modelled time.
    pub from_s: f64,
    pub to_s: f64,
    pub offered_from_per_s: f64,
    pub offered_to_per_s: f64,
    pub reached_per_s: f64,
    /// Absent where nothing was answered; so is the next one.
    pub mean_us: Option<f64>,
    pub max_us: Option<f64>,
}

/// The workloads whose rate changes.
pub(crate) fn rows<'c, 'a>(comparison: &'c RunComparison<'a>) -> Vec<&'c ComparisonRow<'a>> {
    comparison.operations().filter(|row| !row.cell.rate_parts().is_empty()).collect()
}

/// The stretches of a cell, those that were measured.
///
/// The time series is cut where its intervals' middles are: a stretch begins and ends up to half an interval beside the
/// rates that it says.
pub(crate) fn stretches(cell: &Cell, repetitions: &[&MeasuredWindow]) -> Vec<TimeStretch> {
    let longest_s = repetitions.iter().map(|one| one.duration_s).fold(0.0, f64::max);
    let mut found = Vec::new();
    let mut from_s = 0.0;
    for part in parts(cell.rate_parts(), longest_s) {
        let to_s = from_s + part.length_s;
        found.extend(stretch(&part, [from_s, to_s], repetitions));
        from_s = to_s;
    }
    found
}

/// Steps as they are, ramps cut, and what goes on after the last one.
fn parts(changing: &[RatePart], longest_s: f64) -> Vec<RatePart> {
    let mut parts = Vec::new();
    for part in changing {
        let count = if part.from_per_s == part.to_per_s { 1 } else { STRETCHES_OF_A_RAMP };
        let bound =
            |index: usize| part.from_per_s + (part.to_per_s - part.from_per_s) * index as f64 / count as f64;
        parts.extend((0..count).map(|index| RatePart {
            from_per_s: bound(index),
            to_per_s: bound(index + 1),
            length_s: part.length_s / count as f64,
        }));
    }
    let rest_s = longest_s - parts.iter().map(|part| part.length_s).sum::<f64>();
    if let Some(last) = parts.last().map(|part| part.to_per_s).filter(|_| rest_s > 0.0) {
        parts.push(RatePart { from_per_s: last, to_per_s: last, length_s: rest_s });
    }
    parts
}

fn stretch(
    part: &RatePart,
    [from_s, to_s]: [f64; 2],
    repetitions: &[&MeasuredWindow],
) -> Option<TimeStretch> {
    let (mut seconds, mut operations, mut waited_us, mut max_us) = (0.0, 0.0, 0.0, 0.0f64);
    for measured in repetitions {
        let mut begin_s = 0.0;
        for point in &measured.series {
            let middle_s = (begin_s + point.t_s) / 2.0;
            if (from_s..to_s).contains(&middle_s) {
                let count = point.operations as f64;
                seconds += point.t_s - begin_s;
                operations += count;
                waited_us += count * point.mean_us;
                max_us = max_us.max(point.max_us);
            }
            begin_s = point.t_s;
        }
    }
    (seconds > 0.0).then(|| TimeStretch {
        from_s,
        to_s,
        offered_from_per_s: part.from_per_s,
        offered_to_per_s: part.to_per_s,
        reached_per_s: operations / seconds,
        mean_us: (operations > 0.0).then(|| waited_us / operations),
        max_us: (operations > 0.0).then_some(max_us),
    })
}

impl TimeStretch {
    /// `1,000/s`, or `1,000/s to 2,000/s`.
    pub(crate) fn offered(&self) -> String {
        let [from, to] = [self.offered_from_per_s, self.offered_to_per_s]
            .map(|per_s| quantity::without_last_zeros(&format!("{}/s", quantity::rate(per_s))));
        if from == to { from } else { format!("{from} to {to}") }
    }

    /// The middle of what was offered.
    pub(crate) fn offered_per_s(&self) -> f64 {
        (self.offered_from_per_s + self.offered_to_per_s) / 2.0
    }

    /// Whether the system kept up.
    pub(crate) fn is_reached(&self) -> bool {
        const REACHED: f64 = 0.98;
        self.reached_per_s >= REACHED * self.offered_per_s()
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::{CellLabels, OfferedRate, RecordedWork, RequestWork, SeriesPoint};

    use super::*;

    fn cell(parts: Vec<RatePart>) -> Cell {
        Cell {
            id: String::new(),
            system: String::new(),
            storage: String::new(),
            workload: String::new(),
            servers: 1,
            data_bytes: 1,
            data: None,
            work: RecordedWork::Requests(RequestWork {
                mix: "a".to_owned(),
                distribution: String::new(),
                threads: 1,
                records: 1,
                rate: OfferedRate::Changing { mean_per_s: 1.0, parts, wall_s: None },
                compacts_at: None,
            }),
            named: CellLabels::default(),
        }
    }

    /// A second each: operations, and their mean latency.
    fn measured(seconds: &[(u64, f64)]) -> MeasuredWindow {
        let point = |(index, &(operations, mean_us)): (usize, &(u64, f64))| SeriesPoint {
            t_s: index as f64 + 1.0,
            operations,
            throughput_per_s: operations as f64,
            mean_us,
            max_us: 2.0 * mean_us,
            ..SeriesPoint::default()
        };
        let series = seconds.iter().enumerate().map(point).collect();
        MeasuredWindow { duration_s: seconds.len() as f64, series, ..MeasuredWindow::default() }
    }

    #[test]
    fn steps_have_the_seconds_that_are_theirs() {
        let step = |per_s, length_s| RatePart { from_per_s: per_s, to_per_s: per_s, length_s };
        let cell = cell(vec![step(10.0, 2.0), step(20.0, 1.0)]);
        let first = measured(&[(10, 100.0), (10, 300.0), (20, 500.0), (18, 900.0)]);
        let second = measured(&[(10, 200.0), (10, 200.0), (20, 700.0), (20, 900.0)]);
        let found = stretches(&cell, &[&first, &second]);
        let figures: Vec<_> =
            found.iter().map(|one| (one.offered(), one.reached_per_s, one.mean_us, one.max_us)).collect();
        // The last step's rate goes on to the end.
        assert_eq!(
            figures,
            [
                ("10/s".to_owned(), 10.0, Some(200.0), Some(600.0)),
                ("20/s".to_owned(), 20.0, Some(600.0), Some(1_400.0)),
                ("20/s".to_owned(), 19.0, Some(900.0), Some(1_800.0)),
            ]
        );
        assert_eq!(found.iter().map(TimeStretch::is_reached).collect::<Vec<_>>(), [true, true, false]);
        assert!(stretches(&cell, &[]).is_empty());
    }

    #[test]
    fn ramp_is_split_and_unmeasured_parts_left_out() {
        let cell = cell(vec![RatePart { from_per_s: 0.0, to_per_s: 160.0, length_s: 16.0 }]);
        let found = stretches(&cell, &[&measured(&[(5, 50.0); 9])]);
        assert_eq!(found.len(), 5, "of eight stretches of two seconds, nine seconds reach into five");
        assert_eq!(
            (found[1].offered(), found[1].from_s, found[1].to_s),
            ("20/s to 40/s".to_owned(), 2.0, 4.0)
        );
    }
}
