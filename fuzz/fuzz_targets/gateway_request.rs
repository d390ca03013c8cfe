//! Whole requests, signed and answered by an S3 gateway over a store in memory. None of them is a bug of its own.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use underlay_gateway::outside::GatewayClient;

/// Beside the corpus, or wherever the fuzzer was started.
const DIRECTORY: &str = "target/fuzz/gateway_request";

fn gateway() -> &'static GatewayClient {
    static GATEWAY: OnceLock<GatewayClient> = OnceLock::new();
    GATEWAY.get_or_init(|| {
        let directory = std::env::current_dir().expect("a directory to work in").join(DIRECTORY);
        // What an earlier run left.
        let _ = std::fs::remove_dir_all(&directory);
        GatewayClient::open(&directory).expect("a gateway")
    })
}

fuzz_target!(|data: &[u8]| {
    let Some(answer) = gateway().ask(data) else { return };
    // Hyper itself says nothing to what is not HTTP at all.
    if !answer.is_empty() {
        assert!(answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
        assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&answer));
    }
});
