//! What the S3 gateway reads: its configuration, keys as names of a store, chunks of its journal, and forms of browsers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_gateway::config::Config;
use underlay_gateway::form;
use underlay_gateway::journal::frame::{checksum, span_of, stored_bytes, unframe};
use underlay_gateway::model::ContentId;
use underlay_gateway::store::{Kind, key_of, path_of};

fuzz_target!(|data: &[u8]| {
    let size = data.len() as u64;
    if let Some(span) = span_of(size, &(0..size)) {
        // Bytes that nobody wrote are never taken for a content, but for one chance in 2^32 a chunk.
        let _ = unframe(ContentId(1), &span, data);
        let mut stored = data.to_vec();
        if data.len() <= 65536 {
            stored.extend_from_slice(&checksum(ContentId(1), 0, data));
            assert_eq!(stored.len() as u64, stored_bytes(size));
            assert_eq!(unframe(ContentId(1), &span, &stored).as_deref(), Ok(data));
            assert!(unframe(ContentId(2), &span, &stored).is_err());
        }
    }
    if let Ok(Some((_, at))) = form::read(data, "--x") {
        assert!(at <= data.len() && data[..at].ends_with(b"\r\n\r\n"));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = form::boundary_of(text);
    for kind in [Kind::S3, Kind::Directory] {
        if let Ok(path) = path_of(text, kind) {
            assert_eq!(key_of(&path), text);
            assert!(path.as_ref().split('/').all(|part| !matches!(part, "" | "." | "..")));
        }
    }
    if let Err(mistakes) = Config::parse("fuzz.toml", text) {
        assert!(mistakes.has_errors() && !mistakes.render(true).is_empty());
    }
});
