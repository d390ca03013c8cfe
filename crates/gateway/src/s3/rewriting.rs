//! Rewrites requests so that `s3s` reads them as their clients meant them. It refuses headers that RFC 9110 says to
//! ignore (malformed ranges and dates), and misreads others (a `+` in the source of a copy, CDATA). It passes over
//! headers in the query of a presigned URL. The signature covers what the client wrote. So a first service of `s3s`
//! verifies it, and its route, which is here, hands the rewritten request to a second one. Only requests that need it go
//! this way.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue};
use hyper::http::Extensions;
use hyper::{Method, Request, Uri};
use reqwest::Url;
use s3s::dto::{ETagCondition, Range, Timestamp, TimestampFormat};
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, TrailingHeaders};

use super::access::{VerifiedSignature, check_signed, refused_header};
use super::addressing::{BucketAddressing, PathLevel};
use super::answers::{error, invalid_request};
use super::input::{self, PromisedBody};
use super::queries::has_name;
use super::{MAX_DOCUMENT_BYTES, documents, query_headers, ranges};
use crate::digests::{ALGORITHMS, ChecksumKind, DigestSet};
use crate::errors::GatewayError;
use crate::form::is_form;
use crate::model::ObjectChecksums;

/// How a header is written that `s3s` may not read as it is meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderForm {
    Range,
    Tags,
    Date,
    Source,
    Expires,
    List,
    Metadata,
}

impl HeaderForm {
    fn from_name(name: &str) -> Option<HeaderForm> {
        let of_source = name.strip_prefix("x-amz-copy-source-").filter(|rest| rest.starts_with("if-"));
        let name = of_source.unwrap_or(name);
        match name {
            "range" => Some(HeaderForm::Range),
            "if-match" | "if-none-match" => Some(HeaderForm::Tags),
            "if-modified-since" | "if-unmodified-since" => Some(HeaderForm::Date),
            "x-amz-copy-source" => Some(HeaderForm::Source),
            "expires" => Some(HeaderForm::Expires),
            "cache-control" | "content-encoding" | "content-language" => Some(HeaderForm::List),
            _ if name.starts_with("x-amz-meta-") => Some(HeaderForm::Metadata),
            _ => None,
        }
    }

    /// Whether `s3s` reads this value as it is meant, or not at all, and nobody but us has to.
    fn is_usual(self, value: &HeaderValue) -> bool {
        // The characters of metadata and lists are looked at elsewhere.
        let Ok(text) = value.to_str() else { return matches!(self, HeaderForm::Metadata | HeaderForm::List) };
        // `s3s` takes an empty header for none.
        text.is_empty()
            || match self {
                HeaderForm::Range => {
                    Range::parse(text).ok().is_some_and(|range| ranges::parse(text) == Some(range))
                }
                HeaderForm::Tags => ETagCondition::parse_http_header(text.as_bytes()).is_ok(),
                HeaderForm::Date | HeaderForm::Expires => {
                    Timestamp::parse(TimestampFormat::HttpDate, text).is_ok()
                }
                HeaderForm::Source => !text.contains('+'),
                HeaderForm::List | HeaderForm::Metadata => true,
            }
    }
}

/// Conditions and an `Expires` that `s3s` would not read, as they came.
/// [`ObjectPreconditions`](super::preconditions::ObjectPreconditions) and `object::expires` read them.
#[derive(Clone, Default)]
struct MovedConditions(HeaderMap);

/// See the module.
pub(super) struct HeaderRewriter {
    pub(super) inner: S3Service,
    pub(super) addressing: Arc<BucketAddressing>,
}

#[async_trait]
impl S3Route for HeaderRewriter {
    fn is_match(&self, method: &Method, uri: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        has_odd_header(headers)
            || is_document(method, uri, headers, &self.addressing)
            || query_headers::pairs(uri).next().is_some()
    }

    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        check_signed(request.credentials.as_ref(), &request.headers, &request.uri)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let S3Request {
            input, method, uri, mut headers, mut extensions, credentials, trailing_headers, ..
        } = request;
        query_headers::move_into(&mut headers, &uri)?;
        if let Some(refused) = refused_header(&headers) {
            return Err(refused);
        }
        let is_document = is_document(&method, &uri, &headers, &self.addressing);
        let body = match is_document {
            true => {
                let trailing = trailing_headers.clone();
                let body = rewrite_document(input, &mut headers, &uri, trailing).await?;
                if method == Method::POST && has_name(&uri, &["delete"]) && !has_checksum(&headers) {
                    return Err(invalid_request(
                        "DeleteObjects needs the header Content-MD5 or x-amz-checksum-*",
                    ));
                }
                // CreateBucket. Its query may have anything that names no other operation, such as a presigned URL's.
                if method == Method::PUT && !has_name(&uri, &["tagging", "acl"]) {
                    check_parts_of_bucket(&body)?;
                }
                body
            }
            false => input,
        };
        extensions.insert(rewrite_headers(&mut headers));
        extensions.insert(VerifiedSignature { credentials, trailing_headers });
        headers.remove(AUTHORIZATION);
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = without_signature(&uri)?;
        *request.headers_mut() = headers;
        *request.extensions_mut() = extensions;
        let response = self.inner.call(request).await.map_err(|cause| {
            let cause: Box<dyn std::error::Error + Send + Sync> = cause.into();
            error(GatewayError::local("cannot answer", cause))
        })?;
        let (parts, body) = response.into_parts();
        let mut response = S3Response::with_status(body, parts.status);
        response.headers = parts.headers;
        response.extensions = parts.extensions;
        Ok(response)
    }
}

