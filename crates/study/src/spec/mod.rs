//! A study: `model` is its contents as data, `read` creates that from its text and keeps all positions, and `check`
//! compares its parts. Each module knows only the ones before it.

mod check;
mod model;
mod read;

use underlay_config::{Diagnostic, Diagnostics, Section};

pub use model::*;
pub use read::{MAX_REPETITIONS, MAX_TIME, STUDY_SECTIONS, read_pool_file, study_schema};
use read::{MediaReader, ReadFile, StudySections};

/// Which form of a study is requested.
#[derive(Clone, Copy, Debug, Default)]
pub struct StudyForm<'a> {
    /// `[short]` is applied.
    pub short: bool,
    /// `key.path=value` each, in place of the value in the text.
    pub overrides: &'a [String],
}

/// Keys with another name in `[short]`.
const SHORT_NAMES: [(&str, &str); 6] = [
    ("run.warmup", "warmup"),
    ("run.duration", "duration"),
    ("run.repetitions", "repetitions"),
    ("run.dirty_limit", "dirty_limit"),
    ("scale.time", "time"),
    ("scale.data", "data_scale"),
];

impl Study {
    /// Reads a study. All its mistakes are found in one go, each with its place in the text.
    ///
    /// `file_name` is only for the messages; `short` applies the study's `[short]` section. Relative `paths` stay
    /// relative, and the caller resolves them.
    ///
    /// # Errors
    /// A [`Diagnostics`] with at least one error, which a caller only needs to print. Notes alone are no failure: they
    /// are in [`Study::notes`].
    pub fn parse(file_name: &str, text: &str, short: bool) -> Result<Study, Diagnostics> {
        let none = |_: &str| Err("only media of the catalogue are known here".to_owned());
        Study::parse_with_media(file_name, text, StudyForm { short, overrides: &[] }, &none)
    }

    /// The same for studies that name media by their files: `read_file` returns the text of a file by its name in the
    /// study.
    ///
    /// # Errors
    /// As [`parse`](Study::parse).
    pub fn parse_with_media(
        file_name: &str,
        text: &str,
        form: StudyForm<'_>,
        read_file: ReadFile<'_>,
    ) -> Result<Study, Diagnostics> {
        let media = MediaReader::new(read_file);
        let mut findings = Diagnostics::new(file_name, text);
        let Some(document) = underlay_config::parse(text, &mut findings) else { return Err(findings) };
        let StudyForm { short, overrides } = form;
        let Some(table) = underlay_config::overridden(document.as_table(), overrides, &mut findings) else {
            return Err(findings);
        };
        let mut root = Section::root("the study", &table);
        let has_short_form = root.has("short");
        let StudySections { name, title, sites: full, short: shortened } =
            read::read(&mut root, &media, &mut findings);

        if short {
            for (path, key) in SHORT_NAMES {
                let is_set =
                    overrides.iter().any(|one| one.split('=').next().unwrap_or_default().trim() == path);
                let short_has = table.get("short").and_then(|short| short.get(key));
                if let (true, Some(value)) = (is_set, short_has) {
                    let message = format!("`{path}` is set, but [short] replaces it by its own `{key}`");
                    let label = format!("set `short.{key}` instead");
                    findings.push(Diagnostic::error(value.span().unwrap_or(0..0), message, label));
                }
            }
        }
        check::check_run(&full, &mut findings);
        check::check_short(&shortened, &full, &mut findings);
        let is_short_whole = shortened.is_whole;
        let cut_down = check::cut_down(shortened, full.clone());
        // Both forms must be sound, so that a mistake in one does not stay hidden until it is used. If a part of
        // [short] could not be read, its form would be a different one.
        let (sites, other) = match (short, is_short_whole) {
            (true, true) => (cut_down, Some(full)),
            (false, true) => (full, Some(cut_down)),
            (_, false) => (full, None),
        };
        check::check(&sites, &mut findings);
        let mut of_other = findings.emptied();
        if let Some(other) = &other {
            check::check(other, &mut of_other);
        }
        of_other.retain_errors();
        // Most of them are mistakes of both forms; sorting leaves each once.
        of_other.findings().iter().for_each(|finding| findings.push(finding.clone()));
        findings.sort();
        if findings.has_errors() {
            // Notes are about a study that works; next to mistakes they would only distract.
            findings.retain_errors();
            return Err(findings);
        }
        let (Some(name), Some(baseline)) = (name, sites.baseline_name()) else {
            return Err(findings);
        };
        let (for_roles, compared): (Vec<_>, Vec<_>) =
            sites.storages.iter().partition(|storage| sites.is_for_a_role(storage));
        let specs = |storages: Vec<&read::StorageSite>| {
            storages.into_iter().map(|storage| storage.spec.clone()).collect()
        };
        let leaves_time_open = sites.leaves_time_open();
        Ok(Study {
            name,
            title,
            source_toml: text.to_owned(),
            overrides: overrides.to_vec(),
            baseline,
            storages: specs(compared),
            role_storages: specs(for_roles),
            systems: sites.systems.into_iter().map(|site| site.spec).collect(),
            workloads: sites.workloads.into_iter().map(|site| site.into_spec()).collect(),
            faults: sites.faults.into_iter().map(|site| site.spec).collect(),
            events: sites.events.into_iter().map(|site| site.spec).collect(),
            run: sites.run.settings,
            machine: sites.machine.map(|machine| machine.value),
            scale: sites.scale.value,
            leaves_time_open,
            stretch: 1.0,
            reference: sites.reference.map(|reference| reference.value),
            short: short && has_short_form,
            media_files: media.into_texts(),
            notes: findings,
        })
    }
}
