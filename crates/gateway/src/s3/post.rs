//! PostObject: an upload by a browser's form. Its signature covers a policy, and the policy every field. Both are
//! looked at before a byte of the file is taken.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use reqwest::Url;
use s3s::auth::{Credentials, SecretKey};
use s3s::dto::Tagging;
use s3s::path::S3Path;
use s3s::post_policy::{PostPolicy, PostPolicyCondition};
use s3s::xml::{Deserialize as _, Deserializer};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};
use tokio::sync::Semaphore;

use super::access::{
    EXPECTED_OWNERS, KeyPermissions, NotedRequest, RequestNote, check_expected_owner, is_word_of_checksum,
};
use super::addressing::BucketAddressing;
use super::answers::{answer_of, denied, error, invalid, invalid_request, ms};
use super::authorization::{check_day, check_scope};
use super::input::{PromisedBody, check_storage_class, check_tags, encode_ascii, metadata};
use super::object::encoding_of;
use super::{acl, asking_headers, documents};
use crate::digests::{ALGORITHMS, ChecksumKind};
use crate::engine::{GatewayEngine, PutRequest, WriteConditions, WriteReceipt};
use crate::errors::GatewayError;
use crate::form::{self, FormReader, MAX_HEAD_BYTES, UploadForm};
use crate::headers::read;
use crate::model::{ObjectChecksums, ObjectHeaders, now_ms};

/// A file is kept in memory until all of it is there, since no form says how long it is.
const MAX_FILE_BYTES: usize = 16 << 20;
/// So many files at once: with the one above it bounds the memory.
const FILES: usize = 4;
/// Forms that are received at once, most of them from nobody knows whom: they have places of their own, so that they
/// take none from others.
const FORMS: usize = 32;
/// A client that sends nothing for so long is given up, and so is one whose fields or whose file are not there after so
/// long.
const SILENCE: Duration = Duration::from_secs(30);
const FIELDS_IN: Duration = Duration::from_secs(30);
const FILE_IN: Duration = Duration::from_secs(300);

/// See the module.
pub(crate) struct PostForms {
    engine: Arc<GatewayEngine>,
    permissions: Arc<KeyPermissions>,
    addressing: Arc<BucketAddressing>,
    places: Semaphore,
    files: Semaphore,
}

/// A body, and what has come of it.
struct IncomingBody {
    body: Body,
    buffer: BytesMut,
}

impl IncomingBody {
    /// Whether more came.
    async fn more(&mut self) -> S3Result<bool> {
        let broke_off = |reason: String| error(GatewayError::IncompleteBody(reason));
        match tokio::time::timeout(SILENCE, self.body.next()).await {
            Ok(Some(Ok(piece))) => {
                self.buffer.extend_from_slice(&piece);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Ok(Some(Err(reason))) => {
                tracing::debug!("a form did not come whole: {reason}");
                Err(broke_off("the form broke off before its end: send it again".to_owned()))
            }
            Err(_) => Err(broke_off(format!("nothing came of the form for {} s", SILENCE.as_secs()))),
        }
    }

    /// Fields first. What is left in the buffer is the file's beginning.
    async fn form(&mut self, boundary: &str) -> S3Result<UploadForm> {
        let mut reader = FormReader::new(boundary);
        loop {
            if let Some((form, end)) = reader.read(&self.buffer).map_err(malformed)? {
                drop(self.buffer.split_to(end));
                return Ok(form);
            }
            if self.buffer.len() > MAX_HEAD_BYTES {
                let code = S3ErrorCode::MaxPostPreDataLengthExceededError;
                return Err(S3Error::with_message(code, "a form has at most 64 KiB before its file"));
            }
            if !self.more().await? {
                return Err(error(GatewayError::IncompleteBody("the form ends before its file".to_owned())));
            }
        }
    }

    /// The file, up to the boundary behind it. Fields behind that don't count; they are read, so that the connection
    /// can be used again.
    async fn file(&mut self, boundary: &str, most_bytes: usize) -> S3Result<Bytes> {
        let end = format!("\r\n{boundary}");
        let mut looked_at = 0_usize;
        let file = loop {
            // The mark may have begun in what was looked at.
            let from = looked_at.saturating_sub(end.len());
            if let Some(position) = form::find(&self.buffer[from..], end.as_bytes()) {
                break self.buffer.split_to(from + position).freeze();
            }
            looked_at = self.buffer.len();
            if looked_at > most_bytes.saturating_add(end.len()) {
                return Err(too_large());
            }
            if !self.more().await? {
                return Err(error(GatewayError::IncompleteBody("the form has no end".to_owned())));
            }
        };
        if file.len() > most_bytes {
            return Err(too_large());
        }
        while self.buffer.len() <= MAX_HEAD_BYTES && self.more().await? {}
        Ok(file)
    }
}

/// A body that is no form, which has a code of its own in S3.
fn malformed(cause: GatewayError) -> S3Error {
    S3Error::with_message(S3ErrorCode::MalformedPOSTRequest, cause.to_string())
}

fn too_many() -> S3Error {
    error(GatewayError::Busy("too many forms are being received: try again".to_owned()))
}

async fn with_timeout<T>(limit: Duration, work: impl Future<Output = S3Result<T>>) -> S3Result<T> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("not all of the form came within {} s", limit.as_secs());
        Err(error(GatewayError::IncompleteBody(message)))
    })
}

