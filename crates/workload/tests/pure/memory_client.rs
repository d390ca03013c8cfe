//! The reference client's semantics against a model that keeps records as a plain list.

use proptest::prelude::*;
use underlay_workload::MemoryStore;
use underlay_workload::client::{Client, FieldSelection, FieldValues, FoundRecords, OperationOutcome};

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, Vec<u8>),
    Update(u8, u32, u8),
    Read(u8, Option<u32>),
    Scan(u8, u32),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..12;
    prop_oneof![
        (key.clone(), proptest::collection::vec(any::<u8>(), 1..4))
            .prop_map(|(key, fields)| Step::Insert(key, fields)),
        (key.clone(), 0u32..4, any::<u8>()).prop_map(|(key, field, value)| Step::Update(key, field, value)),
        (key.clone(), proptest::option::of(0u32..4)).prop_map(|(key, field)| Step::Read(key, field)),
        (key.clone(), 0u32..6).prop_map(|(key, limit)| Step::Scan(key, limit)),
        key.prop_map(Step::Delete),
    ]
}

proptest! {
    #[test]
    fn operations_mean_what_they_mean_on_a_list(steps in proptest::collection::vec(step(), 0..80)) {
        let store = MemoryStore::new();
        let mut client = store.client();
        // (key, fields): unsorted, one entry a key.
        let mut list: Vec<(u8, Vec<(u32, u8)>)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key, fields) => {
                    let fields: Vec<(u32, u8)> = (0..).zip(fields).collect();
                    let mut values = FieldValues::default();
                    fields.iter().for_each(|&(field, value)| values.push(field, &[value]));
                    prop_assert_eq!(client.insert(&[key], &values), Ok(OperationOutcome::Found));
                    list.retain(|(other, _)| *other != key);
                    list.push((key, fields));
                }
                Step::Update(key, field, value) => {
                    let mut values = FieldValues::default();
                    values.push(field, &[value]);
                    let existing = list.iter_mut().find(|(other, _)| *other == key);
                    let expected = if existing.is_some() { OperationOutcome::Found } else { OperationOutcome::Missing };
                    if let Some((_, fields)) = existing {
                        fields.retain(|(other, _)| *other != field);
                        fields.push((field, value));
                        fields.sort_unstable();
                    }
                    prop_assert_eq!(client.update(&[key], &values), Ok(expected));
                }
                Step::Read(key, field) => {
                    let mut values = FieldValues::default();
                    values.push(99, b"to be cleared");
                    let fields = field.map_or(FieldSelection::All, FieldSelection::One);
                    let existing = list.iter().find(|(other, _)| *other == key);
                    let expected = if existing.is_some() { OperationOutcome::Found } else { OperationOutcome::Missing };
                    prop_assert_eq!(client.read(&[key], fields, &mut values), Ok(expected));
                    let wanted: Vec<(u32, Vec<u8>)> = existing
                        .iter()
                        .flat_map(|(_, fields)| fields)
                        .filter(|(other, _)| field.is_none_or(|field| field == *other))
                        .map(|&(field, value)| (field, vec![value]))
                        .collect();
                    let found: Vec<(u32, Vec<u8>)> = values.iter().map(|(field, value)| (field, value.to_vec())).collect();
                    prop_assert_eq!(found, wanted);
                }
                Step::Scan(key, limit) => {
                    let count = (list.iter().filter(|(other, _)| *other >= key).count() as u32).min(limit);
                    let expected = if count > 0 { OperationOutcome::Found } else { OperationOutcome::Missing };
                    prop_assert_eq!(client.scan(&[key], limit, FieldSelection::All), Ok((expected, count)));
                    let mut records = FoundRecords::default();
                    let found = client.scan_records(&[key], limit, FieldSelection::All, &mut records);
                    prop_assert_eq!(found, Ok((expected, count)));
                    for (key, values) in records.iter() {
                        let existing = list.iter().find(|(other, _)| [*other] == key).expect("a record that is there");
                        let found: Vec<(u32, u8)> = values.iter().map(|(field, value)| (field, value[0])).collect();
                        prop_assert_eq!(&found, &existing.1);
                    }
                }
                Step::Delete(key) => {
                    let before = list.len();
                    list.retain(|(other, _)| *other != key);
                    let expected =
                        if list.len() < before { OperationOutcome::Found } else { OperationOutcome::Missing };
                    prop_assert_eq!(client.delete(&[key]), Ok(expected));
                }
            }
            prop_assert_eq!(store.record_count(), list.len());
        }
    }
}
