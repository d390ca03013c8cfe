//! The search for the highest rate that a system sustains under an objective.

use super::judge::{LatencyBound, StepCounts, StepVerdict, judge};

/// Each step up multiplies the rate by this, until one fails; each step down divides it by the square.
const GROWTH: f64 = 2.0;
/// The gap between a rate that holds and one that fails is narrowed to this part of the requested precision. Near the
/// bound a step shows nothing and counts as failed; the remaining part allows for that.
const BRACKET_PART: f64 = 0.5;
/// A system that fails at this part of the first rate has no rate worth finding, unless the specification says
/// otherwise.
const MIN_PART: f64 = 1.0 / 4096.0;
/// At the lowest rate tried, this many times the needed operations must be due, since their number varies.
const SPARE: f64 = 1.25;

/// The goal of a search, and its thoroughness.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchSpec {
    pub bounds: Vec<LatencyBound>,
    /// The first rate to try.
    pub from_per_s: f64,
    /// No higher rate is tried.
    pub most_per_s: f64,
    /// No lower rate is tried: it would be useless, or a step would show nothing.
    pub least_per_s: f64,
    /// The precision of the rate: 0.05 for 5 %. A failing rate is at most this much above a holding one.
    pub within: f64,
    /// How often an undecided step is lengthened by another one before it counts as failed.
    pub extensions: u32,
    /// How often the found rate is tried again, on fresh steps; most of them must hold.
    pub confirmations: u32,
    /// The search ends after this many steps, with its result so far.
    pub most_steps: u32,
}

impl SearchSpec {
    /// From a rate up to a thousand times as much, with 5 % precision.
    pub fn new(bounds: Vec<LatencyBound>, from_per_s: f64) -> Self {
        SearchSpec {
            bounds,
            from_per_s,
            most_per_s: from_per_s * 1000.0,
            least_per_s: from_per_s * MIN_PART,
            within: 0.05,
            extensions: 7,
            confirmations: 3,
            most_steps: 60,
        }
    }

    /// Excludes rates that are too low to judge by steps of `step_s` modelled seconds, however often lengthened.
    pub fn with_steps_of(self, step_s: f64) -> Self {
        let lowest_per_s = SPARE * self.lowest_per_s(step_s);
        SearchSpec { least_per_s: self.least_per_s.max(lowest_per_s).min(self.from_per_s), ..self }
    }

    /// Whether lower rates would be tried with longer steps.
    pub fn is_limited_by_steps(&self) -> bool {
        self.least_per_s > self.from_per_s * MIN_PART
    }

    /// The lowest rate that a step of maximum length can show to hold.
    pub fn lowest_per_s(&self, step_s: f64) -> f64 {
        let fewest = self.bounds.iter().map(LatencyBound::fewest_operations).max().unwrap_or(0);
        fewest as f64 / (step_s * f64::from(self.extensions + 1))
    }

    /// The minimum number of steps of a search: two to bracket the rate or one for each doubling up to the highest,
    /// those that halve the gap, and those that try again.
    pub fn fewest_steps(&self) -> u32 {
        let whole = |steps: f64| steps.max(0.0).ceil() as u32;
        let up_to_most = 1 + whole((self.most_per_s / self.from_per_s).log2());
        let narrowed = GROWTH.ln() / (1.0 + self.within * BRACKET_PART).ln();
        up_to_most.min(2 + whole(narrowed.log2())) + self.confirmations
    }

    /// Contradictions, in words.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bounds.is_empty() {
            problems.push("nothing to keep to: expected a bound such as p99 = \"10 ms\"".to_owned());
        }
        for bound in &self.bounds {
            if !(bound.quantile > 0.0 && bound.quantile < 1.0) {
                problems.push(format!("a quantile of {}: expected between 0 and 1", bound.quantile));
            }
        }
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        if !positive(self.from_per_s) || !positive(self.most_per_s) || self.most_per_s < self.from_per_s {
            problems.push(format!(
                "rates from {} to {}: expected numbers above 0, the second not below the first",
                self.from_per_s, self.most_per_s
            ));
        }
        if !(0.001..=1.0).contains(&self.within) {
            problems.push(format!("a search to within {}: expected 0.001 to 1", self.within));
        }
        problems
    }
}

