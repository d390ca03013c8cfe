//! A trial of a study's fastest storage configuration on empty devices: reads at the study's concurrency, and the
//! requests of a log.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use underlay_attach::direct_load::{self, DirectLoad, DirectRequests};
use underlay_attach::{AttachError, CpuConfinement, ResourceRegistry};
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::predict::{self, AccessPattern, ClosedLoop};
use underlay_storage::stack::{BackingSpec, DeviceSpec, InitialState, StackSpec, VolumeSpec};

use super::placement::CpuPlacement;
use crate::estimate::share_of_reads;
use crate::fio_job::waits_for_writes;
use crate::spec::{StorageSource, StorageSpec, Study};

/// More threads or devices would lengthen a trial and show nothing more.
const MAX_THREADS: u32 = 128;
const MAX_DEVICES: usize = 16;
const READ_BYTES: u64 = 4096;
/// Enough for random reads. A disk's seeks over it are short, but a disk is never the fastest device.
const DEVICE_BYTES: u64 = 1 << 30;
const STRIPE_BYTES: u64 = 64 << 10;
const DURATION: Duration = Duration::from_millis(600);
/// With a larger share of reads, writes do not matter.
const MOSTLY_READS: f64 = 0.9;
/// Half of what a cell's certificate allows, since the load generator will need its share of the emulation's CPUs too.
const MEAN_TOLERANCE: f64 = 0.05;
const P99_TOLERANCE: f64 = 0.10;
/// The tolerance of a cell's certificate. One writer waits for one request after the other, so its slowest requests are
/// due to this host alone, and half the tolerance is rarely reached.
const WRITES_P99_TOLERANCE: f64 = 0.20;
/// Slow devices in slow motion are tried for longer, until they have answered enough requests, but at most this long.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(4);
/// A handful of requests gives no percentile, and fewer give no mean.
const MIN_REQUESTS: u64 = 100;
const MIN_FOR_A_MEAN: u64 = 10;

/// A trial's verdict on a factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FactorVerdict {
    /// Programs wait no longer than the models require.
    Holds,
    TooFast,
    /// The result is unknown, with the reason.
    Untried(String),
}

/// Tries one factor after the other.
pub(super) struct FactorTrial {
    volume: VolumeSpec,
    /// A single device. Every member of a stripe gets every flush. The models' requests would then differ from those
    /// that the program waited for, and no factor would seem slow enough.
    log_volume: VolumeSpec,
    loads: Vec<TrialLoad>,
    /// Reads per second of one thread on the fastest medium.
    least_rate_per_s: f64,
    seed: u64,
}

/// One kind of request, and how late its p99 may be.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TrialLoad {
    requests: DirectRequests,
    threads: u32,
    p99_tolerance: Option<f64>,
}

impl TrialLoad {
    fn reads(threads: u32) -> TrialLoad {
        TrialLoad { requests: DirectRequests::RandomReads, threads, p99_tolerance: Some(P99_TOLERANCE) }
    }

    /// Tails of writes come from the medium's internal work, which hits the few writes of a trial by chance.
    fn mixed(threads: u32) -> TrialLoad {
        TrialLoad { requests: DirectRequests::Mixed, threads, p99_tolerance: None }
    }

    fn log(p99_tolerance: Option<f64>) -> TrialLoad {
        TrialLoad { requests: DirectRequests::SyncedWrites, threads: 1, p99_tolerance }
    }
}

