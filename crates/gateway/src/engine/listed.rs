//! How an object that a store has listed becomes known to the metadata.

use crate::errors::Result;
use crate::meta::{Change, Name};
use crate::model::{Checksums, ContentId, Extent, Headers, ObjectRecord, Place, StoredRecord};
use crate::store::{Found, Kind, bare};

/// Objects of one commit.
pub(super) const BATCH: usize = 2_000;

/// Enters an object from a listing: it stays known from now on, whatever the store says about it later, unless that is newer.
pub(super) fn enter_listed(
    change: &mut Change<'_>,
    name: &Name,
    found: &Found,
    numbers: (u64, u64),
    kind: Kind,
) -> Result<()> {
    enter(change, name, found, numbers, kind)?;
    change.confirm_content(ContentId(numbers.1), found.modified_ms)
}

/// Enters an object that is in the store and that the metadata don't have. Of one in an S3 store the headers are asked for when
/// somebody wants them; a directory has none.
pub(super) fn enter(
    change: &mut Change<'_>,
    name: &Name,
    found: &Found,
    numbers: (u64, u64),
    kind: Kind,
) -> Result<()> {
    let (version, content) = (numbers.0, ContentId(numbers.1));
    let extents = match found.size_bytes {
        0 => Vec::new(),
        length_bytes => vec![Extent { content, offset_bytes: 0, length_bytes }],
    };
    if found.size_bytes > 0 {
        let place = Place::Remote {
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
        headers: Headers::default(),
        tags: Vec::new(),
        checksums: Checksums::default(),
        part_sizes_bytes: Vec::new(),
        part_checksums: Vec::new(),
        only_listed: kind == Kind::S3,
    };
    change.set_object(name, Some(&record))?;
    let content = (found.size_bytes > 0).then_some(content);
    change.set_stored(name, Some(&StoredRecord { content }))
}
