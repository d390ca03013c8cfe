//! Translates keys that end in a slash on their way to and from an S3 store. Consoles, S3A and others mark directories
//! with an empty object of such a key, `a/`, in nearly every bucket. `object_store` takes it for `a`, so it gets a
//! [word](super::names) for the empty segment after the slash. Below `object_store`, where requests leave and answers
//! come in, this module takes the word out again: others see the key itself.
//!
//! Keys with an empty segment elsewhere keep the word on the way, since some stores refuse `a//b` and others take it
//! for `a/b`. Objects that others have put under such a key are hidden: `object_store` would refuse the whole listing.
//!
//! This module also passes on three more things that `object_store` does not let through. It refuses header values that
//! are not ASCII: so it gets them in ASCII, and they are [read](as_sent) above it. It does not know `Expires`: so that
//! is [user metadata](crate::headers::EXPIRES) above. And it shows no status: so refusals become errors whose type says
//! so.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, EXPIRES, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};
use object_store::ClientOptions;
use object_store::aws::{AmazonS3, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use underlay_sync::Mutex;

use super::crypto::StoreCrypto;
use super::late::{changes_object, seen_on_wire};
use super::names::{EMPTY, EMPTY_ENCODED, MARK_ENCODED, NO_KEY};
use super::refusals::{may_refuse, refused};

const DIGEST: &str = "x-amz-content-sha256";
const COPY_SOURCE: &str = "x-amz-copy-source";

/// [`EXPIRES`](crate::headers::EXPIRES) as a header.
const EXPIRES_META: HeaderName = HeaderName::from_static("x-amz-meta-%underlay-expires");

/// How a store is reached so. Its clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct SigningTransport {
    /// Belongs to the client that was made last, the store's own. Earlier clients ask for its credentials; holding
    /// those, they would keep each other alive forever.
    last: Arc<Mutex<StoreSlot>>,
}

/// Filled once the store has been made.
type StoreSlot = Arc<OnceLock<RequestSigner>>;

#[derive(Debug)]
struct RequestSigner {
    credentials: AwsCredentialProvider,
    region: String,
}

#[derive(Debug)]
struct SigningClient {
    client: HttpClient,
    signing: StoreSlot,
}

impl SigningTransport {
    /// Has requests to this store signed as the store itself signs them.
    pub(super) fn sign_for(&self, store: &AmazonS3, region: &str) {
        let credentials = Arc::clone(store.credentials());
        // It is made once.
        let _ = self.last.lock().set(RequestSigner { credentials, region: region.to_owned() });
    }
}

impl HttpConnector for SigningTransport {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let signing = StoreSlot::default();
        *self.last.lock() = Arc::clone(&signing);
        Ok(HttpClient::new(SigningClient { client, signing }))
    }
}

#[async_trait]
impl HttpService for SigningClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let query = request.uri().query().unwrap_or_default();
        let lists = query.split('&').any(|part| part == "list-type=2");
        let request = match (rewritten(&request), self.signing.get()) {
            (Some(mut rewritten), Some(signing)) => {
                sign(&mut rewritten, signing).await?;
                rewritten
            }
            _ => request,
        };
        let changes = changes_object(&request);
        let answering = self.client.execute(request);
        // The store's raw answer counts, before any processing.
        let mut answer = if changes { seen_on_wire(answering).await? } else { answering.await? };
        into_ascii(answer.headers_mut());
        rename(answer.headers_mut(), &EXPIRES, &EXPIRES_META);
        if may_refuse(answer.status()) {
            return told_apart(answer).await;
        }
        if lists && answer.status().is_success() { with_words(answer).await } else { Ok(answer) }
    }
}

/// Before the base64 of a header's value that is not ASCII.
const BYTES: &str = "%underlay-bytes-";

/// Writes values that are not ASCII in ASCII, so that `object_store` takes them.
fn into_ascii(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        if value.to_str().is_err() {
            let ascii = format!("{BYTES}{}", STANDARD.encode(value.as_bytes()));
            if let Ok(ascii) = HeaderValue::try_from(ascii) {
                *value = ascii;
            }
        }
    }
}