fn too_large() -> S3Error {
    error(GatewayError::TooLarge(
        "the file is longer than the policy or this gateway (16 MiB by a form) lets it be".to_owned(),
    ))
}

impl PostForms {
    pub(crate) fn new(
        engine: Arc<GatewayEngine>,
        permissions: Arc<KeyPermissions>,
        addressing: Arc<BucketAddressing>,
    ) -> PostForms {
        let (places, files) = (Semaphore::new(FORMS), Semaphore::new(FILES));
        PostForms { engine, permissions, addressing, places, files }
    }

    /// Whether no form would be received now, or no file of one.
    pub(crate) fn are_full(&self) -> bool {
        self.places.available_permits() == 0 || self.files.available_permits() == 0
    }

    /// Answers an upload by a form.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        match self.post(request).await {
            Ok(response) => response,
            Err(refusal) => answer_of(refusal, self.addressing.region()).unwrap_or_else(|_| {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                response
            }),
        }
    }

    async fn post(&self, request: Request<Body>) -> S3Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        // A form names its key itself.
        let style = self.addressing.style_in(&parts.headers)?;
        let Ok(S3Path::Bucket { bucket }) = style.target(parts.uri.path()) else {
            return Err(S3Error::with_message(
                S3ErrorCode::MethodNotAllowed,
                "a form is sent to a bucket: POST /bucket",
            ));
        };
        check_expected_owner(&parts.headers, &parts.uri)?;
        asking_headers::check(&parts.method, &parts.uri, &parts.headers, &parts.extensions, &[])?;
        let length =
            parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > (MAX_HEAD_BYTES + MAX_FILE_BYTES) as u64) {
            return Err(too_large());
        }
        let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = form::boundary_of(content_type.unwrap_or_default()).map_err(malformed)?;
        let mut incoming = IncomingBody { body, buffer: BytesMut::new() };
        let Ok(_place) = self.places.try_acquire() else { return Err(too_many()) };
        let form = with_timeout(FIELDS_IN, incoming.form(&boundary)).await?;
        let credentials = signer(&self.permissions, &self.addressing, &form)?;
        if let Some(note) = parts.extensions.get::<RequestNote>() {
            *note.0.lock() =
                NotedRequest { operation: "PostObject".to_owned(), key_id: credentials.access_key.clone() };
        }
        let key = form.field("key").unwrap_or_default().replace("${filename}", &form.file_name);
        if key.is_empty() {
            return Err(invalid("the form has no field `key`"));
        }
        let policy = policy_of(form.field("policy").unwrap_or_default())?;
        let most_bytes = check_policy(&policy, &form, &bucket, &key, now_ms())?;
        self.permissions.write(Some(&credentials), &bucket, &key)?;
        let (put, promised) = put_of(&form)?;
        let success = PostSuccess::from_form(&form)?;

        let Ok(_room) = self.files.try_acquire() else { return Err(too_many()) };
        let file = with_timeout(FILE_IN, incoming.file(&boundary, most_bytes.min(MAX_FILE_BYTES))).await?;
        check_least(&policy, file.len())?;
        let put = PutRequest { size_bytes: file.len() as u64, ..put };
        let body = futures_util::stream::iter([Ok(file)]).boxed();
        let stored = self.engine.put(&bucket, &key, put, body, promised.verify()).await.map_err(error)?;
        let url = self.addressing.url_of(&parts.headers, &bucket, &key);
        success.answer(&bucket, &key, &url, &stored)
    }
}