impl FactorTrial {
    /// `None` where nothing is modelled. Also where everything is a batch job, since its concurrency is unknown. The
    /// concurrency of a user's benchmark is unknown as well, but it is at least one, and most benchmarks wait for a
    /// log.
    pub(super) fn from_study(study: &Study) -> Option<FactorTrial> {
        let max_threads = study.workloads.iter().flat_map(|workload| &workload.threads).max().copied();
        let benchmarks = || study.workloads.iter().filter_map(|workload| workload.benchmark.as_ref());
        let has_benchmark = benchmarks().next().is_some();
        let threads = max_threads.or(has_benchmark.then_some(1))?;
        let mut loads = vec![TrialLoad::reads(threads.min(MAX_THREADS))];
        let mut mixes = study.workloads.iter().flat_map(|workload| &workload.mixes);
        if mixes.any(|mix| writes(mix)) {
            loads.push(TrialLoad::mixed(threads.min(MAX_THREADS)));
        }
        if has_benchmark {
            // The slow requests of a database that writes a log are the reads next to it. fio may write nothing but the
            // log.
            let is_all = benchmarks().any(|one| one.plan.job.as_deref().is_some_and(waits_for_writes));
            loads.push(TrialLoad::log(is_all.then_some(WRITES_P99_TOLERANCE)));
        }
        let storages = study.storages.iter().chain(&study.role_storages);
        let (storage, _) = storages
            .filter_map(|storage| Some((storage, rate_per_s(fastest_medium(storage)?, threads))))
            .max_by(|one, other| one.1.total_cmp(&other.1))?;
        let times =
            study.systems.iter().map(|system| system.servers.saturating_mul(storage.under(system).nodes));
        let times = times.max().unwrap_or(1);
        let own = storage.devices().iter();
        let media = own.flat_map(|devices| std::iter::repeat_n(&devices.medium, devices.count as usize));
        let of_all: Vec<&CatalogueMedium> = match &storage.source {
            // All servers share one pool.
            StorageSource::Volume(_) => media.take(MAX_DEVICES).collect(),
            _ => {
                let each: Vec<&CatalogueMedium> = media.collect();
                each.repeat((times as usize).min(MAX_DEVICES)).into_iter().take(MAX_DEVICES).collect()
            }
        };
        let devices =
            of_all.into_iter().enumerate().map(|(index, medium)| trial_device(index, medium)).collect();
        let volume = VolumeSpec::striped("trial", devices, STRIPE_BYTES);
        let fastest = fastest_medium(storage)?;
        let log_volume = VolumeSpec::striped("trial", vec![trial_device(0, fastest)], STRIPE_BYTES);
        let least_rate_per_s = rate_per_s(fastest, 1);
        Some(FactorTrial { volume, log_volume, loads, least_rate_per_s, seed: study.run.seed })
    }

    /// Whether programs wait no longer than the models require. Without block devices for a trial, the host's first
    /// cells have to show it. `None` if `stop` was raised.
    pub(super) fn run_at(
        &self,
        time: f64,
        placement: &CpuPlacement,
        registry: &ResourceRegistry,
        stop: &AtomicBool,
    ) -> Result<Option<FactorVerdict>, AttachError> {
        let mut untried = None;
        for &load in &self.loads {
            let try_it = || self.verdict(load, time, placement, registry, stop);
            let Some(mut found) = try_it()? else { return Ok(None) };
            if found == FactorVerdict::TooFast {
                // A hypervisor that takes the CPU for some milliseconds makes a hundredth of these few requests late.
                // As with cells, two such failures are no chance.
                let Some(again) = try_it()? else { return Ok(None) };
                if again == FactorVerdict::Holds {
                    found = FactorVerdict::Holds;
                }
            }
            match found {
                FactorVerdict::Holds => {}
                FactorVerdict::TooFast => return Ok(Some(FactorVerdict::TooFast)),
                FactorVerdict::Untried(reason) => untried = Some(reason),
            }
        }
        Ok(Some(untried.map_or(FactorVerdict::Holds, FactorVerdict::Untried)))
    }

    fn volume_of(&self, requests: DirectRequests) -> &VolumeSpec {
        match requests {
            DirectRequests::SyncedWrites => &self.log_volume,
            DirectRequests::RandomReads | DirectRequests::Mixed => &self.volume,
        }
    }

    /// Long enough for a meaningful number of requests.
    fn duration(&self, time: f64) -> Duration {
        let needed_s = MIN_REQUESTS as f64 * 1.5 * time / self.least_rate_per_s.max(f64::MIN_POSITIVE);
        Duration::from_secs_f64(needed_s.clamp(DURATION.as_secs_f64(), MAX_TRIAL_TIME.as_secs_f64()))
    }

