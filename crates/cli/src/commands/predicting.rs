//! From studies and runs to what `underlay_predict` takes, for every command that predicts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underlay_predict::attribution;
use underlay_predict::simulation::OperationArrivals;
use underlay_predict::{Calibration, CellPoint, DeviceJob, MeasuredCell, PAST_MEMORY, PredictionRefusal};
use underlay_record::{Cell, NotExplained, RunExplanation, RunRecord, soundness};
use underlay_report::load::LoadedRun;
use underlay_study::fio_job::FioJob;
use underlay_study::modelled;
use underlay_study::plan::{self, CellParts, CellWork};
use underlay_study::spec::{BenchmarkSpec, Study};

use super::load_run::load;
use super::which_run::run_directory;
use crate::exit_codes::ExitFailure;
use crate::output;

/// A run with its study.
pub(super) struct SourceRun {
    pub loaded: LoadedRun,
    pub study: Study,
}

/// Cells that were measured, and those that can't be used.
pub(super) struct MeasuredSources {
    pub runs: Vec<SourceRun>,
    pub cells: Vec<Arc<MeasuredCell>>,
    /// (cell, why not)
    pub left_out: Vec<(String, PredictionRefusal)>,
}

impl MeasuredSources {
    pub(super) fn calibration(&self) -> Calibration {
        Calibration::new(self.cells.clone())
    }

    /// Cells that can't be used, those with one reason together.
    pub(super) fn left_out_in_words(&self) -> Vec<String> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for (cell, reason) in &self.left_out {
            let reason = reason.to_string();
            match groups.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, cells)) => cells.push(cell.clone()),
                None => groups.push((reason, vec![cell.clone()])),
            }
        }
        groups.into_iter().map(|(reason, cells)| format!("{}: {reason}", cells.join(", "))).collect()
    }

    /// The error of a command that needs at least one source.
    pub(super) fn missing_sources_error(&self) -> ExitFailure {
        let reasons: String = self.left_out_in_words().iter().map(|line| format!("\n  {line}")).collect();
        ExitFailure::Mistake(format!(
            "there is nothing to learn from: no request or fio cell on modelled storage was undisturbed and steady, with a certificate \
             that holds{reasons}"
        ))
    }

    /// Where the time of those cells went.
    pub(super) fn explained(&self, is_wanted: impl Fn(&str) -> bool) -> RunExplanation {
        let calibration = self.calibration();
        let mut explained = RunExplanation::default();
        let refused = |cell: &str, refusal: &PredictionRefusal| NotExplained {
            cell: cell.to_owned(),
            why: refusal.to_string(),
            unsound: match refusal {
                PredictionRefusal::Unsound { unsound } => Some(unsound.clone()),
                _ => None,
            },
        };
        for (cell, refusal) in self.left_out.iter().filter(|(cell, _)| is_wanted(cell)) {
            explained.refused.push(refused(cell, refusal));
        }
        for cell in calibration.cells().iter().filter(|cell| is_wanted(&cell.point.id)) {
            match attribution::explain(&calibration, cell) {
                Ok(explanation) => explained.cells.push(explanation),
                Err(refusal) => explained.refused.push(refused(&cell.point.id, &refusal)),
            }
        }
        explained
    }
}

/// Reads runs. `left_out` lists the parts that can't be used.
pub(super) fn read(directories: &[PathBuf]) -> Result<MeasuredSources, ExitFailure> {
    let mut sources = MeasuredSources { runs: Vec::new(), cells: Vec::new(), left_out: Vec::new() };
    for directory in directories {
        let run = source_run(directory)?;
        measured_cells(&run.loaded, &run.study, &mut sources);
        sources.runs.push(run);
    }
    Ok(sources)
}

/// The same of runs that must have something to learn from.
pub(super) fn sources(directories: &[PathBuf]) -> Result<MeasuredSources, ExitFailure> {
    let sources = read(directories)?;
    match sources.cells.is_empty() {
        true => Err(sources.missing_sources_error()),
        false => Ok(sources),
    }
}

