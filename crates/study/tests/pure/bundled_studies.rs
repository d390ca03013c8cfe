//! The studies that come with Underlay are read as they say, in full and in short.

use std::fs;
use std::path::PathBuf;

use underlay_record::Cell;
use underlay_study::spec::{InitialCacheState, StorageLayout, StorageSource, Study, StudyForm};
use underlay_study::{machine, plan};

fn bundled() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let mut studies = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            studies.push((name, fs::read_to_string(path).unwrap()));
        }
    }
    studies
}

fn study(file: &str, short: bool) -> Study {
    let (_, text) = bundled().into_iter().find(|(name, _)| name == file).unwrap();
    Study::parse(file, &text, short).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

#[test]
fn bundled_studies_are_sound_without_notes() {
    let studies = bundled();
    assert!(studies.len() >= 2);
    for (name, text) in studies {
        for short in [false, true] {
            let study = Study::parse(&name, &text, short).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            // A short form is smaller than Java is: the check reports the page cache that this costs, and does not mend
            // it.
            let is_expected =
                |note: &underlay_config::Diagnostic| short && note.message.contains("to cache records in");
            assert!(study.notes.findings().iter().all(is_expected), "{}", study.notes);
            assert!(study.title.is_some(), "{name} has no title");
            // A study without a short form is run whole.
            assert_eq!(study.short, short && text.contains("\n[short]"), "{name}");
            assert_eq!(study.source_toml, text);
        }
    }
}

#[test]
fn bundled_studies_state_machine_but_no_host() {
    let outside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../studies/outside");
    let outside = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().path());
    let outside = outside.filter(|path| path.file_name().is_some_and(|name| name != "published.toml"));
    let outside = outside
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()));
    let all: Vec<_> = bundled().into_iter().chain(outside).collect();
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../studies/outside");
    let medium = |name: &str| Ok(fs::read_to_string(directory.join(name)).unwrap());
    assert!(all.len() >= 19, "{}", all.len());
    for (name, text) in all {
        for short in [false, true] {
            let form = StudyForm { short, ..StudyForm::default() };
            let study = Study::parse_with_media(&name, &text, form, &medium)
                .unwrap_or_else(|mistakes| panic!("{mistakes}"));
            assert!(study.machine.is_some() && study.leaves_time_open, "{name}");
        }
        for word in ["slow motion x", "this host", "this machine", "small host", "CPUs"] {
            assert!(!text.contains(word), "{name} speaks of a host: '{word}'");
        }
    }
}

/// What a large factor does to clocks that don't follow it.
#[test]
fn effects_of_large_slow_motion_are_reported() {
    for (name, time, warning) in [
        ("mapreduce-ssd.toml", 64.0, "a heartbeat every"),
        ("accumulo-flash.toml", 2000.0, "sessions can't be stretched"),
        ("spark-object-store.toml", 64.0, "executors send heartbeats"),
        ("oracle-nosql-flash.toml", 64.0, "look after their processes"),
        ("oracle-nosql-flash-je-ha.toml", 64.0, "members send heartbeats"),
    ] {
        let study = study(name, false);
        let left_at = |time| machine::left_at_wall_time(&study.with_slow_motion(time)).join(" ");
        assert!(left_at(time).contains(warning), "{name} at x{time}: {}", left_at(time));
        assert_eq!(left_at(1.0), "", "{name} at its own pace");
    }
    // A ring of Cassandra's takes a node for down after a silence by this host's clock.
    let ring = "name = \"x\"\nbaseline = \"a\"\n[system.ring]\nkind = \"cassandra\"\nmemory = \"8 GiB\"\nnodes = 3\n\
                [storage.a]\ndevices = [{ medium = \"ssd-sata\" }]\nper = \"node\"\n\
                [workload.w]\nmixes = [\"c\"]\nrecords = 1000\nthreads = 4\n[machine]\ncores = 16\n";
    let ring = Study::parse("ring.toml", ring, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let warning = machine::left_at_wall_time(&ring.with_slow_motion(64.0)).join(" ");
    assert!(warning.contains("counts as down") && !warning.contains("of a CPU here"), "{warning}");
    // 48 cores as a quota of a few thousandths.
    let warning = machine::left_at_wall_time(&ring.with_slow_motion(2000.0)).join(" ");
    assert!(warning.contains("the cores of ring are 2.4 % of a CPU here"), "{warning}");
}

#[test]
fn documentation_examples_form_one_sound_study() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/study.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let medium = |name: &str| {
        assert_eq!(name, "my-disk.toml");
        Ok(fs::read_to_string(root.join("media/ssd-sata.toml")).unwrap())
    };
    let study = Study::parse_with_media("docs/study.md", &blocks.concat(), StudyForm::default(), &medium)
        .unwrap_or_else(|mistakes| panic!("{mistakes}"));
    // The page has a storage of every kind, and one modelled machine.
    let is_expected = |note: &underlay_config::Diagnostic| note.message.contains("does not limit the system");
    assert!(study.notes.findings().iter().all(is_expected), "{}", study.notes);
    assert_eq!((blocks.len(), study.storages.len(), study.faults.len()), (6, 9, 1));
}

