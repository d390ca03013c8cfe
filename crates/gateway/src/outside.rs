//! Everything that parses bytes which somebody else may have written or a disk may have spoiled, in one place for the
//! fuzzer (`fuzz/fuzz_targets/gateway_*.rs`): no bytes at all make it panic or take much memory.

mod request;

pub use request::GatewayClient;

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::engine::{PeerAnswer, PeerQuestion};
use crate::errors::GatewayResult;

/// Has every parser look at the bytes: records and keys of the metadata, blocks on flash, what gateways ask each other,
/// and what etcd answers.
pub fn read(data: &[u8]) {
    crate::meta::read_any(data);
    crate::blocks::read_any(data);
    crate::engine::read_any(data);
    crate::cluster::read_any(data);
    if let Ok(question) = postcard::from_bytes::<PeerQuestion>(data) {
        // Understood input is written as it was, or shorter.
        let again =
            postcard::to_allocvec(&question).map(|bytes| postcard::from_bytes::<PeerQuestion>(&bytes));
        assert!(again.is_ok_and(|again| again == Ok(question)));
    }
    let _ = postcard::from_bytes::<GatewayResult<PeerAnswer>>(data);
    if let Ok(text) = std::str::from_utf8(data) {
        crate::s3::read_any(text);
        crate::journal::read_any(text);
        crate::store::read_any(text);
        crate::store::read_any_error(text);
        crate::staged::read_any(text);
        let _ = crate::at_rest::AtRest::parse(text);
    }
}

/// Headers that HTTP lets through here: more are refused before anybody looks at them.
const MAX_HEADERS: usize = 100;

/// Takes a target, and behind it a header a line, as the head of a request.
pub fn read_head(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let Some(uri) = lines.next().and_then(|line| Uri::try_from(line).ok()) else { return };
    let mut headers = HeaderMap::new();
    for line in lines.take(MAX_HEADERS) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    crate::s3::read_any_head(&headers, &uri);
    crate::cluster::read_any_head(&headers);
}

/// Takes a form as it comes in pieces, the first byte saying how long they are, and looks at it as far as that is done
/// before its file.
pub fn read_form(data: &[u8]) {
    let [step, form @ ..] = data else { return };
    let whole = crate::form::read(form, BOUNDARY);
    let mut reader = crate::form::FormReader::new(BOUNDARY);
    let ends = (0..form.len()).step_by(usize::from(*step) + 1).chain([form.len()]);
    for end in ends {
        match reader.read(&form[..end]) {
            Ok(None) => {}
            // It can't know of more than it has seen; what it says then stays true.
            Ok(Some(found)) => {
                assert_eq!(whole, Ok(Some(found.clone())));
                return crate::s3::read_any_form(found.0);
            }
            Err(error) => {
                assert_eq!(whole, Err(error));
                return;
            }
        }
    }
    assert_eq!(whole, Ok(None));
}

/// Takes a body in chunks as it comes in pieces, the first byte saying how long they are.
pub fn read_chunks(data: &[u8]) {
    let [step, body @ ..] = data else { return };
    crate::s3::read_any_chunks(body, usize::from(*step) * 64 + 1);
}

const BOUNDARY: &str = "--x";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read(data in prop::collection::vec(any::<u8>(), 0..300)) {
            super::read(&data);
            super::read_head(&data);
            super::read_form(&data);
            super::read_chunks(&data);
        }

        #[test]
        fn any_head_and_any_form_are_read(
            head in "/[a-z?&=%/]{0,20}(\n(authorization|x-amz-date|x-amz-trailer|content-md5|x-underlay-gateway|x-amz-checksum-crc32):[ -~]{0,30}){0,5}",
            form in "[ -~](--x\r\n(content-disposition: form-data; name=(key|policy|file|x-amz-signature|redirect)[ -~]{0,10}\r\n\r\n[ -~]{0,10}\r\n--x\r\n){0,4})",
        ) {
            super::read_head(head.as_bytes());
            super::read_form(form.as_bytes());
        }
    }
}
