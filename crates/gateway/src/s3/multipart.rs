//! Multipart uploads.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::S3Frontend;
use super::acl::{self, initiator, owner};
use super::answers::{
    checksums_of, coverage, coverage_word, error, etag, invalid, invalid_request, ms, time, with_checksums,
};
use super::input::{self, PromisedBody};
use super::listing::NameEncoding;
use super::object::{expires, headers_of};
use super::preconditions::ObjectPreconditions;
use crate::digests::{ALGORITHMS, ChecksumKind, UploadChecksum};
use crate::engine::{CompletedPart as Listed, MAX_PART_BYTES, MAX_PARTS, UploadEntry, UploadsRequest};
use crate::errors::GatewayError;
use crate::model::ChecksumCoverage;

type MultipartAnswer<T> = S3Result<S3Response<T>>;

/// S3's own, of a page.
const MAX_ROWS: i32 = 1000;

fn part_number(number: i32) -> S3Result<u16> {
    let number = u16::try_from(number).ok().filter(|number| (1..=MAX_PARTS).contains(number));
    number.ok_or_else(|| invalid("a part has a number from 1 to 10000"))
}

fn page(asked: Option<i32>) -> S3Result<(i32, usize)> {
    let limit = asked.unwrap_or(MAX_ROWS).min(MAX_ROWS);
    usize::try_from(limit)
        .map(|count| (limit, count))
        .map_err(|_| invalid("a page can't have a negative size"))
}

/// Of a document that lacks what S3's schema asks for.
fn malformed(text: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::MalformedXML, text)
}

fn coverage_of(word: &ChecksumType) -> S3Result<ChecksumCoverage> {
    match word.as_str() {
        ChecksumType::FULL_OBJECT => Ok(ChecksumCoverage::Full),
        ChecksumType::COMPOSITE => Ok(ChecksumCoverage::Composite),
        other => Err(invalid_request(format!("a checksum is FULL_OBJECT or COMPOSITE, and not {other:?}"))),
    }
}

/// Checks conditions that some SDKs send with every request of an upload, and others with its first alone.
async fn check_target(
    front: &S3Frontend,
    (bucket, key): (&str, &str),
    asked: &ObjectPreconditions,
) -> S3Result<()> {
    if !asked.may_spare_the_body() {
        return Ok(());
    }
    match front.engine.resolve(bucket, key).await {
        Ok(resolved) => asked.check_target(Some(&resolved.record)),
        Err(GatewayError::NoSuchKey) => asked.check_target(None),
        Err(cause) => Err(error(cause)),
    }
}

pub(super) async fn create(
    front: &S3Frontend,
    request: S3Request<CreateMultipartUploadInput>,
) -> MultipartAnswer<CreateMultipartUploadOutput> {
    let expires = expires(&request.headers, &request.extensions)?;
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    let input = request.input;
    acl::check_canned(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
    input::check_storage_class(input.storage_class.as_ref().map(StorageClass::as_str))?;
    let algorithm = input.checksum_algorithm.as_ref();
    let algorithm = algorithm.map(|name| input::algorithm_of(name.as_str())).transpose()?;
    let coverage = match &input.checksum_type {
        Some(_) if algorithm.is_none() => {
            return Err(invalid_request("x-amz-checksum-type needs x-amz-checksum-algorithm"));
        }
        Some(word) => Some(coverage_of(word)?),
        None => algorithm.map(ChecksumKind::usual_coverage),
    };
    let checksum =
        algorithm.zip(coverage).map(|(algorithm, coverage)| UploadChecksum::new(algorithm, coverage));
    let checksum = checksum.transpose().map_err(|reason| invalid_request(reason.to_string()))?;
    let (headers, tags) = (headers_of!(input, expires), input::tags(input.tagging.as_deref())?);
    check_target(front, (&input.bucket, &input.key), &asked).await?;
    let upload = front
        .engine
        .create_upload(&input.bucket, &input.key, headers, tags, checksum)
        .await
        .map_err(error)?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload),
        checksum_algorithm: input.checksum_algorithm,
        checksum_type: checksum.map(|checksum| coverage_word(checksum.coverage())),
        ..CreateMultipartUploadOutput::default()
    }))
}

