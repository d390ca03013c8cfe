//! A run as its feed tells it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use underlay_record::{
    CellEnd, CellState, DeviceId, FeedEntry, FeedLine, LiveSample, NodeEventRecord, NodeState, PartsRecord,
    StorageRecord, TopologyRecord,
};
use underlay_report::{node_event_so_far, quantity};

use super::RunHistory;
use super::event::{EventKind, HistoryEvent};
use super::transitions::TransitionDetector;

/// Events that are kept; the oldest go.
const MAX_EVENTS: usize = 2_000;
/// Nodes that go away in a cell.
const MAX_NODE_EVENTS: usize = 200;
/// Characters of an event's or a cell's text: a feed may be anybody's.
const MAX_WORDS: usize = 2_000;

/// A cell of the plan.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct CellView {
    pub state: CellState,
    /// Seconds since 1970.
    pub began_s: Option<f64>,
    pub wall_s: Option<f64>,
    pub reason: Option<String>,
    /// The user has asked for it to be skipped, and it has not ended yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_asked: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct WatchedFeed {
    /// How many cells the plan has.
    pub planned: usize,
    pub cells: BTreeMap<u32, CellView>,
    /// How many rounds through the cells began: with each, what was known of cells counts for nothing.
    pub rounds: u32,
    pub process: Option<u32>,
    pub began_s: Option<f64>,
    pub doing: String,
    pub running: Option<u32>,
    /// Cells that are to be skipped.
    pub skips: BTreeSet<u32>,
    /// When the estimate was made, and how long all that is left takes from there.
    pub remaining: Option<(f64, f64)>,
    /// How it ended, in words; absent while it goes on.
    pub ended: Option<(f64, String)>,
    pub events: VecDeque<HistoryEvent>,
    pub history: RunHistory,
    pub storage: Option<StorageRecord>,
    pub topology: Option<TopologyRecord>,
    pub parts: Option<PartsRecord>,
    pub scratch: Option<String>,
    /// Nodes that went away in the cell that runs.
    pub node_events: Vec<NodeEventRecord>,
    pub last_s: f64,
    turns: TransitionDetector,
}

impl WatchedFeed {
    pub(crate) fn take(&mut self, line: FeedLine, bytes: usize) {
        let at_s = line.at_ms as f64 / 1e3;
        self.last_s = at_s;
        match line.entry {
            FeedEntry::Begun { process, .. } => {
                // The feed has a new file, and nothing else has happened.
                if self.process != Some(process) || self.ended.is_some() {
                    self.event(at_s, EventKind::Run, format!("started by process {process}"), false);
                    // Requests to another process are forgotten with it.
                    self.skips.clear();
                }
                self.process = Some(process);
                self.began_s.get_or_insert(at_s);
                self.ended = None;
            }
            FeedEntry::Planned { total, finished, remaining_s } => {
                self.rounds += 1;
                self.running = None;
                self.remaining = Some((at_s, remaining_s));
                if self.rounds == 1 || finished > 0 || !self.cells.is_empty() {
                    let cells = quantity::plural(total, "cell");
                    let text = match finished {
                        0 => cells,
                        _ => format!("{cells}, {finished} of them done"),
                    };
                    self.event(at_s, EventKind::Run, text, false);
                }
                self.cells.clear();
            }
            FeedEntry::Doing { what: text } => {
                self.event(at_s, EventKind::Run, text.clone(), false);
                self.doing = cut(text);
            }
            FeedEntry::Notice { what: text } => self.event(at_s, EventKind::Notice, text, false),
            FeedEntry::CellStarted { position } => {
                if self.running != Some(position) {
                    self.node_events.clear();
                    self.turns = TransitionDetector::default();
                    (self.storage, self.topology, self.parts) = (None, None, None);
                    self.event_of(at_s, EventKind::Cell, Some(position), "started".to_owned(), false);
                }
                self.running = Some(position);
                self.doing.clear();
                if (position as usize) < self.planned {
                    let cell = self.cells.entry(position).or_default();
                    *cell =
                        CellView { state: CellState::Running, began_s: Some(at_s), ..CellView::default() };
                }
            }
            FeedEntry::Ground { storage, topology, parts, scratch } => {
                (self.storage, self.topology, self.scratch) = (Some(*storage), topology, Some(scratch));
                self.parts = parts;
            }
            FeedEntry::CellEnded(end) => self.cell_ended(at_s, end),
            FeedEntry::Sample(sample) => self.sample(at_s, *sample, bytes),
            FeedEntry::Node { index, event } => {
                let text = node_event_so_far(&event);
                // Figures of it become known one after the other, and most of them are not in its words.
                let is_told =
                    self.node_events.get(index).is_some_and(|recorded| node_event_so_far(recorded) == text);
                if index <= self.node_events.len() && index < MAX_NODE_EVENTS && bytes < MAX_WORDS {
                    match self.node_events.get_mut(index) {
                        Some(recorded) => *recorded = *event,
                        None => self.node_events.push(*event),
                    }
                }
                if !is_told {
                    self.event(at_s, EventKind::Node, text, true);
                }
            }
            FeedEntry::Fault { device: DeviceId { name, .. }, what: text, began } => {
                let text =
                    if began { format!("{name}: {text}") } else { format!("{name}: no longer {text}") };
                self.event(at_s, EventKind::Device, text, began);
            }
            FeedEntry::Asked { what: text } => {
                self.event(at_s, EventKind::Run, format!("on command: {text}"), false);
            }
            FeedEntry::SkipAsked { position } => {
                if (position as usize) < self.planned && self.skips.insert(position) {
                    let text = "to be skipped, on command".to_owned();
                    self.event_of(at_s, EventKind::Cell, Some(position), text, false);
                }
            }
            FeedEntry::Ended { completed, failed, unavailable, skipped, left, problem } => {
                let text = match problem {
                    Some(problem) => format!("could not go on: {problem}"),
                    None => counted(&[
                        (completed, "measured"),
                        (failed, "failed"),
                        (skipped, "skipped on command"),
                        (unavailable, "cannot run here"),
                        (left, "left"),
                    ]),
                };
                self.running = None;
                self.doing.clear();
                for cell in self.cells.values_mut().filter(|cell| cell.state == CellState::Running) {
                    cell.state = CellState::Planned;
                }
                self.remaining = None;
                self.event(at_s, EventKind::Run, format!("ended: {text}"), false);
                self.ended = Some((at_s, text));
            }
        }
    }

