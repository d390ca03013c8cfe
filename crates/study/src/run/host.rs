//! The host of cells: this machine, its programs, and its path cost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use underlay_attach::{AttachError, IdlePreventer, overhead};
use underlay_record::MachineRecord;

use super::{CellError, RunObserver, machine};
use crate::spec::Study;

/// How long the path cost is measured, before the first cell and before each further one.
const OVERHEAD_PROBE: Duration = Duration::from_millis(500);
const OVERHEAD_PROBE_AGAIN: Duration = Duration::from_millis(100);

/// The machine that cells run on, and the programs that run them.
#[derive(Clone)]
pub(super) struct HostInfo {
    pub machine: MachineRecord,
    pub versions: BTreeMap<String, String>,
}

impl HostInfo {
    /// This host, with the programs of a study's systems; `awake` if its CPUs are kept awake.
    pub(super) fn new(study: &Study, awake: Option<&IdlePreventer>) -> HostInfo {
        let versions = study.systems.iter().filter_map(|spec| {
            let on_each = study.storages.iter().map(|storage| spec.with_nodes(storage.settings_of(spec)));
            Some(underlay_systems::find(&spec.kind)?.versions_with(&on_each.collect::<Vec<_>>()))
        });
        HostInfo {
            machine: MachineRecord {
                wake_up_limit_us: awake.map(IdlePreventer::limit_us),
                ..machine::describe()
            },
            versions: machine::versions(versions.flatten()),
        }
    }

    /// Changes since the run began, in words.
    pub(super) fn changed_since(
        &self,
        machine: &MachineRecord,
        versions: &BTreeMap<String, String>,
    ) -> Option<String> {
        let names: BTreeSet<&String> = versions.keys().chain(self.versions.keys()).collect();
        let changed: Vec<&String> =
            names.into_iter().filter(|&name| versions.get(name) != self.versions.get(name)).collect();
        let has_moved = machine.hostname != self.machine.hostname;
        if changed.is_empty() && !has_moved {
            return None;
        }
        let place = |versions: &BTreeMap<String, String>, machine: &MachineRecord, is_named: bool| {
            let version = |name: &&String| {
                let version = versions.get(*name).map_or("none", String::as_str);
                if is_named { format!("{name} {version}") } else { version.to_owned() }
            };
            let versions: Vec<String> = changed.iter().map(version).collect();
            let changes =
                if changed.is_empty() { String::new() } else { format!(" with {}", versions.join(", ")) };
            let machine_change = if has_moved { format!(" on {}", machine.hostname) } else { String::new() };
            format!("{changes}{machine_change}")
        };
        Some(format!(
            "this run began{} and continues{}: finished cells keep their old records",
            place(versions, machine, true),
            // If only one program changed, its name is not needed twice.
            place(&self.versions, &self.machine, changed.len() > 1),
        ))
    }
}

/// The path cost of a modelled device.
pub(super) enum PathFloor {
    Unmeasured,
    /// Its p50 in wall time.
    WallUs(f64),
    /// It can't be measured here, with the reason.
    Unknown(String),
}

impl PathFloor {
    /// Measures it at length the first time, and briefly before every further cell. If it can't be measured here, it is
    /// not tried again.
    pub(super) fn measure_again(&mut self, observer: &dyn RunObserver) -> Result<(), CellError> {
        match self {
            PathFloor::Unmeasured => *self = PathFloor::measure(observer)?,
            PathFloor::WallUs(_) => {
                if let Ok(found) = overhead::measure(OVERHEAD_PROBE_AGAIN) {
                    *self = PathFloor::WallUs(found.path_p50_us);
                }
            }
            PathFloor::Unknown(_) => {}
        }
        Ok(())
    }

    /// Measures it, if the host has what this takes.
    fn measure(observer: &dyn RunObserver) -> Result<PathFloor, CellError> {
        observer.preparing("measuring this machine's own overhead");
        match overhead::measure(OVERHEAD_PROBE) {
            Ok(found) => Ok(PathFloor::WallUs(found.path_p50_us)),
            // It is measured on a block device, which a directory that needs no root can do without.
            Err(AttachError::Missing(missing)) => {
                let reason = format!("this machine's own overhead is unknown: {}", missing.what);
                observer.preparing(&reason);
                Ok(PathFloor::Unknown(reason))
            }
            Err(other) => Err(other.into()),
        }
    }
}

/// RFC 3339 in UTC, `ago` before now.
pub(super) fn timestamp(ago: Duration) -> String {
    let then = jiff::Timestamp::now() - ago;
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, versions: &[(&str, &str)]) -> HostInfo {
        let versions = versions.iter().map(|&(name, version)| (name.to_owned(), version.to_owned()));
        let machine = MachineRecord { hostname: name.to_owned(), ..crate::run::machine::describe() };
        HostInfo { machine, versions: versions.collect() }
    }

    #[test]
    fn resumed_run_reports_changed_host() {
        let before = host("a", &[("kernel", "6.1"), ("underlay", "0.1.0")]);
        let changes_in = |now: HostInfo| now.changed_since(&before.machine, &before.versions);
        assert_eq!(changes_in(host("a", &[("kernel", "6.1"), ("underlay", "0.1.0")])), None);
        assert_eq!(
            changes_in(host("a", &[("kernel", "6.1"), ("underlay", "0.2.0")])).unwrap(),
            "this run began with underlay 0.1.0 and continues with 0.2.0: finished cells keep their old records"
        );
        assert_eq!(
            changes_in(host("b", &[("kernel", "6.1"), ("underlay", "0.1.0")])).unwrap(),
            "this run began on a and continues on b: finished cells keep their old records"
        );
        assert_eq!(
            changes_in(host("b", &[("kernel", "6.2"), ("rocksdb", "9"), ("underlay", "0.1.0")])).unwrap(),
            "this run began with kernel 6.1, rocksdb none on a and continues with kernel 6.2, rocksdb 9 on b: \
             finished cells keep their old records"
        );
    }
}
