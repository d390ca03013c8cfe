//! Operations on objects.

use futures_util::StreamExt as _;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::header::{EXPIRES, HeaderMap, HeaderValue};
use hyper::http::Extensions;
use s3s::dto::*;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::answers::{
    checksums_of, coverage, error, etag, invalid, invalid_request, ms, time, with_checksums,
};
use super::input::{self, PromisedBody, check_version};
use super::preconditions::ObjectPreconditions;
use super::rewriting::headers_with;
use super::{S3Frontend, acl, ranges};
use crate::digests::ALGORITHMS;
use crate::engine::{self, CopyRequest, EtagCondition, MAX_PARTS, PutRequest, ShortRange, WriteConditions};
use crate::errors::GatewayError;
use crate::model::ObjectRecord;

type ObjectAnswer<T> = S3Result<S3Response<T>>;

/// S3's content type for an object without one.
const NO_TYPE: &str = "binary/octet-stream";

/// Reads the headers that S3 keeps from any of its inputs. `Expires` is apart: `s3s` knows it as a date only.
macro_rules! headers_of {
    ($input:expr, $expires:expr) => {
        $crate::model::ObjectHeaders {
            content_type: $input.content_type.clone().filter(|text| !text.is_empty()),
            cache_control: $input.cache_control.clone(),
            content_disposition: $input.content_disposition.clone(),
            content_encoding: $crate::s3::object::encoding_of($input.content_encoding.as_deref()),
            content_language: $input.content_language.clone(),
            expires: $expires,
            user: $crate::s3::input::metadata($input.metadata.clone()),
        }
    };
}

pub(super) use headers_of;

/// The `Expires` of a request. S3 keeps any text: what is no date counts as a time that has passed (RFC 9111, section
/// 5.3).
pub(super) fn expires(headers: &HeaderMap, extensions: &Extensions) -> S3Result<Option<String>> {
    let values = headers_with(headers, extensions, EXPIRES.as_str()).get_all(EXPIRES);
    let texts = values.iter().map(|value| std::str::from_utf8(value.as_bytes()));
    let texts: std::result::Result<Vec<&str>, _> = texts.collect();
    let texts = texts.map_err(|_| invalid("the header expires is not UTF-8"))?;
    let text = texts.join(", ");
    Ok((!text.is_empty()).then(|| input::encode_ascii(text)))
}

/// `aws-chunked` is how a body came, and no property of the object.
pub(super) fn encoding_of(text: Option<&str>) -> Option<String> {
    let codings: Vec<&str> = text?
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!codings.is_empty()).then(|| codings.join(", "))
}

/// The range that a request asks for, with the number of parts if it asked for one of them.
fn asked_range(
    record: &ObjectRecord,
    range: Option<&Range>,
    part: Option<i32>,
) -> S3Result<(std::ops::Range<u64>, bool, Option<i32>)> {
    let size = record.size_bytes;
    if let Some(part) = part {
        if range.is_some() {
            return Err(invalid_request("a request asks for a range or for a part, not both"));
        }
        let count = record.part_sizes_bytes.len().max(1);
        let index = usize::try_from(part).ok().filter(|part| (1..=count).contains(part));
        let Some(index) = index else {
            return Err(error(GatewayError::InvalidPart("the object has no such part".to_owned())));
        };
        if record.part_sizes_bytes.is_empty() {
            // The whole is its first part. Of nothing, no Content-Range can say which bytes they are.
            return Ok((0..size, size > 0, None));
        }
        let begin: u64 = record.part_sizes_bytes[..index - 1].iter().sum();
        return Ok((begin..begin + record.part_sizes_bytes[index - 1], true, i32::try_from(count).ok()));
    }
    match range {
        None => Ok((0..size, false, None)),
        // No Content-Range can say which bytes these are.
        Some(range) if ranges::is_end_of_nothing(range, size) => Ok((0..0, false, None)),
        Some(range) => {
            let covered = ranges::within(range, size);
            Ok((covered.ok_or_else(|| error(GatewayError::InvalidRange { size_bytes: size }))?, true, None))
        }
    }
}

/// What is wrong with a request regardless of the object.
fn check_part(part: Option<i32>) -> S3Result<()> {
    match part {
        Some(part) if !(1..=i32::from(MAX_PARTS)).contains(&part) => {
            Err(invalid("a part has a number from 1 to 10000"))
        }
        _ => Ok(()),
    }
}

