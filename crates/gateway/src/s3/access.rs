//! Who may do what. Signatures are `s3s`'s; here are the secrets for them and the grants of the configuration. An
//! operation's row in the [table of operations](super) says which right it needs.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use hyper::header::{CONTENT_RANGE, HeaderMap, HeaderName};
use hyper::{Method, Uri};
use reqwest::Url;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result, TrailingHeaders};
use underlay_sync::{Mutex, RwLock};

use super::acl::is_owner;
use super::addressing::BucketAddressing;
use super::answers::{denied, invalid_request};
use super::{MAX_DOCUMENT_BYTES, authorization, queries, query_headers};
use crate::config::{AccessKey, KeyGrant};
use crate::digests::ChecksumKind;
use crate::url_escapes;

/// The keys with their secrets and grants.
pub(crate) struct KeyPermissions {
    keys: RwLock<HashMap<String, (String, Vec<KeyGrant>)>>,
}

/// A request's operation, for the access log.
#[derive(Clone, Default)]
pub(crate) struct RequestNote(pub(crate) Arc<Mutex<NotedRequest>>);

#[derive(Clone, Default)]
pub(crate) struct NotedRequest {
    pub(crate) operation: String,
    pub(crate) key_id: String,
}

impl KeyPermissions {
    pub(crate) fn new(keys: &[AccessKey], secrets: &HashMap<String, String>) -> KeyPermissions {
        let permissions = KeyPermissions { keys: RwLock::default() };
        permissions.replace(keys, secrets);
        permissions
    }

    /// These count from now on, and no others.
    pub(crate) fn replace(&self, keys: &[AccessKey], secrets: &HashMap<String, String>) {
        let entry = |key: &AccessKey| {
            let secret = secrets.get(&key.id).cloned().unwrap_or_default();
            (key.id.clone(), (secret, key.grants.clone()))
        };
        let keys = keys.iter().map(entry).collect();
        *self.keys.write() = keys;
    }

    /// Of an access key.
    pub(super) fn secret(&self, id: &str) -> Option<String> {
        self.keys.read().get(id).map(|(secret, _)| secret.clone()).filter(|secret| !secret.is_empty())
    }

    fn may(&self, credentials: Option<&Credentials>, allows: impl Fn(&KeyGrant) -> bool) -> S3Result<()> {
        let keys = self.keys.read();
        let grants = credentials.and_then(|credentials| keys.get(&credentials.access_key));
        match grants {
            Some((_, grants)) if grants.iter().any(allows) => Ok(()),
            Some(_) => Err(denied("this access key may not do that here")),
            None => Err(denied("the request is not signed with an access key of this gateway")),
        }
    }

    pub(super) fn read(&self, credentials: Option<&Credentials>, bucket: &str, key: &str) -> S3Result<()> {
        self.may(credentials, |grant| grant.read && covers(grant, bucket, key))
    }

    pub(super) fn write(&self, credentials: Option<&Credentials>, bucket: &str, key: &str) -> S3Result<()> {
        self.may(credentials, |grant| grant.write && covers(grant, bucket, key))
    }

    /// Listing shows names, so the grant has to cover all that the prefix does.
    pub(super) fn list(&self, credentials: Option<&Credentials>, bucket: &str, prefix: &str) -> S3Result<()> {
        self.read(credentials, bucket, prefix)
    }

    /// Anything in the bucket: it may be known that it is there.
    pub(super) fn see(&self, credentials: Option<&Credentials>, bucket: &str) -> S3Result<()> {
        self.may(credentials, |grant| grant.bucket.as_deref().is_none_or(|own| own == bucket))
    }

    /// A key of this gateway, with any permissions.
    pub(super) fn known(&self, credentials: Option<&Credentials>) -> S3Result<()> {
        match credentials.is_some_and(|credentials| self.keys.read().contains_key(&credentials.access_key)) {
            true => Ok(()),
            false => Err(denied("the request is not signed with an access key of this gateway")),
        }
    }