    fn cell_ended(&mut self, at_s: f64, end: CellEnd) {
        let CellEnd { position, state, reason, wall_s, remaining_s } = end;
        let is_bad = !matches!(state, CellState::Completed | CellState::Skipped);
        let text = match &reason {
            Some(reason) if state == CellState::Skipped => reason.clone(),
            Some(reason) => format!("{}: {reason}", state.word()),
            None => state.word().to_owned(),
        };
        self.skips.remove(&position);
        self.event_of(at_s, EventKind::Cell, Some(position), text, is_bad);
        self.running = None;
        self.remaining = Some((at_s, remaining_s));
        if (position as usize) < self.planned {
            let cell = self.cells.entry(position).or_default();
            let wall_s = Some(wall_s).filter(|wall_s| *wall_s > 0.0);
            (cell.state, cell.reason, cell.wall_s) = (state, reason.map(cut), wall_s);
        }
    }

    fn sample(&mut self, at_s: f64, sample: LiveSample, bytes: usize) {
        let before = self.history.latest().map(|latest| &latest.sample);
        let before = before.filter(|before| before.position == sample.position);
        for turn in self.turns.compare_samples(at_s, before, &sample) {
            self.event(at_s, turn.kind, turn.what, turn.is_bad);
        }
        self.history.add(at_s, sample, bytes);
    }

    /// The nodes of the system that runs, as they are now.
    pub(crate) fn nodes_seen(&mut self, at_s: f64, nodes: &[NodeState]) {
        for turn in self.turns.compare_nodes(nodes) {
            self.event(at_s, turn.kind, turn.what, turn.is_bad);
        }
    }

    fn event(&mut self, at_s: f64, kind: EventKind, text: String, is_bad: bool) {
        self.event_of(at_s, kind, self.running, text, is_bad);
    }

    fn event_of(&mut self, at_s: f64, kind: EventKind, position: Option<u32>, text: String, is_bad: bool) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(HistoryEvent { at_s, kind, position, what: cut(text), is_bad });
    }

    /// How long all that is left takes from `now_s` on, as estimated.
    pub(crate) fn remaining_s(&self, now_s: f64) -> Option<f64> {
        let (at_s, remaining_s) = self.remaining?;
        Some((remaining_s - (now_s - at_s).max(0.0)).max(0.0))
    }
}

/// `11 measured, 1 skipped on command`: what there is none of is not told.
fn counted(counts: &[(usize, &str)]) -> String {
    let parts = counts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, outcome)| format!("{count} {outcome}")).collect();
    if parts.is_empty() { "nothing was measured".to_owned() } else { parts.join(", ") }
}