#[test]
fn quickstart_compares_three_storages_beyond_memory() {
    let study = study("quickstart.toml", false);
    let storages: Vec<_> = study.storages.iter().map(|storage| storage.name.as_str()).collect();
    assert_eq!(storages, ["hdd", "sata-ssd", "nvme"]);
    assert_eq!(study.baseline, "hdd");
    let cells = plan::expand(&study);
    let labels: Vec<_> = cells.iter().take(3).map(Cell::label).collect();
    assert_eq!((cells.len(), labels), (9, ["a", "b", "c"].map(str::to_owned).to_vec()));
    let memory = study.bytes_here(study.systems[0].memory_bytes);
    for cell in &cells {
        assert!(study.bytes_here(cell.data_bytes) >= 4 * memory, "{}", cell.id);
    }
    // What two CPUs need, one of them for the system.
    let study = study.with_slow_motion(24.0);
    let wall = (study.run.warmup + study.run.duration) * plan::order(&study).len() as u32;
    assert!(wall.as_secs() < 360, "the cells alone take {wall:?}, and loading comes on top");
}

#[test]
fn oracle_study_has_matrix_of_paper_per_system() {
    for (file, per_node, short) in [
        ("oracle-nosql-flash.toml", true, 4),
        ("oracle-nosql-flash-je-ha.toml", true, 4),
        ("oracle-nosql-flash-rocksdb.toml", false, 52),
    ] {
        let full = study(file, false);
        let StorageSource::Modelled { devices, layout, .. } = &full.storages[0].source else {
            panic!("the disks are modelled");
        };
        assert!(matches!(layout, StorageLayout::Stripe { .. }));
        assert_eq!((devices[0].count, devices[0].capacity_bytes), (6, Some(1_000_000_000_000)));
        assert!(full.storages.iter().all(|storage| storage.per_node == per_node), "{file}");
        // Of each node.
        let system = &full.systems[0];
        assert_eq!(system.memory_bytes / u64::from(system.nodes), 128_000_000_000, "{file}");
        let cells = plan::expand(&full);
        // Two storages: A, B, C over two distributions and four sizes, and one load and one delete.
        assert_eq!(cells.len(), 2 * (3 * 2 * 4 + 2));
        assert_eq!(plan::expand(&study(file, true)).len(), short, "{file}");
        // Every figure of the paper's tables has its cell.
        for figure in &full.reference.as_ref().unwrap().figures {
            let cell = cells.iter().find(|cell| {
                let requests = cell.requests().unwrap();
                requests.mix == figure.mix
                    && cell.storage == figure.storage
                    && figure.distribution.as_ref().is_none_or(|name| *name == requests.distribution)
                    && figure.data.as_ref().is_none_or(|data| cell.data.as_ref() == Some(data))
            });
            assert!(cell.is_some(), "{file}: no cell for {figure:?}");
        }
        assert!(cells.iter().any(|cell| cell.label() == "a, zipfian, 256 GB"));
        assert!(cells.iter().any(|cell| cell.label() == "load, 1 TB"));
    }
}

#[test]
fn shard_studies_have_figures_of_paper() {
    for (file, setting) in
        [("oracle-nosql-flash-shards.toml", "capacity"), ("oracle-nosql-flash-shards-je-ha.toml", "shards")]
    {
        let full = study(file, false);
        let shards = full.storages.iter().map(|storage| storage.settings[setting].as_str());
        assert_eq!(shards.collect::<Vec<_>>(), ["2", "3"], "{file}");
        let cells = plan::expand(&full);
        assert_eq!((cells.len(), plan::expand(&study(file, true)).len()), (6, 2), "{file}");
        for figure in &full.reference.as_ref().unwrap().figures {
            let matches_figure = |cell: &Cell| cell.storage == figure.storage && cell.data == figure.data;
            assert!(cells.iter().any(matches_figure), "{file}: no cell for {figure:?}");
        }
    }
}

#[test]
fn short_form_changes_only_named_settings() {
    let (full, short) =
        (study("oracle-nosql-flash-rocksdb.toml", false), study("oracle-nosql-flash-rocksdb.toml", true));
    assert_eq!((full.run.repetitions, short.run.repetitions), (3, 1));
    assert!(short.run.duration < full.run.duration);
    assert_eq!((full.run.cache, full.run.seed), (InitialCacheState::Warm, short.run.seed));
    assert_eq!(plan::expand(&full), plan::expand(&short));
}

