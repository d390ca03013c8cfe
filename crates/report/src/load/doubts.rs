//! Why a run as a whole is to be doubted.

use std::fmt;

use underlay_record::ReadError;

use super::origins::RunOrigins;
use super::{LoadError, LoadedRun};
use crate::quantity;

/// Something that a reader of any of a run's figures must know.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportDoubt {
    pub text: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// In one line, for plain-text output.
impl fmt::Display for ReportDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. Try: {}", self.text, self.remedy)
    }
}

impl LoadedRun {
    /// Records that were left out, and mixtures of versions and machines: every output of a run shows them.
    pub fn doubts(&self) -> Vec<ReportDoubt> {
        let left_out = self.broken.iter().map(|error| ReportDoubt {
            text: format!("A record was left out: {error}"),
            remedy: remedy(error),
        });
        left_out.chain(mixtures(self)).collect()
    }
}

/// The remedy that restores a left-out record, and keeps its good parts.
fn remedy(error: &LoadError) -> &'static str {
    match error {
        LoadError::Record { source: ReadError::Schema { .. }, .. } => {
            "use the version that it names, or move the file away and run `underlay run --resume`"
        }
        LoadError::Misplaced { .. } => {
            "give it back the name that the plan in run.json has for it, or continue the run with `underlay run --resume`"
        }
        LoadError::Read { .. } => "make the file readable",
        LoadError::Refused { .. } => {
            "look at the run's files: there are more, or larger ones, than a run has"
        }
        LoadError::Record { .. } | LoadError::NotARun(_) | LoadError::FileOfARun { .. } => {
            "continue the run with `underlay run --resume`, which runs that cell again"
        }
    }
}

/// A run may be resumed after an upgrade, or on another machine: then its cells differ by more than their storage.
fn mixtures(loaded: &LoadedRun) -> Vec<ReportDoubt> {
    let origins = RunOrigins::from_loaded(loaded);
    let each = |found: Vec<(&str, usize)>| {
        let cells = |(name, count)| format!("{name} in {}", quantity::plural(count, "cell"));
        quantity::list(&found.into_iter().map(cells).collect::<Vec<_>>(), NAMED)
    };
    let mut doubts = Vec::new();
    for (program, versions) in origins.versions {
        if versions.len() > 1 {
            let text = format!(
                "The run mixes versions of {program}: {}, so cells may differ for that reason alone",
                each(versions)
            );
            doubts.push(ReportDoubt { text, remedy: "run the study again with one version" });
        }
    }
    if origins.machines.len() > 1 {
        let machines = origins.machines.iter().map(|(machine, count)| (machine.as_str(), *count));
        let text = format!(
            "The run mixes machines: {}, so cells may differ for that reason alone",
            each(machines.collect())
        );
        doubts.push(ReportDoubt { text, remedy: "run the study again on one machine" });
    }
    doubts
}

/// Versions or machines that are named; the others are counted.
const NAMED: usize = 4;
