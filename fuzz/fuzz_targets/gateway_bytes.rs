//! What the S3 gateway reads besides its configuration: its metadata and cache as a disk may have spoiled them, what other gateways and etcd
//! say, texts of requests that `s3s` hands on, and bodies in chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    underlay_gateway::outside::read(data);
    underlay_gateway::outside::read_chunks(data);
});