    /// To make and remove buckets takes the right to write to all of it.
    pub(super) fn own(&self, credentials: Option<&Credentials>, bucket: &str) -> S3Result<()> {
        self.write(credentials, bucket, "")
    }
}

fn covers(grant: &KeyGrant, bucket: &str, key: &str) -> bool {
    grant.bucket.as_deref().is_none_or(|own| own == bucket) && key.starts_with(&grant.prefix)
}

/// Proven facts of a request that goes on without its signature.
#[derive(Clone)]
pub(super) struct VerifiedSignature {
    pub(super) credentials: Option<Credentials>,
    pub(super) trailing_headers: Option<TrailingHeaders>,
}

/// Secrets for `s3s` to verify signatures with.
pub(super) struct SigningSecrets(pub(super) Arc<KeyPermissions>);

#[async_trait]
impl S3Auth for SigningSecrets {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.0.secret(access_key) {
            Some(secret) => Ok(SecretKey::from(secret)),
            None => Err(S3Error::with_message(
                S3ErrorCode::InvalidAccessKeyId,
                "this gateway has no such access key",
            )),
        }
    }
}

/// Lets signed requests in. The row of the operation checks what they may do to the names concerned.
pub(super) struct SignedAccess;

#[async_trait]
impl S3Access for SignedAccess {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        // One that was rewritten has left its signature behind, once it had been verified.
        let verified = context.extensions_mut().get::<VerifiedSignature>().cloned();
        let is_verified = verified.is_some();
        let rewritten_by = verified.and_then(|verified| verified.credentials);
        let credentials = context.credentials().or(rewritten_by.as_ref());
        let (operation, key_id) = (
            context.s3_op().name().to_owned(),
            credentials.map(|credentials| credentials.access_key.clone()),
        );
        if let Some(note) = context.extensions_mut().get::<RequestNote>() {
            *note.0.lock() = NotedRequest { operation, key_id: key_id.clone().unwrap_or_default() };
        }
        if is_verified {
            return Ok(());
        }
        check_signed(context.credentials(), context.headers(), context.uri())
    }
}

/// Whether a request has a kind of signature that this gateway takes, over everything that it has to cover. `s3s` has
/// verified it already.
pub(super) fn check_signed(
    credentials: Option<&Credentials>,
    headers: &HeaderMap,
    uri: &Uri,
) -> S3Result<()> {
    check_expected_owner(headers, uri)?;
    if let Some(refused) = authorization::old_signature(headers, uri) {
        return Err(refused);
    }
    match credentials {
        None => Err(denied("the request has to be signed")),
        Some(_) => all_signed(headers, uri),
    }
}

/// A client that names an owner wants nothing done to anybody else's bucket. Presigned URLs name it in their query.
pub(super) fn check_expected_owner(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    let in_query: Vec<(String, String)> = query_headers::pairs(uri).collect();
    for name in EXPECTED_OWNERS {
        let mut values = headers.get_all(name).iter();
        let mut parameters = in_query.iter().filter(|(other, _)| other == name);
        if values.any(|value| !value.to_str().is_ok_and(is_owner))
            || parameters.any(|(_, value)| !is_owner(value))
        {
            return Err(denied("the request expects another owner of the bucket"));
        }
    }
    Ok(())
}

/// Headers that name the owner of a bucket.
pub(super) const EXPECTED_OWNERS: [&str; 2] =
    ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"];

/// A week, as of S3.
const MAX_LIFETIME_S: i64 = 604_800;

