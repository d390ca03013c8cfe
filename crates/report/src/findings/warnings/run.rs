//! What weakens a run as a whole.

use super::{Collector, Warning};
use crate::comparison::Comparison;
use crate::load::LoadedRun;
use crate::load::origins::Origins;
use crate::quantity;

pub(super) fn about_run(loaded: &LoadedRun, comparison: &Comparison, found: &mut Collector) {
    for error in &loaded.broken {
        let remedy = "delete the file and continue the run with `underlay run --resume`";
        found.add(Warning::doubtful(format!("A record was left out: {error}")).remedy(remedy));
    }
    about_origins(loaded, found);
    if loaded.is_partial() {
        let (finished, planned) = (loaded.finished(), loaded.planned());
        let text = format!("The run is not complete: {finished} of {planned} repetitions have been recorded");
        found.add(Warning::note(text).remedy("`underlay run --resume`"));
    }
    if comparison.baseline_index().is_none() && !comparison.storages.is_empty() {
        let text = format!("No cell runs on the baseline `{}`, so there are no ratios", comparison.baseline);
        found.add(Warning::note(text).remedy("name one of the study's storages as `baseline`"));
    }
    let more = "set `repetitions = 3` under [run]";
    if loaded.run.repetitions < 2 && loaded.finished() > 0 {
        let text = match comparison.operations().next() {
            Some(_) => {
                "Each cell ran once: the intervals hold what varied within it, and not what would between runs"
            }
            None => "Each job ran once: there are no intervals, so a difference may be no more than chance",
        };
        found.add(Warning::note(text).remedy(more));
    }
    if loaded.run.repetitions == 2 {
        let text =
            "Each cell ran twice: two runs hardly show how much runs differ, so intervals may be too narrow";
        found.add(Warning::note(text).remedy(more));
    }
    if loaded.run.short {
        let text = "This is the study's short form: fewer cells or less time each than the study describes";
        found.add(Warning::note(text).remedy("run it without `--short` for the whole"));
    }
}

/// A run may be resumed after an upgrade, or on another machine: then its cells differ by more than their storage.
fn about_origins(loaded: &LoadedRun, found: &mut Collector) {
    let origins = Origins::of(loaded);
    let cells = |name: &str, count: usize| format!("{name} in {}", quantity::plural(count, "cell"));
    for (program, versions) in &origins.versions {
        if versions.len() > 1 {
            let each: Vec<String> = versions.iter().map(|(version, count)| cells(version, *count)).collect();
            let each = quantity::list(&each, NAMED);
            let text =
                format!("The run mixes versions of {program}: {each}, so cells may differ for that alone");
            found.add(Warning::doubtful(text).remedy("run the study again with one version"));
        }
    }
    if origins.machines.len() > 1 {
        let each: Vec<String> =
            origins.machines.iter().map(|(machine, count)| cells(machine, *count)).collect();
        let each = quantity::list(&each, NAMED);
        let text = format!("The run mixes machines: {each}, so cells may differ for that alone");
        found.add(Warning::doubtful(text).remedy("run the study again on one machine"));
    }
}

/// Versions or machines that a warning names; the others are counted.
const NAMED: usize = 4;
