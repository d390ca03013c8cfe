//! A file of a pool's notes as it may be found after anything happened to it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_volume::pool::record::PoolRecord;
use underlay_volume::pool::unflushed::{self, NoteOwner, NotesHeader};

fuzz_target!(|data: &[u8]| {
    // As it is: a checksum keeps most of it out.
    let _ = unflushed::decode(data);
    // Records behind a header whose checksums fit, then bytes changed in places that the input names.
    let header = NotesHeader::new(NoteOwner { identity: 1, session: 2 }, 3, "boot");
    let (mut file, mut records, mut rest) = (header.encode(), Vec::new(), data);
    while let Some((record, behind)) = PoolRecord::decode(rest) {
        unflushed::encode_note(header.generation, &record, &mut file);
        records.push(record);
        rest = behind;
    }
    assert_eq!(unflushed::decode(&file), Some((header, records)));
    for change in rest.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
        file[at] ^= change[2];
    }
    let _ = unflushed::decode(&file);
});
