//! How long what a measurement depends on stood still while it was measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process that did not run for so long was stopped: a busy host delays a thread by less.
pub const PAUSE_WALL_S: f64 = 0.1;
/// Shorter delays than this are how a busy host schedules.
pub const DELAY_WALL_S: f64 = 0.02;
/// Pauses may take this share of the window ...
const PAUSED_TOLERANCE: f64 = 0.01;
/// ... and a single one this share of a short window, up to so many seconds: a host that is busy for a moment stops
/// nobody.
const SINGLE_PAUSE_TOLERANCE: f64 = 0.05;
const SINGLE_PAUSE_WALL_S: f64 = 0.2;
/// Shorter delays may take this share, as devices may be late by so much on average.
const DELAYED_TOLERANCE: f64 = 0.10;
/// A clock that stands still while the machine is suspended differs from one that goes on by more than this.
const SUSPENDED_WALL_S: f64 = 0.01;
/// A warm-up that stood still for longer than this share of it, and for longer than a single pause may take, did not
/// warm anything up.
const WARM_UP_TOLERANCE: f64 = 0.25;

/// The gaps that a thread of the measuring process saw by waking up every few milliseconds, on this machine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pauses {
    /// The longest time without waking up.
    pub longest_wall_s: f64,
    /// Those of 0.1 s and more, added up ...
    pub paused_wall_s: f64,
    /// ... and how many they were.
    pub pauses: u64,
    /// Those from 20 ms to 0.1 s, added up.
    pub delayed_wall_s: f64,
    /// How long the machine was suspended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suspended_wall_s: f64,
    /// How long the warm-up before the window was ...
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warm_up_wall_s: f64,
    /// ... and the pauses in it, added up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warm_up_paused_wall_s: f64,
}

/// Another process of the cell that was stopped: a server of the system, one that serves devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedProcess {
    /// As the kernel names it: `java`
    pub name: String,
    pub pid: u32,
    /// In the window, and before it as long as that left a backlog.
    pub stopped_wall_s: f64,
    /// In the warm-up before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub warm_up_stopped_wall_s: f64,
}

/// Who stood still in a cell's window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PauseRecord {
    pub window_wall_s: f64,
    /// The process that measures.
    #[serde(flatten)]
    pub own: Pauses,
    /// Other processes that were stopped or frozen. Empty where none was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<StoppedProcess>,
    /// By how much the time in which devices and CPUs were counted differs from the load generator's window; absent
    /// where that is the same by construction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_off_wall_s: Option<f64>,
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// How much of a window all pauses together may take.
pub fn allowed_wall_s(pauses: u64, window_wall_s: f64) -> f64 {
    let always_s = PAUSED_TOLERANCE * window_wall_s;
    match pauses {
        0 | 1 => always_s.max(SINGLE_PAUSE_WALL_S.min(SINGLE_PAUSE_TOLERANCE * window_wall_s)),
        _ => always_s,
    }
}

/// Why a warm-up was none, in words; `None` where it may stand.
fn warm_up_problem(subject: &str, stopped_wall_s: f64, warm_up_wall_s: f64) -> Option<String> {
    let allowed_s = (WARM_UP_TOLERANCE * warm_up_wall_s).max(SINGLE_PAUSE_WALL_S);
    (stopped_wall_s > allowed_s).then(|| {
        format!(
            "{subject} stood still for {stopped_wall_s:.2} s of the {warm_up_wall_s:.2} s of the warm-up (allowed: {allowed_s:.2} s)"
        )
    })
}

impl Pauses {
    /// Why what was measured in a window of this length says nothing, in words: stops and delays. `None` where it may
    /// stand.
    pub fn problem(&self, window_wall_s: f64) -> Option<String> {
        self.stop_problem(window_wall_s).or_else(|| self.delay_problem(window_wall_s))
    }

