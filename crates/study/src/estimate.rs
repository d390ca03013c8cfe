//! How long a study takes on this machine's clock, before it runs.

use std::collections::BTreeSet;
use std::time::Duration;

use underlay_record::Cell;
use underlay_workload::{Mix, OperationKind};

use crate::spec::{Cache, Study};
use crate::{fill, plan};

/// What takes how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallEstimate {
    /// Warm-ups, measured windows, and the shortest searches.
    pub measuring: Duration,
    /// Batch jobs, with making what they read and checking what they leave.
    pub jobs: Duration,
    /// Data sets loaded once, and put on each storage.
    pub loading: Duration,
    /// Systems started and stopped, caches filled, images cloned.
    pub starting: Duration,
    /// What comes before the first cell: this machine's own overhead, and the factor of slow motion where it is open.
    pub trying: Duration,
}

impl WallEstimate {
    pub fn total(&self) -> Duration {
        self.measuring + self.jobs + self.loading + self.starting + self.trying
    }

    /// Of a study at a factor that is yet to be found.
    #[must_use]
    pub fn with_a_trial(self) -> WallEstimate {
        WallEstimate { trying: OWN_OVERHEAD + TRIAL, ..self }
    }
}

/// Images are cloned and written out at about this speed where the file system can't share blocks.
const COPY_BYTES_PER_S: f64 = 150e6;
/// What commands load: databases with their indexes a third of it, files several times as much.
const COMMANDS_LOAD_BYTES_PER_S: f64 = 50e6;
/// Operations that fill caches in fast-forward, against those that load: reads of what is in memory already, where some write ...
const FILL_TO_LOAD: f64 = 0.6;
/// ... and where all of them read. Of replicated systems they took a half to a third of the time.
const READS_TO_LOAD: f64 = 1.2;
/// A job of which nothing is known.
const UNKNOWN_JOB: Duration = Duration::from_secs(25);
/// Attaching, cloning, dropping caches.
const AROUND_A_CELL: Duration = Duration::from_millis(1500);
const OWN_OVERHEAD: Duration = Duration::from_secs(6);
/// Two or three factors of slow motion are tried.
const TRIAL: Duration = Duration::from_secs(25);