/// Gives a request back what the first service took from it.
pub(super) fn restore<T>(request: &mut S3Request<T>) {
    if let Some(verified) = request.extensions.remove::<VerifiedSignature>() {
        request.credentials = verified.credentials;
        request.trailing_headers = verified.trailing_headers;
    }
}

/// Where a header of this name is: among those of the request, or what was taken from them.
pub(super) fn headers_with<'a>(
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
    name: &str,
) -> &'a HeaderMap {
    match extensions.get::<MovedConditions>() {
        Some(moved) if moved.0.contains_key(name) => &moved.0,
        _ => headers,
    }
}

/// Headers that were taken from those of the request.
pub(super) fn moved_headers(extensions: &Extensions) -> Option<&HeaderMap> {
    extensions.get::<MovedConditions>().map(|moved| &moved.0)
}

fn has_odd_header(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let Some(writing) = HeaderForm::from_name(name.as_str()) else { return false };
        let mut values = headers.get_all(name).iter();
        let first = values.next().is_none_or(|value| writing.is_usual(value));
        !first || values.next().is_some()
    })
}

/// Rewrites headers, and returns those that can't be.
fn rewrite_headers(headers: &mut HeaderMap) -> MovedConditions {
    let mut moved = HeaderMap::new();
    for name in headers.keys().cloned().collect::<Vec<_>>() {
        let Some(writing) = HeaderForm::from_name(name.as_str()) else { continue };
        let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
        if let [value] = values.as_slice()
            && writing.is_usual(value)
        {
            continue;
        }
        match writing {
            HeaderForm::Range => {
                headers.remove(&name);
                // Of several headers, none counts.
                if let [value] = values.as_slice()
                    && let Some(range) = value.to_str().ok().and_then(ranges::parse)
                    && let Ok(value) = HeaderValue::try_from(range.to_header_string())
                {
                    headers.insert(name, value);
                }
            }
            HeaderForm::Source => {
                // As a form is read, which S3 does. Of several, `s3s` refuses all.
                if let [value] = values.as_slice()
                    && let Ok(text) = value.to_str()
                    && let Ok(value) = HeaderValue::try_from(text.replace('+', "%20"))
                {
                    headers.insert(name, value);
                }
            }
            // User Guide, Working with object metadata: headers of one name are one. So are lists: RFC 9110, section 5.3.
            HeaderForm::Metadata | HeaderForm::List => {
                let comma = if writing == HeaderForm::List { &b", "[..] } else { &b","[..] };
                let text = values.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(comma);
                if let Ok(value) = HeaderValue::from_bytes(&text) {
                    headers.insert(name, value);
                }
            }
            HeaderForm::Tags | HeaderForm::Date | HeaderForm::Expires => {
                headers.remove(&name);
                for value in values {
                    moved.append(name.clone(), value);
                }
            }
        }
    }
    MovedConditions(moved)
}

/// Whether the body is an XML document that an operation here reads.
fn is_document(method: &Method, uri: &Uri, headers: &HeaderMap, addressing: &BucketAddressing) -> bool {
    match *method {
        Method::POST => !is_form(method, headers),
        Method::PUT if has_name(uri, &["tagging", "acl"]) => true,
        // CreateBucket. An object's bytes must never be taken for a document.
        Method::PUT => {
            let style = addressing.style_in(headers);
            style.and_then(|style| style.level(uri.path())).is_ok_and(|level| level == PathLevel::Bucket)
        }
        _ => false,
    }
}

