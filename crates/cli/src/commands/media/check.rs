//! `underlay media check`: is the file sound, and does its model keep to what it says was published?

use std::path::Path;
use std::process::ExitCode;

use underlay_storage::catalogue::{CatalogueMedium, LayoutPreset};

use super::figures::{self, TOLERANCE};
use crate::exit_codes::{ExitFailure, INCOMPLETE};
use crate::output;

/// No catalogue file has reason to be longer.
pub(super) const BYTES_MAX: u64 = 16 << 20;

/// The medium that a file of the user's describes.
pub(crate) fn read(file: &Path) -> Result<CatalogueMedium, ExitFailure> {
    parse(file, &text_of(file)?)
}

fn text_of(file: &Path) -> Result<String, ExitFailure> {
    let unreadable =
        |reason: String| ExitFailure::Mistake(format!("cannot read {}: {reason}", file.display()));
    underlay_files::read_text_or_pipe(file, BYTES_MAX).map_err(|error| unreadable(error.to_string()))
}

fn parse(file: &Path, text: &str) -> Result<CatalogueMedium, ExitFailure> {
    CatalogueMedium::parse(&file.display().to_string(), text)
        .map_err(|mistakes| ExitFailure::Mistakes(mistakes.to_string()))
}

pub(crate) fn check(file: &Path) -> Result<ExitCode, ExitFailure> {
    let text = text_of(file)?;
    if is_study(&text) {
        return Err(ExitFailure::Mistake(format!(
            "{0} is a study, not a medium or layout: `underlay check {0}` checks it",
            file.display()
        )));
    }
    if is_layout(&text) {
        let layout = LayoutPreset::parse(&file.display().to_string(), &text)
            .map_err(|mistakes| ExitFailure::Mistakes(mistakes.to_string()))?;
        output::print(&format!("{}: no mistakes ({})", file.display(), layout.summary()));
        return Ok(ExitCode::SUCCESS);
    }
    let medium = parse(file, &text)?;
    let comparisons = figures::compare(&medium);
    let off = comparisons.iter().filter(|comparison| comparison.is_off()).count();
    let verdict = if off > 0 { "" } else { "no mistakes " };
    output::print(&format!("{}: {verdict}({})", file.display(), medium.summary()));
    if comparisons.is_empty() && medium.measured.is_empty() {
        output::print(
            "No [[published]] or [[measured]] figures: nothing shows whether the model behaves like the product.",
        );
        return Ok(ExitCode::SUCCESS);
    }
    if !comparisons.is_empty() {
        output::print(&format!("\n{}", figures::table(&comparisons)));
    }
    if !medium.measured.is_empty() {
        output::print(&figures::measured_table(&medium));
    }
    if off > 0 {
        // As `verify` has it: the file can be used, but its model is not what it claims to be.
        output::say(format_args!(
            "{off} of {} published figures are missed by more than {} %: calibrate [model], or correct the figures",
            comparisons.len(),
            TOLERANCE * 100.0
        ));
        return Ok(ExitCode::from(INCOMPLETE));
    }
    Ok(ExitCode::SUCCESS)
}

/// What no medium and no layout has.
fn is_study(text: &str) -> bool {
    let sections = ["[system.", "[storage.", "[workload."];
    text.lines().map(str::trim_start).any(|line| sections.iter().any(|section| line.starts_with(section)))
}

/// Layouts have devices, media have a model; a file that can't be read at all is shown as a medium.
fn is_layout(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        line.strip_prefix("devices").is_some_and(|rest| rest.trim_start().starts_with('='))
            || line.trim_end() == "[[devices]]"
    })
}
