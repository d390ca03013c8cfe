//! Transitions between two looks at a system: background work that began or ended, throttling, mirrors, masters. Each
//! appears as far as the system's own gauges, layers, budgets and nodes show it.

use std::collections::BTreeMap;

use underlay_record::{LiveSample, NodeCondition, NodeRole, NodeState};

use super::event::EventKind;

/// The share of its quota's periods that a system has to wait in, twice in a row, to be called throttled.
const THROTTLED_FROM: f64 = 0.5;
/// And below which it no longer is.
const THROTTLED_TO: f64 = 0.25;
/// Work in the background that comes and goes has ended when there was none for so long.
const QUIET_S: f64 = 10.0;
/// Nodes and gauges that are followed; a feed may be anybody's.
const MAX_NODES: usize = 1_000;
const MAX_GAUGES: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct StateTransition {
    pub kind: EventKind,
    pub what: String,
    pub is_bad: bool,
}

fn new_system_transition(text: String, is_bad: bool) -> StateTransition {
    StateTransition { kind: EventKind::System, what: text, is_bad }
}

/// Gauges that are 0 or 1, and what they mean when they turn.
const STATES: [(&str, &str, &str); 2] = [
    (
        "writes_delayed",
        "writes are throttled until compactions have caught up",
        "writes are no longer throttled",
    ),
    ("writes_stopped", "writes are stopped until compactions have caught up", "writes go on again"),
];

/// State from one look to the next.
#[derive(Debug, Default)]
pub(super) struct TransitionDetector {
    is_throttled: bool,
    /// Gauges of work that goes on, and when there last was some.
    working: BTreeMap<String, f64>,
    /// By shard, as gauges tell them: the number of the node that is its master.
    masters: BTreeMap<u32, u64>,
    /// By name.
    nodes: BTreeMap<String, (Option<NodeRole>, NodeCondition)>,
}

impl TransitionDetector {
    /// Between two samples of a cell, the second of which was taken at this time.
    pub(super) fn compare_samples(
        &mut self,
        at_s: f64,
        before: Option<&LiveSample>,
        now: &LiveSample,
    ) -> Vec<StateTransition> {
        let mut turned = states(before, now);
        turned.extend(self.work(at_s, now));
        turned.extend(self.elections(now));
        turned.extend(layers(before, now));
        let share = |sample: Option<&LiveSample>| sample?.budget?.cpu_throttled_share;
        match (share(before), share(Some(now))) {
            (Some(then), Some(now)) if !self.is_throttled && then.min(now) >= THROTTLED_FROM => {
                self.is_throttled = true;
                let text =
                    format!("the CPU quota throttles it, in {:.0} % of the quota's periods", now * 100.0);
                turned.push(new_system_transition(text, false));
            }
            (then, now)
                if self.is_throttled && then.unwrap_or(0.0).max(now.unwrap_or(0.0)) < THROTTLED_TO =>
            {
                self.is_throttled = false;
                turned.push(new_system_transition("the CPU quota no longer throttles it".to_owned(), false));
            }
            _ => {}
        }
        turned
    }

    /// Gauges of work that goes on, such as compactions: many short ones in a row are one.
    fn work(&mut self, at_s: f64, now: &LiveSample) -> Vec<StateTransition> {
        let mut turned = Vec::new();
        for (name, now) in &now.gauges {
            let Some(work) = bare(name).strip_suffix("_running") else { continue };
            let text = work.replace('_', " ");
            if *now > 0.0 && (self.working.len() < MAX_GAUGES || self.working.contains_key(name)) {
                if self.working.insert(name.clone(), at_s).is_none() {
                    turned.push(new_system_transition(format!("{text} began"), false));
                }
            } else if self.working.get(name).is_some_and(|last_s| at_s - last_s >= QUIET_S) {
                self.working.remove(name);
                turned.push(new_system_transition(format!("{text} ended, {QUIET_S:.0} s ago"), false));
            }
        }
        turned
    }

    /// Masters, as far as gauges tell them.
    fn elections(&mut self, now: &LiveSample) -> Vec<StateTransition> {
        let mut turned = Vec::new();
        for (name, node) in &now.gauges {
            let shard = bare(name).strip_prefix("master_of_shard_").and_then(|shard| shard.parse().ok());
            let Some(shard) = shard.filter(|_| *node >= 1.0) else { continue };
            let node = *node as u64;
            if self.masters.len() >= MAX_GAUGES && !self.masters.contains_key(&shard) {
                continue;
            }
            if let Some(before) = self.masters.insert(shard, node).filter(|before| *before != node) {
                let text =
                    format!("node {node} was elected master of shard {shard}, which was node {before}");
                turned.push(StateTransition { kind: EventKind::Node, what: text, is_bad: false });
            }
        }
        turned
    }

