//! What published comparisons ask for, and a study can say: shares of operations, a writer beside readers, a volume
//! with one figure of its own, a device's read-ahead.

use underlay_storage::catalogue::ModelParameters;
use underlay_study::plan;
use underlay_study::spec::{StorageSource, Study};

const STUDY: &str = r#"name = "theirs"
[system.rocksdb]
memory = "2 GiB"
[storage.cloud]
devices = [{ medium = "ebs-io2" }]
[workload.ycsb]
data = "16 GB"
mixes = ["a"]
threads = 8
"#;

fn study(changes: &[(&str, &str)]) -> Study {
    let text = changes.iter().fold(STUDY.to_owned(), |text, (original, replacement)| {
        assert!(text.contains(original), "{original}");
        text.replace(original, replacement)
    });
    Study::parse("theirs.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

#[test]
fn operation_shares_make_mix_with_spelled_name() {
    let mixes = "[{ update = 1.0 }, { read = 80, update = 20 }, { rmw = 0.25, scan = 0.75 }]";
    let found = study(&[("[\"a\"]", mixes)]);
    assert_eq!(found.workloads[0].mixes, ["update100", "read80-update20", "scan75-rmw25"]);
    let cells = plan::expand(&found);
    assert_eq!(cells[0].id, "rocksdb/cloud/ycsb-update100-uniform-8t", "CoreWorkload's own distribution");
    // Read again by the name that records and `--only` have.
    assert_eq!(study(&[("\"a\"", "\"read80-update20\"")]).workloads[0].mixes, ["read80-update20"]);
    assert_eq!(study(&[("[\"a\"]", "{ read = 1 }")]).workloads[0].mixes, ["read100"]);
}

#[test]
fn writer_with_readers_is_part_of_workload() {
    let background = "threads = 8\nbeside = { mix = { update = 1.0 }, rate = 10_000 }";
    let found = study(&[("[\"a\"]", "[\"c\"]"), ("threads = 8", background)]);
    let background = found.workloads[0].beside.as_ref().unwrap();
    assert_eq!(
        (background.mix.as_str(), background.threads, background.rate_per_s),
        ("update100", 1, Some(10_000.0))
    );
}

#[test]
fn medium_figure_is_changed_where_named() {
    let found = study(&[("\"ebs-io2\"", "\"ebs-io2\", count = 2, instance_iops = 18_750")]);
    let StorageSource::Modelled { devices, .. } = &found.storages[0].source else { panic!("modelled") };
    let medium = &devices[0].medium;
    assert_eq!((medium.name.as_str(), devices[0].count), ("ebs-io2-instance-iops-18750", 2));
    let ModelParameters::Cloud(model) = &medium.model else { panic!("a cloud volume") };
    assert_eq!(model.instance_iops.as_ref().unwrap().value, 18_750.0);
    // A volume server reads it from a file.
    let text = &found.media_files["ebs-io2-instance-iops-18750.toml"];
    assert_eq!(&underlay_storage::catalogue::CatalogueMedium::parse("copy", text).unwrap(), medium);
    // Two of them side by side are two media.
    let two =
        "[{ medium = \"ebs-io2\" }, { medium = \"ebs-io2\", instance_iops = 18_750 }]\nlayout = \"stripe\"";
    let mistakes = Study::parse("theirs.toml", &STUDY.replace("[{ medium = \"ebs-io2\" }]", two), false);
    assert!(mistakes.unwrap_err().to_string().contains("not equal"));
}

/// The device of a storage, for `[{ DEVICE }]`.
fn device(device: &str) -> underlay_study::spec::DeviceSpec {
    let found = study(&[("medium = \"ebs-io2\"", device)]);
    let StorageSource::Modelled { devices, .. } = &found.storages[0].source else { panic!("modelled") };
    devices[0].clone()
}

fn mistakes(device: &str) -> String {
    let text = STUDY.replace("medium = \"ebs-io2\"", device);
    Study::parse("theirs.toml", &text, false).unwrap_err().to_string()
}

/// 50 GiB of gp2 once had 1,500 IOPS and cost $1,800.
#[test]
fn volume_rates_and_price_follow_study_size() {
    let volume = device("medium = \"ebs-gp2\", capacity = \"50 GiB\"");
    let ModelParameters::Cloud(model) = &volume.medium.model else { panic!("a cloud volume") };
    assert_eq!((model.baseline_iops.value, volume.medium.price_usd()), (150.0, 180.0));
    assert_eq!((volume.medium.name.as_str(), volume.capacity_bytes), ("ebs-gp2-50-gib", Some(50 << 30)));
    // Larger than the catalogue's is no mistake, as long as it is sold.
    let large = device("medium = \"ebs-gp2\", capacity = \"2 TiB\", count = 2");
    assert!((large.medium.price_usd() - 7_372.8).abs() < 0.01, "{}", large.medium.price_usd());
    assert!(
        mistakes("medium = \"ebs-gp2\", capacity = \"17 TiB\"")
            .contains("the provider sells from 1 to 16384 GiB")
    );
    let larger = device("medium = \"ebs-gp2\", capacity = \"17 TiB\", larger_than_medium = true");
    assert_eq!(larger.capacity_bytes, Some(17 << 40));
    assert!(
        mistakes("medium = \"ebs-gp3\", capacity = \"16 GiB\", baseline_iops = 16_000")
            .contains("500 IOPS for each GiB")
    );
    assert!(
        mistakes("medium = \"ebs-gp2\", capacity = \"50 GiB\", baseline_iops = 3000")
            .contains("the provider gives 150 IOPS with 50 GiB, and sells no other rate")
    );
}

/// What is scaled is the device that is made, not the volume that is rented.
#[test]
fn data_scale_leaves_volume_rates_alone() {
    let scaled = "[scale]\ndata = 100\n[workload.ycsb]";
    let found = study(&[
        ("medium = \"ebs-io2\"", "medium = \"ebs-gp2\", capacity = \"50 GiB\""),
        ("data = \"16 GB\"", "data = \"1.6 GB\""),
        ("memory = \"2 GiB\"", "memory = \"8 GiB\""),
        ("[workload.ycsb]", scaled),
    ]);
    let entry = &plan::entries(&found)[0];
    let volume = underlay_study::modelled::storage_of(&found, entry).unwrap().volumes.remove(0);
    let spec = volume.devices()[0].clone();
    let medium = spec.medium.unwrap();
    assert!(spec.capacity_bytes < 1 << 30, "{}", spec.capacity_bytes);
    let ModelParameters::Cloud(model) = &medium.model else { panic!("a cloud volume") };
    assert_eq!((model.baseline_iops.value, medium.price_usd()), (150.0, 180.0));
}

#[test]
fn related_medium_keys_are_read_together() {
    let degraded = "medium = \"gcp-pd-ssd\", degraded_share = 0.01, degraded_episode_s = 30";
    let volume = device(&format!("{degraded}, degraded_factor = 0.5"));
    let ModelParameters::Cloud(model) = &volume.medium.model else { panic!("a cloud volume") };
    assert_eq!(model.degraded_factor.as_ref().unwrap().value, 0.5);
    assert!(mistakes(degraded).contains("go together"));
    let seek = device(
        "medium = \"hdd-7200-sata\", seek_track_read_ms = 0.5, seek_average_read_ms = 6, seek_full_read_ms = 12",
    );
    assert_eq!(seek.count, 1);
}

/// `baseline_iops = "16k"` was once an unknown key that might have been meant as `baseline_iops`.
#[test]
fn wrong_type_is_reported_as_one() {
    for (device, message) in [
        ("medium = \"ebs-gp3\", baseline_iops = \"16k\"", "expected a number, found a string"),
        ("medium = \"ebs-gp3\", baseline_iops = [3000]", "expected a number, found an array"),
        ("medium = \"ebs-gp3\", baseline_iops = true", "expected a number, found a boolean"),
        ("medium = \"ebs-gp3\", baseline_iops = { value = 1 }", "expected a number, found a table"),
        ("medium = \"ebs-gp3\", baseline_iops = nan", "expected a number"),
        ("medium = \"ssd-sata\", half_duplex = 1", "expected true or false, found an integer"),
        ("medium = \"optane-pmem-100\", read_mb_s_by_requests = 5", "the medium's own file"),
        ("medium = 5", "found an integer"),
        ("medium = \"ebs-gp3\", capacity = 50", "found an integer"),
        ("medium = \"ebs-gp3\", count = \"2\"", "found a string"),
        ("medium = \"ebs-gp3\", count = 2.0", "found a float"),
        ("medium = \"ebs-gp3\", larger_than_medium = \"yes\"", "found a string"),
    ] {
        let error = mistakes(device);
        assert!(error.contains(message) && !error.contains("unknown key"), "{device}:\n{error}");
    }
    assert!(
        mistakes("medium = \"ebs-gp3\", baseline_iop = \"16k\"").contains("did you mean `baseline_iops`?")
    );
}

#[test]
fn rate_may_be_written_as_reports_print_it() {
    let found = study(&[("threads = 8", "threads = 8\nrate = [\"1,105 ops/s\", 2000]")]);
    assert_eq!(plan::expand(&found).len(), 2);
    let wrong = STUDY.replace("threads = 8", "threads = 8\nrate = [\"1,10 ops/s\"]");
    assert!(
        Study::parse("theirs.toml", &wrong, false).unwrap_err().to_string().contains("operations per second")
    );
}

#[test]
fn storage_has_own_read_ahead() {
    let read_ahead_of = |value: &str| {
        let storage = format!("read_ahead = \"{value}\"\n[workload.ycsb]\ndata");
        study(&[("[workload.ycsb]\ndata", &storage)]).storages[0].read_ahead_bytes
    };
    assert_eq!([read_ahead_of("16 KiB"), read_ahead_of("none")], [Some(16 << 10), Some(0)]);
    assert_eq!(study(&[]).storages[0].read_ahead_bytes, None);
}

#[test]
fn compressed_data_needs_less_room() {
    let small = ("\"ebs-io2\" }", "\"ebs-io2\", capacity = \"20 GB\" }");
    let text = STUDY.replace(small.0, small.1);
    let mistakes = Study::parse("theirs.toml", &text, false).unwrap_err().to_string();
    assert!(mistakes.contains("does not fit"), "{mistakes}");
    let memory = ("\"2 GiB\"", "\"2 GiB\"\ncompression = \"lz4\"");
    study(&[small, memory]);
    // What does not repeat does not get shorter.
    let random = ("threads = 8", "threads = 8\nproperties = { compressibility = 0.1 }");
    let text = [small, memory, random]
        .iter()
        .fold(STUDY.to_owned(), |text, (original, replacement)| text.replace(original, replacement));
    let mistakes = Study::parse("theirs.toml", &text, false).unwrap_err().to_string();
    assert!(mistakes.contains("compressed to 91 %"), "{mistakes}");
}