/// The next action.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchAction {
    /// Offer this rate for a step, and [`RateSearch::report`] the result.
    Measure {
        rate_per_s: f64,
        /// The previous step overloaded the system: let it settle first.
        after_overload: bool,
    },
    Done(SearchOutcome),
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchEnding {
    /// The highest rate is known with the requested precision.
    Closed,
    /// The highest rate that may be tried holds; higher ones may hold too.
    MostHolds,
    /// Even the lowest rate that may be tried fails.
    NothingHolds,
    /// The steps were used up: the rate may be anywhere between the two.
    OutOfSteps,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOutcome {
    /// The highest rate that held; it was confirmed unless the steps ran out.
    pub holds_per_s: Option<f64>,
    /// The lowest rate above it that failed.
    pub fails_per_s: Option<f64>,
    pub ending: SearchEnding,
    /// How many of the fresh steps at the found rate held, and out of how many.
    pub confirmed: (u32, u32),
    /// Why the rate above it failed, in words.
    pub reason: Option<String>,
}

/// One completed step.
#[derive(Clone, Debug, PartialEq)]
pub struct TriedStep {
    pub rate_per_s: f64,
    pub counts: StepCounts,
    pub verdict: StepVerdict,
    /// It was one of the steps that confirm a rate.
    pub confirms: bool,
}

/// The purpose of the present steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepPurpose {
    /// Searching for a rate that holds and one that fails.
    Bracketing,
    /// Halving the gap.
    Narrowing,
    /// Trying the found rate again.
    Confirming,
}

/// The search itself. It measures nothing and has no clock: it says what to measure, and takes the results.
#[derive(Clone, Debug)]
pub struct RateSearch {
    spec: SearchSpec,
    purpose: StepPurpose,
    rate_per_s: f64,
    /// The counts at the present rate, including extensions.
    seen: StepCounts,
    extensions: u32,
    /// Rates that held and were not refuted since, in rising order.
    held: Vec<f64>,
    /// The lowest rate that failed, and why.
    failed: Option<(f64, String)>,
    confirmed: (u32, u32),
    overloaded: bool,
    tried: Vec<TriedStep>,
    done: Option<SearchEnding>,
}

impl RateSearch {
    /// # Errors
    /// [`SearchSpec::problems`], joined.
    pub fn new(spec: SearchSpec) -> Result<Self, String> {
        let problems = spec.problems();
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        Ok(RateSearch {
            purpose: StepPurpose::Bracketing,
            rate_per_s: spec.from_per_s,
            seen: StepCounts::default(),
            extensions: 0,
            held: Vec::new(),
            failed: None,
            confirmed: (0, 0),
            overloaded: false,
            tried: Vec::new(),
            done: None,
            spec,
        })
    }

    /// All steps so far.
    pub fn tried(&self) -> &[TriedStep] {
        &self.tried
    }

    /// What to do now.
    pub fn next(&self) -> SearchAction {
        match self.done {
            None => SearchAction::Measure { rate_per_s: self.rate_per_s, after_overload: self.overloaded },
            Some(ending) => SearchAction::Done(SearchOutcome {
                holds_per_s: self.held.last().copied(),
                fails_per_s: self.failed.as_ref().map(|(rate, _)| *rate),
                ending,
                confirmed: self.confirmed,
                reason: self.failed.as_ref().map(|(_, reason)| reason.clone()),
            }),
        }
    }

