//! A run's progress: one line for the whole, one for the cell, one for each that ended.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use underlay_record::cell::SKIPPED_ON_COMMAND;
use underlay_record::{CellStatus, PlannedCell, RunRecord};
use underlay_report::quantity;
use underlay_study::run::{LiveCell, RunObserver};
use underlay_sync::UnsimulatedMutex;

use crate::output;
use crate::terminal_escape::harmless;

/// Draws on a terminal; writes one plain line for each ended cell elsewhere.
pub(crate) struct TerminalProgress {
    state: UnsimulatedMutex<ProgressState>,
}

struct ProgressState {
    whole: ProgressBar,
    cell: ProgressBar,
    lines: MultiProgress,
    interactive: bool,
    total: usize,
    label: String,
    /// When the run is expected to end.
    ends: Instant,
}

impl TerminalProgress {
    pub(crate) fn new(quiet: bool) -> Self {
        let interactive = !quiet && std::io::stderr().is_terminal();
        let target = if interactive { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let lines = MultiProgress::with_draw_target(target);
        let whole = lines.add(ProgressBar::new(0));
        let cell = lines.add(ProgressBar::new_spinner());
        let style =
            ProgressStyle::with_template("{bar:32} {pos} of {len} cells, {msg}").expect("a valid template");
        whole.set_style(style.progress_chars("━╸ "));
        cell.set_style(ProgressStyle::with_template("  {msg}").expect("a valid template"));
        TerminalProgress {
            state: UnsimulatedMutex::new(ProgressState {
                whole,
                cell,
                lines,
                interactive,
                total: 0,
                label: String::new(),
                ends: Instant::now(),
            }),
        }
    }

    /// Removes the live lines, so that what follows starts on a clean screen.
    pub(crate) fn finish(&self) {
        let state = self.lock();
        state.cell.finish_and_clear();
        state.whole.finish_and_clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ProgressState> {
        self.state.lock()
    }
}

impl ProgressState {
    fn expect(&mut self, remaining: Duration) {
        let now = Instant::now();
        self.ends = now.checked_add(remaining).unwrap_or(now);
        self.count_down();
    }

    fn count_down(&self) {
        let left_s = self.ends.saturating_duration_since(Instant::now()).as_secs_f64();
        let is_done = self.whole.length() == Some(self.whole.position());
        self.whole.set_message(match left_s < 1.0 {
            _ if is_done => "done".to_owned(),
            true => "longer than expected".to_owned(),
            false => format!("about {} left", quantity::duration(left_s)),
        });
    }

    fn say(&self, line: &str) {
        if self.interactive {
            // The bars cut what is longer than a line.
            let text = output::paragraph(&output::without_error_numbers(line));
            let _ = self.lines.println(harmless(&text));
        } else {
            output::say(line);
        }
    }
}

impl RunObserver for TerminalProgress {
    fn planned(&self, total: usize, finished: usize, expected: Duration) {
        let mut state = self.lock();
        state.total = total;
        state.whole.set_length(total as u64);
        state.whole.set_position(finished as u64);
        state.expect(expected);
        // Also where a bar counts down: what was expected at first stays to be read.
        let cells = quantity::plural(total, "cell");
        let wall = quantity::duration(expected.as_secs_f64());
        state.say(&match finished {
            0 => format!("{cells}, about {wall}"),
            _ if finished == total => format!("nothing left to run: {cells} done"),
            _ => format!("{cells}, {finished} of them done, about {wall} left"),
        });
    }

    fn notice(&self, message: &str) {
        self.lock().say(message);
    }

    fn preparing(&self, message: &str) {
        let mut state = self.lock();
        state.label = harmless(message).into_owned();
        state.cell.set_message(state.label.clone());
        if !state.interactive {
            state.say(message);
        }
    }

    fn slowed(&self, reason: &str, expected: Duration) {
        self.notice(&format!("{reason}; about {}", quantity::duration(expected.as_secs_f64())));
    }

    fn delayed(&self, remaining: Duration) {
        let mut state = self.lock();
        state.expect(remaining);
        let left = quantity::duration(remaining.as_secs_f64());
        state.say(&format!("about {left} left"));
    }

    fn cell_started(&self, planned: &PlannedCell, number: usize) {
        let mut state = self.lock();
        state.whole.set_position(number.saturating_sub(1) as u64);
        state.label = harmless(&label(planned)).into_owned();
        let text = format!("{}: attaching storage, starting {}", state.label, planned.cell.system);
        state.cell.set_message(harmless(&text).into_owned());
        state.count_down();
    }

    fn live(&self, live: &LiveCell) {
        let state = self.lock();
        let mut text = format!("{}: {}", state.label, live.phase);
        if let Some(progress) = live.progress {
            text.push_str(&format!(" {:.0} %", progress * 100.0));
        }
        if live.throughput_per_s > 0.0 {
            text.push_str(&format!(
                ", {} ops/s, p99 {}",
                quantity::rate(live.throughput_per_s),
                quantity::latency(live.p99_us)
            ));
        }
        if live.errors > 0 {
            text.push_str(&format!(", {} errors", live.errors));
        }
        state.cell.set_message(harmless(&text).into_owned());
        state.count_down();
    }

    fn cell_ended(&self, planned: &PlannedCell, record: &RunRecord, remaining: Duration) {
        let mut state = self.lock();
        state.whole.inc(1);
        state.expect(remaining);
        let width = state.total.to_string().len();
        let number = record.position as usize + 1;
        let head = format!("{number:>width$}/{} {}", state.total, label(planned));
        // What disturbed a cell says more than that it is doubtful.
        let mark = match (record.disturbed_by(), record.is_doubtful()) {
            (Some(disturbed_by), _) => format!("  (disturbed {})", disturbed_by.describe()),
            (None, true) => "  (doubtful)".to_owned(),
            (None, false) => String::new(),
        };
        if let (CellStatus::Completed, Some(job)) = (&record.status, &record.job) {
            state.say(&format!(
                "{head}: {}, {} here{}",
                quantity::duration(job.duration_s),
                quantity::duration(job.wall_s),
                mark
            ));
            return;
        }
        if let (CellStatus::Completed, Some(benchmark)) = (&record.status, &record.benchmark) {
            let first = benchmark.figures.first();
            let figure = first.map_or_else(String::new, |one| {
                format!("{} {} {}, ", one.name, quantity::number(one.value, 3), one.unit)
            });
            state.say(&format!("{head}: {figure}{} here{}", quantity::duration(benchmark.wall_s), mark));
            return;
        }
        state.say(&match (&record.status, &record.measured) {
            (CellStatus::Completed, Some(measured)) => {
                format!(
                    "{head}: {} ops/s, mean {}, p99 {}{}",
                    quantity::rate(measured.throughput_per_s),
                    quantity::latency(measured.latency.us.mean),
                    quantity::latency(measured.latency.us.p99),
                    mark
                )
            }
            (CellStatus::Failed { reason }, _) => format!("{head}: FAILED: {reason}"),
            (CellStatus::Unavailable { missing, remedy }, _) => {
                format!("{head}: cannot run here: {missing}; {remedy}")
            }
            (CellStatus::Skipped { failure: None }, _) => format!("{head}: {SKIPPED_ON_COMMAND}"),
            (CellStatus::Skipped { failure: Some(failure) }, _) => {
                format!("{head}: {SKIPPED_ON_COMMAND}, after it had failed: {failure}")
            }
            (CellStatus::Completed, None) => format!("{head}: no figures"),
        });
    }
}

fn label(planned: &PlannedCell) -> String {
    format!("{} on {}, {}", planned.cell.system, planned.cell.storage, planned.cell.label())
}
