//! From our terms to S3's: errors, times, ETags, checksums.

use std::fmt;

use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue};
use s3s::dto::{ChecksumType, ETag, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode};
use underlay_sync::Mutex;

use super::documents;
use crate::errors::{GatewayError, StoreRefusal};
use crate::model::{ChecksumCoverage, ObjectChecksums};

tokio::task_local! {
    /// What went wrong with the request that this task answers.
    static FAILURES: RequestFailures;
}

/// What goes wrong with one request. The log has one line of it for the store and one for the gateway's own disk: a
/// deletion of 1,000 keys may fail 1,000 times.
#[derive(Debug)]
struct RequestFailures {
    id: String,
    of_store: Mutex<FailureTally>,
    local: Mutex<FailureTally>,
}

#[derive(Debug, Default)]
struct FailureTally {
    first: String,
    count: u64,
}

impl FailureTally {
    fn add(&mut self, text: &str) {
        if self.count == 0 {
            text.clone_into(&mut self.first);
        }
        self.count += 1;
    }

    /// For the log, if there is anything to say.
    fn line(&self, id: &str) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("request {id}: {}", self.first)),
            count => Some(format!("request {id}: {}; this is the first of {count} failures", self.first)),
        }
    }
}

impl RequestFailures {
    fn new(id: String) -> RequestFailures {
        RequestFailures { id, of_store: Mutex::default(), local: Mutex::default() }
    }
}

/// When the request has been answered, or given up.
impl Drop for RequestFailures {
    fn drop(&mut self) {
        if let Some(line) = self.of_store.lock().line(&self.id) {
            tracing::warn!("{line}");
        }
        if let Some(line) = self.local.lock().line(&self.id) {
            tracing::error!("{line}");
        }
    }
}

/// Has the log name a request by this number where something goes wrong with it.
pub(crate) async fn numbered<T>(id: String, work: impl Future<Output = T>) -> T {
    FAILURES.scope(RequestFailures::new(id), work).await
}

/// What has gone wrong in the store is for the log alone: it may have paths, addresses and keys.
fn note_failure_of_store(text: &str) {
    if FAILURES.try_with(|failures| failures.of_store.lock().add(text)).is_err() {
        tracing::warn!("{text}");
    }
}

/// The same of the gateway's own disk.
fn note_local_failure(text: &str) {
    if FAILURES.try_with(|failures| failures.local.lock().add(text)).is_err() {
        tracing::error!("{text}");
    }
}

/// The code for a refusal by the store. SDKs try again where it is `ServiceUnavailable`, which is right only where
/// somebody can help: with other permissions or another bucket the same request succeeds.
fn code_of_refusal(refusal: StoreRefusal) -> S3ErrorCode {
    match refusal {
        StoreRefusal::TooLarge => S3ErrorCode::EntityTooLarge,
        StoreRefusal::NotSupported => S3ErrorCode::NotImplemented,
        StoreRefusal::Request | StoreRefusal::Name => S3ErrorCode::InvalidRequest,
        StoreRefusal::Denied | StoreRefusal::NoBucket | StoreRefusal::Links | StoreRefusal::ReadOnly => {
            S3ErrorCode::ServiceUnavailable
        }
    }
}

