//! `underlay new`: what it writes is a study, and it writes over nothing.

mod support;

use std::path::Path;

use support::{Playground, stderr, stdout};

const SYSTEMS: [&str; 9] =
    ["rocksdb", "je", "je-ha", "oracle-nosql", "cassandra", "accumulo", "hadoop", "spark", "null"];
const STORAGES: [&str; 8] = [
    "hdd,nvme",
    "ssd,optane,pmem",
    "ebs,nvme-tcp",
    "hddx6,nvme-9300-maxx2",
    "optane-p4800x,ebs-gp2",
    "oracle-hdd,oracle-flash,cassandra-local",
    "nvme,/tmp",
    // A directory that every host has: a note tells of one that is missing.
    "/tmp",
];

#[test]
fn systems_start_on_each_kind_of_storage() {
    let playground = Playground::new();
    for system in SYSTEMS {
        for (number, storages) in STORAGES.iter().enumerate() {
            let name = format!("{system}-{number}");
            let made = playground.output(&["new", &name, "--system", system, "--storage", storages]);
            assert!(made.status.success(), "{system} on {storages}: {}", stderr(&made));
            check(&playground, &format!("{name}.toml"));
        }
    }
}

#[test]
fn media_and_layouts_start_a_study() {
    let playground = Playground::new();
    let listed = stdout(&playground.output(&["media", "list", "--json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let mut number = 0;
    for group in ["media", "layouts"] {
        for entry in listed[group].as_array().unwrap() {
            let storage = entry["name"].as_str().unwrap();
            // Hadoop takes any number of directories.
            let name = format!("study-{number}");
            let made = playground.output(&["new", &name, "--system", "hadoop", "--storage", storage]);
            assert!(made.status.success(), "{storage}: {}", stderr(&made));
            check(&playground, &format!("{name}.toml"));
            number += 1;
        }
    }
    assert!(number > 40);
}

/// Sound, and without a note but those of what this host's slow motion changes.
#[track_caller]
fn check(playground: &Playground, file: &str) {
    let checked = playground.output(&["check", file]);
    let text = std::fs::read_to_string(playground.path(file)).unwrap();
    assert!(checked.status.success(), "{}\n{text}", stderr(&checked));
    let notes = stderr(&checked);
    // No registry has Oracle NoSQL Database's server: where nobody supplied it, a note has to say so.
    let to_be_supplied = "note: oracle-nosql needs an installation of its own (KVHOME is not set)";
    let missing = text.contains("[system.oracle-nosql]") && std::env::var_os("KVHOME").is_none();
    assert_eq!(notes.lines().filter(|line| line.starts_with(to_be_supplied)).count(), usize::from(missing));
    let others: Vec<&str> = notes
        .lines()
        .filter(|line| !line.starts_with("note: at slow motion x") && !line.starts_with(to_be_supplied))
        .collect();
    assert_eq!(others, Vec::<&str>::new(), "{text}");
}

#[test]
fn bundled_study_is_copied_under_new_name() {
    let playground = Playground::new();
    let made = playground.output(&["new", "mine", "--like", "quickstart"]);
    assert!(made.status.success(), "{}", stderr(&made));
    check(&playground, "mine.toml");
    let text = std::fs::read_to_string(playground.path("mine.toml")).unwrap();
    assert!(text.contains("\nname = \"mine\"\n"), "{text}");
    let bundled = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies")).unwrap();
    for file in bundled.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let like = file.file_stem().unwrap().to_str().unwrap();
        let made = playground.output(&["new", &format!("copy-of-{like}"), "--like", like]);
        assert!(made.status.success(), "{}", stderr(&made));
    }
}

#[test]
fn study_is_written_to_out() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("studies")).unwrap();
    let made = playground.output(&["new", "mine", "--out", "studies/first.toml"]);
    assert!(made.status.success(), "{}", stderr(&made));
    check(&playground, "studies/first.toml");
    let text = std::fs::read_to_string(playground.path("studies/first.toml")).unwrap();
    assert!(text.contains("\nname = \"mine\"\ntitle = \"RocksDB on hdd, nvme\"\n"), "{text}");
    assert!(text.contains("underlay run studies/first.toml"), "{text}");
    assert!(text.contains("# 4.5 times the memory"), "{text}");
    assert_eq!(files(playground.folder.path()), ["studies"]);
}

