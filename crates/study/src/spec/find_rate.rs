//! `find_rate`: the highest rate under a latency, in place of a rate.

use std::ops::RangeInclusive;
use std::time::Duration;

use underlay_workload::search::{Bound, SearchSpec, StepTimes};

use super::checks::Sites;
use super::rate::RATES_PER_S;
use super::reader::{Field, Section, Spanned};
use super::workload::WorkloadSite;
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::units::format_duration;

const EXAMPLE: &str = "expected a percentile and a time, as in `find_rate = { p99 = \"10 ms\" }`";
const WITHIN: RangeInclusive<f64> = 0.01..=0.5;
/// The first rate that is tried when the study names none, unless steps are too short for it.
const DEFAULT_FROM_PER_S: f64 = 100.0;
/// The highest one, as a multiple of the first.
const DEFAULT_TO: f64 = 10_000.0;
/// A step that the study gives no length is this part of its duration, and no shorter than that.
const STEPS_OF_A_DURATION: u32 = 4;
const MIN_STEP: Duration = Duration::from_secs(1);

/// What rate is looked for, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct FindRate {
    /// In modelled time, all of them to be kept.
    pub bounds: Vec<Bound>,
    /// Operations per second of the modelled machine: the first that is tried, and the highest.
    pub from_per_s: Option<f64>,
    pub to_per_s: Option<f64>,
    /// How near the rate is to be known: 0.05 for 5 %.
    pub within: f64,
    /// Wall time of each step; of the study's `duration` a fourth when absent.
    pub step: Option<Duration>,
}

impl FindRate {
    /// `p99 within 10 ms`.
    pub fn label(&self) -> String {
        self.bounds.iter().map(Bound::to_string).collect::<Vec<_>>().join(" and ")
    }

    /// How long each step is on this machine's clock, in a study that measures cells for `duration`.
    pub fn step(&self, duration: Duration) -> Duration {
        self.step.unwrap_or_else(|| (duration / STEPS_OF_A_DURATION).max(MIN_STEP))
    }

    /// How long the search takes on this machine's clock at least.
    pub fn shortest(&self, duration: Duration, time: f64) -> Duration {
        let step = self.step(duration);
        StepTimes::of(step).whole() * self.search(step, time).fewest_steps()
    }

    /// What is looked for by such steps.
    pub fn search(&self, step: Duration, time: f64) -> SearchSpec {
        let step_s = step.as_secs_f64() / time;
        let from_per_s = self.from_per_s.unwrap_or_else(|| {
            // One step is enough to see that it holds.
            let fewest = self.bounds.iter().map(Bound::fewest_operations).max().unwrap_or(0);
            let least = DEFAULT_FROM_PER_S.max((fewest as f64 / step_s).ceil());
            least.min(self.to_per_s.unwrap_or(*RATES_PER_S.end()))
        });
        let search = SearchSpec {
            most_per_s: self.to_per_s.unwrap_or((from_per_s * DEFAULT_TO).min(*RATES_PER_S.end())),
            within: self.within,
            ..SearchSpec::new(self.bounds.clone(), from_per_s)
        };
        search.with_steps_of(step_s)
    }
}

