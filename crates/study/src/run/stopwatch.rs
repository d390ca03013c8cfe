//! The parts of a run's time in wall time. Parts follow one another, and each moment belongs to the part entered last.

use std::time::{Duration, Instant};

use underlay_record::WallParts;
use underlay_sync::Mutex;

/// See [`WallParts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WallPart {
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

impl WallPart {
    fn seconds_mut(self, parts: &mut WallParts) -> &mut f64 {
        match self {
            WallPart::Prepare => &mut parts.prepare_s,
            WallPart::Load => &mut parts.load_s,
            WallPart::Start => &mut parts.start_s,
            WallPart::Fill => &mut parts.fill_s,
            WallPart::Settle => &mut parts.settle_s,
            WallPart::Search => &mut parts.search_s,
            WallPart::WarmUp => &mut parts.warmup_s,
            WallPart::Measure => &mut parts.measure_s,
            WallPart::Job => &mut parts.job_s,
            WallPart::AroundJobs => &mut parts.around_jobs_s,
            WallPart::Restore => &mut parts.restore_s,
        }
    }
}

/// See the module.
pub(super) struct Stopwatch(Mutex<StopwatchState>);

struct StopwatchState {
    part: WallPart,
    since: Instant,
    /// Since the last query of a cell's time.
    cell: WallParts,
    all: WallParts,
    /// The expected time of the current round, and its number of cells.
    expected: (WallParts, usize),
    given_up_s: f64,
}

/// The result of [`Stopwatch::all`].
pub(super) struct StopwatchTimes {
    pub expected: WallParts,
    pub cells: usize,
    pub took: WallParts,
    pub given_up_s: f64,
}

impl Stopwatch {
    pub(super) fn start() -> Stopwatch {
        Stopwatch(Mutex::new(StopwatchState {
            part: WallPart::Prepare,
            since: Instant::now(),
            cell: WallParts::default(),
            all: WallParts::default(),
            expected: (WallParts::default(), 0),
            given_up_s: 0.0,
        }))
    }

    pub(super) fn enter(&self, part: WallPart) {
        self.0.lock().enter(part, Instant::now());
    }

    /// Ends a measurement whose window began at this instant and should have had this length. Without a window, all of
    /// it was warm-up.
    pub(super) fn measured(&self, window: Option<Instant>, duration: Duration) {
        let mut state = self.0.lock();
        let now = Instant::now();
        if let Some(begun) = window {
            state.enter(WallPart::Measure, begun.min(now));
            // The next part waits for operations that were in flight at its end.
            state.enter(WallPart::Restore, begun.checked_add(duration).map_or(now, |end| end.min(now)));
        }
        state.enter(WallPart::Restore, now);
    }

    /// A cell's times since the last call.
    pub(super) fn take_cell(&self) -> WallParts {
        let mut state = self.0.lock();
        let part = state.part;
        state.enter(part, Instant::now());
        std::mem::take(&mut state.cell)
    }

    /// Begins a round of this many cells with this expected time.
    pub(super) fn expect(&self, parts: WallParts, cells: usize) {
        self.0.lock().expected = (parts, cells);
    }

    /// Discards earlier measurements, since motion was too fast. Loaded data sets are kept.
    pub(super) fn give_up(&self) {
        let mut state = self.0.lock();
        state.enter(WallPart::Prepare, Instant::now());
        let load_s = state.all.load_s;
        state.given_up_s += state.all.total_s() - load_s;
        (state.cell, state.all) = (WallParts::default(), WallParts { load_s, ..WallParts::default() });
    }

    pub(super) fn all(&self) -> StopwatchTimes {
        let mut state = self.0.lock();
        let part = state.part;
        state.enter(part, Instant::now());
        let (expected, cells) = state.expected;
        StopwatchTimes { expected, cells, took: state.all, given_up_s: state.given_up_s }
    }
}

impl StopwatchState {
    fn enter(&mut self, part: WallPart, instant: Instant) {
        let passed_s = instant.saturating_duration_since(self.since).as_secs_f64();
        for parts in [&mut self.cell, &mut self.all] {
            *self.part.seconds_mut(parts) += passed_s;
        }
        self.part = part;
        self.since = self.since.max(instant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// At an instant this many seconds after the clock's start.
    fn enter(clock: &Stopwatch, part: WallPart, from: Instant, seconds: u32) {
        clock.0.lock().enter(part, from + SECOND * seconds);
    }

    #[test]
    fn time_belongs_to_last_entered_part() {
        let clock = Stopwatch::start();
        let from = clock.0.lock().since;
        enter(&clock, WallPart::Load, from, 2);
        enter(&clock, WallPart::Start, from, 12);
        // An entry that another thread makes slightly late subtracts nothing.
        enter(&clock, WallPart::WarmUp, from, 11);
        enter(&clock, WallPart::Measure, from, 15);
        let first = std::mem::take(&mut clock.0.lock().cell);
        let expected = WallParts { prepare_s: 2.0, load_s: 10.0, warmup_s: 3.0, ..WallParts::default() };
        assert_eq!(first, expected);
        enter(&clock, WallPart::Restore, from, 20);
        let second = clock.0.lock().cell;
        assert_eq!((second.measure_s, second.total_s()), (5.0, 5.0));
        assert_eq!(clock.0.lock().all.total_s(), 20.0);
    }

    #[test]
    fn abandoned_time_is_counted_apart() {
        let clock = Stopwatch::start();
        let from = clock.0.lock().since;
        enter(&clock, WallPart::Load, from, 10);
        enter(&clock, WallPart::Measure, from, 30);
        enter(&clock, WallPart::Restore, from, 90);
        clock.give_up();
        clock.expect(WallParts { measure_s: 60.0, ..WallParts::default() }, 3);
        let StopwatchTimes { expected, cells, took: spent, given_up_s } = clock.all();
        assert_eq!((expected.measure_s, cells), (60.0, 3));
        assert_eq!(
            (spent.load_s, spent.measure_s, given_up_s),
            (20.0, 0.0, 70.0),
            "what was loaded serves again"
        );
    }

    /// The window began a minute ago, after half a minute of warm-up, and should last 40 s.
    #[test]
    fn measurement_is_warm_up_window_and_waits() {
        let clock = Stopwatch::start();
        let Some(from) = Instant::now().checked_sub(SECOND * 90) else { return };
        clock.0.lock().since = from;
        clock.0.lock().part = WallPart::WarmUp;
        clock.measured(Some(from + SECOND * 30), SECOND * 40);
        let WallParts { warmup_s, measure_s, restore_s, .. } = clock.take_cell();
        assert_eq!((warmup_s, measure_s), (30.0, 40.0));
        assert!(restore_s >= 20.0, "{restore_s}");
        clock.enter(WallPart::WarmUp);
        clock.measured(None, SECOND);
        assert_eq!(clock.take_cell().measure_s, 0.0);
    }
}
