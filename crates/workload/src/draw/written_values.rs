//! The values that an operation writes, created repeatedly in one place.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use crate::client::{FieldSelection, FieldValues};
use crate::draw::integrity;
use crate::draw::values::{self, LengthChooser, WordStream};
use crate::workload::CoreWorkload;

/// Creates the values of one thread.
#[derive(Debug)]
pub(crate) struct WrittenValues {
    words: WordStream,
    lengths: LengthChooser,
    /// Draws lengths.
    rng: Pcg64Mcg,
    field_count: u32,
    compressibility: f64,
    /// Values must follow from their record.
    are_checked: bool,
    values: FieldValues,
    /// How many fields of the single constant length are laid out in `values`, with their repeating parts in place;
    /// zero if none.
    laid_out: usize,
}

impl WrittenValues {
    pub(crate) fn new(workload: &CoreWorkload, rng: &mut Pcg64Mcg) -> Self {
        use rand::RngExt;
        WrittenValues {
            words: WordStream::new(rng.random()),
            lengths: LengthChooser::from_length(&workload.field_length),
            rng: Pcg64Mcg::from_rng(rng),
            field_count: workload.field_count,
            compressibility: workload.compressibility,
            are_checked: workload.data_integrity,
            values: FieldValues::default(),
            laid_out: 0,
        }
    }

    /// The last values created.
    pub(crate) fn values(&self) -> &FieldValues {
        &self.values
    }

    /// Creates values of the record `key` for these fields.
    pub(crate) fn make(&mut self, fields: FieldSelection, key: &[u8]) {
        let range = match fields {
            FieldSelection::One(field) => field..field + 1,
            FieldSelection::All => 0..self.field_count,
        };
        if let (LengthChooser::Constant(length), false) = (&self.lengths, self.are_checked) {
            return self.make_alike(range, *length as usize);
        }
        self.values.clear();
        for field in range {
            let length = self.lengths.next(&mut self.rng) as usize;
            let value = self.values.push_zeroed(field, length);
            if self.are_checked {
                integrity::fill(value, key, field, self.words.next_word(), self.compressibility);
            } else {
                values::fill(value, &mut self.words, self.compressibility);
            }
        }
    }

    /// Fields of the same length have the same repeating bytes, so only the drawn bytes are rewritten.
    fn make_alike(&mut self, fields: std::ops::Range<u32>, length: usize) {
        let random = values::random_bytes(length, self.compressibility);
        if self.laid_out != fields.len() {
            self.laid_out = fields.len();
            self.values.clear();
            for field in fields {
                values::fill_repeating(&mut self.values.push_zeroed(field, length)[random..]);
            }
        } else if let (1, Some(field)) = (fields.len(), fields.clone().next()) {
            self.values.rename_first(field);
        }
        for value in self.values.values_mut() {
            values::fill_random(&mut value[..random], &mut self.words);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draw::values::FieldLength;

    fn shown(values: &FieldValues) -> Vec<(u32, Vec<u8>)> {
        values.iter().map(|(field, value)| (field, value.to_vec())).collect()
    }

    proptest! {
        /// Compared with a maker that starts fresh each time, with the same words.
        #[test]
        fn values_made_in_place_are_those_made_anew(
            count in 1u32..6,
            length in 0u32..80,
            compressibility in 0.0f64..=1.0,
            asked in proptest::collection::vec(proptest::option::of(0u32..6), 1..20),
        ) {
            let mut workload = CoreWorkload::new(100, count, length);
            workload.compressibility = compressibility;
            let mut made = WrittenValues::new(&workload, &mut Pcg64Mcg::seed_from_u64(3));
            let mut words = made.words;
            for one in asked {
                let fields = one.map_or(FieldSelection::All, |field| FieldSelection::One(field % count));
                made.make(fields, b"user1");
                let mut expected = FieldValues::default();
                let range = match fields {
                    FieldSelection::One(field) => field..field + 1,
                    FieldSelection::All => 0..count,
                };
                for field in range {
                    values::fill(expected.push_zeroed(field, length as usize), &mut words, compressibility);
                }
                prop_assert_eq!(shown(made.values()), shown(&expected));
            }
        }
    }

    #[test]
    fn values_are_made_only_for_requested_fields() {
        let mut workload = CoreWorkload::new(100, 3, 40);
        workload.field_length = FieldLength::Uniform(1, 40);
        let mut made = WrittenValues::new(&workload, &mut Pcg64Mcg::seed_from_u64(3));
        made.make(FieldSelection::All, b"user1");
        assert_eq!(made.values().iter().map(|(field, _)| field).collect::<Vec<_>>(), [0, 1, 2]);
        let mut workload = CoreWorkload::new(100, 3, 40);
        workload.data_integrity = true;
        let mut made = WrittenValues::new(&workload, &mut Pcg64Mcg::seed_from_u64(3));
        let expected = integrity::ExpectedValues {
            field_count: 3,
            field_bytes: 40,
            compressibility: 0.5,
            field_name: "field".to_owned(),
        };
        for fields in [FieldSelection::One(2), FieldSelection::All, FieldSelection::One(0)] {
            made.make(fields, b"user7");
            assert_eq!(expected.verify(b"user7", fields, made.values(), &mut Vec::new()), Ok(()));
            assert!(expected.verify(b"user8", fields, made.values(), &mut Vec::new()).is_err());
        }
    }
}
