//! Reading what the last commit left.

use std::ops::Bound;
use std::sync::OnceLock;

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase as _, ReadableTable};
use serde::de::DeserializeOwned;

use super::tables::{
    BUCKETS, CONTENTS, MetadataTable, OBJECTS, ObjectName, PARTS, PENDING, STATE, STORED, UPLOADS, decode,
    made_by_key, part_key, split_part_key, split_upload_key, upload_key,
};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{
    BucketRecord, ContentId, ContentRecord, ObjectRecord, PartRecord, PendingRecord, StoredRecord,
    UploadRecord,
};

/// One row of a table by its key.
pub(super) fn fetch<V: DeserializeOwned>(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> GatewayResult<Option<V>> {
    match table.get(key).map_err(|error| unreadable(&error))? {
        Some(row) => decode(row.value()).map(Some),
        None => Ok(None),
    }
}

pub(super) fn unreadable(error: &dyn std::fmt::Display) -> GatewayError {
    GatewayError::local("cannot read the metadata", error)
}

/// Rows from a key on, as long as `take` wants more of them.
pub(super) fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: Bound<&[u8]>,
    mut take: impl FnMut(&[u8], &[u8]) -> GatewayResult<bool>,
) -> GatewayResult<()> {
    let rows = table.range::<&[u8]>((from, Bound::Unbounded)).map_err(|error| unreadable(&error))?;
    for row in rows {
        let (key, value) = row.map_err(|error| unreadable(&error))?;
        if !take(key.value(), value.value())? {
            break;
        }
    }
    Ok(())
}

type TableRows = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A consistent look at all tables.
pub(crate) struct MetadataView {
    transaction: ReadTransaction,
    /// Every read of an object needs these two, and opening one takes longer than finding a row in it.
    objects: OnceLock<TableRows>,
    contents: OnceLock<TableRows>,
}

impl MetadataView {
    pub(super) fn from_database(database: &Database) -> GatewayResult<MetadataView> {
        let transaction = database.begin_read().map_err(|error| unreadable(&error))?;
        Ok(MetadataView { transaction, objects: OnceLock::new(), contents: OnceLock::new() })
    }

    fn open(&self, table: MetadataTable) -> GatewayResult<TableRows> {
        self.transaction.open_table(table).map_err(|error| unreadable(&error))
    }

