//! The encoding of a record's fields, in messages and as the stored value of systems without a format of their own.

use underlay_workload::client::{FieldSelection, FieldValues, FoundRecords};

use super::{BodyReader, FrameError, RECORD_KEY};

/// Bytes in front of each field's value: its number and length.
const ENTRY_HEAD_BYTES: usize = 6;

/// Fields checked once and read in place: `count u16`, then `field u16, length u32, bytes` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireValues<'a> {
    raw: &'a [u8],
}

impl<'a> WireValues<'a> {
    /// No fields.
    pub const NONE: WireValues<'static> = WireValues { raw: &[0, 0] };

    /// Checks that `raw` is exactly one list of fields.
    ///
    /// # Errors
    /// The malformed part.
    pub fn parse(raw: &'a [u8]) -> Result<WireValues<'a>, FrameError> {
        let mut parts = BodyReader { rest: raw };
        let count = parts.u16("count of fields")?;
        for _ in 0..count {
            parts.u16("field number")?;
            let bytes = parts.u32("length of a field")?;
            parts.take(bytes as usize, "field")?;
        }
        match parts.rest.len() {
            0 => Ok(WireValues { raw }),
            bytes => Err(FrameError::LeftOver { bytes }),
        }
    }

    /// The encoded form.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.raw
    }

    pub fn len(&self) -> usize {
        usize::from(u16::from_le_bytes([self.raw[0], self.raw[1]]))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `(field, value)`, in the order they were written.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let mut rest = &self.raw[2..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            // `parse` has walked the same lengths: these can't be out of bounds.
            let field = u16::from_le_bytes([rest[0], rest[1]]);
            let bytes = u32::from_le_bytes([rest[2], rest[3], rest[4], rest[5]]) as usize;
            let value = &rest[ENTRY_HEAD_BYTES..ENTRY_HEAD_BYTES + bytes];
            rest = &rest[ENTRY_HEAD_BYTES + bytes..];
            Some((field, value))
        })
    }

    pub fn get(&self, field: u32) -> Option<&'a [u8]> {
        self.iter().find(|&(number, _)| u32::from(number) == field).map(|(_, value)| value)
    }

    /// Whether the fields are in order without duplicates, so that the bytes can be stored as they are.
    pub fn is_ordered(&self) -> bool {
        let mut last = None;
        self.iter().all(|(field, _)| {
            let later = last.is_none_or(|last| field > last);
            last = Some(field);
            later
        })
    }

    /// Whether it has exactly the fields from 0 to `fields - 1`, in order.
    pub fn is_whole_record(&self, fields: u32) -> bool {
        self.len() as u64 == u64::from(fields)
            && self.iter().enumerate().all(|(index, (field, _))| usize::from(field) == index)
    }

    /// Replaces the content of `target` with these fields.
    pub fn copy_to(&self, target: &mut FieldValues) {
        target.clear();
        for (field, value) in self.iter() {
            target.push(u32::from(field), value);
        }
    }

    /// Replaces the content of `target` with these records: each is a key followed by its fields.
    ///
    /// # Errors
    /// When a field comes before the key of its record.
    pub fn copy_records_to(&self, target: &mut FoundRecords) -> Result<(), FrameError> {
        target.clear();
        for (field, value) in self.iter() {
            if field == RECORD_KEY {
                target.push(value);
            } else {
                target.last_mut().ok_or(FrameError::NoKey(field))?.push(u32::from(field), value);
            }
        }
        Ok(())
    }

    /// Appends `self`, overridden by the fields of `change`, to `out`. The result is ordered and has each field once;
    /// of duplicates, the last counts.
    ///
    /// # Errors
    /// When there are too many fields.
    pub fn append_merged(&self, change: &WireValues<'_>, out: &mut Vec<u8>) -> Result<(), FrameError> {
        let mut merged = std::collections::BTreeMap::new();
        merged.extend(self.iter());
        merged.extend(change.iter());
        let mut builder = ValuesBuilder::new(out);
        for (field, value) in merged {
            builder.push(u32::from(field), value)?;
        }
        builder.finish();
        Ok(())
    }

    /// Appends the requested fields to `out`.
    pub(crate) fn append_selected(
        &self,
        fields: FieldSelection,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        match fields {
            FieldSelection::All => out.extend_from_slice(self.raw),
            FieldSelection::One(field) => {
                let mut builder = ValuesBuilder::new(out);
                if let Some(value) = self.get(field) {
                    builder.push(field, value)?;
                }
                builder.finish();
            }
        }
        Ok(())
    }
}

/// Appends fields to a buffer. [`finish`](Self::finish) fills in their number.
pub struct ValuesBuilder<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    count: u16,
}

impl<'a> ValuesBuilder<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0, 0]);
        ValuesBuilder { out, start, count: 0 }
    }

    ///
    /// # Errors
    /// When the number of the field or of all fields, or the length of the value, does not fit into the encoding.
    pub fn push(&mut self, field: u32, value: &[u8]) -> Result<(), FrameError> {
        let number = u16::try_from(field).map_err(|_| FrameError::Field(field))?;
        let bytes = u32::try_from(value.len()).map_err(|_| FrameError::TooLong { bytes: value.len() })?;
        self.count = self.count.checked_add(1).ok_or(FrameError::FieldCount(usize::from(u16::MAX) + 1))?;
        self.out.extend_from_slice(&number.to_le_bytes());
        self.out.extend_from_slice(&bytes.to_le_bytes());
        self.out.extend_from_slice(value);
        Ok(())
    }

    pub fn finish(self) {
        self.out[self.start..self.start + 2].copy_from_slice(&self.count.to_le_bytes());
    }
}

/// Appends `values` to `out` in the encoding of [`WireValues`].
///
/// # Errors
/// When a field does not fit into the encoding.
pub fn append_values(values: &FieldValues, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let mut builder = ValuesBuilder::new(out);
    for (field, value) in values.iter() {
        builder.push(field, value)?;
    }
    builder.finish();
    Ok(())
}
