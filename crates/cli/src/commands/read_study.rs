//! Reading a study's file, with the files that it names.

use std::path::Path;

use underlay_study::spec::{Study, StudyForm};

use crate::exit_codes::ExitFailure;

/// Of a study, a pool's file, and what they name. The longest in the world have some thousand lines.
pub(super) const MAX_FILE_BYTES: u64 = 4 << 20;

/// The text of a study's file.
pub(super) fn read(path: &Path) -> Result<String, ExitFailure> {
    underlay_files::read_text_or_pipe(path, MAX_FILE_BYTES)
        .map_err(|error| ExitFailure::Mistake(format!("cannot read the study {}: {error}", path.display())))
}

/// Reads a study, or says all its mistakes.
pub(super) fn read_study(path: &Path, form: StudyForm<'_>) -> Result<Study, ExitFailure> {
    study_of_text(path, &read(path)?, form)
}

/// As [`read_study`], of what the file holds or will hold.
pub(super) fn study_of_text(path: &Path, text: &str, form: StudyForm<'_>) -> Result<Study, ExitFailure> {
    // A study names files as seen from its own directory.
    let folder = path.parent().unwrap_or(Path::new(""));
    let read_file = |name: &str| {
        let file = folder.join(name);
        underlay_files::read_text(&file, MAX_FILE_BYTES)
            .map_err(|error| format!("{}: {error}", file.display()))
    };
    Study::parse_with_media(&path.display().to_string(), text, form, &read_file)
        .map_err(|mistakes| ExitFailure::Findings(Box::new(mistakes)))
}
