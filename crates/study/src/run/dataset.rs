//! Prepared data, loaded once for all cells that need the same, and cloned onto each storage configuration.
//!
//! These cells don't measure loading. So it happens at this machine's own speed, into a plain directory, with the
//! cells' settings and memory layout. The system has then written and compacted exactly the files that it will find on
//! every storage configuration. A system that spreads one data set over all directories loads it on each storage
//! configuration instead, with devices in fast-forward.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use underlay_attach::{ResourceRegistry, choice};
use underlay_record::thousands_apart;
use underlay_storage::stack::PacingMode;
use underlay_systems::system::{LoadRequest, StoragePaths, System, SystemSettings};

use super::attached::{CellStorages, images_folder};
use super::cell_folder::CellFolder;
use super::cell_plan::{CellPlan, settings};
use super::directory::scratch_of;
use super::kept_logs::KeptLogs;
use super::prepared::{InitialData, PreparedDataset};
use super::tree_copy::copy_tree;
use super::{
    CellError, LiveCell, RunObserver, SETTLE_LIMIT, check_stop, drive, faults, images, space, storage,
};
use crate::plan::is_loaded_on_its_storage;
use crate::session::{BudgetEnforcement, ServerSession, ServerSite};
use crate::spec::StorageSource;

/// How often loading data onto a storage is tried when its devices have faults meanwhile.
const LOAD_ATTEMPTS: usize = 3;

/// The outcome of putting a data set on a storage.
enum PlacedDataset {
    Whole(PreparedDataset),
    /// The devices' contents are unknown, since they had these faults.
    UnderFaults(Vec<String>),
}

/// The faults that devices had while they got their data; `None` without any. If the load has failed anyway, failing to
/// ask the devices is no second failure.
fn faults_met(storages: &CellStorages, has_loaded: bool) -> Result<Option<Vec<String>>, CellError> {
    // Dirty pages go through the devices as well.
    let written = storages.write_out();
    match storages.faults_in_data() {
        Ok(faults) if !faults.is_empty() => Ok(Some(faults)),
        Ok(_) if has_loaded => written.map(|()| None),
        Err(error) if has_loaded => Err(error),
        _ => Ok(None),
    }
}

/// The data sets prepared in this run, and their places.
pub(super) struct PreparedDatasets {
    root: PathBuf,
    registry: ResourceRegistry,
    logs: KeptLogs,
    /// dataset key -> directory of the system's files
    loaded: HashMap<String, PathBuf>,
    /// dataset key and storage name -> what its cells begin with
    imaged: HashMap<(String, String), PreparedDataset>,
    /// dataset key and storage name of data already loaded into an external cluster
    elsewhere: HashSet<(String, String)>,
}

impl PreparedDatasets {
    pub(super) fn new(root: &Path, registry: ResourceRegistry, logs: KeptLogs) -> Self {
        PreparedDatasets {
            root: root.to_path_buf(),
            registry,
            logs,
            loaded: HashMap::new(),
            imaged: HashMap::new(),
            elsewhere: HashSet::new(),
        }
    }

