//! How long a study takes on this machine's clock, before it runs.
//!
//! The times come from runs on two CPUs whose parts are on record (`pure/estimates.rs`). A run records its estimate and
//! its actual times.

use std::collections::BTreeSet;

use underlay_record::{Cell, OfferedRate, WallParts};
use underlay_workload::{OperationKind, OperationMix};

use crate::spec::{InitialCacheState, Study};
use crate::{fill, plan};

/// Images are cloned and written out at about this speed where the file system can't share blocks.
const COPY_BYTES_PER_S: f64 = 150e6;
/// The rate at which commands load data. Databases with indexes reach a third of it, files several times as much.
const COMMANDS_LOAD_BYTES_PER_S: f64 = 50e6;
/// Systems state how many records of this size they load per second. For larger records the rate is lower.
const LOADED_RECORD_BYTES: f64 = 1000.0;
/// Operations that fill caches in fast-forward, relative to those that load. They read what is already in memory. This
/// applies where some of them write ...
const FILL_TO_LOAD: f64 = 0.4;
/// ... and this where all of them read. On replicated systems they took a half to a third of the time.
const READS_TO_LOAD: f64 = 0.9;
/// An unknown job.
const UNKNOWN_JOB_S: f64 = 25.0;
/// Time to attach, clone and drop caches.
const AROUND_A_CELL_S: f64 = 1.0;
const OWN_OVERHEAD_S: f64 = 1.0;
/// Two or three slow-motion factors are tried.
const TRIAL_S: f64 = 5.0;
/// The start takes this share of a system's start and stop time. The last operations and the stop take the rest ...
const START_SHARE: f64 = 0.7;
/// ... except for the time to settle where caches were filled.
const SETTLE_SHARE: f64 = 0.1;
/// The start of each further server of a cell, relative to the first. Servers start one after the other and are ready
/// together.
const FURTHER_SERVER: f64 = 0.5;

/// The estimate for these cells of a study, each repeated this many times. Where the study leaves the slow-motion
/// factor open, the estimate includes trying it.
pub fn wall(study: &Study, cells: &[Cell], repetitions: u32) -> WallParts {
    let wanted: BTreeSet<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
    let parts = counted(study, &|id| if wanted.contains(id) { repetitions } else { 0 });
    if study.leaves_time_open { with_a_trial(parts) } else { parts }
}

/// The estimate for a study whose factor has yet to be found.
#[must_use]
pub fn with_a_trial(parts: WallParts) -> WallParts {
    WallParts { prepare_s: OWN_OVERHEAD_S + TRIAL_S, ..parts }
}

