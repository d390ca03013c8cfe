//! The result of checking every value that was read (`dataintegrity`).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IntegrityRecord {
    /// Records that were read or scanned and checked, those of the warm-up too.
    pub checked: u64,
    /// Those of them whose values were not what was written.
    pub mismatches: u64,
    /// The first few of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong_values: Vec<WrongValue>,
}

/// A record whose values were not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrongValue {
    /// Its key.
    pub record: String,
    pub problem: WrongValueProblem,
}

/// How it differs, in bytes and from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum WrongValueProblem {
    NumberOfFields {
        found: u64,
        expected: u64,
    },
    /// A field that was not asked for, or came twice.
    UnexpectedField {
        field: u32,
        position: u64,
    },
    Length {
        field: u32,
        found: u64,
        expected: u64,
    },
    Content {
        field: u32,
        from_byte: u64,
        length: u64,
    },
}

/// `record user7 field 2 has 9 bytes, expected 10`
impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} ", self.record)?;
        match &self.problem {
            WrongValueProblem::NumberOfFields { found, expected } => {
                write!(f, "has {found} fields, expected {expected}")
            }
            WrongValueProblem::UnexpectedField { field, position } => {
                write!(f, "gave field {field} at position {position}, which was not expected there")
            }
            WrongValueProblem::Length { field, found, expected } => {
                write!(f, "field {field} has {found} bytes, expected {expected}")
            }
            WrongValueProblem::Content { field, from_byte, length } => {
                write!(f, "field {field} differs from the written value, from byte {from_byte} of {length}")
            }
        }
    }
}
