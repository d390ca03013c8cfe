//! Disturbances of a cell on purpose, and their origin: one account for all code that shows, compares or learns from
//! records.

use schemars::JsonSchema;
use serde::Serialize;
use toml_edit::{DocumentMut, Item};

use crate::cell::{CellStatus, RunRecord};
use crate::certificate::CertificateVerdict;
use crate::disturbed_by::DisturbedBy;
use crate::node::NodeExit;
use crate::node_event::NodeEventRecord;
use crate::run::RunHeader;

/// One thing that was done to a cell. Times are modelled seconds from the start of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Disturbance {
    pub by: DisturbedBy,
    /// The device or the node.
    pub subject: String,
    pub what: String,
    /// Below zero where it began before the measurement and had ended by then; 0 where it was still there.
    pub from_s: f64,
    /// Absent when it lasted to the end.
    pub until_s: Option<f64>,
}

/// Disturbances that are listed one by one; others are counted.
const TOLD: usize = 3;

/// Several, in a sentence without its full stop: `hdd.0: slow: everything takes 10 times as long, from 1.2 s to 4.0 s`.
/// Equal ones are listed once. Who did it is said only where it was not always the same.
pub fn describe(all: &[Disturbance]) -> String {
    let mut groups: Vec<(&Disturbance, usize)> = Vec::new();
    for one in all {
        let is_same = |listed: &Disturbance| {
            listed.subject == one.subject && listed.what == one.what && listed.by == one.by
        };
        match groups.iter_mut().find(|(listed, _)| is_same(listed)) {
            Some((_, times)) => *times += 1,
            None => groups.push((one, 1)),
        }
    }
    let has_both = all.iter().any(|one| one.by != all[0].by);
    let one_in_words = |(one, times): &(&Disturbance, usize)| {
        let Disturbance { by: disturbed_by, subject, what: description, from_s, until_s } = one;
        let mut words = format!("{subject}: {description}");
        match (*times, until_s) {
            (1, Some(until_s)) => words += &format!(", from {from_s:.1} s to {until_s:.1} s"),
            (1, None) => words += &format!(", from {from_s:.1} s"),
            (several, _) => words += &format!(", {several} times, first at {from_s:.1} s"),
        }
        if has_both {
            words += &format!(", {}", disturbed_by.describe());
        }
        words
    };
    let mut words: Vec<String> = groups.iter().take(TOLD).map(one_in_words).collect();
    if groups.len() > TOLD {
        words.push(format!("and {} more", groups.len() - TOLD));
    }
    words.join("; ")
}

impl RunRecord {
    /// Disturbances that its figures may show, by the study and by hand. A fault that had ended before the measurement
    /// counts unless it [has passed](crate::EarlierFault::has_passed); where the rate was looked for, all count, since
    /// the search met them.
    pub fn disturbances(&self) -> Vec<Disturbance> {
        let by_or_hand = |disturbed_by: DisturbedBy, ended_by_hand: bool| match ended_by_hand {
            true => DisturbedBy::Hand,
            false => disturbed_by,
        };
        let mut all = Vec::new();
        for device in &self.devices {
            let subject = device.description.id.to_string();
            let counts = |earlier: &&crate::EarlierFault| self.search.is_some() || !earlier.has_passed();
            all.extend(device.earlier_faults.iter().filter(counts).map(|earlier| Disturbance {
                by: by_or_hand(earlier.by, earlier.ended_by_hand),
                subject: subject.clone(),
                what: earlier.what.clone(),
                from_s: -(earlier.ended_before_s + earlier.lasted_s),
                until_s: Some(-earlier.ended_before_s),
            }));
            all.extend(device.faults.iter().map(|fault| Disturbance {
                by: by_or_hand(fault.by.unwrap_or_default(), fault.ended_by_hand),
                subject: subject.clone(),
                what: fault.what.clone(),
                from_s: fault.t_s,
                until_s: fault.until_s,
            }));
        }
        let window_s = self.window_s();
        all.extend(self.node_events.iter().filter_map(|event| node_disturbance(event, window_s)));
        all
    }