/// Whose signature the form has. S3 takes those of version 2 here still: they cover the policy, which covers the form.
fn signer(
    permissions: &KeyPermissions,
    addressing: &BucketAddressing,
    form: &UploadForm,
) -> S3Result<Credentials> {
    let Some(policy) = form.field("policy") else {
        if ["x-amz-signature", "signature"].into_iter().any(|name| form.field(name).is_some()) {
            return Err(invalid("the form has a signature, and no field `policy`"));
        }
        return Err(denied("the form has no policy: this gateway takes nothing from strangers"));
    };
    let missing = |name: &str| invalid(format!("the form has a policy, and no field `{name}`"));
    let field = |name: &str| form.field(name).ok_or_else(|| missing(name));
    let (id, is_right) = match form.field("x-amz-signature") {
        Some(signature) => {
            if field("x-amz-algorithm")? != "AWS4-HMAC-SHA256" {
                return Err(invalid("the form's x-amz-algorithm can only be AWS4-HMAC-SHA256"));
            }
            let malformed = |reason: &str| invalid(format!("the form is malformed; {reason}"));
            let scope = check_scope(field("x-amz-credential")?, addressing, malformed)?;
            check_day(&scope, field("x-amz-date")?).map_err(|reason| malformed(&reason))?;
            let secret = secret_of(permissions, scope.key_id)?;
            let mut signing = format!("AWS4{secret}").into_bytes();
            // The last round signs: version 4 signs the policy as it was sent, in base64.
            for part in [scope.day, scope.region, "s3", "aws4_request", policy] {
                signing = hmac(MessageDigest::sha256(), &signing, part.as_bytes())?;
            }
            (scope.key_id, is_same(&base16ct::lower::encode_string(&signing), signature))
        }
        None => {
            let (id, signature) = (field("awsaccesskeyid")?, field("signature")?);
            let wanted =
                hmac(MessageDigest::sha1(), secret_of(permissions, id)?.as_bytes(), policy.as_bytes())?;
            (id, is_same(&STANDARD.encode(wanted), signature))
        }
    };
    match is_right {
        // The secret has done its work: permissions look at the id alone.
        true => Ok(Credentials { access_key: id.to_owned(), secret_key: SecretKey::from(String::new()) }),
        false => Err(S3Error::with_message(
            S3ErrorCode::SignatureDoesNotMatch,
            "the form's signature is not that of its policy",
        )),
    }
}

fn secret_of(permissions: &KeyPermissions, id: &str) -> S3Result<String> {
    permissions.secret(id).ok_or_else(|| {
        S3Error::with_message(S3ErrorCode::InvalidAccessKeyId, "this gateway has no such access key")
    })
}

