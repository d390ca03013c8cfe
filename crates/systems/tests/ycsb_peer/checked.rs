//! Values that YCSB writes to be checked (`dataintegrity`), checked by us.

use underlay_workload::client::{FieldSelection, FieldValues};
use underlay_workload::integrity::ExpectedValues;

use crate::peer;

/// A record's key and its fields, as YCSB's `basic` binding prints an insert. Such values have no blanks.
fn inserted(line: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let (key, fields) = line.strip_prefix("INSERT usertable ")?.split_once(" [ ")?;
    let fields = fields.strip_suffix(" ]")?.split(' ').map(|field| field.split_once('='));
    Some((key, fields.collect::<Option<_>>()?))
}

#[test]
fn values_that_ycsb_wrote_are_what_was_written() {
    for (length, name) in [(100, "field"), (37, "f"), (5, "field")] {
        let properties = [
            "recordcount=200".to_owned(),
            "dataintegrity=true".to_owned(),
            "fieldcount=12".to_owned(),
            format!("fieldlength={length}"),
            format!("fieldnameprefix={name}"),
        ];
        let expected = ExpectedValues {
            field_count: 12,
            field_bytes: length,
            compressibility: 0.5,
            field_name: name.to_owned(),
        };
        let text = peer::printed("-load", &properties);
        let records: Vec<_> = text.lines().filter_map(inserted).collect();
        assert_eq!(records.len(), 200, "{text}");
        for (key, fields) in records {
            let mut found = FieldValues::default();
            for (field, value) in fields {
                found.push(field.strip_prefix(name).unwrap().parse().unwrap(), value.as_bytes());
            }
            assert_eq!(expected.verify(key.as_bytes(), FieldSelection::All, &found, &mut Vec::new()), Ok(()));
        }
    }
}
