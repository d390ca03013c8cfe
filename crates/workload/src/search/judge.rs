//! Whether a system sustained an offered rate under a latency objective, and with what certainty.

use std::fmt;

use underlay_record::IntegrityRecord;

/// The share of operations due that must be answered within a step for its rate to count as sustained: the rest may be
/// in flight at its end.
const ANSWERED_SHARE: f64 = 0.99;
/// Share of the operations that may fail.
const ERROR_SHARE: f64 = 0.001;
/// The normal quantile of a one-sided confidence of 95 %.
const Z: f64 = 1.644_853_627;

/// A latency that at most a share of the operations may exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyBound {
    /// The share that stays within the limit: 0.999 for p99.9.
    pub quantile: f64,
    /// From the intended start, in modelled time.
    pub limit_ns: u64,
}

impl LatencyBound {
    /// The quantile with the usual name `p50`, `p99`, `p999` or `p99.9`; none if the name is ambiguous.
    pub fn quantile_of(name: &str) -> Option<f64> {
        let digits = name.strip_prefix('p')?;
        let (whole, rest) = digits.split_once('.').unwrap_or((digits.get(..2)?, digits.get(2..)?));
        // p100 is not a percentile, and p995 and p99.5 are the same one.
        let is_percentile =
            whole.len() == 2 && rest.len() <= 4 && !(digits.len() > 2 && digits.ends_with('0'));
        let part: f64 = is_percentile.then(|| format!("0.{whole}{rest}").parse().ok())??;
        let is_digits = whole.bytes().chain(rest.bytes()).all(|byte| byte.is_ascii_digit());
        Some(part).filter(|quantile| is_digits && *quantile > 0.0)
    }

    /// How many operations a step needs in order to hold if none of them is slow.
    pub fn fewest_operations(&self) -> u64 {
        // Wilson's upper bound for no hits in n tries is z² / (n + z²); this n makes it 1 - quantile.
        (Z * Z * self.quantile / (1.0 - self.quantile)).ceil() as u64
    }
}

impl LatencyBound {
    /// `99.9`. Rounded: 0.999 * 100 is 99.9 except for the last digit.
    fn percent(&self) -> f64 {
        (self.quantile * 1e8).round() / 1e6
    }

    /// `10 ms`, or `40 µs`.
    fn limit(&self) -> String {
        match self.limit_ns {
            0..1_000_000 => format!("{} µs", self.limit_ns as f64 / 1e3),
            _ => format!("{} ms", self.limit_ns as f64 / 1e6),
        }
    }
}

impl fmt::Display for LatencyBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{} within {}", self.percent(), self.limit())
    }
}

/// The counts of one interval of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalCounts {
    pub operations: u64,
    /// How many of these took longer than each bound's limit.
    pub beyond: Vec<u64>,
}

/// The counts of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCounts {
    /// Operations that were due.
    pub due: u64,
    /// Operations that were answered within the step.
    pub answered: u64,
    pub errors: u64,
    /// The records that were read and checked, including those before the step.
    pub integrity: IntegrityRecord,
    /// How many of the operations due took longer than each bound's limit, whenever they were answered. One that was
    /// never sent took as long as its wait until the end.
    pub beyond: Vec<u64>,
    /// The step cut into parts, to detect slow operations that come in bursts.
    pub intervals: Vec<IntervalCounts>,
}

impl StepCounts {
    /// Adds another step at the same rate.
    pub fn add(&mut self, other: &StepCounts) {
        self.due += other.due;
        self.answered += other.answered;
        self.errors += other.errors;
        self.integrity.checked += other.integrity.checked;
        self.integrity.mismatches += other.integrity.mismatches;
        self.beyond.resize(self.beyond.len().max(other.beyond.len()), 0);
        for (mine, others) in self.beyond.iter_mut().zip(&other.beyond) {
            *mine += others;
        }
        self.intervals.extend_from_slice(&other.intervals);
    }
}

/// A step's verdict on its rate.
#[derive(Clone, Debug, PartialEq)]
pub enum StepVerdict {
    /// Every bound is kept, with 95 % confidence each.
    Holds,
    /// Not sustained, or a bound is broken with 95 % confidence; in words.
    Fails(String),
    /// Too few operations to decide.
    Undecided,
}

