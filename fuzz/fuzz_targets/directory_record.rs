//! What a directory's journal holds: any bytes are a tree, or are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_attach::directory::core::{check_records, decode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(operations) = decode(bytes) {
        let mut again = Vec::new();
        operations.iter().for_each(|operation| operation.encode(&mut again));
        assert_eq!(decode(&again), Ok(operations));
    }
    let half = bytes.len() / 2;
    let _ = check_records(&[&bytes[..half], &bytes[half..]]);
});