#[test]
fn study_is_printed_for_standard_output() {
    let playground = Playground::new();
    let made = playground.output(&["new", "mine", "--storage", "hdd,nvme"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let written = std::fs::read_to_string(playground.path("mine.toml")).unwrap();
    let printed = playground.output(&["new", "mine", "--storage", "hdd,nvme", "--out", "-"]);
    assert!(printed.status.success(), "{}", stderr(&printed));
    assert_eq!(stdout(&printed), written);
    assert_eq!(files(playground.folder.path()), ["mine.toml"]);
}

#[test]
fn existing_file_is_not_overwritten() {
    let playground = Playground::new();
    std::fs::create_dir(playground.path("folder.toml")).unwrap();
    std::os::unix::fs::symlink("elsewhere", playground.path("link.toml")).unwrap();
    playground.write("file.toml", "mine");
    for name in ["file", "file.toml", "folder", "link"] {
        let refused = playground.output(&["new", name]);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        assert!(stderr(&refused).contains("already exists and was left unchanged"), "{}", stderr(&refused));
    }
    assert_eq!(std::fs::read_to_string(playground.path("file.toml")).unwrap(), "mine");
    assert!(!playground.path("elsewhere").exists());
    assert_eq!(files(playground.folder.path()), ["file.toml", "folder.toml", "link.toml"]);
}

#[test]
fn unknown_name_gets_a_suggestion() {
    let playground = Playground::new();
    let refusals: [(&[&str], &str); 14] = [
        (&["new", "a", "--system", "casandra"], "did you mean 'cassandra'?"),
        (&["new", "a", "--system", "flink"], "expected one of rocksdb"),
        (&["new", "a", "--storage", "hdd,nvm"], "did you mean 'nvme'?"),
        (&["new", "a", "--storage", "hdd-7200-stat"], "did you mean 'hdd-7200-sata'?"),
        (&["new", "a", "--storage", "hddx65"], "expected 1 to 64 devices"),
        (&["new", "a", "--storage", "hdd,hdd"], "names 'hdd' twice"),
        (&["new", "a", "--storage", "accumulo-hdd"], "RocksDB uses one"),
        (&["new", "a", "--like", "quickstar"], "did you mean 'quickstart'?"),
        (&["new", "a", "--storage", "hdd,,nvme"], "--storage has an empty name"),
        (&["new", "A Study"], "'A Study' is not a valid study name: use up to 40 lowercase letters"),
        (&["new", "../x"], "'../x' is not a valid study name: use up to 40"),
        (&["new", "/tmp"], "--out FILE writes it elsewhere"),
        (&["new", ""], "'' is not a valid study name"),
        (&["new", "a", "--out", "no-such-folder/a.toml"], "cannot write no-such-folder/a.toml"),
    ];
    for (arguments, expected) in refusals {
        let refused = playground.output(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&refused).contains(expected), "{arguments:?}: {}", stderr(&refused));
    }
    assert_eq!(files(playground.folder.path()), Vec::<String>::new(), "nothing is written");
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.retain(|name| name != "runtime");
    names.sort();
    names
}

#[test]
fn completions_and_man_pages_know_the_commands() {
    let playground = Playground::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&playground.output(&["completions", shell]));
        assert!(script.contains("mount") && script.contains("find-rate"), "{shell}");
        for value in ["cassandra", "optane-p4800x", "accumulo-hdd", "quickstart", "ext4"] {
            assert!(script.contains(value), "{shell} does not complete {value}");
        }
    }
    let made = playground.output(&["man", "pages"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let pages = files(&playground.path("pages"));
    for page in ["underlay.1", "underlay-new.1", "underlay-run.1", "underlay-volume-serve.1"] {
        assert!(pages.iter().any(|one| one == page), "{page} is not among {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("engine")), "{pages:?}");
    let sections = |page: &str| -> Vec<String> {
        let text = std::fs::read_to_string(playground.path("pages").join(page)).unwrap();
        text.lines().filter_map(|line| line.strip_prefix(".SH ")).map(|name| name.replace('"', "")).collect()
    };
    assert_eq!(
        sections("underlay.1"),
        ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "EXIT STATUS", "FILES", "VERSION"]
    );
    assert_eq!(
        sections("underlay-new.1"),
        ["NAME", "SYNOPSIS", "DESCRIPTION", "ARGUMENTS", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO",]
    );
    let new = std::fs::read_to_string(playground.path("pages/underlay-new.1")).unwrap().replace("\\-", "-");
    assert!(new.contains("[--out <FILE>]") && new.contains("[--storage <LIST>]"), "{new}");
    assert!(new.contains("\nunderlay new") || new.contains("    underlay new mine --like"), "{new}");
}

#[test]
fn invalid_study_file_is_refused() {
    let playground = Playground::new();
    let without_study = playground.output(&["run"]);
    assert_eq!(without_study.status.code(), Some(2));
    assert!(stderr(&without_study).contains("name a study"), "{}", stderr(&without_study));

    let pipe = playground.path("pipe.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = playground.output(&["check", "pipe.toml"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("it is a pipe"), "{}", stderr(&refused));

    playground.output(&["new", "study"]);
    let refused = playground.output(&["media", "check", "study.toml"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("underlay check study.toml"), "{}", stderr(&refused));

    playground.write("file", "");
    let refused = playground.output(&["mount", "hdd-7200-sata", "file"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("it is not a directory"), "{}", stderr(&refused));
}

#[test]
fn study_without_database_makes_nothing_and_has_remedy() {
    let playground = Playground::new();
    playground.output(&["new", "mine", "--like", "oracle-nosql-flash"]);
    let refused =
        playground.underlay(&["run", "mine.toml", "--short"]).env_remove("KVHOME").output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    let message = stderr(&refused);
    assert!(message.contains("KVHOME is not set") && message.contains("lib/kvclient.jar"), "{message}");
    assert_eq!(message.matches("KVHOME is not set").count(), 1, "{message}");
    assert_eq!(files(playground.folder.path()), ["mine.toml"]);

    let text = std::fs::read_to_string(playground.path("mine.toml")).unwrap();
    playground.write("small.toml", &text.replace("fixed_memory = \"1.4 GB\"", "fixed_memory = \"600 MB\""));
    let refused = playground.output(&["check", "small.toml"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let message = stderr(&refused);
    assert!(message.contains("expected at least 1478 MiB for the agents of 3 storage nodes"), "{message}");
    playground.write("five.toml", &text.replace("replication = 3", "replication = 5"));
    let refused = playground.output(&["check", "five.toml"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("at most the number of nodes, 3"), "{}", stderr(&refused));
}