/// For the fuzzer: any form, as far as it is looked at before its file. A policy in clear becomes one as browsers send
/// it.
pub(super) fn read_any(mut form: UploadForm, permissions: &KeyPermissions) {
    for (_, value) in
        form.fields.iter_mut().filter(|(name, value)| name == "policy" && value.starts_with('{'))
    {
        *value = STANDARD.encode(value.as_str());
    }
    let _ = signer(permissions, &BucketAddressing::default(), &form);
    let key = form.field("key").unwrap_or_default().replace("${filename}", &form.file_name);
    if let Ok(policy) = policy_of(form.field("policy").unwrap_or_default())
        && check_policy(&policy, &form, "lake", &key, 0).is_ok()
    {
        // Who signed it wanted it to be used for this bucket.
        let has_bucket = |condition: &PostPolicyCondition| match condition {
            PostPolicyCondition::Eq { field, value } => field == "bucket" && value == "lake",
            PostPolicyCondition::StartsWith { field, prefix } => {
                field == "bucket" && "lake".starts_with(prefix.as_str())
            }
            PostPolicyCondition::ContentLengthRange { .. } => false,
        };
        assert!(policy.conditions.iter().any(has_bucket));
        let _ = check_least(&policy, form.fields.len());
    }
    if let Ok((_, promised)) = put_of(&form) {
        let _ = promised.verify()(&[0; 16], &ObjectChecksums::default());
    }
    let stored = WriteReceipt { etag: "e".to_owned(), checksums: ObjectChecksums::default(), modified_ms: 0 };
    if let Ok(answer) = PostSuccess::from_form(&form)
        .and_then(|success| success.answer("lake", &key, "http://gateway/lake/key", &stored))
        && let Some(location) = answer.headers().get(LOCATION)
    {
        assert!(location.as_bytes().starts_with(b"http"));
    }
}

fn policy_of(text: &str) -> S3Result<PostPolicy> {
    let wrong = |reason: String| {
        S3Error::with_message(
            S3ErrorCode::InvalidPolicyDocument,
            format!("the policy can't be read: {reason}"),
        )
    };
    let policy = PostPolicy::from_base64(text).map_err(|reason| {
        tracing::debug!("a policy can't be read: {reason}");
        wrong("expected the base64 of JSON with `expiration` and `conditions`".to_owned())
    })?;
    // `s3s` reads times that S3 does not.
    let document: serde_json::Value = STANDARD
        .decode(text)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(|| wrong("it is no JSON".to_owned()))?;
    let expiration = document["expiration"].as_str().unwrap_or_default();
    match expiration.as_bytes() {
        [begin @ .., b'Z'] if begin.get(10) == Some(&b'T') => Ok(policy),
        _ => Err(wrong("its expiration is not written as 2030-01-01T00:00:00Z".to_owned())),
    }
}

fn hmac(digest: MessageDigest, key: &[u8], text: &[u8]) -> S3Result<Vec<u8>> {
    PKey::hmac(key)
        .and_then(|key| Signer::new(digest, &key)?.sign_oneshot_to_vec(text))
        .map_err(|cause| error(GatewayError::local("cannot verify a signature", cause)))
}

/// In a time that says nothing of how much of it is right.
fn is_same(wanted: &str, actual: &str) -> bool {
    wanted.len() == actual.len() && openssl::memcmp::eq(wanted.as_bytes(), actual.as_bytes())
}

/// Whether the form is what its policy allows, and how long the file may be.
fn check_policy(
    policy: &PostPolicy,
    form: &UploadForm,
    bucket: &str,
    key: &str,
    now_ms: i64,
) -> S3Result<usize> {
    if ms(&policy.expiration) <= now_ms {
        return Err(denied("the policy of the form has expired"));
    }
    let refused = |problem: &str| {
        S3Error::with_message(
            S3ErrorCode::AccessDenied,
            format!("the form is not what its policy allows: {}", problem.escape_debug()),
        )
    };
    let value_of = |field: &str| match field {
        "bucket" => Some(bucket),
        "key" => Some(key),
        other => form.field(other),
    };
    let (mut most_bytes, mut named) = (usize::MAX, Vec::new());
    for condition in &policy.conditions {
        match condition {
            PostPolicyCondition::Eq { field, value } => {
                if value_of(field) != Some(value.as_str()) {
                    return Err(refused(field));
                }
                named.push(field.as_str());
            }
            PostPolicyCondition::StartsWith { field, prefix } => {
                let value = value_of(field).unwrap_or_default();
                // POST Policy, Conditions: of a list of types, each has to begin so.
                let mut values = match field.as_str() {
                    "content-type" => value.split(',').map(str::trim_start).collect::<Vec<_>>(),
                    _ => vec![value],
                }
                .into_iter();
                if !values.all(|value| value.starts_with(prefix.as_str())) {
                    return Err(refused(field));
                }
                named.push(field.as_str());
            }
            PostPolicyCondition::ContentLengthRange { max, .. } => {
                most_bytes = most_bytes.min(usize::try_from(*max).unwrap_or(usize::MAX));
            }
        }
    }
    if !named.contains(&"bucket") {
        return Err(refused("it names no bucket"));
    }
    for (index, (name, _)) in form.fields.iter().enumerate() {
        // Of two fields with one name, the policy would speak of the one and S3 of the other.
        if form.fields[..index].iter().any(|(other, _)| other == name) {
            return Err(invalid(format!("the form has the field `{}` twice", name.escape_debug())));
        }
        if name == "bucket" && form.field("bucket") != Some(bucket) {
            return Err(refused("bucket"));
        }
        if !named.contains(&name.as_str()) && !needs_no_condition(name) {
            return Err(refused(&format!("it has no condition for the field {name}")));
        }
    }
    Ok(most_bytes)
}