/// Sets what GET and HEAD have in common.
macro_rules! describe {
    ($output:expr, $record:expr, $range:expr, $is_part:expr, $parts:expr, $with_checksums:expr) => {
        let (record, range) = (&$record, &$range);
        $output.accept_ranges = Some("bytes".to_owned());
        $output.content_length = i64::try_from(range.end - range.start).ok();
        $output.e_tag = Some(etag(&record.etag));
        $output.last_modified = Some(time(record.modified_ms));
        $output.content_type =
            Some(record.headers.content_type.clone().unwrap_or_else(|| NO_TYPE.to_owned()));
        $output.cache_control = record.headers.cache_control.clone();
        $output.content_disposition = record.headers.content_disposition.clone();
        $output.content_encoding = record.headers.content_encoding.clone();
        $output.content_language = record.headers.content_language.clone();
        $output.metadata = Some(record.headers.user.iter().cloned().collect());
        $output.parts_count = $parts;
        if $is_part {
            let last = range.end.saturating_sub(1);
            $output.content_range = Some(format!("bytes {}-{last}/{}", range.start, record.size_bytes));
        }
        // The checksum is the whole object's.
        if $with_checksums && !$is_part {
            with_checksums!($output, record.checksums);
            $output.checksum_type = coverage(&record.checksums);
        }
    };
}

/// The writer's value, which need not be a date, unless the request asks for another one.
fn expires_of(record: &ObjectRecord, asked: Option<&Timestamp>) -> HeaderMap {
    let text = record.headers.expires.as_deref().filter(|_| asked.is_none());
    text.and_then(|text| HeaderValue::from_str(text).ok()).map(|value| (EXPIRES, value)).into_iter().collect()
}

/// Replaces headers of the answer to HEAD by those that the request asks for. `s3s` does so for GET alone.
macro_rules! replace_headers {
    ($output:expr, $input:expr, $($field:ident from $asked:ident),*) => {
        $(if let Some(value) = &$input.$asked {
            if HeaderValue::from_str(value).is_err() {
                let name = stringify!($asked).replace('_', "-");
                return Err(invalid_request(format!("the value of {name} can't be a header")));
            }
            $output.$field = Some(value.clone());
        })*
        $output.expires = $input.response_expires.clone();
    };
}

