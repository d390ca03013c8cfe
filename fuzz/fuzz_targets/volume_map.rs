//! The map of a pool's volumes and its labels, as they may lie on a device after anything happened to it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_volume::pool::label::MemberLabel;
use underlay_volume::pool::record::{PoolRecord, PoolTables};

fuzz_target!(|data: &[u8]| {
    let _ = MemberLabel::decode(data);
    // What can be read is written in a way that is read as the same.
    let mut rest = data;
    while let Some((record, after)) = PoolRecord::decode(rest) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let (again, left) = PoolRecord::decode(&bytes).expect("what was written is read");
        assert!(left.is_empty());
        assert_eq!(again, record);
        rest = after;
    }
    let mut tables = PoolTables::default();
    if tables.read(data).is_ok() {
        let mut again = PoolTables::default();
        again.read(&tables.encode()).expect("tables that were written are read");
        assert_eq!(again, tables);
    }
});
