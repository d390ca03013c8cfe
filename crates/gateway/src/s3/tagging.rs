//! Tags of objects.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::S3Frontend;
use super::answers::error;
use super::input::{check_tags, check_version};

type TaggingAnswer<T> = S3Result<S3Response<T>>;

pub(super) async fn get(
    front: &S3Frontend,
    request: S3Request<GetObjectTaggingInput>,
) -> TaggingAnswer<GetObjectTaggingOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    let record = front.engine.resolve(&input.bucket, &input.key).await.map_err(error)?.record;
    let tag_set =
        record.tags.into_iter().map(|(key, value)| Tag { key: Some(key), value: Some(value) }).collect();
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
}

pub(super) async fn put(
    front: &S3Frontend,
    request: S3Request<PutObjectTaggingInput>,
) -> TaggingAnswer<PutObjectTaggingOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    let pairs = input.tagging.tag_set.into_iter();
    let tags =
        check_tags(pairs.map(|tag| (tag.key.unwrap_or_default(), tag.value.unwrap_or_default())).collect())?;
    front.engine.set_tags(&input.bucket, &input.key, tags).await.map_err(error)?;
    Ok(S3Response::new(PutObjectTaggingOutput::default()))
}

pub(super) async fn delete(
    front: &S3Frontend,
    request: S3Request<DeleteObjectTaggingInput>,
) -> TaggingAnswer<DeleteObjectTaggingOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    front.engine.set_tags(&input.bucket, &input.key, Vec::new()).await.map_err(error)?;
    Ok(S3Response::with_status(DeleteObjectTaggingOutput::default(), hyper::StatusCode::NO_CONTENT))
}