pub(super) async fn part(
    front: &S3Frontend,
    request: S3Request<UploadPartInput>,
) -> MultipartAnswer<UploadPartOutput> {
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    let mut input = request.input;
    let number = part_number(input.part_number)?;
    let promised = PromisedBody::new(
        &request.headers,
        input.content_md5.as_deref(),
        checksums_of!(input),
        request.trailing_headers,
    )?;
    let mut algorithms = promised.algorithms.clone();
    // The whole gets its checksum from those of the parts, whether or not the client sends them.
    let begun = front.engine.upload(&input.bucket, &input.key, &input.upload_id).map_err(error)?;
    let of_upload = begun.checksum_algorithm.as_deref().and_then(ChecksumKind::from_name);
    if let Some(wanted) = of_upload
        && let Some(other) = promised.given().find(|other| *other != wanted)
    {
        return Err(invalid_request(format!(
            "the upload was begun with {} as its checksum, and this part has {}",
            wanted.name(),
            other.name()
        )));
    }
    algorithms.extend(of_upload.filter(|algorithm| !promised.algorithms.contains(algorithm)));
    let size = input::size(input.content_length, &request.headers)?;
    if size > MAX_PART_BYTES {
        return Err(error(GatewayError::TooLarge("a part has at most 5 GiB".to_owned())));
    }
    check_target(front, (&input.bucket, &input.key), &asked).await?;
    let body = input::body(input.body.take());
    let stored = front
        .engine
        .upload_part(
            &input.bucket,
            &input.key,
            &input.upload_id,
            number,
            size,
            &algorithms,
            body,
            promised.verify(),
        )
        .await
        .map_err(error)?;
    let mut output = UploadPartOutput { e_tag: Some(etag(&stored.etag)), ..UploadPartOutput::default() };
    with_checksums!(output, stored.checksums);
    Ok(S3Response::new(output))
}

pub(super) async fn part_copy(
    front: &S3Frontend,
    request: S3Request<UploadPartCopyInput>,
) -> MultipartAnswer<UploadPartCopyOutput> {
    let conditions = ObjectPreconditions::read_source(&request.headers, &request.extensions)?;
    let asked = ObjectPreconditions::from_request(&request.headers, &request.extensions)?;
    let input = request.input;
    let from = input::source(&input.copy_source)?;
    let number = part_number(input.part_number)?;
    check_target(front, (&input.bucket, &input.key), &asked).await?;
    let range = match &input.copy_source_range {
        None => None,
        Some(text) => {
            let size = front.engine.resolve_source(&from.0, &from.1).await.map_err(error)?.record.size_bytes;
            Some(input::copied_range(text, size)?)
        }
    };
    let source = (from.0.as_str(), from.1.as_str());
    let stored = front
        .engine
        .upload_part_copy(&input.bucket, &input.key, &input.upload_id, number, source, conditions, range)
        .await
        .map_err(error)?;
    let result = CopyPartResult {
        e_tag: Some(etag(&stored.etag)),
        last_modified: Some(time(stored.modified_ms)),
        ..CopyPartResult::default()
    };
    Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }))
}

