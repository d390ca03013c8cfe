//! Everything that parses bytes which somebody else may have written or a disk may have spoiled, in one place for the fuzzer
//! (`fuzz/fuzz_targets/gateway_bytes.rs`): no bytes at all make it panic or take much memory.

use crate::engine::{Answer, Question};
use crate::errors::Result;

/// Has every parser look at the bytes: records and keys of the metadata, blocks on flash, what gateways ask each other, and what etcd answers.
pub fn read(data: &[u8]) {
    crate::meta::read_any(data);
    crate::blocks::read_any(data);
    crate::cluster::read_any(data);
    if let Ok(question) = postcard::from_bytes::<Question>(data) {
        // What was understood is written as it was, or shorter.
        let again = postcard::to_allocvec(&question).map(|bytes| postcard::from_bytes::<Question>(&bytes));
        assert!(again.is_ok_and(|again| again == Ok(question)));
    }
    let _ = postcard::from_bytes::<Result<Answer>>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        crate::s3::read_any(text);
        let _ = crate::at_rest::AtRest::parse(text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::read(&data);
        }
    }
}
