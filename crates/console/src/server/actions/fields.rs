//! The fields of a form: each once, and from programs none that the form does not have.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::server::answer::Refusal;
use crate::server::caller::Caller;

/// As they came.
pub(in crate::server) type Pairs = Vec<(String, String)>;

pub(in crate::server) struct Fields(BTreeMap<String, String>);

impl Fields {
    /// A field that is there twice could mean either, and what a program misspells would be passed over.
    pub(super) fn of(pairs: Pairs, known: &[&str], caller: Caller) -> Result<Fields, Refusal> {
        let mut fields = BTreeMap::new();
        for (name, value) in pairs {
            let is_known = known.contains(&name.as_str()) || matches!(name.as_str(), "form" | "confirmed");
            if caller == Caller::OwnProgram && !is_known {
                let expected = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(Refusal::invalid(format!("unknown field {name:?}: expected {expected}")));
            }
            if fields.contains_key(&name) {
                return Err(Refusal::invalid(format!("the field {name:?} is there twice")));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
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
    pub(in crate::server) fn needed(&self, name: &str) -> Result<&str, Refusal> {
        match self.text(name) {
            "" => Err(Refusal::invalid(format!("the field {name:?} is missing"))),
            text => Ok(text),
        }
    }

    /// # Errors
    /// When it is not there, or no such number.
    pub(super) fn number<T: FromStr>(&self, name: &str, expected: &str) -> Result<T, Refusal> {
        let text = self.needed(name)?;
        text.trim()
            .parse()
            .map_err(|_| Refusal::invalid(format!("{name}: expected {expected}, not {text:?}")))
    }

    /// All of them, to be sent once more.
    pub(super) fn all(&self) -> Pairs {
        self.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}
