//! What published comparisons ask for, and a study can say: shares of operations, a writer beside readers, a volume with one figure of its
//! own, a device's read-ahead.

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
    let text = changes.iter().fold(STUDY.to_owned(), |text, (what, by)| {
        assert!(text.contains(what), "{what}");
        text.replace(what, by)
    });
    Study::parse("theirs.toml", &text, false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

#[test]
fn shares_of_operations_are_a_mix_whose_name_spells_them_out() {
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
fn a_writer_beside_readers_is_part_of_the_workload() {
    let beside = "threads = 8\nbeside = { mix = { update = 1.0 }, rate = 10_000 }";
    let found = study(&[("[\"a\"]", "[\"c\"]"), ("threads = 8", beside)]);
    let beside = found.workloads[0].beside.as_ref().unwrap();
    assert_eq!((beside.mix.as_str(), beside.threads, beside.rate_per_s), ("update100", 1, Some(10_000.0)));
}

#[test]
fn one_figure_of_a_medium_is_changed_where_it_is_named() {
    let found = study(&[("\"ebs-io2\"", "\"ebs-io2\", count = 2, instance_iops = 18_750")]);
    let StorageSource::Modelled { devices, .. } = &found.storages[0].source else { panic!("modelled") };
    let medium = &devices[0].medium;
    assert_eq!((medium.name.as_str(), devices[0].count), ("ebs-io2-instance-iops-18750", 2));
    let ModelParameters::Cloud(model) = &medium.model else { panic!("a cloud volume") };
    assert_eq!(model.instance_iops.as_ref().unwrap().value, 18_750.0);
    // A volume server reads it from a file.
    let text = &found.media_files["ebs-io2-instance-iops-18750.toml"];
    assert_eq!(&underlay_storage::catalogue::Medium::parse("copy", text).unwrap(), medium);
    // Two of them side by side are two media.
    let two =
        "[{ medium = \"ebs-io2\" }, { medium = \"ebs-io2\", instance_iops = 18_750 }]\nlayout = \"stripe\"";
    let mistakes = Study::parse("theirs.toml", &STUDY.replace("[{ medium = \"ebs-io2\" }]", two), false);
    assert!(mistakes.unwrap_err().to_string().contains("not equal"));
}

#[test]
fn a_storage_has_its_read_ahead() {
    let of = |value: &str| {
        let storage = format!("read_ahead = \"{value}\"\n[workload.ycsb]\ndata");
        study(&[("[workload.ycsb]\ndata", &storage)]).storages[0].read_ahead_bytes
    };
    assert_eq!([of("16 KiB"), of("none")], [Some(16 << 10), Some(0)]);
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
    let text =
        [small, memory, random].iter().fold(STUDY.to_owned(), |text, (what, by)| text.replace(what, by));
    let mistakes = Study::parse("theirs.toml", &text, false).unwrap_err().to_string();
    assert!(mistakes.contains("compressed to 91 %"), "{mistakes}");
}
