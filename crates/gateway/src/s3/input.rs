//! The input of requests: bodies with their checksums, conditions, tags, copy sources.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use hyper::header::{HeaderMap, HeaderValue};
use s3s::dto::{CopySource, Range, StorageClass, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Result, TrailingHeaders};

use super::answers::{error, invalid, invalid_request};
use super::spoiled::ChunkError;
use crate::digests::{ALGORITHMS, ChecksumKind};
use crate::engine::VerifyBody;
use crate::errors::{GatewayError, GatewayResult};
use crate::headers::written;
use crate::model::ObjectChecksums;
use crate::url_escapes;

/// S3's limit of tags.
const MAX_TAGS: usize = 10;
/// User Guide, Categorizing your objects using tags: keys of users don't begin so.
const RESERVED_TAGS: &str = "aws:";

/// The body as a stream. Errors of `s3s` have no public types, so their text says what they are.
pub(super) fn body(blob: Option<StreamingBlob>) -> BoxStream<'static, GatewayResult<Bytes>> {
    let Some(blob) = blob else { return futures_util::stream::empty().boxed() };
    blob.map(|piece| piece.map_err(|error| broken_off(&error.to_string()))).boxed()
}

/// Why a body did not come whole, from what `s3s` says of it. Its own words and those of `hyper` are for the log.
pub(super) fn broken_off(text: &str) -> GatewayError {
    tracing::debug!("a body did not come whole: {text}");
    match ChunkError::said_in(text) {
        Some(spoiled) if spoiled != ChunkError::Mismatch => {
            GatewayError::IncompleteBody(format!("the body broke off: {spoiled}"))
        }
        _ if text.contains("SignatureMismatch") => {
            GatewayError::WrongSignature("the signature does not match a chunk or the trailer".to_owned())
        }
        _ if text.contains("Mismatch") && !text.contains("Length") => {
            GatewayError::NotAsSigned("its SHA-256 is not that of x-amz-content-sha256".to_owned())
        }
        _ => GatewayError::IncompleteBody("the body broke off before its end: send it again".to_owned()),
    }
}

/// The client's description of its body.
pub(super) struct PromisedBody {
    pub(super) algorithms: Vec<ChecksumKind>,
    md5: Option<Vec<u8>>,
    checksums: ObjectChecksums,
    /// The algorithm that comes with the trailer.
    trailer: Option<(ChecksumKind, Option<TrailingHeaders>)>,
}

