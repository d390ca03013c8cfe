//! Media in a user's files, read once however often a study names them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use underlay_config::{Diagnostic, Diagnostics, Field, Spanned, UnknownName, closest};
use underlay_storage::catalogue;
use underlay_storage::catalogue::{
    CatalogueMedium, MediumRefusal, ParameterChange, ParameterForm, RefusalCause,
};

/// Returns the text of a medium's file by its name in the study.
pub(in crate::spec) type ReadFile<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// A study's keys of a device besides its medium.
pub(in crate::spec) struct DeviceKeys<'d, 'a> {
    pub capacity: Option<Spanned<u64>>,
    /// It may be larger than any model on the market.
    pub beyond: bool,
    /// Parameters of the medium.
    pub changes: &'d [Field<'a>],
    pub title: &'d str,
    /// The other keys that are allowed there.
    pub own_keys: &'d [&'static str],
}

pub(in crate::spec) struct MediaReader<'a> {
    read_file: ReadFile<'a>,
    texts: RefCell<BTreeMap<String, String>>,
}

impl<'a> MediaReader<'a> {
    pub(crate) fn new(read_file: ReadFile<'a>) -> Self {
        MediaReader { read_file, texts: RefCell::default() }
    }

    /// The files that were read, with their texts.
    pub(crate) fn into_texts(self) -> BTreeMap<String, String> {
        self.texts.into_inner()
    }

    /// A medium of the catalogue, or of a file if the name ends in `.toml`.
    pub(crate) fn find(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<CatalogueMedium> {
        let name = field.text("the name of a medium", findings)?;
        if name.value.ends_with(".toml") {
            self.read(&name, findings)
        } else {
            find_in_catalogue(&name, findings)
        }
    }

    /// The medium of a device. It has the study's size, where the provider's rules define its effect. Some of its
    /// parameters may be set next to its name: `{ medium = "ebs-io2", instance_iops = 18_750 }`.
    pub(in crate::spec) fn find_device(
        &self,
        field: &Field<'_>,
        device: &DeviceKeys<'_, '_>,
        findings: &mut Diagnostics,
    ) -> Option<CatalogueMedium> {
        let medium = self.find(field, findings)?;
        let DeviceKeys { capacity, beyond: allows_larger, changes, title, own_keys } = device;
        let parameters = medium.kind.parameters();
        let mut wanted: Vec<(&str, ParameterChange)> = Vec::new();
        for change in *changes {
            let form = parameters.iter().find(|(name, _)| *name == change.key).map(|(_, form)| *form);
            let value = match form {
                Some(ParameterForm::Number) => {
                    change.number("a number", findings).map(ParameterChange::Number)
                }
                Some(ParameterForm::Property) => change.boolean(findings).map(ParameterChange::Property),
                Some(ParameterForm::Table) => {
                    change
                        .invalid("expected in the medium's own file: this is more than one number", findings);
                    None
                }
                None => {
                    findings.push(unknown_key(change, title, own_keys, &medium));
                    None
                }
            };
            wanted.extend(value.map(|value| (change.key.as_str(), value)));
        }
        if wanted.len() < changes.len() {
            return None;
        }
        if wanted.is_empty() && medium.volume.is_none() {
            return Some(medium);
        }
        let name = field.as_text().unwrap_or_default();
        let cached = self.texts.borrow().get(name).cloned();
        let base = cached.or_else(|| catalogue::text_of(name).map(str::to_owned))?;
        let capacity_bytes = capacity.as_ref().map(|capacity| capacity.value);
        match catalogue::sized(&base, capacity_bytes, *allows_larger, &wanted) {
            Ok(sized) => {
                // A volume server reads it from a file, and the run keeps a copy. The user's own file is kept as well.
                let file = match sized.medium.name == medium.name {
                    true => format!("{}-of-its-size.toml", medium.name),
                    false => format!("{}.toml", sized.medium.name),
                };
                self.texts.borrow_mut().insert(file, sized.text);
                Some(sized.medium)
            }
            Err(refused) => {
                let all = changes.first().map_or(&field.span, |first| &first.span);
                for MediumRefusal { blame, reason } in refused {
                    let (span, message) = match blame {
                        RefusalCause::Change(index) => (
                            changes[index].span.clone(),
                            format!("{} can't have this value", changes[index].place),
                        ),
                        RefusalCause::Capacity => {
                            let span =
                                capacity.as_ref().map_or(field.span.clone(), |found| found.span.clone());
                            (span, format!("`capacity` in {title} can't have this value"))
                        }
                        RefusalCause::Whole => {
                            let message = format!("\"{}\" can't be like this", name.escape_debug());
                            (all.clone(), message)
                        }
                    };
                    let finding = Diagnostic::error(span, message, reason);
                    findings.push(match (&medium.volume, blame) {
                        (Some(_), RefusalCause::Capacity) => finding.with_help(
                            "use `count` for several volumes, `data` in [scale] for a smaller copy of the study, and \
                             `larger_than_medium = true` for one that nobody sells",
                        ),
                        _ => finding,
                    });
                }
                None
            }
        }
    }

    fn read(&self, name: &Spanned<String>, findings: &mut Diagnostics) -> Option<CatalogueMedium> {
        let cached = self.texts.borrow().get(&name.value).cloned();
        let text = match cached.map_or_else(|| (self.read_file)(&name.value), Ok) {
            Ok(text) => text,
            Err(problem) => {
                let message = format!("the medium's file \"{}\" can't be read", name.value.escape_debug());
                findings.push(Diagnostic::error(name.span.clone(), message, problem));
                return None;
            }
        };
        let medium = CatalogueMedium::parse(&name.value, &text);
        self.texts.borrow_mut().insert(name.value.clone(), text);
        medium
            .map_err(|mistakes| {
                let message = format!("the medium's file \"{}\" has mistakes", name.value.escape_debug());
                let label = mistakes.findings().first().map_or_else(String::new, |first| {
                    let (line, column) = mistakes.line_column(first.span.start);
                    format!("line {line}, column {column}: {}", first.to_one_line())
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
fn unknown_key(change: &Field<'_>, title: &str, own_keys: &[&str], medium: &CatalogueMedium) -> Diagnostic {
    let message = format!("unknown key `{}` in {title}", change.key);
    let may_be_set = medium.kind.parameters().iter().filter(|(_, form)| *form != ParameterForm::Table);
    let numbers: Vec<&str> = may_be_set.map(|(name, _)| *name).collect();
    let known_keys: Vec<&str> = own_keys.iter().chain(&numbers).copied().collect();
    let expected = format!(
        "expected one of {}; or a number or property of \"{}\": {}",
        own_keys.join(", "),
        medium.name,
        numbers.join(", ")
    );
    Diagnostic::unknown(change.key_span.clone(), message, UnknownName::Key(&change.key), known_keys, expected)
}

fn find_in_catalogue(name: &Spanned<String>, findings: &mut Diagnostics) -> Option<CatalogueMedium> {
    if let Ok(medium) = catalogue::find(&name.value) {
        return Some(medium);
    }
    let names: Vec<&str> = catalogue::builtin().iter().map(|medium| medium.name.as_str()).collect();
    let message = format!("unknown medium \"{}\"", name.value.escape_debug());
    let help = "`underlay media list` shows the catalogue; a file of your own ends in .toml";
    findings.push(match closest(&name.value, names.iter().copied()) {
        Some(meant) => Diagnostic::error(name.span.clone(), message, format!("did you mean \"{meant}\"?"))
            .with_help(help),
        None => Diagnostic::error(name.span.clone(), message, "expected a medium of the catalogue")
            .with_help(help),
    });
    None
}