/// Reads `find_rate`, which stands in place of `rate`.
pub(super) fn read(section: &mut Section<'_>, findings: &mut Diagnostics) -> Option<Spanned<FindRate>> {
    let field = section.take("find_rate")?;
    let mut wanted = field.section(field.place.clone(), findings)?;
    let rate = |field: Option<Field<'_>>, findings: &mut Diagnostics| match field {
        None => Some(None),
        Some(field) => match field.as_number() {
            Some(rate) if RATES_PER_S.contains(&rate) => Some(Some(rate)),
            _ => {
                field.invalid("expected a number of operations per second above zero", findings);
                None
            }
        },
    };
    let from_per_s = rate(wanted.take("from"), findings);
    let to_per_s = rate(wanted.take("to"), findings);
    let within = match wanted.take("within") {
        None => Some(0.05),
        Some(field) => match field.as_number() {
            Some(within) if WITHIN.contains(&within) => Some(within),
            _ => {
                field.invalid("expected a part from 0.01 to 0.5, such as 0.05", findings);
                None
            }
        },
    };
    let step = match wanted.take("step") {
        None => None,
        Some(field) => Some(field.duration(false, findings)?.value),
    };
    let (mut bounds, mut names_any) = (Vec::new(), false);
    for field in wanted.take_rest() {
        names_any = true;
        let Some(quantile) = Bound::quantile_of(&field.key) else {
            let message = format!("unknown key `{}` in {}", field.key, wanted.title);
            let label = "expected a percentile such as p50, p99 or p999, or one of from, to, within, step";
            findings.push(Diagnostic::error(field.key_span, message, label));
            continue;
        };
        if field.is_table() {
            // p99.9 without quotes is a 9 in p99.
            let message = format!("`{}` in {} has parts of its own", field.key, wanted.title);
            let label = "expected percentiles without a point: `p999` for the 99.9th";
            findings.push(Diagnostic::error(field.key_span, message, label));
            continue;
        }
        let Some(limit) = field.duration(false, findings) else { continue };
        let limit_ns = u64::try_from(limit.value.as_nanos()).unwrap_or(u64::MAX);
        bounds.push(Bound { quantile, limit_ns });
    }
    let (from_per_s, to_per_s, within) = (from_per_s?, to_per_s?, within?);
    if bounds.is_empty() {
        if names_any {
            return None;
        }
        let message = format!("{} keeps to nothing", field.place);
        findings.push(Diagnostic::error(field.span.clone(), message, EXAMPLE));
        return None;
    }
    if to_per_s.zip(from_per_s).is_some_and(|(to, from)| to < from) {
        let message = format!("{} ends below its begin", field.place);
        findings.push(Diagnostic::error(field.span.clone(), message, "expected `to` above `from`"));
        return None;
    }
    Some(Spanned::new(FindRate { bounds, from_per_s, to_per_s, within, step }, field.span.clone()))
}

/// Whether a step at the rate that a search begins with can show anything of its percentiles.
pub(super) fn check_steps(workload: &WorkloadSite, sites: &Sites, findings: &mut Diagnostics) {
    let Some(wanted) = &workload.find_rate else { return };
    let (from_per_s, name) = match (wanted.value.from_per_s, wanted.value.to_per_s) {
        (Some(from_per_s), _) => (from_per_s, "from"),
        (None, Some(to_per_s)) => (to_per_s, "to"),
        (None, None) => return,
    };
    let (step, time) = (wanted.value.step(sites.run.settings.duration), sites.scale.value.time);
    // A step that tells nothing is lengthened.
    let search = wanted.value.search(step, time);
    let lowest = search.lowest_per_s(step.as_secs_f64() / time).ceil();
    if from_per_s < lowest {
        let message = format!(
            "a search at {from_per_s} operations per second has too few in a step of {}, even lengthened {} times",
            format_duration(step),
            search.extensions
        );
        let label = format!("expected {lowest} at least for {}", wanted.value.label());
        let finding = Diagnostic::error(wanted.span.clone(), message, label);
        findings.push(finding.with_help(format!("raise `{name}`, or lengthen `step`")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rate_is_one_that_a_step_can_judge() {
        let wanted = |quantile, from_per_s, to_per_s| FindRate {
            bounds: vec![Bound { quantile, limit_ns: 1_000_000 }],
            from_per_s,
            to_per_s,
            within: 0.05,
            step: None,
        };
        let ends = |wanted: FindRate, duration_s: u64, time: f64| {
            let step = wanted.step(Duration::from_secs(duration_s));
            let search = wanted.search(step, time);
            assert_eq!(search.problems(), Vec::<String>::new());
            (step.as_secs(), search.from_per_s, search.most_per_s)
        };
        assert_eq!(ends(wanted(0.99, None, None), 60, 1.0), (15, 100.0, 1e6));
        // 2,703 operations show something of p99.9.
        assert_eq!(ends(wanted(0.999, None, None), 60, 1.0), (15, 181.0, 1.81e6));
        assert_eq!(ends(wanted(0.999, None, None), 1, 8.0), (1, 21_624.0, 216_240_000.0));
        assert_eq!(ends(wanted(0.999, Some(10.0), Some(500.0)), 60, 8.0), (15, 10.0, 500.0));
        assert_eq!(ends(wanted(0.999, None, Some(500.0)), 60, 8.0), (15, 500.0, 500.0));
    }
}
