//! The fields of a form: each once, and from programs none that the form does not have.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::server::answer::ActionRefusal;
use crate::server::caller::RequestCaller;

/// As they came.
pub(in crate::server) type FormPairs = Vec<(String, String)>;

pub(in crate::server) struct FormFields(BTreeMap<String, String>);

impl FormFields {
    /// A field that is there twice could mean either, and what a program misspells would be passed over.
    pub(super) fn new(
        pairs: FormPairs,
        known_fields: &[&str],
        caller: RequestCaller,
    ) -> Result<FormFields, ActionRefusal> {
        let mut fields = BTreeMap::new();
        for (name, value) in pairs {
            let is_known =
                known_fields.contains(&name.as_str()) || matches!(name.as_str(), "form" | "confirmed");
            if caller == RequestCaller::OwnProgram && !is_known {
                let expected =
                    if known_fields.is_empty() { "none".to_owned() } else { known_fields.join(", ") };
                return Err(ActionRefusal::invalid(format!("unknown field {name:?}: expected {expected}")));
            }
            if fields.contains_key(&name) {
                return Err(ActionRefusal::invalid(format!("the field {name:?} is there twice")));
            }
            fields.insert(name, value);
        }
        Ok(FormFields(fields))
    }

    /// Nothing where it is not there.
    pub(in crate::server) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Empty where it is not there.
    pub(in crate::server) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// # Errors
    /// When it is not there, or empty.
    pub(in crate::server) fn needed(&self, name: &str) -> Result<&str, ActionRefusal> {
        match self.text(name) {
            "" => Err(ActionRefusal::invalid(format!("the field {name:?} is missing"))),
            text => Ok(text),
        }
    }

    /// # Errors
    /// When it is not there, or no such number.
    pub(super) fn number<T: FromStr>(&self, name: &str, expected: &str) -> Result<T, ActionRefusal> {
        let text = self.needed(name)?;
        text.trim()
            .parse()
            .map_err(|_| ActionRefusal::invalid(format!("{name}: expected {expected}, not {text:?}")))
    }

    /// All of them, to be sent once more.
    pub(super) fn all(&self) -> FormPairs {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}
