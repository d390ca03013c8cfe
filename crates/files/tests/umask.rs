//! Private files are private under every umask. Alone in its process: the umask is the process's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::Mode;
use underlay_files::{Access, Folder};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn private_files_are_private_under_any_umask() {
    for umask in [0, 0o022, 0o777] {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        let before = rustix::process::umask(Mode::from_raw_mode(umask));
        let private = Folder::make(&path_of("a/b"), Access::Private).unwrap();
        private.replace("file", Access::Private, b"it").unwrap();
        underlay_files::replace(&path_of("a/other"), Access::Private, b"it").unwrap();
        let socket = underlay_files::listen(&path_of("a/socket"));
        let readable = Folder::make(&path_of("readable"), Access::Readable);
        rustix::process::umask(before);
        for name in ["a", "a/b"] {
            assert_eq!(mode(&path_of(name)), 0o700, "{name} under {umask:o}");
        }
        for name in ["a/b/file", "a/other"] {
            assert_eq!(mode(&path_of(name)), 0o600, "{name} under {umask:o}");
        }
        if umask != 0o777 {
            assert_eq!(mode(&path_of("a/socket")), 0o600, "under {umask:o}");
            assert_eq!(mode(readable.unwrap().path()), 0o755);
        }
        drop(socket);
    }
}