    /// Who disturbed it, by hand before by the study; `None` where nobody did.
    pub fn disturbed_by(&self) -> Option<DisturbedBy> {
        let cause = self.disturbances().iter().map(|one| one.by).max();
        // Of a version that knows of more.
        let says_so =
            || self.certificate.as_ref().is_some_and(|seal| seal.verdict == CertificateVerdict::Disturbed);
        cause.or_else(|| says_so().then_some(DisturbedBy::Hand))
    }

    /// How long was measured, in modelled seconds; infinite where nothing tells.
    fn window_s(&self) -> f64 {
        let of_devices = self.devices.iter().map(|device| device.duration_s).reduce(f64::max);
        self.measured
            .as_ref()
            .map(|measured| measured.duration_s)
            .or(of_devices)
            .filter(|length_s| *length_s > 0.0)
            .unwrap_or(f64::INFINITY)
    }

    /// Has the certificate say what was done to the cell.
    pub fn mark_disturbed(&mut self) {
        if self.disturbed_by().is_some()
            && let Some(certificate) = &mut self.certificate
        {
            certificate.verdict = CertificateVerdict::Disturbed;
        }
    }
}

fn node_disturbance(event: &NodeEventRecord, window_s: f64) -> Option<Disturbance> {
    let away_s = event.away_s.filter(|away_s| *away_s <= window_s)?;
    let verb = match event.how {
        NodeExit::Stop => "stopped",
        NodeExit::Kill => "killed",
    };
    let is_by_study = event.event.is_some() && !event.started_by_hand;
    Some(Disturbance {
        by: if is_by_study { DisturbedBy::Study } else { DisturbedBy::Hand },
        subject: event.node.clone().unwrap_or_else(|| event.chosen.clone()),
        what: verb.to_owned(),
        from_s: away_s,
        until_s: event.served_s.or(event.process_back_s),
    })
}

/// The repetitions of a cell that its figures are made of, and those that are left out because somebody disturbed them
/// by hand. The study's own faults are part of the cell: repetitions that they missed count together with those that
/// they met. Those without figures stay with the first.
pub fn leave_out_by_hand<'a>(records: &[&'a RunRecord]) -> (Vec<&'a RunRecord>, Vec<&'a RunRecord>) {
    records.iter().copied().partition(|record| {
        record.status != CellStatus::Completed || record.disturbed_by() != Some(DisturbedBy::Hand)
    })
}

impl RunHeader {
    /// Says who asked for each fault of a record, if the version that wrote it did not. On each device, every fault of
    /// the study stands for one recorded fault of its kind. All others, and those that nothing tells apart, were made
    /// by hand.
    pub fn attribute_faults(&self, record: &mut RunRecord) {
        let is_unsaid = record.devices.iter().any(|one| one.faults.iter().any(|fault| fault.by.is_none()));
        if is_unsaid {
            let of_study = faults_of_study(&self.study_toml, &record.cell.storage);
            for device in &mut record.devices {
                let id = &device.description.id;
                let mut expected: Vec<&StudyFault> =
                    of_study.iter().filter(|fault| fault.concerns(id)).collect();
                for fault in device.faults.iter_mut().filter(|fault| fault.by != Some(DisturbedBy::Hand)) {
                    let place = expected.iter().position(|one| one.is_recorded_as(&fault.what));
                    let matching = place.map(|place| expected.remove(place));
                    if fault.by.is_none() {
                        let is_by_study = matching.is_some();
                        fault.by = Some(if is_by_study { DisturbedBy::Study } else { DisturbedBy::Hand });
                    }
                }
            }
        }
        record.mark_disturbed();
    }
}

