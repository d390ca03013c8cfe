//! Anybody may have written a device's first bytes, and anybody can edit the points beside a measured medium's file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_attach::directory;
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::fit::{self, DeviceIdentity, DeviceProfile};

fuzz_target!(|bytes: &[u8]| {
    let _ = directory::is_beginning(bytes);
    let Ok(profile) = serde_json::from_slice::<DeviceProfile>(bytes) else { return };
    let identity = DeviceIdentity {
        name: "fuzzed".into(),
        title: "fuzzed".into(),
        year: 2026,
        date: "2026-01-01".into(),
        capacity_bytes: 1 << 30,
        price_usd: None,
        conditions: "none".into(),
    };
    if let Ok(medium) = fit::fit(&profile, &identity) {
        assert!(medium.problems().is_empty());
        CatalogueMedium::parse("fuzzed.toml", &fit::medium_text(&medium))
            .expect("what was written can be read");
    }
});
