//! S3 in front of the [engine](crate::engine): `s3s` parses requests, verifies signatures and writes answers; here is what each
//! operation means. What has no method here answers `NotImplemented`.

mod access;
mod acl;
mod answers;
mod bucket;
mod input;
mod listing;
mod multipart;
mod object;
mod post;
mod tagging;

pub(crate) use access::{Note, Permissions, refused_at_once};
pub(crate) use answers::{numbered, put_right};
pub(crate) use post::Forms;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use hyper::{HeaderMap, Uri};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::config::{Key, SecretPlace};
use crate::digests::ALGORITHMS;
use crate::engine::Engine;
use crate::form::Form;
use crate::model::Checksums;
use input::Promised;

/// For the fuzzer: any text as what requests bring, as far as `s3s` leaves it to us.
pub(crate) fn read_any(text: &str) {
    let _ = (input::tags(Some(text)), input::copied_range(text, 1 << 20), listing::position(text));
}

/// For the fuzzer: any head of a request, as far as it is looked at before an operation.
pub(crate) fn read_any_head(headers: &HeaderMap, uri: &Uri) {
    access::read_any(headers, uri);
    let mut checksums = Checksums::default();
    for algorithm in ALGORITHMS {
        if let Some(value) = headers.get(algorithm.header()).and_then(|value| value.to_str().ok()) {
            checksums.set(algorithm, value.to_owned());
        }
    }
    if let Ok(promised) = Promised::of(headers, None, checksums, None) {
        let _ = promised.verify()(&[0; 16], &Checksums::default());
    }
    let _ = input::size(None, headers);
}

/// For the fuzzer: any form.
pub(crate) fn read_any_form(form: Form) {
    let place = SecretPlace::Environment(String::new());
    let key = Key { name: "a".to_owned(), id: "KEY".to_owned(), secret: place, grants: Vec::new() };
    let secrets = HashMap::from([("KEY".to_owned(), "secret".to_owned())]);
    post::read_any(form, &Permissions::new(&[key], &secrets));
}

/// The longest document of a request, which is read into memory as a whole. The parts of an upload, 10,000 of them, take some 250 bytes each with a
/// checksum, and 1000 keys to delete 1024 bytes each with what stands around them: both are below 3 MiB.
const MOST_DOCUMENT_BYTES: usize = 4 << 20;

/// See the module.
pub(crate) struct Front {
    engine: Arc<Engine>,
    permissions: Arc<Permissions>,
}

/// The service, with signatures and permissions.
pub(crate) fn service(engine: Arc<Engine>, permissions: Arc<Permissions>) -> S3Service {
    let mut builder = S3ServiceBuilder::new(Front { engine, permissions: Arc::clone(&permissions) });
    builder.set_auth(access::Secrets(Arc::clone(&permissions)));
    builder.set_access(access::Access);
    let mut config = S3Config::default();
    config.xml_max_body_size = MOST_DOCUMENT_BYTES;
    // Forms go to `post`. Should one get through, it must not fill the memory.
    config.post_object_max_file_size = 0;
    config.form_max_field_size = 1 << 10;
    config.form_max_fields_size = 4 << 10;
    config.form_max_parts = 8;
    builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
    builder.build()
}

macro_rules! operations {
    ($($name:ident($input:ident) -> $output:ident = $module:ident::$function:ident;)*) => {
        #[async_trait]
        impl S3 for Front {
            $(
                async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    $module::$function(self, request).await
                }
            )*
        }
    };
}

operations! {
    list_buckets(ListBucketsInput) -> ListBucketsOutput = bucket::list;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = bucket::head;
    create_bucket(CreateBucketInput) -> CreateBucketOutput = bucket::create;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = bucket::delete;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = bucket::location;
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acl::of_bucket;
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acl::set_of_bucket;
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acl::of_object;
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acl::set_of_object;
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = bucket::versioning;
    list_objects(ListObjectsInput) -> ListObjectsOutput = listing::objects;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = listing::objects_v2;
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = listing::versions;
    get_object(GetObjectInput) -> GetObjectOutput = object::get;
    head_object(HeadObjectInput) -> HeadObjectOutput = object::head;
    put_object(PutObjectInput) -> PutObjectOutput = object::put;
    copy_object(CopyObjectInput) -> CopyObjectOutput = object::copy;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = object::delete;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = object::delete_many;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = object::attributes;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete;
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create;
    upload_part(UploadPartInput) -> UploadPartOutput = multipart::part;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = multipart::part_copy;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = multipart::complete;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort;
    list_parts(ListPartsInput) -> ListPartsOutput = multipart::list_parts;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = multipart::list_uploads;
}