/// The estimate for a study whose factor is known. `count_of` gives the number of runs of each cell by id.
pub(crate) fn counted(study: &Study, count_of: &dyn Fn(&str) -> u32) -> WallParts {
    let mut estimate = WallParts::default();
    let mut loaded = BTreeSet::new();
    for entry in plan::entries(study) {
        let count = f64::from(count_of(&entry.cell.id));
        if count == 0.0 {
            continue;
        }
        estimate.prepare_s = OWN_OVERHEAD_S;
        let kind = underlay_systems::find(&entry.system.kind);
        let settings = entry.system.with_nodes(entry.storage.settings_of(entry.system));
        // External systems are not started.
        let started = kind.filter(|_| !entry.storage.is_elsewhere());
        let one_server_s = started.map_or(0.0, |kind| kind.start_and_stop(&settings).as_secs_f64());
        let further = f64::from(entry.system.servers.max(1) - 1);
        let start_and_stop_s = one_server_s * (1.0 + FURTHER_SERVER * further);
        let start_s = start_and_stop_s * START_SHARE + AROUND_A_CELL_S;
        let restore_s = start_and_stop_s * (1.0 - START_SHARE);
        if let plan::CellWork::Benchmark(benchmark) = entry.asked {
            estimate.start_s += start_s * count;
            estimate.restore_s += restore_s * count;
            // Most commands get their running time from {warmup_s} and {duration_s}.
            estimate.measure_s += (study.run.warmup + study.run.duration).as_secs_f64() * count;
            let is_loaded = entry.system.settings.contains_key("load");
            if is_loaded && loaded.insert(plan::dataset_key_of(study, &entry)) {
                let bytes = study.bytes_here(benchmark.data_bytes) as f64;
                let moving_s = bytes / COMMANDS_LOAD_BYTES_PER_S + bytes / COPY_BYTES_PER_S;
                estimate.load_s += start_and_stop_s + moving_s + AROUND_A_CELL_S;
            }
            continue;
        }
        if let plan::CellWork::Job(job) = entry.asked {
            // Jobs of one workload on one storage configuration share one start.
            let (system, workload) = (&entry.system.name, &entry.workload.name);
            if loaded.insert(format!("jobs {workload} of {system} on {}", entry.storage.name)) {
                estimate.start_s += start_s * count;
                estimate.restore_s += restore_s * count;
            }
            let bytes = study.bytes_here(job.data_bytes);
            match kind.and_then(|kind| kind.job_takes(&job.name, bytes, &settings)) {
                Some(takes) => {
                    estimate.job_s += takes.modelled.as_secs_f64() * study.scale.time * count;
                    let storing_s = takes.storing.as_secs_f64() * study.scale.time;
                    estimate.around_jobs_s += (takes.around.as_secs_f64() + storing_s) * count;
                }
                None => estimate.job_s += UNKNOWN_JOB_S * count,
            }
            continue;
        }
        let Some(requests) = entry.cell.requests() else { continue };
        estimate.warmup_s += study.run.warmup.as_secs_f64() * count;
        estimate.measure_s += study.run.duration.as_secs_f64() * count;
        if let (OfferedRate::Highest { .. }, Some(wanted)) = (&requests.rate, &entry.workload.find_rate) {
            let shortest = wanted.shortest(study.run.duration, study.scale.time);
            estimate.search_s += shortest.as_secs_f64() * count;
        }
        let servers = u64::from(entry.system.servers.max(1));
        let of_one_server = study.records_here(requests.records / servers);
        let record_bytes = entry.workload.record_bytes();
        // The bytes that a system loads per second in records of this size.
        let larger = (record_bytes as f64 / LOADED_RECORD_BYTES).max(1.0);
        let loads_per_s = kind.map_or(f64::INFINITY, |kind| kind.loads_per_s());
        estimate.start_s += start_s * count;
        if study.run.cache == InitialCacheState::Warm && !matches!(requests.mix.as_str(), "load" | "delete") {
            let sizes = fill::CellSizes {
                budget_bytes: study.budget_here(entry.system),
                data_bytes: of_one_server * record_bytes,
                records: of_one_server,
            };
            let of_one = fill::operations(entry.system, entry.storage, study.is_slowed(), sizes);
            let to_load = if only_reads(&requests.mix) { READS_TO_LOAD } else { FILL_TO_LOAD };
            estimate.fill_s += (of_one * servers) as f64 / (loads_per_s * to_load) * count;
            estimate.settle_s += start_and_stop_s * SETTLE_SHARE * count;
            estimate.restore_s += (restore_s - start_and_stop_s * SETTLE_SHARE) * count;
        } else {
            estimate.restore_s += restore_s * count;
        }
        if requests.mix == "load" || entry.storage.is_elsewhere() {
            continue;
        }
        let key = plan::dataset_key_of(study, &entry);
        // A system that spreads its data over several directories or nodes is loaded on each storage configuration. For
        // other systems the files are copied.
        let is_spread =
            kind.is_some_and(|kind| plan::is_loaded_on_its_storage(kind, &entry.storage.under(entry.system)));
        let is_new_here = loaded.insert(format!("{key} on {}", entry.storage.name));
        let is_new = if is_spread { is_new_here } else { loaded.insert(key) };
        if is_new {
            // Independent servers hold the same data, so only one is loaded. It settles before it is copied, so that
            // written data is compacted.
            estimate.load_s += one_server_s + of_one_server as f64 * larger / loads_per_s;
        }
        if is_new_here {
            let bytes = (of_one_server * servers * record_bytes) as f64;
            estimate.load_s += bytes / COPY_BYTES_PER_S + AROUND_A_CELL_S;
        }
    }
    estimate
}

fn only_reads(mix: &str) -> bool {
    share_of_reads(mix).is_some_and(|share| share > 0.999)
}

