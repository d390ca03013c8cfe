//! Operations on buckets.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::S3Frontend;
use super::acl::{self, owner};
use super::addressing::USUAL_REGION;
use super::answers::{error, invalid, time};
use super::listing::{position, token};
use crate::errors::GatewayError;

type BucketAnswer<T> = S3Result<S3Response<T>>;

/// S3's own, of a page.
const MAX_BUCKETS: usize = 10_000;

pub(super) async fn list(
    front: &S3Frontend,
    request: S3Request<ListBucketsInput>,
) -> BucketAnswer<ListBucketsOutput> {
    let (credentials, input) = (request.credentials.as_ref(), request.input);
    let prefix = input.prefix.clone().unwrap_or_default();
    let most = match input.max_buckets {
        None => MAX_BUCKETS,
        Some(asked) => usize::try_from(asked)
            .ok()
            .filter(|most| (1..=MAX_BUCKETS).contains(most))
            .ok_or_else(|| invalid("max-buckets can be 1 to 10000"))?,
    };
    let after = match input.continuation_token.as_deref().filter(|token| !token.is_empty()) {
        None => None,
        Some(token) => {
            Some(position(token).ok_or_else(|| invalid("the continuation token is none of this gateway's"))?)
        }
    };
    let mut buckets: Vec<(String, i64)> = front
        .engine
        .list_buckets()
        .into_iter()
        .filter(|(name, _)| name.starts_with(&prefix) && after.as_ref().is_none_or(|after| name > after))
        // A key learns nothing of buckets that it may not touch.
        .filter(|(name, _)| front.permissions.see(credentials, name).is_ok())
        .collect();
    // They come in the order of their names, so the last one says where the next page begins.
    let is_truncated = buckets.len() > most;
    buckets.truncate(most);
    let last = buckets.last().map(|(name, _)| token(name));
    let buckets = buckets.into_iter().map(|(name, created_ms)| Bucket {
        name: Some(name),
        creation_date: Some(time(created_ms)),
        bucket_region: Some(front.addressing.region().to_owned()),
    });
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets.collect()),
        continuation_token: last.filter(|_| is_truncated),
        owner: Some(owner()),
        prefix: input.prefix,
    }))
}

pub(super) async fn head(
    front: &S3Frontend,
    request: S3Request<HeadBucketInput>,
) -> BucketAnswer<HeadBucketOutput> {
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    // Clients find the region of a bucket by it.
    let bucket_region = Some(front.addressing.region().to_owned());
    Ok(S3Response::new(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() }))
}

pub(super) async fn create(
    front: &S3Frontend,
    request: S3Request<CreateBucketInput>,
) -> BucketAnswer<CreateBucketOutput> {
    let input = request.input;
    let bucket = input.bucket;
    check_name(&bucket)?;
    acl::check_canned(input.acl.as_ref().map(BucketCannedACL::as_str))?;
    if input.object_lock_enabled_for_bucket == Some(true) {
        return Err(error(GatewayError::NotImplemented("this gateway locks no objects".to_owned())));
    }
    match input.object_ownership.as_ref().map(ObjectOwnership::as_str) {
        None | Some(ObjectOwnership::BUCKET_OWNER_ENFORCED | ObjectOwnership::BUCKET_OWNER_PREFERRED) => {}
        Some(ObjectOwnership::OBJECT_WRITER) => {
            let reason = "every object belongs to the gateway, no matter who writes it".to_owned();
            return Err(error(GatewayError::NotImplemented(reason)));
        }
        Some(other) => return Err(invalid(format!("{other:?} is no ownership of objects that S3 has"))),
    }
    let constraint =
        input.create_bucket_configuration.as_ref().and_then(|asked| asked.location_constraint.as_ref());
    check_place(front, constraint.map(BucketLocationConstraint::as_str))?;
    match front.engine.create_bucket(&bucket).await {
        // As in S3's first region, which has no name either: who owns a bucket may create it again, and it stays as it
        // is.
        Ok(()) | Err(GatewayError::BucketExists) => {}
        Err(cause) => return Err(error(cause)),
    }
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
}

