//! Problems that are reported before anything starts.

use std::collections::BTreeMap;

use tempfile::TempDir;
use underlay_systems::accumulo::{Accumulo, INSTALLED};
use underlay_systems::system::{StoragePaths, System, SystemError, SystemResources};

use crate::{MIB, settings, start};

#[test]
fn budget_too_small_is_refused_with_minimum() {
    let directory = TempDir::new().unwrap();
    let error = start(directory.path(), &[], 512 * MIB, &settings(&[])).err().unwrap().to_string();
    assert!(error.contains("512.0 MiB is too small: expected at least"), "{error}");
    assert!(!directory.path().join("scratch").exists());
}

#[test]
fn mistakes_and_missing_credentials_are_told() {
    let wrong = BTreeMap::from([("durability".to_owned(), "fsync".to_owned())]);
    assert_eq!(INSTALLED.check_settings(&wrong)[0].0, "durability");
    let without_credentials = Accumulo::with_variables(|_| None);
    let settings = settings(&[("zookeepers", "127.0.0.1:1"), ("instance", "prod")]);
    let resources = SystemResources::with_budget(0);
    match without_credentials.start(&StoragePaths::default(), &resources, &settings).err() {
        Some(SystemError::Missing { missing, remedy, .. }) => {
            assert!(missing.contains("ACCUMULO_USERNAME") && remedy.contains("ACCUMULO_PASSWORD"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn storage_with_interrupted_first_start_is_refused() {
    let directory = TempDir::new().unwrap();
    let metadata = directory.path().join("metadata/accumulo/metadata");
    std::fs::create_dir_all(&metadata).unwrap();
    std::fs::write(metadata.join("instance"), "life=making\nsecret=ab\npassword=cd\n").unwrap();
    let error = start(directory.path(), &["metadata"], 2048 * MIB, &settings(&[])).err().unwrap().to_string();
    assert!(error.contains("interrupted") && error.contains("empty the storage"), "{error}");
}
