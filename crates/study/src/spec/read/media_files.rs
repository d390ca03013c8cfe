//! Media that are files of the user's, read once however often a study names them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use underlay_config::{Diagnostic, Diagnostics, Field, Spanned, Word, closest};
use underlay_storage::catalogue;
use underlay_storage::catalogue::{Change, Medium};

/// Gives the text of a medium's file by the name that the study gives it.
pub(in crate::spec) type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

pub(in crate::spec) struct Media<'a> {
    read_file: ReadFile<'a>,
    texts: RefCell<BTreeMap<String, String>>,
}

impl<'a> Media<'a> {
    pub(crate) fn new(read_file: ReadFile<'a>) -> Self {
        Media { read_file, texts: RefCell::default() }
    }

    /// The files that were read, with their texts.
    pub(crate) fn into_texts(self) -> BTreeMap<String, String> {
        self.texts.into_inner()
    }

    /// A medium of the catalogue, or of a file where the name ends in `.toml`.
    pub(crate) fn find(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Medium> {
        let name = field.text("the name of a medium", findings)?;
        if name.value.ends_with(".toml") { self.read(&name, findings) } else { of_catalogue(&name, findings) }
    }

    /// The same with some of its parameters set where it is named: `{ medium = "ebs-io2", instance_iops = 18_750 }`. `own_keys` are those
    /// that may stand there besides.
    pub(crate) fn find_changed(
        &self,
        field: &Field<'_>,
        changes: &[Field<'_>],
        title: &str,
        own_keys: &[&str],
        findings: &mut Diagnostics,
    ) -> Option<Medium> {
        let medium = self.find(field, findings)?;
        let name = field.as_text().unwrap_or_default();
        let kept = self.texts.borrow().get(name).cloned();
        let base = kept.or_else(|| catalogue::text_of(name).map(str::to_owned))?;
        let mut sound = Vec::new();
        for change in changes {
            let value =
                change.as_number().map(Change::Number).or_else(|| change.as_boolean().map(Change::Property));
            let problem = match &value {
                None => None,
                Some(value) => match catalogue::changed(&base, &[(change.key.as_str(), value.clone())]) {
                    Ok(_) => {
                        sound.push((change.key.as_str(), value.clone()));
                        continue;
                    }
                    Err(problem) => Some(problem),
                },
            };
            match problem {
                // The medium's own reader says what is wrong with the value.
                Some(problem) if !problem.starts_with("unknown key") => {
                    let message = format!("{} can't be that", change.place);
                    findings.push(Diagnostic::error(change.span.clone(), message, problem));
                }
                // It also knows keys that the medium's file leaves out.
                problem => {
                    let unknown = unknown_key(change, title, own_keys, &medium);
                    let meant = problem.as_deref().and_then(|problem| problem.split_once("did you mean "));
                    findings.push(match meant {
                        Some((_, meant)) if unknown.label.is_empty() => {
                            Diagnostic { label: format!("did you mean {meant}"), ..unknown }
                        }
                        _ => unknown,
                    });
                }
            }
        }
        if sound.len() < changes.len() {
            return None;
        }
        if sound.is_empty() {
            return Some(medium);
        }
        match catalogue::changed(&base, &sound) {
            Ok(changed) => {
                // A volume server reads it from a file, and the run keeps a copy.
                self.texts.borrow_mut().insert(format!("{}.toml", changed.medium.name), changed.text);
                Some(changed.medium)
            }
            Err(problem) => {
                let message = format!("\"{}\" can't be changed like this", name.escape_debug());
                findings.push(Diagnostic::error(field.span.clone(), message, problem));
                None
            }
        }
    }

    fn read(&self, name: &Spanned<String>, findings: &mut Diagnostics) -> Option<Medium> {
        let known = self.texts.borrow().get(&name.value).cloned();
        let text = match known.map_or_else(|| (self.read_file)(&name.value), Ok) {
            Ok(text) => text,
            Err(problem) => {
                let message = format!("the medium's file \"{}\" can't be read", name.value.escape_debug());
                findings.push(Diagnostic::error(name.span.clone(), message, problem));
                return None;
            }
        };
        let medium = Medium::parse(&name.value, &text);
        self.texts.borrow_mut().insert(name.value.clone(), text);
        medium
            .map_err(|mistakes| {
                let message = format!("the medium's file \"{}\" has mistakes", name.value.escape_debug());
                let label = mistakes.findings().first().map_or_else(String::new, |first| {
                    let (line, column) = mistakes.line_column(first.span.start);
                    format!("line {line}, column {column}: {}", first.in_one_line())
                });
                findings.push(
                    Diagnostic::error(name.span.clone(), message, label)
                        .with_help(format!("`underlay media check {}` shows them all", name.value)),
                );
            })
            .ok()
    }
}

/// A key that neither the study nor the medium knows.
fn unknown_key(change: &Field<'_>, title: &str, own_keys: &[&str], medium: &Medium) -> Diagnostic {
    let message = format!("unknown key `{}` in {title}", change.key);
    let entries = medium.model.entries();
    let numbers: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.value.parse::<f64>().is_ok() || matches!(entry.value.as_str(), "yes" | "no"))
        .map(|entry| entry.name)
        .collect();
    let known: Vec<&str> = own_keys.iter().chain(&numbers).copied().collect();
    let expected = format!(
        "expected one of {}; or a number or property of \"{}\": {}",
        own_keys.join(", "),
        medium.name,
        numbers.join(", ")
    );
    Diagnostic::unknown(change.key_span.clone(), message, Word::Key(&change.key), known, expected)
}

fn of_catalogue(name: &Spanned<String>, findings: &mut Diagnostics) -> Option<Medium> {
    if let Ok(medium) = catalogue::find(&name.value) {
        return Some(medium);
    }
    let names: Vec<&str> = catalogue::builtin().iter().map(|medium| medium.name.as_str()).collect();
    let message = format!("unknown medium \"{}\"", name.value.escape_debug());
    let known = "`underlay media list` shows the catalogue; a file of your own ends in .toml";
    findings.push(match closest(&name.value, names.iter().copied()) {
        Some(meant) => Diagnostic::error(name.span.clone(), message, format!("did you mean \"{meant}\"?"))
            .with_help(known),
        None => Diagnostic::error(name.span.clone(), message, "expected a medium of the catalogue")
            .with_help(known),
    });
    None
}
