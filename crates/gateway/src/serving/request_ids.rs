//! The number of a request, which its answer and its line of the access log share: who asks about an error names it.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use s3s::Body;

const HEADER: HeaderName = HeaderName::from_static("x-amz-request-id");
const END: &[u8] = b"</Error>";
const DIGITS: usize = 16;

/// Where they come from: another beginning with each start, so that logs of two starts have different ones.
pub(super) struct RequestIds {
    beginning: u64,
    count: AtomicU64,
}

/// Sixteen digits, as of S3.
#[derive(Clone, Copy)]
pub(super) struct RequestId([u8; DIGITS]);

impl RequestIds {
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn new() -> Result<RequestIds, String> {
        let beginning = getrandom::u64().map_err(|error| format!("no random numbers: {error}"))?;
        Ok(RequestIds { beginning, count: AtomicU64::new(0) })
    }

    pub(super) fn draw(&self) -> RequestId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        // Odd, so each count gives another number.
        let mixed = self.beginning.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        RequestId(std::array::from_fn(|place| {
            let digit = (mixed >> (4 * (DIGITS - 1 - place))) & 0xf;
            b"0123456789ABCDEF"[digit as usize]
        }))
    }
}

impl RequestId {
    pub(super) fn as_str(&self) -> &str {
        // They are digits, each of them.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Into the headers, and into the text of an error.
    pub(super) fn put_into(&self, response: &mut Response<Body>) {
        if let Ok(value) = HeaderValue::from_bytes(&self.0) {
            response.headers_mut().insert(HEADER, value);
        }
        let is_error = response.status() >= StatusCode::BAD_REQUEST;
        if let Some(text) = is_error.then(|| response.body().bytes()).flatten()
            && let Some(begin) = text.strip_suffix(END)
        {
            let id = format!("<RequestId>{}</RequestId>", self.as_str());
            let whole = [begin, id.as_bytes(), END].concat();
            response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
            *response.body_mut() = Body::from(Bytes::from(whole));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_has_request_id_of_its_answer() {
        let ids = RequestIds::new().unwrap();
        let fixed = RequestIds { beginning: 0x0123_4567_89ab_cdef, count: AtomicU64::new(0) };
        assert_eq!(fixed.draw().as_str(), "0123456789ABCDEF");
        let (first, second) = (ids.draw(), ids.draw());
        assert_ne!(first.as_str(), second.as_str());
        assert_eq!(first.as_str().len(), 16);
        let mut response = Response::new(Body::from("<Error><Code>NoSuchKey</Code></Error>".to_owned()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        first.put_into(&mut response);
        let text = String::from_utf8(response.body().bytes().unwrap().to_vec()).unwrap();
        assert_eq!(
            text,
            format!("<Error><Code>NoSuchKey</Code><RequestId>{}</RequestId></Error>", first.as_str())
        );
        assert_eq!(response.headers()[HEADER], *first.as_str());
        // Other answers stay as they are.
        let mut fine = Response::new(Body::from("<Error></Error>".to_owned()));
        second.put_into(&mut fine);
        assert_eq!(fine.body().bytes().unwrap().as_ref(), b"<Error></Error>");
    }
}
