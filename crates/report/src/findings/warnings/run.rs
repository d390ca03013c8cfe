//! Warnings about a run as a whole.

use super::{ReportWarning, WarningCollector};
use crate::comparison::RunComparison;
use crate::load::LoadedRun;

pub(super) fn about_run(loaded: &LoadedRun, comparison: &RunComparison, found: &mut WarningCollector) {
    for doubt in loaded.doubts() {
        found.add(ReportWarning::doubtful(doubt.text).remedy(doubt.remedy));
    }
    if loaded.is_partial() {
        let (finished, planned) = (loaded.finished(), loaded.planned());
        let text = format!("The run is not complete: {finished} of {planned} repetitions have been recorded");
        found.add(ReportWarning::note(text).remedy("`underlay run --resume`"));
    }
    // Asked here, since a limited run may lack the baseline for this reason alone.
    let is_limited = !loaded.run.limits.is_empty();
    if is_limited {
        let limits: Vec<String> = loaded.run.limits.iter().map(|limit| limit.describe()).collect();
        let text = format!("The run is limited to a part of its study: {}", limits.join("; "));
        found.add(ReportWarning::note(text).remedy("`underlay run --resume` runs the rest"));
    }
    if !loaded.run.overrides.is_empty() {
        let text = format!("The command line changed the study: {}", loaded.run.overrides.join(", "));
        found.add(ReportWarning::note(text).remedy("run it without `--set` for the study as it is written"));
    }
    if comparison.baseline_index().is_none() && !comparison.storages.is_empty() {
        let text = format!("No cell runs on the baseline `{}`, so there are no ratios", comparison.baseline);
        found.add(ReportWarning::note(text).remedy(match is_limited {
            true => "`underlay run --resume` runs it too",
            false => "name one of the study's storages as `baseline`",
        }));
    }
    let more = "set `repetitions = 3` under [run]";
    if loaded.run.repetitions < 2 && loaded.finished() > 0 {
        let text = match comparison.operations().next() {
            Some(_) => "Each cell ran once: the intervals cover variation within a run, and not between runs",
            None => "Each cell ran once: there are no intervals, so a difference may be no more than chance",
        };
        found.add(ReportWarning::note(text).remedy(more));
    }
    if loaded.run.repetitions == 2 {
        let text = "Each cell ran twice: two runs say little about how much runs vary, so intervals may be too narrow";
        found.add(ReportWarning::note(text).remedy(more));
    }
    if loaded.run.short {
        let text = "This is the study's short form: fewer cells or less time each than the study describes";
        found.add(ReportWarning::note(text).remedy("run it without `--short` for the whole study"));
    }
}
