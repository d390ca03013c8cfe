//! S3 in front of the [engine](crate::engine): `s3s` parses requests, verifies signatures and writes answers; here is
//! what each operation means. Operations without a method here answer `NotImplemented`.

mod access;
mod acl;
mod addressing;
mod answers;
mod asking_headers;
mod authorization;
mod bucket;
mod chunks;
mod documents;
mod http_dates;
mod input;
mod listing;
mod multipart;
mod object;
mod post;
mod preconditions;
mod queries;
mod query_headers;
mod ranges;
mod rewriting;
mod spoiled;
mod tagging;

pub(crate) use access::{KeyPermissions, RequestNote, refused_at_once};
pub(crate) use addressing::{AddressingStyle, BucketAddressing};
pub(crate) use answers::{answer_of, make_well_formed, numbered, put_right};
pub(crate) use bucket::refused_bucket_name;
pub(crate) use chunks::ChunkDecoder;
pub(crate) use post::PostForms;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use hyper::{HeaderMap, Method, Uri};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::config::{AccessKey, SecretPlace};
use crate::digests::ALGORITHMS;
use crate::engine::GatewayEngine;
use crate::form::UploadForm;
use crate::model::ObjectChecksums;
use asking_headers::CONDITIONS;
use asking_headers::HeaderFamily::{
    Acl, CopyRange, CopySource, IfInitiated, IfMatch, IfNoneMatch, IfSizeOrTime, StorageClass as Class,
};
use input::PromisedBody;

/// For the fuzzer: any text as what requests bring, as far as `s3s` leaves it to us.
pub(crate) fn read_any(text: &str) {
    let _ = (input::tags(Some(text)), input::copied_range(text, 1 << 20), listing::position(text));
    let _ = (ranges::parse(text), http_dates::parse(text, 0), BucketAddressing::default().style_of(text));
    let plain = documents::plain(text.as_bytes());
    let _ = (documents::collapse(&plain), documents::names(&plain).count());
    let _ = documents::well_formed(text.as_bytes());
}

/// For the fuzzer: any bytes as a body in chunks.
pub(crate) fn read_any_chunks(data: &[u8], step: usize) {
    chunks::read_any(data, step);
}

/// For the fuzzer: any head of a request, as far as it is looked at before an operation.
pub(crate) fn read_any_head(headers: &HeaderMap, uri: &Uri) {
    access::read_any(headers, uri);
    let (rewritten, extensions) = rewriting::rewrite_any(headers.clone(), uri);
    let _ = asking_headers::check(&Method::PUT, uri, &rewritten, &extensions, &[]);
    let _ = preconditions::ObjectPreconditions::from_request(&rewritten, &extensions);
    let _ = preconditions::ObjectPreconditions::read_source(&rewritten, &extensions);
    let mut checksums = ObjectChecksums::default();
    for algorithm in ALGORITHMS {
        if let Some(value) = headers.get(algorithm.header()).and_then(|value| value.to_str().ok()) {
            checksums.set(algorithm, value.to_owned());
        }
    }
    if let Ok(promised) = PromisedBody::new(headers, None, checksums, None) {
        let _ = promised.verify()(&[0; 16], &ObjectChecksums::default());
    }
    let _ = input::size(None, headers);
}

/// For the fuzzer: any form.
pub(crate) fn read_any_form(form: UploadForm) {
    let place = SecretPlace::Environment(String::new());
    let key = AccessKey { name: "a".to_owned(), id: "KEY".to_owned(), secret: place, grants: Vec::new() };
    let secrets = HashMap::from([("KEY".to_owned(), "secret".to_owned())]);
    post::read_any(form, &KeyPermissions::new(&[key], &secrets));
}

/// The longest document of a request, which is read into memory as a whole. The parts of an upload, 10,000 of them,
/// take some 250 bytes each with a checksum, and 1000 keys to delete 1024 bytes each with what stands around them: both
/// are below 3 MiB.
const MAX_DOCUMENT_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Clone)]
pub(crate) struct S3Frontend {
    engine: Arc<GatewayEngine>,
    permissions: Arc<KeyPermissions>,
    addressing: Arc<BucketAddressing>,
}

