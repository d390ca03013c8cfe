//! One run of one cell: storage attached, the system started within its budget, load applied, results measured, all of
//! it cleared away.

mod caches;
mod inputs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use underlay_attach::{CpuConfinement, Processors, ResourceRegistry, choice};
use underlay_record::{
    CellStatus, DirtyLimitRecord, GeneratorCost, MeasuredWindow, MemoryRecord, NodeEventRecord,
    ReadBackRecord, RunRecord, SCHEMA_VERSION, SearchRecord, TopologyRecord,
};
use underlay_storage::stack::PacingMode;
use underlay_sync::Mutex;
use underlay_systems::system::System;
use underlay_workload::{AcknowledgedWrites, ReadBack, RunAftermath};

use super::attached::CellStorages;
use super::cell_folder::{CellFolder, still_in_use};
use super::cell_plan::{CellPlan, settings};
use super::certificate::{CallerKind, CertificateEvidence, OutsideOfEvents, SearchObservation, certify};
use super::cpu::{CpuMeter, share_of};
use super::dataset::PreparedDatasets;
use super::directory::scratch_of;
use super::drive::{self, KeptOutputs};
use super::events::{self, TIMELINE_PARTS};
use super::feed::{self, CellSource};
use super::host::{HostInfo, PathFloor, timestamp};
use super::prepared::PreparedDataset;
use super::stopwatch::{Stopwatch, WallPart};
use super::traffic::CellTraffic;
use super::window::{WindowFigures, WindowHandle};
use super::{CellError, LiveCell, RunObserver, check_stop, faults, rate_search, space, storage};
use crate::machine::{CpuPlacement, ServerShare};
use crate::session::{BudgetEnforcement, ServerSession, ServerSite};

/// Reading back acknowledged writes may take this long; what is left is counted.
const READ_BACK_LIMIT: Duration = Duration::from_secs(60);

/// State that all cells of a run share.
pub(super) struct RunContext {
    here: HostInfo,
    registry: ResourceRegistry,
    work: PathBuf,
    /// The directory of cells' records and of the files kept next to them.
    records: PathBuf,
    /// The purpose of each CPU, where the study names the modelled machine's cores.
    placement: Option<CpuPlacement>,
    floor: PathFloor,
    clock: Arc<Stopwatch>,
}

/// Observations of a system and its storage during the measurement of a cell.
pub(super) struct CellObservation {
    pub taken: WindowFigures,
    pub settings: BTreeMap<String, String>,
    pub topology: Option<TopologyRecord>,
    pub memory_enforced_by: Option<&'static str>,
    pub memory_peak_bytes: Option<u64>,
    pub dirty_limits: Vec<DirtyLimitRecord>,
    pub attachment: &'static str,
    pub search: Option<SearchRecord>,
    /// Observations of devices and CPUs during the search.
    pub searching: Option<SearchObservation>,
    pub node_events: Vec<NodeEventRecord>,
    pub read_back: Option<ReadBackRecord>,
    pub warnings: Vec<String>,
}

impl CellObservation {
    /// The record of a completed cell, still without its metrics and certificate.
    pub(super) fn into_record(self, bench: &RunContext, plan: &CellPlan<'_>, wall: Duration) -> RunRecord {
        let mut record = bench.record(plan, CellStatus::Completed, wall);
        record.storage =
            storage::describe(&plan.storage, &plan.roles(), plan.system.servers, self.attachment);
        if let Some(group) = self.memory_enforced_by {
            record.memory.enforced_by = group.to_owned();
        }
        record.memory.peak_bytes = self.memory_peak_bytes;
        record.memory.dirty_limits = self.dirty_limits;
        record.settings = self.settings;
        record.topology = self.topology.map(|topology| storage::with_devices(topology, &plan.storage));
        record.system_figures = self.taken.figures;
        record.system_series = self.taken.series;
        record.devices = self.taken.devices;
        record.layers = self.taken.layers;
        record.network = self.taken.network;
        record.cpu = self.taken.cpu;
        record.paths = self.taken.paths;
        record.pauses = Some(self.taken.pauses);
        for (activity, description) in record.devices.iter_mut().zip(&record.storage.devices) {
            activity.description = description.clone();
        }
        record.inputs = inputs::certified(plan, &record, self.search.is_some());
        record.search = self.search;
        record.node_events = self.node_events;
        record.read_back = self.read_back;
        record.warnings = self.warnings;
        record.warnings.extend(self.taken.warnings);
        let unset =
            record.memory.dirty_limits.iter().filter_map(|limit| Some((limit, limit.reason.as_ref()?)));
        record.warnings.extend(unset.map(|(DirtyLimitRecord { storage, .. }, reason)| {
            format!("`dirty_limit` was not set on {storage}, so writes may stay in memory: {reason}")
        }));
        record
    }
}