    /// Whether the process or the machine was stopped for too long.
    pub fn stop_problem(&self, window_wall_s: f64) -> Option<String> {
        if self.suspended_wall_s > SUSPENDED_WALL_S {
            return Some(format!(
                "the machine was suspended for {:.1} s of the measurement",
                self.suspended_wall_s
            ));
        }
        let allowed_s = allowed_wall_s(self.pauses, window_wall_s);
        if self.paused_wall_s > allowed_s {
            return Some(format!(
                "the measuring process stood still for {:.2} s of {window_wall_s:.2} s, up to {:.2} s at a time (allowed: {allowed_s:.2} s)",
                self.paused_wall_s, self.longest_wall_s
            ));
        }
        warm_up_problem("the measuring process", self.warm_up_paused_wall_s, self.warm_up_wall_s)
    }

    /// Whether the process had to wait for a CPU too often: a busy host does that, and slower motion gives it more
    /// time.
    pub fn delay_problem(&self, window_wall_s: f64) -> Option<String> {
        let share = self.delayed_share(window_wall_s);
        (share > DELAYED_TOLERANCE).then(|| {
            format!(
                "the measuring process did not run for {:.0} % of the time, in stretches of 20 ms to 0.1 s (allowed: {:.0} %)",
                share * 100.0,
                DELAYED_TOLERANCE * 100.0
            )
        })
    }

    /// The share of the window that shorter delays took.
    pub fn delayed_share(&self, window_wall_s: f64) -> f64 {
        self.delayed_wall_s / window_wall_s.max(f64::MIN_POSITIVE)
    }

    /// Takes in what another process saw of the same time: the worst of both.
    pub fn worst(self, other: Pauses) -> Pauses {
        Pauses {
            longest_wall_s: self.longest_wall_s.max(other.longest_wall_s),
            paused_wall_s: self.paused_wall_s.max(other.paused_wall_s),
            pauses: self.pauses.max(other.pauses),
            delayed_wall_s: self.delayed_wall_s.max(other.delayed_wall_s),
            suspended_wall_s: self.suspended_wall_s.max(other.suspended_wall_s),
            warm_up_wall_s: self.warm_up_wall_s.max(other.warm_up_wall_s),
            warm_up_paused_wall_s: self.warm_up_paused_wall_s.max(other.warm_up_paused_wall_s),
        }
    }
}

impl PauseRecord {
    /// Whether anything that the cell depends on was stopped. Delays of the measuring process are another matter:
    /// [`Pauses::delay_problem`].
    pub fn stop_problem(&self) -> Option<String> {
        self.own
            .stop_problem(self.window_wall_s)
            .or_else(|| self.stopped_problem())
            .or_else(|| self.edge_problem())
    }

    fn stopped_problem(&self) -> Option<String> {
        let longest =
            self.stopped.iter().max_by(|one, other| one.stopped_wall_s.total_cmp(&other.stopped_wall_s))?;
        let allowed_s = allowed_wall_s(1, self.window_wall_s);
        if longest.stopped_wall_s > allowed_s {
            return Some(format!(
                "{} (process {}) was stopped for {:.2} s of {:.2} s (allowed: {allowed_s:.2} s)",
                longest.name, longest.pid, longest.stopped_wall_s, self.window_wall_s
            ));
        }
        let in_warm_up = |process: &StoppedProcess| {
            let subject = format!("{} (process {})", process.name, process.pid);
            warm_up_problem(&subject, process.warm_up_stopped_wall_s, self.own.warm_up_wall_s)
        };
        self.stopped.iter().find_map(in_warm_up)
    }

