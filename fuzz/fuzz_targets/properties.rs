//! Properties files: any text ends in a workload that can be run, or in messages that name their place.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_workload::YcsbProperties;

fuzz_target!(|text: &str| {
    let mut properties = YcsbProperties::new();
    if let Err(mistakes) = properties.add_text("fuzz.properties", text) {
        assert!(mistakes.to_string().starts_with("fuzz.properties:"));
        return;
    }
    for unknown in properties.unknown() {
        assert!(properties.get(&unknown.property.name).is_some());
    }
    match properties.workload() {
        Ok(workload) => assert!(workload.problems().is_empty()),
        Err(mistakes) => assert!(mistakes.to_string().starts_with("fuzz.properties:")),
    }
});