/// Whether a bucket can be there. A gateway without `region` is in any.
fn check_place(front: &S3Frontend, constraint: Option<&str>) -> S3Result<()> {
    // S3's old name of it.
    let region = constraint.map(|word| if word == "EU" { "eu-west-1" } else { word });
    match region.filter(|region| !region.is_empty() && !front.addressing.is_region(region)) {
        None => Ok(()),
        Some(other) => Err(S3Error::with_message(
            S3ErrorCode::InvalidLocationConstraint,
            format!("this gateway is in {}, and not in {other:?}", front.addressing.region()),
        )),
    }
}

/// User Guide, Bucket naming rules: what S3 keeps for itself. `s3s` refuses `xn--` alone.
const RESERVED_BEGINNINGS: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
const RESERVED_ENDINGS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];

/// Why CreateBucket takes no bucket of this name.
pub(crate) fn refused_bucket_name(bucket: &str) -> Option<String> {
    if !s3s::path::check_bucket_name(bucket) {
        return Some("no bucket can have this name".to_owned());
    }
    check_name(bucket).err().map(|refused| refused.message().unwrap_or_default().to_owned())
}

/// Names that `s3s` accepts and S3 does not: dots beside hyphens, which no host name has, and reserved ones.
fn check_name(bucket: &str) -> S3Result<()> {
    let refused = |reason: String| Err(S3Error::with_message(S3ErrorCode::InvalidBucketName, reason));
    if bucket.split('.').any(|label| label.starts_with('-') || label.ends_with('-')) {
        let reason = "a label between the dots of a bucket's name can't begin or end with a hyphen";
        return refused(reason.to_owned());
    }
    if let Some(begin) = RESERVED_BEGINNINGS.iter().find(|begin| bucket.starts_with(**begin)) {
        return refused(format!("S3 reserves names of buckets that begin with {begin}"));
    }
    if let Some(end) = RESERVED_ENDINGS.iter().find(|end| bucket.ends_with(**end)) {
        return refused(format!("S3 reserves names of buckets that end in {end}"));
    }
    Ok(())
}

pub(super) async fn delete(
    front: &S3Frontend,
    request: S3Request<DeleteBucketInput>,
) -> BucketAnswer<DeleteBucketOutput> {
    front.engine.delete_bucket(&request.input.bucket).await.map_err(error)?;
    Ok(S3Response::with_status(DeleteBucketOutput::default(), hyper::StatusCode::NO_CONTENT))
}

pub(super) async fn location(
    front: &S3Frontend,
    request: S3Request<GetBucketLocationInput>,
) -> BucketAnswer<GetBucketLocationOutput> {
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    // Nothing stands for us-east-1, which clients take for "anywhere".
    let region = Some(front.addressing.region()).filter(|region| *region != USUAL_REGION);
    let location_constraint = region.map(|region| BucketLocationConstraint::from(region.to_owned()));
    Ok(S3Response::new(GetBucketLocationOutput { location_constraint }))
}

/// There are no versions, which an empty answer says.
pub(super) async fn versioning(
    front: &S3Frontend,
    request: S3Request<GetBucketVersioningInput>,
) -> BucketAnswer<GetBucketVersioningOutput> {
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    Ok(S3Response::new(GetBucketVersioningOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_of_buckets_are_refused() {
        for name in [
            "xn--lake",
            "sthree-lake",
            "sthree-configurator",
            "amzn-s3-demo-lake",
            "lake-s3alias",
            "lake--ol-s3",
            "lake.mrap",
            "lake--x-s3",
            "lake--table-s3",
            "a.-b",
        ] {
            let refusal = check_name(name).unwrap_err();
            assert_eq!(refusal.code().as_str(), "InvalidBucketName", "{name}");
        }
        for name in ["lake", "a.b", "sthree", "my-sthree-lake", "lake-s3", "lake-mrap", "s3alias"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }
}