fn wants_checksums(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

fn status(is_part: bool) -> hyper::StatusCode {
    if is_part { hyper::StatusCode::PARTIAL_CONTENT } else { hyper::StatusCode::OK }
}

pub(super) async fn get(
    front: &S3Frontend,
    request: S3Request<GetObjectInput>,
) -> ObjectAnswer<GetObjectOutput> {
    let input = &request.input;
    check_version(input.version_id.as_deref())?;
    check_part(input.part_number)?;
    let from = |size_bytes: u64| match &input.range {
        Some(Range::Int { first, .. }) => *first,
        Some(Range::Suffix { length }) => size_bytes.saturating_sub(*length),
        None => 0,
    };
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    let resolved = match asked.may_spare_the_body() {
        // It may want no bytes.
        true => front.engine.resolve(&input.bucket, &input.key).await,
        false => front.engine.resolve_to_read(&input.bucket, &input.key, from).await,
    };
    let resolved = resolved.map_err(error)?;
    let record = &resolved.record;
    asked.check_read(record)?;
    let range = input.range.as_ref().filter(|_| asked.range_holds(record));
    let (range, is_part, parts) = asked_range(record, range, input.part_number)?;
    let mut output = GetObjectOutput::default();
    describe!(output, *record, range, is_part, parts, wants_checksums(input.checksum_mode.as_ref()));
    if let Some(checksums) = checksums_of_part(record, input.part_number, input.checksum_mode.as_ref()) {
        with_checksums!(output, checksums);
        output.checksum_type = coverage(&checksums);
    }
    output.tag_count = i32::try_from(record.tags.len()).ok().filter(|count| *count > 0);
    let expires = expires_of(record, input.response_expires.as_ref());
    let streamed = |body: engine::AnswerBody| {
        Body::http_body_unsync(StreamBody::new(body.map(|piece| piece.map(Frame::data))))
    };
    let body = match front.engine.is_short(&range) {
        true => match front.engine.read(&input.bucket, &input.key, resolved, range).await.map_err(error)? {
            // With a status that tells how it went.
            ShortRange::Whole(bytes) => Body::from(bytes),
            ShortRange::Coming(body) => streamed(body),
        },
        false => {
            let mut body = front.engine.body(&input.bucket, &input.key, resolved, range);
            // Waited for, so that a store that is away has a status and not a body that breaks off.
            let first = body.next().await.transpose().map_err(error)?;
            streamed(Box::pin(futures_util::stream::iter(first.map(Ok)).chain(body)))
        }
    };
    output.body = Some(StreamingBlob::from(body));
    let mut response = S3Response::with_status(output, status(is_part));
    response.headers = expires;
    Ok(response)
}

pub(super) async fn head(
    front: &S3Frontend,
    request: S3Request<HeadObjectInput>,
) -> ObjectAnswer<HeadObjectOutput> {
    let input = &request.input;
    check_version(input.version_id.as_deref())?;
    check_part(input.part_number)?;
    let record = front.engine.resolve(&input.bucket, &input.key).await.map_err(error)?.record;
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    asked.check_read(&record)?;
    let range = input.range.as_ref().filter(|_| asked.range_holds(&record));
    let (range, is_part, parts) = asked_range(&record, range, input.part_number)?;
    let mut output = HeadObjectOutput::default();
    describe!(output, record, range, is_part, parts, wants_checksums(input.checksum_mode.as_ref()));
    if let Some(checksums) = checksums_of_part(&record, input.part_number, input.checksum_mode.as_ref()) {
        with_checksums!(output, checksums);
        output.checksum_type = coverage(&checksums);
    }
    replace_headers!(
        output,
        input,
        content_type from response_content_type,
        content_language from response_content_language,
        cache_control from response_cache_control,
        content_disposition from response_content_disposition,
        content_encoding from response_content_encoding
    );
    let mut response = S3Response::with_status(output, status(is_part));
    response.headers = expires_of(&record, input.response_expires.as_ref());
    if !record.tags.is_empty() {
        // `s3s` has no field for it here.
        response.headers.insert("x-amz-tagging-count", record.tags.len().into());
    }
    Ok(response)
}

/// Of the part that a request asks for, in the algorithm of the whole object's.
fn checksums_of_part(
    record: &ObjectRecord,
    part: Option<i32>,
    mode: Option<&ChecksumMode>,
) -> Option<crate::model::ObjectChecksums> {
    let index = usize::try_from(part?).ok()?.checked_sub(1)?;
    if !wants_checksums(mode) {
        return None;
    }
    part_checksums(record, index)
}

/// Of a part, counted from zero.
fn part_checksums(record: &ObjectRecord, index: usize) -> Option<crate::model::ObjectChecksums> {
    let algorithm = ALGORITHMS.into_iter().find(|algorithm| record.checksums.get(*algorithm).is_some())?;
    let checksum = record.part_checksums.get(index).filter(|checksum| !checksum.is_empty())?;
    let mut checksums = crate::model::ObjectChecksums {
        coverage: record.checksums.coverage,
        ..crate::model::ObjectChecksums::default()
    };
    checksums.set(algorithm, checksum.clone());
    Some(checksums)
}

pub(super) async fn put(
    front: &S3Frontend,
    request: S3Request<PutObjectInput>,
) -> ObjectAnswer<PutObjectOutput> {
    let mut input = request.input;
    acl::check_canned(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
    input::check_storage_class(input.storage_class.as_ref().map(StorageClass::as_str))?;
    let promised = PromisedBody::new(
        &request.headers,
        input.content_md5.as_deref(),
        checksums_of!(input),
        request.trailing_headers,
    )?;
    let put = PutRequest {
        size_bytes: input::size(input.content_length, &request.headers)?,
        headers: headers_of!(input, expires(&request.headers, &request.extensions)?),
        tags: input::tags(input.tagging.as_deref())?,
        conditions: ObjectPreconditions::from_request(&request.headers, &request.extensions)?
            .to_write_conditions(),
        algorithms: promised.algorithms.clone(),
    };
    let body = input::body(input.body.take());
    let stored =
        front.engine.put(&input.bucket, &input.key, put, body, promised.verify()).await.map_err(error)?;
    let mut output = PutObjectOutput { e_tag: Some(etag(&stored.etag)), ..PutObjectOutput::default() };
    with_checksums!(output, stored.checksums);
    output.checksum_type = coverage(&stored.checksums);
    Ok(S3Response::new(output))
}

pub(super) async fn copy(
    front: &S3Frontend,
    request: S3Request<CopyObjectInput>,
) -> ObjectAnswer<CopyObjectOutput> {
    let target =
        ObjectPreconditions::from_request(&request.headers, &request.extensions)?.to_write_conditions();
    let source = ObjectPreconditions::read_source(&request.headers, &request.extensions)?;
    let expires = expires(&request.headers, &request.extensions)?;
    let input = request.input;
    let from = input::source(&input.copy_source)?;
    acl::check_canned(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
    input::check_storage_class(input.storage_class.as_ref().map(StorageClass::as_str))?;
    let checksum =
        input.checksum_algorithm.as_ref().map(|name| input::algorithm_of(name.as_str())).transpose()?;
    let replaces = |directive: Option<&str>| match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => Err(invalid(format!("a directive is COPY or REPLACE, and not {other:?}"))),
    };
    // In S3 both come from the source unless the request says otherwise.
    let headers = match replaces(input.metadata_directive.as_ref().map(MetadataDirective::as_str))? {
        true => Some(headers_of!(input, expires)),
        false => None,
    };
    let tags = match replaces(input.tagging_directive.as_ref().map(TaggingDirective::as_str))? {
        true => Some(input::tags(input.tagging.as_deref())?),
        false => None,
    };
    if headers.is_none() && tags.is_none() && from.0 == input.bucket && from.1 == input.key {
        return Err(S3Error::with_message(
            S3ErrorCode::InvalidRequest,
            "a copy onto itself changes nothing unless it replaces metadata or tags",
        ));
    }
    let asked = CopyRequest {
        from,
        to: (input.bucket.clone(), input.key.clone()),
        headers,
        tags,
        source,
        target,
        checksum,
    };
    // What the request itself has wrong is refused above: from here on the copy may have been made.
    let stored = front.engine.copy(asked).await.map_err(error)?;
    let mut result = CopyObjectResult {
        e_tag: Some(etag(&stored.etag)),
        last_modified: Some(time(stored.modified_ms)),
        ..CopyObjectResult::default()
    };
    with_checksums!(result, stored.checksums);
    result.checksum_type = coverage(&stored.checksums);
    Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() }))
}