impl PromisedBody {
    /// # Errors
    /// When it makes no sense.
    pub(super) fn new(
        headers: &HeaderMap,
        content_md5: Option<&str>,
        checksums: ObjectChecksums,
        trailing: Option<TrailingHeaders>,
    ) -> S3Result<PromisedBody> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // `s3s` takes an empty header for none.
        let md5 = match content_md5.or_else(|| text("content-md5")) {
            None => None,
            Some(text) => match STANDARD.decode(text) {
                Ok(bytes) if bytes.len() == 16 => Some(bytes),
                _ => {
                    let code = s3s::S3ErrorCode::InvalidDigest;
                    return Err(s3s::S3Error::with_message(
                        code,
                        "Content-MD5 is not the base64 of 16 bytes",
                    ));
                }
            },
        };
        let trailer = match text("x-amz-trailer") {
            None => None,
            Some(name) => {
                let listed = ALGORITHMS
                    .into_iter()
                    .find(|algorithm| algorithm.header().eq_ignore_ascii_case(name.trim()));
                let algorithm = listed.ok_or_else(|| {
                    invalid(format!("the trailer {name:?} is not a checksum that S3 knows"))
                })?;
                Some((algorithm, trailing))
            }
        };
        let named = ["x-amz-sdk-checksum-algorithm", "x-amz-checksum-algorithm"].into_iter().find_map(text);
        let mut algorithms: Vec<ChecksumKind> =
            ALGORITHMS.into_iter().filter(|algorithm| checksums.get(*algorithm).is_some()).collect();
        if algorithms.len() + usize::from(trailer.is_some()) > 1 {
            return Err(invalid_request(
                "expected one checksum, in a header or behind the body, not several",
            ));
        }
        check_checksums(headers, &checksums)?;
        if let Some((algorithm, _)) = &trailer {
            algorithms.push(*algorithm);
        }
        if let Some(name) = named {
            let algorithm = algorithm_of(name)?;
            if algorithms.iter().any(|other| *other != algorithm) {
                return Err(invalid_request(format!(
                    "the request names {} as its checksum, and has another one",
                    algorithm.name()
                )));
            }
            algorithms.push(algorithm);
        }
        algorithms.dedup();
        Ok(PromisedBody { algorithms, md5, checksums, trailer })
    }

    /// Those that come with the body, in headers or behind it.
    pub(super) fn given(&self) -> impl Iterator<Item = ChecksumKind> {
        let in_trailer = self.trailer.as_ref().map(|(algorithm, _)| *algorithm);
        ALGORITHMS.into_iter().filter(move |algorithm| {
            self.checksums.get(*algorithm).is_some() || in_trailer == Some(*algorithm)
        })
    }

    /// Compares what came with what was promised. The trailer is there only when the body has ended.
    pub(super) fn verify(self) -> VerifyBody {
        Box::new(move |md5, found| {
            if self.md5.is_some_and(|wanted| wanted != md5) {
                return Err(GatewayError::BadDigest("the body's MD5 is not that of Content-MD5".to_owned()));
            }
            let mut wanted: Vec<(ChecksumKind, String)> = ALGORITHMS
                .into_iter()
                .filter_map(|algorithm| Some((algorithm, self.checksums.get(algorithm)?.clone())))
                .collect();
            if let Some((algorithm, trailing)) = self.trailer {
                let name = algorithm.header();
                let value = trailing.and_then(|trailing| trailing.take()).and_then(|headers| {
                    headers.get(&name).and_then(|value| value.to_str().ok()).map(str::to_owned)
                });
                let missing = || {
                    GatewayError::IncompleteBody(format!("the trailer {name} was announced and did not come"))
                };
                wanted.push((algorithm, value.ok_or_else(missing)?));
            }
            for (algorithm, wanted) in wanted {
                // Those of headers have been looked at before.
                if !algorithm.has_form_of(wanted.trim()) {
                    let reason = format!("the bytes behind the body are no {}", algorithm.name());
                    return Err(GatewayError::InvalidRequest(reason));
                }
                let found = found.get(algorithm).map_or("", String::as_str);
                if found != wanted.trim() {
                    return Err(GatewayError::BadDigest(format!(
                        "the body's {} is {found}, and the request says {}",
                        algorithm.name(),
                        wanted.escape_debug()
                    )));
                }
            }
            Ok(())
        })
    }
}

/// Looks at checksums in headers before the body comes: each has to be one, at least in its form. `s3s` takes an empty
/// header for none.
///
/// # Errors
/// As S3 answers: `InvalidRequest`.
pub(super) fn check_checksums(headers: &HeaderMap, checksums: &ObjectChecksums) -> S3Result<()> {
    for algorithm in ALGORITHMS {
        let header = algorithm.header();
        let is_empty = headers.get(&header).is_some_and(HeaderValue::is_empty);
        let is_wrong = checksums.get(algorithm).is_some_and(|value| !algorithm.has_form_of(value));
        if is_empty || is_wrong {
            return Err(invalid_request(format!("the value of {header} is no {}", algorithm.name())));
        }
    }
    Ok(())
}

/// # Errors
/// When nobody knows it here.
pub(super) fn algorithm_of(name: &str) -> S3Result<ChecksumKind> {
    ChecksumKind::from_name(name)
        .ok_or_else(|| invalid_request(format!("{name:?} is not a checksum that this gateway knows")))
}