/// Why a request is refused before anything else is checked. Its host may be somebody's bucket, S3 does not have its
/// method, or nobody can verify its signature. Its body may have no known length, which S3 refuses too, its document
/// may be too long, or its presigned URL's lifetime none of S3's.
pub(crate) fn refused_at_once(
    method: &Method,
    headers: &HeaderMap,
    uri: &Uri,
    addressing: &BucketAddressing,
) -> Option<S3Error> {
    let style = match addressing.style_in(headers) {
        Ok(style) => style,
        Err(refused) => return Some(refused),
    };
    let level = match style.level(uri.path()) {
        Ok(level) => level,
        Err(refused) => return Some(refused),
    };
    if let Some(refused) = authorization::refused_method(method, uri, level) {
        return Some(refused);
    }
    if let Some(refused) = queries::refused_query(method, uri, level) {
        return Some(refused);
    }
    if let Some(refused) = refused_header(headers) {
        return Some(refused);
    }
    // RFC 9110, section 14.5: a client that writes a part of an object must not replace the whole.
    if *method == Method::PUT && headers.contains_key(CONTENT_RANGE) {
        let reason =
            "S3 has no PUT of a part of an object by Content-Range: send the whole, or use UploadPart";
        return Some(invalid_request(reason));
    }
    if let Some(refused) = authorization::malformed(headers, uri, addressing) {
        return Some(refused);
    }
    if headers.contains_key(hyper::header::TRANSFER_ENCODING)
        && !headers.contains_key("x-amz-decoded-content-length")
        && headers.contains_key("x-amz-content-sha256")
    {
        let reason = "a body needs a length, by Content-Length or x-amz-decoded-content-length";
        return Some(S3Error::with_message(S3ErrorCode::NotImplemented, reason));
    }
    if is_long_document(method, headers, uri) {
        let reason = format!("a document has at most {MAX_DOCUMENT_BYTES} bytes");
        return Some(S3Error::with_message(S3ErrorCode::MaxMessageLengthExceeded, reason));
    }
    refused_lifetime(uri)
}

/// Words that may come behind `x-amz-checksum-`.
pub(super) fn is_word_of_checksum(name: &str) -> bool {
    matches!(name, "algorithm" | "mode" | "type") || ChecksumKind::from_name(name).is_some()
}

/// A header that `s3s` would pass over or misread: an unknown checksum, or a copy source with an incomplete escape.
pub(super) fn refused_header(headers: &HeaderMap) -> Option<S3Error> {
    let mut checksums = headers.keys().filter_map(|name| name.as_str().strip_prefix("x-amz-checksum-"));
    if let Some(name) = checksums.find(|name| !is_word_of_checksum(name)) {
        let reason = format!("x-amz-checksum-{name} is not a checksum that this gateway knows");
        return Some(S3Error::with_message(S3ErrorCode::InvalidRequest, reason));
    }
    let source = headers.get("x-amz-copy-source")?.as_bytes();
    (!url_escapes::has_whole_escapes(source)).then(|| {
        let reason = "x-amz-copy-source is not percent-encoded text";
        S3Error::with_message(S3ErrorCode::InvalidArgument, reason)
    })
}

/// Sub-resources whose PUT has a document as its body, whether or not the gateway has such an operation.
const DOCUMENTS: [&str; 20] = [
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "retention",
    "tagging",
    "website",
];

/// `s3s` stops reading such a one, and calls it an error of its own.
fn is_long_document(method: &Method, headers: &HeaderMap, uri: &Uri) -> bool {
    let is_document = match *method {
        // Forms have gone another way.
        Method::POST => true,
        Method::PUT => queries::has_name(uri, &DOCUMENTS),
        _ => false,
    };
    let is_long = |name: &str| {
        let length = headers.get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        length.is_some_and(|length| length > MAX_DOCUMENT_BYTES as u64)
    };
    is_document && (is_long("content-length") || is_long("x-amz-decoded-content-length"))
}

/// A lifetime that a presigned URL can't have. One of no seconds, or less, is over when it begins.
fn refused_lifetime(uri: &Uri) -> Option<S3Error> {
    let query = Url::parse(&format!("http://gateway/?{}", uri.query()?)).ok()?;
    let lifetimes = query.query_pairs().filter(|(name, _)| name.eq_ignore_ascii_case("X-Amz-Expires"));
    lifetimes.map(|(_, value)| value).find_map(|value| match value.parse::<i64>() {
        Ok(..=0) => Some(denied("the presigned URL is good for no time at all: X-Amz-Expires")),
        Ok(1..=MAX_LIFETIME_S) => None,
        _ => {
            let reason = "X-Amz-Expires is a number of seconds, and at most a week (604800)";
            Some(authorization::url_malformed(reason))
        }
    })
}