/// The metrics of a measured cell.
struct MeasuredCellMetrics {
    measured: MeasuredWindow,
    aftermath: RunAftermath,
    nodes_away: Option<OutsideOfEvents>,
    traffic: Option<CellTraffic>,
    observed: CellObservation,
}

impl RunContext {
    pub(super) fn new(
        here: HostInfo,
        registry: ResourceRegistry,
        work: &Path,
        records: &Path,
        placement: Option<CpuPlacement>,
        clock: Arc<Stopwatch>,
    ) -> Self {
        RunContext {
            here,
            registry,
            work: work.to_path_buf(),
            records: records.to_path_buf(),
            placement,
            floor: PathFloor::Unmeasured,
            clock,
        }
    }

    /// Runs a cell and returns its record. Everything that the cell made is gone afterwards, even on failure.
    pub(super) fn run(
        &mut self,
        plan: &CellPlan<'_>,
        datasets: &mut PreparedDatasets,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<RunRecord, CellError> {
        let system = find_system(plan)?;
        self.clock.enter(WallPart::Prepare);
        prepare(system, observer)?;
        self.measure_path(plan, observer)?;
        let modelled = plan.storage.is_modelled();
        self.clock.enter(WallPart::Load);
        // Before the cell's clock starts: many cells use one data set, so no single cell pays for it.
        let source = if plan.begins_empty() {
            None
        } else if plan.storage.is_elsewhere() {
            datasets.load_elsewhere(plan, system, observer, stop)?;
            None
        } else if modelled || system.capabilities().spreads_data {
            Some(datasets.images(plan, system, observer, stop)?)
        } else {
            Some(datasets.files(plan, system, observer, stop)?)
        };
        self.clock.enter(WallPart::Start);
        let _confined = self.confine(plan)?;
        let folder = self.work.join("cell");
        let _folder = CellFolder::make(&folder, self.registry())?;
        check_stop(stop)?;
        observer.cell_started(plan.planned, plan.position as usize + 1);
        let begun = Instant::now();
        let faults = faults::note(&faults::concerning(plan.study, &plan.storage));
        let events = events::note(&events::concerning(plan.study, plan.system));
        let driven = match self.measure(plan, system, source.as_ref(), &folder, observer, stop) {
            Err(error) => {
                // Before the cell's images are removed.
                let space = space::note(&folder);
                let notes: String =
                    [faults, events, space].iter().flatten().map(|note| format!("\n{note}")).collect();
                return Err(error.with(&notes));
            }
            Ok(driven) => driven,
        };
        let MeasuredCellMetrics { mut measured, aftermath, nodes_away, traffic, mut observed } = driven;
        observed.warnings.extend(faults);
        let ceiling_per_s = self.ceiling(plan, measured.throughput_per_s)?;
        let wall = begun.elapsed();
        let open_loop = plan.cell().rate_per_s().is_some() || observed.search.is_some();
        let certificate = certify(&CertificateEvidence {
            devices: &observed.taken.devices,
            paths: &observed.taken.paths,
            measured: Some(&measured),
            floor_us: self.floor_us(plan),
            cpu: observed.taken.cpu.as_ref(),
            callers: callers(plan, open_loop),
            searching: observed.searching.as_ref(),
            pauses: Some(&observed.taken.pauses),
            traffic,
            aftermath,
            memory_enforced: (!plan.storage.is_elsewhere()).then_some(observed.memory_enforced_by.is_some()),
            ceiling_per_s: Some(ceiling_per_s),
            open_loop,
            hides_records: plan.hides_records(),
            nodes_away,
            read_back: observed.read_back.as_ref(),
            time_scale: plan.scale.time,
            ..CertificateEvidence::default()
        });
        let mut record = observed.into_record(self, plan, wall);
        record.certificate = Some(certificate);
        measured.generator.ceiling_per_s = Some(ceiling_per_s);
        record.measured = Some(measured);
        record.mark_disturbed();
        Ok(record)
    }

    pub(super) fn clock(&self) -> &Stopwatch {
        &self.clock
    }

    pub(super) fn work(&self) -> &Path {
        &self.work
    }

    /// The directory of cells' records.
    pub(super) fn records(&self) -> &Path {
        &self.records
    }

    /// From here on, this thread and all threads and processes that it starts stay on the emulation's CPUs until the
    /// return value is dropped. The system's processes are placed individually. If the system runs on another machine,
    /// nothing here needs to be separated.
    pub(super) fn confine(&self, plan: &CellPlan<'_>) -> Result<Option<CpuConfinement>, CellError> {
        let here = self.placement.as_ref().filter(|_| !plan.storage.is_elsewhere());
        Ok(here.map(|here| CpuConfinement::confine_to(&here.emulation)).transpose()?)
    }

    pub(super) fn placement(&self) -> Option<&CpuPlacement> {
        self.placement.as_ref()
    }

    /// Each server's CPU share; `None` where the study names no cores, or the system runs on another machine.
    pub(super) fn share(&self, plan: &CellPlan<'_>) -> Option<ServerShare> {
        self.placement().and_then(|here| share_of(plan, here))
    }

    pub(super) fn registry(&self) -> &ResourceRegistry {
        &self.registry
    }

    /// Measures the path cost before each cell, where something is modelled. Measurements from an hour ago may no
    /// longer apply to this host.
    pub(super) fn measure_path(
        &mut self,
        plan: &CellPlan<'_>,
        observer: &dyn RunObserver,
    ) -> Result<(), CellError> {
        if plan.storage.is_modelled() {
            choice::choose(plan.study.run.attachment.as_deref())?;
            let _confined = self.confine(plan)?;
            self.floor.measure_again(observer)?;
        }
        Ok(())
    }

    /// The path cost in modelled microseconds, where something is modelled.
    pub(super) fn floor_us(&self, plan: &CellPlan<'_>) -> Option<f64> {
        match self.floor {
            // The path costs the same wall time at any scale, so it weighs less in slower motion.
            PathFloor::WallUs(us) if plan.storage.is_modelled() => Some(us / plan.scale.time),
            _ => None,
        }
    }

    /// Why the path cost is unknown, for the record.
    pub(super) fn floor_unknown(&self, plan: &CellPlan<'_>) -> Option<String> {
        match &self.floor {
            PathFloor::Unknown(reason) if plan.storage.is_modelled() => Some(reason.clone()),
            _ => None,
        }
    }

    /// A record with everything but metrics. A cell without metrics has nothing else.
    pub(super) fn record(&self, plan: &CellPlan<'_>, status: CellStatus, wall: Duration) -> RunRecord {
        RunRecord {
            schema: SCHEMA_VERSION,
            cell: plan.cell().clone(),
            repetition: plan.planned.repetition,
            position: plan.position,
            status,
            started_at: timestamp(wall),
            wall_s: wall.as_secs_f64(),
            wall: None,
            scale: plan.scale,
            machine: self.here.machine.clone(),
            versions: self.here.versions.clone(),
            settings: plan.storage.settings_of(plan.system),
            seed: plan.seed,
            memory: MemoryRecord {
                budget_bytes: plan.budget_bytes,
                // True for a cell that fails before it has a budget or an attachment. Other cells replace it.
                enforced_by: "none".into(),
                data_bytes: plan.data_bytes_here,
                data_to_memory: plan.data_bytes_here as f64 / plan.budget_bytes.max(1) as f64,
                cache_bytes: Some(plan.cache_bytes()),
                peak_bytes: None,
                dirty_limits: Vec::new(),
            },
            cpu: None,
            storage: storage::describe(&plan.storage, &plan.roles(), plan.system.servers, "none"),
            measured: None,
            search: None,
            job: None,
            benchmark: None,
            devices: Vec::new(),
            layers: Vec::new(),
            network: None,
            paths: Vec::new(),
            pauses: None,
            system_figures: BTreeMap::new(),
            system_series: Vec::new(),
            node_events: Vec::new(),
            read_back: None,
            topology: None,
            certificate: None,
            inputs: None,
            warnings: Vec::new(),
        }
    }

    /// Attaches, starts, drives and clears away. The locals drop in reverse order of creation: system, budget, storage.
    fn measure(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        source: Option<&PreparedDataset>,
        folder: &Path,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<MeasuredCellMetrics, CellError> {
        let storages = CellStorages::attach(plan, source, folder, &self.registry)?;
        let mut warnings: Vec<String> = self.floor_unknown(plan).into_iter().collect();
        // Starting and filling caches are not measured and need not happen in modelled time.
        storages.set_pace(PacingMode::Immediate)?;
        let session = self.start(plan, system, &storages, folder, &mut warnings, stop)?;
        let oom_kills = session.oom_kills();
        let source = || CellSource::new(plan, &session, &storages, folder, self.share(plan));
        warnings.extend(feed::sampled(observer, &source().preparing(), || {
            self.fill_caches(plan, &session, &storages, observer, stop)
        })?);
        storages.set_pace(PacingMode::Modelled)?;
        session.hold_cpu()?;
        check_stop(stop)?;

        let mut spec = drive::measuring_spec(plan)?;
        let cpu = CpuMeter::new(plan, self.placement(), &session);
        self.clock.enter(WallPart::Search);
        let searched = feed::sampled(observer, &source(), || {
            rate_search::watched_search(plan, &spec, &session, &storages, cpu, observer, stop)
        });
        if searched.is_err() {
            let _ = storages.set_pace(PacingMode::Immediate);
            let _ = session.release_cpu();
        }
        let (searched, searching) = match searched {
            Err(CellError::Failed(reason)) => return Err(explain(reason, &session, &storages)),
            other => other?,
        };
        let search = searched.map(|searched| {
            spec.rate_per_s = Some(searched.holds_per_s);
            spec.workload = searched.workload;
            searched.record
        });
        let schedule = faults::FaultSchedule::new(plan, storages.servers().first())?;
        let cpu = CpuMeter::new(plan, self.placement(), &session);
        let events = events::concerning(plan.study, plan.system);
        let count = || drop(session.servers().figures());
        let desk = events::desk(session.servers(), &count, plan.scale.time);
        let interval_s = drive::interval_s(&spec);
        let nodes = (schedule, desk.as_ref());
        let window = WindowHandle::new(&session, &storages, cpu, interval_s, nodes, stop);
        let raw = plan.study.run.raw.then(|| self.records.join(&plan.planned.file).with_extension("parquet"));
        // Some readers must find nothing: a record that they miss is not lost.
        let is_noted = !events.is_empty() && !plan.hides_records();
        let writes = is_noted.then(|| Arc::new(AcknowledgedWrites::for_workload(&spec.workload)));
        let timeline_parts = match (&desk, events.is_empty()) {
            (None, _) => 0,
            // For disturbances by hand.
            (Some(_), true) => 1,
            (Some(_), false) => TIMELINE_PARTS,
        };
        let images = plan.storage.is_modelled().then_some(folder);
        let keep = KeptOutputs { raw: raw.as_deref(), writes: writes.as_ref(), timeline_parts, images };
        self.clock.enter(WallPart::WarmUp);
        let driven = feed::sampled(observer, &source().measured(&window, desk.as_ref()), || {
            events::attended(desk.as_ref(), &events, &self.registry, stop, || {
                window.sampled(plan, || {
                    drive::drive(
                        &spec,
                        &session,
                        &window,
                        observer,
                        stop,
                        drive::DrivePurpose::Measuring,
                        keep,
                    )
                })
            })
        });
        let begun = driven.as_ref().ok().and_then(|driven| driven.as_ref().ok()?.window);
        self.clock.measured(begun, spec.duration);
        let driven = driven?;
        // In any case, the rest is clearing away and need not happen in modelled time.
        let _ = storages.set_pace(PacingMode::Immediate);
        let _ = session.release_cpu();
        let driven = match driven {
            Err(CellError::Failed(reason)) => {
                return Err(explain(reason, &session, &storages));
            }
            other => other?,
        };
        observer.live(&LiveCell { phase: "checking and clearing away".into(), ..LiveCell::default() });
        // A process that died or a device that failed during the window invalidates the metrics.
        session.servers().health()?;
        storages.health()?;
        check_stop(stop)?;
        let node_events = desk.as_ref().map_or_else(Vec::new, |desk| {
            events::with_effects(desk.events(), &driven.timeline, timeline_parts)
        });
        let nodes_away = events::outside_of(&node_events, &driven.timeline, spec.threads);
        warnings.extend(events::problems(&node_events));
        let read_back = writes.map(|writes| {
            let options = ReadBack { limit: READ_BACK_LIMIT, stop };
            session.aborted_at(stop, || writes.read_back(&|thread| session.connect(thread), &options))
        });
        check_stop(stop)?;
        warnings.extend(driven.raw_problem);
        if driven.measured.operations < plan.records_here && plan.cell().visits_every_record() {
            warnings.push(format!(
                "{} of {} records were reached in the time that this mix may take: the figures are for that part",
                driven.measured.operations, plan.records_here
            ));
        }
        session
            .check_oom_kills(oom_kills, "while caches were filled or the cell was measured")
            .map_err(|reason| explain(reason, &session, &storages))?;
        let mut figures = window.taken(driven.aftermath.window)?;
        figures.pauses.counted_off_wall_s = Some(figures.counted_for.as_secs_f64() - driven.measured.wall_s);
        let traffic = CellTraffic::new(plan, &storages, &figures.devices, &[]);
        if driven.measured.errors > 0 {
            warnings.push(format!(
                "{} operations failed; the first error: {}",
                driven.measured.errors,
                driven.measured.error_samples.first().map_or("nothing", String::as_str)
            ));
        }
        let observed_settings = session.servers().applied_settings();
        let topology = session.servers().topology();
        // Before detaching storage: a file system with open files can't be unmounted.
        let finished = session.finish()?;
        let attachment = storages.name();
        let dirty_limits = storages.dirty_limits().to_vec();
        warnings.extend(storages.clear_away()?.map(|in_use| still_in_use(&in_use)));
        let observed = CellObservation {
            taken: figures,
            settings: observed_settings,
            topology,
            memory_enforced_by: finished.memory_enforced_by,
            memory_peak_bytes: finished.memory_peak_bytes,
            dirty_limits,
            attachment,
            search,
            searching,
            node_events,
            read_back,
            warnings,
        };
        Ok(MeasuredCellMetrics {
            measured: driven.measured,
            aftermath: driven.aftermath,
            nodes_away,
            traffic,
            observed,
        })
    }

    /// Starts the system on the cell's storage, within the study's budgets. Returns a warning where this host can't
    /// enforce a budget.
    pub(super) fn start(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        storages: &CellStorages,
        folder: &Path,
        warnings: &mut Vec<String>,
        stop: &AtomicBool,
    ) -> Result<ServerSession, CellError> {
        let mut places = Vec::new();
        for server in 0..plan.system.servers as usize {
            let scratch = folder.join(scratch_of(server));
            fs::create_dir_all(&scratch)?;
            let paths = storages.paths_of(server, scratch);
            let directories = paths.data.len();
            if directories > 1 && !system.capabilities().many_directories {
                return Err(CellError::Failed(format!(
                    "{} keeps its data in one directory, but this storage has {directories}: use layout = \"stripe\"",
                    system.name(),
                )));
            }
            let share = self.share(plan);
            places.push(ServerSite { paths, budget_bytes: plan.budget_bytes, share });
        }
        // The memory of an external cluster is not ours to limit.
        let enforcement = match plan.storage.is_elsewhere() {
            true => BudgetEnforcement::None,
            false => BudgetEnforcement::Kernel { name: "cell", registry: &self.registry },
        };
        // Without a modelled machine the system runs where this process does.
        let share = self.share(plan);
        storages.watch_for_programs_on(&share.map_or_else(Processors::available, |share| share.cpu.cpus));
        let session = ServerSession::start(system, places, enforcement, &settings(plan), stop);
        check_stop(stop)?;
        let session = session?;
        warnings.extend(session.unenforced().map(|missing| {
            let (capability, remedy) = (&missing.what, &missing.remedy);
            match session.memory_enforced_by() {
                Some(_) => format!("nothing held the system to its CPUs: {capability}; {remedy}"),
                None => format!(
                    "the memory budget was not enforced: {capability}; {remedy}. The page cache may hold all the data."
                ),
            }
        }));
        Ok(session)
    }

    /// The generator's highest rate in modelled operations per second, against nothing: neither storage nor system
    /// takes part. It is measured after each cell, since an hour-old value says nothing about this host now. It is
    /// measured again where it looks too low for the measured throughput.
    fn ceiling(&self, plan: &CellPlan<'_>, measured_per_s: f64) -> Result<f64, CellError> {
        let spec = drive::measuring_spec(plan)?;
        let enough_per_s = GeneratorCost::MIN_HEADROOM * measured_per_s;
        underlay_workload::null_ceiling_up_to(&spec, enough_per_s)
            .map_err(|error| CellError::Failed(error.to_string()))
    }
}

/// The kind of caller that waits for the answers to a cell's requests. Background load makes it more than one kind.
fn callers(plan: &CellPlan<'_>, open_loop: bool) -> CallerKind {
    match plan.requests() {
        Ok(requests) if !open_loop && plan.workload.beside.is_none() => CallerKind::Threads(requests.threads),
        _ => CallerKind::Nobody,
    }
}

/// A failure, with what the system, its budgets and its storage report about it.
pub(super) fn explain(reason: String, session: &ServerSession, storages: &CellStorages) -> CellError {
    let mut text = session.explain(reason);
    if let Err(CellError::Failed(error)) = storages.health() {
        text.push_str(&format!("\n{error}"));
    }
    CellError::Failed(text)
}

/// The system of a cell, if this program has it.
pub(super) fn find_system(plan: &CellPlan<'_>) -> Result<&'static dyn System, CellError> {
    underlay_systems::find(&plan.system.kind).ok_or_else(|| CellError::Unavailable {
        missing: format!("the system '{}'", plan.system.kind),
        remedy: format!("this program knows {}", underlay_systems::names().join(", ")),
    })
}

/// Gets what the system needs from outside this host, and reports progress.
pub(super) fn prepare(system: &dyn System, observer: &dyn RunObserver) -> Result<(), CellError> {
    // Progress is reported again and again; each step is shown once.
    let last_message = Mutex::new(String::new());
    system.prepare(&|progress| {
        let mut last_message = last_message.lock();
        if *last_message != progress.what {
            last_message.clone_from(&progress.what);
            observer.preparing(&progress.what);
        }
    })?;
    Ok(())
}