    fn edge_problem(&self) -> Option<String> {
        let off_s = self.counted_off_wall_s?.abs();
        (off_s > PAUSE_WALL_S + DELAYED_TOLERANCE / 2.0 * self.window_wall_s).then(|| {
            format!(
                "devices and CPUs were counted over a time that differs by {off_s:.2} s from the {:.2} s of the load generator",
                self.window_wall_s
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_S: f64 = 60.0;

    #[test]
    fn busy_host_is_no_pause() {
        let delays = |each_s: f64, count: f64| Pauses {
            longest_wall_s: each_s,
            delayed_wall_s: each_s * count,
            ..Pauses::default()
        };
        assert_eq!(Pauses::default().problem(MINUTE_S), None);
        assert_eq!(delays(0.05, 40.0).problem(MINUTE_S), None, "forty times 50 ms in a minute");
        let half = delays(0.05, 600.0).problem(MINUTE_S).unwrap();
        assert!(half.contains("50 % of the time"), "stopped and continued ten times a second: {half}");
        assert_eq!(delays(0.05, 600.0).stop_problem(MINUTE_S), None, "a busy host stops nobody");
        assert_eq!(delays(0.05, 600.0).delay_problem(MINUTE_S), Some(half));
    }

    #[test]
    fn short_window_allows_a_single_short_pause() {
        let paused = |each_s: f64, pauses: u64| Pauses {
            longest_wall_s: each_s,
            paused_wall_s: each_s * pauses as f64,
            pauses,
            ..Pauses::default()
        };
        assert_eq!(paused(0.12, 1).problem(3.0), None);
        assert!(paused(0.12, 2).problem(3.0).is_some());
        assert!(paused(0.25, 1).problem(3.0).is_some(), "longer than a twentieth");
        assert!(paused(0.25, 1).problem(10.0).is_some(), "longer than 0.2 s and 1 %");
    }

    #[test]
    fn pause_counts_by_share_of_window() {
        let stopped = |seconds: f64| Pauses {
            longest_wall_s: seconds,
            paused_wall_s: seconds,
            pauses: 1,
            ..Pauses::default()
        };
        assert_eq!(stopped(0.3).problem(MINUTE_S), None);
        assert!(stopped(2.2).problem(MINUTE_S).is_some_and(|text| text.contains("2.20 s of 60.00 s")));
        assert!(stopped(0.3).problem(6.0).is_some());
        let suspended = Pauses { suspended_wall_s: 0.2, ..Pauses::default() };
        assert!(suspended.problem(1e6).is_some_and(|text| text.contains("suspended")));
    }

    #[test]
    fn paused_process_is_named() {
        let stopped = |stopped_wall_s| StoppedProcess {
            name: "java".into(),
            pid: 7,
            stopped_wall_s,
            ..StoppedProcess::default()
        };
        let record = |stopped, counted_off_wall_s| PauseRecord {
            window_wall_s: 10.0,
            stopped,
            counted_off_wall_s,
            ..PauseRecord::default()
        };
        assert_eq!(record(vec![stopped(0.05)], Some(-0.05)).stop_problem(), None);
        let found = record(vec![stopped(0.05), stopped(2.0)], None).stop_problem().unwrap();
        assert_eq!(found, "java (process 7) was stopped for 2.00 s of 10.00 s (allowed: 0.20 s)");
        let edge = record(Vec::new(), Some(-2.0)).stop_problem();
        assert!(edge.is_some_and(|text| text.contains("differs by 2.00 s")));
    }

    #[test]
    fn paused_warm_up_is_a_problem() {
        let own = |warm_up_paused_wall_s, warm_up_wall_s| Pauses {
            warm_up_wall_s,
            warm_up_paused_wall_s,
            ..Pauses::default()
        };
        assert_eq!(own(1.0, 5.0).problem(MINUTE_S), None);
        assert_eq!(own(0.15, 0.2).problem(MINUTE_S), None, "a host that is busy for a moment");
        let found = own(3.9, 5.0).problem(MINUTE_S).unwrap();
        assert!(found.contains("3.90 s of the 5.00 s of the warm-up"), "{found}");
        let engine = StoppedProcess {
            name: "engine".into(),
            pid: 9,
            warm_up_stopped_wall_s: 3.9,
            ..StoppedProcess::default()
        };
        let record = PauseRecord {
            window_wall_s: MINUTE_S,
            own: own(0.0, 5.0),
            stopped: vec![engine],
            ..PauseRecord::default()
        };
        let found = record.stop_problem().unwrap();
        assert!(found.starts_with("engine (process 9) stood still for 3.90 s of the 5.00 s"), "{found}");
    }

    #[test]
    fn worst_host_decides() {
        let one = Pauses { longest_wall_s: 1.0, paused_wall_s: 1.0, pauses: 1, ..Pauses::default() };
        let other = Pauses { longest_wall_s: 0.05, delayed_wall_s: 2.0, ..Pauses::default() };
        assert_eq!(one.worst(other), Pauses { delayed_wall_s: 2.0, ..one });
    }
}