/// Fields that say who signed, that S3 ignores, or that can only make it refuse a file.
fn needs_no_condition(name: &str) -> bool {
    matches!(name, "awsaccesskeyid" | "signature" | "policy" | "x-amz-signature" | "file")
        || name.starts_with("x-ignore-")
        || name.starts_with("x-amz-checksum-")
}

fn check_least(policy: &PostPolicy, length: usize) -> S3Result<()> {
    let is_short = |condition: &PostPolicyCondition| matches!(condition, PostPolicyCondition::ContentLengthRange { min, .. } if (length as u64) < *min);
    match policy.conditions.iter().any(is_short) {
        true => Err(S3Error::with_message(
            S3ErrorCode::EntityTooSmall,
            "the file is shorter than the policy lets it be",
        )),
        false => Ok(()),
    }
}

/// Fields of S3's that are read, or that change nothing: those of the signature, and what a request may say of itself.
fn is_known_field(name: &str) -> bool {
    matches!(
        name,
        "x-amz-algorithm"
            | "x-amz-credential"
            | "x-amz-date"
            | "x-amz-signature"
            | "x-amz-security-token"
            | "x-amz-acl"
            | "x-amz-storage-class"
            | "x-amz-request-payer"
            | "x-amz-sdk-checksum-algorithm"
            | "x-amz-user-agent"
    ) || name.starts_with("x-amz-meta-")
        || name.starts_with("x-amz-checksum-")
        || EXPECTED_OWNERS.contains(&name)
}

/// Refuses what would be refused as a header, and any other field of S3's that nobody here reads. Fields of other names
/// are the page's own.
fn check_fields(form: &UploadForm) -> S3Result<()> {
    let fields = || form.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    if fields().any(|(name, value)| EXPECTED_OWNERS.contains(&name) && !acl::is_owner(value)) {
        return Err(denied("the form expects another owner of the bucket"));
    }
    asking_headers::check_fields(fields())?;
    match fields().find(|(name, _)| name.starts_with("x-amz-") && !is_known_field(name)) {
        Some((name, _)) => Err(asking_headers::not_done(name)),
        None => Ok(()),
    }
}