/// Whether the signature covers all that decides the request's effect: the host, and every `x-amz-` header. `s3s`
/// verifies the headers that the signature names and lets others be added. An added `x-amz-copy-source` would turn a
/// presigned upload into a copy of anything that its signer may read.
fn all_signed(headers: &HeaderMap, uri: &Uri) -> S3Result<()> {
    // As `s3s` reads it: names may be encoded as well. Most requests have no query, and parsing one takes longer than
    // the rest of this.
    let query = uri.query().map(|query| Url::parse(&format!("http://gateway/?{query}"))).transpose();
    let query = query.map_err(|_| denied("the query of the request makes no sense"))?;
    let values_of = |wanted: &str| -> Vec<String> {
        query
            .iter()
            .flat_map(Url::query_pairs)
            .filter(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.into_owned())
            .collect()
    };
    let is_presigned =
        !values_of("X-Amz-Signature").is_empty() || !values_of("X-Amz-SignedHeaders").is_empty();
    if let Some(refused) = refused_lifetime(uri) {
        return Err(refused);
    }
    let of_header: Vec<_> = headers.get_all("authorization").iter().collect();
    let list = match (is_presigned, of_header.as_slice()) {
        (true, []) => match values_of("X-Amz-SignedHeaders").as_slice() {
            [list] => Some(list.clone()),
            _ => None,
        },
        (false, [value]) => value.to_str().ok().and_then(signed_headers_of),
        // Which of two signatures counts, nobody should have to know.
        _ => None,
    };
    let Some(list) = list else {
        return Err(denied(
            "the request has to have one signature, in its URL or in its Authorization header",
        ));
    };
    // In lower case only: `s3s` looks others up as they are, finds nothing, and leaves them out of what it verifies.
    let is_signed = |name: &str| list.split(';').any(|signed| signed == name);
    if !is_signed("host") {
        return Err(denied("the signature does not cover the Host header"));
    }
    match headers.keys().map(HeaderName::as_str).find(|name| name.starts_with("x-amz-") && !is_signed(name)) {
        Some(name) => Err(S3Error::with_message(
            S3ErrorCode::AccessDenied,
            format!("the request has a header that its signature does not cover: {name}"),
        )),
        None => Ok(()),
    }
}

/// For the fuzzer: any head of a request. An admitted signature lists every header that counts.
pub(super) fn read_any(headers: &HeaderMap, uri: &Uri) {
    let _ = refused_at_once(&Method::POST, headers, uri, &BucketAddressing::default());
    if all_signed(headers, uri).is_err() {
        return;
    }
    let of_header = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let query = Url::parse(&format!("http://gateway/?{}", uri.query().unwrap_or_default()));
    let of_query: Vec<String> =
        query.iter().flat_map(Url::query_pairs).map(|(_, value)| value.into_owned()).collect();
    let counts = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-amz-"));
    for name in counts.chain(["host"]) {
        assert!(of_header.contains(name) || of_query.iter().any(|value| value.contains(name)), "{name}");
    }
}

