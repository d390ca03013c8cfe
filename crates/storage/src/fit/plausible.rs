//! Makes measurements those of one device: a disturbed probe must not make a file contradict itself.

use std::fmt::Write as _;

use super::rounding::rounded;
use crate::catalogue::contradictions::{FileStatement, check_figures, check_services, subject_of};
use crate::catalogue::{KnownContradiction, MeasuredService, ModelParameters, PublishedPerformance};

/// Parts that the fit left out or limited, for the medium's note.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FitRepairs {
    /// Points at which more was answered than the latency at queue depth 1 allows.
    held: usize,
    /// Loads and block sizes that were left out, and why.
    left_out: Vec<String>,
}

impl FitRepairs {
    /// Sentences for the note; empty when nothing had to be done.
    pub(super) fn note(&self) -> String {
        let mut note = String::new();
        match self.held {
            0 => {}
            1 => {
                note += " At 1 point more was answered than the latency at queue depth 1 allows; it is held to that."
            }
            count => {
                let _ = write!(
                    note,
                    " At {count} points more was answered than the latency at queue depth 1 allows; they are held to that."
                );
            }
        }
        for reason in &self.left_out {
            let _ = write!(note, " Left out: {reason}.");
        }
        note
    }

    /// The rate at queue depth 1 and its latency are one measurement, and the model takes its times from the
    /// distribution: the rate is that of the distribution's mean. What else used the disk while one request at a time
    /// was asked makes that mean too long; a device is then modelled as fast as it allows, and the note says so.
    pub(super) fn hold_to_littles_law(&mut self, curve: &mut [(f64, f64)], mean_us: f64) {
        for (depth, iops) in curve {
            let most = rounded(*depth * 1e6 / mean_us.max(1e-3));
            if *depth == 1.0 {
                *iops = most;
            } else if *iops > most {
                // Less than a hundredth is rounding.
                self.held += usize::from(*iops > most * 1.01);
                *iops = most;
            }
        }
    }

    /// Leaves out services that contradict another block size: a disturbance makes a probe slower, never faster.
    pub(super) fn leave_out_contradictions(&mut self, services: &mut Vec<MeasuredService>) {
        // Each turn takes one out.
        while let Some(found) = check_services(services).into_iter().next() {
            let Some(slower) = found.one.service() else { break };
            let slow = services.remove(slower);
            self.left_out.push(format!(
                "{} of {} bytes, which something disturbed ({})",
                slow.load.name(),
                slow.block_bytes,
                found.what
            ));
        }
    }
}

/// Says of measured figures what they contradict, among themselves and of the model. They stay: they were measured, and
/// a check against them shows how far the model is from each.
pub(super) fn admit_contradictions(published: &mut [PublishedPerformance], model: &ModelParameters) {
    // Each turn admits one.
    while let Some(found) = check_figures(published, Some(model)).into_iter().next() {
        let FileStatement::Published(one) = found.one else { break };
        let Some(subject) = subject_of(found.other, published, Some(model)) else { break };
        let reason = format!("as measured, though something disturbed one of them: {}", found.what);
        published[one].contradicts.push(KnownContradiction { with: subject, why: reason });
    }
}
