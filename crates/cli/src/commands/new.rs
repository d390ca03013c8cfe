//! `underlay new`: a study to start from, which `underlay check` accepts.

pub(super) mod storage;
mod system;
mod text;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use underlay_report::quantity;
use underlay_study::plan;
use underlay_study::spec::{Study, SystemSpec};

use super::read_study::study_of_text;
use crate::arguments::NewArguments;
use crate::bundled_studies;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn new(arguments: &NewArguments) -> Result<ExitCode, ExitFailure> {
    let name = name_of(&arguments.name)?;
    let is_printed = arguments.out.as_deref() == Some(Path::new("-"));
    let out = arguments.out.clone().filter(|_| !is_printed);
    let file = out.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    let text = match &arguments.like {
        Some(like) => bundled_studies::copy(like, name)?,
        None => {
            let system = system::find(&arguments.system)?;
            let folder = file.parent().unwrap_or(Path::new(""));
            let storages = storage::read(&arguments.storage, folder)?;
            text::write(name, &file, &system, &storages)?
        }
    };
    // Mistakes in the request come up before there is a file.
    let study = study_of_text(&file, &text, underlay_study::spec::StudyForm::default())?;
    if is_printed {
        output::print(&text);
        return Ok(ExitCode::SUCCESS);
    }
    create(&file, &text)?;
    say_what_is_next(&file, &study);
    Ok(ExitCode::SUCCESS)
}

/// A study's name; `disks.toml`, which it is written to, stands for `disks`.
fn name_of(text: &str) -> Result<&str, ExitFailure> {
    let name = text.strip_suffix(".toml").unwrap_or(text);
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.is_empty() && name.len() <= 40 && !name.starts_with('-') && name.chars().all(is_name) {
        return Ok(name);
    }
    let hint = match text.contains('/') {
        true => "; --out FILE writes it elsewhere",
        false => "",
    };
    Err(ExitFailure::Mistake(format!(
        "'{text}' is not a valid study name: use up to 40 lowercase letters, digits and hyphens, beginning with no \
         hyphen{hint}"
    )))
}

/// Puts the file in its place once it is whole, and never in the place of another.
pub(super) fn create(file: &Path, text: &str) -> Result<(), ExitFailure> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |error: std::io::Error| {
        ExitFailure::from_place_error(format!("cannot write {}: {error}", file.display()), &error)
    };
    let mut part = tempfile::Builder::new()
        .prefix(".underlay-new-")
        // As any new file: the umask takes its part.
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(failed)?;
    part.write_all(text.as_bytes()).and_then(|()| part.as_file().sync_all()).map_err(failed)?;
    match part.persist_noclobber(file) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(ExitFailure::Mistake(format!(
                "{} already exists and was left unchanged: choose another name, or remove it first",
                file.display()
            )))
        }
        Err(error) => Err(failed(error.error)),
    }
}

/// The title of what a section runs, regardless of the section's own name unless that says what it is.
fn title(system: &SystemSpec) -> &str {
    match underlay_systems::find(&system.kind) {
        Some(kind) if kind.capabilities().by_command => &system.name,
        Some(kind) => kind.profile().title,
        None => &system.kind,
    }
}

fn say_what_is_next(file: &Path, study: &Study) {
    let cells = plan::expand(study).len();
    let storages: Vec<&str> = study.storages.iter().map(|storage| storage.name.as_str()).collect();
    let systems: Vec<&str> = study.systems.iter().map(title).collect();
    output::print(&format!(
        "wrote {}: {} on {}, {}\n",
        file.display(),
        systems.join(" and "),
        storages.join(", "),
        quantity::plural(cells, "cell"),
    ));
    let commands = [
        (format!("underlay check {}", file.display()), "what it would run; every mistake at its line"),
        ("underlay doctor".to_owned(), "what this machine lacks for it, and how to get that"),
        (format!("underlay run {}", file.display()), "run it, and compare: a table and an HTML report"),
    ];
    let width = commands.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    output::print("Next:");
    for (command, purpose) in commands {
        output::print(&format!("  {command:<width$}   # {purpose}"));
    }
}