/// The service, with signatures and permissions.
pub(crate) fn service(
    engine: Arc<GatewayEngine>,
    permissions: Arc<KeyPermissions>,
    addressing: Arc<BucketAddressing>,
) -> S3Service {
    let front = S3Frontend { engine, permissions, addressing: Arc::clone(&addressing) };
    let rewriting = rewriting::HeaderRewriter { inner: builder(front.clone()).build(), addressing };
    let mut builder = builder(front);
    builder.set_route(rewriting);
    builder.build()
}

fn builder(front: S3Frontend) -> S3ServiceBuilder {
    let (permissions, addressing) = (Arc::clone(&front.permissions), Arc::clone(&front.addressing));
    let mut builder = S3ServiceBuilder::new(front);
    builder.set_auth(access::SigningSecrets(permissions));
    builder.set_access(access::SignedAccess);
    builder.set_host(addressing::VirtualHosts(addressing));
    let mut config = S3Config::default();
    config.xml_max_body_size = MAX_DOCUMENT_BYTES;
    // Forms go to `post`. Should one get through, it must not fill the memory.
    config.post_object_max_file_size = 0;
    config.form_max_field_size = 1 << 10;
    config.form_max_fields_size = 4 << 10;
    config.form_max_parts = 8;
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder
}

/// Checks the right that an operation's row names. A right without an arm here does not compile.
macro_rules! require {
    // Of an object.
    ($front:expr, $by:expr, $input:expr, read) => {
        $front.permissions.read($by, &$input.bucket, &$input.key)?
    };
    ($front:expr, $by:expr, $input:expr, write) => {
        $front.permissions.write($by, &$input.bucket, &$input.key)?
    };
    // Of both objects of a copy.
    ($front:expr, $by:expr, $input:expr, read_source_and_write) => {{
        let source = input::source(&$input.copy_source)?;
        $front.permissions.read($by, &source.0, &source.1)?;
        $front.permissions.write($by, &$input.bucket, &$input.key)?
    }};
    // Of all keys with a prefix.
    ($front:expr, $by:expr, $input:expr, list) => {
        $front.permissions.list($by, &$input.bucket, $input.prefix.as_deref().unwrap_or_default())?
    };
    // Of a bucket.
    ($front:expr, $by:expr, $input:expr, see) => {
        $front.permissions.see($by, &$input.bucket)?
    };
    ($front:expr, $by:expr, $input:expr, own) => {
        $front.permissions.own($by, &$input.bucket)?
    };
    // The operation is about many names, and gets the client's identity: it leaves out or refuses each name that the
    // client may not use.
    ($front:expr, $by:expr, $input:expr, each) => {
        $front.permissions.known($by)?
    };
}

/// One row an operation: what it takes and gives, who may do it, which [asking headers](asking_headers) it reads, and
/// which other headers it refuses since they ask for what is not done here. All of this comes before anything else of
/// it.
macro_rules! operations {
    ($(
        $name:ident($input:ident) -> $output:ident = $module:ident::$function:ident,
        needs $right:ident,
        reads $reads:expr,
        refuses [$($header:ident),* $(,)?];
    )*) => {
        #[async_trait]
        impl S3 for S3Frontend {
            $(
                async fn $name(&self, mut request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    // Who asks comes first: the right depends on it.
                    rewriting::restore(&mut request);
                    require!(self, request.credentials.as_ref(), request.input, $right);
                    let (headers, extensions) = (&request.headers, &request.extensions);
                    asking_headers::check(&request.method, &request.uri, headers, extensions, $reads)?;
                    answers::refuse_unknown!(request.input, $($header),*);
                    $module::$function(self, request).await
                }
            )*
        }

        /// The operations with their rights.
        #[cfg(test)]
        const RIGHTS: &[(&str, &str)] = &[$((stringify!($name), stringify!($right))),*];
    };
}