/// No more than is read.
fn cut(text: String) -> String {
    match text.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(entries: impl IntoIterator<Item = FeedEntry>) -> WatchedFeed {
        let mut watched = WatchedFeed { planned: 3, ..WatchedFeed::default() };
        for (second, entry) in (1000..).zip(entries) {
            watched.take(FeedLine { at_ms: second * 1000, entry }, 100);
        }
        watched
    }

    fn end(position: u32, state: CellState) -> FeedEntry {
        FeedEntry::CellEnded(CellEnd { position, state, reason: None, wall_s: 4.0, remaining_s: 6.0 })
    }

    fn begun(process: u32) -> FeedEntry {
        FeedEntry::Begun { version: 1, process, process_start_ticks: 1 }
    }

    fn planned(finished: usize) -> FeedEntry {
        FeedEntry::Planned { total: 3, finished, remaining_s: 9.0 }
    }

    #[test]
    fn cells_go_from_planned_to_their_end() {
        let watched = taken([
            begun(7),
            planned(0),
            FeedEntry::CellStarted { position: 2 },
            end(2, CellState::Doubtful),
            FeedEntry::CellStarted { position: 0 },
        ]);
        assert_eq!(watched.running, Some(0));
        assert_eq!(
            (watched.cells[&2].state, watched.cells[&0].state),
            (CellState::Doubtful, CellState::Running)
        );
        assert_eq!((watched.remaining_s(1004.0), watched.remaining_s(5000.0)), (Some(5.0), Some(0.0)));
        // Slower motion: everything begins again.
        let again = taken([begun(7), planned(0), end(2, CellState::Completed), planned(0)]);
        assert!(again.cells.is_empty() && again.rounds == 2);
    }

    #[test]
    fn skip_shows_in_cell_row_and_final_state() {
        let skip = |position| FeedEntry::SkipAsked { position };
        let skipped = FeedEntry::CellEnded(CellEnd {
            position: 2,
            state: CellState::Skipped,
            reason: Some("skipped on command".to_owned()),
            wall_s: 0.0,
            remaining_s: 0.0,
        });
        let started = FeedEntry::CellStarted { position: 0 };
        // Told again where a new file of the feed begins, and never of a cell that the plan does not have.
        let entries =
            [begun(7), planned(0), started.clone(), skip(2), begun(7), planned(0), skip(2), skip(9)];
        let watched = taken(entries.clone());
        assert_eq!(watched.skips, [2].into());
        let skips: Vec<_> = watched.events.iter().filter(|event| event.what.contains("skip")).collect();
        assert_eq!(skips.len(), 1, "{skips:?}");
        assert_eq!((skips[0].position, skips[0].kind), (Some(2), EventKind::Cell));
        assert!(!skips[0].what.contains(char::is_numeric), "{skips:?}");
        let ended =
            FeedEntry::Ended { completed: 2, failed: 0, unavailable: 0, skipped: 1, left: 0, problem: None };
        let watched = taken(entries.into_iter().chain([skipped, ended]));
        let cell = &watched.cells[&2];
        assert_eq!((cell.state, cell.wall_s), (CellState::Skipped, None));
        assert_eq!(watched.ended.unwrap().1, "2 measured, 1 skipped on command");
        // A process that goes on with the run does the cell again.
        assert!(taken([begun(7), planned(0), skip(2), begun(8)]).skips.is_empty());
    }

    #[test]
    fn new_file_of_same_process_is_no_event() {
        let watched = taken([begun(7), planned(0), begun(7), planned(0)]);
        let starts = watched.events.iter().filter(|event| event.what.starts_with("started")).count();
        assert_eq!(starts, 1, "{:?}", watched.events);
    }

    #[test]
    fn node_event_details_are_reported_once() {
        let away = NodeEventRecord {
            node: Some("node2".to_owned()),
            chosen: "node2".to_owned(),
            away_s: Some(4.7),
            ..NodeEventRecord::default()
        };
        let back = NodeEventRecord { start_s: Some(6.0), served_s: Some(7.0), ..away.clone() };
        let ended = NodeEventRecord { ended_s: Some(4.8), ..away.clone() };
        let node = |event: &NodeEventRecord| FeedEntry::Node { index: 0, event: Box::new(event.clone()) };
        let watched = taken([
            node(&away),
            node(&ended),
            node(&back),
            FeedEntry::CellStarted { position: 1 },
            node(&back),
        ]);
        let texts: Vec<&str> = watched.events.iter().map(|event| event.what.as_str()).collect();
        let words = [node_event_so_far(&away), node_event_so_far(&back)];
        assert_eq!(texts, [&words[0], &words[1], "started", &words[1]]);
    }

    #[test]
    fn background_work_begins_and_ends() {
        let sample_with = |running: f64| {
            let gauges = [("compactions_running".to_owned(), running), ("files".to_owned(), running)].into();
            FeedEntry::Sample(Box::new(LiveSample { gauges, ..LiveSample::default() }))
        };
        let watched = taken(
            [sample_with(0.0), sample_with(2.0), sample_with(1.0)]
                .into_iter()
                .chain((0..12).map(|_| sample_with(0.0))),
        );
        let texts: Vec<&str> = watched.events.iter().map(|event| event.what.as_str()).collect();
        assert_eq!(texts, ["compactions began", "compactions ended, 10 s ago"]);
    }

    #[test]
    fn foreign_feed_is_bounded_by_plan() {
        let end = |position| {
            FeedEntry::CellEnded(CellEnd {
                position,
                state: CellState::Failed,
                reason: Some("é".repeat(100_000)),
                wall_s: 1.0,
                remaining_s: 1.0,
            })
        };
        let watched = taken((0..50).map(end));
        assert_eq!(watched.cells.len(), 3);
        let longest = watched.events.iter().map(|event| event.what.chars().count()).max();
        assert!(longest <= Some(MAX_WORDS + 1), "{longest:?}");
    }

    #[test]
    fn events_are_bounded() {
        let watched = taken((0..3 * MAX_EVENTS).map(|index| FeedEntry::Notice { what: index.to_string() }));
        assert_eq!(watched.events.len(), MAX_EVENTS);
        assert_eq!(watched.events.back().unwrap().what, (3 * MAX_EVENTS - 1).to_string());
    }
}