    /// Takes the result of the step of [`RateSearch::next`].
    pub fn report(&mut self, counts: StepCounts) {
        if self.done.is_some() {
            return;
        }
        self.seen.add(&counts);
        // Each confirmation counts separately; before that, a lengthened step is judged as one.
        let verdict = judge(&self.seen, &self.spec.bounds);
        self.overloaded = matches!(verdict, StepVerdict::Fails(_));
        let confirms = self.purpose == StepPurpose::Confirming;
        self.tried.push(TriedStep {
            rate_per_s: self.rate_per_s,
            counts,
            verdict: verdict.clone(),
            confirms,
        });
        match verdict {
            StepVerdict::Undecided if self.extensions < self.spec.extensions => self.extensions += 1,
            StepVerdict::Undecided => {
                let reason = self.undecided();
                if let Some(last) = self.tried.last_mut() {
                    last.verdict = StepVerdict::Fails(reason.clone());
                }
                self.decide(Some(reason));
            }
            StepVerdict::Holds => self.decide(None),
            StepVerdict::Fails(reason) => self.decide(Some(reason)),
        }
        if self.done.is_none() && self.tried.len() >= self.spec.most_steps as usize {
            self.done = Some(SearchEnding::OutOfSteps);
        }
    }

    /// Why the counts at the present rate show nothing.
    fn undecided(&self) -> String {
        let fewest = self.spec.bounds.iter().map(LatencyBound::fewest_operations).max().unwrap_or(0);
        if self.seen.due < fewest {
            format!(
                "{} operations are too few to tell, which takes at least {fewest}: lengthen the steps",
                self.seen.due
            )
        } else {
            "too close to its bound to be sure".to_owned()
        }
    }

    /// Decides that the present rate holds, or fails for a reason.
    fn decide(&mut self, failure: Option<String>) {
        let rate = self.rate_per_s;
        self.seen = StepCounts::default();
        self.extensions = 0;
        if self.purpose == StepPurpose::Confirming {
            self.confirmed.0 += u32::from(failure.is_none());
            self.confirmed.1 += 1;
            self.conclude_confirmation(rate, failure);
            return;
        }
        match failure {
            None => {
                self.held.push(rate);
                self.held.sort_by(f64::total_cmp);
            }
            Some(reason) => self.fail(rate, reason),
        }
        self.choose();
    }

    fn fail(&mut self, rate: f64, reason: String) {
        if self.failed.as_ref().is_none_or(|(lowest, _)| rate < *lowest) {
            self.failed = Some((rate, reason));
        }
        // Rates above a failing one only seemed to hold.
        self.held.retain(|&held_rate| held_rate < rate);
    }

    fn conclude_confirmation(&mut self, rate: f64, failure: Option<String>) {
        let (held_count, tried) = self.confirmed;
        let (needed, all) = (self.spec.confirmations / 2 + 1, self.spec.confirmations);
        if tried - held_count >= all + 1 - needed {
            // A majority is no longer possible: the rate only seemed to hold.
            self.fail(rate, failure.unwrap_or_else(|| "it did not hold when tried again".to_owned()));
            self.confirmed = (0, 0);
            self.choose();
        } else if tried >= all {
            let most = rate >= self.spec.most_per_s && self.failed.is_none();
            self.done = Some(if most { SearchEnding::MostHolds } else { SearchEnding::Closed });
        }
    }