operations! {
    list_buckets(ListBucketsInput) -> ListBucketsOutput = bucket::list,
        needs each,
        reads CONDITIONS,
        refuses [];
    head_bucket(HeadBucketInput) -> HeadBucketOutput = bucket::head,
        needs see,
        reads CONDITIONS,
        refuses [];
    create_bucket(CreateBucketInput) -> CreateBucketOutput = bucket::create,
        needs own,
        reads &[Acl],
        refuses [];
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = bucket::delete,
        needs own,
        reads &[],
        refuses [];
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = bucket::location,
        needs see,
        reads CONDITIONS,
        refuses [];
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::get_bucket_acl,
        needs see,
        reads &[],
        refuses [];
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::set_of_bucket,
        needs own,
        reads &[Acl],
        refuses [];
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::get_object_acl,
        needs read,
        reads &[],
        refuses [];
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::set_of_object,
        needs write,
        reads &[Acl],
        refuses [];
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = bucket::versioning,
        needs see,
        reads CONDITIONS,
        refuses [];
    list_objects(ListObjectsInput) -> ListObjectsOutput = listing::objects,
        needs list,
        reads CONDITIONS,
        refuses [];
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = listing::objects_v2,
        needs list,
        reads CONDITIONS,
        refuses [];
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = listing::versions,
        needs list,
        reads CONDITIONS,
        refuses [];
    get_object(GetObjectInput) -> GetObjectOutput = object::get,
        needs read,
        reads CONDITIONS,
        refuses [];
    head_object(HeadObjectInput) -> HeadObjectOutput = object::head,
        needs read,
        reads CONDITIONS,
        refuses [];
    put_object(PutObjectInput) -> PutObjectOutput = object::put,
        needs write,
        reads &[IfMatch, IfNoneMatch, Acl, Class],
        refuses [website_redirect_location, write_offset_bytes];
    copy_object(CopyObjectInput) -> CopyObjectOutput = object::copy,
        needs read_source_and_write,
        reads &[IfMatch, IfNoneMatch, Acl, Class, CopySource],
        refuses [website_redirect_location];
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = object::delete,
        needs write,
        reads &[IfMatch, IfSizeOrTime],
        refuses [];
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = object::delete_many,
        needs each,
        reads &[],
        refuses [];
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = object::attributes,
        needs read,
        reads &[],
        refuses [];
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get,
        needs read,
        reads &[],
        refuses [];
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put,
        needs write,
        reads &[],
        refuses [];
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete,
        needs write,
        reads &[],
        refuses [];
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create,
        needs write,
        reads &[IfMatch, IfNoneMatch, Acl, Class],
        refuses [website_redirect_location];
    upload_part(UploadPartInput) -> UploadPartOutput = multipart::part,
        needs write,
        reads &[IfMatch, IfNoneMatch],
        refuses [];
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = multipart::part_copy,
        needs read_source_and_write,
        reads &[IfMatch, IfNoneMatch, CopySource, CopyRange],
        refuses [];
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = multipart::complete,
        needs write,
        reads &[IfMatch, IfNoneMatch],
        refuses [];
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort,
        needs write,
        reads &[IfInitiated],
        refuses [];
    list_parts(ListPartsInput) -> ListPartsOutput = multipart::list_parts,
        needs write,
        reads &[],
        refuses [];
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = multipart::list_uploads,
        needs list,
        reads CONDITIONS,
        refuses [];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with a weaker right compiles as well: what changes something or shows bytes is looked at here.
    #[test]
    fn changing_operations_need_write_permission() {
        for (operation, right) in RIGHTS {
            let is_change = !operation.starts_with("get_")
                && !operation.starts_with("head_")
                && !operation.starts_with("list_");
            let may_change = matches!(*right, "write" | "own" | "read_source_and_write" | "each");
            assert!(!is_change || may_change, "{operation} needs {right} alone");
            let is_of_object = operation.contains("object") && !operation.starts_with("list_");
            assert!(!is_of_object || *right != "see", "{operation} needs {right} alone");
        }
        let of_each: Vec<&str> =
            RIGHTS.iter().filter(|(_, right)| *right == "each").map(|(operation, _)| *operation).collect();
        assert_eq!(of_each, ["list_buckets", "delete_objects"]);
    }
}