pub(super) async fn delete(
    front: &S3Frontend,
    request: S3Request<DeleteObjectInput>,
) -> ObjectAnswer<DeleteObjectOutput> {
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    let conditions = WriteConditions {
        size_bytes: input.if_match_size.map(size_condition),
        modified_s: input.if_match_last_modified_time.as_ref().map(|time| ms(time).div_euclid(1000)),
        // S3 has no other condition of a deletion.
        if_match: asked.to_write_conditions().if_match,
        ..WriteConditions::default()
    };
    let outcome = front.engine.delete(&input.bucket, vec![(input.key, conditions)]).await.map_err(error)?;
    outcome.into_iter().collect::<crate::errors::GatewayResult<Vec<()>>>().map_err(error)?;
    Ok(S3Response::with_status(DeleteObjectOutput::default(), hyper::StatusCode::NO_CONTENT))
}

/// No object has a negative size, so none is deleted on that condition.
fn size_condition(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// One that a document names is only itself: `"*"` in quotes is no wildcard. A weak one is no object's (RFC 9110,
/// 8.8.3.2), and neither is one with quotes inside, which would be a list for another gateway.
fn etag_condition(etag: ETag) -> EtagCondition {
    EtagCondition::OneOf(etag.into_strong().filter(|value| !value.contains('"')).into_iter().collect())
}

pub(super) async fn delete_many(
    front: &S3Frontend,
    request: S3Request<DeleteObjectsInput>,
) -> ObjectAnswer<DeleteObjectsOutput> {
    let (credentials, input) = (request.credentials, request.input);
    if input.delete.objects.len() > 1000 {
        return Err(S3Error::with_message(
            S3ErrorCode::MalformedXML,
            "a request deletes at most 1000 objects",
        ));
    }
    let is_quiet = input.delete.quiet.unwrap_or(false);
    let (mut deleted, mut errors, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    let failure = |key: &str, error: S3Error| s3s::dto::Error {
        key: Some(key.to_owned()),
        code: Some(error.code().as_str().to_owned()),
        message: error.message().map(str::to_owned),
        version_id: None,
    };
    for object in input.delete.objects {
        // A key that may not be deleted is a row of the answer. The others are deleted all the same.
        let allowed = front
            .permissions
            .write(credentials.as_ref(), &input.bucket, &object.key)
            .and_then(|()| check_version(object.version_id.as_deref()));
        match allowed {
            Ok(()) => {
                let conditions = WriteConditions {
                    if_match: object.e_tag.map(etag_condition),
                    size_bytes: object.size.map(size_condition),
                    modified_s: object.last_modified_time.as_ref().map(|time| ms(time).div_euclid(1000)),
                    ..WriteConditions::default()
                };
                keys.push((object.key, conditions));
            }
            Err(error) => errors.push(failure(&object.key, error)),
        }
    }
    let names: Vec<String> = keys.iter().map(|(key, _)| key.clone()).collect();
    // Whether a bucket is there is for those to know who may touch anything in it.
    let outcomes =
        match keys.is_empty() && front.permissions.see(credentials.as_ref(), &input.bucket).is_err() {
            true => Vec::new(),
            false => front.engine.delete(&input.bucket, keys).await.map_err(error)?,
        };
    // The outcomes are in the order of the keys, also those of other gateways.
    for (key, outcome) in names.into_iter().zip(outcomes) {
        match outcome {
            // A quiet request wants to hear of failures only.
            Ok(()) if is_quiet => {}
            Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
            Err(cause) => errors.push(failure(&key, error(cause))),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        request_charged: None,
    }))
}

/// The attributes of GetObjectAttributes.
const ATTRIBUTES: [&str; 5] = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];

