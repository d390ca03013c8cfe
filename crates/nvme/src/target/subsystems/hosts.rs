//! Who may connect.

use std::collections::BTreeMap;

use crate::auth::ControllerSecrets;

/// Which hosts may connect, by their NQNs, and what each has to prove to know.
#[derive(Clone, Debug)]
pub enum AllowedHosts {
    /// All. With secrets, each has to know the same.
    Any(Option<ControllerSecrets>),
    Listed(BTreeMap<String, Option<ControllerSecrets>>),
}

impl AllowedHosts {
    /// The secrets of a host that may connect.
    pub(super) fn admit(&self, host_nqn: &str) -> Option<Option<&ControllerSecrets>> {
        match self {
            AllowedHosts::Any(secrets) => Some(secrets.as_ref()),
            AllowedHosts::Listed(hosts) => hosts.get(host_nqn).map(Option::as_ref),
        }
    }
}

/// Why a host gets no controller.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::target) enum NoController {
    /// All are taken, or the subsystem was removed.
    NoneLeft,
    /// Its host was taken off the list while it connected.
    NotListed,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::controller::{ServedSubsystem, TargetController};
    use super::super::{SubsystemConfig, SubsystemTable};
    use super::*;

    #[test]
    fn host_delisted_while_connecting_gets_no_controller() {
        let nqn = "nqn.2014-08.org.example:a";
        let hosts = AllowedHosts::Listed(BTreeMap::from([(nqn.to_owned(), None)]));
        let config =
            SubsystemConfig { nqn: "nqn.2014-08.org.example:s".into(), serial_number: "U1".into(), hosts };
        let subsystem = SubsystemTable::default().add(config).unwrap();
        let connect = || {
            subsystem.add_controller(|id| {
                TargetController::new(
                    id,
                    ServedSubsystem::Subsystem(Arc::clone(&subsystem)),
                    nqn.to_owned(),
                    [1; 16],
                    0,
                    1,
                )
            })
        };
        connect().unwrap();
        // It has been let in by then, and has no controller yet that could be ended.
        assert!(subsystem.admit(nqn).is_some());
        subsystem.set_hosts(AllowedHosts::Listed(BTreeMap::new()));
        assert_eq!(connect().err(), Some(NoController::NotListed));
    }
}