/// Everything is kept in one way here, so an object has no other class than the usual one.
///
/// # Errors
/// `InvalidStorageClass` for any other.
pub(super) fn check_storage_class(class: Option<&str>) -> S3Result<()> {
    match class {
        None | Some("" | StorageClass::STANDARD) => Ok(()),
        Some(other) => Err(S3Error::with_message(
            S3ErrorCode::InvalidStorageClass,
            format!("this gateway stores objects only as STANDARD, not as {other:?}"),
        )),
    }
}

/// The size of a body. One that comes in HTTP's own chunks has no `Content-Length`, as boto3 sends them by TLS: then
/// S3's header for the size without framing says it.
pub(super) fn size(content_length: Option<i64>, headers: &HeaderMap) -> S3Result<u64> {
    let decoded = || headers.get("x-amz-decoded-content-length")?.to_str().ok()?.parse().ok();
    let length = content_length.and_then(|length| u64::try_from(length).ok()).or_else(decoded);
    length.ok_or_else(|| {
        s3s::S3Error::with_message(
            s3s::S3ErrorCode::MissingContentLength,
            "the request has no Content-Length",
        )
    })
}

/// Bucket and key of a copy's source.
pub(super) fn source(source: &CopySource) -> S3Result<(String, String)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            check_version(version_id.as_deref())?;
            Ok((bucket.to_string(), key.to_string()))
        }
        _ => Err(error(GatewayError::NotImplemented("a source is named by its bucket and key".to_owned()))),
    }
}

/// There is one version of an object, which S3 calls `null`.
pub(super) fn check_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(s3s::S3Error::with_message(
            s3s::S3ErrorCode::NoSuchVersion,
            "this gateway keeps one version of an object, `null`",
        )),
    }
}

/// `bytes=0-99` of an object of this size.
pub(super) fn copied_range(text: &str, size_bytes: u64) -> S3Result<std::ops::Range<u64>> {
    let wrong = || invalid(format!("{text:?} is not a range within the source"));
    match Range::parse(text) {
        Ok(Range::Int { first, last: Some(last) }) if last < size_bytes => Ok(first..last + 1),
        Ok(Range::Int { last: Some(_), .. }) => Err(error(GatewayError::InvalidRange { size_bytes })),
        _ => Err(wrong()),
    }
}

/// User metadata, in order. Whether they can be kept, the engine checks with the other headers.
pub(super) fn metadata(metadata: Option<s3s::dto::Metadata>) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = metadata.into_iter().flatten().collect();
    pairs.sort();
    pairs
}

/// A header that clients wrote with other characters than those of ASCII, as S3 returns it.
pub(super) fn encode_ascii(text: String) -> String {
    if text.is_ascii() { text } else { written(&text).into_owned() }
}

/// Tags as a header has them: `a=1&b=2`.
pub(super) fn tags(text: Option<&str>) -> S3Result<Vec<(String, String)>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let mut tags = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push((unescaped(name)?, unescaped(value)?));
    }
    tags.sort();
    // Of a document, S3 says `InvalidTag`.
    if tags.iter().any(|(name, _)| name.is_empty()) || has_twice(&tags) {
        return Err(invalid("x-amz-tagging has a tag without a key, or two with the same one"));
    }
    check_each(tags)
}

/// Whether two of them, in order, have one key.
fn has_twice(tags: &[(String, String)]) -> bool {
    tags.windows(2).any(|pair| pair[0].0 == pair[1].0)
}

/// User Guide, Categorizing your objects using tags: letters, numbers, spaces and these.
fn is_of_tag(character: char) -> bool {
    character.is_alphanumeric() || character.is_whitespace() || "+-=._:/@".contains(character)
}

/// # Errors
/// When they are too many or too long, or one comes twice.
pub(super) fn check_tags(mut tags: Vec<(String, String)>) -> S3Result<Vec<(String, String)>> {
    tags.sort();
    match has_twice(&tags) && tags.len() <= MAX_TAGS {
        true => Err(wrong_tag("a tag comes twice")),
        false => check_each(tags),
    }
}