/// The object that a form makes, without its size.
fn put_of(form: &UploadForm) -> S3Result<(PutRequest, PromisedBody)> {
    acl::check_canned(form.field("acl"))?;
    check_storage_class(form.field("x-amz-storage-class"))?;
    // Browsers send UTF-8. S3 keeps it as the encoded words that a PUT has, and returns these.
    let text =
        |name: &str| form.field(name).filter(|text| !text.is_empty()).map(str::to_owned).map(encode_ascii);
    check_fields(form)?;
    let mut checksums = form.fields.iter().filter_map(|(name, _)| name.strip_prefix("x-amz-checksum-"));
    if let Some(name) = checksums.find(|name| !is_word_of_checksum(name)) {
        return Err(invalid_request(format!(
            "x-amz-checksum-{name} is not a checksum that this gateway knows"
        )));
    }
    let user = form
        .fields
        .iter()
        // Encoded words are read as those of a header are.
        .filter_map(|(name, value)| {
            Some((name.strip_prefix("x-amz-meta-")?.to_owned(), read(value).into_owned()))
        });
    let headers = ObjectHeaders {
        content_type: text("content-type").or_else(|| form.file_type.clone().map(encode_ascii)),
        cache_control: text("cache-control"),
        content_disposition: text("content-disposition"),
        content_encoding: encoding_of(form.field("content-encoding")).map(encode_ascii),
        content_language: text("content-language"),
        expires: text("expires"),
        user: metadata(Some(user.collect())),
    };
    let tags = match form.field("tagging") {
        None => Vec::new(),
        Some(xml) => {
            let xml = documents::plain(xml.as_bytes());
            let tagging = Tagging::deserialize(&mut Deserializer::new(&xml)).map_err(|_| {
                S3Error::with_message(S3ErrorCode::MalformedXML, "the field `tagging` is not what S3 takes")
            })?;
            let pairs = tagging.tag_set.into_iter();
            check_tags(
                pairs.map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())).collect(),
            )?
        }
    };
    let mut checksums = ObjectChecksums::default();
    for algorithm in ALGORITHMS {
        if let Some(value) = form.field(&ChecksumKind::header(algorithm)) {
            checksums.set(algorithm, value.to_owned());
        }
    }
    let promised = PromisedBody::new(&hyper::HeaderMap::new(), form.field("content-md5"), checksums, None)?;
    let put = PutRequest {
        size_bytes: 0,
        headers,
        tags,
        conditions: WriteConditions::default(),
        algorithms: promised.algorithms.clone(),
    };
    Ok((put, promised))
}

/// What the browser gets when it is done.
enum PostSuccess {
    Redirect(Url),
    Status(StatusCode),
}

impl PostSuccess {
    fn from_form(form: &UploadForm) -> S3Result<PostSuccess> {
        let redirect = form.field("success_action_redirect").or_else(|| form.field("redirect"));
        if let Some(text) = redirect.filter(|text| !text.is_empty()) {
            // S3 ignores what is no address of the web.
            if let Some(url) = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https")) {
                return Ok(PostSuccess::Redirect(url));
            }
        }
        Ok(PostSuccess::Status(match form.field("success_action_status") {
            Some("200") => StatusCode::OK,
            Some("201") => StatusCode::CREATED,
            _ => StatusCode::NO_CONTENT,
        }))
    }

    /// `url` is the object's own.
    fn answer(self, bucket: &str, key: &str, url: &str, stored: &WriteReceipt) -> S3Result<Response<Body>> {
        let etag = format!("\"{}\"", stored.etag);
        let mut response = Response::new(Body::empty());
        match self {
            PostSuccess::Redirect(mut url) => {
                url.query_pairs_mut()
                    .append_pair("bucket", bucket)
                    .append_pair("key", key)
                    .append_pair("etag", &etag);
                *response.status_mut() = StatusCode::SEE_OTHER;
                let location = HeaderValue::try_from(url.as_str())
                    .map_err(|_| invalid("success_action_redirect is no address"))?;
                response.headers_mut().insert(LOCATION, location);
            }
            PostSuccess::Status(status) => {
                *response.status_mut() = status;
                // The object is stored. An answer without a header says so, and an error would not.
                if let Ok(location) = HeaderValue::try_from(url) {
                    response.headers_mut().insert(LOCATION, location);
                }
                if status == StatusCode::CREATED {
                    let text = format!(
                        // A bucket's name was checked before: it has nothing that XML would need escaped.
                        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<PostResponse><Location>{url}</Location><Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{etag}</ETag></PostResponse>",
                        url = escaped(url),
                        key = escaped(key)
                    );
                    *response.body_mut() = Body::from(text);
                    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
                }
            }
        }
        if let Ok(value) = HeaderValue::try_from(&etag) {
            response.headers_mut().insert(ETAG, value);
        }
        for algorithm in ALGORITHMS {
            let Some(checksum) = stored.checksums.get(algorithm) else { continue };
            let name = HeaderName::try_from(algorithm.header());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(checksum)) {
                response.headers_mut().insert(name, value);
            }
        }
        Ok(response)
    }
}