/// A header's value as the store has sent it: UTF-8 as a rule, and else what HTTP had before, ISO 8859-1 (RFC 9110,
/// section 5.5).
pub(super) fn as_sent(value: &str) -> Cow<'_, str> {
    let bytes = value.strip_prefix(BYTES).and_then(|text| STANDARD.decode(text).ok());
    match bytes.map(String::from_utf8) {
        None => Cow::Borrowed(value),
        Some(Ok(text)) => Cow::Owned(text),
        Some(Err(other)) => Cow::Owned(other.as_bytes().iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// An answer that may be a refusal: as the error that says so, or as it is.
async fn told_apart(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = answer.into_parts();
    let bytes = body.bytes().await?;
    match refused(parts.status, &String::from_utf8_lossy(&bytes)) {
        // `object_store` sends no request of this kind again.
        Some(refused) => Err(HttpError::new(HttpErrorKind::Unknown, refused)),
        None => Ok(HttpResponse::from_parts(parts, bytes.into())),
    }
}

/// Signs a request anew, whose digest is known.
async fn sign(request: &mut HttpRequest, signing: &RequestSigner) -> Result<(), HttpError> {
    let failed = |error: object_store::Error| HttpError::new(HttpErrorKind::Unknown, error);
    let credential = signing.credentials.get_credential().await.map_err(failed)?;
    let digest = request.headers().get(DIGEST).and_then(|hex| bytes_of(hex.to_str().ok()?));
    request.headers_mut().remove(AUTHORIZATION);
    AwsAuthorizer::new(&credential, "s3", &signing.region)
        .with_crypto(&StoreCrypto)
        // Without a digest it was not signed before either.
        .with_sign_payload(digest.is_some())
        .try_authorize(request, digest.as_deref())
        .map_err(failed)
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    (hex.len() == 64).then(|| base16ct::mixed::decode_vec(hex).ok()).flatten()
}

/// The request as the store is to have it; `None` if it is so already.
fn rewritten(request: &HttpRequest) -> Option<HttpRequest> {
    let by_key = strip_key_word(request);
    if !request.headers().contains_key(&EXPIRES_META) {
        return by_key;
    }
    let mut made = by_key.unwrap_or_else(|| request.clone());
    rename(made.headers_mut(), &EXPIRES_META, &EXPIRES);
    Some(made)
}

/// Gives a header another name. A former header of that name is gone.
fn rename(headers: &mut HeaderMap, from: &HeaderName, to: &HeaderName) {
    headers.remove(to);
    if let Some(value) = headers.remove(from) {
        headers.insert(to, value);
    }
}

/// The same request for the key itself, or for no more than it wants; `None` if it is so already.
fn strip_key_word(request: &HttpRequest) -> Option<HttpRequest> {
    let uri = request.uri();
    let path = without_word(uri.path(), "/");
    let query = uri.query().and_then(|query| query_without_word(query).or_else(|| query_of_escaped(query)));
    let source = request.headers().get(COPY_SOURCE);
    let source = source.and_then(|source| without_word(source.to_str().ok()?, "/"));
    if path.is_none() && query.is_none() && source.is_none() {
        return None;
    }
    let mut target = path.unwrap_or(uri.path()).to_owned();
    if let Some(query) = query.as_deref().or(uri.query()) {
        target.push('?');
        target.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.parse().ok()?);
    let mut made = request.clone();
    *made.uri_mut() = Uri::from_parts(parts).ok()?;
    if let Some(source) = source {
        made.headers_mut().insert(COPY_SOURCE, source.parse().ok()?);
    }
    Some(made)
}

/// A listing's start is a key as well.
fn query_without_word(query: &str) -> Option<String> {
    let mut has_word = false;
    let parts: Vec<&str> = query
        .split('&')
        .map(|part| match without_word(part, "%2F").filter(|_| part.starts_with("start-after=")) {
            Some(made) => {
                has_word = true;
                made
            }
            None => part,
        })
        .collect();
    has_word.then(|| parts.join("&"))
}

/// A listing of a folder from where it has the [names that stand for others](super::names::offset_of_escaped): it wants
/// no more than these, and a prefix of a part of a name is none that `object_store` can ask for.
fn query_of_escaped(query: &str) -> Option<String> {
    let value_of = |name: &str| query.split('&').find_map(|part| part.strip_prefix(name));
    let start = value_of("start-after=")?;
    if start.strip_suffix(MARK_ENCODED)? != value_of("prefix=").unwrap_or_default() {
        return None;
    }
    let prefix = format!("prefix={start}");
    let others =
        query.split('&').filter(|part| !part.starts_with("start-after=") && !part.starts_with("prefix="));
    Some(others.chain([prefix.as_str()]).collect::<Vec<_>>().join("&"))
}

/// `a/` of `a/WORD`.
fn without_word<'a>(text: &'a str, separator: &str) -> Option<&'a str> {
    text.strip_suffix(EMPTY_ENCODED).filter(|rest| rest.ends_with(separator))
}

