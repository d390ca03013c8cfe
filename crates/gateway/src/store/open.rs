//! From what the configuration says of a bucket's store to the store itself.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};
use openssl::x509::X509;
use underlay_files::{Access, Folder, read};

use super::crypto::StoreCrypto;
use super::wire::SigningTransport;
use super::{BackendKind, STORE_TIMEOUT, StoreBackend};
use crate::config::{S3Endpoint, StorePlace};

/// Requests are tried again for so long before the caller hears of it: a flush tries again later anyway.
const RETRIES: usize = 3;
const RETRY_FOR: Duration = Duration::from_secs(20);
const CONNECT: Duration = Duration::from_secs(5);
/// Of a file of certificates.
const MAX_CERTIFICATE_BYTES: u64 = 1 << 20;
/// Linux's longest path, less the part that objects in it may need.
const MAX_DIRECTORY_BYTES: usize = 1000;

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct OpenError(pub(crate) String);

/// How the stores of S3 endpoints are reached, with the secrets.
#[derive(Clone, Debug)]
pub(crate) struct EndpointAccess {
    pub(crate) endpoint: S3Endpoint,
    pub(crate) secret: Option<String>,
}

/// Makes a bucket's store ready. A directory must be there.
///
/// # Errors
/// When the directory is not there or not ours alone, or the endpoint makes no sense.
pub(crate) fn open(place: &StorePlace, reached: &EndpointAccess) -> Result<StoreBackend, OpenError> {
    match place {
        StorePlace::Directory(directory) => open_directory(directory),
        StorePlace::S3 { bucket, prefix } => open_s3(bucket, prefix, reached),
    }
}

fn open_directory(directory: &Path) -> Result<StoreBackend, OpenError> {
    let failed = |error: &dyn std::fmt::Display| OpenError(format!("{}: {error}", directory.display()));
    // Others who can write there could make the gateway write through a link of theirs.
    let folder = Folder::open(directory).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(&"it is not there; is its file system mounted? (if it is lost for good, make an empty one: see \"A directory that is not mounted\" in docs/gateway.md)"),
        _ => failed(&error),
    })?;
    let length = directory.as_os_str().len();
    if length > MAX_DIRECTORY_BYTES {
        return Err(failed(&format_args!(
            "the path has {length} bytes, and a store's may have {MAX_DIRECTORY_BYTES}"
        )));
    }
    let store = LocalFileSystem::new_with_prefix(directory)
        .map_err(|error| failed(&error))?
        // The journal forgets objects that the store has acknowledged.
        .with_fsync(true)
        // It would remove directories that others are about to use: `clear_place` knows which.
        .with_automatic_cleanup(false);
    StoreBackend::new(Arc::new(store), BackendKind::Directory)
        .with_root(folder.path())
        .map_err(|error| failed(&error))
}

fn open_s3(bucket: &str, prefix: &str, reached: &EndpointAccess) -> Result<StoreBackend, OpenError> {
    let endpoint = &reached.endpoint;
    // As long as a key's turn is held for a request: one that was given up sooner might yet be carried out over the
    // next writer's.
    let mut options = ClientOptions::new()
        .with_timeout(STORE_TIMEOUT)
        .with_connect_timeout(CONNECT)
        .with_allow_http(endpoint.url.as_deref().is_some_and(|url| url.starts_with("http://")));
    if let Some(file) = &endpoint.authority {
        options = options.with_no_system_certificates(true);
        for certificate in certificates(file)? {
            options = options.with_root_certificate(certificate);
        }
    }
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: RETRY_FOR,
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
    };
    let wire = SigningTransport::default();
    let mut builder = AmazonS3Builder::new()
        .with_http_connector(wire.clone())
        .with_bucket_name(bucket)
        .with_region(&endpoint.region)
        .with_client_options(options)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_virtual_hosted_style_request(endpoint.has_virtual_hosts)
        // One key is deleted at a time, and not every store has DeleteObjects.
        .with_disable_bulk_delete(true)
        .with_crypto_provider(Arc::new(StoreCrypto));
    if let Some(url) = &endpoint.url {
        builder = builder.with_endpoint(url);
    }
    // Without, object_store asks the machine's own identity (instance metadata, a web token).
    if let (Some(id), Some(secret)) = (&endpoint.key_id, &reached.secret) {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
    }
    let store = builder.build().map_err(|error| OpenError(format!("s3://{bucket}: {error}")))?;
    wire.sign_for(&store, &endpoint.region);
    let prefix = prefix.trim_matches('/');
    let backend = match prefix.is_empty() {
        true => StoreBackend::new(Arc::new(store), BackendKind::S3),
        false => {
            let prefix = object_store::path::Path::from(prefix);
            let prefix_bytes = prefix.as_ref().len() + 1;
            StoreBackend::new(Arc::new(PrefixStore::new(store, prefix)), BackendKind::S3).below(prefix_bytes)
        }
    };
    // Without an address of its own it is AWS, whose buckets are one name everywhere.
    Ok(backend.reached_at(endpoint.url.as_deref().unwrap_or("AWS")))
}

