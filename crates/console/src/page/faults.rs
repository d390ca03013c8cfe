//! Confirmations before actions on a device.

use underlay_report::quantity;

use crate::host::FaultAction;

/// Words that can be read in one way only.
pub(crate) struct FaultWords {
    pub question: String,
    /// The action's effect.
    pub what: &'static str,
    /// The button's text.
    pub does: &'static str,
}

/// Of one device, or of all of a storage.
pub(crate) fn fault_words(action: &FaultAction, device: Option<&str>) -> FaultWords {
    let (subject, possessive) = match device {
        Some(device) => (device, "its"),
        None => ("all devices", "their"),
    };
    let (question, consequence, button) = match *action {
        FaultAction::Slow { factor, for_s } => {
            let how_long = match for_s {
                Some(for_s) => format!("for {} s of modelled time", plain(for_s)),
                None => format!("until {possessive} faults are cleared"),
            };
            let factor = plain(factor);
            (
                format!("Make every request of {subject} take {factor} times as long, {how_long}?"),
                "Programs that use it notice at once. In a run, the cell's record notes it, and the cell no longer measures undisturbed storage.",
                "Slow it down",
            )
        }
        FaultAction::Vanish => (
            format!("Unplug {subject}?"),
            "Every request fails at once, including those in flight. XFS shuts down for good as soon as its journal can't be written, and ext4 goes read-only: \
             plugging the device in again restores its data, but not the mounted file system. A system without another copy then fails, and so does its cell in a run. \
             A mirror or a pool goes on with its other copies.",
            "Unplug it",
        ),
        FaultAction::PowerCut => (
            format!("Cut the power of {subject}?"),
            "Writes that were not flushed may be lost. The device answers nothing until its power is back; a pool goes on with its other copies. In a run it is in the record of the cell.",
            "Cut the power",
        ),
        FaultAction::Return => (
            format!("Plug in {subject} again, with power?"),
            "The device has its data again. A file system that shut down stays down until it is remounted. Other faults remain.",
            "Plug it in",
        ),
        FaultAction::Clear => (
            format!("Clear all faults of {subject}?"),
            "The device is again as fast and as sound as its model. Earlier faults stay in the cell's record.",
            "Clear them",
        ),
    };
    FaultWords { question, what: consequence, does: button }
}

/// `10`, `2.5`.
fn plain(value: f64) -> String {
    quantity::without_last_zeros(&quantity::number(value, 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_question_names_amount_and_duration() {
        let slow = |for_s| fault_words(&FaultAction::Slow { factor: 10.0, for_s }, Some("gp3.0")).question;
        assert_eq!(
            slow(None),
            "Make every request of gp3.0 take 10 times as long, until its faults are cleared?"
        );
        assert_eq!(
            slow(Some(2.5)),
            "Make every request of gp3.0 take 10 times as long, for 2.5 s of modelled time?"
        );
        assert!(fault_words(&FaultAction::Vanish, None).what.contains("XFS shuts down for good"));
    }
}
