//! Prepared data: loaded once for all cells that ask for the same, and cloned onto each storage.
//!
//! Loading is not what these cells measure, so it happens at this machine's own speed, into a plain folder,
//! with the settings and memory division that the cells use; the system has then written and compacted the
//! very files that it will find on every storage.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use underlay_attach::{Registry, choice};
use underlay_storage::stack::Pace;
use underlay_systems::system::{Memory, Settings, StoragePaths, System};

use super::attached::Storages;
use super::cell::{CellPlan, settings};
use super::servers::{Ground, Servers};
use super::{CellError, Live, Observer, check_stop, drive, images, storage};
use crate::spec::StorageSource;

/// Compaction of what was loaded may take this long on any machine that we know.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

/// What has been prepared in this run, and where.
pub struct Datasets {
    root: PathBuf,
    registry: Registry,
    /// dataset key -> folder of the system's files
    loaded: HashMap<String, PathBuf>,
    /// dataset key and storage name -> folder of images
    imaged: HashMap<(String, String), PathBuf>,
}

impl Datasets {
    pub fn new(root: &Path, registry: Registry) -> Self {
        Datasets { root: root.to_path_buf(), registry, loaded: HashMap::new(), imaged: HashMap::new() }
    }

    /// The folder that holds the loaded data set as plain files.
    pub fn files(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<PathBuf, CellError> {
        if let Some(folder) = self.loaded.get(&plan.dataset_key) {
            return Ok(folder.clone());
        }
        let folder = self.root.join(format!("data-{}", self.loaded.len()));
        let scratch = self.root.join(format!("scratch-{}", self.loaded.len()));
        // A load that failed before may have left half of another data set.
        for fresh in [&folder, &scratch] {
            let _ = fs::remove_dir_all(fresh);
            fs::create_dir_all(fresh)?;
        }
        observer.preparing(&format!(
            "loading {} records ({:.0} MB) into {}",
            plan.records_here,
            plan.data_bytes_here as f64 / 1e6,
            plan.system.name
        ));
        let paths =
            StoragePaths { data: vec![folder.clone()], scratch: scratch.clone(), ..StoragePaths::default() };
        // No cgroup: the budget still divides the system's own memory, only the page cache is free.
        let memory = Memory { budget_bytes: plan.budget_bytes, cgroup_procs: Vec::new() };
        self.load(plan, system, paths, memory, observer, stop)?;
        let _ = fs::remove_dir_all(&scratch);
        check_stop(stop)?;
        self.loaded.insert(plan.dataset_key.clone(), folder.clone());
        Ok(folder)
    }

    /// Loads the data set into a cluster that runs already, once a run. What it holds of other keys stays.
    pub fn load_elsewhere(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        let key = (plan.dataset_key.clone(), plan.storage.name.clone());
        if self.imaged.contains_key(&key) {
            return Ok(());
        }
        let scratch = self.root.join("scratch-elsewhere");
        fs::create_dir_all(&scratch)?;
        observer.preparing(&format!("loading {} records into {}", plan.records_here, plan.storage.name));
        let paths = StoragePaths { scratch: scratch.clone(), ..StoragePaths::default() };
        let memory = Memory { budget_bytes: plan.budget_bytes, cgroup_procs: Vec::new() };
        self.load(plan, system, paths, memory, observer, stop)?;
        let _ = fs::remove_dir_all(&scratch);
        self.imaged.insert(key, PathBuf::new());
        Ok(())
    }

    /// Loads every record by a server on these paths, and settles it.
    fn load(
        &self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        paths: StoragePaths,
        memory: Memory,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<(), CellError> {
        // At this machine's own speed, whatever the cells' is.
        let mut settings = Settings { slow_motion: 1.0, ..settings(plan) };
        if !plan.storage.is_elsewhere() {
            for &(key, value) in system.settings_for_loading() {
                settings.values.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        let servers = Servers::start(system, &[Ground { paths, memory }], &settings)?;
        let spec = drive::loading_spec(plan)?;
        let outcome = drive::drive(&spec, &servers, &(), observer, stop, "loading")?.measured;
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
        observer.live(&Live { phase: "compacting", ..Live::default() });
        servers.settle(SETTLE_LIMIT)?;
        servers.stop()?;
        Ok(())
    }

    /// The folder of backing files of a storage that holds the data set, for cloning.
    pub fn images(
        &mut self,
        plan: &CellPlan<'_>,
        system: &dyn System,
        observer: &dyn Observer,
        stop: &AtomicBool,
    ) -> Result<PathBuf, CellError> {
        let key = (plan.dataset_key.clone(), plan.storage.name.clone());
        if let Some(folder) = self.imaged.get(&key) {
            return Ok(folder.clone());
        }
        let files = self.files(plan, system, observer, stop)?;
        let folder = self.root.join(format!("images-{}", self.imaged.len()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        observer.preparing(&format!("putting the data on {}", plan.storage.name));
        let fitted = |error: std::io::Error| {
            CellError::Failed(format!(
                "the data set of {:.0} MB does not fit on {}: {error}",
                images::tree_bytes(&files).unwrap_or(0) as f64 / 1e6,
                plan.storage.name
            ))
        };
        if let StorageSource::Volume(_) = plan.storage.source {
            // All servers' volumes lie in one pool, so all of them are filled.
            let storages = Storages::attach(plan, None, &folder, &self.registry)?;
            for attached in storages.servers() {
                attached.set_pace(Pace::Immediate)?;
                images::copy_tree(&files, &attached.paths()[0]).map_err(fitted)?;
            }
            storages.detach()?;
            // What a cell clones is the pool alone.
            let pool = folder.join("pool");
            check_stop(stop)?;
            self.imaged.insert(key, pool.clone());
            return Ok(pool);
        }
        let stack = storage::stack(plan.storage, &folder, plan.scale.data, plan.scale.time, plan.seed)
            .expect("images are made for modelled storage only");
        let spec = storage::attach_spec(plan.storage, stack, &self.root.join("mnt"), true);
        let mut attached = choice::choose_for(&spec.stack, plan.study.run.attachment.as_deref())?
            .attach(&spec, &self.registry)?;
        attached.set_pace(Pace::Immediate)?;
        // A system that uses one directory has all its files in the first one.
        images::copy_tree(&files, &attached.paths()[0]).map_err(fitted)?;
        attached.detach()?;
        check_stop(stop)?;
        self.imaged.insert(key, folder.clone());
        Ok(folder)
    }
}

/// Puts a data set on storage that is really there, where nothing can be cloned.
pub fn copy_onto_paths(plan: &CellPlan<'_>, files: &Path, paths: &[PathBuf]) -> Result<(), CellError> {
    debug_assert!(matches!(plan.storage.source, StorageSource::Paths(_)));
    images::copy_tree(files, &paths[0]).map_err(|error| {
        CellError::Failed(format!("copying the data set to {}: {error}", paths[0].display()))
    })?;
    rustix::fs::sync();
    Ok(())
}
