//! The system of a new study, and its first load.

use underlay_config::closest;
use underlay_systems::first_study::{FirstStudy, FirstWork};
use underlay_systems::system::SystemCapabilities;

use crate::bundled_studies;
use crate::exit_codes::ExitFailure;

/// A system, and what it is given.
pub(super) struct NewSystem {
    pub name: &'static str,
    pub title: &'static str,
    pub capabilities: SystemCapabilities,
    pub first: FirstStudy,
}

/// Finds the system that `--system` names.
pub(super) fn find(name: &str) -> Result<NewSystem, ExitFailure> {
    let Some(system) = underlay_systems::find(name) else {
        // A program that a bundled study describes by commands is no system of its own.
        if let Some(study) = bundled_studies::list_command_studies().find(|study| is_called(study, name)) {
            return Err(ExitFailure::Mistake(format!(
                "'{name}' is not a built-in system, but a bundled study describes it by commands: begin with \
                 `underlay new NAME --like {study}`"
            )));
        }
        let names = underlay_systems::names();
        let meant = closest(name, names.iter().copied());
        let meant = meant.map(|meant| format!("did you mean '{meant}'? ")).unwrap_or_default();
        return Err(ExitFailure::Mistake(format!(
            "unknown system '{name}': {meant}expected one of {}. Any other program is described by commands: begin with \
             `underlay new NAME --like sqlite`, and see docs/any-system.md",
            names.join(", ")
        )));
    };
    let Some(first) = system.profile().first_study else {
        return Err(ExitFailure::Mistake(
            "what commands a program needs can't be guessed: begin with one that is there, `underlay new NAME --like sqlite` (or \
             postgresql, fio), and see docs/any-system.md"
                .to_owned(),
        ));
    };
    Ok(NewSystem {
        name: system.name(),
        title: system.profile().title,
        capabilities: system.capabilities(),
        first,
    })
}

/// Whether a study's program goes by this name: `postgres` is PostgreSQL's other name, as `sqlite3` is SQLite's.
fn is_called(study: &str, name: &str) -> bool {
    const ENOUGH_LETTERS: usize = 6;
    let name = name.to_ascii_lowercase();
    name == study || name.len() >= ENOUGH_LETTERS && (study.starts_with(&name) || name.starts_with(study))
}

impl NewSystem {
    /// Whether several devices become a directory each, and no stripe.
    pub(super) fn keeps_devices_apart(&self) -> bool {
        self.capabilities.many_directories && matches!(self.first.work, FirstWork::Jobs { .. })
    }
}