    /// The loaded data set as plain files, for real storage.
    pub(super) fn files(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<PreparedDataset, CellError> {
        Ok(PreparedDataset::new(InitialData::Trees(vec![self.folder(plan, system, observer, stop)?])))
    }

    /// The folder that holds the loaded data set as plain files.
    fn folder(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<PathBuf, CellError> {
        if let Some(folder) = self.loaded.get(&plan.dataset_key) {
            return Ok(folder.clone());
        }
        let folder = self.root.join(format!("data-{}", self.loaded.len()));
        let scratch = self.root.join(format!("scratch-{}", self.loaded.len()));
        // An earlier failed load may have left half of another data set.
        for fresh in [&folder, &scratch] {
            let _ = fs::remove_dir_all(fresh);
            fs::create_dir_all(fresh)?;
        }
        observer.preparing(&format!(
            "loading {} records ({:.0} MB) into {}",
            thousands_apart(&plan.records_here.to_string()),
            plan.data_bytes_here as f64 / 1e6,
            plan.system.name
        ));
        let paths =
            StoragePaths { data: vec![folder.clone()], scratch: scratch.clone(), ..StoragePaths::default() };
        self.load(plan, system, paths, observer, stop).map_err(|error| self.with_space(error))?;
        let _ = fs::remove_dir_all(&scratch);
        check_stop(stop)?;
        self.loaded.insert(plan.dataset_key.clone(), folder.clone());
        Ok(folder)
    }

    /// Loads the data set into an external cluster, once per run. Data of other keys stays there.
    pub(super) fn load_elsewhere(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        let key = (plan.dataset_key.clone(), plan.storage.name.clone());
        if self.elsewhere.contains(&key) {
            return Ok(());
        }
        let scratch = self.root.join("scratch-elsewhere");
        fs::create_dir_all(&scratch)?;
        observer.preparing(&format!("loading {} records into {}", plan.records_here, plan.storage.name));
        let paths = StoragePaths { scratch: scratch.clone(), ..StoragePaths::default() };
        self.load(plan, system, paths, observer, stop).map_err(|error| self.with_space(error))?;
        let _ = fs::remove_dir_all(&scratch);
        self.elsewhere.insert(key);
        Ok(())
    }

    /// A failure to load, together with the free space on the disk of the data sets if that is nearly full. Must be
    /// called before they are removed.
    fn with_space(&self, error: CellError) -> CellError {
        let full = space::note(&self.root).map(|note| format!("\n{note}"));
        error.with(&full.unwrap_or_default())
    }

    /// Loads every record through a server on these paths, and lets it settle.
    fn load(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        paths: StoragePaths,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        // At this machine's own speed, regardless of the cells' factor.
        let slow_motion = if system.keeps_timeouts() { plan.scale.time } else { 1.0 };
        let mut settings = SystemSettings { slow_motion, ..settings(plan) };
        if !plan.storage.is_elsewhere() {
            for &(key, value) in system.settings_for_loading() {
                settings.values.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        let place = ServerSite { paths, budget_bytes: plan.budget_bytes, share: None };
        if plan.benchmark.is_some() {
            let scratch = place.paths.scratch.clone();
            let loaded = self.load_by_command(plan, system, place, &settings, stop);
            return self.logs.keep_on_failure(plan, system, &scratch, loaded);
        }
        // No budget is enforced while loading. The page cache makes it faster, and none of it is measured.
        let enforcement = match plan.storage.is_elsewhere() {
            true => BudgetEnforcement::None,
            false => BudgetEnforcement::Grouped { name: "load", registry: &self.registry },
        };
        let session = ServerSession::start(system, vec![place], enforcement, &settings, stop);
        check_stop(stop)?;
        let session = session?;
        let spec = drive::loading_spec(plan)?;
        let images = (!plan.storage.is_elsewhere()).then_some(self.root.as_path());
        let keep = drive::KeptOutputs { images, ..drive::KeptOutputs::default() };
        let outcome =
            drive::drive(&spec, &session, &(), observer, stop, drive::DrivePurpose::Loading, keep)?.measured;
        // One missing record is too many: every cell on this data set would read around it.
        if outcome.errors > 0 {
            return Err(CellError::Failed(format!(
                "{} of {} records could not be loaded: {}",
                outcome.errors,
                plan.records_here,
                outcome.error_samples.first().map_or("no reason given", String::as_str)
            )));
        }
        if outcome.operations < plan.records_here {
            return Err(CellError::Failed(format!(
                "only {} of {} records could be loaded in the time that loading may take",
                outcome.operations, plan.records_here
            )));
        }
        observer.live(&LiveCell { phase: "compacting".into(), preparing: true, ..LiveCell::default() });
        // Otherwise each cell would begin with the compaction that loading left behind.
        session.settle(SETTLE_LIMIT, stop)?;
        let killed = session.check_oom_kills(0, "while data were loaded");
        killed.map_err(|reason| CellError::Failed(session.explain(reason)))?;
        session.finish()?;
        Ok(())
    }

    /// The same by the system's own commands. The budget applies to them, since all their processes are in its groups.
    fn load_by_command(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        place: ServerSite,
        settings: &SystemSettings,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        let enforcement = BudgetEnforcement::Kernel { name: "load", registry: &self.registry };
        let session = ServerSession::start(system, vec![place], enforcement, settings, stop);
        check_stop(stop)?;
        let session = session?;
        let load = LoadRequest { data_bytes: plan.data_bytes_here, seed: plan.study.run.seed };
        let loaded = session.servers().load_data(&load, &|| !stop.load(Ordering::Relaxed));
        check_stop(stop)?;
        loaded.unwrap_or(Ok(())).map_err(|error| CellError::Failed(session.explain(error.to_string())))?;
        session.settle(SETTLE_LIMIT, stop)?;
        let killed = session.check_oom_kills(0, "while data were loaded");
        killed.map_err(|reason| CellError::Failed(session.explain(reason)))?;
        session.finish()?;
        Ok(())
    }

    /// The images of a storage configuration's data set, for cloning.
    pub(super) fn images(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<PreparedDataset, CellError> {
        let key = (plan.dataset_key.clone(), plan.storage.name.clone());
        if let Some(prepared) = self.imaged.get(&key) {
            return Ok(prepared.clone());
        }
        for _ in 0..LOAD_ATTEMPTS {
            // Nodes with storage of their own each keep a part of the data, so no single directory shows all of it.
            let put = if is_loaded_on_its_storage(system, &plan.storage) {
                self.spread(plan, system, observer, stop)?
            } else {
                self.filled(plan, system, observer, stop)?
            };
            check_stop(stop)?;
            match put {
                PlacedDataset::Whole(prepared) => {
                    self.imaged.insert(key, prepared.clone());
                    return Ok(prepared);
                }
                PlacedDataset::UnderFaults(faults) => observer.notice(&format!(
                    "data were put on {} while its devices had faults ({}): they are put there again",
                    plan.storage.name,
                    faults.join("; ")
                )),
            }
        }
        Err(CellError::Failed(format!(
            "each of {LOAD_ATTEMPTS} times that data were put on {}, a device of it had a fault by hand: leave the devices alone until the \
             first cell begins, then continue with --resume",
            plan.storage.name
        )))
    }

    /// Loads the data set by a system on the storage itself, and keeps the result.
    fn spread(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<PlacedDataset, CellError> {
        let records = match plan.benchmark {
            Some(_) => "the data set".to_owned(),
            None => format!("{} records", plan.records_here),
        };
        observer.preparing(&format!(
            "loading {records} ({:.0} MB) into {} on {}",
            plan.data_bytes_here as f64 / 1e6,
            plan.system.name,
            plan.storage.name
        ));
        // At the path that cells will use, since a system may store the paths of its directories.
        let place = self.root.join("cell");
        let _place = CellFolder::make(&place, &self.registry)?;
        let storages = CellStorages::attach(plan, None, &place, &self.registry)?;
        storages.set_pace(PacingMode::Immediate)?;
        let scratch = place.join(scratch_of(0));
        fs::create_dir_all(&scratch)?;
        let paths = storages.paths_of(0, scratch);
        let loaded = self.load(plan, system, paths, observer, stop);
        check_stop(stop)?;
        // Faults may also be the reason why it failed.
        if let Some(faults) = faults_met(&storages, loaded.is_ok())? {
            let _ = storages.detach();
            return Ok(PlacedDataset::UnderFaults(faults));
        }
        loaded.map_err(|error| self.with_space(error))?;
        let images = self.root.join(format!("images-{}", self.imaged.len()));
        let _ = fs::remove_dir_all(&images);
        fs::create_dir_all(&images)?;
        let server = place.join("server-0");
        let mut prepared = match &plan.storage.source {
            StorageSource::Paths(_) => {
                let mut trees = Vec::new();
                for (index, path) in storages.servers()[0].paths().iter().enumerate() {
                    let tree = images.join(format!("directory-{index}"));
                    fs::create_dir_all(&tree)?;
                    copy_tree(path, &tree)?;
                    trees.push(tree);
                }
                storages.detach()?;
                PreparedDataset::new(InitialData::Trees(trees))
            }
            source => {
                storages.detach()?;
                let (from, to) = match source {
                    StorageSource::Volume(_) => (place.join("pool"), images.join("pool")),
                    _ => (images_folder(&server), images.join("data")),
                };
                fs::rename(from, &to)?;
                PreparedDataset::new(InitialData::Images(to))
            }
        };
        for (role, _) in plan.roles() {
            let to = images.join(format!("role-{role}"));
            fs::rename(images_folder(&server.join(role)), &to)?;
            prepared.roles.insert(role.to_owned(), to);
        }
        Ok(PlacedDataset::Whole(prepared))
    }

    /// Puts the loaded data set on the backing files of a storage configuration, or on the pool.
    fn filled(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn RunObserver,
        stop: &AtomicBool,
    ) -> Result<PlacedDataset, CellError> {
        let files = self.folder(plan, system, observer, stop)?;
        let folder = self.root.join(format!("images-{}", self.imaged.len()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        observer.preparing(&format!("putting the data on {}", plan.storage.name));
        let fitted = |error: std::io::Error| {
            let (megabytes, name) =
                (images::tree_bytes(&files).unwrap_or(0) as f64 / 1e6, &plan.storage.name);
            CellError::Failed(match error.kind() {
                std::io::ErrorKind::StorageFull => {
                    format!("the data set of {megabytes:.0} MB does not fit on {name}: {error}")
                }
                _ => format!("the data set of {megabytes:.0} MB could not be copied onto {name}: {error}"),
            })
        };
        if let StorageSource::Volume(_) = plan.storage.source {
            // All servers' volumes lie in one pool, so all of them are filled.
            let storages = CellStorages::attach(plan, None, &folder, &self.registry)?;
            let copy = || -> Result<(), CellError> {
                for attached in storages.servers() {
                    attached.set_pace(PacingMode::Immediate)?;
                    copy_tree(&files, &attached.paths()[0]).map_err(fitted)?;
                }
                Ok(())
            };
            let copied = copy();
            if let Some(faults) = faults_met(&storages, copied.is_ok())? {
                let _ = storages.detach();
                return Ok(PlacedDataset::UnderFaults(faults));
            }
            copied?;
            storages.detach()?;
            // A cell clones only the pool.
            return Ok(PlacedDataset::Whole(PreparedDataset::new(InitialData::Images(folder.join("pool")))));
        }
        let stack = storage::stack(&plan.storage, &folder, plan.scale.data, plan.scale.time, plan.seed)
            .expect("images are made for modelled storage only");
        let spec = storage::attach_spec(&plan.storage, stack, &self.root.join("mnt"), true);
        let mut attached = choice::choose_for(&spec.stack, plan.study.run.attachment.as_deref())?
            .attach(&spec, &self.registry)?;
        attached.set_pace(PacingMode::Immediate)?;
        // A system that uses one directory has all its files in the first one.
        let directory = &attached.paths()[0];
        let copied = attached.run_with_watchdog(|| -> std::io::Result<()> {
            copy_tree(&files, directory)?;
            Ok(rustix::fs::syncfs(fs::File::open(directory)?)?)
        });
        faults::end_all(&attached)?;
        attached.begin_measurement(faults::UNSAMPLED_S)?;
        let faults = faults::faults_in_data(&attached.end_measurement()?);
        if !faults.is_empty() {
            let _ = attached.detach();
            return Ok(PlacedDataset::UnderFaults(faults));
        }
        copied.map_err(fitted)?;
        attached.detach()?;
        Ok(PlacedDataset::Whole(PreparedDataset::new(InitialData::Images(folder))))
    }
}
