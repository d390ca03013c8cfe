//! What commands print and write.

use std::fmt::Display;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::campaign::CampaignSummary;
use crate::problem::CommandProblem;
use crate::script::{PlayedScript, ScriptReport};

/// Prints a line of a command's answer.
///
/// # Errors
/// When it can't be written.
pub fn say(words: impl Display) -> Result<(), CommandProblem> {
    writeln!(io::stdout(), "{words}").map_err(CommandProblem::Output)
}

/// Prints a message whose loss does not matter.
pub fn remark(words: impl Display) {
    let _ = writeln!(io::stderr(), "{words}");
}

/// A script or a report as JSON.
///
/// # Errors
/// When it can't be JSON: a bug.
pub fn to_text(item: &impl serde::Serialize) -> Result<String, CommandProblem> {
    serde_json::to_string_pretty(item)
        .map_err(|error| CommandProblem::Bug(format!("it can't be written as JSON: {error}")))
}

/// `1 seed`, `2 seeds`
pub fn count(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

pub(crate) fn describe<S: PlayedScript>(summary: &CampaignSummary<S>) -> String {
    format!(
        "{}, {}, {}, {} answered and {} refused, {:.1} h of virtual time, {:.1} min",
        count(summary.seeds, "seed"),
        count(summary.steps, "step"),
        if summary.crashes == 1 { "1 crash".into() } else { format!("{} crashes", summary.crashes) },
        count(summary.acknowledged, S::ACKNOWLEDGED),
        summary.refused,
        summary.virtual_s / 3600.0,
        summary.duration.as_secs_f64() / 60.0,
    )
}

pub(crate) fn describe_outcome(script: &impl PlayedScript, report: &ScriptReport) -> String {
    let seed = format!("seed {} ({})", script.seed(), count(script.step_count() as u64, "step"));
    match &report.failure {
        Some(failure) => format!("{seed} fails: {failure}"),
        None => format!("{seed} passes"),
    }
}

/// A file that is there by its name once it is complete.
pub(crate) struct OutputFile<'a> {
    pub(crate) path: &'a Path,
    file: NamedTempFile,
}

impl OutputFile<'_> {
    pub(crate) fn prepare<'a>(program: &str, path: &'a Path) -> Result<OutputFile<'a>, CommandProblem> {
        let mistake =
            |words: String| CommandProblem::Mistake(format!("--output {}: {words}", path.display()));
        if path.symlink_metadata().is_ok() {
            return Err(mistake("it already exists; name a new file".into()));
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(&format!(".{program}-"))
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| mistake(format!("a file can't be created there: {error}")))?;
        Ok(OutputFile { path, file })
    }

    pub(crate) fn write(mut self, text: &str) -> io::Result<()> {
        writeln!(self.file, "{text}")?;
        self.file.persist_noclobber(self.path).map_err(|error| error.error)?;
        Ok(())
    }
}
