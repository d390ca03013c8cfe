//! What another user may have put where this one works as root. Alone in its process: a version is looked up once in a
//! process.

use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn rocksdb_version_lookup_follows_no_planted_link() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    // Where it was, by its process, before.
    let planted = std::env::temp_dir().join(format!("underlay-rocksdb-version-{}", std::process::id()));
    fs::create_dir(&planted).unwrap();
    for name in ["MANIFEST-000001", "000001.dbtmp", "IDENTITY", "000000.dbtmp", "LOG", "LOCK"] {
        symlink(&victim, planted.join(name)).unwrap();
    }
    let versions = underlay_systems::find("rocksdb").unwrap().versions();
    let left = planted.exists();
    let _ = fs::remove_dir_all(&planted);
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    assert!(versions.contains_key("rocksdb"), "{versions:?}");
    assert!(left, "what someone else made is not ours to remove");
    let ours = |name: &str| {
        let own = format!("underlay-rocksdb-version-{}-", std::process::id());
        name.starts_with(&own)
    };
    let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    assert!(
        !entries.into_iter().any(|entry| ours(&entry.file_name().to_string_lossy())),
        "it left its folder"
    );
}
