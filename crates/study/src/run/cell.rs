//! One cell, once: storage attached, the system started inside its budget, driven, measured, cleared away.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use underlay_attach::{Attached, MemoryBudget, Registry, choice, overhead};
use underlay_record::{
    Cell, CellStatus, Machine, Measured, MemoryRecord, PlannedCell, RunRecord, SCHEMA_VERSION, Scale,
};
use underlay_storage::stack::Pace;
use underlay_systems::system::{Memory, Running, Settings, StoragePaths, System};
use underlay_workload::Aftermath;

use super::certificate::{Evidence, certify};
use super::dataset::{Datasets, copy_onto_paths};
use super::drive::{self, Hooks};
use super::{CellError, Observer, check_stop, faults, images, schedule, storage};
use crate::plan;
use crate::spec::{Cache, FaultSpec, StorageSource, StorageSpec, Study, SystemSpec, WorkloadSpec};

/// A client waits this long for an answer, in modelled time: stretched by slow motion.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the path's own cost is measured, once a run.
const OVERHEAD_PROBE: Duration = Duration::from_millis(500);
/// Warm caches: the mix runs in fast-forward until each page of the budget could have been read this often. A record
/// mostly lies across two pages, so once is enough.
const CACHE_FILLS: u64 = 1;
const PAGE_BYTES: u64 = 4096;
const MIN_FILL_OPERATIONS: u64 = 1_000;
/// Compaction of what the fill wrote may take this long.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// A cell with everything that the study says of it, scaled to this machine.
pub struct CellPlan<'a> {
    pub study: &'a Study,
    pub planned: &'a PlannedCell,
    pub position: u32,
    pub system: &'a SystemSpec,
    pub storage: &'a StorageSpec,
    pub workload: &'a WorkloadSpec,
    pub scale: Scale,
    pub seed: u64,
    pub records_here: u64,
    pub data_bytes_here: u64,
    pub budget_bytes: u64,
    pub dataset_key: String,
}

impl<'a> CellPlan<'a> {
    /// `None` when the study has no such cell.
    pub fn new(study: &'a Study, planned: &'a PlannedCell, position: u32) -> Option<Self> {
        let entry = plan::entries(study).into_iter().find(|entry| entry.cell.id == planned.cell.id)?;
        let records_here = study.records_here(planned.cell.records);
        Some(CellPlan {
            study,
            planned,
            position,
            system: entry.system,
            storage: entry.storage,
            workload: entry.workload,
            scale: study.scale,
            // Every storage gets the same order of requests; repetitions get one each.
            seed: study.run.seed.wrapping_add(u64::from(planned.repetition)),
            records_here,
            data_bytes_here: records_here * entry.workload.record_bytes(),
            budget_bytes: study.bytes_here(entry.system.memory_bytes),
            dataset_key: plan::dataset_key(study, &planned.cell),
        })
    }

    pub fn cell(&self) -> &Cell {
        &self.planned.cell
    }

    /// `load` begins with an empty storage, everything else with the loaded data.
    fn begins_empty(&self) -> bool {
        self.cell().mix == "load"
    }
}

/// The settings that a cell's system is started with.
pub fn settings(plan: &CellPlan<'_>) -> Settings {
    Settings {
        values: plan.system.settings.clone(),
        fields: plan.workload.fields,
        field_bytes: plan.workload.field_bytes,
        timeout: CLIENT_TIMEOUT.mul_f64(plan.scale.time),
    }
}

/// The machine that cells run on, and the programs that they run by.
pub struct Here {
    pub machine: Machine,
    pub versions: BTreeMap<String, String>,
}

/// What is the same for all cells of a run.
pub struct Bench {
    here: Here,
    registry: Registry,
    work: PathBuf,
    /// The path's own p50 in wall microseconds: `None` until measured.
    floor_wall_us: Option<f64>,
    /// The generator's highest rate on this machine, in modelled operations per second, by what is asked.
    ceilings: HashMap<String, f64>,
}

