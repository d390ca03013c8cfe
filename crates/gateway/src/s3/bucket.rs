//! Operations on buckets.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::Front;
use super::answers::{error, time};

type Answer<T> = S3Result<S3Response<T>>;

pub(super) async fn list(front: &Front, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
    let by = request.credentials.as_ref();
    let prefix = request.input.prefix.unwrap_or_default();
    let buckets = front
        .engine
        .list_buckets()
        .into_iter()
        .filter(|(name, _)| name.starts_with(&prefix) && front.permissions.see(by, name).is_ok())
        .map(|(name, created_ms)| Bucket {
            name: Some(name),
            creation_date: Some(time(created_ms)),
            bucket_region: None,
        });
    let owner = Owner { id: by.map(|by| by.access_key.clone()), display_name: None };
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets.collect()),
        owner: Some(owner),
        ..ListBucketsOutput::default()
    }))
}

pub(super) async fn head(front: &Front, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
    front.permissions.see(request.credentials.as_ref(), &request.input.bucket)?;
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    Ok(S3Response::new(HeadBucketOutput::default()))
}

pub(super) async fn create(
    front: &Front,
    request: S3Request<CreateBucketInput>,
) -> Answer<CreateBucketOutput> {
    let bucket = request.input.bucket;
    front.permissions.own(request.credentials.as_ref(), &bucket)?;
    front.engine.create_bucket(&bucket).await.map_err(error)?;
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
}

pub(super) async fn delete(
    front: &Front,
    request: S3Request<DeleteBucketInput>,
) -> Answer<DeleteBucketOutput> {
    front.permissions.own(request.credentials.as_ref(), &request.input.bucket)?;
    front.engine.delete_bucket(&request.input.bucket).await.map_err(error)?;
    Ok(S3Response::with_status(DeleteBucketOutput::default(), hyper::StatusCode::NO_CONTENT))
}

pub(super) async fn location(
    front: &Front,
    request: S3Request<GetBucketLocationInput>,
) -> Answer<GetBucketLocationOutput> {
    front.permissions.see(request.credentials.as_ref(), &request.input.bucket)?;
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    // Nothing stands for us-east-1, which clients take for "anywhere".
    Ok(S3Response::new(GetBucketLocationOutput::default()))
}

/// There are no versions, which an empty answer says.
pub(super) async fn versioning(
    front: &Front,
    request: S3Request<GetBucketVersioningInput>,
) -> Answer<GetBucketVersioningOutput> {
    front.permissions.see(request.credentials.as_ref(), &request.input.bucket)?;
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}
