//! Field values: printable, as compressible as asked, and checkable where that is asked.

use proptest::prelude::*;
use underlay_workload::client::{FieldSelection, FieldValues};
use underlay_workload::integrity::{self, ExpectedValues};
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

fn expected(field_count: u32, length: usize, compressibility: f64) -> ExpectedValues {
    ExpectedValues {
        field_count,
        field_bytes: length as u32,
        compressibility,
        field_name: "field".to_owned(),
    }
}

/// As YCSB 0.17 printed them.
#[test]
fn values_that_ycsb_wrote_are_known() {
    let records = [
        ("user6284781860667377211", 60, "user6284781860667377211:field0:-56807877:2032869390:-1654881"),
        ("user6284781860667377211", 60, "user6284781860667377211:field2:-56807815:-2003938296:1922731"),
        ("user1820151046732198393", 60, "user1820151046732198393:field1:-1113244505:449955082:1522046"),
        ("user6284781860667377211", 10, "user628478"),
    ];
    let mut scratch = Vec::new();
    for (key, length, value) in records {
        let field = value.split("field").nth(1).map_or(0, |rest| rest[..1].parse().unwrap());
        let mut verify = |key: &str, field: u32, value: &[u8]| {
            let mut found = FieldValues::default();
            found.push(field, value);
            expected(3, length, 0.5).verify(key.as_bytes(), FieldSelection::One(field), &found, &mut scratch)
        };
        assert_eq!(verify(key, field, value.as_bytes()), Ok(()));
        for place in 0..length {
            let mut spoiled = value.as_bytes().to_vec();
            spoiled[place] ^= 1;
            assert!(verify(key, field, &spoiled).is_err(), "byte {place} of {value}");
        }
        assert!(verify("user7", field, value.as_bytes()).is_err());
        assert!(length == 10 || verify(key, field + 1, value.as_bytes()).is_err());
    }
    let mut found = FieldValues::default();
    found.push(0, b"user6284781860667377211:field0:-56807877:2032869390:-1654880");
    let result =
        expected(1, 60, 0.5).verify(b"user6284781860667377211", FieldSelection::All, &found, &mut scratch);
    assert!(result.unwrap_err().to_string().ends_with("differs from the written value, from byte 59 of 60"));
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
    fn changed_bits_are_all_found(
        key in "user[0-9]{1,20}",
        length in 1usize..200,
        version in any::<u64>(),
        compressibility in 0.0f64..=1.0,
        change in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let expected = expected(3, length, compressibility);
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
        prop_assert_eq!(expected.verify(key.as_bytes(), FieldSelection::All, &record(&written), &mut scratch), Ok(()));
        let mut spoiled = written.clone();
        let place = change.index(length);
        spoiled[1][place] ^= 1 << bit;
        // A new version changes the random bytes, so there must be some.
        let carries_random = (length as f64 - 8.0) * (1.0 - compressibility) >= 8.0;
        if place >= 8 || length < 16 || carries_random {
            prop_assert!(
                expected.verify(key.as_bytes(), FieldSelection::All, &record(&spoiled), &mut scratch).is_err());
        }
    }
}