/// The code that clients know for an error. Errors of the store or of the gateway's own disk stay in its log.
pub(super) fn error(error: GatewayError) -> S3Error {
    let text = error.to_string();
    let size_bytes = match error {
        GatewayError::InvalidRange { size_bytes } => Some(size_bytes),
        _ => None,
    };
    let code = match error {
        GatewayError::NoSuchBucket => S3ErrorCode::NoSuchBucket,
        GatewayError::NoSuchKey => S3ErrorCode::NoSuchKey,
        GatewayError::NoSuchUpload => S3ErrorCode::NoSuchUpload,
        GatewayError::BucketExists => S3ErrorCode::BucketAlreadyOwnedByYou,
        GatewayError::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
        GatewayError::TooManyBuckets(_) => S3ErrorCode::TooManyBuckets,
        GatewayError::InvalidPart(_) => S3ErrorCode::InvalidPart,
        GatewayError::InvalidPartOrder => S3ErrorCode::InvalidPartOrder,
        GatewayError::PartTooSmall(_) => S3ErrorCode::EntityTooSmall,
        GatewayError::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        GatewayError::NotModified => S3ErrorCode::NotModified,
        GatewayError::InvalidRange { .. } => S3ErrorCode::InvalidRange,
        GatewayError::InvalidArgument(_) => S3ErrorCode::InvalidArgument,
        GatewayError::KeyTooLong(_) => S3ErrorCode::KeyTooLongError,
        GatewayError::NameTaken(_) | GatewayError::InvalidRequest(_) => S3ErrorCode::InvalidRequest,
        GatewayError::BadDigest(_) => S3ErrorCode::BadDigest,
        GatewayError::WrongSignature(_) => S3ErrorCode::SignatureDoesNotMatch,
        GatewayError::NotAsSigned(_) => S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()),
        GatewayError::AccessDenied(_) => S3ErrorCode::AccessDenied,
        GatewayError::IncompleteBody(_) => S3ErrorCode::IncompleteBody,
        GatewayError::TooLarge(_) => S3ErrorCode::EntityTooLarge,
        GatewayError::NotImplemented(_) => S3ErrorCode::NotImplemented,
        GatewayError::Busy(_) => S3ErrorCode::SlowDown,
        GatewayError::StoreAway(_) => S3ErrorCode::ServiceUnavailable,
        GatewayError::Store(_) => {
            note_failure_of_store(&text);
            let text = "the store behind the gateway failed: try again later; the gateway's log says why, under the id of this request";
            return S3Error::with_message(S3ErrorCode::ServiceUnavailable, text);
        }
        GatewayError::Refused { refusal, .. } => {
            note_failure_of_store(&text);
            let text = format!("the store behind the gateway refuses it: {}", refusal.word());
            return S3Error::with_message(code_of_refusal(refusal), text);
        }
        GatewayError::MetadataTooLarge => S3ErrorCode::MetadataTooLarge,
        // S3's list of error codes has it, and `s3s` has not.
        GatewayError::HeadersTooLarge => S3ErrorCode::Custom("RequestHeaderSectionTooLarge".into()),
        GatewayError::Local(_) => {
            note_local_failure(&text);
            let text = "the gateway's own storage failed; its log says how, under the id of this request";
            return S3Error::with_message(S3ErrorCode::InternalError, text);
        }
    };
    let mut answer = S3Error::with_message(code, text);
    if matches!(answer.code(), S3ErrorCode::Custom(_)) {
        answer.set_status_code(hyper::StatusCode::BAD_REQUEST);
    }
    // RFC 9110, section 15.5.17: a client learns how long the object is.
    if let Some(range) = size_bytes.and_then(|size| HeaderValue::try_from(format!("bytes */{size}")).ok()) {
        let kind = HeaderValue::from_static("application/xml");
        answer.set_headers([(CONTENT_RANGE, range), (CONTENT_TYPE, kind)].into_iter().collect());
    }
    answer
}

pub(super) fn denied(reason: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::AccessDenied, reason)
}

/// Of requests that contradict themselves, in S3's own code for them.
pub(super) fn invalid_request(text: impl Into<String>) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidRequest, text.into())
}

/// Marks an error about the region of a signature: its answer names the right one.
#[derive(Debug)]
pub(super) struct WrongRegion;

impl fmt::Display for WrongRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the signature is for another region")
    }
}

impl std::error::Error for WrongRegion {}

/// An error that is answered before `s3s` sees the request. A client that signed for another region signs again, for
/// the one that this names.
pub(crate) fn answer_of(error: S3Error, region: &str) -> s3s::S3Result<hyper::Response<s3s::Body>> {
    let is_about_region = *error.code() == S3ErrorCode::AuthorizationHeaderMalformed
        || error.source().is_some_and(|source| source.is::<WrongRegion>());
    let mut response = error.to_http_response()?;
    if is_about_region && let Some(text) = text_of(&response) {
        let text = text.replacen("</Error>", &format!("<Region>{region}</Region></Error>"), 1);
        set_text(&mut response, text);
    }
    Ok(response)
}

fn text_of(response: &hyper::Response<s3s::Body>) -> Option<String> {
    response.body().bytes().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
}

fn set_text(response: &mut hyper::Response<s3s::Body>, text: impl Into<Vec<u8>>) {
    response.headers_mut().remove(CONTENT_LENGTH);
    *response.body_mut() = s3s::Body::from(text.into());
}

/// Corrects what `s3s` writes differently from S3: it quotes every ETag, while GetObjectAttributes has no quotes; and
/// it answers 200 to HEAD of a part.
pub(crate) fn put_right(operation: &str, response: &mut hyper::Response<s3s::Body>) {
    if operation == "GetObjectAttributes"
        && response.status().is_success()
        && let Some(text) = text_of(response)
    {
        set_text(response, text.replacen("<ETag>\"", "<ETag>", 1).replacen("\"</ETag>", "</ETag>", 1));
    }
    if operation == "HeadObject"
        && response.status().is_success()
        && response.headers().contains_key(CONTENT_RANGE)
    {
        *response.status_mut() = hyper::StatusCode::PARTIAL_CONTENT;
    }
}

/// Makes sure that a client can parse the answer, with any characters in its names. The bytes of an object stay as they
/// are, regardless of their type.
pub(crate) fn make_well_formed(operation: &str, response: &mut hyper::Response<s3s::Body>) {
    if response.status().is_success() && matches!(operation, "" | "GetObject" | "Forwarded" | "Question") {
        return;
    }
    let is_xml = response.headers().get(CONTENT_TYPE).is_some_and(|value| value == "application/xml");
    if is_xml && let Some(text) = response.body().bytes().and_then(|bytes| documents::well_formed(&bytes)) {
        set_text(response, text);
    }
}

