//! How an object that a store has listed becomes known to the metadata.

use crate::errors::GatewayResult;
use crate::meta::{MetadataChange, ObjectName};
use crate::model::{
    ContentExtent, ContentId, ContentPlace, ObjectChecksums, ObjectHeaders, ObjectRecord, StoredRecord,
};
use crate::store::{BackendKind, StoredInfo, bare};

/// Objects of one commit.
pub(super) const BATCH: usize = 2_000;

/// Enters an object from a listing: it stays known from now on, unless the store later shows a newer one.
pub(super) fn enter_listed(
    change: &mut MetadataChange<'_>,
    name: &ObjectName,
    found: &StoredInfo,
    numbers: (u64, u64),
    kind: BackendKind,
) -> GatewayResult<()> {
    enter(change, name, found, numbers, kind)?;
    change.confirm_content(ContentId(numbers.1), found.modified_ms)
}

/// Enters an object that is in the store and that the metadata don't have. Of one in an S3 store the headers are asked
/// for when somebody wants them; a directory has none.
pub(super) fn enter(
    change: &mut MetadataChange<'_>,
    name: &ObjectName,
    found: &StoredInfo,
    numbers: (u64, u64),
    kind: BackendKind,
) -> GatewayResult<()> {
    let (version, content) = (numbers.0, ContentId(numbers.1));
    let extents = match found.size_bytes {
        0 => Vec::new(),
        length_bytes => vec![ContentExtent { content, offset_bytes: 0, length_bytes }],
    };
    if found.size_bytes > 0 {
        let place = ContentPlace::Remote {
            bucket: name.bucket.clone(),
            key: name.key.clone(),
            etag: found.etag.clone(),
            headers_hash: None,
            cached_as: content,
        };
        change.add_content(content, found.size_bytes, place)?;
    }
    let record = ObjectRecord {
        version,
        size_bytes: found.size_bytes,
        etag: found.etag.as_deref().map_or_else(|| format!("{version:032x}-1"), |etag| bare(etag).to_owned()),
        modified_ms: found.modified_ms,
        extents,
        headers: ObjectHeaders::default(),
        tags: Vec::new(),
        checksums: ObjectChecksums::default(),
        part_sizes_bytes: Vec::new(),
        part_checksums: Vec::new(),
        only_listed: kind == BackendKind::S3,
    };
    change.set_object(name, Some(&record))?;
    let content = (found.size_bytes > 0).then_some(content);
    change.set_stored(name, Some(&StoredRecord { content }))
}
