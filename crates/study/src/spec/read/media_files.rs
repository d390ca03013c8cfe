//! Media that are files of the user's, read once however often a study names them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use underlay_config::{Diagnostic, Diagnostics, Field, Spanned, closest};
use underlay_storage::catalogue;
use underlay_storage::catalogue::Medium;

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
