//! Forms of browsers, in pieces, and what the S3 gateway makes of their fields: whose they are, what their policy allows, where they lead.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| underlay_gateway::outside::read_form(data));