    /// Since the nodes were looked at before. The run itself reports nodes that it sent away or brought back.
    pub(super) fn compare_nodes(&mut self, nodes: &[NodeState]) -> Vec<StateTransition> {
        let mut turned = Vec::new();
        for node in nodes.iter().take(MAX_NODES) {
            let now = (node.role, node.condition);
            let Some(then) = self.nodes.insert(node.name.clone(), now) else { continue };
            let shard = node.only_shard().map_or_else(String::new, |shard| format!(" of shard {shard}"));
            let mut turn = |text: String, is_bad| {
                turned.push(StateTransition { kind: EventKind::Node, what: text, is_bad })
            };
            match (then.0, now.0) {
                // The feed's gauges report it, also to readers who come later.
                _ if !self.masters.is_empty() => {}
                (then, Some(NodeRole::Master)) if then != Some(NodeRole::Master) => {
                    turn(format!("{} was elected master{shard}", node.name), false);
                }
                (Some(NodeRole::Master), Some(role)) if role != NodeRole::Master => {
                    turn(format!("{} is no longer the master{shard}, but a {role}", node.name), false);
                }
                _ => {}
            }
            if now.1 == NodeCondition::Ended && then.1 != NodeCondition::Ended {
                turn(format!("{} has ended by itself", node.name), true);
            }
        }
        turned
    }
}

/// Gauges that are 0 or 1.
fn states(before: Option<&LiveSample>, now: &LiveSample) -> Vec<StateTransition> {
    let mut turned = Vec::new();
    for (name, now) in &now.gauges {
        let then = before.and_then(|before| before.gauges.get(name)).copied().unwrap_or(0.0) > 0.0;
        let state = STATES.iter().find(|(state, ..)| *state == bare(name));
        if let Some((_, begins, ends)) = state.filter(|_| then != (*now > 0.0)) {
            turned.push(new_system_transition((if then { *ends } else { *begins }).to_owned(), !then));
        }
    }
    turned
}

/// A gauge's name without what says that it is of this moment.
pub(crate) fn bare(gauge: &str) -> &str {
    gauge.strip_prefix("current_").unwrap_or(gauge)
}

