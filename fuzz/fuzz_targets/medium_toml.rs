//! Any catalogue file is read or refused, and its model answers its requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_storage::catalogue::{CatalogueMedium, ParameterChange, sized};
use underlay_storage::medium::{ModelOperation, ModelRequest, RequestId};
use underlay_storage::stack::InitialState;
use underlay_storage::time::ModelTime;

fuzz_target!(|text: &str| {
    let medium = match CatalogueMedium::parse("fuzz.toml", text) {
        Ok(medium) => medium,
        Err(error) => {
            assert!(error.has_errors());
            assert!(!error.render(true).is_empty());
            return;
        }
    };
    assert!(medium.problems().is_empty());
    assert!(!medium.describe().is_empty());
    for capacity_bytes in [1, 1 << 30, 50_000_000_000, u64::MAX] {
        // In another size it is a medium as well, or refused with the reason.
        match medium.with_size(capacity_bytes) {
            Ok(sized) => assert!(sized.problems().is_empty()),
            Err(why) => assert!(!why.is_empty()),
        }
        for beyond in [false, true] {
            let _ = sized(
                text,
                Some(capacity_bytes),
                beyond,
                &[("baseline_iops", ParameterChange::Number(4000.0))],
            );
        }
    }
    for capacity_bytes in [4096, 1 << 30, medium.capacity_bytes()] {
        // To bring a large device into the steady state takes too long for one of millions of inputs.
        let initial = if capacity_bytes == 4096 { InitialState::Steady } else { InitialState::Fresh };
        let mut model = medium.model(capacity_bytes, text.len() as u64, initial);
        let mut finished = Vec::new();
        for index in 0..32u64 {
            let operation = match index % 8 {
                0 => ModelOperation::Flush,
                1 => ModelOperation::Discard,
                2..5 => ModelOperation::Read,
                _ => ModelOperation::Write,
            };
            let (offset_bytes, length_bytes) = match operation {
                ModelOperation::Flush => (0, 0),
                _ => (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (capacity_bytes / 4096) * 4096, 4096),
            };
            let request = ModelRequest {
                id: RequestId(index),
                operation,
                offset_bytes,
                length_bytes,
                fua: index % 3 == 0,
            };
            model.submit(request, ModelTime::ZERO);
        }
        while let Some(next) = model.next_completion() {
            model.complete(next, &mut finished);
        }
        assert_eq!(finished.len(), 32);
    }
});
