//! Any layout file is read or refused, and a layout that was read can be put together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_storage::catalogue::LayoutPreset;

fuzz_target!(|text: &str| {
    match LayoutPreset::parse("fuzz.toml", text) {
        Ok(layout) => {
            assert!(layout.capacity_bytes() > 0 && layout.price_usd() > 0.0);
            assert_eq!(layout.media().count(), layout.devices.len());
            assert!(!layout.summary().is_empty());
        }
        Err(error) => {
            assert!(error.has_errors());
            assert!(!error.render(true).is_empty());
        }
    }
});