fn source_run(directory: &Path) -> Result<SourceRun, ExitFailure> {
    let directory = run_directory(directory);
    let loaded = load(&directory)?;
    loaded.doubts().iter().for_each(output::say);
    let study = modelled::study_of_run(&loaded.run).map_err(|problem| {
        ExitFailure::Mistake(format!(
            "the study of {} can't be read any more, so nothing is known of its storages: {problem}",
            directory.display()
        ))
    })?;
    Ok(SourceRun { loaded, study })
}

/// Where the time of a run's operations went, for its report. Empty where its storages aren't modelled, or it is of
/// jobs and commands alone.
pub(super) fn explained(loaded: &LoadedRun) -> RunExplanation {
    let Ok(study) = modelled::study_of_run(&loaded.run) else { return RunExplanation::default() };
    let mut sources = MeasuredSources { runs: Vec::new(), cells: Vec::new(), left_out: Vec::new() };
    measured_cells(loaded, &study, &mut sources);
    let asks: Vec<String> = plan::entries(&study)
        .into_iter()
        .filter(|entry| match entry.asked {
            CellWork::Requests(_) => true,
            CellWork::Benchmark(benchmark) => benchmark.fio_job().is_some(),
            CellWork::Job(_) => false,
        })
        .map(|entry| entry.cell.id.clone())
        .collect();
    sources.explained(|cell| asks.iter().any(|id| id == cell))
}

fn measured_cells(loaded: &LoadedRun, study: &Study, sources: &mut MeasuredSources) {
    let mut by_cell: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
    for record in &loaded.records {
        by_cell.entry(&record.cell.id).or_default().push(record);
    }
    let mut block_bytes: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    for system in &study.systems {
        let of_system: Vec<&RunRecord> = by_cell
            .values()
            .filter(|records| records[0].cell.system == system.name)
            .filter_map(|records| soundness::select_sound(records).ok())
            .flatten()
            .collect();
        block_bytes.insert(&system.name, underlay_predict::cell::read_bytes_of(&of_system));
    }
    let mut cells = Vec::new();
    for entry in plan::entries(study) {
        let Some(records) = by_cell.get(entry.cell.id.as_str()) else { continue };
        let measured = point(study, &entry).and_then(|point| match entry.asked {
            CellWork::Benchmark(benchmark) => {
                MeasuredCell::from_job(point, records, device_job(&fio_job(benchmark)?))
            }
            _ => {
                let block_bytes = block_bytes.get(entry.cell.system.as_str()).copied().flatten();
                MeasuredCell::new(point, records, block_bytes)
            }
        });
        let usable = measured.and_then(|cell| match &cell.point.not_modelled {
            Some(layer) => Err(PredictionRefusal::Layer { what: layer.clone() }),
            None => Ok(cell),
        });
        match usable {
            Ok(cell) => cells.push(cell),
            Err(refusal) => sources.left_out.push((entry.cell.id.clone(), refusal)),
        }
    }
    underlay_predict::divide_cpu_time(&mut cells);
    sources.cells.extend(cells.into_iter().map(Arc::new));
}

/// Every cell of a study as a question, in its order.
pub(super) fn questions(study: &Study) -> Vec<(Cell, Result<CellPoint, PredictionRefusal>)> {
    plan::entries(study).into_iter().map(|entry| (entry.cell.clone(), point(study, &entry))).collect()
}

