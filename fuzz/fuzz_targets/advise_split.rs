//! Devices as they are typed: any text ends in a split that loses nothing, or in a message that repeats what was typed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_study::advice::{self, DeviceCount};

fuzz_target!(|text: &str| {
    let mut devices = Vec::new();
    for one in text.split_whitespace() {
        match DeviceCount::parse(one) {
            Ok(found) => devices.push(found),
            Err(error) => assert!(error.to_string().contains(one)),
        }
    }
    let Ok(split) = advice::split(&devices) else { return };
    assert!(split.after_bytes_per_s >= split.before_bytes_per_s);
    assert!(split.after_bytes_per_s <= split.bandwidth_bytes_per_s * 1.000_001);
    assert_eq!(split.directories_below("/data").len(), split.directories as usize);
});
