//! An area of a journal as it may lie on a device after anything happened to it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_storage::journal::format::{self, AreaHeader, HeaderBlock};

fuzz_target!(|data: &[u8]| {
    // As it is: a checksum keeps most of it out.
    if let HeaderBlock::Valid(header) = AreaHeader::decode(data) {
        let _ = format::decode_area(&header, data);
    }
    // With records and a header whose checksums fit, and bytes changed in places that the input names.
    let Some((&count, rest)) = data.split_first() else { return };
    let records: Vec<&[u8]> = rest.chunks(1 + usize::from(count)).collect();
    let mut header = AreaHeader {
        kind: *b"fuzzing ",
        identity: 7,
        generation: 1,
        snapshot_bytes: u64::from(count) * 40,
        snapshot_crc: crc32fast::hash(&vec![0; usize::from(count) * 40]),
    };
    let mut area = header.encode();
    area.resize(header.batches_start() as usize, 0);
    for (index, batch) in records.chunks(3).enumerate() {
        let payload_bytes = batch.iter().map(|record| format::record_bytes(record.len())).sum();
        area.extend(format::encode_batch(&header, index as u64 + 1, batch.iter().copied(), payload_bytes));
    }
    let content = format::decode_area(&header, &area).expect("what was written is read");
    assert_eq!(content.records, records);
    for change in rest.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % area.len();
        area[at] ^= change[2];
    }
    header.snapshot_bytes ^= rest.first().map_or(0, |byte| u64::from(*byte) << 56);
    if let Ok(content) = format::decode_area(&header, &area) {
        assert!(content.records.len() <= records.len());
    }
});
