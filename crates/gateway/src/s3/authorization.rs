//! Signatures that can't be verified, and requests that S3 does not have: the gateway answers them before `s3s` looks.
//! By the error code, SDKs decide whether to sign again or give up.

use std::collections::HashMap;

use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{Method, Uri};
use reqwest::Url;
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::addressing::{BucketAddressing, PathLevel, not_allowed};
use super::answers::{WrongRegion, denied};
use super::queries;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// S3's words for bodies whose hash is not in the head. `s3s` refuses those with ECDSA.
const PAYLOADS: [&str; 6] = [
    "UNSIGNED-PAYLOAD",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
    "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
    "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER",
];
/// Of a presigned URL, in lower case. `X-Amz-Expires` is looked at elsewhere.
const OF_URL: [&str; 6] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signature",
    "x-amz-signedheaders",
];

/// What a credential is for, besides its key.
pub(super) struct CredentialScope<'a> {
    pub key_id: &'a str,
    pub day: &'a str,
    pub region: &'a str,
}

/// Why nobody can verify the signature of a request. One without a signature is refused elsewhere.
pub(super) fn malformed(headers: &HeaderMap, uri: &Uri, addressing: &BucketAddressing) -> Option<S3Error> {
    if let Some(refused) = old_signature(headers, uri) {
        return Some(refused);
    }
    match headers.get(AUTHORIZATION) {
        Some(value) => match value.to_str() {
            Ok(text) => check_header(text.trim(), headers, addressing),
            Err(_) => Some(header_malformed("it has characters that no signature has")),
        },
        None => check_url(uri, addressing),
    }
}

/// `s3s` verifies signatures of version 2 as well, which sign neither the body nor most headers.
pub(super) fn old_signature(headers: &HeaderMap, uri: &Uri) -> Option<S3Error> {
    let is_old = headers.get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(b"AWS "))
        || queries::has_name(uri, &["AWSAccessKeyId"]);
    is_old.then(|| {
        let reason = "this gateway takes signatures of version 4 only: use AWS4-HMAC-SHA256";
        S3Error::with_message(S3ErrorCode::InvalidRequest, reason)
    })
}

fn check_header(text: &str, headers: &HeaderMap, addressing: &BucketAddressing) -> Option<S3Error> {
    let (kind, fields) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if kind.is_empty() {
        return None;
    }
    if kind != ALGORITHM {
        let text = "the Authorization header is of another type than AWS4-HMAC-SHA256";
        return Some(S3Error::with_message(S3ErrorCode::InvalidArgument, text));
    }
    let (mut credential, mut signed_headers, mut signature) = ("", "", "");
    for field in fields.split(',') {
        match field.trim().split_once('=') {
            Some(("Credential", value)) => credential = value,
            Some(("SignedHeaders", value)) => signed_headers = value,
            Some(("Signature", value)) => signature = value,
            _ => {}
        }
    }
    let all = [("Credential", credential), ("SignedHeaders", signed_headers), ("Signature", signature)];
    if let Some((name, _)) = all.into_iter().find(|(_, value)| value.is_empty()) {
        return Some(header_malformed(&format!("it has no {name}")));
    }
    let scope = match check_scope(credential, addressing, header_malformed) {
        Ok(scope) => scope,
        Err(refusal) => return Some(refusal),
    };
    let date = headers.get("x-amz-date").and_then(|date| date.to_str().ok());
    let Some(date) = date.filter(|date| is_date(date)) else {
        return Some(denied("a signed request needs x-amz-date, as in 20260131T235959Z"));
    };
    if let Err(reason) = check_day(&scope, date) {
        return Some(header_malformed(&reason));
    }
    let hash = headers.get("x-amz-content-sha256")?;
    (!hash.to_str().is_ok_and(is_payload)).then(|| {
        let reason = "x-amz-content-sha256 is neither a SHA-256 in hexadecimal digits nor a word that S3 has";
        S3Error::with_message(S3ErrorCode::InvalidArgument, reason)
    })
}

/// What `x-amz-content-sha256` may have.
fn is_payload(text: &str) -> bool {
    (text.len() == 64 && text.bytes().all(is_hex)) || PAYLOADS.contains(&text)
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'a'..=b'f')
}

/// Whether the credential is of the day on which the request was signed.
pub(super) fn check_day(scope: &CredentialScope<'_>, date: &str) -> Result<(), String> {
    match date.starts_with(scope.day) {
        true => Ok(()),
        false => Err(format!("its credential is of the day {:?}, and X-Amz-Date is {date:?}", scope.day)),
    }
}

