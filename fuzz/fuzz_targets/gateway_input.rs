//! What the S3 gateway reads: its configuration, keys as names of a store, chunks of its journal, and forms of browsers.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use underlay_gateway::at_rest::AtRest;
use underlay_gateway::config::GatewayConfig;
use underlay_gateway::form;
use underlay_gateway::journal::frame::ContentFraming;
use underlay_gateway::model::ContentId;
use underlay_gateway::store::{BackendKind, key_of, path_of};

fuzz_target!(|data: &[u8]| {
    let size = data.len() as u64;
    let key = AtRest::parse(&"7".repeat(64)).ok().map(Arc::new);
    for framing in [ContentFraming::default(), ContentFraming::new(key)] {
        let Some(span) = framing.span_of(size, &(0..size)) else { continue };
        // Bytes that nobody wrote are never taken for a content, but for one chance in 2^32 a chunk.
        let _ = framing.unframe(ContentId(1), &span, data);
        if data.len() <= 65536 {
            let mut stored = data.to_vec();
            assert!(framing.close(ContentId(1), 0, &mut stored, 0).is_ok());
            assert_eq!(stored.len() as u64, framing.stored_bytes(size));
            assert_eq!(framing.unframe(ContentId(1), &span, &stored).as_deref(), Ok(data));
            assert!(framing.unframe(ContentId(2), &span, &stored).is_err());
        }
    }
    if let Ok(Some((_, at))) = form::read(data, "--x") {
        assert!(at <= data.len() && data[..at].ends_with(b"\r\n\r\n"));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = form::boundary_of(text);
    for kind in [BackendKind::S3, BackendKind::Directory] {
        if let Ok(path) = path_of(text, kind) {
            assert_eq!(key_of(&path), text);
            assert!(path.as_ref().split('/').all(|part| !matches!(part, "" | "." | "..")));
        }
    }
    if let Err(mistakes) = GatewayConfig::parse("fuzz.toml", text) {
        assert!(mistakes.has_errors() && !mistakes.render(true).is_empty());
    }
});