impl StoreBackend {
    /// The same, reached at this endpoint.
    pub fn reached_at(self, endpoint: &str) -> StoreBackend {
        StoreBackend { endpoint: Some(endpoint.into()), ..self }
    }

    /// At another one there may be another store of the same name.
    pub(crate) fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }
}

/// The certificates of a file of PEM, one or more.
fn certificates(file: &Path) -> Result<Vec<Certificate>, OpenError> {
    let failed = |error: &dyn std::fmt::Display| {
        OpenError(format!("`authority` of [s3]: {}: {error}", file.display()))
    };
    let text = read(file, MAX_CERTIFICATE_BYTES).map_err(|error| failed(&error))?;
    let found = X509::stack_from_pem(&text).map_err(|error| failed(&error))?;
    if found.is_empty() {
        return Err(failed(&"it has no certificate (PEM begins with -----BEGIN CERTIFICATE-----)"));
    }
    let of_store = |certificate: X509| {
        let bytes = certificate.to_der().map_err(|error| failed(&error))?;
        Certificate::from_der(&bytes).map_err(|error| failed(&error))
    };
    found.into_iter().map(of_store).collect()
}

/// The place of a bucket that a client creates, below `under`. A directory is made, and none above it: one that is
/// missing may have to be mounted.
///
/// # Errors
/// When it can't be.
pub(crate) fn create_below(under: &StorePlace, bucket: &str) -> Result<StorePlace, OpenError> {
    match under {
        StorePlace::S3 { bucket: outer, prefix } => {
            let prefix = format!("{}/{bucket}", prefix.trim_matches('/'));
            Ok(StorePlace::S3 { bucket: outer.clone(), prefix: prefix.trim_matches('/').to_owned() })
        }
        StorePlace::Directory(directory) => {
            Folder::open(directory)
                .and_then(|above| above.make_inner(bucket, Access::Private))
                .map_err(|error| OpenError(format!("{}: {error}", directory.display())))?;
            Ok(StorePlace::Directory(directory.join(bucket)))
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;
    use crate::errors::{GatewayError, GatewayResult};
    use crate::model::ObjectHeaders;
    use crate::store::StoreCondition;

    fn directory() -> (tempfile::TempDir, StoreBackend) {
        let directory = tempfile::tempdir().unwrap();
        let backend = open_directory(directory.path()).unwrap();
        (directory, backend)
    }

    async fn put(backend: &StoreBackend, key: &str) -> GatewayResult<()> {
        let body = futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"x"))]).boxed();
        backend
            .put(key, &ObjectHeaders::default(), 1, &StoreCondition::Always, body, &|| Ok(()))
            .await
            .map(drop)
    }

    #[tokio::test]
    async fn accepted_directory_key_can_be_stored() {
        let (_directory, backend) = directory();
        for key in ["k".repeat(250), "/".repeat(100), format!("{}/b", "d#".repeat(50)), "a#b#1".to_owned()] {
            backend.path(&key).unwrap();
            put(&backend, &key).await.unwrap();
            backend.head(&key).await.unwrap();
        }
        for key in ["k".repeat(251), "/".repeat(1024)] {
            assert!(matches!(backend.path(&key), Err(GatewayError::KeyTooLong(_))), "{key}");
        }
        let below =
            StoreBackend::new(Arc::new(object_store::memory::InMemory::new()), BackendKind::S3).below(100);
        assert!(below.path(&"k".repeat(924)).is_ok());
        assert!(matches!(below.path(&"k".repeat(925)), Err(GatewayError::KeyTooLong(_))));
        // The substitute for a final slash never gets there.
        assert!(below.path(&format!("{}/", "k".repeat(923))).is_ok());
        assert!(matches!(below.path(&format!("{}/", "k".repeat(924))), Err(GatewayError::KeyTooLong(_))));
    }

    /// Threads that hang in it would soon be all there are.
    #[tokio::test]
    async fn unanswering_directory_is_away_at_once() {
        let (_directory, backend) = directory();
        let root = backend.root.clone().unwrap();
        let all = root.looks.available_permits() as u32;
        let hanging = root.looks.acquire_many(all).await.unwrap();
        assert!(backend.check_there().await.is_err() && backend.is_away());
        // From now on nobody waits for it.
        let asked = futures_util::FutureExt::now_or_never(backend.check_there());
        assert!(matches!(asked, Some(Err(GatewayError::StoreAway(why))) if why.contains("is it mounted?")));
        drop(hanging);
        backend.watch().await.unwrap();
        assert!(backend.check_there().await.is_ok() && !backend.is_away());
        assert_eq!(backend.returns(), Some(1));
    }

    #[tokio::test]
    async fn directory_behind_many_looks_is_there() {
        let (_directory, backend) = directory();
        let root = backend.root.clone().unwrap();
        let all = root.looks.available_permits() as u32;
        let busy = root.looks.acquire_many(all).await.unwrap();
        let another_comes_back = async {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            root.note_answer();
        };
        let (looked, ()) = tokio::join!(backend.check_there(), another_comes_back);
        assert!(matches!(looked, Err(GatewayError::Busy(_))) && !backend.is_away());
        drop(busy);
        backend.check_there().await.unwrap();
    }

    #[tokio::test]
    async fn object_replaces_emptied_directory() {
        let (_directory, backend) = directory();
        put(&backend, "a/b/c").await.unwrap();
        backend.delete("a/b/c", &|| Ok(())).await.unwrap();
        backend.make_way("a").await.unwrap();
        put(&backend, "a").await.unwrap();
        backend.head("a").await.unwrap();
    }

    /// A second link to the same file beside its name would keep the bytes when both are deleted, and the directory as
    /// well.
    #[tokio::test]
    async fn repeated_copy_leaves_no_extra_file() {
        let (directory, backend) = directory();
        put(&backend, "from").await.unwrap();
        for _ in 0..3 {
            backend.copy("from", "dir/to", &|| Ok(())).await.unwrap();
            backend.copy("dir/to", "from", &|| Ok(())).await.unwrap();
        }
        let names = |path: &Path| {
            let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(directory.path()), ["dir", "from"]);
        assert_eq!(names(&directory.path().join("dir")), ["to"]);
        // Another version of the source is copied.
        put(&backend, "from").await.unwrap();
        backend.copy("from", "dir/to", &|| Ok(())).await.unwrap();
        assert_eq!(backend.head("from").await.unwrap().etag, backend.head("dir/to").await.unwrap().etag);
        for key in ["from", "dir/to"] {
            backend.delete(key, &|| Ok(())).await.unwrap();
        }
        backend.make_way("dir").await.unwrap();
        put(&backend, "dir").await.unwrap();
        assert_eq!(names(directory.path()), ["dir"]);
    }

    #[tokio::test]
    async fn files_without_keys_are_not_listed() {
        let (directory, backend) = directory();
        put(&backend, "mine#1").await.unwrap();
        std::fs::write(directory.path().join("theirs#b"), "x").unwrap();
        std::fs::write(directory.path().join("theirs"), "x").unwrap();
        let listed = backend.list("").unwrap().map(|entry| entry.unwrap().0).collect::<Vec<_>>().await;
        assert_eq!(listed.len(), 2, "{listed:?}");
        for key in ["mine#1", "theirs"] {
            assert!(listed.iter().any(|listed| listed == key), "{key} is not in {listed:?}");
        }
    }

    #[test]
    fn copies_above_size_limit_are_refused_for_s3() {
        let (_directory, directory) = directory();
        let s3 = StoreBackend::new(Arc::new(object_store::memory::InMemory::new()), BackendKind::S3);
        assert!(s3.can_copy(5 << 30) && !s3.can_copy((5 << 30) + 1));
        assert!(directory.can_copy(1 << 50));
    }

    #[tokio::test]
    async fn symbolic_links_are_not_followed() {
        let (directory, backend) = directory();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "not for you").unwrap();
        std::os::unix::fs::symlink(outside.path(), directory.path().join("sub")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), directory.path().join("file")).unwrap();
        for key in ["sub/secret", "file"] {
            assert!(matches!(backend.head(key).await, Err(GatewayError::AccessDenied(_))), "{key}");
            assert!(
                matches!(backend.get(key, None, 1, 0..1).await, Err(GatewayError::AccessDenied(_))),
                "{key}"
            );
            assert!(matches!(put(&backend, key).await, Err(GatewayError::AccessDenied(_))), "{key}");
            assert!(
                matches!(backend.delete(key, &|| Ok(())).await, Err(GatewayError::AccessDenied(_))),
                "{key}"
            );
            assert!(
                matches!(backend.copy(key, "copy", &|| Ok(())).await, Err(GatewayError::AccessDenied(_))),
                "{key}"
            );
        }
        assert!(matches!(put(&backend, "sub/new").await, Err(GatewayError::AccessDenied(_))));
        assert!(!outside.path().join("new").exists());
        // Nor is a directory passed through in which somebody else may put one.
        let open = directory.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(put(&backend, "open/a").await, Err(GatewayError::AccessDenied(_))));
        let listed = backend.list("").unwrap().map(|entry| entry.unwrap().0).collect::<Vec<_>>().await;
        assert!(listed.is_empty(), "{listed:?}");
    }
}
