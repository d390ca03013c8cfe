//! A run's records come from a directory that anyone may have edited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_record::{Histogram, Run, RunRecord};

fuzz_target!(|text: &str| {
    if let Ok(histogram) = Histogram::decode(text) {
        let decoded = Histogram::decode(&histogram.encode()).expect("what was encoded can be decoded");
        assert!(decoded == histogram);
    }
    let _ = serde_json::from_str::<Run>(text);
    let _ = serde_json::from_str::<RunRecord>(text);
});
