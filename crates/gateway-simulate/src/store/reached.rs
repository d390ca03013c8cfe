//! A bucket's store as a gateway reaches it, by `object_store`'s interface.

mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use hyper::header::{HeaderName, HeaderValue};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};

use super::objects::{PutPrecondition, StoredObject, key_of, not_found, path_of, precondition, refused};
use super::{SimulatedStores, failure};
use upload::GatewayUpload;

/// AWS's limit of headers that are kept with an object.
const MAX_HEADER_BYTES: usize = 8 << 10;
const PIECE_BYTES: u64 = 256 << 10;

/// See the module.
#[derive(Clone)]
pub(super) struct GatewayStore {
    stores: SimulatedStores,
    bucket: String,
    gateway: usize,
    lives: Arc<AtomicBool>,
}

impl fmt::Debug for GatewayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated store of {}", self.bucket)
    }
}

impl fmt::Display for GatewayStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

pub(super) fn joined(payload: &PutPayload) -> Bytes {
    let mut bytes = BytesMut::with_capacity(payload.content_length());
    payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes.freeze()
}

/// The real client makes headers of these. It panics where it can't, as it signs what it then does not have.
fn check_attributes(attributes: &Attributes) -> Result<()> {
    let mut length = 0;
    for (attribute, value) in attributes {
        assert!(HeaderValue::from_str(value).is_ok(), "request valid: InvalidHeaderValue");
        length += value.len();
        if let Attribute::Metadata(name) = attribute {
            assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "request valid: InvalidHeaderName");
            length += "x-amz-meta-".len() + name.len();
        }
    }
    match length > MAX_HEADER_BYTES {
        true => Err(refused("RequestHeaderSectionTooLarge")),
        false => Ok(()),
    }
}

fn meta_of(key: &str, object: &StoredObject) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        location: path_of(key)?,
        last_modified: object.modified,
        size: object.bytes.len() as u64,
        e_tag: Some(object.etag.clone()),
        version: None,
    })
}

fn put_result(etag: String) -> PutResult {
    PutResult { e_tag: Some(etag), version: None, extensions: Default::default() }
}

impl GatewayStore {
    pub(super) fn new(
        stores: SimulatedStores,
        bucket: String,
        gateway: usize,
        lives: Arc<AtomicBool>,
    ) -> GatewayStore {
        GatewayStore { stores, bucket, gateway, lives }
    }

    pub(super) fn stores(&self) -> &SimulatedStores {
        &self.stores
    }

    pub(super) fn gateway(&self) -> usize {
        self.gateway
    }

    pub(super) async fn change<T: Send + 'static>(
        &self,
        label: String,
        work: impl FnOnce(&mut super::BucketObjects, chrono::DateTime<chrono::Utc>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.stores.ask((&self.bucket, self.gateway, &self.lives), label, true, work).await
    }

    pub(super) async fn look<T: Send + 'static>(
        &self,
        label: String,
        work: impl FnOnce(&super::BucketObjects) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let sender = (self.bucket.as_str(), self.gateway, &*self.lives);
        self.stores.ask(sender, label, false, move |objects, _| work(objects)).await
    }

    /// Does at once what needs no answer.
    pub(super) fn note<T>(&self, work: impl FnOnce(&mut super::BucketObjects) -> T) -> T {
        self.stores.with(&self.bucket, work)
    }

    /// A body in pieces, which may break off.
    fn stream_of(&self, bytes: Bytes) -> BoxStream<'static, Result<Bytes>> {
        let breaking = self.stores.state.lock().faults.breaking;
        let breaks_at = self.stores.world.with_random(|random| {
            let position = random.below(bytes.len() as u64 + 1);
            random.is_one_of_thousand(breaking).then_some(position)
        });
        let world = self.stores.world.clone();
        stream::unfold((bytes, breaks_at, false), move |(mut rest, mut left, is_over)| {
            let world = world.clone();
            async move {
                if is_over || (rest.is_empty() && left.is_none()) {
                    return None;
                }
                world.sleep(Duration::from_millis(1)).await;
                let length = (rest.len() as u64).min(PIECE_BYTES).min(left.unwrap_or(u64::MAX));
                if length == 0 {
                    return Some((Err(failure("the connection was reset")), (rest, left, true)));
                }
                left = left.map(|left| left - length);
                let piece = rest.split_to(length as usize);
                Some((Ok(piece), (rest, left, false)))
            }
        })
        .boxed()
    }

    fn pages(&self, prefix: Option<&Path>, after: Option<String>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix =
            prefix.filter(|path| !path.as_ref().is_empty()).map_or(String::new(), |path| format!("{path}/"));
        let reached = self.clone();
        stream::unfold(Some(after), move |state| {
            let (reached, prefix) = (reached.clone(), prefix.clone());
            async move {
                let after = state?;
                let start_after = after.clone();
                let listed = reached
                    .look(format!("LIST {prefix}"), move |objects| {
                        Ok(objects.list(&prefix, start_after.as_deref()))
                    })
                    .await;
                let (page, has_more) = match listed {
                    Ok(listed) => listed,
                    Err(error) => return Some((vec![Err(error)], None)),
                };
                let next = page.last().map(|(key, _)| Some(key.clone())).filter(|_| has_more);
                // What no path leads to the real client refuses as a whole: nobody puts such here.
                let found = page.iter().map(|(key, object)| meta_of(key, object)).collect();
                Some((found, next))
            }
        })
        .flat_map(stream::iter)
        .boxed()
    }
}

