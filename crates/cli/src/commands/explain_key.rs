//! `underlay explain-key`: what a key of a study takes, and what it means.

use std::process::ExitCode;

use underlay_config::closest;
use underlay_config::keys::{KeyDefault, KeySection, SectionKey};
use underlay_study::spec::STUDY_SECTIONS;
use underlay_systems::system::System;

use crate::exit_codes::ExitFailure;
use crate::output;

/// A key with all that there is to say about it.
struct ExplainedKey {
    section: String,
    name: &'static str,
    lines: Vec<(&'static str, String)>,
    meaning: String,
}

/// The keys that are called so, or all of a section that is.
pub(crate) fn explain_key(wanted: Option<&str>) -> Result<ExitCode, ExitFailure> {
    let keys = list_keys();
    let Some(wanted) = wanted else {
        output::print(&list_sections(&keys));
        return Ok(ExitCode::SUCCESS);
    };
    let found: Vec<&ExplainedKey> = keys.iter().filter(|key| key.is_called(wanted)).collect();
    if found.is_empty() {
        return Err(ExitFailure::Mistake(unknown(wanted, &keys)));
    }
    output::print(&found.into_iter().map(ExplainedKey::describe).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn list_keys() -> Vec<ExplainedKey> {
    let study_keys = STUDY_SECTIONS
        .iter()
        .flat_map(|section| section.keys.iter().map(|key| ExplainedKey::from_study_key(section, *key)));
    let systems = underlay_systems::all();
    study_keys.chain(systems.flat_map(ExplainedKey::list_of_system)).collect()
}

/// Each section with the names of its keys.
fn list_sections(keys: &[ExplainedKey]) -> String {
    let mut text = String::new();
    for group in keys.chunk_by(|one, next| one.section == next.section) {
        let names: Vec<&str> = group.iter().map(|key| key.name).collect();
        let head = match group[0].section.as_str() {
            "" => "a study: ".to_owned(),
            section => format!("[{section}] "),
        };
        text += &output::wrap_after_head(&head, 2, &names.join(", "));
        text += "\n";
    }
    text + "`underlay explain-key run.duration` explains one, and `underlay explain-key run` a section.\n"
}

fn unknown(wanted: &str, keys: &[ExplainedKey]) -> String {
    let last = wanted.rsplit('.').next().unwrap_or(wanted);
    let meant = match closest(last, keys.iter().map(|key| key.name)) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "`underlay explain-key` lists all keys".to_owned(),
    };
    format!("no study has a key or section `{}`: {meant}", wanted.escape_debug())
}

impl ExplainedKey {
    fn from_study_key(section: &KeySection, key: &dyn SectionKey) -> ExplainedKey {
        let mut lines = vec![("takes", key.describe_values())];
        match key.default() {
            KeyDefault::Required => lines.push(("default", "none: it is required".to_owned())),
            KeyDefault::Nothing => {}
            KeyDefault::Value(value) => lines.push(("default", value.to_owned())),
            KeyDefault::Described(words) => lines.push(("default", words.to_owned())),
        }
        lines.push(("example", format!("{} = {}", key.name(), key.example())));
        ExplainedKey {
            section: section.path.to_owned(),
            name: key.name(),
            lines,
            meaning: key.meaning().to_owned(),
        }
    }

    /// The settings of a system, and its roles.
    fn list_of_system(system: &'static dyn System) -> Vec<ExplainedKey> {
        let capabilities = system.capabilities();
        let key = |name, meaning, takes: &str| ExplainedKey {
            section: format!("system.{}", system.name()),
            name,
            lines: vec![("takes", takes.to_owned())],
            meaning,
        };
        let roles = capabilities.roles.iter().map(|&(role, contents)| {
            key(
                role,
                format!("The storage for this part of what it stores: {contents}."),
                "the name of a storage",
            )
        });
        // What it takes is part of the meaning.
        let settings = capabilities
            .settings
            .iter()
            .map(|&(name, meaning)| ExplainedKey { lines: Vec::new(), ..key(name, meaning.to_owned(), "") });
        roles.chain(settings).collect()
    }

    /// `duration`, `run.duration`, `run`; the user's own name may stand for `NAME`: `storage.hdd.layout`.
    fn is_called(&self, wanted: &str) -> bool {
        let path = if self.section.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}.{}", self.section, self.name)
        };
        wanted == self.name || matches_path(&self.section, wanted) || matches_path(&path, wanted)
    }

    fn describe(&self) -> String {
        let mut text = match self.section.as_str() {
            "" => format!("{}\n", self.name),
            section => format!("[{section}] {}\n", self.name),
        };
        text += &output::wrap_after_head("  ", 2, &self.meaning);
        text += "\n";
        for (head, line) in &self.lines {
            text += &output::wrap_after_head(&format!("  {head:<9}"), 11, line);
            text += "\n";
        }
        text
    }
}

/// Whether a path of ours is the wanted one. What stands in brackets is no part of it.
fn matches_path(path: &str, wanted: &str) -> bool {
    let path: Vec<&str> = path.split('.').map(|part| part.split(" (").next().unwrap_or(part)).collect();
    let wanted: Vec<&str> = wanted.split('.').collect();
    let is_same = |(ours, theirs): (&&str, &&str)| ours == theirs || (*ours == "NAME" && !theirs.is_empty());
    path.len() == wanted.len() && path.iter().zip(&wanted).all(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_matches_names_of_users() {
        for (path, wanted) in [
            ("run.duration", "run.duration"),
            ("storage.NAME.layout", "storage.hdd.layout"),
            ("storage.NAME", "storage.NAME"),
            ("workload.NAME (jobs).maps", "workload.sort.maps"),
        ] {
            assert!(matches_path(path, wanted), "{path} {wanted}");
        }
        for (path, wanted) in [("run.duration", "run"), ("storage.NAME", "storage."), ("run", "scale")] {
            assert!(!matches_path(path, wanted), "{path} {wanted}");
        }
    }

    #[test]
    fn keys_are_found_by_their_paths() {
        for key in list_keys() {
            let path = format!("{}.{}", key.section.split(" (").next().unwrap(), key.name);
            assert!(key.is_called(path.trim_start_matches('.')), "{path}");
            assert!(key.describe().contains(&key.meaning[..10]), "{path}");
        }
    }
}
