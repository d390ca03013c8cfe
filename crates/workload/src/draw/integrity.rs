//! Values that can be checked: a value follows entirely from its record, its field and a version that it contains.
//!
//! A reader need not remember earlier writes. It detects corruption, torn writes, and values under the wrong record or
//! field. It does not detect stale reads, since any version is accepted.
//!
//! Values written by YCSB are also recognised. They follow from the record and the field alone.

use std::io::Write as _;

use underlay_record::{WrongValue, WrongValueProblem};

use crate::client::{FieldSelection, FieldValues};
use crate::draw::values::{self, WordStream};
use crate::workload::CoreWorkload;

/// The length of the version at the start of a value, in printable bytes of six bits.
const VERSION_BYTES: usize = 8;

/// Fills a value of `field` of the record `key`. Only the lowest 48 bits of `version` count. Values of fewer than 16
/// bytes contain no version, so that the check has bytes left to compare.
pub fn fill(value: &mut [u8], key: &[u8], field: u32, version: u64, compressibility: f64) {
    let mut version_text = [0u8; VERSION_BYTES];
    for (position, byte) in version_text.iter_mut().enumerate() {
        *byte = 0x20 + ((version >> (6 * position)) & 0x3f) as u8;
    }
    fill_version(value, key, field, version_text, compressibility);
}

fn fill_version(
    value: &mut [u8],
    key: &[u8],
    field: u32,
    version: [u8; VERSION_BYTES],
    compressibility: f64,
) {
    let carries_version = value.len() >= 2 * VERSION_BYTES;
    let mut seed = u64::from(field) ^ if carries_version { u64::from_le_bytes(version) } else { 0 };
    for chunk in key.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        seed = values::mix(seed ^ u64::from_le_bytes(word));
    }
    let body = if carries_version {
        let (head, body) = value.split_at_mut(VERSION_BYTES);
        head.copy_from_slice(&version);
        body
    } else {
        value
    };
    values::fill(body, &mut WordStream::new(seed), compressibility);
}

/// Replaces `value` by YCSB's value: the record's name, the field's name, and repeatedly the hash of everything written
/// so far, cut to the length.
fn fill_as_ycsb(value: &mut Vec<u8>, key: &[u8], field_name: &str, field: u32, length: usize) {
    value.clear();
    value.extend_from_slice(key);
    value.push(b':');
    value.extend_from_slice(field_name.as_bytes());
    // A vector accepts everything.
    let _ = write!(value, "{field}");
    let (mut hash, mut hashed) = (0i32, 0);
    while value.len() < length {
        value.push(b':');
        // Java's hash of a text continues from the hash of its beginning.
        hash = value[hashed..]
            .iter()
            .fold(hash, |hash, &byte| hash.wrapping_mul(31).wrapping_add(i32::from(byte)));
        hashed = value.len();
        let _ = write!(value, "{hash}");
    }
    value.truncate(length);
}

/// A reader's knowledge of the values that it may get.
#[derive(Clone, Debug)]
pub struct ExpectedValues {
    pub field_count: u32,
    pub field_bytes: u32,
    pub compressibility: f64,
    /// The prefix of YCSB's field names.
    pub field_name: String,
}

impl ExpectedValues {
    /// For a workload's values.
    pub(crate) fn from_workload(workload: &CoreWorkload) -> ExpectedValues {
        ExpectedValues {
            field_count: workload.field_count,
            field_bytes: workload.field_length.max_bytes(),
            compressibility: workload.compressibility,
            field_name: workload.field_name_prefix.clone(),
        }
    }

    /// Checks the fields that a read of `key` returned. `scratch` is reused over calls.
    ///
    /// # Errors
    /// Names the record and field that differ, and the difference.
    pub fn verify(
        &self,
        key: &[u8],
        fields: FieldSelection,
        found: &FieldValues,
        scratch: &mut Vec<u8>,
    ) -> Result<(), WrongValue> {
        let wrong = |problem| {
            let record = String::from_utf8_lossy(key).into_owned();
            Err(WrongValue { record, problem })
        };
        let wanted = match fields {
            FieldSelection::All => self.field_count as usize,
            FieldSelection::One(_) => 1,
        };
        if found.len() != wanted {
            let (found, expected) = (found.len() as u64, wanted as u64);
            return wrong(WrongValueProblem::NumberOfFields { found, expected });
        }
        let mut seen: u128 = 0;
        for (position, (field, value)) in found.iter().enumerate() {
            let is_known = match fields {
                FieldSelection::One(one) => field == one,
                FieldSelection::All => field < self.field_count,
            };
            // Repetition is checked in the first 128 fields: enough for any schema that YCSB bindings create.
            let repeated = field < 128 && seen & (1 << field) != 0;
            if !is_known || repeated {
                let position = position as u64;
                return wrong(WrongValueProblem::UnexpectedField { field, position });
            }
            if field < 128 {
                seen |= 1 << field;
            }
            if value.len() != self.field_bytes as usize {
                let (found, expected) = (value.len() as u64, u64::from(self.field_bytes));
                return wrong(WrongValueProblem::Length { field, found, expected });
            }
            scratch.clear();
            scratch.resize(value.len(), 0);
            let mut version = [0u8; VERSION_BYTES];
            if let Some(head) = value.first_chunk() {
                version = *head;
            }
            fill_version(scratch, key, field, version, self.compressibility);
            let wrong_from =
                |written: &[u8]| written.iter().zip(value).position(|(written, found)| written != found);
            let Some(ours) = wrong_from(scratch) else { continue };
            fill_as_ycsb(scratch, key, &self.field_name, field, value.len());
            // The format that matches for longer is the one that was written.
            if let Some(mismatch) = wrong_from(scratch).map(|ycsbs| ours.max(ycsbs)) {
                let (from_byte, length) = (mismatch as u64, value.len() as u64);
                return wrong(WrongValueProblem::Content { field, from_byte, length });
            }
        }
        Ok(())
    }
}