    fn verdict(
        &self,
        tried: TrialLoad,
        time: f64,
        placement: &CpuPlacement,
        registry: &ResourceRegistry,
        stop: &AtomicBool,
    ) -> Result<Option<FactorVerdict>, AttachError> {
        let TrialLoad { requests, threads, p99_tolerance } = tried;
        let volume = self.volume_of(requests).clone();
        let stack = StackSpec { volumes: vec![volume], dilation: time, seed: self.seed };
        // The daemon runs on the same CPUs as a cell's daemon.
        let _confined = CpuConfinement::confine_to(&placement.emulation)?;
        let duration = self.duration(time);
        let load = DirectLoad { requests, threads, cpus: placement.system.clone(), duration };
        let found = match direct_load::measure(&stack, &load, registry, stop) {
            Err(AttachError::Missing(missing)) => {
                let reason = format!("{} is missing ({})", missing.what, missing.remedy);
                return Ok(Some(FactorVerdict::Untried(reason)));
            }
            other => other?,
        };
        let Some(found) = found else { return Ok(None) };
        let answered = found.waited.count();
        if answered < MIN_FOR_A_MEAN {
            let seconds = duration.as_secs_f64();
            return Ok(Some(FactorVerdict::Untried(format!(
                "in x{time} they answered {answered} requests in {seconds:.1} s, too few to tell"
            ))));
        }
        let late = |asked: f64, got: f64| got / asked.max(f64::MIN_POSITIVE) - 1.0;
        let p99_late = late(found.modelled.quantile_us(0.99), found.waited.quantile_us(0.99));
        let p99_holds = answered < MIN_REQUESTS || p99_tolerance.is_none_or(|most| p99_late <= most);
        let keeps_up = p99_holds && late(found.modelled.mean_us(), found.waited.mean_us()) <= MEAN_TOLERANCE;
        Ok(Some(if keeps_up { FactorVerdict::Holds } else { FactorVerdict::TooFast }))
    }
}

/// Whether a mix changes a large part of what it touches.
fn writes(mix: &str) -> bool {
    share_of_reads(mix).is_some_and(|share| share < MOSTLY_READS)
}

/// An empty device for a trial.
fn trial_device(index: usize, medium: &CatalogueMedium) -> DeviceSpec {
    DeviceSpec::new(format!("trial.{index}"), Some(medium.clone()), DEVICE_BYTES, BackingSpec::Null)
}

fn fastest_medium(storage: &StorageSpec) -> Option<&CatalogueMedium> {
    storage
        .devices()
        .iter()
        .map(|devices| &devices.medium)
        .max_by(|one, other| rate_per_s(one, 1).total_cmp(&rate_per_s(other, 1)))
}

