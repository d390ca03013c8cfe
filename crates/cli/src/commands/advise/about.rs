//! Which of the measured cells advice is about.

use underlay_config::units;
use underlay_predict::{Calibration, CellPoint};

use crate::arguments::AboutArguments;
use crate::commands::predicting::{self, MeasuredSources, SourceRun};
use crate::exit_codes::ExitFailure;

/// The question, filled in from the runs.
pub(super) struct AdviceSubject {
    pub sources: MeasuredSources,
    pub calibration: Calibration,
    /// Which of the runs it is from.
    pub run: usize,
    /// A measured cell of the system and mix, with the data that was asked for.
    pub point: CellPoint,
    /// Unscaled.
    pub data_bytes: f64,
    pub data_scale: f64,
    /// As the study names the system and the workload.
    pub system_name: String,
    pub workload_name: String,
}

impl AdviceSubject {
    pub(super) fn source(&self) -> &SourceRun {
        &self.sources.runs[self.run]
    }

    /// `rocksdb, mix a, uniform`
    pub(super) fn describe(&self) -> String {
        format!("{}, mix {}, {}", self.system_name, self.point.mix, self.point.distribution)
    }
}

/// A size as it is typed.
pub(super) fn bytes(option: &str, text: &str) -> Result<u64, ExitFailure> {
    let bytes = units::parse_bytes(text)
        .map_err(|problem| ExitFailure::Mistake(format!("{option} {text}: {problem}")))?;
    match bytes {
        0 => Err(ExitFailure::Mistake(format!("{option} {text}: expected more than nothing"))),
        bytes => Ok(bytes),
    }
}

pub(super) fn about(arguments: &AboutArguments) -> Result<AdviceSubject, ExitFailure> {
    let rate = arguments.rate;
    if !(1e-3..=1e9).contains(&rate) {
        return Err(ExitFailure::Mistake(format!(
            "--rate {rate}: expected operations per second, as in 20000"
        )));
    }
    let data_bytes = arguments.data.as_ref().map(|text| bytes("--data", text)).transpose()?;
    let sources = predicting::sources(&arguments.from)?;
    let mut found = None;
    let mut known_names: [Vec<String>; 3] = Default::default();
    for (run, source) in sources.runs.iter().enumerate() {
        for (cell, point) in predicting::questions(&source.study) {
            let Ok(point) = point else { continue };
            // A cell that was not measured has nothing to advise from.
            if !sources.cells.iter().any(|measured| measured.point == point) {
                continue;
            }
            let names = [&cell.system, &point.mix, &point.distribution];
            let asked = [&arguments.system, &arguments.mix, &arguments.distribution];
            for (group, name) in known_names.iter_mut().zip(names) {
                if !group.contains(name) {
                    group.push(name.clone());
                }
            }
            let fits = names
                .iter()
                .zip(asked)
                .all(|(name, asked)| asked.as_ref().is_none_or(|asked| asked == *name));
            // It goes on after the first: the refusal below lists all names.
            if fits && found.is_none() {
                found = Some((run, cell, point));
            }
        }
    }
    let Some((run, cell, measured)) = found else {
        let [systems, mixes, distributions] = known_names.map(|names| names.join(", "));
        return Err(ExitFailure::Mistake(format!(
            "no measured cell is of that system, mix and distribution together: the runs have systems {systems}, mixes {mixes}, \
             distributions {distributions}"
        )));
    };
    let study = &sources.runs[run].study;
    let data_scale = study.scale.data;
    let data_bytes = data_bytes.map_or(measured.data_bytes() * data_scale, |bytes| bytes as f64);
    // `--data` is of the modelled machine, and a point is at the study's scale.
    let records = (data_bytes / data_scale / measured.record_bytes).max(1.0);
    let calibration = sources.calibration();
    Ok(AdviceSubject {
        calibration,
        run,
        point: CellPoint { records, ..measured },
        data_bytes,
        data_scale,
        system_name: cell.system,
        workload_name: cell.workload,
        sources,
    })
}
