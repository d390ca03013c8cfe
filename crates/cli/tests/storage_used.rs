//! Workloads that never touch the storage under test: their cells are not faithful, and there is no headline.

mod support;

use support::{Playground, can_mount, records, stderr, stdout};
use underlay_record::{CertificateVerdict, CheckId};

/// What `run` does, after `load`, on two modelled storages.
fn study(load: &str, run: &str) -> String {
    format!(
        "name = \"outside\"\nbaseline = \"hdd\"\n[system.file]\nkind = \"command\"\nmemory = \"1 GiB\"\n{load}\
         [storage.hdd]\ndevices = [{{ medium = \"hdd-7200-sata\", capacity = \"1 GiB\" }}]\n\
         [storage.nvme]\ndevices = [{{ medium = \"nvme-9300-max\", capacity = \"1 GiB\" }}]\n\
         [workload.w]\nkind = \"command\"\nrun = \"\"\"\n{run}\n\"\"\"\n\
         [workload.w.figures.speed]\nunit = \"MB/s\"\nbetter = \"higher\"\npattern = 'speed ([0-9]+)'\n\
         [run]\nwarmup = \"0 s\"\nduration = \"1 s\"\nrepetitions = 1\n"
    )
}

/// A program of the user's that reports a speed of its own making.
fn runs_beside(playground: &Playground, load: &str) -> Vec<CertificateVerdict> {
    runs_beside_in(playground, load, |study| study)
}

/// The same in a study that differs from the usual one.
fn runs_beside_in(
    playground: &Playground,
    load: &str,
    change: fn(String) -> String,
) -> Vec<CertificateVerdict> {
    let file = playground.path("outside.bin");
    let run = format!(
        "dd if=/dev/zero of={} bs=1M count=4 conv=fsync 2>{{scratch}}/dd; echo speed 7",
        file.display()
    );
    playground.write("study.toml", &change(study(load, &run)));
    let output = playground.output(&["run", "study.toml", "--time", "1", "--out", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("did not use the storage under test"), "{text}");
    assert!(!text.contains("times the"), "{text}");
    let records = records(&playground.path("out"));
    for record in &records {
        let certificate = record.certificate.as_ref().unwrap();
        assert!(certificate.failed().any(|check| check.id == Some(CheckId::StorageUsed)), "{certificate:?}");
    }
    records.iter().filter_map(|record| Some(record.certificate.as_ref()?.verdict)).collect()
}

#[test]
fn command_beside_storage_gets_no_headline() {
    if !can_mount() {
        return;
    }
    assert_eq!(runs_beside(&Playground::new(), ""), [CertificateVerdict::Doubtful; 2]);
}

/// What was loaded lies on the storage, and nothing of it is read.
#[test]
fn unread_data_is_no_use_of_storage() {
    if !can_mount() {
        return;
    }
    let load = "load = \"dd if=/dev/zero of={data}/file bs=1M count=4 conv=fsync 2>{scratch}/dd\"\n";
    assert_eq!(runs_beside(&Playground::new(), load), [CertificateVerdict::Doubtful; 2]);
    let beside_a_sleeper = format!("{load}start = \"exec sleep 1000\"\nready = \"true\"\n");
    assert_eq!(runs_beside(&Playground::new(), &beside_a_sleeper), [CertificateVerdict::Doubtful; 2]);
}

/// The kernel keeps no pages of a device that nobody has open.
#[test]
fn unread_bare_device_is_unused() {
    if !can_mount() {
        return;
    }
    let load = "load = \"dd if=/dev/zero of={device} bs=1M count=4 oflag=direct 2>{scratch}/dd\"\n";
    let bare = |study: String| study.replace("\"1 GiB\" }]\n", "\"1 GiB\" }]\nfilesystem = \"none\"\n");
    assert_eq!(runs_beside_in(&Playground::new(), load, bare), [CertificateVerdict::Doubtful; 2]);
}

#[test]
fn page_cache_reads_count_as_storage_use() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let load = "load = \"dd if=/dev/zero of={data}/file bs=1M count=4 conv=fsync 2>{scratch}/dd\"\n";
    playground.write("study.toml", &study(load, "cat {data}/file {data}/file >/dev/null; echo speed 7"));
    let output = playground.output(&["run", "study.toml", "--time", "1", "--out", "out"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for record in records(&playground.path("out")) {
        let certificate = record.certificate.unwrap();
        let check = certificate.checks.iter().find(|check| check.id == Some(CheckId::StorageUsed)).unwrap();
        assert!(check.passed, "{check:?}");
    }
}