/// Compares a step with the bounds.
pub fn judge(counts: &StepCounts, bounds: &[LatencyBound]) -> StepVerdict {
    if counts.due == 0 {
        return StepVerdict::Undecided;
    }
    let share = |part: u64| part as f64 / counts.due as f64;
    if share(counts.errors) > ERROR_SHARE {
        return StepVerdict::Fails(format!("{:.2} % of the operations failed", share(counts.errors) * 100.0));
    }
    let IntegrityRecord { checked, mismatches, .. } = counts.integrity;
    if mismatches as f64 > ERROR_SHARE * checked as f64 {
        let share = mismatches as f64 / checked.max(1) as f64;
        return StepVerdict::Fails(format!(
            "{:.2} % of the records that were read differ from the written ones",
            share * 100.0
        ));
    }
    if share(counts.answered) < ANSWERED_SHARE {
        return StepVerdict::Fails(format!(
            "not sustained: {:.1} % of the operations were answered in time",
            share(counts.answered) * 100.0
        ));
    }
    let mut verdict = StepVerdict::Holds;
    for (place, bound) in bounds.iter().enumerate() {
        let over_bound = counts.beyond.get(place).copied().unwrap_or(0);
        let effect = design_effect(counts, place);
        // Dividing both by the design effect keeps the share, and counts only independent tries.
        let (low, high) = share_bounds(over_bound as f64 / effect, counts.due as f64 / effect);
        let allowed = 1.0 - bound.quantile;
        if low > allowed {
            return StepVerdict::Fails(format!(
                "{:.3} % took longer than {}, and p{} allows {} %",
                share(over_bound) * 100.0,
                bound.limit(),
                bound.percent(),
                (allowed * 1e8).round() / 1e6
            ));
        }
        // Not returned yet: a later bound may still fail, which outranks this.
        if high > allowed {
            verdict = StepVerdict::Undecided;
        }
    }
    verdict
}

/// The range of a share with `hits` in `tries`: each bound has 95 % confidence (E. B. Wilson, "Probable Inference, the
/// Law of Succession, and Statistical Inference", JASA 22 (1927)).
fn share_bounds(hits: f64, tries: f64) -> (f64, f64) {
    // Not the share ± z standard errors: those vanish without hits, and a step would then always hold.
    let share = hits / tries;
    let squared = Z * Z;
    let centre = share + squared / (2.0 * tries);
    let reach = Z * (share * (1.0 - share) / tries + squared / (4.0 * tries * tries)).sqrt();
    let scale = 1.0 + squared / tries;
    (((centre - reach) / scale).max(0.0), ((centre + reach) / scale).min(1.0))
}

