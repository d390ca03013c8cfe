//! Conditions of writes and deletions.

use serde::{Deserialize, Serialize};

use crate::errors::{GatewayError, GatewayResult};
use crate::model::ObjectRecord;
use crate::store::bare;

/// When a write may replace what is there, or a deletion remove it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteConditions {
    /// Only this version, or one of a [list](names_one_of); `*` for any.
    pub if_match: Option<String>,
    /// Only if there is none.
    pub if_none_match: bool,
    /// Any but this version, or those of a [list](names_one_of).
    pub unless_etag: Option<String>,
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
        let is_named = |wanted: &String| names_one_of(wanted, etag);
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

/// Whether this is any ETag at all (`*`), this one, or a list of several in quotes with this one among them: `"a",
/// "b"`.
pub(super) fn names_one_of(wanted: &str, etag: &str) -> bool {
    match is_list(wanted) {
        false => wanted == "*" || bare(wanted) == etag,
        true => wanted.split("\", \"").any(|tag| tag.trim_matches('"') == etag),
    }
}

/// Whether it names several ETags. Inside of quotes no ETag has a quote.
pub(super) fn is_list(wanted: &str) -> bool {
    wanted.contains("\", \"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etag_is_matched_against_list() {
        for wanted in ["a", "\"a\"", "*", "\"a\", \"b\"", "\"b\", \"a\"", "\"b\", \"a\", \"c\""] {
            assert!(names_one_of(wanted, "a"), "{wanted}");
        }
        for wanted in ["b", "\"\"", "\"b\", \"c\"", "\"b\", \"aa\"", "\"a, b\""] {
            assert!(!names_one_of(wanted, "a"), "{wanted}");
        }
    }
}