/// What a measured cell leaves besides the generator's figures.
struct Observed {
    measured: Measured,
    devices: Vec<underlay_record::DeviceActivity>,
    layers: Vec<underlay_record::LayerActivity>,
    figures: BTreeMap<String, f64>,
    settings: BTreeMap<String, String>,
    memory_enforced_by: Option<&'static str>,
    memory_peak_bytes: Option<u64>,
    attachment: &'static str,
    aftermath: Aftermath,
    warnings: Vec<String>,
}

impl Bench {
    pub fn new(here: Here, registry: Registry, work: &Path) -> Self {
        Bench { here, registry, work: work.to_path_buf(), floor_wall_us: None, ceilings: HashMap::new() }
    }

    /// Runs a cell and gives its record; what it made is gone when this returns, however it returns.
    pub fn run(
        &mut self,
        plan: &CellPlan<'_>,
        datasets: &mut Datasets,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<RunRecord, CellError> {
        let system = underlay_systems::find(&plan.system.kind).ok_or_else(|| CellError::Unavailable {
            missing: format!("the system '{}'", plan.system.kind),
            remedy: format!("this program knows {}", underlay_systems::names().join(", ")),
        })?;
        let modelled = matches!(plan.storage.source, StorageSource::Modelled { .. });
        if modelled {
            choice::choose(plan.study.run.attachment.as_deref())?;
            if self.floor_wall_us.is_none() {
                observer.preparing("measuring this machine's own overhead");
                self.floor_wall_us = Some(overhead::measure(OVERHEAD_PROBE)?.path_p50_us);
            }
        }
        let folder = self.work.join("cell");
        let _folder = CellFolder::make(&folder)?;
        let source = if plan.begins_empty() {
            None
        } else if modelled {
            Some(datasets.images(plan, system, observer, stop)?)
        } else {
            Some(datasets.files(plan, system, observer, stop)?)
        };
        check_stop(stop)?;
        observer.cell_started(plan.planned, plan.position as usize + 1);
        let begun = Instant::now();
        let faults = faults::note(&faults::concerning(plan.study, plan.storage));
        let mut observed = match self.measure(plan, system, source.as_deref(), &folder, observer, stop) {
            Err(CellError::Failed(reason)) => {
                let told = faults.map_or_else(String::new, |faults| format!("\n{faults}"));
                return Err(CellError::Failed(reason + &told));
            }
            other => other?,
        };
        observed.warnings.extend(faults);
        let ceiling_per_s = self.ceiling(plan)?;
        let mut record = self.record(plan, CellStatus::Completed, begun.elapsed());
        let certificate = certify(&Evidence {
            devices: &observed.devices,
            measured: &observed.measured,
            floor_us: self.floor_wall_us.filter(|_| modelled).map(|us| us / plan.scale.time),
            aftermath: &observed.aftermath,
            memory_enforced: observed.memory_enforced_by.is_some(),
            ceiling_per_s: Some(ceiling_per_s),
            open_loop: plan.cell().rate_per_s.is_some(),
            time_scale: plan.scale.time,
        });
        record.storage = storage::describe(plan.storage, observed.attachment);
        if let Some(group) = observed.memory_enforced_by {
            record.memory.enforced_by = group.to_owned();
        }
        record.memory.peak_bytes = observed.memory_peak_bytes;
        record.settings = observed.settings;
        record.system_figures = observed.figures;
        record.devices = observed.devices;
        record.layers = observed.layers;
        for (activity, description) in record.devices.iter_mut().zip(&record.storage.devices) {
            activity.description = description.clone();
        }
        record.warnings = observed.warnings;
        record.certificate = Some(certificate);
        let mut measured = observed.measured;
        measured.generator.ceiling_per_s = Some(ceiling_per_s);
        record.measured = Some(measured);
        Ok(record)
    }

    /// A record with everything but figures, which is all that a cell without figures has.
    pub fn record(&self, plan: &CellPlan<'_>, status: CellStatus, wall: Duration) -> RunRecord {
        RunRecord {
            schema: SCHEMA_VERSION,
            cell: plan.cell().clone(),
            repetition: plan.planned.repetition,
            position: plan.position,
            status,
            started_at: schedule::timestamp(wall),
            wall_s: wall.as_secs_f64(),
            scale: plan.scale,
            machine: self.here.machine.clone(),
            versions: self.here.versions.clone(),
            settings: plan.system.settings.clone(),
            seed: plan.seed,
            memory: MemoryRecord {
                budget_bytes: plan.budget_bytes,
                enforced_by: "none".into(),
                data_bytes: plan.data_bytes_here,
                data_to_memory: plan.data_bytes_here as f64 / plan.budget_bytes.max(1) as f64,
                peak_bytes: None,
            },
            storage: storage::describe(plan.storage, "none"),
            measured: None,
            devices: Vec::new(),
            layers: Vec::new(),
            system_figures: BTreeMap::new(),
            certificate: None,
            warnings: Vec::new(),
        }
    }

    /// Attaches, starts, drives and clears away. The locals drop in the reverse of the order that they are
    /// made in: system, budget, storage.
    fn measure(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        source: Option<&Path>,
        folder: &Path,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Observed, CellError> {
        let mut attached = self.attach(plan, source, folder)?;
        let directories = attached.paths().to_vec();
        if directories.len() > 1 && !system.capabilities().many_directories {
            return Err(CellError::Failed(format!(
                "{} keeps its data in one directory, and this storage is {} of them: use layout = \"stripe\"",
                system.name(),
                directories.len()
            )));
        }
        let mut warnings = Vec::new();
        let mut budget = match MemoryBudget::create("cell", plan.budget_bytes, &self.registry) {
            Ok(budget) => Some(budget),
            Err(underlay_attach::AttachError::Missing(missing)) => {
                warnings.push(format!(
                    "the memory budget was not enforced: {}; {}. The page cache may hold all the data.",
                    missing.what, missing.remedy
                ));
                None
            }
            Err(other) => return Err(other.into()),
        };
        attached.set_pace(Pace::Immediate)?;
        let scratch = folder.join("scratch");
        fs::create_dir_all(&scratch)?;
        let paths = StoragePaths { data: directories, scratch };
        let memory = Memory {
            budget_bytes: plan.budget_bytes,
            cgroup_procs: budget.as_ref().map(MemoryBudget::procs_files).unwrap_or_default(),
        };
        // Pages that this process read or wrote while it put the data there are not charged to the cell.
        underlay_attach::memory_budget::drop_file_caches(attached.paths())?;
        let running = system.start(&paths, &memory, &settings(plan))?;
        warnings.extend(self.fill_caches(
            plan,
            running.as_ref(),
            budget.as_ref(),
            &attached,
            observer,
            stop,
        )?);
        attached.set_pace(Pace::Modelled)?;
        check_stop(stop)?;

        let spec = drive::measuring_spec(plan)?;
        let schedule = faults::Schedule::of(plan, &attached)?;
        let window = Window::new(running.as_ref(), &attached, drive::interval_s(&spec), schedule);
        let driven = drive::drive(&spec, running.as_ref(), &window, observer, stop, "measuring");
        // Whatever happened, the rest is clearing away, and that need not take modelled time.
        let _ = attached.set_pace(Pace::Immediate);
        let driven = match driven {
            Err(CellError::Failed(reason)) => {
                return Err(self.explain(reason, running.as_ref(), budget.as_ref(), &attached));
            }
            other => other?,
        };
        running.health()?;
        attached.health()?;
        if driven.measured.operations < plan.records_here
            && matches!(plan.cell().mix.as_str(), "load" | "delete")
        {
            warnings.push(format!(
                "{} of {} records were reached in the time that this mix may take: the figures are of that part",
                driven.measured.operations, plan.records_here
            ));
        }
        let (devices, layers, figures) = window.taken()?;
        if driven.measured.errors > 0 {
            warnings.push(format!(
                "{} operations failed; the first said: {}",
                driven.measured.errors,
                driven.measured.error_samples.first().map_or("nothing", String::as_str)
            ));
        }
        let observed_settings = running.applied_settings();
        running.stop()?;
        let memory_enforced_by = budget.as_ref().map(MemoryBudget::enforced_by);
        let memory_peak_bytes = budget.as_ref().and_then(MemoryBudget::peak_bytes);
        let attachment = attached.name();
        if let Some(budget) = &mut budget {
            budget.remove()?;
        }
        attached.detach()?;
        Ok(Observed {
            measured: driven.measured,
            devices,
            layers,
            figures,
            settings: observed_settings,
            memory_enforced_by,
            memory_peak_bytes,
            attachment,
            aftermath: driven.aftermath,
            warnings,
        })
    }

    fn attach(
        &self,
        plan: &CellPlan<'_>,
        source: Option<&Path>,
        folder: &Path,
    ) -> Result<Attached, CellError> {
        let mount_root = folder.join("mnt");
        let images_folder = folder.join("images");
        fs::create_dir_all(&images_folder)?;
        let mut stack =
            storage::stack(plan.storage, &images_folder, plan.scale.data, plan.scale.time, plan.seed);
        if faults::concerning(plan.study, plan.storage).into_iter().any(FaultSpec::needs_arming) {
            for volume in stack.iter_mut().flat_map(|stack| &mut stack.volumes) {
                volume.root.for_each_device(&mut |device| device.power_cut_armed = true);
            }
        }
        match (stack, source) {
            (Some(stack), Some(prepared)) => {
                for image in storage::image_files(&stack) {
                    let name = image.file_name().expect("an image has a name");
                    images::clone_image(&prepared.join(name), &image)?;
                }
                let spec = storage::attach_spec(plan.storage, stack, &mount_root, false);
                Ok(choice::choose(plan.study.run.attachment.as_deref())?.attach(&spec, &self.registry)?)
            }
            (Some(stack), None) => {
                let spec = storage::attach_spec(plan.storage, stack, &mount_root, true);
                Ok(choice::choose(plan.study.run.attachment.as_deref())?.attach(&spec, &self.registry)?)
            }
            (None, source) => {
                let attached = storage::attach_paths(plan.storage, &self.registry)?;
                if let Some(files) = source {
                    copy_onto_paths(plan, files, attached.paths())?;
                }
                Ok(attached)
            }
        }
    }

    /// Brings the caches to what the study asks for: empty, or as a long run of this mix would leave them. A warning
    /// when that could not be done in full.
    fn fill_caches(
        &self,
        plan: &CellPlan<'_>,
        running: &dyn Running,
        budget: Option<&MemoryBudget>,
        attached: &Attached,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<Option<String>, CellError> {
        if plan.study.run.cache == Cache::Warm && !matches!(plan.cell().mix.as_str(), "load" | "delete") {
            let operations = (CACHE_FILLS * plan.budget_bytes / PAGE_BYTES).max(MIN_FILL_OPERATIONS);
            let spec = drive::filling_spec(plan, operations)?;
            let filled = drive::drive(&spec, running, &(), observer, stop, "filling caches")?;
            // What the fill wrote was written faster than the device could: no storage shall begin with that debt.
            running.settle(SETTLE_LIMIT)?;
            if filled.measured.operations < operations {
                return Ok(Some(format!(
                    "caches were filled by {} operations of {operations}: the storage was too slow for more",
                    filled.measured.operations
                )));
            }
        } else if let Some(budget) = budget {
            budget.drop_caches(attached.paths(), false)?;
        }
        Ok(None)
    }

    /// A failure with what the system, the budget and the storage say of it.
    fn explain(
        &self,
        reason: String,
        running: &dyn Running,
        budget: Option<&MemoryBudget>,
        attached: &Attached,
    ) -> CellError {
        let mut text = reason;
        if let Err(error) = running.health() {
            text.push_str(&format!("\n{error}"));
        }
        if let Err(error) = attached.health() {
            text.push_str(&format!("\n{error}"));
        }
        let kills = budget.map_or(0, MemoryBudget::oom_kills);
        if kills > 0 {
            text.push_str("\nthe kernel killed it for want of memory: give [system] more memory");
        }
        CellError::Failed(text)
    }

    /// The generator's own highest rate in modelled operations per second, measured once for a mix and threads.
    fn ceiling(&mut self, plan: &CellPlan<'_>) -> Result<f64, CellError> {
        let cell = plan.cell();
        let key = format!("{} {} {} {}", plan.workload.name, cell.mix, cell.distribution, cell.threads);
        if !self.ceilings.contains_key(&key) {
            let spec = drive::measuring_spec(plan)?;
            let ceiling = underlay_workload::null_ceiling(&spec)
                .map_err(|error| CellError::Failed(error.to_string()))?;
            self.ceilings.insert(key.clone(), ceiling);
        }
        Ok(self.ceilings[&key])
    }
}

/// Begins and ends what is counted, exactly at the edges of the measured window.
struct Window<'a> {
    running: &'a dyn Running,
    attached: &'a Attached,
    interval_s: f64,
    found: std::sync::Mutex<Found>,
}

#[derive(Default)]
struct Found {
    before: BTreeMap<String, f64>,
    after: BTreeMap<String, f64>,
    devices: Vec<underlay_record::DeviceActivity>,
    layers: Vec<underlay_record::LayerActivity>,
    schedule: Option<faults::Schedule>,
    faults: Option<faults::UnderWay>,
    problem: Option<CellError>,
}

/// What devices and layers did, and the system's figures.
type Taken =
    (Vec<underlay_record::DeviceActivity>, Vec<underlay_record::LayerActivity>, BTreeMap<String, f64>);

impl<'a> Window<'a> {
    fn new(
        running: &'a dyn Running,
        attached: &'a Attached,
        interval_s: f64,
        schedule: faults::Schedule,
    ) -> Self {
        let found = Found { schedule: Some(schedule), ..Found::default() };
        Window { running, attached, interval_s, found: std::sync::Mutex::new(found) }
    }

    fn taken(self) -> Result<Taken, CellError> {
        let found = self.found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(problem) = found.problem {
            return Err(problem);
        }
        let figures = underlay_systems::figures::between(&found.before, &found.after);
        Ok((found.devices, found.layers, figures))
    }

    fn note(&self, act: impl FnOnce(&mut Found) -> Result<(), CellError>) {
        let mut found = self.found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Err(problem) = act(&mut found) {
            found.problem.get_or_insert(problem);
        }
    }
}

impl Hooks for Window<'_> {
    fn measuring_begins(&self) {
        self.note(|found| {
            found.before = self.running.figures()?;
            self.attached.begin_measurement(self.interval_s)?;
            found.faults = found.schedule.take().map(faults::Schedule::start).transpose()?;
            Ok(())
        });
    }

    fn measuring_ended(&self) {
        self.note(|found| {
            found.devices = self.attached.end_measurement()?;
            found.layers = self.attached.layers()?;
            found.faults.take().map_or(Ok(()), faults::UnderWay::end)?;
            found.after = self.running.figures()?;
            Ok(())
        });
    }
}

/// The folder of one cell's images, gone when the cell is.
struct CellFolder(PathBuf);

impl CellFolder {
    fn make(path: &Path) -> Result<Self, CellError> {
        let _ = fs::remove_dir_all(path);
        fs::create_dir_all(path)?;
        Ok(CellFolder(path.to_path_buf()))
    }
}

impl Drop for CellFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
