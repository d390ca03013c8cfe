//! What is told before anything starts.

use std::collections::BTreeMap;

use tempfile::TempDir;
use underlay_systems::accumulo::{Accumulo, INSTALLED};
use underlay_systems::system::{StoragePaths, System, SystemError, SystemResources};

use crate::{MIB, settings, start};

#[test]
fn too_small_a_budget_is_refused_with_the_smallest_that_works() {
    let directory = TempDir::new().unwrap();
    let error = start(directory.path(), &[], 512 * MIB, &settings(&[])).err().unwrap().to_string();
    assert!(error.contains("512.0 MiB is too small: expected at least"), "{error}");
    assert!(!directory.path().join("scratch").exists());
}

#[test]
fn mistakes_and_missing_credentials_are_told() {
    let wrong = BTreeMap::from([("durability".to_owned(), "fsync".to_owned())]);
    assert_eq!(INSTALLED.check_settings(&wrong)[0].0, "durability");
    let nobody = Accumulo::with_variables(|_| None);
    let settings = settings(&[("zookeepers", "127.0.0.1:1"), ("instance", "prod")]);
    let resources = SystemResources::of(0);
    match nobody.start(&StoragePaths::default(), &resources, &settings).err() {
        Some(SystemError::Missing { missing, remedy, .. }) => {
            assert!(missing.contains("ACCUMULO_USERNAME") && remedy.contains("ACCUMULO_PASSWORD"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_storage_on_which_a_first_start_broke_off_is_refused() {
    let directory = TempDir::new().unwrap();
    let metadata = directory.path().join("metadata/accumulo/metadata");
    std::fs::create_dir_all(&metadata).unwrap();
    std::fs::write(metadata.join("instance"), "life=making\nsecret=ab\npassword=cd\n").unwrap();
    let error = start(directory.path(), &["metadata"], 2048 * MIB, &settings(&[])).err().unwrap().to_string();
    assert!(error.contains("interrupted") && error.contains("empty the storage"), "{error}");
}
