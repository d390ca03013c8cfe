//! Conditions of writes and deletions.

use serde::{Deserialize, Serialize};

use crate::errors::{GatewayError, GatewayResult};
use crate::model::ObjectRecord;
use crate::store::bare;

/// ETags that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtagCondition {
    /// Whatever the object has: `*`.
    Any,
    /// One of these, without quotes. None of an empty list.
    OneOf(Vec<String>),
}

/// When a write may replace what is there, or a deletion remove it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteConditions {
    /// Only one of these versions.
    pub if_match: Option<EtagCondition>,
    /// Only if there is none.
    pub if_none_match: bool,
    /// Any but these versions.
    pub unless_etag: Option<EtagCondition>,
    /// Only one of this size.
    pub size_bytes: Option<u64>,
    /// Only one that was written in this second since 1970.
    pub modified_s: Option<i64>,
}

impl WriteConditions {
    /// Whether a write may go on.
    pub(super) fn check(&self, former: Option<&ObjectRecord>) -> GatewayResult<()> {
        match former {
            Some(former) => self.check_against(&former.etag, former.size_bytes, former.modified_ms),
            None if self.if_match.is_some() => Err(GatewayError::NoSuchKey),
            None => Ok(()),
        }
    }

    /// Whether they hold for an object that is there.
    pub(super) fn check_against(&self, etag: &str, size_bytes: u64, modified_ms: i64) -> GatewayResult<()> {
        let is_named = |wanted: &EtagCondition| wanted.holds_for(etag);
        let is_met = !self.if_none_match
            && self.if_match.as_ref().is_none_or(is_named)
            && !self.unless_etag.as_ref().is_some_and(is_named)
            && self.size_bytes.is_none_or(|wanted| wanted == size_bytes)
            && self.modified_s.is_none_or(|wanted| wanted == modified_ms.div_euclid(1000));
        if is_met { Ok(()) } else { Err(GatewayError::PreconditionFailed) }
    }

    /// Whether there is one that only an object that is there can meet or fail.
    pub(super) fn is_about_former(&self) -> bool {
        self.if_match.is_some()
            || self.unless_etag.is_some()
            || self.size_bytes.is_some()
            || self.modified_s.is_some()
    }
}

impl EtagCondition {
    pub(super) fn holds_for(&self, etag: &str) -> bool {
        match self {
            EtagCondition::Any => true,
            EtagCondition::OneOf(listed) => listed.iter().any(|tag| tag == etag),
        }
    }

    /// Its only ETag.
    pub(super) fn single(&self) -> Option<&str> {
        match self {
            EtagCondition::OneOf(listed) if listed.len() == 1 => listed.first().map(String::as_str),
            _ => None,
        }
    }
}

/// Of an object's own, also in quotes.
impl From<String> for EtagCondition {
    fn from(etag: String) -> EtagCondition {
        EtagCondition::OneOf(vec![bare(&etag).to_owned()])
    }
}

/// Between tags of a list. Inside of quotes no ETag has a quote.
const BETWEEN: &str = "\", \"";
/// Stands for an empty list: no ETag is written so.
const NO_ETAG: &str = "(weak)";

impl EtagCondition {
    /// As gateways write it to each other, earlier ones too: only a `*` without quotes is any ETag.
    fn to_text(&self) -> String {
        match self {
            EtagCondition::Any => "*".to_owned(),
            EtagCondition::OneOf(listed) if listed.is_empty() => NO_ETAG.to_owned(),
            EtagCondition::OneOf(listed) => format!("\"{}\"", listed.join(BETWEEN)),
        }
    }

    fn from_text(text: &str) -> EtagCondition {
        match text {
            "*" => EtagCondition::Any,
            NO_ETAG => EtagCondition::OneOf(Vec::new()),
            _ => {
                let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                EtagCondition::OneOf(quoted.unwrap_or(text).split(BETWEEN).map(str::to_owned).collect())
            }
        }
    }
}

impl Serialize for EtagCondition {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for EtagCondition {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<EtagCondition, D::Error> {
        Ok(EtagCondition::from_text(&String::deserialize(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of(tags: &[&str]) -> EtagCondition {
        EtagCondition::OneOf(tags.iter().map(|tag| (*tag).to_owned()).collect())
    }

    #[test]
    fn etag_is_matched_against_list() {
        for condition in [EtagCondition::Any, one_of(&["a"]), one_of(&["a", "b"]), one_of(&["b", "a", "c"])] {
            assert!(condition.holds_for("a"), "{condition:?}");
        }
        // A star in quotes is a tag like others.
        for condition in [one_of(&[]), one_of(&["*"]), one_of(&["b", "aa"]), one_of(&["a, b"])] {
            assert!(!condition.holds_for("a"), "{condition:?}");
        }
        assert!(one_of(&["*"]).holds_for("*"));
        assert_eq!(EtagCondition::from("\"a\"".to_owned()), one_of(&["a"]));
        assert_eq!(EtagCondition::from("*".to_owned()), one_of(&["*"]));
    }

    /// Gateways of one cluster are upgraded one after the other.
    #[test]
    fn etag_conditions_are_written_as_earlier_versions_read_them() {
        for (condition, text) in [
            (EtagCondition::Any, "*"),
            (one_of(&["*"]), "\"*\""),
            (one_of(&["a"]), "\"a\""),
            (one_of(&["a", "b,c"]), "\"a\", \"b,c\""),
            (one_of(&[]), NO_ETAG),
        ] {
            let written = postcard::to_allocvec(&condition).unwrap();
            assert_eq!(written, postcard::to_allocvec(text).unwrap(), "{text}");
            assert_eq!(postcard::from_bytes::<EtagCondition>(&written).unwrap(), condition, "{text}");
        }
        assert_eq!(EtagCondition::from_text("a"), one_of(&["a"]));
    }
}
