//! `rate`: what is offered to a system in one cell. One rate, rates that follow one another, or as much as it takes.

use std::ops::RangeInclusive;
use std::time::Duration;

use underlay_record::RatePart;

use super::checks::Sites;
use super::reader::{Field, Spanned};
use super::workload::WorkloadSite;
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units::format_duration;

/// Faster than any generator: a rate beyond it is a slip.
pub(super) const RATES_PER_S: RangeInclusive<f64> = 0.001..=1e9;
/// Each step is to have two intervals of the time series at least.
const STEPS_MAX: usize = 20;

/// What is offered in a cell, in operations per second of the modelled machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// `"max"`: a closed loop, which nothing holds back.
    Max,
    Steady(f64),
    Changing(ChangingRate),
}

/// A rate that changes while it is measured. The warm-up has the first one, and what comes after the last one has that.
/// Lengths are wall time, as the measured time itself is.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangingRate {
    /// Evenly from one rate to another; over the whole measured time when `over` is absent.
    Ramp { from_per_s: f64, to_per_s: f64, over: Option<Duration> },
    /// One after the other; of equal parts of the measured time when `each` is absent. At least two.
    Steps { rates_per_s: Vec<f64>, each: Option<Duration> },
}

impl Rate {
    /// The one rate that is offered, if it is one.
    pub fn steady_per_s(&self) -> Option<f64> {
        match self {
            Rate::Steady(per_s) => Some(*per_s),
            Rate::Max | Rate::Changing(_) => None,
        }
    }
}

impl ChangingRate {
    /// How long its parts take together, of a measured time of `duration`.
    pub fn length(&self, duration: Duration) -> Duration {
        match self {
            ChangingRate::Ramp { over, .. } => over.unwrap_or(duration),
            ChangingRate::Steps { rates_per_s, each } => {
                each.map_or(duration, |each| each * u32::try_from(rates_per_s.len()).unwrap_or(u32::MAX))
            }
        }
    }

    /// Its parts in modelled time, of which `time` seconds here are one.
    pub fn parts(&self, duration: Duration, time: f64) -> Vec<RatePart> {
        let length_s = rounded(self.length(duration).as_secs_f64() / time);
        match self {
            ChangingRate::Ramp { from_per_s, to_per_s, .. } => {
                vec![RatePart { from_per_s: *from_per_s, to_per_s: *to_per_s, length_s }]
            }
            ChangingRate::Steps { rates_per_s, .. } => {
                let length_s = rounded(length_s / rates_per_s.len().max(1) as f64);
                let part = |&per_s: &f64| RatePart { from_per_s: per_s, to_per_s: per_s, length_s };
                rates_per_s.iter().map(part).collect()
            }
        }
    }

    /// The mean rate of a measured time of `duration`.
    pub fn mean_per_s(&self, duration: Duration) -> f64 {
        let duration_s = duration.as_secs_f64();
        let (mut offered, mut begin_s, mut last_per_s) = (0.0, 0.0, 0.0);
        for part in self.parts(duration, 1.0) {
            let length_s = part.length_s.min(duration_s - begin_s).max(0.0);
            let reached = part.from_per_s + (part.to_per_s - part.from_per_s) * length_s / part.length_s;
            offered += (part.from_per_s + reached) / 2.0 * length_s;
            (begin_s, last_per_s) = (begin_s + length_s, part.to_per_s);
        }
        rounded((offered + last_per_s * (duration_s - begin_s).max(0.0)) / duration_s)
    }
}

/// To a millionth: a plan that is written down and read again is to be the same, to the last digit.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

pub(super) fn read_rates(field: &Field<'_>, findings: &mut Diagnostics) -> Vec<Spanned<Rate>> {
    const EXPECTED: &str = "\"max\" or a number of operations per second above zero";
    field.list(findings, |element, findings| {
        let span = element.span.clone();
        if element.is_table() {
            return read_changing(element, findings).map(|rate| Spanned::new(Rate::Changing(rate), span));
        }
        if element.as_text() == Some("max") {
            return Some(Spanned::new(Rate::Max, span));
        }
        match element.as_number() {
            Some(rate) if RATES_PER_S.contains(&rate) => return Some(Spanned::new(Rate::Steady(rate), span)),
            Some(_) => element.invalid(format!("expected {EXPECTED}"), findings),
            None if element.as_text().is_some() => element.invalid(format!("expected {EXPECTED}"), findings),
            None => element.mismatch(EXPECTED, findings),
        }
        None
    })
}

