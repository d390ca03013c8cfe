//! The figures of all members together.

use std::collections::BTreeMap;

use super::topology::GroupMember;
use crate::figures::{CURRENT, NodeTotals};

/// Figures of a member that say what it is; `current_masters` is their number.
pub(super) const IS_MASTER: &str = "current_masters";
pub(super) const LAST_ENTRY: &str = "current_last_entry";

/// A member's answer.
pub(super) struct MemberAnswer {
    pub member: GroupMember,
    pub process: u32,
    pub figures: BTreeMap<String, f64>,
}

/// Every member's counts.
#[derive(Default)]
pub(super) struct MemberTotals(NodeTotals);

impl MemberTotals {
    /// Sums, with how far replicas are behind and who is master. A member that has not answered now counts with what it
    /// told last, but has no current state. The answers must be newer than those before.
    pub(super) fn together(&mut self, answers: &[MemberAnswer]) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        for answer in answers {
            // An environment that was opened again counts from zero, as a process does.
            self.0.count(&answer.member.name(), answer.process, &answer.figures, &|_| false);
            for (name, &figure) in &answer.figures {
                match name.as_str() {
                    LAST_ENTRY => {}
                    "current_log_utilization_percent" => {
                        let least = figures.entry(name.clone()).or_insert(figure);
                        *least = figure.min(*least);
                    }
                    current if current.starts_with(CURRENT) => {
                        *figures.entry(name.clone()).or_insert(0.0) += figure;
                    }
                    _ => drop(figures.insert(name.clone(), 0.0)),
                }
            }
            if answer.figures.get(IS_MASTER) == Some(&1.0) {
                let name = format!("current_master_of_shard_{}", answer.member.shard);
                figures.insert(name, answer.member.node as f64);
            }
        }
        for (name, sum) in figures.iter_mut().filter(|(name, _)| !name.starts_with(CURRENT)) {
            *sum = self.0.total(name);
        }
        figures.insert("current_replica_lag_entries".to_owned(), lag_entries(answers));
        figures.insert("current_members".to_owned(), answers.len() as f64);
        figures
    }
}

/// Of the slowest member of all shards.
fn lag_entries(answers: &[MemberAnswer]) -> f64 {
    let last = |answer: &MemberAnswer| answer.figures.get(LAST_ENTRY).copied();
    let lag = answers.iter().filter_map(|one| {
        let of_shard = answers.iter().filter(|other| other.member.shard == one.member.shard);
        let newest = of_shard.filter_map(last).fold(0.0, f64::max);
        Some(newest - last(one)?)
    });
    lag.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::topology::members;
    use super::*;

    fn answer(member: &GroupMember, process: u32, figures: &[(&str, f64)]) -> MemberAnswer {
        let figures = figures.iter().map(|&(name, figure)| (name.to_owned(), figure)).collect();
        MemberAnswer { member: member.clone(), process, figures }
    }

    #[test]
    fn figures_of_members_are_put_together() {
        let all = members(2, 2, 2);
        assert_eq!((all[2].shard, all[2].node, all[2].leads), (2, 2, true));
        let own = |index: usize, last: f64, master: f64, percent: f64| {
            let utilization = ("current_log_utilization_percent", percent);
            answer(
                &all[index],
                1,
                &[(LAST_ENTRY, last), (IS_MASTER, master), utilization, ("log_fsyncs", 2.0)],
            )
        };
        let answers = [
            own(0, 10.0, 1.0, 70.0),
            own(1, 7.0, 0.0, 60.0),
            own(2, 90.0, 1.0, 80.0),
            own(3, 90.0, 0.0, 80.0),
        ];
        let figures = MemberTotals::default().together(&answers);
        for (name, expected) in [
            ("log_fsyncs", 8.0),
            ("current_masters", 2.0),
            ("current_members", 4.0),
            ("current_log_utilization_percent", 60.0),
            ("current_replica_lag_entries", 3.0),
            ("current_master_of_shard_1", 1.0),
            ("current_master_of_shard_2", 2.0),
        ] {
            assert_eq!(figures[name], expected, "{name}");
        }
        assert!(!figures.contains_key(LAST_ENTRY));
    }

    #[test]
    fn totals_never_fall() {
        let all = members(2, 1, 2);
        let mut totals = MemberTotals::default();
        let mut sums = |answers: &[MemberAnswer]| totals.together(answers);
        let own = |index: usize, process: u32, fsyncs: f64| {
            answer(&all[index], process, &[("log_fsyncs", fsyncs), ("renewed", 1.0), ("current_bytes", 5.0)])
        };
        assert_eq!(sums(&[own(0, 1, 10.0), own(1, 2, 20.0)])["log_fsyncs"], 30.0);
        // Silent: its state is unknown, and what it has counted remains.
        let silent = sums(&[own(0, 1, 12.0)]);
        assert_eq!((silent["log_fsyncs"], silent["current_bytes"]), (32.0, 5.0));
        // The second one's environment was opened again.
        let renewed = sums(&[own(0, 1, 12.0), own(1, 2, 3.0)]);
        assert_eq!((renewed["log_fsyncs"], renewed["renewed"]), (35.0, 2.0));
        // It was killed and started again, and has counted more by now than it had before. First it tells only a part.
        let renewed = sums(&[own(0, 1, 12.0), answer(&all[1], 3, &[("renewed", 0.0)])]);
        assert_eq!(renewed["renewed"], 2.0);
        assert_eq!(sums(&[own(0, 1, 12.0), own(1, 3, 4.0)])["log_fsyncs"], 39.0);
        assert_eq!(sums(&[own(0, 1, 13.0), own(1, 3, 4.0)])["log_fsyncs"], 40.0);
    }
}