/// How much bursts inflate the variance of the share of slow operations: that of the ratio over intervals, relative to
/// that of as many independent operations (W. G. Cochran, "Sampling Techniques", section 6.3). At least one.
fn design_effect(counts: &StepCounts, place: usize) -> f64 {
    let hits_in = |interval: &IntervalCounts| interval.beyond.get(place).copied().unwrap_or(0) as f64;
    let operations: f64 = counts.intervals.iter().map(|interval| interval.operations as f64).sum();
    let hits: f64 = counts.intervals.iter().map(hits_in).sum();
    let parts = counts.intervals.len() as f64;
    let share = hits / operations;
    if parts < 2.0 || operations == 0.0 || !(share > 0.0 && share < 1.0) {
        return 1.0;
    }
    let squares: f64 = counts
        .intervals
        .iter()
        .map(|interval| (hits_in(interval) - share * interval.operations as f64).powi(2))
        .sum();
    // The variance of a ratio estimator, from each interval's distance from the common share.
    let between = squares * parts / (parts - 1.0) / (operations * operations);
    (between / (share * (1.0 - share) / operations)).max(1.0)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    const P99: LatencyBound = LatencyBound { quantile: 0.99, limit_ns: 10_000_000 };

    fn step(due: u64, over_bound: u64) -> StepCounts {
        StepCounts { due, answered: due, beyond: vec![over_bound], ..StepCounts::default() }
    }

    #[test]
    fn few_operations_decide_nothing_and_many_do() {
        assert_eq!(judge(&step(100, 0), &[P99]), StepVerdict::Undecided);
        assert_eq!(judge(&step(1_000, 0), &[P99]), StepVerdict::Holds);
        assert_eq!(judge(&step(1_000, 10), &[P99]), StepVerdict::Undecided);
        let StepVerdict::Fails(reason) = judge(&step(1_000, 30), &[P99]) else {
            panic!("30 of 1,000 are too many")
        };
        assert_eq!(reason, "3.000 % took longer than 10 ms, and p99 allows 1 %");
        assert_eq!(judge(&step(0, 0), &[P99]), StepVerdict::Undecided);
    }

    #[test]
    fn minimum_holding_operations_are_known_beforehand() {
        for quantile in [0.5, 0.9, 0.99, 0.999, 0.9999] {
            let bound = LatencyBound { quantile, limit_ns: 1 };
            let fewest = bound.fewest_operations();
            assert_eq!(judge(&step(fewest, 0), &[bound]), StepVerdict::Holds, "{fewest} for {quantile}");
            assert_eq!(
                judge(&step(fewest - 1, 0), &[bound]),
                StepVerdict::Undecided,
                "{fewest} for {quantile}"
            );
        }
        assert_eq!(P99.fewest_operations(), 268);
        assert_eq!(LatencyBound { quantile: 0.5, limit_ns: 40_000 }.to_string(), "p50 within 40 µs");
    }

    #[test]
    fn percentiles_are_read_as_people_write_them() {
        let names = [
            ("p50", 0.5),
            ("p10", 0.1),
            ("p99", 0.99),
            ("p999", 0.999),
            ("p99.9", 0.999),
            ("p99.99", 0.9999),
        ];
        for (name, quantile) in names {
            assert_eq!(LatencyBound::quantile_of(name), Some(quantile), "{name}");
        }
        for name in [
            "p", "p9", "99", "p00", "px9", "p1234567", "p100", "p990", "p5.5", "p9.99", "p99.é", "pé", "mean",
        ] {
            assert_eq!(LatencyBound::quantile_of(name), None, "{name}");
        }
    }

    #[test]
    fn bounds_must_all_hold() {
        let p999 = LatencyBound { quantile: 0.999, limit_ns: 20_000_000 };
        let counts = StepCounts { beyond: vec![0, 50], ..step(10_000, 0) };
        let StepVerdict::Fails(reason) = judge(&counts, &[P99, p999]) else { panic!("p99.9 is broken") };
        assert_eq!(reason, "0.500 % took longer than 20 ms, and p99.9 allows 0.1 %");
        assert_eq!(
            judge(&StepCounts { beyond: vec![0, 8], ..counts.clone() }, &[P99, p999]),
            StepVerdict::Undecided
        );
        assert_eq!(judge(&StepCounts { beyond: vec![0, 0], ..counts }, &[P99, p999]), StepVerdict::Holds);
    }

    #[test]
    fn unanswered_operations_fail_the_step() {
        let slow = StepCounts { answered: 980, ..step(1_000, 0) };
        let StepVerdict::Fails(reason) = judge(&slow, &[P99]) else { panic!("2 % were left") };
        assert_eq!(reason, "not sustained: 98.0 % of the operations were answered in time");
        let integrity = IntegrityRecord { checked: 2_000, mismatches: 300, ..IntegrityRecord::default() };
        let wrong = judge(&StepCounts { integrity, ..step(1_000, 0) }, &[P99]);
        assert!(matches!(wrong, StepVerdict::Fails(reason) if reason.starts_with("15.00 % of the records")));
        let failing = StepCounts { errors: 20, ..step(1_000, 0) };
        assert!(
            matches!(judge(&failing, &[P99]), StepVerdict::Fails(reason) if reason.starts_with("2.00 %"))
        );
    }

    #[test]
    fn bursts_make_a_step_say_less() {
        // 60 of 10,000 are slow: evenly, or all in two of twenty intervals.
        let interval = |over_bound: u64| IntervalCounts { operations: 500, beyond: vec![over_bound] };
        let even = StepCounts { intervals: vec![interval(3); 20], ..step(10_000, 60) };
        assert_eq!(judge(&even, &[P99]), StepVerdict::Holds);
        let mut intervals = vec![interval(0); 18];
        intervals.extend([interval(30), interval(30)]);
        let burst = StepCounts { intervals, ..step(10_000, 60) };
        assert_eq!(judge(&burst, &[P99]), StepVerdict::Undecided);
        assert!(design_effect(&burst, 0) > 25.0, "{}", design_effect(&burst, 0));
    }

    #[test]
    fn steps_at_one_rate_add_up() {
        let mut sum = StepCounts::default();
        for _ in 0..3 {
            sum.add(&StepCounts { intervals: vec![IntervalCounts::default()], ..step(1_000, 4) });
        }
        assert_eq!((sum.due, sum.answered, sum.beyond, sum.intervals.len()), (3_000, 3_000, vec![12], 3));
    }

    /// A verdict with 95 % confidence is wrong at most once in twenty where the truth is just the opposite.
    #[test]
    fn verdicts_are_as_sure_as_they_say() {
        let mut rng = Pcg64Mcg::seed_from_u64(4);
        let mut wrong = [0; 2];
        let rounds = 4_000;
        for _ in 0..rounds {
            for (place, truth) in [0.0101, 0.0099].into_iter().enumerate() {
                let over_bound = (0..3_000).filter(|_| rng.random::<f64>() < truth).count() as u64;
                wrong[place] += match (place, judge(&step(3_000, over_bound), &[P99])) {
                    (0, StepVerdict::Holds) | (1, StepVerdict::Fails(_)) => 1,
                    _ => 0,
                };
            }
        }
        // The interval is an approximation: 5 % plus the variation of 4,000 rounds.
        assert!(wrong.iter().all(|&wrong| f64::from(wrong) < 0.075 * f64::from(rounds)), "{wrong:?}");
    }
}