fn read_changing(element: &Field<'_>, findings: &mut Diagnostics) -> Option<ChangingRate> {
    let mut section = element.section(element.place.clone(), findings)?;
    let (ramp, over) = (section.take("ramp"), section.take("over"));
    let (steps, each) = (section.take("steps"), section.take("each"));
    section.finish(findings);
    match (ramp, steps) {
        (Some(ramp), None) => {
            refuse(each, "expected `over`, how long the ramp takes", findings);
            let (rates, over) = (read_each(&ramp, findings), read_length(over, findings)?);
            let rates = rates?;
            let [from_per_s, to_per_s] = *rates.as_slice() else {
                ramp.invalid("expected two rates, as in `ramp = [1_000, 50_000]`", findings);
                return None;
            };
            Some(ChangingRate::Ramp { from_per_s, to_per_s, over })
        }
        (None, Some(steps)) => {
            refuse(over, "expected `each`, how long each step takes", findings);
            let (rates_per_s, each) = (read_each(&steps, findings), read_length(each, findings)?);
            let rates_per_s = rates_per_s?;
            if !(2..=STEPS_MAX).contains(&rates_per_s.len()) {
                let expected = format!("expected two to {STEPS_MAX} rates, as in `steps = [1_000, 2_000]`");
                steps.invalid(expected, findings);
                return None;
            }
            Some(ChangingRate::Steps { rates_per_s, each })
        }
        _ => {
            element.invalid("expected either `ramp = [1_000, 50_000]` or `steps = [1_000, 2_000]`", findings);
            None
        }
    }
}

/// A length that belongs to the other kind.
fn refuse(length: Option<Field<'_>>, expected: &str, findings: &mut Diagnostics) {
    if let Some(length) = length {
        length.invalid(expected, findings);
    }
}

/// Rates in their order; the same one may come again.
fn read_each(field: &Field<'_>, findings: &mut Diagnostics) -> Option<Vec<f64>> {
    let mut rates = Vec::new();
    for element in field.one_or_many(findings) {
        match element.as_number() {
            Some(rate) if RATES_PER_S.contains(&rate) => rates.push(rate),
            Some(_) => {
                element.invalid("expected a number of operations per second above zero", findings);
                return None;
            }
            None => {
                element.mismatch("a number of operations per second above zero", findings);
                return None;
            }
        }
    }
    (!rates.is_empty()).then_some(rates)
}

/// `None` after a mistake.
fn read_length(field: Option<Field<'_>>, findings: &mut Diagnostics) -> Option<Option<Duration>> {
    match field {
        None => Some(None),
        Some(field) => field.duration(false, findings).map(|length| Some(length.value)),
    }
}

/// Of rates that follow one another, those that come when the measurement is over.
pub(super) fn note_beyond_the_end(workload: &WorkloadSite, sites: &Sites, findings: &mut Diagnostics) {
    let duration = sites.run.settings.duration;
    for rate in &workload.rates {
        let Rate::Changing(changing) = &rate.value else { continue };
        let length = changing.length(duration);
        // Loading and deleting take as long as they take.
        if length <= duration || workload.mixes.iter().all(|mix| matches!(mix.value, "load" | "delete")) {
            continue;
        }
        let message = format!(
            "this rate changes for {}, and a measurement takes {}",
            format_duration(length),
            format_duration(duration)
        );
        let finding = Diagnostic::note(rate.span.clone(), message, "its end is not reached");
        findings.push(match &sites.run.duration_span {
            Some(span) => finding.with_context(span.clone(), "the measurement"),
            None => finding,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn ramp(over: Option<Duration>) -> ChangingRate {
        ChangingRate::Ramp { from_per_s: 1_000.0, to_per_s: 5_000.0, over }
    }

    fn steps(each: Option<Duration>) -> ChangingRate {
        ChangingRate::Steps { rates_per_s: vec![100.0, 400.0, 100.0], each }
    }

    #[test]
    fn parts_are_in_modelled_time() {
        let part = |from_per_s, to_per_s, length_s| RatePart { from_per_s, to_per_s, length_s };
        assert_eq!(ramp(None).parts(MINUTE, 4.0), [part(1_000.0, 5_000.0, 15.0)]);
        assert_eq!(ramp(Some(MINUTE / 2)).parts(MINUTE, 1.0), [part(1_000.0, 5_000.0, 30.0)]);
        let each = [part(100.0, 100.0, 20.0), part(400.0, 400.0, 20.0), part(100.0, 100.0, 20.0)];
        assert_eq!(steps(None).parts(MINUTE, 1.0), each);
        assert_eq!(steps(Some(MINUTE)).length(MINUTE), 3 * MINUTE);
    }

    #[test]
    fn the_mean_is_that_of_what_is_measured() {
        assert_eq!(ramp(None).mean_per_s(MINUTE), 3_000.0);
        // Half of the time the last rate.
        assert_eq!(ramp(Some(MINUTE / 2)).mean_per_s(MINUTE), 4_000.0);
        // The second half of the ramp is not reached.
        assert_eq!(ramp(Some(2 * MINUTE)).mean_per_s(MINUTE), 2_000.0);
        assert_eq!(steps(None).mean_per_s(MINUTE), 200.0);
        assert_eq!(steps(Some(MINUTE / 2)).mean_per_s(MINUTE), 250.0);
    }
}
