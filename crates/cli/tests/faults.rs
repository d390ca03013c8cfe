//! `underlay fault` on a disk that is mounted, and a study's `[fault]` sections.

mod support;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Mounted, Playground, TINY_STUDY, can_mount, stderr, stdout};

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    File::open(path.parent().unwrap())?.sync_all()
}

fn underlay(playground: &Playground, arguments: &[&str]) -> String {
    let output = playground.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn impossible_fault_is_refused_before_start() {
    let playground = Playground::new();
    assert!(underlay(&playground, &["fault", "list"]).contains("nothing is served"));
    let cases: [(&[&str], &str); 8] = [
        (&["fault", "here", "slow", "--factor", "10"], "nothing is served"),
        (&["fault", "slow", "--factor", "10"], "which device?"),
        (&["fault", "here", "slow", "--factor", "0.5"], "more than 1"),
        (&["fault", "here", "errors", "--rate", "2"], "rate of 2"),
        (&["fault", "here", "corrupt", "--rate", "0"], "rate of 0"),
        (&["fault", "here", "errors", "--rate", "1", "--extent", "5"], "0..1GiB"),
        (&["fault", "here", "spikes", "--rate", "1", "--latency", "200"], "--latency 200"),
        (&["fault", "here", "vanish", "--for", "0 s"], "expected a time above 0"),
    ];
    for (arguments, expected) in cases {
        let output = playground.output(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn mounted_disk_fails_on_command_and_recovers() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let directory = playground.path("disk");
    let dir = directory.to_str().unwrap();
    {
        let _mounted =
            Mounted::start(&playground, &["mount", "ssd-satax2", dir, "--size", "256 MiB", "--power-cut"]);
        let list = underlay(&playground, &["fault", "list"]);
        for needed in [dir, "ssd-sata.0", "ssd-sata.1", "no fault", "power can be cut"] {
            assert!(list.contains(needed), "{needed} is not in\n{list}");
        }
        let printed =
            underlay(&playground, &["fault", "ssd-sata.1", "slow", "--factor", "3", "--for", "1 h"]);
        assert!(printed.contains("ssd-sata.1") && !printed.contains("ssd-sata.0"), "{printed}");
        let json = underlay(&playground, &["fault", dir, "list", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(listed[0]["devices"][1]["faults"][0]["fault"]["factor"], 3.0, "{json}");
        underlay(&playground, &["fault", dir, "clear"]);
        assert!(!underlay(&playground, &["fault", "list"]).contains("3 times"));

        // A disk whose reads fail. What is read must not come from the page cache.
        let file = directory.join("file");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        underlay(&playground, &["fault", dir, "errors", "--rate", "1", "--operation", "read"]);
        let mut direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&file).unwrap();
        let mut page = Aligned([0; 4096]);
        assert_eq!(direct.read(&mut page.0).unwrap_err().raw_os_error(), Some(libc::EIO));
        underlay(&playground, &["fault", dir, "clear"]);
        assert_eq!(direct.read(&mut page.0).unwrap(), 4096);
        drop(direct);

        let unknown = playground.output(&["fault", "ssd-sata.7", "vanish"]);
        assert_eq!(unknown.status.code(), Some(2));
        assert!(stderr(&unknown).contains("ssd-sata.0, ssd-sata.1"), "{}", stderr(&unknown));

        // And the power cut: what was synced is there after the return, and the disk works.
        write_synced(&directory.join("synced"), "kept").unwrap();
        let printed =
            underlay(&playground, &["fault", dir, "power-cut", "--torn", "--reordered", "--seed", "5"]);
        assert!(printed.contains("no power"), "{printed}");
        assert!(write_synced(&directory.join("in-the-dark"), "lost").is_err());
        assert!(underlay(&playground, &["fault", "list"]).contains("no power"));
        underlay(&playground, &["fault", dir, "return"]);
        assert_eq!(fs::read_to_string(directory.join("synced")).unwrap(), "kept");
        write_synced(&directory.join("afterwards"), "works").unwrap();
        let again = playground.output(&["fault", dir, "return"]);
        assert_eq!(again.status.code(), Some(2), "{}", stdout(&again));
    }
    assert_eq!(playground.left_behind(), [""; 0]);
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn unarmed_disk_explains_how_to_arm() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let directory = playground.path("disk");
    let dir = directory.to_str().unwrap();
    let _mounted = Mounted::start(&playground, &["mount", "ssd-sata", dir, "--size", "320 MiB"]);
    let refused = playground.output(&["fault", dir, "power-cut"]);
    assert_eq!(refused.status.code(), Some(4));
    assert!(stderr(&refused).contains("--power-cut"), "{}", stderr(&refused));
    fs::write(directory.join("file"), "works").unwrap();
}

#[test]
fn study_faults_start_at_their_time_and_device() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let faults = r#"
[fault.slow-disk]
at = "100 ms"
for = "200 ms"
storage = "hdd"
slow = 4

[fault.pulled]
at = "250 ms"
storage = "flash"
device = 1
vanish = true
"#;
    let study = TINY_STUDY.replace("mixes = [\"a\", \"c\"]", "mixes = [\"a\"]");
    playground.write("study.toml", &format!("{study}{faults}"));
    let started = Instant::now();
    let output = playground.output(&["run", "study.toml", "--out", "run", "--quiet"]);
    assert!(started.elapsed() < Duration::from_secs(240), "a fault must not make a run hang");
    let record = |storage: &str| -> serde_json::Value {
        let name = format!("run/cells/rocksdb.{storage}.ycsb-a-uniform-4t.r1.json");
        serde_json::from_str(&fs::read_to_string(playground.path(&name)).unwrap()).unwrap()
    };
    // The slow disk's cell completes, and says what its disk had.
    let hdd = record("hdd");
    assert_eq!(hdd["status"]["state"], "completed", "{}\n{}", hdd["status"], stderr(&output));
    let fault = &hdd["devices"][0]["faults"][0];
    let (from, end) = (fault["t_s"].as_f64().unwrap(), fault["until_s"].as_f64().unwrap());
    // Its device counts from the command's arrival, a moment after the window began.
    assert!((0.0..0.3).contains(&from) && end > from, "{fault}");
    assert!(fault["what"].as_str().unwrap().contains("4 times"), "{fault}");
    assert_eq!(
        (&fault["by"], &hdd["certificate"]["verdict"]),
        (&"study".into(), &"disturbed".into()),
        "{hdd}"
    );
    // What it is, also beside others; a resumed run has nothing to do again for it.
    let report: serde_json::Value =
        serde_json::from_str(&underlay(&playground, &["report", "run", "--json"])).unwrap();
    let cell = report["cells"].as_array().unwrap().iter().find(|cell| cell["storage"] == "hdd").unwrap();
    assert_eq!(
        (&cell["state"], &cell["disturbed"][0]["by"]),
        (&"completed".into(), &"study".into()),
        "{cell}"
    );
    let resumed = playground.output(&["run", "--resume", "run", "--quiet"]);
    assert!(!stderr(&resumed).contains("by hand"), "{}", stderr(&resumed));
    let warnings = hdd["warnings"].to_string();
    assert!(warnings.contains("faults on command: slow-disk from 100 ms for 200 ms"), "{warnings}");
    // A database on a stripe that lost a disk fails, or errs until the end, as the moment strikes it. Either names the
    // fault.
    let flash = record("flash");
    let pulled = "faults on command: pulled on device 1 from 250 ms";
    if flash["status"]["state"] == "failed" {
        let reason = flash["status"]["reason"].as_str().unwrap();
        assert!(reason.contains(pulled), "{reason}");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    } else {
        assert!(flash["warnings"].to_string().contains(pulled), "{flash}");
        assert!(flash["measured"]["errors"].as_u64().unwrap() > 0, "{flash}");
        assert_eq!(flash["certificate"]["verdict"], "disturbed", "{flash}");
        let checks = flash["certificate"]["checks"].as_array().unwrap();
        assert!(checks.iter().any(|check| check["passed"] == false), "{flash}");
    }
    let page = fs::read_to_string(playground.path("run/report.html")).unwrap_or_else(|_| {
        underlay(&playground, &["report", "run"]);
        fs::read_to_string(playground.path("run/report.html")).unwrap()
    });
    assert!(page.contains("slow: everything takes 4 times as long"));
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// What somebody does to a running cell reaches everything that draws conclusions, and the cell is measured again.
#[test]
fn manual_fault_yields_no_finding() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    playground.write("study.toml", &TINY_STUDY.replace("mixes = [\"a\", \"c\"]", "mixes = [\"c\"]"));
    let mut run = playground.underlay(&["run", "study.toml", "--out", "run", "--quiet"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let record = playground.path("run/cells/rocksdb.hdd.ycsb-c-uniform-4t.r1.json");
    let limit = Instant::now() + Duration::from_secs(240);
    // Again and again, since storages come and go before the one that is measured; so few and short spikes change
    // nothing.
    while !record.exists() && Instant::now() < limit {
        let spikes = ["spikes", "--rate", "0.000001", "--latency", "1 ms"];
        playground.output(&[&["fault", "hdd-7200-sata.0"], &spikes[..]].concat());
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("1 cell was disturbed by hand; `underlay run --resume"),
        "{}",
        stderr(&output)
    );
    assert!(stdout(&output).contains("disturbed by hand, and left out"), "{}", stdout(&output));

    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = playground.output(&[arguments, &["--json"]].concat());
        serde_json::from_str(&stdout(&output))
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", stderr(&output)))
    };
    let report = json(&["report", "run"]);
    let cell = |storage: &str| {
        report["cells"].as_array().unwrap().iter().find(|cell| cell["storage"] == storage).unwrap().clone()
    };
    let hdd = cell("hdd");
    assert_eq!(
        (&hdd["state"], &hdd["certificate"]["verdict"]),
        (&"disturbed".into(), &"disturbed".into()),
        "{hdd}"
    );
    assert!(hdd["throughput_per_s"].is_null() && hdd["disturbed"][0]["by"] == "hand", "{hdd}");
    assert!(cell("flash")["ratio_to_baseline"].is_null(), "the baseline says nothing: {}", cell("flash"));
    assert!(report["run"]["answer"].as_str().unwrap().contains("disturbed by hand"), "{}", report["run"]);
    assert!(underlay(&playground, &["report", "run", "--csv"]).contains(",disturbed,"));
    let both = json(&["report", "run", "run"]);
    assert!(both["left_out"].to_string().contains("both runs were disturbed by hand"), "{both}");

    let because = |answer: &serde_json::Value, list: &str| {
        let refused = answer[list].as_array().unwrap().iter();
        let of_cell = refused.filter(|one| one["cell"].as_str().unwrap().contains("/hdd/"));
        of_cell.map(|one| one.to_string()).collect::<String>()
    };
    let predicted = json(&["predict", "study.toml", "--from", "run"]);
    assert!(because(&predicted, "left_out").contains("\"because\":\"disturbed\""), "{predicted}");
    assert!(because(&json(&["explain", "run"]), "refused").contains("\"because\":\"disturbed\""));
    for advice in [&["storage", "--p99", "1 s"][..], &["memory"]] {
        let asked = [&["advise"], advice, &["--from", "run", "--rate", "100"]].concat();
        let output = playground.output(&asked);
        let message = stdout(&output) + &stderr(&output);
        assert!(message.contains("disturbed by hand"), "{asked:?}: {message}");
    }

    let resumed = playground.output(&["run", "--resume", "run", "--quiet"]);
    assert_eq!(resumed.status.code(), Some(0), "{}", stderr(&resumed));
    let message = stderr(&resumed);
    assert!(
        message.contains("/hdd/")
            && message.contains("was disturbed by hand")
            && message.contains("measured again"),
        "{message}"
    );
    let hdd: serde_json::Value = serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    assert!(hdd["devices"][0]["faults"].is_null() && hdd["certificate"]["verdict"] != "disturbed", "{hdd}");
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// The data of all cells were cloned from what a device had read wrongly, and nothing said so.
#[test]
fn data_loaded_onto_failing_device_is_loaded_again() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let (loading, go) = (playground.path("loading"), playground.path("go"));
    let load = format!(
        "dd if=/dev/zero of={{data}}/file bs=1M count=4 conv=fsync 2>{{scratch}}/dd; touch {}; until test -e {}; do sleep 0.05; done",
        loading.display(),
        go.display()
    );
    let study = format!(
        "name = \"loaded\"\n[system.file]\nkind = \"command\"\nmemory = \"1 GiB\"\nload = \"{load}\"\n\
         [storage.hdd]\ndevices = [{{ medium = \"hdd-7200-sata\", capacity = \"1 GiB\" }}]\n\
         [workload.w]\nkind = \"command\"\nrun = \"cat {{data}}/file >/dev/null; echo speed 7\"\n\
         [workload.w.figures.speed]\nunit = \"MB/s\"\nbetter = \"higher\"\npattern = 'speed ([0-9]+)'\n\
         [run]\nwarmup = \"0 s\"\nduration = \"1 s\"\nrepetitions = 1\n"
    );
    playground.write("study.toml", &study);
    let mut run = playground.underlay(&["run", "study.toml", "--time", "1", "--out", "run"]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(120);
    while !loading.exists() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    // So seldom that it strikes nothing, and over before the data are there. Nobody can know that afterwards.
    let corrupt = ["corrupt", "--rate", "0.000001", "--for", "1 ms"];
    let injected = playground.output(&[&["fault", "hdd-7200-sata.0"], &corrupt[..]].concat());
    // The second load finds it there.
    fs::write(&go, "").unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(injected.status.success(), "{}", stderr(&injected));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("put there again"), "{}", stderr(&output));
    let record = fs::read_to_string(playground.path("run/cells/file.hdd.w.r1.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert!(record["devices"][0]["earlier_faults"].is_null(), "{record}");
    assert_ne!(record["certificate"]["verdict"], "disturbed", "{record}");
    assert_eq!(playground.left_behind(), [""; 0]);
}

/// RocksDB has its own checksums; without them only the generator can see a wrong bit.
#[test]
fn corrupted_data_is_noticed() {
    if !can_mount() {
        return;
    }
    let playground = Playground::new();
    let fault = "\n[fault.rotten]\nat = \"200 ms\"\nstorage = \"hdd\"\ncorrupt = { rate = 0.5 }\n";
    let trusting =
        "[system.trusting]\nkind = \"rocksdb\"\nmemory = \"64 MiB\"\nchecksums = \"ignore\"\n\n[storage.hdd]";
    let study = TINY_STUDY
        .replace("[storage.hdd]", trusting)
        .replace("mixes = [\"a\", \"c\"]", "mixes = [\"c\"]")
        .replace("threads = 4", "threads = 4\nproperties = { dataintegrity = true }");
    playground.write("study.toml", &format!("{study}{fault}"));
    let output = playground.output(&["run", "study.toml", "--out", "run", "--quiet"]);
    let record = |system: &str, storage: &str| -> serde_json::Value {
        let name = format!("run/cells/{system}.{storage}.ycsb-c-uniform-4t.r1.json");
        serde_json::from_str(&fs::read_to_string(playground.path(&name)).unwrap()).unwrap()
    };
    let count =
        |record: &serde_json::Value, name: &str| record["measured"]["integrity"][name].as_u64().unwrap();
    for system in ["rocksdb", "trusting"] {
        let sound = record(system, "flash");
        assert_eq!(sound["status"]["state"], "completed", "{}\n{}", sound["status"], stderr(&output));
        let operations = sound["measured"]["operations"].as_u64().unwrap();
        assert!(count(&sound, "checked") >= operations && operations > 0, "{sound}");
        assert_eq!((count(&sound, "mismatches"), &sound["measured"]["errors"]), (0, &0.into()), "{sound}");

        let rotten = record(system, "hdd");
        let state = rotten["status"]["state"].as_str();
        if state == Some("completed") {
            let description = rotten["devices"][0]["faults"][0]["what"].as_str().unwrap_or_default();
            assert!(description.contains("corrupts: 50 % of reads have a wrong bit"), "{rotten}");
        }
        let checks = rotten["certificate"]["checks"].as_array();
        let checks: Vec<_> =
            checks.into_iter().flatten().filter(|check| check["id"] == "checked-values").collect();
        match state {
            Some("completed") if system == "rocksdb" => {
                // Nobody is given a wrong value for a sound one.
                assert_eq!(count(&rotten, "mismatches"), 0, "{rotten}");
                assert!(rotten["measured"]["errors"].as_u64().unwrap() > 0, "nobody noticed: {rotten}");
                let samples = rotten["measured"]["error_samples"].to_string();
                assert!(samples.contains("Corruption"), "{samples}");
            }
            Some("completed") => {
                assert!(count(&rotten, "mismatches") > 0, "nobody noticed: {rotten}");
                let wrong = &rotten["measured"]["integrity"]["wrong_values"][0];
                assert!(wrong["record"].as_str().unwrap_or_default().starts_with("user"), "{wrong}");
                assert_eq!((checks.len(), &checks[0]["passed"]), (1, &false.into()), "{rotten}");
            }
            // A wrong bit may strike what a file system or an engine can't go on without.
            _ => assert!(!rotten["status"]["reason"].as_str().unwrap_or_default().is_empty(), "{rotten}"),
        }
    }
    assert_eq!(playground.left_behind(), [""; 0]);
}