/// A listing whose keys `object_store` can take.
async fn with_words(answer: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = answer.into_parts();
    let bytes = body.bytes().await?;
    let made = std::str::from_utf8(&bytes).ok().and_then(keys_with_words);
    Ok(HttpResponse::from_parts(parts, made.map_or_else(|| bytes.into(), Into::into)))
}

/// For the fuzzer: any text as a listing.
pub(crate) fn read_any(listing: &str) {
    let _ = keys_with_words(listing);
    let _ = as_sent(listing);
    let _ = refused(hyper::StatusCode::BAD_REQUEST, listing);
    crate::headers::read_any(listing);
}

/// `None` if it can take all of them as they are.
fn keys_with_words(xml: &str) -> Option<String> {
    const BEGIN: &str = "<Key>";
    let (mut made, mut rest, mut is_changed) = (String::new(), xml, false);
    while let Some((before, tail)) = rest.split_once(BEGIN) {
        let Some((key, after)) = tail.split_once("</Key>") else { break };
        made.push_str(before);
        made.push_str(BEGIN);
        let last = key.split('/').count() - 1;
        for (index, segment) in key.split('/').enumerate() {
            if index > 0 {
                made.push('/');
            }
            is_changed |= push_segment(&mut made, segment, index == last);
        }
        made.push_str("</Key>");
        rest = after;
    }
    made.push_str(rest);
    is_changed.then_some(made)
}

/// Whether it had to be changed. A name that no path can have gets one that no key leads to, and so does an object that
/// is not where the gateway would put it.
fn push_segment(made: &mut String, segment: &str, is_last: bool) -> bool {
    match segment {
        "" if is_last => made.push_str(EMPTY),
        "" | "." | ".." => {
            made.push_str(NO_KEY);
            made.push_str(segment);
        }
        EMPTY if is_last => {
            made.push_str(NO_KEY);
            made.push_str(segment);
        }
        other if has_control(other) => {
            made.push_str(NO_KEY);
            let shown: String = other.chars().map(|one| if one.is_control() { '?' } else { one }).collect();
            // As the store has written it: `&#10;`.
            made.push_str(&shown.replace("&#", "&amp;#"));
        }
        other => {
            made.push_str(other);
            return false;
        }
    }
    true
}

