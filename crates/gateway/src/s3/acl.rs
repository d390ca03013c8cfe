//! Access control lists. There is only one: the gateway owns everything and may do everything. Who may do what is a
//! matter of its keys (`[key.NAME]`), so a request for anything else is refused.

use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::S3Frontend;
use super::answers::{error, invalid};
use super::input::check_version;
use crate::errors::GatewayError;

type AclAnswer<T> = S3Result<S3Response<T>>;

/// Of all buckets and objects.
const OWNER: &str = "underlay";
/// Canned ACLs that S3 knows besides those that say what is true here anyway.
const OTHERS: [&str; 5] =
    ["public-read", "public-read-write", "authenticated-read", "aws-exec-read", "log-delivery-write"];

pub(super) fn owner() -> Owner {
    Owner { id: Some(OWNER.to_owned()), display_name: Some(OWNER.to_owned()) }
}

pub(super) fn initiator() -> Initiator {
    Initiator { id: Some(OWNER.to_owned()), display_name: Some(OWNER.to_owned()) }
}

/// Whether a request that names the owner of a bucket means this one.
pub(super) fn is_owner(id: &str) -> bool {
    id == OWNER
}

fn grants() -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some(OWNER.to_owned()),
        email_address: None,
        id: Some(OWNER.to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant {
        grantee: Some(grantee),
        permission: Some(Permission::from_static(Permission::FULL_CONTROL)),
    }]
}

/// A canned ACL of a request: those that grant nobody else anything are what there is already.
pub(super) fn check_canned(word: Option<&str>) -> S3Result<()> {
    match word {
        None | Some("private" | "bucket-owner-full-control" | "bucket-owner-read") => Ok(()),
        Some(other) if OTHERS.contains(&other) => Err(not_here(other)),
        Some(other) => Err(invalid(format!("{other:?} is not a canned ACL that S3 knows"))),
    }
}

fn not_here(what: &str) -> S3Error {
    error(GatewayError::NotImplemented(format!(
        "this gateway grants access by its keys alone ([key.NAME]), and not by an ACL: {what}"
    )))
}

/// A request to set an ACL has one, in its header or its body.
fn check_there(is_canned: bool, policy: Option<&AccessControlPolicy>) -> S3Result<()> {
    match is_canned || policy.is_some() {
        true => check_policy(policy),
        false => Err(S3Error::with_message(
            S3ErrorCode::MissingSecurityHeader,
            "the request has neither x-amz-acl nor a list in its body",
        )),
    }
}

fn check_policy(policy: Option<&AccessControlPolicy>) -> S3Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    let is_ours = policy.owner.as_ref().and_then(|owner| owner.id.as_deref()).is_none_or(is_owner);
    let is_all = |grant: &Grant| {
        grant.permission.as_ref().is_some_and(|permission| permission.as_str() == Permission::FULL_CONTROL)
            && grant.grantee.as_ref().and_then(|grantee| grantee.id.as_deref()).is_some_and(is_owner)
    };
    match policy.grants.as_deref() {
        Some([one]) if is_ours && is_all(one) => Ok(()),
        _ => Err(not_here("anything but FULL_CONTROL of the owner")),
    }
}

pub(super) async fn get_bucket_acl(
    front: &S3Frontend,
    request: S3Request<GetBucketAclInput>,
) -> AclAnswer<GetBucketAclOutput> {
    front.engine.check_bucket(&request.input.bucket).map_err(error)?;
    Ok(S3Response::new(GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) }))
}

pub(super) async fn set_of_bucket(
    front: &S3Frontend,
    request: S3Request<PutBucketAclInput>,
) -> AclAnswer<PutBucketAclOutput> {
    let input = request.input;
    front.engine.check_bucket(&input.bucket).map_err(error)?;
    check_canned(input.acl.as_ref().map(BucketCannedACL::as_str))?;
    check_there(input.acl.is_some(), input.access_control_policy.as_ref())?;
    Ok(S3Response::new(PutBucketAclOutput::default()))
}

pub(super) async fn get_object_acl(
    front: &S3Frontend,
    request: S3Request<GetObjectAclInput>,
) -> AclAnswer<GetObjectAclOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    front.engine.resolve(&input.bucket, &input.key).await.map_err(error)?;
    Ok(S3Response::new(GetObjectAclOutput {
        grants: Some(grants()),
        owner: Some(owner()),
        ..GetObjectAclOutput::default()
    }))
}

pub(super) async fn set_of_object(
    front: &S3Frontend,
    request: S3Request<PutObjectAclInput>,
) -> AclAnswer<PutObjectAclOutput> {
    let input = request.input;
    check_version(input.version_id.as_deref())?;
    front.engine.resolve(&input.bucket, &input.key).await.map_err(error)?;
    check_canned(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
    check_there(input.acl.is_some(), input.access_control_policy.as_ref())?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_true_anyway_can_be_asked_for() {
        for fine in [None, Some("private"), Some("bucket-owner-full-control")] {
            assert!(check_canned(fine).is_ok(), "{fine:?}");
        }
        assert_eq!(check_canned(Some("public-read")).unwrap_err().code().as_str(), "NotImplemented");
        assert_eq!(check_canned(Some("public-ready")).unwrap_err().code().as_str(), "InvalidArgument");

        let policy = |grants: Vec<Grant>| AccessControlPolicy { grants: Some(grants), owner: Some(owner()) };
        assert!(check_policy(Some(&policy(grants()))).is_ok());
        let mut reader = grants();
        reader[0].permission = Some(Permission::from_static(Permission::READ));
        assert!(check_policy(Some(&policy(reader))).is_err());
        assert!(check_policy(Some(&policy([grants(), grants()].concat()))).is_err());
    }
}
