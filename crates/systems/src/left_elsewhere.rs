//! Data that a system keeps off this host: objects in a store, files of an external cluster. Nobody finds these by
//! looking here, so their names are written down before the first of them is made, and struck out once they are gone.
//! The names find a killed process's leftovers.

use std::fmt;
use std::sync::Arc;

/// Writes a place down, and gives what strikes it out.
type LedgerWriter = dyn Fn(&str) -> Result<StrikeOut, String> + Send + Sync;
/// Strikes a place out.
pub type StrikeOut = Box<dyn FnOnce() + Send + Sync>;

/// Where places are written down; by default nowhere.
#[derive(Clone, Default)]
pub struct RemoteLedger(Option<Arc<LedgerWriter>>);

impl RemoteLedger {
    pub fn new(write: impl Fn(&str) -> Result<StrikeOut, String> + Send + Sync + 'static) -> RemoteLedger {
        RemoteLedger(Some(Arc::new(write)))
    }

    /// Writes down a place before anything is put there.
    ///
    /// # Errors
    /// When that is not possible: then nothing may be put there.
    pub(crate) fn enter(&self, place: &str) -> Result<LedgerEntry, String> {
        Ok(LedgerEntry(self.0.as_ref().map(|write| write(place)).transpose()?))
    }
}

/// A ledger is as good as another: what it writes down is the same.
impl PartialEq for RemoteLedger {
    fn eq(&self, _: &RemoteLedger) -> bool {
        true
    }
}

impl Eq for RemoteLedger {}

impl fmt::Debug for RemoteLedger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Ledger" } else { "no ledger" })
    }
}

/// A place that is written down. Dropping it strikes nothing out.
#[derive(Default)]
pub(crate) struct LedgerEntry(Option<StrikeOut>);

impl LedgerEntry {
    /// Nothing is there any more.
    pub(crate) fn strike_out(&mut self) {
        if let Some(strike_out) = self.0.take() {
            strike_out();
        }
    }
}

impl fmt::Debug for LedgerEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "entered" } else { "struck out" })
    }
}
