//! A run's records come from a directory that anyone may have edited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_record::{Histogram, read};

fuzz_target!(|text: &str| {
    if let Ok(histogram) = Histogram::decode(text) {
        let decoded = Histogram::decode(&histogram.encode()).expect("what was encoded can be decoded");
        assert!(decoded == histogram);
    }
    for schema in ["", "{\"schema\":1,", "{\"schema\":2,"] {
        let text = format!("{schema}{text}");
        let _ = read::run(&text);
        let _ = read::cell(&text);
    }
});
