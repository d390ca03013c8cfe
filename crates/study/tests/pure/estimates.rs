//! What `check` and `run` expect of a run's time, held against what runs took on two CPUs that did nothing else (27
//! November 2026, but for MapReduce's, of 21 November). Of each run the parts are from its feed.

use std::fs;
use std::path::PathBuf;

use underlay_record::{CellLimit, WallParts};
use underlay_study::estimate;
use underlay_study::selection::CellSelection;
use underlay_study::spec::Study;

/// What an estimate may be off by.
const FACTOR: f64 = 1.5;
/// Parts of more than this share of a run are held to account by themselves ...
const LARGE_PART: f64 = 0.15;
/// ... and may be off by this.
const PART_FACTOR: f64 = 2.0;

struct Recorded {
    study: &'static str,
    short: bool,
    time: f64,
    only: &'static [&'static str],
    /// What its study said otherwise then.
    changed: &'static [(&'static str, &'static str)],
    took: WallParts,
}

const NOTHING: WallParts = WallParts {
    prepare_s: 0.0,
    load_s: 0.0,
    start_s: 0.0,
    fill_s: 0.0,
    settle_s: 0.0,
    search_s: 0.0,
    warmup_s: 0.0,
    measure_s: 0.0,
    job_s: 0.0,
    around_jobs_s: 0.0,
    restore_s: 0.0,
};

const RUNS: [Recorded; 6] = [
    Recorded {
        study: "quickstart.toml",
        short: false,
        time: 32.0,
        only: &[],
        changed: &[
            ("warmup = \"100 ms\"", "warmup = \"50 ms\""),
            ("hdd-24tb", "hdd-7200-sata"),
            ("intel-s4610-480", "ssd-sata"),
            ("kioxia-cm7-r-3840", "nvme-9300-max"),
            ("memory = \"56 GiB\"", "memory = \"96 GiB\""),
            ("data = \"260 GB\"", "data = \"450 GB\""),
        ],
        took: WallParts {
            prepare_s: 0.6,
            load_s: 13.5,
            start_s: 35.0,
            fill_s: 34.0,
            warmup_s: 43.2,
            measure_s: 216.0,
            restore_s: 16.0,
            ..NOTHING
        },
    },
    Recorded {
        study: "accumulo-flash.toml",
        short: true,
        time: 48.0,
        only: &["workload=throughput"],
        changed: &[],
        took: WallParts {
            prepare_s: 0.7,
            load_s: 299.4,
            start_s: 60.2,
            warmup_s: 117.0,
            measure_s: 240.0,
            restore_s: 26.0,
            ..NOTHING
        },
    },
    // Two servers, one of them loaded.
    Recorded {
        study: "cassandra-nvme-tcp.toml",
        short: true,
        time: 192.0,
        only: &["rate=max"],
        changed: &[],
        took: WallParts {
            prepare_s: 0.7,
            load_s: 107.4,
            start_s: 55.9,
            fill_s: 220.3,
            settle_s: 36.8,
            warmup_s: 180.4,
            measure_s: 288.0,
            restore_s: 18.0,
            ..NOTHING
        },
    },
    Recorded {
        study: "oracle-nosql-flash.toml",
        short: true,
        time: 96.0,
        only: &[],
        changed: &[],
        took: WallParts {
            prepare_s: 0.7,
            load_s: 330.6,
            start_s: 270.1,
            fill_s: 340.4,
            settle_s: 17.7,
            warmup_s: 76.0,
            measure_s: 230.4,
            restore_s: 194.2,
            ..NOTHING
        },
    },
    Recorded {
        study: "spark-object-store.toml",
        short: true,
        time: 6.0,
        only: &[],
        changed: &[],
        took: WallParts {
            prepare_s: 1.4,
            start_s: 130.2,
            job_s: 330.9,
            around_jobs_s: 160.5,
            restore_s: 14.1,
            ..NOTHING
        },
    },
    // With the committers and caches; Alluxio alone took 783 s. Its parts were not told apart: caches store what jobs
    // wrote behind them.
    Recorded {
        study: "spark-object-store.toml",
        short: true,
        time: 12.0,
        only: &[],
        changed: &[(
            "storages = [\"hdfs-colocated\", \"hdfs-disaggregated\", \"s3a-ceph\", \"s3a-ceph-magic\"]",
            "storages = [\"hdfs-colocated\", \"s3a-ceph\", \"s3a-ceph-magic\", \"s3a-ceph-staging\", \"s3a-ceph-cache\", \
             \"s3a-ceph-gateway-through\", \"s3a-ceph-gateway-back\"]",
        )],
        took: WallParts { job_s: 1_374.0, around_jobs_s: 879.0, start_s: 416.0, restore_s: 35.0, ..NOTHING },
    },
];