/// The estimate for these of a study's cells, each so many times. Where the study leaves the factor of slow motion open, it is tried.
pub fn wall(study: &Study, cells: &[Cell], repetitions: u32) -> WallEstimate {
    let all = plan::expand(study).len().max(1);
    let share = cells.len() as f64 / all as f64;
    let mut estimate = WallEstimate {
        // Cells of one study take about as long as each other.
        measuring: plan::measuring_wall(study).mul_f64(share * f64::from(repetitions)),
        trying: OWN_OVERHEAD,
        ..WallEstimate::default()
    };
    if study.leaves_time_open {
        estimate = estimate.with_a_trial();
    }
    let mut loaded = BTreeSet::new();
    for entry in plan::entries(study) {
        if !cells.iter().any(|cell| cell.id == entry.cell.id) {
            continue;
        }
        let kind = underlay_systems::find(&entry.system.kind);
        // What runs already is not started.
        let started = kind.filter(|_| !entry.storage.is_elsewhere());
        let start_and_stop = started.map_or(Duration::ZERO, |kind| kind.start_and_stop());
        if let plan::CellWork::Benchmark(benchmark) = entry.asked {
            estimate.starting += (start_and_stop + AROUND_A_CELL) * repetitions;
            let is_loaded = entry.system.settings.contains_key("load");
            if is_loaded && loaded.insert(plan::dataset_key_of(study, &entry)) {
                let bytes = study.bytes_here(benchmark.data_bytes) as f64;
                let moving = seconds(bytes / COMMANDS_LOAD_BYTES_PER_S + bytes / COPY_BYTES_PER_S);
                estimate.loading += start_and_stop + moving + AROUND_A_CELL;
            }
            continue;
        }
        if let plan::CellWork::Job(job) = entry.asked {
            // Jobs of one workload on one storage have one start in common.
            let (system, workload) = (&entry.system.name, &entry.workload.name);
            if loaded.insert(format!("jobs {workload} of {system} on {}", entry.storage.name)) {
                estimate.starting += (start_and_stop + AROUND_A_CELL) * repetitions;
            }
            let takes = kind.and_then(|kind| kind.job_takes(&job.name, study.bytes_here(job.data_bytes)));
            let wall =
                takes.map_or(UNKNOWN_JOB, |takes| takes.modelled.mul_f64(study.scale.time) + takes.around);
            estimate.jobs += wall * repetitions;
            continue;
        }
        let Some(requests) = entry.cell.requests() else { continue };
        let loads_per_s = kind.map_or(f64::INFINITY, |kind| kind.loads_per_s());
        let servers = u64::from(entry.system.servers);
        let records = study.records_here(requests.records / servers.max(1)) * servers;
        let record_bytes = entry.workload.record_bytes();
        let mut each = start_and_stop + AROUND_A_CELL;
        if study.run.cache == Cache::Warm && !matches!(requests.mix.as_str(), "load" | "delete") {
            let of_one = records / servers.max(1);
            let sizes = fill::Sizes {
                budget_bytes: study.budget_here(entry.system),
                data_bytes: of_one * record_bytes,
                records: of_one,
            };
            let of_one = fill::operations(entry.system, entry.storage, study.is_slowed(), sizes);
            let operations = of_one * servers;
            let to_load = if only_reads(&requests.mix) { READS_TO_LOAD } else { FILL_TO_LOAD };
            each += seconds(operations as f64 / (loads_per_s * to_load));
        }
        estimate.starting += each * repetitions;
        if requests.mix == "load" || entry.storage.is_elsewhere() {
            continue;
        }
        let key = plan::dataset_key_of(study, &entry);
        let bytes = (records * record_bytes) as f64;
        // A system that spreads its data over several directories or nodes is loaded on each storage; of others the files are copied.
        let is_spread =
            kind.is_some_and(|kind| plan::is_loaded_on_its_storage(kind, &entry.storage.under(entry.system)));
        let is_new_here = loaded.insert(format!("{key} on {}", entry.storage.name));
        let is_new = if is_spread { is_new_here } else { loaded.insert(key) };
        if is_new {
            // It is settled before it is copied: what was written is compacted.
            estimate.loading += start_and_stop + seconds(records as f64 / loads_per_s);
        }
        if is_new_here {
            estimate.loading += seconds(bytes / COPY_BYTES_PER_S) + AROUND_A_CELL;
        }
    }
    estimate
}