    /// Chooses the next rate from the results so far.
    fn choose(&mut self) {
        let highest = self.held.last().copied();
        let lowest_failed = self.failed.as_ref().map(|(rate, _)| *rate);
        (self.purpose, self.rate_per_s) = match (highest, lowest_failed) {
            (Some(held_rate), None) if held_rate >= self.spec.most_per_s => {
                (StepPurpose::Confirming, held_rate)
            }
            (Some(held_rate), None) => {
                (StepPurpose::Bracketing, (held_rate * GROWTH).min(self.spec.most_per_s))
            }
            (Some(held_rate), Some(failed))
                if failed / held_rate <= 1.0 + self.spec.within * BRACKET_PART =>
            {
                (StepPurpose::Confirming, held_rate)
            }
            // The geometric mean, since the ratio of the rates matters.
            (Some(held_rate), Some(failed)) => (StepPurpose::Narrowing, (held_rate * failed).sqrt()),
            (None, Some(failed)) => {
                (StepPurpose::Bracketing, (failed / (GROWTH * GROWTH)).max(self.spec.least_per_s))
            }
            (None, None) => (StepPurpose::Bracketing, self.spec.from_per_s),
        };
        if highest.is_none() && lowest_failed.is_some_and(|failed| failed <= self.spec.least_per_s) {
            self.done = Some(SearchEnding::NothingHolds);
        } else if self.purpose == StepPurpose::Confirming && self.spec.confirmations == 0 {
            let most = self.failed.is_none();
            self.done = Some(if most { SearchEnding::MostHolds } else { SearchEnding::Closed });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::super::judge::IntervalCounts;
    use super::*;

    const LIMIT_NS: u64 = 10_000_000;
    const P99: LatencyBound = LatencyBound { quantile: 0.99, limit_ns: LIMIT_NS };
    const STEP_S: f64 = 10.0;

    /// Runs a search against a system, and returns its number of steps.
    fn search(
        spec: SearchSpec,
        mut system: impl FnMut(f64) -> StepCounts,
    ) -> (SearchOutcome, Vec<TriedStep>) {
        let mut search = RateSearch::new(spec).unwrap();
        loop {
            match search.next() {
                SearchAction::Done(found) => return (found, search.tried().to_vec()),
                SearchAction::Measure { rate_per_s, .. } => {
                    let counts = system(rate_per_s);
                    search.report(counts);
                }
            }
        }
    }

    /// A system that is fast up to a rate and saturated above it.
    fn cliff(capacity_per_s: f64) -> impl FnMut(f64) -> StepCounts {
        move |rate_per_s| {
            let due = (rate_per_s * STEP_S) as u64;
            let answered = if rate_per_s <= capacity_per_s { due } else { (capacity_per_s * STEP_S) as u64 };
            StepCounts { due, answered, beyond: vec![due - answered], ..StepCounts::default() }
        }
    }

    #[test]
    fn cliff_is_found_from_below_and_above() {
        for from_per_s in [50.0, 1_000.0, 7_300.0, 64_000.0, 2_000_000.0] {
            let (found, tried) = search(SearchSpec::new(vec![P99], from_per_s), cliff(7_000.0));
            let (holds_per_s, fails) = (found.holds_per_s.unwrap(), found.fails_per_s.unwrap());
            assert!(holds_per_s <= 7_000.0 * 1.0102 && fails > 7_000.0, "{holds_per_s} to {fails}");
            assert!(fails / holds_per_s <= 1.025, "{holds_per_s} to {fails}");
            assert_eq!((found.ending, found.confirmed), (SearchEnding::Closed, (3, 3)));
            assert!(found.reason.unwrap().starts_with("not sustained"));
            assert!(tried.len() <= 25, "{} steps", tried.len());
        }
    }

    #[test]
    fn unlimited_system_ends_at_highest_rate() {
        let spec = SearchSpec { most_per_s: 40_000.0, ..SearchSpec::new(vec![P99], 1_000.0) };
        let (found, _) = search(spec, cliff(1e12));
        assert_eq!((found.holds_per_s, found.fails_per_s), (Some(40_000.0), None));
        assert_eq!((found.ending, found.confirmed), (SearchEnding::MostHolds, (3, 3)));
    }

    #[test]
    fn never_holding_system_ends_soon() {
        let (found, tried) = search(SearchSpec::new(vec![P99], 1_000.0), cliff(0.0));
        assert_eq!((found.holds_per_s, found.ending), (None, SearchEnding::NothingHolds));
        assert!(tried.len() <= 7, "{} steps", tried.len());
    }

    #[test]
    fn rate_too_low_to_judge_is_not_tried() {
        // A quarter more than 268 operations in eight steps of ten seconds.
        let spec = SearchSpec::new(vec![P99], 100.0).with_steps_of(STEP_S);
        assert_eq!(spec.least_per_s, 4.1875);
        let (found, tried) = search(spec, cliff(0.0));
        assert_eq!((found.ending, found.fails_per_s), (SearchEnding::NothingHolds, Some(4.1875)));
        let rates: Vec<f64> = tried.iter().map(|one| one.rate_per_s).collect();
        assert_eq!(rates, [100.0, 25.0, 6.25, 4.1875]);
        // A rate between that one and the last is found.
        let (found, _) = search(SearchSpec::new(vec![P99], 100.0).with_steps_of(STEP_S), cliff(5.0));
        assert!((4.8..5.2).contains(&found.holds_per_s.unwrap()), "{found:?}");
        assert_eq!(SearchSpec::new(vec![P99], 2.0).with_steps_of(STEP_S).least_per_s, 2.0);
    }

    #[test]
    fn search_takes_at_least_announced_steps() {
        for (from_per_s, most_per_s) in
            [(6_000.0, 1e6), (7_000.0, 1e6), (100.0, 1e6), (500.0, 500.0), (500.0, 3_000.0)]
        {
            let spec = SearchSpec { most_per_s, ..SearchSpec::new(vec![P99], from_per_s) };
            let fewest = spec.fewest_steps();
            let (_, tried) = search(spec, cliff(7_000.0));
            assert!(
                (fewest..fewest + 10).contains(&(tried.len() as u32)),
                "{fewest}, and {} were",
                tried.len()
            );
        }
        assert_eq!(SearchSpec::new(vec![P99], 100.0).fewest_steps(), 10);
        assert_eq!(SearchSpec { most_per_s: 100.0, ..SearchSpec::new(vec![P99], 100.0) }.fewest_steps(), 4);
    }

    #[test]
    fn inconclusive_step_is_lengthened_then_fails() {
        // At 1 operation a second, a step of ten seconds shows nothing about p99.
        let spec = SearchSpec { extensions: 2, most_steps: 9, ..SearchSpec::new(vec![P99], 1.0) };
        let (found, tried) = search(spec, cliff(1e12));
        assert_eq!(tried[..3].iter().map(|one| one.rate_per_s).collect::<Vec<_>>(), [1.0; 3]);
        assert!(tried[..2].iter().all(|one| one.verdict == StepVerdict::Undecided));
        assert!(
            matches!(&tried[2].verdict, StepVerdict::Fails(reason) if reason.contains("too few to tell"))
        );
        assert!(tried[3].rate_per_s < 1.0);
        let reason = found.reason.unwrap();
        assert!(
            reason.ends_with("operations are too few to tell, which takes at least 268: lengthen the steps"),
            "{reason}"
        );
    }

    /// An M/M/1 queue, simulated operation by operation: slow ones come in bursts.
    fn queue(capacity_per_s: f64, seed: u64) -> impl FnMut(f64) -> StepCounts {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        move |rate_per_s| {
            let mut exponential = |rate: f64| -(-rng.random::<f64>()).ln_1p() / rate;
            let (mut now_s, mut free_s) = (0.0, 0.0f64);
            let mut counts = StepCounts {
                beyond: vec![0],
                intervals: vec![IntervalCounts { operations: 0, beyond: vec![0] }; 40],
                ..StepCounts::default()
            };
            loop {
                now_s += exponential(rate_per_s);
                if now_s >= STEP_S {
                    return counts;
                }
                free_s = free_s.max(now_s) + exponential(capacity_per_s);
                let slow = u64::from((free_s - now_s) * 1e9 > LIMIT_NS as f64);
                counts.due += 1;
                counts.answered += u64::from(free_s < STEP_S);
                counts.beyond[0] += slow;
                let interval = &mut counts.intervals[(now_s / STEP_S * 40.0) as usize];
                interval.operations += 1;
                interval.beyond[0] += slow;
            }
        }
    }

    /// Of a hundred searches against systems with the same highest rate, each from a different first rate, how many
    /// find it within the requested 5 %, and how many find a higher one.
    fn hundred_searches<S: FnMut(f64) -> StepCounts>(exact: f64, system: impl Fn(u64) -> S) -> (u32, u32) {
        let (mut near, mut above) = (0, 0);
        for seed in 0..100 {
            // Over an octave, so that different rates are tried each time.
            let from_per_s = exact / 16.0 * 2f64.powf(seed as f64 / 100.0);
            let (found, _) = search(SearchSpec::new(vec![P99], from_per_s), system(seed));
            let holds_per_s = found.holds_per_s.unwrap();
            near += u32::from((holds_per_s / exact - 1.0).abs() <= 0.05);
            above += u32::from(holds_per_s > exact * 1.01);
        }
        (near, above)
    }

    #[test]
    fn exact_rate_of_queue_is_found() {
        // Of M/M/1, P(T > L) = exp(-(mu - lambda) L), which is 1 % at mu - lambda = ln(100) / L.
        let exact = 3_000.0 - 100f64.ln() / 0.01;
        let (near, above) = hundred_searches(exact, |seed| queue(3_000.0, seed));
        assert!(near >= 95, "{near} of 100 searches are near {exact}");
        assert!(above <= 5, "{above} of 100 rates are too high");
    }

    #[test]
    fn height_of_step_is_found() {
        // 1 % of the operations due may be unanswered, so a rate slightly above the capacity holds.
        let (near, above) = hundred_searches(7_000.0 / 0.99, |_| cliff(7_000.0));
        assert_eq!((near, above), (100, 0));
    }

    #[test]
    fn luckily_held_rate_is_abandoned() {
        // From 1,000 to 1,300 the system holds only the first time.
        let mut asked: Vec<f64> = Vec::new();
        let (found, tried) = search(SearchSpec::new(vec![P99], 100.0), |rate| {
            let lucky = !asked.contains(&rate);
            asked.push(rate);
            let capacity = if lucky && rate < 1_300.0 { 1e9 } else { 1_000.0 };
            cliff(capacity)(rate)
        });
        assert!(found.holds_per_s.unwrap() <= 1_000.0 * 1.0102, "{found:?}");
        assert!(tried.iter().any(|one| one.confirms && one.verdict != StepVerdict::Holds));
    }

    #[test]
    fn unsearchable_specification_is_refused() {
        let spec = SearchSpec {
            bounds: vec![LatencyBound { quantile: 1.0, limit_ns: 1 }],
            within: 0.0,
            most_per_s: 5.0,
            ..SearchSpec::new(Vec::new(), 10.0)
        };
        assert_eq!(
            RateSearch::new(spec).unwrap_err(),
            "a quantile of 1: expected between 0 and 1; rates from 10 to 5: expected numbers above 0, the second not \
             below the first; a search to within 0: expected 0.001 to 1"
        );
        let error = RateSearch::new(SearchSpec::new(Vec::new(), 1.0)).unwrap_err();
        assert_eq!(error, "nothing to keep to: expected a bound such as p99 = \"10 ms\"");
    }

    proptest! {
        /// Whatever a system answers, the search ends, and claims no more than it observed.
        #[test]
        fn search_always_ends(
            answers in prop::collection::vec((0u64..5_000, 0u64..200, 0u64..20), 1..80),
            from_per_s in 0.1f64..1e6,
            tolerance in 0.01f64..1.0,
            confirmations in 0u32..5,
            extensions in 0u32..4,
        ) {
            let spec = SearchSpec { within: tolerance, confirmations, extensions, ..SearchSpec::new(vec![P99], from_per_s) };
            let most = spec.most_steps as usize;
            let mut turn = 0;
            let (found, tried) = search(spec.clone(), |_| {
                let (due, over_bound, errors) = answers[turn % answers.len()];
                turn += 1;
                StepCounts { due, answered: due, errors, beyond: vec![over_bound.min(due)], ..StepCounts::default() }
            });
            prop_assert!(tried.len() <= most);
            if let (Some(holds_per_s), Some(fails)) = (found.holds_per_s, found.fails_per_s) {
                prop_assert!(holds_per_s < fails);
                prop_assert!(found.ending == SearchEnding::OutOfSteps || fails / holds_per_s <= 1.0 + tolerance + 1e-9);
            }
            if let Some(holds_per_s) = found.holds_per_s {
                prop_assert!(tried.iter().any(|one| one.rate_per_s == holds_per_s && one.verdict == StepVerdict::Holds));
                prop_assert!(holds_per_s <= spec.most_per_s);
            }
        }
    }
}
