//! The public comparisons in `studies/outside` are sound studies. `docs/data/outside-studies.json` has what their
//! sources published, and `docs/outside-studies.md` a section on each.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use underlay_record::Cell;
use underlay_study::plan;
use underlay_study::spec::{Study, StudyForm};

#[derive(Deserialize)]
struct Published {
    ratio: Vec<Ratio>,
}

/// A published figure on one storage divided by the same on another.
#[derive(Deserialize)]
struct Ratio {
    study: String,
    workload: String,
    figure: String,
    storage: String,
    against: String,
    value: f64,
    from: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("studies/outside")
}

fn studies() -> HashMap<String, Study> {
    let mut studies = HashMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "toml") && name != "published" {
            studies.insert(name, study(&path));
        }
    }
    studies
}

fn study(path: &Path) -> Study {
    let text = fs::read_to_string(path).unwrap();
    let medium = |name: &str| fs::read_to_string(folder().join(name)).map_err(|error| error.to_string());
    Study::parse_with_media(&path.to_string_lossy(), &text, StudyForm::default(), &medium)
        .unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

fn published() -> Vec<Ratio> {
    let text = fs::read_to_string(folder().join("published.toml")).unwrap();
    toml_edit::de::from_str::<Published>(&text).unwrap().ratio
}

#[test]
fn outside_studies_are_sound_with_published_ratio() {
    let (studies, published) = (studies(), published());
    assert!(studies.len() >= 12);
    for (name, study) in &studies {
        assert!(study.title.is_some(), "{name} has no title");
        assert!(published.iter().any(|ratio| ratio.study == *name), "{name} is compared with nothing");
    }
}

#[test]
fn published_ratios_are_of_running_cells() {
    let studies = studies();
    for ratio in published() {
        let label = format!("{}: {} {}", ratio.study, ratio.workload, ratio.figure);
        assert!(ratio.value.is_finite() && ratio.value > 0.0 && !ratio.from.is_empty(), "{label}");
        let study = studies.get(&ratio.study).unwrap_or_else(|| panic!("{label}: no such study"));
        let cells = plan::expand(study);
        for storage in [&ratio.storage, &ratio.against] {
            let matches_ratio = |cell: &Cell| cell.storage == *storage && cell.workload == ratio.workload;
            assert!(cells.iter().any(matches_ratio), "{label}: no cell on {storage}");
        }
        assert_eq!(study.baseline, ratio.against, "{label}");
    }
}

#[test]
fn data_and_page_list_every_published_ratio() {
    let text = fs::read_to_string(root().join("docs/data/outside-studies.json")).unwrap();
    let data: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut rows = data["tables"]["ratios"]["rows"].as_array().unwrap().clone();
    let page = fs::read_to_string(root().join("docs/outside-studies.md")).unwrap();
    for ratio in published() {
        let (_, section) = page
            .split_once(&format!("`studies/outside/{}.toml`", ratio.study))
            .unwrap_or_else(|| panic!("the page does not name {}", ratio.study));
        let section = section.split("\n## ").next().unwrap();
        let table =
            format!("<!-- table data/outside-studies.json ratios where study=\"{}\" -->", ratio.study);
        assert!(section.contains(&table), "{}: its section of the page lacks {table}", ratio.study);
        let names = [&ratio.study, &ratio.workload, &ratio.figure, &ratio.storage, &ratio.against];
        let place = rows.iter().position(|row| {
            let own = ["study", "workload", "figure", "storage", "baseline"].map(|key| row[key].as_str());
            own == names.map(|name| Some(name.as_str()))
                && row["published_ratio"].as_f64() == Some(ratio.value)
        });
        let label = format!("{}: {} {}, {}", ratio.study, ratio.workload, ratio.figure, ratio.value);
        rows.remove(place.unwrap_or_else(|| panic!("docs/data/outside-studies.json has no row of {label}")));
    }
    assert!(rows.is_empty(), "docs/data/outside-studies.json has rows of nothing published: {rows:#?}");
}
