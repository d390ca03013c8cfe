//! Whether etcd still has what it had. Its revision alone does not tell: an etcd with older data gets as far again by
//! what others write. So this gateway writes a number of its own with each change, and the next look has to find the
//! last one; and what others have written has to be there still, or to have been changed since.

use std::collections::HashMap;

use super::etcd::{EtcdError, EtcdRow, TransactionGuard};
use super::records::{EtcdKeys, HomeRecord};

/// Observations of etcd, and our writes there.
#[derive(Default)]
pub(super) struct EtcdRollbackGuard {
    /// Our own record as etcd certainly had it: its revision and serial. `None` before this process has written one.
    known: Option<(u64, u64)>,
    /// Serials that etcd may have got since: those transactions may have happened, or may happen yet.
    possible: Vec<u64>,
    /// The rows of the last look, without those that go with leases.
    rows: HashMap<String, (u64, Vec<u8>)>,
    /// Of that look.
    revision: u64,
}

/// How etcd contradicts what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EtcdContradiction {
    /// It has lost what was there.
    WentBack(String),
    /// Somebody else writes as this gateway.
    Copied,
}

impl EtcdRollbackGuard {
    /// A transaction is to be sent that writes this serial. Returns what it has to find: one that is late finds another
    /// revision.
    pub(super) fn begin(&mut self, home: String, serial: u64) -> Option<TransactionGuard> {
        self.possible.push(serial);
        self.known.map(|(revision, _)| TransactionGuard::Unchanged(home, revision))
    }

    /// Takes the transaction's outcome.
    pub(super) fn end(&mut self, serial: u64, outcome: &Result<Option<u64>, EtcdError>) {
        match outcome {
            Ok(Some(revision)) => self.found(*revision, serial),
            Err(error) if error.may_be_done => {}
            Ok(None) | Err(_) => self.possible.retain(|possible| *possible != serial),
        }
    }

    fn found(&mut self, revision: u64, serial: u64) {
        self.known = Some((revision, serial));
        // Transactions on their way ask for the record before this one.
        self.possible.clear();
    }

