//! Study files: any text ends in a study that can be planned, or in messages that can be printed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_study::plan;
use underlay_study::spec::Study;

fuzz_target!(|text: &str| {
    for short in [false, true] {
        match Study::parse("fuzz.toml", text, short) {
            Ok(study) => {
                for cell in plan::expand(&study) {
                    let records = cell.requests().map_or(1, |requests| requests.records);
                    assert!(study.records_here(records) > 0);
                }
            }
            Err(mistakes) => {
                assert!(mistakes.has_errors());
                assert!(!mistakes.render(true).is_empty());
            }
        }
    }
});