pub(super) async fn attributes(
    front: &S3Frontend,
    request: S3Request<GetObjectAttributesInput>,
) -> ObjectAnswer<GetObjectAttributesOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    // A client may send them as one header, which s3s leaves as it is.
    let wanted = input.object_attributes.iter().flat_map(|wanted| wanted.as_str().split(','));
    let wanted: Vec<&str> = wanted.map(str::trim).filter(|name| !name.is_empty()).collect();
    if wanted.is_empty() {
        return Err(invalid_request("the header x-amz-object-attributes names no attribute"));
    }
    if let Some(unknown) = wanted.iter().find(|name| !ATTRIBUTES.contains(name)) {
        return Err(invalid(format!("{unknown:?} is no attribute of an object that S3 has")));
    }
    let record = front.engine.resolve(&input.bucket, &input.key).await.map_err(error)?.record;
    let mut output =
        GetObjectAttributesOutput { last_modified: Some(time(record.modified_ms)), ..Default::default() };
    for name in wanted {
        match name {
            "ETag" => output.e_tag = Some(etag(&record.etag)),
            "ObjectSize" => output.object_size = i64::try_from(record.size_bytes).ok(),
            "StorageClass" => {
                output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
            }
            "Checksum" => {
                let mut checksum = Checksum::default();
                with_checksums!(checksum, record.checksums);
                checksum.checksum_type = coverage(&record.checksums);
                output.checksum = Some(checksum);
            }
            "ObjectParts" if !record.part_sizes_bytes.is_empty() => {
                output.object_parts = Some(parts_of(&record, input.part_number_marker, input.max_parts)?);
            }
            _ => {}
        }
    }
    Ok(S3Response::new(output))
}

/// S3's own, of a page.
const MAX_PARTS_PER_PAGE: i32 = 1000;

/// A page of an object's parts.
fn parts_of(
    record: &ObjectRecord,
    marker: Option<i32>,
    most: Option<i32>,
) -> S3Result<GetObjectAttributesParts> {
    let limit = most.unwrap_or(MAX_PARTS_PER_PAGE).min(MAX_PARTS_PER_PAGE);
    let most = usize::try_from(limit).map_err(|_| super::answers::invalid("max-parts can't be negative"))?;
    let skipped = usize::try_from(marker.unwrap_or(0)).unwrap_or(0);
    let parts: Vec<ObjectPart> = record
        .part_sizes_bytes
        .iter()
        .enumerate()
        .skip(skipped)
        .take(most)
        .map(|(index, size_bytes)| {
            let checksums = part_checksums(record, index).unwrap_or_default();
            let mut part = ObjectPart {
                part_number: i32::try_from(index + 1).ok(),
                size: i64::try_from(*size_bytes).ok(),
                ..ObjectPart::default()
            };
            with_checksums!(part, checksums);
            part
        })
        .collect();
    let is_truncated = skipped.saturating_add(parts.len()) < record.part_sizes_bytes.len() && most > 0;
    let next_part_number_marker = parts.last().and_then(|part| part.part_number).filter(|_| is_truncated);
    Ok(GetObjectAttributesParts {
        is_truncated: Some(is_truncated),
        max_parts: Some(limit),
        next_part_number_marker,
        part_number_marker: Some(marker.unwrap_or(0)),
        parts: Some(parts),
        total_parts_count: i32::try_from(record.part_sizes_bytes.len()).ok(),
    })
}
