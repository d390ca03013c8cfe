//! What tests that kill members have in common: which durability is tried, how long writes stayed away, and what is
//! left when everything is killed at once.

use std::time::Duration;

use underlay_record::NodeRole;
use underlay_systems::system::RunningSystem;
use underlay_workload::client::{FieldSelection, FieldValues, OperationOutcome};

use crate::whole_record;

/// Of master and replicas: `SYNC`, or what this variable says.
const DURABILITY_VARIABLE: &str = "UNDERLAY_KILLS_DURABILITY";
/// Small records, which JE has room for in its buffers.
pub(crate) const WRITES: usize = 200;

pub(crate) fn chosen_durability() -> String {
    std::env::var(DURABILITY_VARIABLE).unwrap_or_else(|_| "SYNC".to_owned())
}

pub(crate) fn settings(durability: &str) -> [(&str, &str); 2] {
    [("durability", durability), ("replica_durability", durability)]
}

/// How long it took after each kill until all shards took writes.
#[derive(Default)]
pub(crate) struct Times {
    of_replicas: Vec<Duration>,
    of_masters: Vec<Duration>,
}

impl Times {
    pub(crate) fn add(&mut self, role: NodeRole, duration: Duration) {
        match role {
            NodeRole::Master => self.of_masters.push(duration),
            _ => self.of_replicas.push(duration),
        }
    }

    pub(crate) fn describe(&self) -> String {
        let shown = |times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort();
            match times.last() {
                Some(longest) => format!("{:.2?} (median), {longest:.2?} (longest)", times[times.len() / 2]),
                None => "none".to_owned(),
            }
        };
        format!(
            "{} kills of replicas and {} of masters under load, all acknowledged writes are there; until every shard took writes \
             again: {} after a replica, {} after a master",
            self.of_replicas.len(),
            self.of_masters.len(),
            shown(&self.of_replicas),
            shown(&self.of_masters)
        )
    }
}

fn keys() -> impl Iterator<Item = String> {
    (0..WRITES).map(|number| format!("late{number}"))
}

/// Writes, which are all acknowledged, and kills all processes at once.
pub(crate) fn write_and_abort(store: &dyn RunningSystem) {
    let mut client = store.connect().unwrap();
    for key in keys() {
        assert_eq!(client.insert(key.as_bytes(), &whole_record(&key)), Ok(OperationOutcome::Found));
    }
    store.abort();
}

/// How many of them are there.
pub(crate) fn left(store: &dyn RunningSystem) -> usize {
    let (mut client, mut values) = (store.connect().unwrap(), FieldValues::default());
    let is_there = |key: &String| match client.read(key.as_bytes(), FieldSelection::All, &mut values) {
        Ok(OperationOutcome::Found) => values == whole_record(key),
        Ok(OperationOutcome::Missing) => false,
        other => panic!("{key}: {other:?}"),
    };
    keys().filter(is_there).count()
}
