//! The store's required contents in the end: exactly the gateways' objects.

use object_store::Attribute;
use underlay_gateway::store::{BackendKind, path_of};

use super::{ObjectModel, SeenObject};
use crate::script::StoreKind;
use crate::store::{SimulatedStores, StoredObject, name_of};

/// Objects that the gateways keep in a store for themselves.
const OWNERS: &str = "%underlay-cluster";
const PARTS: &str = "%underlay-parts/";

impl ObjectModel {
    /// Checks what a bucket's store has after everything is stored.
    pub fn check_stores(&self, stores: &SimulatedStores, bucket: &str) {
        if let Some(failure) = stores.failure() {
            return self.fail(failure);
        }
        if let Some(wrong) = self.wrong_in_store(stores, bucket) {
            self.fail(format!("in the end the store {wrong}"));
        }
    }

    fn wrong_in_store(&self, stores: &SimulatedStores, bucket: &str) -> Option<String> {
        let now = self.begin_read();
        let mut contents = stores.contents(bucket);
        contents.remove(OWNERS);
        let state = self.state.lock();
        if !state.unfinished_uploads.is_empty() {
            contents.retain(|key, _| !key.starts_with(PARTS));
        }
        let kind = if state.kind == StoreKind::S3 { BackendKind::S3 } else { BackendKind::Directory };
        for key in state.keys.keys() {
            let name = path_of(key, kind).ok().map(|path| name_of(&path));
            let found = name.and_then(|name| contents.remove(&name));
            let possible = state.possible(key, now, now, 0);
            let fits = possible.iter().any(|(_, version)| match (version, &found) {
                (None, None) => true,
                (Some(version), Some(object)) => state.is_it(version, &seen_of(object)),
                _ => false,
            });
            if !fits {
                let found = found.map_or("nothing".to_owned(), |object| {
                    format!("{} bytes, id {:?}", object.bytes.len(), id_of(&object))
                });
                return Some(format!("has {found} at {key:?}; possible is {}", state.described(&possible)));
            }
        }
        if let Some((key, object)) = contents.first_key_value() {
            return Some(format!("has {key:?} with {} bytes, which nobody has written", object.bytes.len()));
        }
        drop(state);
        if let Some(path) = stores.unfinished_files().first() {
            return Some(format!("has a file that nobody needs: {}", path.display()));
        }
        let left = stores.left_uploads(bucket);
        left.first().map(|key| format!("has an upload to {key:?} that was neither completed nor aborted"))
    }
}

fn id_of(object: &StoredObject) -> Option<String> {
    object.attributes.get(&Attribute::Metadata("id".into())).map(|id| id.to_string())
}

/// Its ETag is the store's own.
fn seen_of(object: &StoredObject) -> SeenObject {
    let size = object.bytes.len() as u64;
    SeenObject { size, etag: None, id: Some(id_of(object)), bytes: Some((0..size, object.bytes.clone())) }
}