    /// The same of a table that stays open as long as the view.
    fn keep_open<'a>(
        &self,
        place: &'a OnceLock<TableRows>,
        table: MetadataTable,
    ) -> GatewayResult<&'a TableRows> {
        match place.get() {
            Some(rows) => Ok(rows),
            None => {
                let rows = self.open(table)?;
                Ok(place.get_or_init(|| rows))
            }
        }
    }

    pub(crate) fn number(&self, key: &[u8]) -> GatewayResult<Option<u64>> {
        self.state(key)
    }

    pub(crate) fn state<V: DeserializeOwned>(&self, key: &[u8]) -> GatewayResult<Option<V>> {
        fetch(&self.open(STATE)?, key)
    }

    /// Those whose key begins with this, by the rest of it.
    pub(crate) fn states_below<V: DeserializeOwned>(&self, prefix: &[u8]) -> GatewayResult<Vec<(String, V)>> {
        let mut states = Vec::new();
        scan(&self.open(STATE)?, Bound::Included(prefix), |key, value| {
            let Some(rest) = key.strip_prefix(prefix) else { return Ok(false) };
            let rest = String::from_utf8(rest.to_vec()).map_err(|_| unreadable(&"a key is damaged"))?;
            states.push((rest, decode(value)?));
            Ok(true)
        })?;
        Ok(states)
    }

    pub(crate) fn object(&self, name: &ObjectName) -> GatewayResult<Option<ObjectRecord>> {
        fetch(self.keep_open(&self.objects, OBJECTS)?, &name.to_bytes())
    }

    /// The upload that has made an object, and the version that it has made.
    pub(crate) fn maker(&self, name: &ObjectName) -> GatewayResult<Option<(String, u64)>> {
        self.state(&made_by_key(name))
    }

    pub(crate) fn content(&self, id: ContentId) -> GatewayResult<Option<ContentRecord>> {
        fetch(self.keep_open(&self.contents, CONTENTS)?, &id.0.to_be_bytes())
    }

    pub(crate) fn pending(&self, name: &ObjectName) -> GatewayResult<Option<PendingRecord>> {
        fetch(&self.open(PENDING)?, &name.to_bytes())
    }

    pub(crate) fn stored(&self, name: &ObjectName) -> GatewayResult<Option<StoredRecord>> {
        fetch(&self.open(STORED)?, &name.to_bytes())
    }

    pub(crate) fn upload(&self, name: &ObjectName, upload: &str) -> GatewayResult<Option<UploadRecord>> {
        fetch(&self.open(UPLOADS)?, &upload_key(name, upload))
    }

    pub(crate) fn part(&self, upload: &str, number: u16) -> GatewayResult<Option<PartRecord>> {
        fetch(&self.open(PARTS)?, &part_key(upload, number))
    }

    /// Parts of an upload in the order of their numbers, `after` one.
    pub(crate) fn parts(
        &self,
        upload: &str,
        after: u16,
        most: usize,
    ) -> GatewayResult<Vec<(u16, PartRecord)>> {
        let mut parts = Vec::new();
        let start = part_key(upload, 0);
        let prefix = &start[..start.len() - 2];
        scan(&self.open(PARTS)?, Bound::Excluded(&part_key(upload, after)), |key, value| {
            let Some(number) = key.strip_prefix(prefix).and_then(|rest| <[u8; 2]>::try_from(rest).ok())
            else {
                return Ok(false);
            };
            if parts.len() == most {
                return Ok(false);
            }
            parts.push((u16::from_be_bytes(number), decode(value)?));
            Ok(true)
        })?;
        Ok(parts)
    }

    /// Objects of a bucket in S3's order. `from` bounds the keys; `take` says whether it wants more.
    pub(crate) fn objects(
        &self,
        bucket: &str,
        from: Bound<&str>,
        mut take: impl FnMut(&str, ObjectRecord) -> GatewayResult<bool>,
    ) -> GatewayResult<()> {
        let start = match from {
            Bound::Included(key) => Bound::Included(ObjectName::new(bucket, key).to_bytes()),
            Bound::Excluded(key) => Bound::Excluded(ObjectName::new(bucket, key).to_bytes()),
            Bound::Unbounded => Bound::Included(ObjectName::new(bucket, "").to_bytes()),
        };
        let start = start.as_ref().map(Vec::as_slice);
        scan(&self.open(OBJECTS)?, start, |key, value| match ObjectName::from_bytes(key) {
            Some(name) if name.bucket == bucket => take(&name.key, decode(value)?),
            _ => Ok(false),
        })
    }

    /// Uploads of a bucket, by key and then by upload.
    pub(crate) fn uploads(
        &self,
        bucket: &str,
        after: &[u8],
        mut take: impl FnMut(ObjectName, String, UploadRecord) -> GatewayResult<bool>,
    ) -> GatewayResult<()> {
        scan(&self.open(UPLOADS)?, Bound::Excluded(after), |key, value| match split_upload_key(key) {
            Some((name, upload)) if name.bucket == bucket => take(name, upload, decode(value)?),
            _ => Ok(false),
        })
    }

    pub(crate) fn all_buckets(&self) -> GatewayResult<Vec<(String, BucketRecord)>> {
        self.all(BUCKETS, |key| String::from_utf8(key.to_vec()).ok())
    }

    pub(crate) fn all_pending(&self) -> GatewayResult<Vec<(ObjectName, PendingRecord)>> {
        self.all(PENDING, ObjectName::from_bytes)
    }

    /// Every name that is pending, one at a time: there can be a million.
    pub(crate) fn each_pending(&self, mut take: impl FnMut(ObjectName, PendingRecord)) -> GatewayResult<()> {
        self.each(PENDING, |key, value| {
            let name = ObjectName::from_bytes(key).ok_or_else(|| unreadable(&"a key is damaged"))?;
            take(name, decode(value)?);
            Ok(())
        })
    }

    pub(crate) fn count_pending(&self, predicate: impl Fn(&ObjectName) -> bool) -> GatewayResult<usize> {
        let mut count = 0;
        self.each_pending(|name, _| count += usize::from(predicate(&name)))?;
        Ok(count)
    }

    /// Every upload that is in flight.
    pub(crate) fn each_upload(
        &self,
        mut take: impl FnMut(ObjectName, String, UploadRecord),
    ) -> GatewayResult<()> {
        self.each(UPLOADS, |key, value| {
            let (name, upload) = split_upload_key(key).ok_or_else(|| unreadable(&"a key is damaged"))?;
            take(name, upload, decode(value)?);
            Ok(())
        })
    }

    /// Every part of every upload, as long as `take` wants more of them.
    pub(crate) fn each_part(
        &self,
        mut take: impl FnMut(&str, u16, PartRecord) -> GatewayResult<bool>,
    ) -> GatewayResult<()> {
        scan(&self.open(PARTS)?, Bound::Unbounded, |key, value| {
            let (upload, number) = split_part_key(key).ok_or_else(|| unreadable(&"a key is damaged"))?;
            take(upload, number, decode(value)?)
        })
    }

    /// How many parts all uploads have together.
    pub(crate) fn count_parts(&self) -> GatewayResult<u64> {
        let mut count = 0;
        self.each(PARTS, |_, _| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    pub(crate) fn all_uploads(&self) -> GatewayResult<Vec<((ObjectName, String), UploadRecord)>> {
        self.all(UPLOADS, split_upload_key)
    }

    /// Every content, one at a time: there can be millions.
    pub(crate) fn each_content(
        &self,
        mut take: impl FnMut(ContentId, ContentRecord) -> GatewayResult<()>,
    ) -> GatewayResult<()> {
        self.each(CONTENTS, |key, value| {
            let number = <[u8; 8]>::try_from(key).map_err(|_| unreadable(&"a content without a number"))?;
            take(ContentId(u64::from_be_bytes(number)), decode(value)?)
        })
    }

    pub(crate) fn each_object(
        &self,
        mut take: impl FnMut(ObjectName, ObjectRecord) -> GatewayResult<()>,
    ) -> GatewayResult<()> {
        self.each(OBJECTS, |key, value| {
            take(
                ObjectName::from_bytes(key).ok_or_else(|| unreadable(&"an object without a name"))?,
                decode(value)?,
            )
        })
    }

    /// Every name at which the store may have an object.
    pub(crate) fn each_stored(
        &self,
        mut take: impl FnMut(ObjectName) -> GatewayResult<()>,
    ) -> GatewayResult<()> {
        self.each(STORED, |key, _| {
            take(ObjectName::from_bytes(key).ok_or_else(|| unreadable(&"an object without a name"))?)
        })
    }

    /// Those of a bucket, as long as `take` wants more of them.
    pub(crate) fn stored_in(
        &self,
        bucket: &str,
        mut take: impl FnMut(&ObjectName, StoredRecord) -> GatewayResult<bool>,
    ) -> GatewayResult<()> {
        let start = ObjectName::new(bucket, "").to_bytes();
        scan(&self.open(STORED)?, Bound::Included(&start), |key, value| match ObjectName::from_bytes(key) {
            Some(name) if name.bucket == bucket => take(&name, decode(value)?),
            _ => Ok(false),
        })
    }

    /// Whether the store may have an object below this folder, whose name ends in a slash.
    pub(crate) fn has_stored_below(&self, folder: &ObjectName) -> GatewayResult<bool> {
        let (start, mut is_found) = (folder.to_bytes(), false);
        scan(&self.open(STORED)?, Bound::Included(&start), |key, _| {
            is_found = key.starts_with(&start);
            Ok(false)
        })?;
        Ok(is_found)
    }

    /// The first object from this key on.
    pub(crate) fn first_key_from(&self, bucket: &str, key: &str) -> GatewayResult<Option<String>> {
        let mut found = None;
        self.objects(bucket, Bound::Included(key), |key, _| {
            found = Some(key.to_owned());
            Ok(false)
        })?;
        Ok(found)
    }

    fn each(
        &self,
        table: MetadataTable,
        mut take: impl FnMut(&[u8], &[u8]) -> GatewayResult<()>,
    ) -> GatewayResult<()> {
        scan(&self.open(table)?, Bound::Unbounded, |key, value| take(key, value).map(|()| true))
    }

    fn all<K, V: DeserializeOwned>(
        &self,
        table: MetadataTable,
        key_of: impl Fn(&[u8]) -> Option<K>,
    ) -> GatewayResult<Vec<(K, V)>> {
        let mut rows = Vec::new();
        self.each(table, |key, value| {
            rows.push((key_of(key).ok_or_else(|| unreadable(&"a key is damaged"))?, decode(value)?));
            Ok(())
        })?;
        Ok(rows)
    }
}
