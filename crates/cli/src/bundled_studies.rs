//! The studies that come with Underlay, under a name of the user's own.

use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use underlay_config::closest;

use crate::exit_codes::ExitFailure;

static FOLDER: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../studies");

/// The one that a newcomer begins with is named first.
const FIRST: &str = "quickstart";

/// Name and text of each file of `studies/`.
fn studies() -> &'static [(&'static str, &'static str)] {
    static STUDIES: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
        let mut studies: Vec<(&str, &str)> = FOLDER
            .files()
            .filter_map(|file| Some((file.path().to_str()?.strip_suffix(".toml")?, file.contents_utf8()?)))
            .collect();
        studies.sort_by_key(|(name, _)| (*name != FIRST, *name));
        studies
    });
    &STUDIES
}

/// The values of `--like`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    studies().iter().map(|(name, _)| *name)
}

/// Those of them whose program is described by commands.
pub(crate) fn list_command_studies() -> impl Iterator<Item = &'static str> {
    let described = |text: &str| text.lines().any(|line| line.starts_with("kind = \"command\""));
    studies().iter().filter(move |(_, text)| described(text)).map(|(name, _)| *name)
}

/// The study `like`, called `name`.
pub(crate) fn copy(like: &str, name: &str) -> Result<String, ExitFailure> {
    let Some((_, text)) = studies().iter().find(|(name, _)| *name == like) else {
        let names: Vec<&str> = names().collect();
        let meant = closest(like, names.iter().copied())
            .map(|meant| format!("did you mean '{meant}'? "))
            .unwrap_or_default();
        return Err(ExitFailure::Mistake(format!(
            "there is no bundled study '{like}': {meant}expected one of {}",
            names.join(", ")
        )));
    };
    let lines = text.lines().map(|line| match line.starts_with("name = ") {
        true => format!("name = \"{name}\"\n"),
        false => format!("{line}\n"),
    });
    Ok(lines.collect())
}