fn only_reads(mix: &str) -> bool {
    let reads = |mix: Mix| mix.share(OperationKind::Read) + mix.share(OperationKind::Scan);
    Mix::parse(mix).is_ok_and(|mix| reads(mix) > 0.999)
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUDY: &str = "name = \"x\"\nbaseline = \"hdd\"\n[system.rocksdb]\nmemory = \"128 GB\"\n\
        [storage.hdd]\ndevices = [{ medium = \"hdd-7200-sas\", count = 6, capacity = \"1 TB\" }]\n\
        [storage.flash]\ndevices = [{ medium = \"sx300-1600\" }]\n\
        [workload.w]\nmixes = [\"a\", \"b\", \"c\"]\ndata = [\"256 GB\", \"1 TB\"]\nrecord = { fields = 1, bytes = 1000 }\nthreads = 90\n\
        [run]\nwarmup = \"8 s\"\nduration = \"32 s\"\nrepetitions = 1\n[scale]\ntime = 64\ndata = 1000\n";

    /// On two busy CPUs such a cell took 42.5 to 48.6 s, loading 1 GB some 30 s.
    #[test]
    fn a_study_that_was_timed_takes_as_long_within_a_half() {
        let study = Study::parse("x.toml", STUDY, false).unwrap();
        let cells = plan::expand(&study);
        let estimate = wall(&study, &cells, 1);
        assert_eq!(estimate.measuring, Duration::from_secs(12 * 40));
        let each = (estimate.measuring + estimate.starting).as_secs_f64() / 12.0;
        assert!((45.5 / 1.5..45.5 * 1.5).contains(&each) && each > 42.0, "{each} s a cell");
        assert!((20.0..80.0).contains(&estimate.loading.as_secs_f64()), "{:?}", estimate.loading);
        // Of a part only the part.
        let part = wall(&study, &cells[..1], 2);
        assert_eq!(part.measuring, Duration::from_secs(80));
        assert!(part.loading < estimate.loading);
    }

    const COMMANDS: &str = "name = \"x\"\nbaseline = \"ssd\"\n[system.files]\nkind = \"command\"\nmemory = \"1 GiB\"\nversion = \"fio --version\"\n\
        load = \"fio --name=fill --directory={data}\"\n\
        [storage.ssd]\ndevices = [{ medium = \"ssd-sata\" }]\n[storage.nvme]\ndevices = [{ medium = \"nvme-9300-max\" }]\n\
        [workload.w]\nkind = \"fio\"\ndata = \"30 GB\"\njob = \"[w]\\ndirectory={data}\\nrw=randread\\nbs=4k\\ndirect=1\\n\"\n\
        [run]\nwarmup = \"1 s\"\nduration = \"4 s\"\nrepetitions = 1\n[scale]\ntime = 10\ndata = 10\n";

    #[test]
    fn benchmarks_warm_up_start_and_load_too() {
        let study = Study::parse("x.toml", COMMANDS, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let cells = plan::expand(&study);
        let estimate = wall(&study, &cells, 3);
        assert_eq!(estimate.measuring, Duration::from_secs(2 * 3 * 5));
        assert!(estimate.starting >= AROUND_A_CELL * 6, "{estimate:?}");
        // Each storage is loaded with 3 GB.
        assert!((100.0..300.0).contains(&estimate.loading.as_secs_f64()), "{estimate:?}");
        assert!(estimate.with_a_trial().total() > estimate.total() + TRIAL / 2);
    }

    #[test]
    fn what_runs_already_is_not_started() {
        let text = "name = \"x\"\n[system.oracle-nosql]\nhelpers = [\"h:5000\"]\nstore = \"s\"\nmemory = \"3 GB\"\n\
            [storage.there]\nelsewhere = \"theirs\"\n\
            [workload.w]\nmixes = [\"c\"]\nrecords = 1_000\nrecord = { fields = 1, bytes = 100 }\nthreads = 4\n\
            [run]\nwarmup = \"1 s\"\nduration = \"5 s\"\nrepetitions = 2\n";
        let study = Study::parse("x.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let estimate = wall(&study, &plan::expand(&study), 2);
        // A start and stop takes a minute.
        assert!(estimate.starting < Duration::from_secs(20), "{estimate:?}");
    }

    /// In slow motion x6 the jobs of one storage took 11 min 20 s with its start.
    #[test]
    fn jobs_take_their_time_and_start_once_a_storage() {
        let text = |storages: &str| {
            format!(
                "name = \"x\"\nbaseline = \"a\"\n[system.spark]\nmemory = \"20 GB\"\n{storages}\
                 [workload.w]\nkind = \"jobs\"\njobs = [\"terasort\", \"kmeans\", \"tpcds-few\"]\n\
                 data = {{ terasort = \"200 MB\", kmeans = \"100 MB\", tpcds-few = \"100 MB\" }}\nlimit = \"20 min\"\n\
                 [run]\nrepetitions = 1\n[scale]\ntime = 6\n"
            )
        };
        let storage = |name: &str| format!("[storage.{name}]\ndevices = [{{ medium = \"ssd-sata\" }}]\n");
        let of = |storages: &str| {
            let study = Study::parse("x.toml", &text(storages), false)
                .unwrap_or_else(|mistakes| panic!("{mistakes}"));
            wall(&study, &plan::expand(&study), 1)
        };
        let one = of(&storage("a"));
        assert!((680.0 / 1.5..680.0 * 1.5).contains(&one.total().as_secs_f64()), "{one:?}");
        let two = of(&(storage("a") + &storage("b")));
        assert_eq!((two.jobs, two.starting), (one.jobs * 2, one.starting * 2));
    }
}