async fn rewrite_document(
    body: Body,
    headers: &mut HeaderMap,
    uri: &Uri,
    trailing: Option<TrailingHeaders>,
) -> S3Result<Body> {
    let bytes = http_body_util::Limited::new(body, MAX_DOCUMENT_BYTES).collect().await.map_err(|reason| {
        if reason.is::<http_body_util::LengthLimitError>() {
            let reason = format!("a document has at most {MAX_DOCUMENT_BYTES} bytes");
            return S3Error::with_message(S3ErrorCode::MaxMessageLengthExceeded, reason);
        }
        error(input::broken_off(&reason.to_string()))
    })?;
    let bytes = bytes.to_bytes();
    check_document(&bytes, headers, has_name(uri, &["uploadId", "uploads"]), trailing)?;
    // As a rule nothing changes: then it is kept once.
    let keep = |bytes: &Bytes, text: Cow<'_, [u8]>| match text {
        Cow::Owned(text) => Bytes::from(text),
        Cow::Borrowed(text) => bytes.slice_ref(text),
    };
    let mut plain = keep(&bytes, documents::plain(&bytes));
    // These bodies are JSON, or nobody reads them.
    if !has_name(uri, &["policy", "uploads"]) {
        let collapsed =
            documents::collapse(&plain).ok_or_else(|| malformed("it is no document that S3 takes"))?;
        plain = keep(&plain, collapsed);
    }
    headers.insert(CONTENT_LENGTH, plain.len().into());
    Ok(Body::from(plain))
}

fn malformed(text: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::MalformedXML, text)
}

/// Parts of a CreateBucket that the gateway does not have: tags, and buckets for directories.
const PARTS_OF_OTHERS: [&[u8]; 3] = [b"Tags", b"Location", b"Bucket"];

/// `s3s` would pass over those.
fn check_parts_of_bucket(document: &Body) -> S3Result<()> {
    let bytes = document.bytes().unwrap_or_default();
    let mut names = documents::names(&bytes);
    if names.next().is_none_or(|name| name != b"CreateBucketConfiguration") {
        return Ok(());
    }
    match names.find(|name| *name != b"LocationConstraint") {
        None => Ok(()),
        Some(name) if PARTS_OF_OTHERS.contains(&name) => Err(error(GatewayError::NotImplemented(format!(
            "this gateway creates no bucket with {}",
            String::from_utf8_lossy(name)
        )))),
        Some(_) => Err(malformed("CreateBucketConfiguration has a part that S3 does not have")),
    }
}

/// Whether anything but the signature vouches for the body.
fn has_checksum(headers: &HeaderMap) -> bool {
    let mut names = ALGORITHMS.into_iter().map(ChecksumKind::header);
    headers.contains_key("content-md5")
        || headers.contains_key("x-amz-trailer")
        || names.any(|name| headers.contains_key(name))
}

/// Compares the document with the MD5 and the checksum that came with it, before or behind it, as with any other
/// body. Checksums of a request
/// that completes an upload are the object's.
fn check_document(
    bytes: &Bytes,
    headers: &HeaderMap,
    is_of_upload: bool,
    trailing: Option<TrailingHeaders>,
) -> S3Result<()> {
    let mut checksums = ObjectChecksums::default();
    for algorithm in ALGORITHMS {
        let value = headers.get(algorithm.header()).and_then(|value| value.to_str().ok());
        if let Some(value) = value.filter(|value| !is_of_upload && !value.is_empty()) {
            checksums.set(algorithm, value.to_owned());
        }
    }
    let promised = PromisedBody::new(headers, None, checksums, trailing)?;
    let mut digests = DigestSet::new(&promised.algorithms).map_err(error)?;
    digests.update(bytes).map_err(error)?;
    let sums = digests.finish().map_err(error)?;
    promised.verify()(&sums.md5, &sums.checksums).map_err(error)
}

/// Leaves out the signature, which has been verified and would not fit any more, and parameters that are headers now.
fn without_signature(uri: &Uri) -> S3Result<Uri> {
    let wrong = || S3Error::with_message(S3ErrorCode::InvalidURI, "the URL of the request is not valid");
    let Some(query) = uri.query() else { return Ok(uri.clone()) };
    let pairs = query.split('&').filter(|pair| {
        let url = Url::parse(&format!("http://gateway/?{pair}")).ok();
        let name = url.and_then(|url| url.query_pairs().next().map(|(name, _)| name.into_owned()));
        !name.is_some_and(|name| query_headers::is_of_signature(&name) || query_headers::is_header(&name))
    });
    let pairs: Vec<&str> = pairs.collect();
    let target = match pairs.is_empty() {
        true => uri.path().to_owned(),
        false => format!("{}?{}", uri.path(), pairs.join("&")),
    };
    target.parse().map_err(|_| wrong())
}

