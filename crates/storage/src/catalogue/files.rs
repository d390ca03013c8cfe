//! The files of `media/` that come with Underlay: all that are put there. `build.rs` has the folder looked at anew.

use std::sync::LazyLock;

use include_dir::{Dir, include_dir};

static FOLDER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../media");

/// A file, by its path from the top of the repository.
pub(super) struct BundledFile {
    pub(super) path: String,
    pub(super) text: &'static str,
}

/// In the order of their names.
pub(super) static MEDIA: LazyLock<Vec<BundledFile>> = LazyLock::new(|| files_in(Some(&FOLDER)));

/// In the order of their names.
pub(super) static LAYOUTS: LazyLock<Vec<BundledFile>> = LazyLock::new(|| files_in(FOLDER.get_dir("layouts")));

pub(super) const MEMORY: (&str, &str) =
    ("media/memory/dram.toml", include_str!("../../../../media/memory/dram.toml"));

fn files_in(folder: Option<&'static Dir<'static>>) -> Vec<BundledFile> {
    let files = folder.into_iter().flat_map(Dir::files);
    let mut files: Vec<BundledFile> = files
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "toml"))
        .map(|file| BundledFile {
            path: format!("media/{}", file.path().display()),
            // A test reads every file, so that none that ships can fail here.
            text: file.contents_utf8().expect("the files of `media` are text"),
        })
        .collect();
    // By the name alone: with `.toml`, `ebs-gp3-16k` would come before `ebs-gp3`.
    files.sort_by(|a, b| a.path.trim_end_matches(".toml").cmp(b.path.trim_end_matches(".toml")));
    files
}

/// The medium's file.
pub(super) fn find_medium(name: &str) -> Option<&'static BundledFile> {
    let path = format!("media/{name}.toml");
    MEDIA.iter().find(|file| file.path == path)
}
