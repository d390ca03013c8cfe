//! `[machine]`: whose factor of slow motion it is, and what the times of a study are then.

use std::time::Duration;

use underlay_record::OfferedRate;
use underlay_study::plan;
use underlay_study::spec::Study;

fn study_with(storage: &str, rest: &str) -> Study {
    let text = format!(
        "name = \"machines\"\n[system.rocksdb]\nmemory = \"2 GiB\"\n[storage.a]\n{storage}\n\
         [workload.w]\nrecords = 1_000_000\nmixes = [\"a\"]\nthreads = 8\n\
         rate = [\"max\", {{ ramp = [100, 500], over = \"2 s\" }}]\n\
         [run]\nwarmup = \"1 s\"\nduration = \"4 s\"\n{rest}"
    );
    Study::parse("machine.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

const NVME: &str = "devices = [{ medium = \"nvme-9300-max\" }]";

#[test]
fn factor_is_open_only_with_named_cores() {
    let open = |storage, rest| study_with(storage, rest).leaves_time_open;
    assert!(open(NVME, "[machine]\ncores = 16"));
    assert!(!open(NVME, ""));
    assert!(!open(NVME, "[scale]\ntime = 8\n[machine]\ncores = 16"));
    // One is a factor too.
    assert!(!open(NVME, "[scale]\ntime = 1\n[machine]\ncores = 16"));
    assert!(open(NVME, "[scale]\ndata = 2\n[machine]\ncores = 16"));
    // A real disk goes its own pace.
    assert!(!open("paths = [\"/mnt/a\"]", "[machine]\ncores = 16"));
}

#[test]
fn open_times_are_modelled_and_scale_with_factor() {
    let study = study_with(NVME, "[machine]\ncores = 16");
    let slow = study.with_slow_motion(24.0);
    assert!(!slow.leaves_time_open);
    assert_eq!(
        (slow.scale.time, slow.run.warmup, slow.run.duration),
        (24.0, Duration::from_secs(24), Duration::from_secs(96))
    );
    // Cells have the same names at every factor, in the same order.
    let names =
        |study: &Study| plan::order(study).into_iter().map(|planned| planned.file).collect::<Vec<_>>();
    assert_eq!(names(&study), names(&slow));
    assert_eq!(names(&study.with_slow_motion(1.5)), names(&slow));
    let changing =
        plan::expand(&slow).into_iter().find_map(|cell| match cell.requests().unwrap().rate.clone() {
            OfferedRate::Changing { parts, .. } => Some((cell.id, parts[0].length_s)),
            _ => None,
        });
    assert_eq!(changing, Some(("rocksdb/a/w-a-zipfian-8t-ramp-100-500-2s".to_owned(), 2.0)));
}

#[test]
fn given_times_stay_wall_time() {
    let study = study_with(NVME, "[machine]\ncores = 16\n[scale]\ntime = 8");
    let slower = study.with_slow_motion(16.0);
    assert_eq!((slower.scale.time, slower.run.duration), (16.0, Duration::from_secs(4)));
}

#[test]
fn nodes_of_all_servers_have_the_cores() {
    assert_eq!(study_with(NVME, "").modelled_cores(), None);
    assert_eq!(study_with(NVME, "[machine]\ncores = 16").modelled_cores(), Some(16));
    let text = "name = \"m\"\n[system.cassandra]\nmemory = \"64 GB\"\nnodes = 3\n[storage.a]\n\
                devices = [{ medium = \"nvme-9300-max\" }]\n[workload.w]\nrecords = 1_000_000\nmixes = [\"a\"]\nthreads = 8\n\
                [machine]\ncores = 8\n[scale]\ndata = 10\n";
    let of_several = Study::parse("m.toml", text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(of_several.modelled_cores(), Some(24));
}