/// Whether this text of XML has a control character, written as it is or by its number.
fn has_control(text: &str) -> bool {
    let by_number = text.split("&#").skip(1).any(|tail| {
        let Some((number, _)) = tail.split_once(';') else { return false };
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        code.is_ok_and(|code| code < 0x20 || code == 0x7f)
    });
    by_number || text.contains(|one: char| one.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;
    use object_store::path::Path;
    use proptest::prelude::*;

    use super::*;
    use crate::store::{BackendKind, key_of, path_of};

    fn request(method: &str, target: &str) -> HttpRequest {
        let builder = hyper::Request::builder().method(method).uri(format!("http://store:9{target}"));
        builder.body(HttpRequestBody::empty()).unwrap()
    }

    fn target_of(request: &HttpRequest) -> String {
        request.uri().path_and_query().unwrap().to_string()
    }

    #[test]
    fn requests_are_for_the_key_itself() {
        let word = EMPTY_ENCODED;
        for (asked, expected) in [
            (format!("/lake/a/{word}"), "/lake/a/".to_owned()),
            (format!("/lake/a/{word}?uploads"), "/lake/a/?uploads".to_owned()),
            (format!("/lake/{word}/{word}"), format!("/lake/{word}/")),
            (
                format!("/lake?list-type=2&prefix=a%2F&start-after=a%2F{word}"),
                "/lake?list-type=2&prefix=a%2F&start-after=a%2F".to_owned(),
            ),
            (
                "/lake?list-type=2&prefix=a%2F&start-after=a%2F%25underlay-".to_owned(),
                "/lake?list-type=2&prefix=a%2F%25underlay-".to_owned(),
            ),
            (
                "/lake?list-type=2&continuation-token=x&start-after=%25underlay-".to_owned(),
                "/lake?list-type=2&continuation-token=x&prefix=%25underlay-".to_owned(),
            ),
        ] {
            let made = strip_key_word(&request("GET", &asked)).unwrap();
            assert_eq!(target_of(&made), expected, "{asked}");
        }
        let mut copy = request("PUT", "/lake/b");
        copy.headers_mut().insert(COPY_SOURCE, format!("/lake/a/{word}").parse().unwrap());
        assert_eq!(strip_key_word(&copy).unwrap().headers()[COPY_SOURCE], "/lake/a/");
        // These stay, and so do others' own names of any form.
        for target in [
            "/lake/a",
            "/lake/%25underlay-empty/a",
            "/lake/a%25underlay-empty",
            "/lake/a/%25underlay-literal-%25underlay-empty",
            "/lake?list-type=2&prefix=a%2F%25underlay-empty",
            "/lake?list-type=2&prefix=a%2F&start-after=a%2Fb%2F%25underlay-",
            "/lake?list-type=2&prefix=a%2F&start-after=a%2Fb",
        ] {
            assert!(strip_key_word(&request("GET", target)).is_none(), "{target}");
        }
    }

    #[test]
    fn expires_goes_to_the_store_and_comes_back() {
        let mut put = request("PUT", "/lake/a");
        assert!(rewritten(&put).is_none());
        put.headers_mut().insert(EXPIRES_META, HeaderValue::from_static("0"));
        let mut headers = rewritten(&put).unwrap().headers().clone();
        assert_eq!((headers.len(), &headers[EXPIRES]), (1, &HeaderValue::from_static("0")));
        // A header of others with our name.
        headers.insert(EXPIRES_META, HeaderValue::from_static("others"));
        rename(&mut headers, &EXPIRES, &EXPIRES_META);
        assert_eq!((headers.len(), &headers[EXPIRES_META]), (1, &HeaderValue::from_static("0")));
    }

    #[test]
    fn header_values_that_are_not_ascii_get_through() {
        let values: [&[u8]; 4] = ["é".as_bytes(), b"caf\xe9", b"plain", b"=?UTF-8?B?w6k=?="];
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-amz-meta-u", HeaderValue::from_bytes(value).unwrap());
        }
        into_ascii(&mut headers);
        let found = headers.get_all("x-amz-meta-u").iter().map(|value| as_sent(value.to_str().unwrap()));
        assert_eq!(found.collect::<Vec<_>>(), ["é", "café", "plain", "=?UTF-8?B?w6k=?="]);
    }

    #[test]
    fn listings_have_words_for_what_no_path_can_have() {
        let listed = |keys: &[&str]| -> String {
            keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>0</Size></Contents>")).collect()
        };
        let words_of = |keys: &[&str]| keys_with_words(&listed(keys));
        assert_eq!(words_of(&["a", "a/b&amp;c", "%underlay-empty/a"]), None);
        assert_eq!(words_of(&["a", "a/"]), Some(listed(&["a", "a/%underlay-empty"])));
        // These are hidden, and the rest of the listing is not.
        for key in ["a//b", "/a", "a//", "a/./b", "..", "a&#10;b", "a&#xA;b", "a\u{7f}", "a/%underlay-empty"]
        {
            let text = words_of(&[key]).unwrap();
            let location = text.split_once("<Key>").unwrap().1.split_once("</Key>").unwrap().0;
            let path = Path::parse(location.replace("&amp;", "&")).unwrap();
            assert_ne!(path_of(&key_of(&path), BackendKind::S3).unwrap(), path, "{key}");
        }
        // A broken answer is for `object_store` to refuse.
        assert_eq!(keys_with_words("<Key>a"), None);
    }

    proptest! {
        /// An object in a store's listing is hidden, or is where the gateway asks for it.
        #[test]
        fn listed_key_round_trips_to_request(key in "([a./%é ~-]|%underlay-empty){1,12}") {
            let text = format!("<Key>{key}</Key>");
            let text = keys_with_words(&text).unwrap_or(text);
            let location = text.strip_prefix("<Key>").and_then(|text| text.strip_suffix("</Key>")).unwrap();
            let path = Path::parse(location).unwrap();
            let known = key_of(&path);
            if path_of(&known, BackendKind::S3).is_ok_and(|found| found == path) {
                let target = format!("/lake/{}", path.as_ref().replace('%', "%25").replace(' ', "%20").replace('é', "%C3%A9"));
                let asked = request("GET", &target);
                let asked = target_of(&strip_key_word(&asked).unwrap_or(asked));
                prop_assert_eq!(asked, format!("/lake/{}", key.replace('%', "%25").replace(' ', "%20").replace('é', "%C3%A9")));
            } else {
                let is_odd = |part: &str| matches!(part, "" | "." | "..") || part.contains("%underlay-");
                prop_assert!(key.trim_end_matches('/').split('/').any(is_odd) || key.ends_with("//"), "{}", key);
            }
        }

        #[test]
        fn arbitrary_listing_never_panics(text in "(<Key>|</Key>|&#|x?[0-9]{1,12}|;|/|\\PC){0,40}") {
            let _ = keys_with_words(&text);
        }
    }
}