fn check_url(uri: &Uri, addressing: &BucketAddressing) -> Option<S3Error> {
    let query = Url::parse(&format!("http://gateway/?{}", uri.query()?)).ok()?;
    let fields: HashMap<String, String> = query
        .query_pairs()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.into_owned()))
        .filter(|(name, _)| OF_URL.contains(&name.as_str()))
        .collect();
    if fields.is_empty() {
        return None;
    }
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    if let Some(name) = OF_URL.into_iter().find(|name| field(name).is_empty() && *name != "x-amz-expires") {
        return Some(url_malformed(&format!("it has no {name}")));
    }
    if !fields.contains_key("x-amz-expires") {
        return Some(url_malformed("it has no x-amz-expires"));
    }
    if field("x-amz-algorithm") != ALGORITHM {
        return Some(url_malformed("its x-amz-algorithm is not AWS4-HMAC-SHA256"));
    }
    let scope = match check_scope(field("x-amz-credential"), addressing, url_malformed) {
        Ok(scope) => scope,
        Err(refusal) => return Some(refusal),
    };
    if !is_date(field("x-amz-date")) {
        return Some(url_malformed("its x-amz-date is not written as 20260131T235959Z"));
    }
    if let Err(reason) = check_day(&scope, field("x-amz-date")) {
        return Some(url_malformed(&reason));
    }
    let signature = field("x-amz-signature");
    (signature.len() != 64 || !signature.bytes().all(is_hex)).then(|| {
        S3Error::with_message(S3ErrorCode::SignatureDoesNotMatch, "the URL's signature is malformed")
    })
}

/// What a credential for requests to this gateway is for: `KEY/20260131/us-east-1/s3/aws4_request`.
///
/// # Errors
/// As `refuse` makes one of the reason. It names the right region where that is the problem.
pub(super) fn check_scope<'a>(
    credential: &'a str,
    addressing: &BucketAddressing,
    refuse: impl Fn(&str) -> S3Error,
) -> S3Result<CredentialScope<'a>> {
    let mut words = credential.split('/');
    let [key_id, day, region, service, end] = [(); 5].map(|()| words.next().unwrap_or_default());
    if key_id.is_empty() || end != "aws4_request" || words.next().is_some() {
        return Err(refuse("its credential is not KEY/DATE/REGION/s3/aws4_request"));
    }
    if day.len() != 8 || !day.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse("the date of its credential is not written as 20260131"));
    }
    if service != "s3" {
        return Err(refuse(&format!(
            "its credential is for the service {service:?}, and this one is \"s3\""
        )));
    }
    if !addressing.is_region(region) {
        let mut refusal =
            refuse(&format!("the region {region:?} is wrong; expecting '{}'", addressing.region()));
        refusal.set_source(Box::new(WrongRegion));
        return Err(refusal);
    }
    Ok(CredentialScope { key_id, day, region })
}

fn is_date(text: &str) -> bool {
    text.len() == 16
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 => byte == b'T',
            15 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        })
}

fn header_malformed(reason: &str) -> S3Error {
    let text = format!("the authorization header is malformed; {reason}");
    S3Error::with_message(S3ErrorCode::AuthorizationHeaderMalformed, text)
}

pub(super) fn url_malformed(why: &str) -> S3Error {
    let text = format!("the presigned URL is malformed; {why}");
    S3Error::with_message(S3ErrorCode::AuthorizationQueryParametersError, text)
}

/// A method that S3 does not have, or not for what the path names.
pub(super) fn refused_method(method: &Method, uri: &Uri, level: PathLevel) -> Option<S3Error> {
    let is_known = [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE, Method::OPTIONS]
        .contains(method);
    if level == PathLevel::Service {
        return (*method != Method::GET && *method != Method::OPTIONS).then(|| not_allowed("GET"));
    }
    let is_object = level == PathLevel::Object;
    let is_nothing = *method == Method::POST && is_object && uri.query().is_none_or(str::is_empty);
    (!is_known || is_nothing).then(|| {
        not_allowed(if is_object { "GET, HEAD, PUT, DELETE" } else { "GET, HEAD, PUT, POST, DELETE" })
    })
}

#[cfg(test)]
mod tests {
    use super::super::addressing::AddressingStyle;
    use super::*;