/// The share of reads among a mix's operations; `None` if this is no mix.
pub(crate) fn share_of_reads(mix: &str) -> Option<f64> {
    let mix = OperationMix::parse(mix).ok()?;
    Some(mix.share(OperationKind::Read) + mix.share(OperationKind::Scan))
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
    fn timed_study_estimate_is_within_half() {
        let study = Study::parse("x.toml", STUDY, false).unwrap();
        let cells = plan::expand(&study);
        let estimate = wall(&study, &cells, 1);
        assert_eq!((estimate.warmup_s, estimate.measure_s), (12.0 * 8.0, 12.0 * 32.0));
        let each = (estimate.total_s() - estimate.load_s) / 12.0;
        assert!((45.5 / 1.5..45.5 * 1.5).contains(&each) && each > 42.0, "{each} s a cell");
        assert!((20.0..80.0).contains(&estimate.load_s), "{estimate:?}");
        // For some of the cells, only their part.
        let part = wall(&study, &cells[..1], 2);
        assert_eq!(part.warmup_s + part.measure_s, 80.0);
        assert!(part.load_s < estimate.load_s);
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
        assert_eq!(estimate.measure_s, 2.0 * 3.0 * 5.0);
        assert!(estimate.start_s >= AROUND_A_CELL_S * 6.0, "{estimate:?}");
        // Each storage configuration is loaded with 3 GB.
        assert!((100.0..300.0).contains(&estimate.load_s), "{estimate:?}");
        let more_s = with_a_trial(estimate).total_s() - estimate.total_s();
        assert!((more_s - TRIAL_S).abs() < 1e-6, "{more_s}");
    }

    #[test]
    fn running_cluster_start_is_not_estimated() {
        let text = "name = \"x\"\n[system.oracle-nosql]\nhelpers = [\"h:5000\"]\nstore = \"s\"\nmemory = \"3 GB\"\n\
            [storage.there]\nelsewhere = \"theirs\"\n\
            [workload.w]\nmixes = [\"c\"]\nrecords = 1_000\nrecord = { fields = 1, bytes = 100 }\nthreads = 4\n\
            [run]\nwarmup = \"1 s\"\nduration = \"5 s\"\nrepetitions = 2\n";
        let study = Study::parse("x.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let estimate = wall(&study, &plan::expand(&study), 2);
        // A start and stop takes a minute.
        assert!(estimate.start_s + estimate.restore_s < 20.0, "{estimate:?}");
    }

    /// The times of the same jobs at x12 without a cache, behind the gateway, and behind Alluxio.
    #[test]
    fn job_estimates_with_caches_match_runs() {
        for (settings, took_s) in
            [("", 785.0), ("cache = \"gateway\"\n", 830.0), ("cache = \"alluxio\"\n", 1_180.0)]
        {
            let text = format!(
                "name = \"x\"\nbaseline = \"a\"\n[system.spark]\nmemory = \"20 GB\"\nstore = \"s3a\"\nreplication = 3\n{settings}\
                 [storage.a]\ndevices = [{{ medium = \"ssd-sata\" }}]\n\
                 [workload.w]\nkind = \"jobs\"\njobs = [\"terasort\", \"tpcds-few\"]\n\
                 data = {{ terasort = \"400 MB\", tpcds-few = \"200 MB\" }}\nlimit = \"20 min\"\n\
                 [run]\nrepetitions = 1\n[scale]\ntime = 12\n"
            );
            let study = Study::parse("x.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            let estimate = wall(&study, &plan::expand(&study), 1);
            let off = estimate.total_s() / took_s;
            assert!((1.0 / 1.5..1.5).contains(&off), "{settings}: {off:.2} of {took_s} s, {estimate:?}");
        }
    }

    /// In slow motion x6, the jobs of one storage configuration took 11 min 20 s including its start.
    #[test]
    fn jobs_take_their_time_and_start_once_a_storage() {
        let text = |storages: &str| {
            format!(
                "name = \"x\"\nbaseline = \"a\"\n[system.spark]\nmemory = \"20 GB\"\nstore = \"s3a\"\nreplication = 1\n{storages}\
                 [workload.w]\nkind = \"jobs\"\njobs = [\"terasort\", \"kmeans\", \"tpcds-few\"]\n\
                 data = {{ terasort = \"200 MB\", kmeans = \"100 MB\", tpcds-few = \"100 MB\" }}\nlimit = \"20 min\"\n\
                 [run]\nrepetitions = 1\n[scale]\ntime = 6\n"
            )
        };
        let storage = |name: &str| format!("[storage.{name}]\ndevices = [{{ medium = \"ssd-sata\" }}]\n");
        let estimate_for = |storages: &str| {
            let study = Study::parse("x.toml", &text(storages), false)
                .unwrap_or_else(|mistakes| panic!("{mistakes}"));
            wall(&study, &plan::expand(&study), 1)
        };
        let one = estimate_for(&storage("a"));
        assert!((680.0 / 1.5..680.0 * 1.5).contains(&one.total_s()), "{one:?}");
        let two = estimate_for(&(storage("a") + &storage("b")));
        for (of_two, of_one) in [(two.job_s, one.job_s), (two.start_s, one.start_s)] {
            assert!(of_one > 1.0 && (of_two - 2.0 * of_one).abs() < 1e-6, "{of_two} {of_one}");
        }
    }
}