/// For XML, which has no control characters at all.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c if c.is_control() && !matches!(c, '\t' | '\n' | '\r') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn form(fields: &[(&str, &str)]) -> UploadForm {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        UploadForm { fields, ..UploadForm::default() }
    }

    fn policy(conditions: &str) -> PostPolicy {
        PostPolicy::from_json(&format!(
            "{{\"expiration\": \"2030-01-01T00:00:00Z\", \"conditions\": [{conditions}]}}"
        ))
        .unwrap()
    }

    #[test]
    fn policy_must_cover_all_form_fields() {
        let rules = policy(
            r#"{"bucket": "lake"}, ["starts-with", "$key", "a/"], {"acl": "private"}, ["content-length-range", 1, 9]"#,
        );
        let ask = |fields: &[(&str, &str)], bucket: &str, key: &str| {
            check_policy(&rules, &form(fields), bucket, key, 0)
                .map_err(|refusal| refusal.code().as_str().to_owned())
        };
        let fields = [("key", "a/b"), ("acl", "private"), ("policy", ""), ("x-ignore-me", "1")];
        assert_eq!(ask(&fields, "lake", "a/b"), Ok(9));
        let refused = Err("AccessDenied".to_owned());
        assert_eq!(ask(&fields, "pond", "a/b"), refused);
        assert_eq!(ask(&fields, "lake", "b/b"), refused);
        assert_eq!(ask(&fields[..1], "lake", "a/b"), refused);
        assert_eq!(ask(&[fields[0], fields[1], ("x-amz-meta-a", "b")], "lake", "a/b"), refused);
        assert_eq!(ask(&[fields[0], fields[1], ("bucket", "pond")], "lake", "a/b"), refused);
        let twice = [fields[0], fields[1], ("key", "b/b")];
        assert_eq!(ask(&twice, "lake", "a/b"), Err("InvalidArgument".to_owned()));
        let late = check_policy(&rules, &form(&fields), "lake", "a/b", 4_000_000_000_000);
        assert!(late.is_err());
        assert!(check_least(&rules, 0).is_err() && check_least(&rules, 1).is_ok());
        let anywhere = policy(r#"["starts-with", "$key", ""]"#);
        assert!(check_policy(&anywhere, &form(&fields[..1]), "lake", "a", 0).is_err());
    }

    #[test]
    fn fields_ask_for_what_headers_ask_for() {
        let refusal = |name: &str, value: &str| {
            let refused = put_of(&form(&[("key", "a"), (name, value)])).err();
            refused.map_or_else(String::new, |refused| refused.code().as_str().to_owned())
        };
        for (name, value, code) in [
            ("if-none-match", "*", "NotImplemented"),
            ("if-match", "\"etag\"", "NotImplemented"),
            ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT", "NotImplemented"),
            ("x-amz-copy-source", "/lake/b", "NotImplemented"),
            ("x-amz-copy-source-range", "bytes=0-1", "NotImplemented"),
            ("x-amz-tagging", "a=b", "NotImplemented"),
            ("x-amz-website-redirect-location", "/b", "NotImplemented"),
            ("x-amz-rename-source", "/lake/b", "NotImplemented"),
            ("x-amz-object-lock-mode", "GOVERNANCE", "NotImplemented"),
            ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
            ("x-amz-grant-read", "id=\"somebody\"", "NotImplemented"),
            ("x-amz-something-new", "1", "NotImplemented"),
            ("x-amz-server-side-encryption-customer-key", "a", "InvalidArgument"),
            ("x-amz-acl", "public-read", "NotImplemented"),
            ("acl", "public-read", "NotImplemented"),
            ("x-amz-storage-class", "GLACIER", "InvalidStorageClass"),
            ("x-amz-expected-bucket-owner", "somebody", "AccessDenied"),
            ("x-amz-checksum-sha512", "AAAA", "InvalidRequest"),
            ("x-amz-acl", "private", ""),
            ("x-amz-storage-class", "STANDARD", ""),
            ("x-amz-expected-bucket-owner", "underlay", ""),
            ("x-amz-meta-if-match", "*", ""),
            ("x-amz-security-token", "token", ""),
            ("x-ignore-me", "1", ""),
            ("submit", "Upload", ""),
        ] {
            assert_eq!(refusal(name, value), code, "{name}: {value}");
        }
        let tagging = "<Tagging><TagSet><Tag><Key>aws:a</Key><Value>b</Value></Tag></TagSet></Tagging>";
        assert_eq!(refusal("tagging", tagging), "InvalidTag");
    }

    #[test]
    fn form_credential_for_another_scope_is_refused() {
        let permissions = KeyPermissions::new(&[], &HashMap::new());
        let addressing = BucketAddressing::new(&[], Some("eu-central-1"), false);
        let refusal = |credential: &str, date: &str| {
            let fields = [
                ("policy", "e30="),
                ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
                ("x-amz-credential", credential),
                ("x-amz-date", date),
                ("x-amz-signature", "0"),
            ];
            signer(&permissions, &addressing, &form(&fields)).err().unwrap()
        };
        let date = "20260131T235959Z";
        for (credential, date, is_region) in [
            ("KEY/20260131/us-east-1/s3/aws4_request", date, true),
            ("KEY/20260131//s3/aws4_request", date, true),
            ("KEY/20260131/eu-central-1/iam/aws4_request", date, false),
            ("KEY/20260131/eu-central-1/s3", date, false),
            ("KEY//eu-central-1/s3/aws4_request", date, false),
            ("KEY/20260131/eu-central-1/s3/aws4_request", "20260201T000000Z", false),
        ] {
            let refusal = refusal(credential, date);
            assert_eq!(refusal.code(), &S3ErrorCode::InvalidArgument, "{credential}: {refusal:?}");
            assert_eq!(refusal.source().is_some(), is_region, "{credential}: {refusal:?}");
        }
        // The scope is right, and there is no such key.
        let unknown = refusal("KEY/20260131/eu-central-1/s3/aws4_request", date);
        assert_eq!(unknown.code(), &S3ErrorCode::InvalidAccessKeyId);
    }

    #[test]
    fn form_answer_has_file_checksum() {
        let mut checksums = ObjectChecksums::default();
        checksums.set(ChecksumKind::Crc32c, "8TDyHg==".to_owned());
        let stored = WriteReceipt { etag: "e".to_owned(), checksums, modified_ms: 0 };
        for status in ["200", "201", "204"] {
            let success = PostSuccess::from_form(&form(&[("success_action_status", status)])).unwrap();
            let answer = success.answer("lake", "a", "http://gateway/lake/a", &stored).unwrap();
            assert_eq!(answer.headers()["x-amz-checksum-crc32c"], "8TDyHg==", "{status}");
            assert!(!answer.headers().contains_key("x-amz-checksum-crc32"), "{status}");
        }
    }

    #[test]
    fn malformed_form_body_has_s3_code() {
        let unnamed = "--b\r\nContent-Disposition: form-data\r\n\r\nvalue\r\n--b--\r\n";
        for body in ["no form", unnamed] {
            let refusal = FormReader::new("--b").read(body.as_bytes()).err().map(malformed).unwrap();
            assert_eq!(refusal.code(), &S3ErrorCode::MalformedPOSTRequest, "{body}");
            assert_eq!(refusal.status_code(), Some(StatusCode::BAD_REQUEST), "{body}");
        }
        let refusal = form::boundary_of("multipart/form-data").map_err(malformed).unwrap_err();
        assert_eq!(refusal.code(), &S3ErrorCode::MalformedPOSTRequest);
    }

    #[test]
    fn names_of_objects_stay_text_in_the_answer() {
        assert_eq!(escaped("a<b>&\u{1}\n"), "a&lt;b&gt;&amp;\u{fffd}\n");
    }
}
