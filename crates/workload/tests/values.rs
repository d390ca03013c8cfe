//! Field values: printable, as compressible as asked, and checkable where that is asked.

use proptest::prelude::*;
use underlay_workload::client::{FieldValues, Fields};
use underlay_workload::integrity::{self, Expected};
use underlay_workload::values::{self, WordStream};

#[test]
fn compressibility_is_the_share_that_repeats() {
    for (compressibility, repeated) in [(0.0, 0), (0.25, 250), (0.5, 500), (1.0, 1000)] {
        let mut value = [0u8; 1000];
        values::fill(&mut value, &mut WordStream::new(1), compressibility);
        let filler = 1000 - repeated;
        let distinct = |bytes: &[u8]| bytes.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(filler == 0 || distinct(&value[..filler]) > 50, "{compressibility}");
        assert!(distinct(&value[filler..]) <= 8, "{compressibility}");
    }
}

#[test]
fn two_values_are_different() {
    let mut words = WordStream::new(5);
    let mut first = [0u8; 100];
    let mut second = [0u8; 100];
    values::fill(&mut first, &mut words, 0.5);
    values::fill(&mut second, &mut words, 0.5);
    assert_ne!(first, second);
}

proptest! {
    #[test]
    fn values_are_printable(length in 0usize..300, seed in any::<u64>(), compressibility in 0.0f64..=1.0) {
        let mut value = vec![0u8; length];
        values::fill(&mut value, &mut WordStream::new(seed), compressibility);
        prop_assert!(value.iter().all(|byte| (0x20..0x7f).contains(byte)), "{value:?}");
    }

    /// What was written passes, and one changed bit anywhere does not.
    #[test]
    fn every_changed_bit_is_found(
        key in "user[0-9]{1,20}",
        length in 1usize..200,
        version in any::<u64>(),
        compressibility in 0.0f64..=1.0,
        change in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let expected = Expected { field_count: 3, field_bytes: length as u32, compressibility };
        let written: Vec<Vec<u8>> = (0..3)
            .map(|field| {
                let mut value = vec![0u8; length];
                integrity::fill(&mut value, key.as_bytes(), field, version, compressibility);
                value
            })
            .collect();
        let record = |values: &[Vec<u8>]| {
            let mut fields = FieldValues::default();
            (0..).zip(values).for_each(|(field, value)| fields.push(field, value));
            fields
        };
        let mut scratch = Vec::new();
        prop_assert_eq!(expected.verify(key.as_bytes(), Fields::All, &record(&written), &mut scratch), Ok(()));
        let mut spoiled = written.clone();
        let place = change.index(length);
        spoiled[1][place] ^= 1 << bit;
        // A version that changes changes the random bytes, of which there must be some.
        let carries_random = (length as f64 - 8.0) * (1.0 - compressibility) >= 8.0;
        if place >= 8 || length < 16 || carries_random {
            prop_assert!(expected.verify(key.as_bytes(), Fields::All, &record(&spoiled), &mut scratch).is_err());
        }
    }
}