pub(super) fn invalid(text: impl Into<String>) -> S3Error {
    error(GatewayError::InvalidArgument(text.into()))
}

/// S3 has whole seconds.
pub(super) fn time(ms: i64) -> Timestamp {
    let seconds = u64::try_from(ms.div_euclid(1000)).unwrap_or(0);
    Timestamp::from(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds))
}

/// Milliseconds since 1970.
pub(super) fn ms(time: &Timestamp) -> i64 {
    let mut text = Vec::new();
    let seconds = time
        .format(TimestampFormat::EpochSeconds, &mut text)
        .ok()
        .and_then(|()| String::from_utf8(text).ok()?.parse::<f64>().ok());
    (seconds.unwrap_or(0.0) * 1000.0) as i64
}

pub(super) fn etag(text: &str) -> ETag {
    ETag::Strong(text.to_owned())
}

pub(super) fn coverage(checksums: &ObjectChecksums) -> Option<ChecksumType> {
    checksums.coverage.map(coverage_word)
}

pub(super) fn coverage_word(coverage: ChecksumCoverage) -> ChecksumType {
    ChecksumType::from_static(match coverage {
        ChecksumCoverage::Full => ChecksumType::FULL_OBJECT,
        ChecksumCoverage::Composite => ChecksumType::COMPOSITE,
    })
}

/// Sets the five checksum fields of an S3 structure.
macro_rules! with_checksums {
    ($to:expr, $from:expr) => {
        ($to.checksum_crc32, $to.checksum_crc32c, $to.checksum_crc64nvme) =
            ($from.crc32.clone(), $from.crc32c.clone(), $from.crc64nvme.clone());
        ($to.checksum_sha1, $to.checksum_sha256) = ($from.sha1.clone(), $from.sha256.clone());
    };
}

/// And from one.
macro_rules! checksums_of {
    ($from:expr) => {
        $crate::model::ObjectChecksums {
            crc32: $from.checksum_crc32.clone(),
            crc32c: $from.checksum_crc32c.clone(),
            crc64nvme: $from.checksum_crc64nvme.clone(),
            sha1: $from.checksum_sha1.clone(),
            sha256: $from.checksum_sha256.clone(),
            coverage: None,
        }
    };
}

/// Of headers that no [family](super::asking_headers) has: a client that asks for it must not think that it was done.
macro_rules! refuse_unknown {
    ($input:expr, $($field:ident),*) => {
        $(if $input.$field.is_some() {
            let what = stringify!($field).replace('_', " ");
            let why = format!("this gateway can't carry out the request: {what}");
            return Err($crate::s3::answers::error($crate::errors::GatewayError::NotImplemented(why)));
        })*
    };
}

pub(super) use {checksums_of, refuse_unknown, with_checksums};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_refusals_of_store_are_not_tried_again() {
        for (refusal, code) in [
            (StoreRefusal::TooLarge, "EntityTooLarge"),
            (StoreRefusal::NotSupported, "NotImplemented"),
            (StoreRefusal::Request, "InvalidRequest"),
            (StoreRefusal::Name, "InvalidRequest"),
            (StoreRefusal::Denied, "ServiceUnavailable"),
            (StoreRefusal::NoBucket, "ServiceUnavailable"),
            (StoreRefusal::Links, "ServiceUnavailable"),
            (StoreRefusal::ReadOnly, "ServiceUnavailable"),
        ] {
            let answer = error(GatewayError::Refused { refusal, text: "PUT http://10.1.2.3".to_owned() });
            assert_eq!(answer.code().as_str(), code, "{refusal:?}");
            assert!(!answer.message().unwrap_or_default().contains("10.1.2.3"), "{answer:?}");
        }
    }

    #[test]
    fn failures_of_one_request_are_one_line() {
        let mut tally = FailureTally::default();
        assert_eq!(tally.line("7"), None);
        tally.add("the first");
        assert_eq!(tally.line("7").as_deref(), Some("request 7: the first"));
        for _ in 0..999 {
            tally.add("another");
        }
        let line = tally.line("7").unwrap();
        assert_eq!(line, "request 7: the first; this is the first of 1000 failures");
    }

    #[test]
    fn internal_errors_are_not_sent_to_clients() {
        let inside =
            "PUT http://10.1.2.3:9000/secret-bucket/key: AWSAccessKeyId AKIAEXAMPLE, /srv/objects: 403";
        for (cause, code) in [
            (GatewayError::Store(inside.to_owned()), "ServiceUnavailable"),
            (GatewayError::Local(inside.to_owned()), "InternalError"),
        ] {
            let answer = error(cause);
            assert_eq!(answer.code().as_str(), code);
            let text = answer.message().unwrap_or_default();
            assert!(!text.is_empty());
            for word in inside.split([' ', '/', ':', ',']).filter(|word| word.len() > 3) {
                assert!(!text.contains(word), "{word}: {text}");
            }
        }
    }
}
