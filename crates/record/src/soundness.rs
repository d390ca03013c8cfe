//! Whether a measured cell is sound to conclude from: undisturbed, with a certificate that holds, and steady. The one
//! place that decides it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::cell::{CellStatus, RunRecord};
use crate::certificate::CertificateVerdict;
use crate::disturbance;
use crate::disturbed_by::DisturbedBy;
use crate::steadiness::{self, UnsteadyReason};

/// Why nothing is to be concluded from a cell.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema, thiserror::Error)]
#[serde(tag = "because", rename_all = "kebab-case")]
pub enum UnsoundReason {
    #[error("it was disturbed {}: {what}", .by.describe())]
    Disturbed { by: DisturbedBy, what: String },
    #[error("its certificate is doubtful, {check}: {finding}")]
    CheckFailed { check: String, finding: String },
    #[error("its certificate is doubtful, but names no failed check")]
    Doubtful,
    #[error("it has no certificate, so nothing confirms its measurement")]
    NotCertified,
    #[error("it was not steady: {unsteady}")]
    Unsteady {
        #[serde(flatten)]
        unsteady: UnsteadyReason,
    },
}

impl RunRecord {
    /// The verdict on this repetition: what was done to it goes before what its certificate says.
    pub fn verdict(&self) -> Option<CertificateVerdict> {
        match self.disturbed_by() {
            Some(_) => Some(CertificateVerdict::Disturbed),
            None => self.certificate.as_ref().map(|certificate| certificate.verdict),
        }
    }

    /// Whether a check of its certificate failed.
    pub fn is_doubtful(&self) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.is_doubtful())
    }

    /// Why the cell has no figures, or what was done to those that it has.
    pub fn reason(&self) -> Option<String> {
        let done = || {
            let disturbed_by = self.disturbed_by()?;
            Some(format!("disturbed {}: {}", disturbed_by.describe(), self.disturbances_in_words()))
        };
        self.status.reason().or_else(done)
    }

    pub fn disturbances_in_words(&self) -> String {
        disturbance::describe(&self.disturbances())
    }

    /// Whether nothing was done to it, and its certificate holds. Whether it was steady is for [`select_sound`] to say,
    /// which sees all repetitions.
    ///
    /// # Errors
    /// Why nothing is to be concluded from it.
    fn check_certified(&self) -> Result<(), UnsoundReason> {
        if let Some(disturbed_by) = self.disturbed_by() {
            return Err(UnsoundReason::Disturbed { by: disturbed_by, what: self.disturbances_in_words() });
        }
        let certificate = self.certificate.as_ref().ok_or(UnsoundReason::NotCertified)?;
        match certificate.failed().next() {
            Some(failed) => Err(UnsoundReason::CheckFailed {
                check: failed.name.clone(),
                finding: failed.finding.clone(),
            }),
            None if certificate.is_doubtful() => Err(UnsoundReason::Doubtful),
            None => Ok(()),
        }
    }
}

/// The completed repetitions of a cell that are sound to conclude from; those that were disturbed by hand are left out
/// where others were not.
///
/// # Errors
/// Why there are none, or why the others don't count either: one that is doubtful makes the cell doubtful.
pub fn select_sound<'a>(records: &[&'a RunRecord]) -> Result<Vec<&'a RunRecord>, UnsoundReason> {
    let is_completed = |record: &&RunRecord| record.status == CellStatus::Completed;
    let (counted, left_out) = disturbance::leave_out_by_hand(records);
    let counted: Vec<&RunRecord> = counted.into_iter().filter(is_completed).collect();
    let judged = if counted.is_empty() { &left_out } else { &counted };
    judged.iter().filter(|record| is_completed(record)).try_for_each(|record| record.check_certified())?;
    steadiness::check(&counted).map_err(|unsteady| UnsoundReason::Unsteady { unsteady })?;
    Ok(counted)
}
