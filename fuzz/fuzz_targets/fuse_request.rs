//! A request as the kernel leaves it in an entry of FUSE's io_uring interface.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_attach::fuse_uring::{FuseCall, parse};

const HEADER_BYTES: usize = 128;

fuzz_target!(|data: &[u8]| {
    let Some((in_out, rest)) = data.split_first_chunk::<HEADER_BYTES>() else { return };
    let Some((arguments, payload)) = rest.split_first_chunk::<HEADER_BYTES>() else { return };
    match parse(in_out, arguments, payload).map(|asked| asked.call) {
        Some(FuseCall::Write { data, .. }) => assert!(data.len() <= payload.len()),
        Some(FuseCall::Lookup { name }) => assert!(!name.contains(&0)),
        _ => {}
    }
});