/// A cell of a study as a point.
pub(super) fn point(study: &Study, entry: &CellParts<'_>) -> Result<CellPoint, PredictionRefusal> {
    let CellParts { cell, system, workload, .. } = entry;
    let refused = |reason: &str| Err(PredictionRefusal::Work { what: reason.to_owned() });
    let (size, requests) = match (entry.asked, cell.requests()) {
        (CellWork::Requests(size), Some(requests)) => (size, requests),
        (CellWork::Benchmark(benchmark), _) => return point_of_job(study, entry, benchmark),
        _ => {
            return refused(
                "a batch job, which predict and explain do not know: the report of its run shows where the time of its tasks went",
            );
        }
    };
    let arrivals = match &requests.rate {
        underlay_record::OfferedRate::Unthrottled => OperationArrivals::Closed,
        underlay_record::OfferedRate::Steady { per_s } => match workload.arrivals {
            underlay_workload::ArrivalProcess::Constant => OperationArrivals::Even { per_s: *per_s },
            underlay_workload::ArrivalProcess::Poisson => OperationArrivals::Poisson { per_s: *per_s },
        },
        underlay_record::OfferedRate::Changing { .. } => {
            return refused("a rate that changes: only steady ones are predicted");
        }
        underlay_record::OfferedRate::Highest { .. } => {
            return refused("a search for the highest rate: only given ones are predicted");
        }
    };
    let servers = system.servers.max(1);
    // No refusal yet: the point goes on to say what can't be modelled of it.
    let (storage, not_modelled) = match modelled::storage_of(study, entry) {
        Ok(storage) => (storage, None),
        Err(layer) => (modelled::ModelledStorage::default(), Some(layer)),
    };
    // Of one server. A point is of all servers together.
    let records = study.records_here(system.share(size.records));
    let cores = study
        .machine
        .map(|machine| machine.cores.saturating_mul(servers).saturating_mul(system.nodes.max(1)));
    Ok(CellPoint {
        id: cell.id.clone(),
        system: system.kind.clone(),
        settings: modelled::settings(study, entry),
        nodes: system.nodes,
        servers,
        mix: requests.mix.clone(),
        distribution: requests.distribution.clone(),
        threads: requests.threads,
        arrivals,
        records: records as f64 * f64::from(servers),
        record_bytes: workload.record_bytes() as f64,
        memory_bytes: study.budget_here(system) as f64 * f64::from(servers),
        cores,
        storage: entry.storage.name.clone(),
        volumes: storage.volumes,
        shares_devices: storage.shares_devices,
        filled_by: Some(modelled::filling_operations(study, entry, records)),
        not_modelled,
        assumed: storage.assumed,
    })
}

/// The requests of a fio job.
fn fio_job(benchmark: &BenchmarkSpec) -> Result<FioJob, PredictionRefusal> {
    let refused = |problem: String| PredictionRefusal::Work { what: problem };
    let job = benchmark.fio_job().ok_or_else(|| {
        refused("a command: nothing tells how many of its operations are in flight at a time".to_owned())
    })?;
    if benchmark.data_bytes == 0 {
        return Err(refused("a job of fio without `data`: nothing tells how large its file is".to_owned()));
    }
    FioJob::parse(job).map_err(|problem| refused(format!("{problem}: not known well enough to be predicted")))
}

fn device_job(job: &FioJob) -> DeviceJob {
    DeviceJob { writes: job.writes, sequential: job.sequential, block_bytes: job.block_bytes as f64 }
}

/// A cell of fio's as a point: memory has no part in it.
fn point_of_job(
    study: &Study,
    entry: &CellParts<'_>,
    benchmark: &BenchmarkSpec,
) -> Result<CellPoint, PredictionRefusal> {
    let job = fio_job(benchmark)?;
    let CellParts { cell, system, .. } = entry;
    let (storage, not_modelled) = match modelled::storage_of(study, entry) {
        Ok(storage) if storage.volumes.iter().map(|volume| volume.directories.max(1)).sum::<u32>() > 1 => {
            (storage, Some("a storage of several directories: a job of fio uses only one".to_owned()))
        }
        Ok(storage) => (storage, None),
        Err(layer) => (modelled::ModelledStorage::default(), Some(layer)),
    };
    let data_bytes = study.bytes_here(benchmark.data_bytes) as f64;
    Ok(CellPoint {
        id: cell.id.clone(),
        system: system.kind.clone(),
        settings: BTreeMap::from([("job".to_owned(), job.describe())]),
        nodes: 1,
        servers: 1,
        mix: cell.workload.clone(),
        distribution: PAST_MEMORY.to_owned(),
        threads: job.at_once,
        arrivals: OperationArrivals::Closed,
        records: data_bytes / job.block_bytes as f64,
        record_bytes: job.block_bytes as f64,
        memory_bytes: data_bytes,
        cores: study.machine.map(|machine| machine.cores),
        storage: entry.storage.name.clone(),
        volumes: storage.volumes,
        shares_devices: storage.shares_devices,
        filled_by: None,
        not_modelled,
        assumed: storage.assumed,
    })
}
