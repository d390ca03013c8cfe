//! Which subsystems a target has: the discovery log page (base 5.16.1).

use std::sync::Arc;

use super::association::{HostAssociation, succeed};
use super::error::InitiatorError;
use super::exchange::{CommandExchange, CommandPayload, LostAnswer};
use super::options::ControllerOptions;
use super::queue::QueueOwner;
use super::stats::InitiatorStats;
use crate::auth::HostSecrets;
use crate::fabrics::DISCOVERY_NQN;
use crate::log_page::{DISCOVERY, DiscoveryEntry, DiscoveryHead, GetLogPage};
use crate::nqn;

/// More entries than any target of ours has; what says more is no target.
const MAX_ENTRIES: u64 = 4096;
/// The page may change while it is read, but not forever.
const MAX_ATTEMPTS: usize = 10;

/// All commands are waited for.
struct NobodyElse;

impl QueueOwner for NobodyElse {
    fn ended(&self, _association: u64, reason: String, exchanges: Vec<CommandExchange>) {
        for exchange in exchanges {
            (exchange.done)(Err(LostAnswer::Connection(reason.clone())));
        }
    }

    fn retry(&self, exchange: CommandExchange) {
        (exchange.done)(Err(LostAnswer::Gone));
    }
}

/// Asks the target at the options' address; their subsystem does not matter.
///
/// # Errors
/// When it can't be reached, or refuses.
pub fn discover(options: &ControllerOptions) -> Result<Vec<DiscoveryEntry>, InitiatorError> {
    // The controller's secret is its subsystem's: there is none for discovery.
    let secrets = options.secrets.clone().map(|secrets| HostSecrets { controller: None, ..secrets });
    let options = ControllerOptions { subsystem_nqn: DISCOVERY_NQN.to_owned(), secrets, ..options.clone() };
    options.check()?;
    let stats = Arc::new(InitiatorStats::default());
    let association = HostAssociation::establish(&options, (0, 0), &stats, false, Arc::new(NobodyElse))?;
    let outcome = read_log(&options, &association);
    association.shut_down();
    association.close();
    association.join();
    outcome
}

fn read_log(
    options: &ControllerOptions,
    association: &HostAssociation,
) -> Result<Vec<DiscoveryEntry>, InitiatorError> {
    let read = |offset_bytes: u64, length_bytes: u64| {
        let command = GetLogPage { nsid: 0, ..GetLogPage::new(DISCOVERY, offset_bytes, length_bytes) };
        let place = CommandPayload::Receive(vec![0; length_bytes as usize]);
        let operation = "reading the discovery log";
        succeed(association.admin(), command.to_command(0), place, options.connect_timeout, operation)
    };
    let head = || -> Result<DiscoveryHead, InitiatorError> {
        let page = read(0, DiscoveryHead::BYTES as u64)?.received;
        Ok(page.first_chunk().map_or(DiscoveryHead { generation: 0, entries: 0 }, DiscoveryHead::decode))
    };
    let mut before = head()?;
    for _ in 0..MAX_ATTEMPTS {
        if before.entries > MAX_ENTRIES {
            let problem = format!("it claims to have {} subsystems", before.entries);
            return Err(InitiatorError::Protocol { address: options.address.clone(), problem });
        }
        let mut entries = Vec::new();
        for number in 0..before.entries {
            let offset = DiscoveryHead::BYTES as u64 + number * DiscoveryEntry::BYTES as u64;
            let page = read(offset, DiscoveryEntry::BYTES as u64)?.received;
            let entry = page.first_chunk().map(DiscoveryEntry::decode);
            if let Some(entry) = entry.as_ref().filter(|entry| !nqn::is_usable(&entry.subsystem_nqn)) {
                let name = entry.subsystem_nqn.escape_debug();
                let problem =
                    format!("entry {number} of its discovery log has '{name}' as the name of a subsystem");
                return Err(InitiatorError::Protocol { address: options.address.clone(), problem });
            }
            entries.extend(entry);
        }
        let after = head()?;
        // The same generation before and after: the entries belong together.
        if after == before {
            return Ok(entries);
        }
        before = after;
    }
    Err(InitiatorError::TimedOut { what: "reading a discovery log that keeps changing" })
}