/// The keys of `[fault]` that say what goes wrong, each with how a record begins to tell of it.
const RECORDED_AS: [(&str, &str); 8] = [
    ("slow", "slow:"),
    ("errors", "errors:"),
    ("corrupt", "corrupts:"),
    ("spikes", "spikes:"),
    ("vanish", "vanished:"),
    ("full", "full:"),
    ("ignore_flushes", "ignores flushes:"),
    ("power_cut", "power cut:"),
];

/// A `[fault]` section, as far as a record that does not say whose a fault is can be compared with it.
struct StudyFault {
    /// Its place in the storage; absent for all devices.
    device: Option<i64>,
    recorded_as: &'static str,
    /// How many times as long everything takes, if it slows.
    factor: Option<f64>,
}

impl StudyFault {
    fn read(fault: &Item) -> Option<StudyFault> {
        let (key, recorded_as) = RECORDED_AS.into_iter().find(|(key, _)| fault.get(*key).is_some())?;
        let device = match fault.get("device") {
            Some(device) => Some(device.as_integer()?),
            None => None,
        };
        let number = |item: &Item| item.as_float().or_else(|| item.as_integer().map(|whole| whole as f64));
        let factor = fault.get(key).and_then(number);
        Some(StudyFault { device, recorded_as, factor })
    }

    /// Devices of a role have no faults of the study.
    fn concerns(&self, id: &crate::DeviceId) -> bool {
        let place = || id.name.rsplit_once('.').and_then(|(_, place)| place.parse::<i64>().ok());
        id.role.is_none() && self.device.is_none_or(|device| id.server.is_none() && place() == Some(device))
    }

    fn is_recorded_as(&self, description: &str) -> bool {
        let has_factor = |factor: f64| description.contains(&format!(" {factor} times "));
        description.starts_with(self.recorded_as) && self.factor.is_none_or(has_factor)
    }
}

/// The `[fault]` sections of a study that are about a storage.
fn faults_of_study(study_toml: &str, storage: &str) -> Vec<StudyFault> {
    let Ok(study) = study_toml.parse::<DocumentMut>() else { return Vec::new() };
    let Some(faults) = study.get("fault").and_then(Item::as_table_like) else { return Vec::new() };
    let concerns = |fault: &Item| match fault.get("storage") {
        Some(named) => named.as_str() == Some(storage),
        None => true,
    };
    let of_storage = faults.iter().map(|(_, fault)| fault).filter(|fault| concerns(fault));
    of_storage.filter_map(StudyFault::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_disturbance_is_listed_once() {
        let spikes = |from_s: f64, disturbed_by: DisturbedBy| Disturbance {
            by: disturbed_by,
            subject: "hdd.0".to_owned(),
            what: "spikes".to_owned(),
            from_s,
            until_s: None,
        };
        let by_hand = |from_s| spikes(from_s, DisturbedBy::Hand);
        assert_eq!(describe(&[]), "");
        assert_eq!(describe(&[by_hand(1.25)]), "hdd.0: spikes, from 1.2 s");
        assert_eq!(describe(&[by_hand(0.0), by_hand(3.0)]), "hdd.0: spikes, 2 times, first at 0.0 s");
        let ended = Disturbance { until_s: Some(4.0), ..by_hand(1.0) };
        assert_eq!(describe(&[ended]), "hdd.0: spikes, from 1.0 s to 4.0 s");
        let both = [by_hand(0.0), spikes(1.0, DisturbedBy::Study)];
        assert_eq!(
            describe(&both),
            "hdd.0: spikes, from 0.0 s, by hand; hdd.0: spikes, from 1.0 s, by the study"
        );
        let many: Vec<Disturbance> = (0..5u32)
            .map(|number| Disturbance { subject: format!("hdd.{number}"), ..by_hand(0.0) })
            .collect();
        assert!(describe(&many).ends_with("; hdd.2: spikes, from 0.0 s; and 2 more"), "{}", describe(&many));
    }
}