/// `SignedHeaders` of an Authorization header of version 4, if it is there once.
fn signed_headers_of(authorization: &str) -> Option<String> {
    let (_, fields) = authorization.trim_start().split_once(char::is_whitespace)?;
    let mut lists = fields.split(',').filter_map(|field| field.trim().strip_prefix("SignedHeaders="));
    let list = lists.next()?.to_owned();
    lists.next().is_none().then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SecretPlace;

    #[test]
    fn grant_covers_only_its_bucket_and_prefix() {
        let grant = |bucket: &str, prefix: &str, write| KeyGrant {
            bucket: Some(bucket.to_owned()),
            prefix: prefix.to_owned(),
            read: true,
            write,
        };
        let key = AccessKey {
            name: "a".to_owned(),
            id: "KEY".to_owned(),
            secret: SecretPlace::Environment("NONE".to_owned()),
            grants: vec![grant("lake", "tmp/", true), grant("lake", "", false)],
        };
        let permissions =
            KeyPermissions::new(&[key], &HashMap::from([("KEY".to_owned(), "secret".to_owned())]));
        let credentials_of =
            |id: &str| Credentials { access_key: id.to_owned(), secret_key: SecretKey::from("secret") };
        let us = credentials_of("KEY");
        assert!(permissions.write(Some(&us), "lake", "tmp/a").is_ok());
        assert!(permissions.write(Some(&us), "lake", "other").is_err());
        assert!(permissions.read(Some(&us), "lake", "other").is_ok());
        assert!(permissions.read(Some(&us), "pond", "tmp/a").is_err());
        assert!(permissions.own(Some(&us), "lake").is_err());
        assert!(permissions.see(Some(&us), "lake").is_ok() && permissions.see(Some(&us), "pond").is_err());
        assert!(
            permissions.known(Some(&us)).is_ok()
                && permissions.known(Some(&credentials_of("OTHER"))).is_err()
        );
        assert!(permissions.known(None).is_err());
        assert!(permissions.read(None, "lake", "a").is_err());
        assert!(permissions.read(Some(&credentials_of("OTHER")), "lake", "a").is_err());
    }

    #[test]
    fn meaningful_headers_must_be_signed() {
        let asked = |headers: &[(&'static str, &str)], uri: &str| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, value.parse().unwrap());
            }
            all_signed(&map, &uri.parse().unwrap()).is_ok()
        };
        let header_for = |signed: &str| {
            format!(
                "AWS4-HMAC-SHA256 Credential=K/20260101/us-east-1/s3/aws4_request, SignedHeaders={signed}, Signature=0"
            )
        };
        let (usual, bare) = (header_for("host;x-amz-date"), header_for("x-amz-date"));
        assert!(asked(&[("authorization", &usual), ("x-amz-date", "d"), ("range", "bytes=0-")], "/lake/a"));
        assert!(!asked(&[("authorization", &usual), ("x-amz-copy-source", "/lake/b")], "/lake/a"));
        assert!(!asked(&[("authorization", &usual), ("x-amz-meta-a", "b")], "/lake/a"));
        assert!(!asked(&[("authorization", &bare), ("x-amz-date", "d")], "/lake/a"));
        assert!(!asked(&[], "/lake/a"));
        let upper = header_for("host;X-Amz-Copy-Source");
        assert!(!asked(&[("authorization", &upper), ("x-amz-copy-source", "/lake/b")], "/lake/a"));

        let url = "/lake/a?X-Amz-SignedHeaders=host&X-Amz-Signature=0";
        assert!(asked(&[], url));
        for (seconds, is_fine) in
            [("1", true), ("604800", true), ("604801", false), ("0", false), ("-7", false), ("", false)]
        {
            assert_eq!(asked(&[], &format!("{url}&X-Amz-Expires={seconds}")), is_fine, "{seconds}");
        }
        assert!(!asked(&[("x-amz-copy-source", "/lake/b")], url));
        assert!(!asked(&[("x-amz-tagging", "a=b")], url));
        let both = "/lake/a?X-Amz-SignedHeaders=host%3Bx-amz-tagging&X-Amz-Signature=0";
        assert!(asked(&[("x-amz-tagging", "a=b")], both));
        // Neither a second list nor a second signature hides the one that counts.
        assert!(!asked(
            &[("x-amz-tagging", "a=b")],
            &format!("{url}&X-Amz-SignedHeaders=host%3Bx-amz-tagging")
        ));
        let all = header_for("host;x-amz-tagging");
        assert!(!asked(&[("authorization", &all), ("x-amz-tagging", "a=b")], url));
        let hidden = "/lake/a?X-Amz-Signed%48eaders=host&X-Amz-Sign%61ture=0";
        assert!(!asked(&[("authorization", &all), ("x-amz-tagging", "a=b")], hidden));
    }
}
