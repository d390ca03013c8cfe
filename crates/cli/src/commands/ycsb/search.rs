//! `underlay ycsb run --find-rate`: the highest rate under a latency, step by step.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use underlay_config::units;
use underlay_report::quantity;
use underlay_study::standstill::StepClock;
use underlay_workload::runner::ThreadConnector;
use underlay_workload::search::{
    FoundRate, LatencyBound, SearchEnding, SearchOutcome, SearchSpec, StepTimes, StepVerdict, TriedStep,
    find_rate,
};
use underlay_workload::{RunError, RunSpec};

use crate::arguments::{RateArgument, YcsbArguments};
use crate::exit_codes::ExitFailure;
use crate::output;

/// The search that `--find-rate` asks for, if any.
pub(super) fn wanted(arguments: &YcsbArguments) -> Result<Option<(SearchSpec, StepTimes)>, ExitFailure> {
    let Some(text) = &arguments.find_rate else { return Ok(None) };
    let bounds = bounds(text)?;
    let mistake = |text: String| Err(ExitFailure::Mistake(text));
    let Some(RateArgument::Constant(from_per_s)) = arguments.rate else {
        return mistake("--find-rate begins with one rate: expected it as --rate 1000".to_owned());
    };
    let step_s = arguments.step;
    let measure = super::seconds("step", step_s)?;
    if measure.is_zero() {
        return mistake(format!("--step is {step_s:?}: expected a number of seconds above 0"));
    }
    let search = SearchSpec::new(bounds, from_per_s).with_steps_of(step_s);
    let lowest_per_s = search.lowest_per_s(step_s).ceil();
    if from_per_s < lowest_per_s {
        return mistake(format!(
            "--rate is too low: a step of {}, even lengthened {} times, has too few operations to show anything about {}: expected \
             {} at least, or a longer --step",
            quantity::duration(step_s),
            search.extensions,
            search.bounds.iter().map(LatencyBound::to_string).collect::<Vec<_>>().join(" and "),
            quantity::number(lowest_per_s, 2),
        ));
    }
    Ok(Some((search, StepTimes::from_measure(measure))))
}

/// `p99=10ms,p99.9=50 ms`.
fn bounds(text: &str) -> Result<Vec<LatencyBound>, ExitFailure> {
    let bound = |part: &str| {
        let mistaken = || {
            ExitFailure::Mistake(format!(
                "--find-rate {text}: '{part}' is not a bound: expected a percentile and a time, such as p99=10ms"
            ))
        };
        let no_time = |problem: units::QuantityError| {
            ExitFailure::Mistake(format!(
                "--find-rate {text}: '{part}' is not a bound such as p99=10ms: {problem}"
            ))
        };
        let (name, limit) = part.split_once('=').ok_or_else(mistaken)?;
        let quantile = LatencyBound::quantile_of(name.trim()).ok_or_else(mistaken)?;
        let limit = units::parse_duration(limit).map_err(no_time)?;
        let limit_ns = u64::try_from(limit.as_nanos()).ok().filter(|&ns| ns > 0).ok_or_else(mistaken)?;
        Ok(LatencyBound { quantile, limit_ns })
    };
    text.split(',').map(bound).collect()
}

/// Searches, saying on standard error what each step showed. `steps` watches what stands still in each.
pub(super) fn search(
    spec: &RunSpec,
    (search, times): (SearchSpec, StepTimes),
    connect: ThreadConnector<'_>,
    stop: &Arc<AtomicBool>,
    steps: &StepClock<'_>,
) -> Result<FoundRate, RunError> {
    let stepped = |tried: &TriedStep| {
        steps.end_step();
        output::say(line(tried));
    };
    find_rate(spec, search, times, connect, stop, &stepped)
}

fn line(tried: &TriedStep) -> String {
    let verdict = match &tried.verdict {
        StepVerdict::Holds => "holds".to_owned(),
        StepVerdict::Undecided => "undecided, once more".to_owned(),
        StepVerdict::Fails(reason) => format!("fails: {reason}"),
    };
    let again = if tried.confirms { " again" } else { "" };
    format!("{}/s{again}: {verdict}", quantity::rate(tried.rate_per_s))
}

/// Prints what was found.
pub(super) fn print(found: &SearchOutcome) {
    let rate = |rate: Option<f64>| match rate {
        None => "none".to_owned(),
        Some(rate) if rate < 100.0 => format!("{rate:.2}"),
        Some(rate) => format!("{rate:.0}"),
    };
    let (confirmed, tried) = found.confirmed;
    let ending = match found.ending {
        SearchEnding::Closed => "found",
        SearchEnding::MostHolds => "the highest rate that was tried holds",
        SearchEnding::NothingHolds => "no rate holds",
        SearchEnding::OutOfSteps => "not found: the steps were used up",
    };
    output::print(&format!(
        "[SEARCH], Rate(ops/sec), {}\n[SEARCH], FailsAt(ops/sec), {}\n[SEARCH], FailsBecause, {}\n\
         [SEARCH], Confirmed, {confirmed} of {tried}\n[SEARCH], Outcome, {ending}",
        rate(found.holds_per_s),
        rate(found.fails_per_s),
        found.reason.as_deref().unwrap_or("none"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_percentiles_and_times() {
        let read = |text: &str| bounds(text).map_err(|failure| failure.to_string());
        let expected = [
            LatencyBound { quantile: 0.99, limit_ns: 10_000_000 },
            LatencyBound { quantile: 0.999, limit_ns: 2_000_000_000 },
        ];
        let found = read("p99=10ms, p99.9 = 2 s").unwrap();
        assert_eq!(found.len(), 2);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found.quantile - expected.quantile).abs() < 1e-12);
            assert_eq!(found.limit_ns, expected.limit_ns);
        }
        for wrong in ["", "p99", "99=10ms", "p100=1s", "p99=fast", "p0=1s", "p99=0ms", "p99=-1ms", "p99=10kg"]
        {
            assert!(read(wrong).unwrap_err().contains("such as p99=10ms"), "{wrong}");
        }
    }

    #[test]
    fn steps_are_said_in_a_line() {
        let tried = |verdict, confirms| TriedStep {
            rate_per_s: 20_000.0,
            counts: underlay_workload::search::StepCounts::default(),
            verdict,
            confirms,
        };
        assert!(line(&tried(StepVerdict::Holds, true)).ends_with("/s again: holds"));
        let failed = line(&tried(StepVerdict::Fails("not sustained".to_owned()), false));
        assert!(failed.ends_with("/s: fails: not sustained"), "{failed}");
    }
}