/// Mirrors and volumes that are no longer whole, or are again.
fn layers(before: Option<&LiveSample>, now: &LiveSample) -> Vec<StateTransition> {
    let mut turned = Vec::new();
    for layer in &now.layers {
        let is_same = |other: &&underlay_record::LayerActivity| {
            (other.server, &other.name) == (layer.server, &layer.name)
        };
        let then = before.and_then(|before| before.layers.iter().find(is_same));
        let before_and_now = |figure: &str| {
            let value = |layer: Option<&underlay_record::LayerActivity>| {
                layer.and_then(|layer| layer.figures.get(figure)).copied().unwrap_or(0.0)
            };
            (value(then) > 0.0, value(Some(layer)) > 0.0)
        };
        let mut turn = |text: &str, is_bad| {
            let text = format!("{}: {text}", layer.title());
            turned.push(StateTransition { kind: EventKind::Device, what: text, is_bad });
        };
        match before_and_now("members_resyncing") {
            (false, true) => turn("resync began", false),
            (true, false) => turn("resync ended", false),
            _ => {}
        }
        match before_and_now("degraded") {
            (false, true) => turn("degraded: not all copies are up to date", true),
            (true, false) => turn("all copies are up to date again", false),
            _ => {}
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use underlay_record::{LayerActivity, LiveBudget, NodeShard};

    use super::*;

    fn words(turned: Vec<StateTransition>) -> Vec<String> {
        turned.into_iter().map(|turn| turn.what).collect()
    }

    fn with_gauge(name: &str, value: f64) -> LiveSample {
        LiveSample { gauges: [(name.to_owned(), value)].into(), ..LiveSample::default() }
    }

    #[test]
    fn many_short_compactions_in_a_row_are_one_event() {
        let mut turns = TransitionDetector::default();
        let sample_at =
            |second: f64, running: f64| (second, with_gauge("current_compactions_running", running));
        let seen = [
            sample_at(1.0, 0.0),
            sample_at(2.0, 2.0),
            sample_at(3.0, 0.0),
            sample_at(4.0, 1.0),
            sample_at(5.0, 0.0),
            sample_at(13.0, 0.0),
            sample_at(14.0, 0.0),
        ];
        let transitions: Vec<(f64, String)> = seen
            .iter()
            .flat_map(|(at_s, now)| {
                let turned = words(turns.compare_samples(*at_s, None, now));
                turned.into_iter().map(move |text| (*at_s, text))
            })
            .collect();
        assert_eq!(
            transitions,
            [(2.0, "compactions began".to_owned()), (14.0, "compactions ended, 10 s ago".to_owned())]
        );
    }

    #[test]
    fn writes_that_are_held_back_are_told_in_words() {
        let (free, stopped) =
            (with_gauge("current_writes_stopped", 0.0), with_gauge("current_writes_stopped", 1.0));
        let mut turns = TransitionDetector::default();
        let turned = turns.compare_samples(1.0, Some(&free), &stopped);
        assert!(turned[0].is_bad && turned[0].what.starts_with("writes are stopped"), "{turned:?}");
        assert!(turns.compare_samples(2.0, Some(&stopped), &stopped).is_empty());
        assert_eq!(words(turns.compare_samples(3.0, Some(&stopped), &free)), ["writes go on again"]);
    }

    #[test]
    fn short_throttling_is_no_event() {
        let sample_with = |share: f64| LiveSample {
            budget: Some(LiveBudget { cpu_throttled_share: Some(share), ..LiveBudget::default() }),
            ..LiveSample::default()
        };
        let mut turns = TransitionDetector::default();
        let shares = [0.0, 0.9, 0.1, 0.8, 0.7, 0.9, 0.4, 0.1, 0.1, 0.0];
        let texts: Vec<String> = shares
            .windows(2)
            .flat_map(|pair| {
                words(turns.compare_samples(0.0, Some(&sample_with(pair[0])), &sample_with(pair[1])))
            })
            .collect();
        assert_eq!(
            texts,
            [
                "the CPU quota throttles it, in 70 % of the quota's periods",
                "the CPU quota no longer throttles it"
            ]
        );
    }

    #[test]
    fn mirror_loses_copy_and_recovers() {
        let sample_with = |degraded: f64, resyncing: f64| {
            let figures = [("degraded", degraded), ("members_resyncing", resyncing)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
            let layer = LayerActivity { name: "data.mirror".to_owned(), figures, ..LayerActivity::default() };
            LiveSample { layers: vec![layer], ..LiveSample::default() }
        };
        let mut turns = TransitionDetector::default();
        let texts: Vec<String> =
            [sample_with(0.0, 0.0), sample_with(1.0, 0.0), sample_with(1.0, 1.0), sample_with(0.0, 0.0)]
                .windows(2)
                .flat_map(|pair| words(turns.compare_samples(0.0, Some(&pair[0]), &pair[1])))
                .collect();
        assert_eq!(
            texts,
            [
                "data.mirror: degraded: not all copies are up to date",
                "data.mirror: resync began",
                "data.mirror: resync ended",
                "data.mirror: all copies are up to date again"
            ]
        );
    }

    #[test]
    fn master_reported_by_gauges_ignores_other_sources() {
        let mut turns = TransitionDetector::default();
        let texts: Vec<String> = [2.0, 2.0, 0.0, 3.0, 3.0]
            .into_iter()
            .flat_map(|node| {
                words(turns.compare_samples(0.0, None, &with_gauge("current_master_of_shard_1", node)))
            })
            .collect();
        assert_eq!(texts, ["node 3 was elected master of shard 1, which was node 2"]);
        let node = |role| NodeState {
            name: "shard1-node3".to_owned(),
            role: Some(role),
            shards: vec![NodeShard { shard: 1, role: Some(role) }],
            condition: NodeCondition::Serving,
            process: None,
        };
        assert!(turns.compare_nodes(&[node(NodeRole::Replica)]).is_empty());
        assert!(turns.compare_nodes(&[node(NodeRole::Master)]).is_empty());
    }

    #[test]
    fn election_is_reported_once() {
        let node = |name: &str, role: Option<NodeRole>, condition| NodeState {
            name: name.to_owned(),
            role,
            shards: vec![NodeShard { shard: 1, role }],
            condition,
            process: None,
        };
        let (master, replica) = (Some(NodeRole::Master), Some(NodeRole::Replica));
        use NodeCondition::{Away, Ended, Serving};
        let mut turns = TransitionDetector::default();
        assert!(turns.compare_nodes(&[node("n1", master, Serving), node("n2", replica, Serving)]).is_empty());
        let after = [node("n1", None, Away), node("n2", master, Serving)];
        assert_eq!(words(turns.compare_nodes(&after)), ["n2 was elected master of shard 1"]);
        assert!(turns.compare_nodes(&after).is_empty());
        // Nobody could be asked.
        assert!(turns.compare_nodes(&[]).is_empty());
        let ended = turns.compare_nodes(&[node("n1", replica, Serving), node("n2", master, Ended)]);
        assert_eq!(ended.len(), 1);
        assert!(ended[0].is_bad && ended[0].what == "n2 has ended by itself", "{ended:?}");
    }
}