fn wrong_tag(reason: &'static str) -> s3s::S3Error {
    s3s::S3Error::with_message(s3s::S3ErrorCode::InvalidTag, reason)
}

fn check_each(tags: Vec<(String, String)>) -> S3Result<Vec<(String, String)>> {
    if tags.len() > MAX_TAGS {
        return Err(wrong_tag("an object has at most 10 tags"));
    }
    let is_long = |(name, value): &(String, String)| {
        name.is_empty() || name.chars().count() > 128 || value.chars().count() > 256
    };
    if tags.iter().any(is_long) {
        return Err(wrong_tag("a tag's key has 1 to 128 characters, and its value at most 256"));
    }
    if tags.iter().any(|(name, _)| name.starts_with(RESERVED_TAGS)) {
        return Err(wrong_tag("AWS keeps tags whose keys begin with aws: for itself"));
    }
    match tags.iter().all(|(name, value)| name.chars().chain(value.chars()).all(is_of_tag)) {
        true => Ok(tags),
        false => Err(wrong_tag("a tag has letters, numbers, spaces and + - = . _ : / @ alone")),
    }
}

/// Percent-encoded text, with `+` for a space.
fn unescaped(text: &str) -> S3Result<String> {
    let wrong = || invalid(format!("{text:?} is not percent-encoded text"));
    match url_escapes::has_whole_escapes(text.as_bytes()) {
        true => url_escapes::decode_form(text).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tags_of_a_header() {
        assert_eq!(
            tags(Some("b=2&a=x+y%2B&c")).unwrap(),
            [("a", "x y+"), ("b", "2"), ("c", "")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
        assert!(tags(Some("a=aws:b&awsome=1&b:aws:=2")).is_ok());
        assert!(tags(Some("ключ=значение&key@=a:b/c._-%3D")).is_ok());
        let code = |text: &str| tags(Some(text)).unwrap_err().code().as_str().to_owned();
        for text in ["a=1&a=2", "=1", "a=%zz", "a=%+f"] {
            assert_eq!(code(text), "InvalidArgument", "{text}");
        }
        for text in ["a%26=1", "a=1?", "a=1%2C2", "a*=1", "aws:a=1", "b=2&aws%3A=1"] {
            assert_eq!(code(text), "InvalidTag", "{text}");
        }
        assert!(tags(Some("a=%zz")).is_err() && tags(Some("a=%f")).is_err());
        let many: Vec<String> = (0..11).map(|index| format!("t{index}=v")).collect();
        assert!(tags(Some(&many.join("&"))).is_err());
    }

    #[test]
    fn body_errors_hide_messages_of_dependencies() {
        let message_for = |text: &str| broken_off(text).to_string();
        for text in ["AwsChunkedStreamError: FormatError", "error reading a body from connection"] {
            assert_eq!(message_for(text), "the body broke off before its end: send it again");
        }
        let wrapped = format!("Underlying: {}", ChunkError::NoEnd);
        assert_eq!(message_for(&wrapped), format!("the body broke off: {}", ChunkError::NoEnd));
        for text in ["AwsChunkedStreamError: SignatureMismatch", &ChunkError::Mismatch.to_string()] {
            assert!(matches!(broken_off(text), GatewayError::WrongSignature(_)), "{text}");
        }
        assert!(matches!(broken_off("PayloadHashMismatch"), GatewayError::NotAsSigned(_)));
        assert!(matches!(broken_off("LengthMismatch"), GatewayError::IncompleteBody(_)));
    }

    #[test]
    fn copy_range_outside_source_is_refused() {
        assert_eq!(copied_range("bytes=0-9", 10).unwrap(), 0..10);
        for wrong in ["bytes=0-10", "bytes=5-", "bytes=-5", "0-9", "bytes=9-3", ""] {
            assert!(copied_range(wrong, 10).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_text_never_panics(text in "\\PC{0,40}") {
            let _ = (tags(Some(&text)), copied_range(&text, 100));
        }
    }
}