#[async_trait]
impl ObjectStore for GatewayStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        check_attributes(&options.attributes)?;
        let key = key_of(location);
        let bytes = joined(&payload);
        let _held = self.stores.hold(self.gateway, bytes.len() as u64);
        let wanted = match options.mode {
            PutMode::Overwrite => PutPrecondition::Anything,
            PutMode::Create => PutPrecondition::Nothing,
            PutMode::Update(version) => PutPrecondition::Version(version.e_tag),
        };
        let label = format!("PUT {key:?} {} bytes", bytes.len());
        let attributes = options.attributes;
        let etag = self
            .change(label, move |objects, now| objects.put(&key, bytes, attributes, &wanted, now))
            .await?;
        Ok(put_result(etag))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        check_attributes(&options.attributes)?;
        let (key, gateway, attributes) = (key_of(location), self.gateway, options.attributes);
        let label = format!("CreateMultipartUpload {key:?}");
        let begun = key.clone();
        let number = self
            .change(label, move |objects, _| Ok(objects.begin_upload(&begun, attributes, gateway)))
            .await
            .inspect_err(|_| self.excuse(&key))?;
        Ok(Box::new(GatewayUpload::new(self.clone(), key, number)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let key = key_of(location);
        let label = format!("{} {key:?}", if options.head { "HEAD" } else { "GET" });
        let asked = key.clone();
        let object = self
            .look(label, move |objects| objects.get(&asked).cloned().ok_or_else(|| not_found(&asked)))
            .await?;
        if options.if_match.as_ref().is_some_and(|wanted| *wanted != object.etag) {
            return Err(precondition(&key));
        }
        let meta = ObjectMeta { location: location.clone(), ..meta_of(&key, &object)? };
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range.as_range(meta.size).map_err(|error| failure(&error.to_string()))?,
        };
        let bytes = match options.head {
            true => Bytes::new(),
            false => object.bytes.slice(range.start as usize..range.end as usize),
        };
        let payload = GetResultPayload::Stream(self.stream_of(bytes));
        Ok(GetResult { payload, meta, range, attributes: object.attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            found.push(self.get_opts(location, options).await?.bytes().await?);
        }
        Ok(found)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let reached = self.clone();
        locations
            .then(move |location| {
                let reached = reached.clone();
                async move {
                    let location = location?;
                    let key = key_of(&location);
                    reached
                        .change(format!("DELETE {key:?}"), move |objects, _| {
                            objects.delete(&key);
                            Ok(())
                        })
                        .await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(prefix, Some(key_of(offset)))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut pages = self.pages(prefix, None);
        let length = prefix.map_or(0, |prefix| prefix.parts().count());
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::<Path>::new());
        while let Some(meta) = pages.next().await {
            let meta = meta?;
            match meta.location.parts().count() > length + 1 {
                true => {
                    let folder: Path = meta.location.parts().take(length + 1).collect();
                    if common_prefixes.last() != Some(&folder) {
                        common_prefixes.push(folder);
                    }
                }
                false => objects.push(meta),
            }
        }
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (key_of(from), key_of(to));
        let is_new = options.mode == CopyMode::Create;
        let label = format!("CopyObject {from:?} to {to:?}");
        self.change(label, move |objects, now| objects.copy(&from, &to, is_new, now)).await
    }
}

impl GatewayStore {
    /// An upload may be there that nobody knows the number of.
    fn excuse(&self, key: &str) {
        self.note(|objects| {
            objects
                .uploads
                .values_mut()
                .filter(|upload| upload.key == key)
                .for_each(|upload| upload.is_excused = true);
        });
    }
}
