//! Listings in S3's three forms.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::S3Frontend;
use super::acl::owner;
use super::answers::{coverage, error, etag, invalid, time};
use crate::digests::ALGORITHMS;
use crate::engine::{ListEntry, ListPage, ListRequest};
use crate::model::ObjectRecord;
use crate::url_escapes;

type ListingAnswer<T> = S3Result<S3Response<T>>;

/// S3's own.
const MAX_KEYS: i32 = 1000;

/// `max-keys`: S3's limit, even if the client asks for more.
fn most(asked: Option<i32>) -> S3Result<(i32, usize)> {
    let asked = asked.unwrap_or(MAX_KEYS);
    let limit = asked.min(MAX_KEYS);
    let count = usize::try_from(limit).map_err(|_| invalid("max-keys can't be negative"))?;
    Ok((limit, count))
}

/// Names as the client wants them: XML can't have every character, so most ask for percent-encoding.
pub(super) struct NameEncoding(bool);

impl NameEncoding {
    pub(super) fn from_request(asked: Option<&EncodingType>) -> S3Result<NameEncoding> {
        match asked.map(EncodingType::as_str) {
            None => Ok(NameEncoding(false)),
            Some("url") => Ok(NameEncoding(true)),
            Some(_) => Err(invalid("the encoding type can only be url")),
        }
    }

    /// In the first form of a listing clients expect the prefix as they sent it; what XML can't have is encoded all the
    /// same.
    fn prefix(&self, text: String) -> String {
        match text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n')) {
            true => self.name(text),
            false => text,
        }
    }

    pub(super) fn name(&self, text: String) -> String {
        if self.0 { url_escapes::escape_in_listing(&text) } else { text }
    }
}

fn object(key: String, record: &ObjectRecord, owner: Option<Owner>) -> Object {
    let algorithms: Vec<ChecksumAlgorithm> = ALGORITHMS
        .into_iter()
        .filter(|algorithm| record.checksums.get(*algorithm).is_some())
        .map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name()))
        .collect();
    Object {
        key: Some(key),
        e_tag: Some(etag(&record.etag)),
        last_modified: Some(time(record.modified_ms)),
        size: i64::try_from(record.size_bytes).ok(),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        checksum_type: coverage(&record.checksums),
        checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
        owner,
        ..Object::default()
    }
}

fn split(
    listing: ListPage,
    encoding: &NameEncoding,
    owner: Option<&Owner>,
) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for entry in listing.entries {
        match entry {
            ListEntry::Object(key, record) => {
                objects.push(object(encoding.name(key), &record, owner.cloned()))
            }
            ListEntry::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(encoding.name(prefix)) }),
        }
    }
    (objects, prefixes)
}

async fn list(front: &S3Frontend, bucket: &str, request: &ListRequest) -> S3Result<ListPage> {
    // No page has room for anything, and S3 says then that there is no more.
    if request.most == 0 {
        front.engine.check_bucket(bucket).map_err(error)?;
        return Ok(ListPage::default());
    }
    front.engine.list(bucket, request).await.map_err(error)
}

pub(super) async fn objects(
    front: &S3Frontend,
    request: S3Request<ListObjectsInput>,
) -> ListingAnswer<ListObjectsOutput> {
    let input = request.input;
    let prefix = input.prefix.clone().unwrap_or_default();
    let ((limit, most), encoding) =
        (most(input.max_keys)?, NameEncoding::from_request(input.encoding_type.as_ref())?);
    let asked = ListRequest {
        prefix,
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        after: input.marker.clone().filter(|marker| !marker.is_empty()),
        most,
    };
    let listing = list(front, &input.bucket, &asked).await?;
    let is_truncated = listing.is_truncated;
    let last = listing.entries.last().map(|entry| encoding.name(entry.name().to_owned()));
    let owner = owner();
    let (contents, common_prefixes) = split(listing, &encoding, Some(&owner));
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.prefix(asked.prefix)),
        marker: Some(encoding.name(input.marker.unwrap_or_default())),
        max_keys: Some(limit),
        is_truncated: Some(is_truncated),
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        // Without a delimiter clients take the last key.
        next_marker: last.filter(|_| is_truncated && asked.delimiter.is_some()),
        delimiter: asked.delimiter.map(|delimiter| encoding.name(delimiter)),
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

