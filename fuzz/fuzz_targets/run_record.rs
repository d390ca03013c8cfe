//! A run's records come from a directory that anyone may have edited.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_record::{CellState, Histogram, disturbance, read, soundness};

fuzz_target!(|text: &str| {
    if let Ok(histogram) = Histogram::decode(text) {
        let decoded = Histogram::decode(&histogram.encode()).expect("what was encoded can be decoded");
        assert!(decoded == histogram);
    }
    for schema in ["", "{\"schema\":1,", "{\"schema\":2,"] {
        let text = format!("{schema}{text}");
        let run = read::run(&text);
        let Ok(mut record) = read::cell(&text) else { continue };
        if let Ok(run) = run {
            run.attribute_faults(&mut record);
        }
        let records = [&record, &record];
        let (counted, left_out) = disturbance::leave_out_by_hand(&records);
        assert_eq!(counted.len() + left_out.len(), records.len());
        let _ = (CellState::from_record(&record), record.reason(), soundness::select_sound(&records));
    }
});