/// For the fuzzer: any head, which is returned as it goes on. A rewritten request needs it no more.
pub(super) fn rewrite_any(mut headers: HeaderMap, uri: &Uri) -> (HeaderMap, Extensions) {
    let _ = query_headers::move_into(&mut headers, uri);
    let moved = rewrite_headers(&mut headers);
    for name in ["range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since"] {
        for value in headers.get_all(name) {
            assert!(HeaderForm::from_name(name).is_some_and(|writing| writing.is_usual(value)), "{name}");
        }
    }
    let mut extensions = Extensions::new();
    extensions.insert(moved);
    let _ = without_signature(uri);
    (headers, extensions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_documents_are_taken_for_documents() {
        let addressing = BucketAddressing::new(&["gateway.example".to_owned()], None, false);
        let is_document = |method: &str, target: &str, host: &'static str| {
            let headers = [(hyper::header::HOST, HeaderValue::from_static(host))].into_iter().collect();
            is_document(&method.parse().unwrap(), &target.parse().unwrap(), &headers, &addressing)
        };
        let own = "gateway.example";
        for (method, target, host) in [
            ("POST", "/lake?delete", own),
            ("POST", "/lake?%64elete", own),
            ("PUT", "/lake/a?t%61gging", own),
            ("POST", "/lake/a?uploadId=1", own),
            ("PUT", "/lake/a?tagging", own),
            ("PUT", "/lake?acl=", own),
            ("PUT", "/lake", own),
            ("PUT", "/lake/", own),
            ("PUT", "/l%61ke", own),
            ("PUT", "/", "lake.gateway.example"),
        ] {
            assert!(is_document(method, target, host), "{method} {target} {host}");
        }
        for (method, target, host) in [
            ("PUT", "/lake/a", own),
            ("PUT", "/lake//", own),
            ("PUT", "/lake%2Fa", own),
            ("PUT", "/lake/tagging", own),
            ("PUT", "/lake/a?%2574agging", own),
            ("PUT", "/lake/a?partNumber=1&uploadId=tagging", own),
            ("PUT", "/a", "lake.gateway.example"),
            ("PUT", "//", "lake.gateway.example"),
            ("GET", "/lake/a", own),
        ] {
            assert!(!is_document(method, target, host), "{method} {target} {host}");
        }
    }

    #[test]
    fn forwarded_url_has_no_signature() {
        let rest = |target: &str| without_signature(&target.parse().unwrap()).unwrap().to_string();
        assert_eq!(rest("/lake/a?X-Amz-Signature=0&x-id=GetObject&X-Amz-D%61te=1"), "/lake/a?x-id=GetObject");
        assert_eq!(rest("/lake/a?X-Amz-Signature=0"), "/lake/a");
        assert_eq!(
            rest("/lake/a?uploads&X-Amz-Meta-A=1&x-amz-checksum-crc32=A"),
            "/lake/a?uploads&x-amz-checksum-crc32=A"
        );
        assert_eq!(rest("/lake/a%20b?prefix=a%2Bb+c"), "/lake/a%20b?prefix=a%2Bb+c");
    }

    #[test]
    fn headers_are_rewritten_as_s3s_reads_them() {
        let mut headers: HeaderMap = [
            ("range", "bytes=0-18446744073709551615"),
            ("x-amz-copy-source", "/lake/a+b%2B"),
            ("x-amz-copy-source-range", "bytes=9-5"),
            ("if-match", "\"a\", \"b\","),
            ("if-none-match", "\"a\""),
            ("if-modified-since", "yesterday"),
            ("expires", "0"),
        ]
        .into_iter()
        .map(|(name, value)| (hyper::header::HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
        assert!(has_odd_header(&headers));
        let moved = rewrite_headers(&mut headers);
        assert!(!has_odd_header(&headers));
        let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        assert_eq!(value("range"), Some("bytes=0-9223372036854775807"));
        assert_eq!(value("x-amz-copy-source"), Some("/lake/a%20b%2B"));
        assert_eq!(value("x-amz-copy-source-range"), Some("bytes=9-5"));
        assert_eq!(
            (value("if-match"), value("if-none-match"), value("if-modified-since")),
            (None, Some("\"a\""), None)
        );
        assert_eq!((moved.0.len(), value("expires")), (3, None));
        let mut extensions = Extensions::new();
        extensions.insert(moved);
        assert_eq!(headers_with(&headers, &extensions, "expires")["expires"], "0");
    }

    #[test]
    fn lines_of_a_list_become_one() {
        let joined = |name: &'static str, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(name, HeaderValue::from_static(value));
            }
            let is_odd = has_odd_header(&headers);
            rewrite_headers(&mut headers);
            let values = headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned());
            (is_odd, values.collect::<Vec<_>>())
        };
        for name in ["cache-control", "content-encoding", "content-language"] {
            assert_eq!(joined(name, &["a", "b, c"]), (true, vec!["a, b, c".to_owned()]), "{name}");
            assert_eq!(joined(name, &["a"]), (false, vec!["a".to_owned()]), "{name}");
        }
        // These have one value, so that two lines are a mistake.
        for name in ["content-type", "content-disposition", "x-amz-tagging"] {
            assert_eq!(joined(name, &["a", "b"]), (false, vec!["a".to_owned(), "b".to_owned()]), "{name}");
        }
    }
}