pub(super) async fn objects_v2(
    front: &S3Frontend,
    request: S3Request<ListObjectsV2Input>,
) -> ListingAnswer<ListObjectsV2Output> {
    let input = request.input;
    let prefix = input.prefix.clone().unwrap_or_default();
    let ((limit, most), encoding) =
        (most(input.max_keys)?, NameEncoding::from_request(input.encoding_type.as_ref())?);
    // `start-after` counts for the first page alone: a token says where a later one begins.
    let after = match &input.continuation_token {
        Some(token) => {
            Some(position(token).ok_or_else(|| invalid("the continuation token is none of this gateway's"))?)
        }
        None => input.start_after.clone().filter(|after| !after.is_empty()),
    };
    let asked = ListRequest {
        prefix,
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        after,
        most,
    };
    let listing = list(front, &input.bucket, &asked).await?;
    let is_truncated = listing.is_truncated;
    let last = listing.entries.last().map(|entry| token(entry.name()));
    let owner = input.fetch_owner.unwrap_or(false).then(owner);
    let (contents, common_prefixes) = split(listing, &encoding, owner.as_ref());
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.name(asked.prefix)),
        max_keys: Some(limit),
        key_count: i32::try_from(contents.len() + common_prefixes.len()).ok(),
        continuation_token: input.continuation_token,
        is_truncated: Some(is_truncated),
        next_continuation_token: last.filter(|_| is_truncated),
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        delimiter: asked.delimiter.map(|delimiter| encoding.name(delimiter)),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(|after| encoding.name(after)),
        request_charged: None,
    }))
}

/// Where the next page begins, as a text that clients hand back.
pub(super) fn token(name: &str) -> String {
    URL_SAFE_NO_PAD.encode(name)
}

pub(super) fn position(token: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()
}

/// Every object has one version. Clients ask for versions to empty a bucket.
pub(super) async fn versions(
    front: &S3Frontend,
    request: S3Request<ListObjectVersionsInput>,
) -> ListingAnswer<ListObjectVersionsOutput> {
    let input = request.input;
    let prefix = input.prefix.clone().unwrap_or_default();
    let ((limit, most), encoding) =
        (most(input.max_keys)?, NameEncoding::from_request(input.encoding_type.as_ref())?);
    let asked = ListRequest {
        prefix,
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        // With one version for each key, the next page begins behind the key, whatever the version's marker is.
        after: input.key_marker.clone().filter(|marker| !marker.is_empty()),
        most,
    };
    let listing = list(front, &input.bucket, &asked).await?;
    let is_truncated = listing.is_truncated;
    let last = listing.entries.last().map(|entry| encoding.name(entry.name().to_owned()));
    let owner = owner();
    let (objects, common_prefixes) = split(listing, &encoding, Some(&owner));
    let versions = objects.into_iter().map(|object| ObjectVersion {
        key: object.key,
        e_tag: object.e_tag,
        is_latest: Some(true),
        last_modified: object.last_modified,
        owner: object.owner,
        size: object.size,
        // S3's name for the version of an object in a bucket without versions.
        version_id: Some("null".to_owned()),
        storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
        ..ObjectVersion::default()
    });
    Ok(S3Response::new(ListObjectVersionsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.name(asked.prefix)),
        key_marker: Some(encoding.name(input.key_marker.unwrap_or_default())),
        version_id_marker: input.version_id_marker,
        max_keys: Some(limit),
        is_truncated: Some(is_truncated),
        versions: Some(versions.collect()),
        common_prefixes: Some(common_prefixes),
        next_key_marker: last.filter(|_| is_truncated),
        next_version_id_marker: is_truncated.then(|| "null".to_owned()),
        delimiter: asked.delimiter.map(|delimiter| encoding.name(delimiter)),
        encoding_type: input.encoding_type,
        ..ListObjectVersionsOutput::default()
    }))
}