    /// Holds what etcd has against all that. `home` is our own record, with its revision, and `token` is this
    /// process's.
    pub(super) fn look(
        &mut self,
        keys: &EtcdKeys,
        home: Option<&(HomeRecord, u64)>,
        token: u64,
        (rows, revision): (&[EtcdRow], u64),
    ) -> Result<(), EtcdContradiction> {
        if let Some((last_revision, serial)) = self.known {
            let lost = || {
                EtcdContradiction::WentBack(format!(
                    "this gateway's write at revision {last_revision} is missing"
                ))
            };
            let (home, home_revision) = home.ok_or_else(lost)?;
            match (*home_revision).cmp(&last_revision) {
                std::cmp::Ordering::Greater if home.token != token => return Err(EtcdContradiction::Copied),
                std::cmp::Ordering::Greater if self.possible.contains(&home.serial) => {
                    self.found(*home_revision, home.serial);
                }
                std::cmp::Ordering::Equal if (home.token, home.serial) == (token, serial) => {}
                _ => return Err(lost()),
            }
        }
        let now: HashMap<&str, &EtcdRow> = rows.iter().map(|row| (row.key.as_str(), row)).collect();
        for (key, (row_revision, value)) in &self.rows {
            // Nothing but what goes with a lease is ever removed.
            let is_so = now.get(key.as_str()).is_some_and(|row| match row.mod_revision == *row_revision {
                true => row.value == *value,
                false => row.mod_revision > self.revision,
            });
            if !is_so {
                let reason = format!("{key} differs from its value at revision {}", self.revision);
                return Err(EtcdContradiction::WentBack(reason));
            }
        }
        let lasting = rows.iter().filter(|row| !keys.is_member(&row.key));
        self.rows = lasting.map(|row| (row.key.clone(), (row.mod_revision, row.value.clone()))).collect();
        self.revision = revision;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: u64 = 77;

    /// An etcd with one of our records and another row.
    struct Etcd {
        home: Option<(HomeRecord, u64)>,
        other: (u64, &'static [u8]),
        revision: u64,
    }

    impl Etcd {
        fn look(&self, witness: &mut EtcdRollbackGuard) -> Result<(), EtcdContradiction> {
            let keys = EtcdKeys::new("/t");
            let (mod_revision, value) = self.other;
            let row = EtcdRow { key: keys.slot(7), value: value.to_vec(), mod_revision, lease: 0 };
            witness.look(&keys, self.home.as_ref(), TOKEN, (&[row], self.revision))
        }

        fn writes(&mut self, serial: u64) -> u64 {
            self.revision += 1;
            self.home = Some((HomeRecord { token: TOKEN, serial }, self.revision));
            self.revision
        }
    }

    fn went_back(outcome: Result<(), EtcdContradiction>) -> bool {
        matches!(outcome, Err(EtcdContradiction::WentBack(_)))
    }

    #[test]
    fn rollback_of_own_last_write_is_detected() {
        let (mut witness, mut etcd) =
            (EtcdRollbackGuard::default(), Etcd { home: None, other: (1, b"x"), revision: 1 });
        etcd.look(&mut witness).unwrap();
        assert_eq!(witness.begin("home".to_owned(), 5), None);
        let revision = etcd.writes(5);
        witness.end(5, &Ok(Some(revision)));
        etcd.look(&mut witness).unwrap();
        let before = etcd.home.clone();
        assert_eq!(
            witness.begin("home".to_owned(), 6),
            Some(TransactionGuard::Unchanged("home".to_owned(), 2))
        );
        let revision = etcd.writes(6);
        witness.end(6, &Ok(Some(revision)));
        // As far as it was by now, and further, without our last.
        etcd.home = before;
        for further in [0, 1000] {
            etcd.revision += further;
            assert!(went_back(etcd.look(&mut witness)));
        }
        etcd.home = None;
        assert!(went_back(etcd.look(&mut witness)));
        // Another process has begun with a copy of the directory: etcd is right.
        etcd.home = Some((HomeRecord { token: 78, serial: 9 }, etcd.revision));
        assert_eq!(etcd.look(&mut witness), Err(EtcdContradiction::Copied));
    }

    #[test]
    fn unanswered_transaction_may_be_present_or_absent() {
        let (mut witness, mut etcd) =
            (EtcdRollbackGuard::default(), Etcd { home: None, other: (1, b"x"), revision: 1 });
        witness.begin("home".to_owned(), 5);
        let revision = etcd.writes(5);
        witness.end(5, &Ok(Some(revision)));
        let unknown = Err(EtcdError::unknown("no answer"));
        for serial in [6, 7] {
            witness.begin("home".to_owned(), serial);
            witness.end(serial, &unknown);
            etcd.look(&mut witness).unwrap();
        }
        // The first of them is carried out late, so the second never is.
        etcd.writes(6);
        etcd.look(&mut witness).unwrap();
        etcd.look(&mut witness).unwrap();
        etcd.writes(7);
        assert!(went_back(etcd.look(&mut witness)));
    }

    #[test]
    fn rollback_of_other_writes_is_detected() {
        let mut etcd = Etcd { home: None, other: (5, b"new"), revision: 9 };
        let looked = |etcd: &Etcd| {
            let mut witness = EtcdRollbackGuard::default();
            etcd.look(&mut witness).unwrap();
            witness
        };
        let mut witness = looked(&etcd);
        (etcd.other, etcd.revision) = ((12, &b"newer"[..]), 12);
        etcd.look(&mut witness).unwrap();
        for (other, revision) in [((5, &b"new"[..]), 20), ((11, b"other"), 20), ((12, b"other"), 20)] {
            let mut witness = looked(&etcd);
            assert!(went_back(Etcd { home: None, other, revision }.look(&mut witness)), "{other:?}");
        }
    }
}
