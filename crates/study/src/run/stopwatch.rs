//! What a run's time goes on, by this machine's clock. Parts follow one another, and whatever happens between two looks at the clock is of
//! the part that was entered last.

use std::time::{Duration, Instant};

use underlay_record::WallParts;
use underlay_sync::Mutex;

/// See [`WallParts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Prepare,
    Load,
    Start,
    Fill,
    Settle,
    Search,
    WarmUp,
    Measure,
    Job,
    AroundJobs,
    Restore,
}

impl Part {
    fn of(self, parts: &mut WallParts) -> &mut f64 {
        match self {
            Part::Prepare => &mut parts.prepare_s,
            Part::Load => &mut parts.load_s,
            Part::Start => &mut parts.start_s,
            Part::Fill => &mut parts.fill_s,
            Part::Settle => &mut parts.settle_s,
            Part::Search => &mut parts.search_s,
            Part::WarmUp => &mut parts.warmup_s,
            Part::Measure => &mut parts.measure_s,
            Part::Job => &mut parts.job_s,
            Part::AroundJobs => &mut parts.around_jobs_s,
            Part::Restore => &mut parts.restore_s,
        }
    }
}

/// See the module.
pub(super) struct Stopwatch(Mutex<State>);

struct State {
    part: Part,
    since: Instant,
    /// Since somebody asked for a cell's.
    cell: WallParts,
    all: WallParts,
    /// What the round that goes on was expected to take, and how many cells it has.
    expected: (WallParts, usize),
    given_up_s: f64,
}

/// What [`Stopwatch::all`] tells.
pub(super) struct Times {
    pub expected: WallParts,
    pub cells: usize,
    pub took: WallParts,
    pub given_up_s: f64,
}

impl Stopwatch {
    pub(super) fn start() -> Stopwatch {
        Stopwatch(Mutex::new(State {
            part: Part::Prepare,
            since: Instant::now(),
            cell: WallParts::default(),
            all: WallParts::default(),
            expected: (WallParts::default(), 0),
            given_up_s: 0.0,
        }))
    }

    pub(super) fn enter(&self, part: Part) {
        self.0.lock().enter(part, Instant::now());
    }

    /// Ends a measurement, whose window began at this instant and was to be so long; without a window all of it was warm-up.
    pub(super) fn measured(&self, window: Option<Instant>, duration: Duration) {
        let mut state = self.0.lock();
        let now = Instant::now();
        if let Some(begun) = window {
            state.enter(Part::Measure, begun.min(now));
            // What follows is waited for: operations that were under way at its end.
            state.enter(Part::Restore, begun.checked_add(duration).map_or(now, |end| end.min(now)));
        }
        state.enter(Part::Restore, now);
    }

    /// What a cell took, since the last one was asked for.
    pub(super) fn of_cell(&self) -> WallParts {
        let mut state = self.0.lock();
        let part = state.part;
        state.enter(part, Instant::now());
        std::mem::take(&mut state.cell)
    }

    /// A round begins, of so many cells that are expected to take this.
    pub(super) fn expect(&self, parts: WallParts, cells: usize) {
        self.0.lock().expected = (parts, cells);
    }

    /// What was measured until now counts for nothing, since the motion was too fast. Data sets that were loaded are kept.
    pub(super) fn give_up(&self) {
        let mut state = self.0.lock();
        state.enter(Part::Prepare, Instant::now());
        let load_s = state.all.load_s;
        state.given_up_s += state.all.total_s() - load_s;
        (state.cell, state.all) = (WallParts::default(), WallParts { load_s, ..WallParts::default() });
    }

    pub(super) fn all(&self) -> Times {
        let mut state = self.0.lock();
        let part = state.part;
        state.enter(part, Instant::now());
        let (expected, cells) = state.expected;
        Times { expected, cells, took: state.all, given_up_s: state.given_up_s }
    }
}

impl State {
    fn enter(&mut self, part: Part, at: Instant) {
        let passed_s = at.saturating_duration_since(self.since).as_secs_f64();
        for parts in [&mut self.cell, &mut self.all] {
            *self.part.of(parts) += passed_s;
        }
        self.part = part;
        self.since = self.since.max(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// At an instant that lies so many seconds behind the clock's start.
    fn enter(clock: &Stopwatch, part: Part, from: Instant, seconds: u32) {
        clock.0.lock().enter(part, from + SECOND * seconds);
    }

    #[test]
    fn all_time_is_of_the_part_that_was_entered_last() {
        let clock = Stopwatch::start();
        let from = clock.0.lock().since;
        enter(&clock, Part::Load, from, 2);
        enter(&clock, Part::Start, from, 12);
        // One that another thread saw a moment late takes nothing away.
        enter(&clock, Part::WarmUp, from, 11);
        enter(&clock, Part::Measure, from, 15);
        let first = std::mem::take(&mut clock.0.lock().cell);
        let told = WallParts { prepare_s: 2.0, load_s: 10.0, warmup_s: 3.0, ..WallParts::default() };
        assert_eq!(first, told);
        enter(&clock, Part::Restore, from, 20);
        let second = clock.0.lock().cell;
        assert_eq!((second.measure_s, second.total_s()), (5.0, 5.0));
        assert_eq!(clock.0.lock().all.total_s(), 20.0);
    }

    #[test]
    fn what_is_given_up_is_counted_apart() {
        let clock = Stopwatch::start();
        let from = clock.0.lock().since;
        enter(&clock, Part::Load, from, 10);
        enter(&clock, Part::Measure, from, 30);
        enter(&clock, Part::Restore, from, 90);
        clock.give_up();
        clock.expect(WallParts { measure_s: 60.0, ..WallParts::default() }, 3);
        let Times { expected, cells, took, given_up_s } = clock.all();
        assert_eq!((expected.measure_s, cells), (60.0, 3));
        assert_eq!(
            (took.load_s, took.measure_s, given_up_s),
            (20.0, 0.0, 70.0),
            "what was loaded serves again"
        );
    }

    /// The window began a minute ago, when the warm-up had taken half of one, and was to be 40 s long.
    #[test]
    fn a_measurement_is_its_warm_up_its_window_and_what_was_waited_for() {
        let clock = Stopwatch::start();
        let Some(from) = Instant::now().checked_sub(SECOND * 90) else { return };
        clock.0.lock().since = from;
        clock.0.lock().part = Part::WarmUp;
        clock.measured(Some(from + SECOND * 30), SECOND * 40);
        let WallParts { warmup_s, measure_s, restore_s, .. } = clock.of_cell();
        assert_eq!((warmup_s, measure_s), (30.0, 40.0));
        assert!(restore_s >= 20.0, "{restore_s}");
        clock.enter(Part::WarmUp);
        clock.measured(None, SECOND);
        assert_eq!(clock.of_cell().measure_s, 0.0);
    }
}