    fn code_of(headers: &[(&'static str, &str)], uri: &str, region: Option<&str>) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let refused = malformed(&map, &uri.parse().unwrap(), &BucketAddressing::new(&[], region, false));
        refused.map(|refused| refused.code().as_str().to_owned())
    }

    #[test]
    fn malformed_signature_header_has_s3_code() {
        const DATE: (&str, &str) = ("x-amz-date", "20260131T235959Z");
        let header =
            |scope: &str| format!("AWS4-HMAC-SHA256 Credential=KEY/{scope},SignedHeaders=host, Signature=0");
        let code = |scope: &str, region| code_of(&[("authorization", &header(scope)), DATE], "/", region);
        assert_eq!(code("20260131/eu-west-1/s3/aws4_request", None), None);
        assert_eq!(code("20260131/eu-west-1/s3/aws4_request", Some("eu-west-1")), None);
        let malformed = Some("AuthorizationHeaderMalformed".to_owned());
        for scope in [
            "20260131/US/s3/aws4_request",
            "20260131//s3/aws4_request",
            "20260131/us-east-1/sts/aws4_request",
            "20260131/us-east-1/s3/aws3_request",
            "2026013/us-east-1/s3/aws4_request",
            "us-east-1/s3",
        ] {
            assert_eq!(code(scope, None), malformed, "{scope}");
        }
        assert_eq!(code("20260131/us-east-1/s3/aws4_request", Some("eu-west-1")), malformed);
        assert_eq!(code_of(&[("authorization", "AWS4-HMAC-SHA256 nonsense"), DATE], "/", None), malformed);
        let other = code_of(&[("authorization", "Bearer token"), DATE], "/", None);
        assert_eq!(other.as_deref(), Some("InvalidArgument"));
        let undated = code_of(&[("authorization", &header("20260131/us-east-1/s3/aws4_request"))], "/", None);
        assert_eq!(undated.as_deref(), Some("AccessDenied"));
        let of_another_day = code("20260130/eu-west-1/s3/aws4_request", None);
        assert_eq!(of_another_day, malformed);
        // Somebody else's to refuse.
        assert_eq!(code_of(&[], "/lake?list-type=2", None), None);
    }

    #[test]
    fn old_signature_is_an_invalid_request() {
        let old = Some("InvalidRequest".to_owned());
        assert_eq!(code_of(&[("authorization", "AWS KEY:signature")], "/", None), old);
        let url = "/lake/a?AWSAccessKeyId=KEY&Expires=1&Signature=0";
        assert_eq!(code_of(&[], url, None), old);
    }

    #[test]
    fn payload_hash_has_the_form_of_one() {
        let (hash, short) = ("0".repeat(64), "0".repeat(63));
        for fine in [hash.as_str(), "UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"] {
            assert!(is_payload(fine), "{fine}");
        }
        for wrong in ["", "invalid", "UNSIGNED", "STREAMING-", short.as_str(), &hash.replace('0', "A")] {
            assert!(!is_payload(wrong), "{wrong}");
        }
    }

    #[test]
    fn malformed_presigned_url_has_s3_code() {
        let signature = "0".repeat(64);
        let whole = format!(
            "/lake/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=KEY%2F20260131%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20260131T235959Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature={signature}"
        );
        let code = |url: &str| code_of(&[], url, None);
        assert_eq!(code(&whole), None);
        for (right, wrong) in [
            ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Algorithm=AWS4"),
            ("X-Amz-Algorithm=AWS4-HMAC-SHA256&", ""),
            ("%2Fus-east-1", "%2FUS"),
            ("X-Amz-Date=20260131T235959Z", "X-Amz-Date=today"),
            ("X-Amz-Date=20260131T235959Z", "X-Amz-Date=20260201T000000Z"),
            ("&X-Amz-SignedHeaders=host", ""),
            ("&X-Amz-Expires=60", ""),
        ] {
            let url = whole.replace(right, wrong);
            assert_eq!(code(&url).as_deref(), Some("AuthorizationQueryParametersError"), "{url}");
        }
        assert_eq!(code(&whole.replace(&signature, "7")).as_deref(), Some("SignatureDoesNotMatch"));
    }

    #[test]
    fn methods_that_s3_does_not_have_are_not_allowed() {
        let is_refused = |method: &str, target: &str, style: AddressingStyle| {
            let uri: Uri = target.parse().unwrap();
            let level = style.level(uri.path()).unwrap();
            refused_method(&method.parse().unwrap(), &uri, level).is_some()
        };
        for (method, target) in [
            ("PATCH", "/lake/a"),
            ("TRACE", "/lake"),
            ("PUT", "/"),
            ("HEAD", "/"),
            ("POST", "/lake/a"),
            ("POST", "/lake%2Fa"),
        ] {
            assert!(is_refused(method, target, AddressingStyle::Path), "{method} {target}");
        }
        for (method, target) in [
            ("GET", "/"),
            ("POST", "/lake/a?uploads"),
            ("POST", "/lake%2fa?uploads"),
            ("POST", "/lake?delete"),
            ("POST", "/lake"),
            ("DELETE", "/lake/a"),
        ] {
            assert!(!is_refused(method, target, AddressingStyle::Path), "{method} {target}");
        }
        let own = || AddressingStyle::Virtual("lake".to_owned());
        assert!(
            is_refused("POST", "/a", own())
                && !is_refused("PUT", "/", own())
                && !is_refused("PUT", "/a", own())
        );
    }
}