/// Reads per second at this queue depth, in virtual time.
fn rate_per_s(medium: &CatalogueMedium, queue_depth: u32) -> f64 {
    let load = ClosedLoop {
        pattern: AccessPattern::RandomRead,
        block_bytes: READ_BYTES,
        queue_depth: queue_depth.clamp(1, MAX_THREADS) as usize,
        requests: 500,
        warmup: 20,
        seed: 1,
    };
    let capacity_bytes = medium.capacity_bytes().min(DEVICE_BYTES);
    predict::closed_loop(&mut *medium.model(capacity_bytes, 1, InitialState::default()), &load).iops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(storages: &str) -> Study {
        let text = format!(
            "name = \"a\"\nbaseline = \"a\"\n[system.rocksdb]\nmemory = \"1 GiB\"\n{storages}\n\
             [workload.w]\nmixes = [\"c\"]\nrecords = 100000\nthreads = [4, 20]\n[machine]\ncores = 4\n"
        );
        Study::parse("a.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    #[test]
    fn fastest_storage_is_tried_at_study_concurrency() {
        let study = study(
            "[storage.a]\ndevices = [{ medium = \"hdd-7200-sata\" }]\n[storage.b]\ndevices = [{ medium = \"nvme-9300-max\" }]",
        );
        let trial = FactorTrial::from_study(&study).unwrap();
        assert_eq!(trial.loads, [TrialLoad::reads(20)]);
        let mut updates = study.clone();
        updates.workloads[0].mixes = vec!["a".to_owned()];
        assert_eq!(
            FactorTrial::from_study(&updates).unwrap().loads,
            [TrialLoad::reads(20), TrialLoad::mixed(20)]
        );
        let devices = trial.volume.devices();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].medium.as_ref().map(|medium| medium.name.as_str()), Some("nvme-9300-max"));
    }

    #[test]
    fn slow_devices_in_slow_motion_are_tried_for_longer() {
        let disk = FactorTrial::from_study(&study("[storage.a]\ndevices = [{ medium = \"hdd-7200-sata\" }]"))
            .unwrap();
        let card = FactorTrial::from_study(&study("[storage.a]\ndevices = [{ medium = \"optane-p5800x\" }]"))
            .unwrap();
        assert_eq!(card.duration(8.0), DURATION);
        assert!(
            disk.duration(1.0) > DURATION && disk.duration(1.0) < MAX_TRIAL_TIME,
            "{:?}",
            disk.duration(1.0)
        );
        assert_eq!(disk.duration(100.0), MAX_TRIAL_TIME);
    }

    /// A stripe's flush is one flush of each member, so the models' requests differ from those that the program waits
    /// for.
    #[test]
    fn log_on_stripe_is_tried_on_one_device() {
        let text = "name = \"a\"\nbaseline = \"a\"\n[system.s]\nkind = \"command\"\nmemory = \"1 GiB\"\n\
                    [storage.a]\ndevices = [{ medium = \"nvme-9300-max\", count = 4 }]\nlayout = \"stripe\"\n\
                    [workload.w]\nkind = \"fio\"\njob = \"[log]\\nfilename={data}/log\\nrw=write\\nfsync=1\"\n\
                    [machine]\ncores = 4\n";
        let study = Study::parse("a.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let trial = FactorTrial::from_study(&study).unwrap();
        let devices_of = |requests| trial.volume_of(requests).devices().len();
        assert_eq!(devices_of(DirectRequests::RandomReads), 4);
        assert_eq!(devices_of(DirectRequests::SyncedWrites), 1);
    }

    #[test]
    fn benchmark_is_tried_as_a_log() {
        let text = "name = \"a\"\nbaseline = \"a\"\n[system.s]\nkind = \"command\"\nmemory = \"1 GiB\"\n\
                    [storage.a]\ndevices = [{ medium = \"nvme-9300-max\" }]\n\
                    [workload.w]\nkind = \"command\"\nrun = \"true\"\n\
                    [workload.w.figures.speed]\nunit = \"MB/s\"\nbetter = \"higher\"\npattern = '([0-9]+)'\n\
                    [machine]\ncores = 4\n";
        let study = Study::parse("a.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let trial = FactorTrial::from_study(&study).unwrap();
        assert_eq!(trial.loads, [TrialLoad::reads(1), TrialLoad::log(None)]);
        // The p99 of fio's log is the p99 of the writes themselves.
        let fio = text.replace(
            "kind = \"command\"\nrun = \"true\"",
            "kind = \"fio\"\njob = \"[log]\\nfilename={data}/log\\nrw=write\\nfdatasync=1\"",
        );
        let fio = &fio[..fio.find("[workload.w.figures").unwrap()];
        let study = Study::parse("a.toml", &format!("{fio}[machine]\ncores = 4\n"), false)
            .unwrap_or_else(|mistakes| panic!("{mistakes}"));
        assert_eq!(
            FactorTrial::from_study(&study).unwrap().loads,
            [TrialLoad::reads(1), TrialLoad::log(Some(WRITES_P99_TOLERANCE))]
        );
    }
}
