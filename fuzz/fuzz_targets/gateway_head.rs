//! Heads of requests, as the S3 gateway looks at them before anything is verified: which headers a signature covers, how long a URL is good for, checksums
//! that are promised, and what another gateway says of itself.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| underlay_gateway::outside::read_head(data));
