//! A script of the simulator: what is accepted reads back the same, and asks for no more than the limits say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_simulate::limits::parse;

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Ok(script) => {
            assert!(script.steps.len() <= 2000);
            let text = serde_json::to_vec(&script).expect("a script can be written");
            assert_eq!(parse(&text), Ok(script));
        }
        Err(problem) => assert!(!problem.is_empty()),
    }
});