fn estimate_of(run: &Recorded) -> WallParts {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../studies").join(run.study);
    let mut text = fs::read_to_string(path).unwrap();
    for (original, replacement) in run.changed {
        assert!(text.contains(original), "{} no longer says {original}", run.study);
        text = text.replace(original, replacement);
    }
    let study = Study::parse(run.study, &text, run.short)
        .unwrap_or_else(|mistakes| panic!("{mistakes}"))
        .with_slow_motion(run.time);
    let only = run.only.iter().map(|&one| one.to_owned()).collect();
    let selection = CellSelection::new(&study, &CellLimit { only, repetitions: None }).unwrap();
    estimate::wall(&study, &selection.cells(&study), selection.repetitions(&study))
}

fn is_within(factor: f64, one_s: f64, other_s: f64) -> bool {
    one_s.max(other_s) <= factor * one_s.min(other_s)
}

#[test]
fn runs_on_record_took_what_is_estimated() {
    for run in &RUNS {
        let (estimated, actual) = (estimate_of(run), run.took);
        let name = format!("{} x{}", run.study, run.time);
        let message = format!(
            "{name}: {:.0} s of {:.0} s\n{estimated:?}\n{actual:?}",
            estimated.total_s(),
            actual.total_s()
        );
        println!("{message}");
        assert!(is_within(FACTOR, estimated.total_s(), actual.total_s()), "{message}");
        // The last one is held to its sum alone.
        if run.changed.is_empty() {
            for ((part, estimated_s), (_, took_s)) in estimated.named().into_iter().zip(actual.named()) {
                let is_large = took_s.max(estimated_s) > LARGE_PART * actual.total_s();
                assert!(!is_large || is_within(PART_FACTOR, estimated_s, took_s), "{part}\n{message}");
            }
        }
    }
}

/// 35 jobs of MapReduce, each once, at x8: 15 min 20 s in all, without parts on record.
#[test]
fn jobs_of_mapreduce_took_what_is_estimated() {
    let run = Recorded {
        study: "mapreduce-ssd.toml",
        short: true,
        time: 8.0,
        only: &[],
        changed: &[],
        took: NOTHING,
    };
    let estimated = estimate_of(&run);
    assert!(is_within(FACTOR, estimated.total_s(), 920.0), "{:.0} s: {estimated:?}", estimated.total_s());
}

/// A run of a part of a study is not a part of what the study takes: systems and data sets differ.
#[test]
fn limited_study_estimate_covers_what_runs() {
    let estimate_for = |only: &'static [&'static str]| {
        estimate_of(&Recorded {
            study: "accumulo-flash.toml",
            short: true,
            time: 48.0,
            only,
            changed: &[],
            took: NOTHING,
        })
    };
    let (all, disks) = (estimate_for(&[]), estimate_for(&["workload=throughput", "storage=hdd"]));
    let both = estimate_for(&["workload=throughput"]);
    assert_eq!(all.load_s, both.load_s, "the workloads share their data");
    assert!((both.load_s - 2.0 * disks.load_s).abs() < 1e-6, "each storage is loaded by itself");
    assert!(disks.measure_s > 0.0 && (both.measure_s - 2.0 * disks.measure_s).abs() < 1e-6);
}