#[test]
fn short_form_may_keep_some_storages() {
    let text = "name = \"x\"\nbaseline = \"hdd\"\n[system.je]\nmemory = \"2 GiB\"\n[storage.hdd]\ndevices = [{ medium = \"hdd-7200-sata\" }]\n\
        [storage.ssd]\ndevices = [{ medium = \"ssd-sata\" }]\n[storage.nvme]\ndevices = [{ medium = \"nvme-9300-max\" }]\n\
        [workload.ycsb]\ndata = \"16 GB\"\nmixes = [\"a\"]\nthreads = 8\n\
        [fault.of-ssd]\nstorage = \"ssd\"\nslow = 4\nat = \"1 s\"\n\
        [short]\nstorages = [\"hdd\", \"nvme\"]\n";
    let parse_study =
        |short| Study::parse("x.toml", text, short).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let names = |study: &Study| study.storages.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
    let (full, short) = (parse_study(false), parse_study(true));
    assert_eq!((names(&full).len(), full.faults.len()), (3, 1));
    assert_eq!(names(&short), ["hdd", "nvme"]);
    assert!(short.faults.is_empty(), "a fault of a storage that is left out");
    // What holds a part of the data is no storage of its own, and stays.
    let spark = study("spark-object-store.toml", true);
    assert_eq!((spark.storages.len(), spark.role_storages.len()), (4, 2));
}

#[test]
fn dirty_limit_scales_like_memory_except_in_short_form() {
    let text = |run: &str, short: &str| {
        format!(
            "name = \"x\"\n[system.rocksdb]\nmemory = \"2 GiB\"\n[storage.s]\ndevices = [{{ medium = \"hdd-7200-sata\" }}]\n\
             [workload.ycsb]\ndata = \"16 GB\"\nmixes = [\"a\"]\nthreads = 8\n[run]\n{run}\n[scale]\ndata = 20\n[short]\n{short}\n"
        )
    };
    let here = |text: &str, short| {
        let study = Study::parse("x.toml", text, short).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        study.run.dirty_limit_bytes.map(|bytes| study.bytes_here(bytes))
    };
    let unlimited = text("", "repetitions = 1");
    assert_eq!((here(&unlimited, false), here(&unlimited, true)), (None, None));
    let limited = text("dirty_limit = \"9.6 GB\"", "data_scale = 40");
    assert_eq!((here(&limited, false), here(&limited, true)), (Some(480_000_000), Some(240_000_000)));
    let own = text("dirty_limit = \"9.6 GB\"", "dirty_limit = \"1.6 GB\"");
    assert_eq!((here(&own, false), here(&own, true)), (Some(480_000_000), Some(80_000_000)));
    // What the short form makes too little of is a mistake of the short form.
    let little = text("dirty_limit = \"9.6 GB\"", "dirty_limit = \"16 MB\"");
    let mistakes = Study::parse("x.toml", &little, true).unwrap_err().to_string();
    assert!(mistakes.contains("`dirty_limit` is only 800 kB"), "{mistakes}");
    assert!(mistakes.contains("dirty_limit = \"16 MB\""), "{mistakes}");
}

#[test]
fn accumulo_study_keeps_published_data_to_memory_ratio() {
    for short in [false, true] {
        let study = study("accumulo-flash.toml", short);
        let system = &study.systems[0];
        assert_eq!((system.memory_bytes, system.fixed_memory_bytes), (64_000_000_000, 1_400_000_000));
        assert_eq!(study.budget_here(system), 1_400_000_000 + 160_000_000);
        // 2 TB over five nodes, in records of 4,000 bytes and a key.
        let cells = plan::expand(&study);
        assert!(
            cells.iter().all(|cell| (99_000_000..=100_000_000).contains(&cell.requests().unwrap().records)),
            "{cells:?}"
        );
    }
}

