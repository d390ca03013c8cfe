//! A run's feed comes from a directory that anyone may have edited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_record::live::feed_line;

fuzz_target!(|text: &str| {
    for kind in ["", "{\"at_ms\":1,\"kind\":\"sample\",", "{\"at_ms\":1,\"kind\":\"cell-ended\","] {
        if let Some(line) = feed_line(&format!("{kind}{text}")) {
            let again = serde_json::to_string(&line).expect("what was read can be written");
            assert!(feed_line(&again).is_some());
        }
    }
});