pub(super) async fn complete(
    front: &S3Frontend,
    request: S3Request<CompleteMultipartUploadInput>,
) -> MultipartAnswer<CompleteMultipartUploadOutput> {
    let asked =
        ObjectPreconditions::from_request(&request.headers, &request.extensions)?.to_write_conditions();
    let input = request.input;
    let mut parts: Vec<Listed> = Vec::new();
    for part in input.multipart_upload.as_ref().and_then(|parts| parts.parts.clone()).unwrap_or_default() {
        let (Some(number), Some(etag)) = (part.part_number, part.e_tag.as_ref()) else {
            return Err(malformed("a part is listed without its number or its ETag"));
        };
        let (number, etag) = (part_number(number)?, etag.value().to_owned());
        // A client that sent a part again, with other bytes, may list both: the later one counts. The same part twice
        // is a mistake, which the order shows.
        parts.pop_if(|last| last.number == number && last.etag != etag);
        parts.push(Listed { number, etag, checksums: checksums_of!(part) });
    }
    if parts.is_empty() {
        return Err(malformed("the request lists no parts"));
    }
    let expected = checksums_of!(input);
    for algorithm in ALGORITHMS {
        // That of a composite one ends in the number of parts, or not.
        let is_wrong = expected.get(algorithm).is_some_and(|value| {
            let (digest, count) = value.split_once('-').unwrap_or((value, "1"));
            !algorithm.has_form_of(digest) || count.parse::<u16>().is_err()
        });
        if is_wrong {
            return Err(invalid_request(format!("the request's {} is none", algorithm.name())));
        }
    }
    let coverage_asked = input.checksum_type.as_ref().map(coverage_of).transpose()?;
    // One that was completed before has no upload any more, and the same answer.
    let begun = front.engine.upload(&input.bucket, &input.key, &input.upload_id);
    let is_again = matches!(begun, Err(GatewayError::NoSuchUpload));
    let begun = begun.ok();
    if let Some(asked) = coverage_asked
        && begun.and_then(|begun| begun.coverage).is_some_and(|begun| begun != asked)
    {
        return Err(invalid_request(
            "the upload was begun with another type of checksum than it is completed with",
        ));
    }
    let size = input.mpu_object_size.map(u64::try_from).transpose();
    let size = size.map_err(|_| invalid_request("x-amz-mp-object-size is less than zero"))?;
    let stored = front
        .engine
        .complete_upload(&input.bucket, &input.key, &input.upload_id, parts, asked, expected, size)
        .await
        .map_err(error)?;
    // The engine compares the size with that of the parts, which are gone then.
    if let Some(size) = size.filter(|_| is_again) {
        check_size(front, (&input.bucket, &input.key), &stored.etag, size).await?;
    }
    let mut output = CompleteMultipartUploadOutput {
        location: Some(front.addressing.url_of(&request.headers, &input.bucket, &input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: Some(etag(&stored.etag)),
        checksum_type: coverage(&stored.checksums),
        ..CompleteMultipartUploadOutput::default()
    };
    with_checksums!(output, stored.checksums);
    Ok(S3Response::new(output))
}

/// Whether the object that an upload has made is as long as the client says. Another one with the key says nothing.
async fn check_size(
    front: &S3Frontend,
    (bucket, key): (&str, &str),
    etag: &str,
    size_bytes: u64,
) -> S3Result<()> {
    // The upload is completed, whatever has become of the object.
    let Ok(resolved) = front.engine.resolve(bucket, key).await else { return Ok(()) };
    let record = resolved.record;
    match record.etag == etag && record.size_bytes != size_bytes {
        true => {
            let found = record.size_bytes;
            Err(invalid_request(format!("the object has {found} bytes, and the request says otherwise")))
        }
        false => Ok(()),
    }
}

pub(super) async fn abort(
    front: &S3Frontend,
    request: S3Request<AbortMultipartUploadInput>,
) -> MultipartAnswer<AbortMultipartUploadOutput> {
    let input = request.input;
    if let Some(asked) = &input.if_match_initiated_time {
        let begun = front.engine.upload(&input.bucket, &input.key, &input.upload_id).map_err(error)?;
        if begun.begun_ms.div_euclid(1000) != ms(asked).div_euclid(1000) {
            return Err(error(GatewayError::PreconditionFailed));
        }
    }
    front.engine.abort_upload(&input.bucket, &input.key, &input.upload_id).await.map_err(error)?;
    Ok(S3Response::with_status(AbortMultipartUploadOutput::default(), hyper::StatusCode::NO_CONTENT))
}

pub(super) async fn list_parts(
    front: &S3Frontend,
    request: S3Request<ListPartsInput>,
) -> MultipartAnswer<ListPartsOutput> {
    let input = request.input;
    let (limit, most) = page(input.max_parts)?;
    let after = match input.part_number_marker {
        Some(marker) if marker < 0 => return Err(invalid("part-number-marker can't be negative")),
        // A marker behind every number that a part can have is no error: the page is empty.
        marker => u16::try_from(marker.unwrap_or(0)).unwrap_or(u16::MAX),
    };
    let begun = front.engine.upload(&input.bucket, &input.key, &input.upload_id).map_err(error)?;
    let (parts, is_truncated) =
        front.engine.list_parts(&input.bucket, &input.key, &input.upload_id, after, most).map_err(error)?;
    let last = parts.last().map(|part| i32::from(part.number));
    let parts = parts.into_iter().map(|found| {
        let mut part = Part {
            part_number: Some(i32::from(found.number)),
            e_tag: Some(etag(&found.etag)),
            last_modified: Some(time(found.modified_ms)),
            size: i64::try_from(found.size_bytes).ok(),
            ..Part::default()
        };
        with_checksums!(part, found.checksums);
        part
    });
    Ok(S3Response::new(ListPartsOutput {
        parts: Some(parts.collect()),
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        max_parts: Some(limit),
        part_number_marker: input.part_number_marker,
        next_part_number_marker: last.filter(|_| is_truncated),
        is_truncated: Some(is_truncated),
        checksum_algorithm: begun.checksum_algorithm.map(ChecksumAlgorithm::from),
        checksum_type: begun.coverage.map(coverage_word),
        owner: Some(owner()),
        initiator: Some(initiator()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        ..ListPartsOutput::default()
    }))
}

pub(super) async fn list_uploads(
    front: &S3Frontend,
    request: S3Request<ListMultipartUploadsInput>,
) -> MultipartAnswer<ListMultipartUploadsOutput> {
    let input = request.input;
    let prefix = input.prefix.clone().unwrap_or_default();
    let ((limit, most), encoding) =
        (page(input.max_uploads)?, NameEncoding::from_request(input.encoding_type.as_ref())?);
    let after = input.key_marker.clone().filter(|marker| !marker.is_empty());
    let asked = UploadsRequest {
        prefix,
        delimiter: input.delimiter.clone().filter(|delimiter| !delimiter.is_empty()),
        // Without a key, S3 ignores the upload.
        after_upload: input.upload_id_marker.clone().filter(|marker| !marker.is_empty() && after.is_some()),
        after,
        most,
    };
    let listing = front.engine.list_grouped_uploads(&input.bucket, &asked).await.map_err(error)?;
    let is_truncated = listing.is_truncated;
    let (next_key, next_upload) = match listing.entries.last().filter(|_| is_truncated) {
        None => (None, None),
        Some(UploadEntry::Upload(last)) => (Some(last.key.clone()), Some(last.upload.clone())),
        // It stands for all uploads of the group.
        Some(UploadEntry::Prefix(group)) => (Some(group.clone()), None),
    };
    let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
    for entry in listing.entries {
        match entry {
            UploadEntry::Prefix(group) => prefixes.push(CommonPrefix { prefix: Some(encoding.name(group)) }),
            UploadEntry::Upload(found) => uploads.push(MultipartUpload {
                key: Some(encoding.name(found.key)),
                upload_id: Some(found.upload),
                initiated: Some(time(found.begun_ms)),
                checksum_algorithm: found.checksum_algorithm.map(ChecksumAlgorithm::from),
                checksum_type: found.coverage.map(coverage_word),
                owner: Some(owner()),
                initiator: Some(initiator()),
                storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            }),
        }
    }
    Ok(S3Response::new(ListMultipartUploadsOutput {
        uploads: Some(uploads),
        common_prefixes: Some(prefixes),
        bucket: Some(input.bucket),
        prefix: Some(encoding.name(asked.prefix)),
        delimiter: asked.delimiter.map(|delimiter| encoding.name(delimiter)),
        key_marker: Some(encoding.name(input.key_marker.unwrap_or_default())),
        upload_id_marker: input.upload_id_marker,
        next_key_marker: next_key.map(|key| encoding.name(key)),
        next_upload_id_marker: next_upload,
        max_uploads: Some(limit),
        is_truncated: Some(is_truncated),
        encoding_type: input.encoding_type,
        ..ListMultipartUploadsOutput::default()
    }))
}