#[test]
fn cassandra_study_has_equal_drives_in_both_forms() {
    for (short, servers, rates) in [(false, 4, 5), (true, 2, 3)] {
        let study = study("cassandra-nvme-tcp.toml", short);
        assert_eq!(study.systems[0].servers, servers);
        let cells = plan::expand(&study);
        assert_eq!(cells.len(), 3 * rates);
        let StorageSource::Modelled { devices, .. } = &study.storages[0].source else { panic!("drives") };
        for remote in &study.storages[1..] {
            let StorageSource::Volume(volume) = &remote.source else { panic!("{} is a volume", remote.name) };
            assert_eq!(volume.pool.devices[0].count, devices[0].count * servers);
            assert_eq!(volume.pool.devices[0].medium, devices[0].medium);
            // The volumes that the paper gives fill its pool, and not more.
            assert!(volume.capacity_bytes * u64::from(servers) <= volume.pool_bytes());
        }
        // Compression is in the database or in the volume server, and never in both.
        let compressed: Vec<(bool, bool)> = study
            .storages
            .iter()
            .map(|storage| {
                let by_server =
                    matches!(&storage.source, StorageSource::Volume(volume) if volume.compress.is_some());
                (storage.settings["compression"] != "none", by_server)
            })
            .collect();
        assert_eq!(compressed, [(true, false), (false, true), (true, false)]);
        // The paper's 60,000 operations a server are among the steps, and every claim but the words about others is
        // checked.
        let named = f64::from(servers) * 60_000.0;
        assert!(cells.iter().any(|cell| cell.rate_per_s() == Some(named)));
        let claims = &study.reference.as_ref().unwrap().claims;
        assert!(!claims.is_empty() && claims.iter().all(|claim| !claim.checks.is_empty()));
        let keys: std::collections::BTreeSet<String> =
            cells.iter().map(|cell| plan::dataset_key(&study, cell)).collect();
        assert_eq!(keys.len(), 2, "data compressed by the database, and data that is not");
    }
}

#[test]
fn mapreduce_study_has_storages_and_jobs_of_paper() {
    let study = study("mapreduce-ssd.toml", false);
    let directories: Vec<(&str, u32, u32)> = study
        .storages
        .iter()
        .map(|storage| {
            let StorageSource::Modelled { devices, layout: StorageLayout::Jbod, .. } = &storage.source else {
                panic!("{} is a jbod of models", storage.name)
            };
            let count = devices.iter().map(|device| device.count).sum();
            (
                storage.name.as_str(),
                count,
                devices.iter().map(|device| device.count * device.directories).sum(),
            )
        })
        .collect();
    let expected =
        [("hdd-11", 11, 11), ("ssd", 1, 1), ("hdd-6", 6, 6), ("hybrid", 7, 7), ("hybrid-split", 7, 16)];
    assert_eq!(directories, expected);
    let reference = study.reference.as_ref().unwrap();
    let cells = plan::expand(&study);
    assert_eq!(cells.len(), 5 * 7);
    let is_there = |storage: &str, mix: &str| {
        cells.iter().any(|cell| cell.storage == storage && cell.mix_or_job() == mix)
    };
    for figure in &reference.figures {
        assert!(is_there(&figure.storage, &figure.mix), "no cell for {figure:?}");
    }
    for check in reference.claims.iter().flat_map(|claim| &claim.checks) {
        for storage in [&check.storage, &check.against] {
            for mix in [&check.mix, &check.than_mix].into_iter().flatten() {
                assert!(is_there(storage, mix), "no cell for {check:?}");
            }
        }
    }
    assert!(reference.claims.iter().all(|claim| !claim.checks.is_empty()));
    let years: Vec<&str> = reference.prices.iter().map(|price| price.when.as_str()).collect();
    assert_eq!(years, ["2013", "2013", "2015", "2015", "catalogue", "catalogue"]);
    // Each storage's jobs run one after another, in both forms.
    for short in [false, true] {
        let study = self::study("mapreduce-ssd.toml", short);
        let groups = plan::groups(&plan::order(&study));
        assert!(groups.iter().all(|group| group.len() == 7));
        assert_eq!(groups.len(), 5 * study.run.repetitions as usize);
    }
}

#[test]
fn accumulo_study_stands_for_one_of_five_nodes() {
    for short in [false, true] {
        let study = study("accumulo-flash.toml", short);
        let reference = study.reference.as_ref().unwrap();
        let cells = plan::expand(&study);
        let published = reference
            .figures
            .iter()
            .find(|figure| figure.metric == underlay_record::PublishedMetric::Throughput)
            .unwrap();
        assert_eq!((published.value, published.one_of), (4759.0 / 5.0, Some(5)));
        let has_cell = |mix: &str, threads: u32| {
            ["hdd", "flash"].iter().all(|storage| {
                cells.iter().any(|cell| {
                    let requests = cell.requests().unwrap();
                    (cell.storage.as_str(), requests.mix.as_str(), requests.threads)
                        == (*storage, mix, threads)
                        && requests.compacts_at.is_none()
                })
            })
        };
        assert!(has_cell("a", 64) && has_cell("b", 64) && has_cell("c", 64) && has_cell("a", 256));
        assert_eq!(has_cell("c", 256), !short);
        assert!(cells.iter().any(|cell| cell.compacts_at().is_some()));
        let keys: std::collections::BTreeSet<String> =
            cells.iter().map(|cell| plan::dataset_key(&study, cell)).collect();
        assert_eq!(keys.len(), 1, "one data set for all of them");
    }
}
