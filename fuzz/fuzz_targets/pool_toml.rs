//! A pool's file, and what is said on the control socket of its server.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use underlay_study::spec::read_pool_file;
use underlay_volume::server::protocol;

fuzz_target!(|data: &[u8]| {
    if let Ok(command) = protocol::parse(data) {
        let line = serde_json::to_vec(&command).expect("a command can be written");
        assert!(protocol::parse(&line).is_ok(), "{command:?} does not read back");
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let none = |_: &str| Err("there are no files here".to_owned());
    match read_pool_file("fuzz.toml", text, Path::new("/pools"), &none) {
        Ok(pool) => {
            assert!(pool.volumes.iter().all(|volume| volume.spec.capacity_bytes.is_multiple_of(4096)));
            assert!(pool.modelled().iter().all(|device| device.name.len() < 300));
        }
        Err(mistakes) => {
            assert!(mistakes.has_errors());
            assert!(!mistakes.render(true).is_empty());
        }
    }
});
