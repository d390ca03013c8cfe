//! `underlay media` as a user types it.

// Nothing is mounted here.
mod support;

use support::{Playground, stderr, stdout};

const SATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../media/ssd-sata.toml");
const LAYOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../media/layouts/oracle-hdd.toml");

#[test]
fn media_list_groups_by_kind_with_layouts() {
    let playground = Playground::new();
    let list = stdout(&playground.output(&["media", "list"]));
    for expected in ["Hard disks", "Cloud volumes", "hdd-7200-sata", "ebs-gp3", "Layouts", "oracle-hdd"] {
        assert!(list.contains(expected), "{expected}:\n{list}");
    }
    assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&playground.output(&["media", "list", "--json"]))).unwrap();
    let names = |key: &str| -> Vec<String> {
        let entries = json[key].as_array().unwrap().iter();
        entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names("media").iter().all(|name| list.contains(name.as_str())));
    assert!(names("layouts").iter().all(|name| list.contains(name.as_str())));
}

#[test]
fn shown_medium_includes_its_model() {
    let playground = Playground::new();
    let shown = stdout(&playground.output(&["media", "show", "hdd-7200-sas"]));
    for expected in ["published", "modelled", "difference", "random-read-iops", "rotation_rpm 7200 [manual]"]
    {
        assert!(shown.contains(expected), "{expected}:\n{shown}");
    }
    let shown = stdout(&playground.output(&["media", "show", "oracle-hdd"]));
    assert!(shown.contains("6 x hdd-7200-sas, striped by 512 KiB") && shown.contains("$1,800"), "{shown}");
    let rented = stdout(&playground.output(&["media", "show", "ebs-gp3"]));
    assert!(rented.contains("USD (3 years' rent)"), "{rented}");
    let unknown = playground.output(&["media", "show", "oracle-hdds"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("did you mean oracle-hdd"), "{}", stderr(&unknown));
}

#[test]
fn checked_file_reports_mistakes_and_model_results() {
    let playground = Playground::new();
    let sound = playground.output(&["media", "check", SATA]);
    assert!(sound.status.success(), "{}", stderr(&sound));
    assert!(
        stdout(&sound).contains("no mistakes") && stdout(&sound).contains("94,000"),
        "{}",
        stdout(&sound)
    );
    let layout = playground.output(&["media", "check", LAYOUT]);
    assert!(layout.status.success(), "{}", stderr(&layout));

    let text = std::fs::read_to_string(SATA).unwrap();
    playground.write("wrong.toml", &text.replace("label = \"proxy\"", "label = \"proxi\""));
    let wrong = playground.output(&["media", "check", "wrong.toml"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("wrong.toml:5:9"), "{}", stderr(&wrong));

    playground.write("broken.toml", &text.replace("[model]", "[model"));
    let broken = playground.output(&["media", "check", "broken.toml"]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(stderr(&broken).contains("the rest of the file was not checked"), "{}", stderr(&broken));

    playground.write(
        "off.toml",
        &text.replace("value = 94_000\nqueue_depth = 32", "value = 80_000\nqueue_depth = 32"),
    );
    let off = playground.output(&["media", "check", "off.toml"]);
    assert_eq!(off.status.code(), Some(1), "{}", stdout(&off));
    assert!(!stdout(&off).contains("no mistakes"), "{}", stdout(&off));
    assert!(stdout(&off).contains("+17.5 % !"), "{}", stdout(&off));
    assert!(stderr(&off).contains("1 of 5 published figures"), "{}", stderr(&off));

    let layout = std::fs::read_to_string(LAYOUT).unwrap();
    playground.write("layout.toml", &layout.replace("hdd-7200-sas", "hdd-7200-sa"));
    let wrong = playground.output(&["media", "check", "layout.toml"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("layout.toml:4"), "{}", stderr(&wrong));
    for absent in ["absent.toml", "."] {
        let output = playground.output(&["media", "check", absent]);
        assert_eq!(output.status.code(), Some(2), "{absent}: {}", stderr(&output));
    }
}

#[test]
fn compared_media_stand_beside_what_was_measured() {
    let playground = Playground::new();
    let page = playground.path("curves.html");
    let names = ["samsung-pm9a3-960", "nvme-p4500"];
    let compared =
        playground.output(&["media", "compare", names[0], names[1], "--html", page.to_str().unwrap()]);
    assert!(compared.status.success(), "{}", stderr(&compared));
    let text = stdout(&compared);
    for expected in ["random reads of 4 KiB", "sequential writes of 128 KiB", "105,000 requests/s offered"] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    // One medium was measured under mixed loads, and both are modelled under them.
    assert_eq!(text.matches("  measured").count(), 5, "{text}");
    assert_eq!(text.matches("  modelled").count(), 10, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(names.iter().all(|name| page.contains(name)) && page.contains("<polyline"));

    let twice = playground.output(&["media", "compare", names[0], names[0]]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(stderr(&twice).contains("is there twice"), "{}", stderr(&twice));
    let unknown = playground.output(&["media", "compare", names[0], "nvme-p450"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("did you mean"), "{}", stderr(&unknown));
}
