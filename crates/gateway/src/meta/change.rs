//! One transaction's changes. Every method keeps the tables in step with each other: references with extents, `stored`
//! with contents, and freed ranges with the journal's.

use std::ops::Bound;

use redb::WriteTransaction;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::FORMAT_KEY;
use super::tables::{
    BUCKETS, CONTENTS, IMPORTED, MetadataTable, OBJECTS, ObjectName, PARTS, PENDING, STATE, STORED, UPLOADS,
    decode, encode, made_by_key, part_key, split_upload_key, upload_key,
};
use super::view::{fetch, scan};
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::ReleasedRange;
use crate::model::{
    BucketRecord, ContentExtent, ContentId, ContentPlace, ContentRecord, ObjectRecord, PartRecord,
    PendingRecord, StoredRecord, UploadRecord, now_ms,
};
use crate::staged::{FIRST_KEY, is_staged};

type OpenTables<'t> = redb::Table<'t, &'static [u8], &'static [u8]>;

/// See the module.
pub(crate) struct MetadataChange<'t> {
    state: OpenTables<'t>,
    buckets: OpenTables<'t>,
    objects: OpenTables<'t>,
    contents: OpenTables<'t>,
    pending: OpenTables<'t>,
    stored: OpenTables<'t>,
    uploads: OpenTables<'t>,
    parts: OpenTables<'t>,
    imported: OpenTables<'t>,
    pub(crate) released: Vec<ReleasedRange>,
    /// Names that became pending, with since when, or are no more.
    pub(crate) queued: Vec<(ObjectName, Option<i64>)>,
    /// Names whose object in the store nothing needs any more: it may be overwritten now.
    pub(crate) unblocked: Vec<(ObjectName, ContentId)>,
    /// Uploads that were begun in a bucket, or ended, and parts that came with them or went.
    pub(crate) unfinished: Vec<UploadCounts>,
    /// Parts that clients sent, with the contents of the journal that they consist of.
    pub(crate) part_contents: Vec<PartContent>,
    /// Uploads that are over.
    pub(crate) ended: Vec<String>,
    /// Whether there is something to commit.
    pub(crate) is_changed: bool,
    /// Whether a change stopped half-way: then nothing may be committed.
    pub(crate) is_broken: bool,
    /// Whether one of the changes has panicked, which says nothing of the disk.
    pub(crate) has_panicked: bool,
}

/// How many more uploads of a bucket are in flight, and how many more parts they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UploadCounts {
    pub(crate) bucket: String,
    pub(crate) uploads: i64,
    pub(crate) parts: i64,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) name: ObjectName,
    pub(crate) upload: String,
    pub(crate) number: u16,
}

/// A content in the journal that a part consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartContent {
    pub(crate) holder: Holder,
    pub(crate) content: ContentId,
    pub(crate) size_bytes: u64,
}

fn put<V: Serialize>(table: &mut OpenTables<'_>, key: &[u8], value: &V) -> GatewayResult<()> {
    table.insert(key, encode(value)?.as_slice()).map_err(unwritable)?;
    Ok(())
}

fn unwritable(error: impl std::fmt::Display) -> GatewayError {
    GatewayError::local("cannot write the metadata", error)
}

impl<'t> MetadataChange<'t> {
    pub(super) fn begin(transaction: &'t WriteTransaction) -> GatewayResult<MetadataChange<'t>> {
        let open = |table: MetadataTable| transaction.open_table(table).map_err(unwritable);
        Ok(MetadataChange {
            state: open(STATE)?,
            buckets: open(BUCKETS)?,
            objects: open(OBJECTS)?,
            contents: open(CONTENTS)?,
            pending: open(PENDING)?,
            stored: open(STORED)?,
            uploads: open(UPLOADS)?,
            parts: open(PARTS)?,
            imported: open(IMPORTED)?,
            released: Vec::new(),
            queued: Vec::new(),
            unblocked: Vec::new(),
            unfinished: Vec::new(),
            part_contents: Vec::new(),
            ended: Vec::new(),
            is_changed: false,
            is_broken: false,
            has_panicked: false,
        })
    }

    pub(crate) fn number(&self, key: &[u8]) -> GatewayResult<Option<u64>> {
        self.state(key)
    }

    pub(crate) fn set_number(&mut self, key: &[u8], number: u64) -> GatewayResult<()> {
        self.set_state(key, &number)
    }

    /// From now on no gateway that does not know this format, or a later one, may open the metadata.
    pub(crate) fn need_format(&mut self, format: u64) -> GatewayResult<()> {
        match self.number(FORMAT_KEY)? {
            Some(now) if now >= format => Ok(()),
            _ => self.set_number(FORMAT_KEY, format),
        }
    }

    pub(crate) fn state<V: DeserializeOwned>(&self, key: &[u8]) -> GatewayResult<Option<V>> {
        fetch(&self.state, key)
    }

    pub(crate) fn set_state(&mut self, key: &[u8], state: &impl Serialize) -> GatewayResult<()> {
        self.is_changed = true;
        put(&mut self.state, key, state)
    }

    pub(crate) fn remove_state(&mut self, key: &[u8]) -> GatewayResult<()> {
        self.is_changed |= self.state.remove(key).map_err(unwritable)?.is_some();
        Ok(())
    }

    pub(crate) fn bucket(&self, bucket: &str) -> GatewayResult<Option<BucketRecord>> {
        fetch(&self.buckets, bucket.as_bytes())
    }

    pub(crate) fn set_bucket(&mut self, bucket: &str, record: &BucketRecord) -> GatewayResult<()> {
        self.is_changed = true;
        put(&mut self.buckets, bucket.as_bytes(), record)
    }

    pub(crate) fn remove_bucket(&mut self, bucket: &str) -> GatewayResult<()> {
        self.is_changed = true;
        self.buckets.remove(bucket.as_bytes()).map_err(unwritable)?;
        self.forget_imported(bucket)
    }

    /// Whether the bucket has an object, an upload, or something that is still to be deleted from the store.
    pub(crate) fn bucket_has_rows(&self, bucket: &str) -> GatewayResult<bool> {
        let mut tables = [&self.objects, &self.uploads, &self.pending, &self.stored].into_iter();
        let start = ObjectName::new(bucket, "");
        tables.try_fold(false, |found, table| Ok(found || has_row(table, &start)?))
    }

    /// Whether it has objects, or some that are to be deleted from the store still, beside uploads and their parts.
    pub(crate) fn bucket_has_more_than_uploads(&self, bucket: &str) -> GatewayResult<bool> {
        // There may be a part or more for each of thousands of uploads, and they come first.
        let behind_parts = ObjectName::new(bucket, FIRST_KEY);
        let mut tables = [&self.objects, &self.pending, &self.stored].into_iter();
        tables.try_fold(false, |found, table| Ok(found || has_row(table, &behind_parts)?))
    }

    /// Which prefixes of the bucket an earlier version of the gateway took over.
    pub(crate) fn forget_imported(&mut self, bucket: &str) -> GatewayResult<()> {
        self.is_changed = true;
        let mut prefixes = Vec::new();
        scan(&self.imported, Bound::Included(&ObjectName::new(bucket, "").to_bytes()), |key, _| {
            let is_ours = ObjectName::from_bytes(key).is_some_and(|name| name.bucket == bucket);
            if is_ours {
                prefixes.push(key.to_vec());
            }
            Ok(is_ours)
        })?;
        for key in prefixes {
            self.imported.remove(key.as_slice()).map_err(unwritable)?;
        }
        Ok(())
    }

    pub(crate) fn object(&self, name: &ObjectName) -> GatewayResult<Option<ObjectRecord>> {
        fetch(&self.objects, &name.to_bytes())
    }

    /// The first key of the bucket from `from` on.
    pub(crate) fn first_key_from(&self, from: &ObjectName) -> GatewayResult<Option<String>> {
        let mut found = None;
        scan(&self.objects, Bound::Included(&from.to_bytes()), |key, _| {
            found =
                ObjectName::from_bytes(key).filter(|name| name.bucket == from.bucket).map(|name| name.key);
            Ok(false)
        })?;
        Ok(found)
    }

    /// Puts an object in the place of the one of this name, or removes that one. The contents of the new one must be
    /// there.
    pub(crate) fn set_object(
        &mut self,
        name: &ObjectName,
        record: Option<&ObjectRecord>,
    ) -> GatewayResult<()> {
        self.is_changed = true;
        let former = self.object(name)?;
        let key = name.to_bytes();
        match record {
            Some(record) => {
                self.retain(&record.extents)?;
                put(&mut self.objects, &key, record)?;
            }
            None => {
                self.objects.remove(key.as_slice()).map_err(unwritable)?;
            }
        }
        let Some(former) = former else { return Ok(()) };
        let is_replaced = record.is_none_or(|record| record.version != former.version);
        if is_replaced && !former.part_sizes_bytes.is_empty() {
            self.remove_state(&made_by_key(name))?;
        }
        self.release(&former.extents)
    }

    /// This upload has made this version of an object, as long as that is there.
    pub(crate) fn set_maker(&mut self, name: &ObjectName, upload: &str, version: u64) -> GatewayResult<()> {
        self.set_state(&made_by_key(name), &(upload, version))
    }

    /// Leaves an object as earlier versions of this program left it.
    #[cfg(test)]
    pub(crate) fn forget_maker(&mut self, name: &ObjectName) -> GatewayResult<()> {
        self.remove_state(&made_by_key(name))
    }

    pub(crate) fn content(&self, id: ContentId) -> GatewayResult<Option<ContentRecord>> {
        fetch(&self.contents, &id.0.to_be_bytes())
    }

    /// Enters a content that nothing uses yet: the same transaction has to give it to an object or a part.
    pub(crate) fn add_content(
        &mut self,
        id: ContentId,
        size_bytes: u64,
        place: ContentPlace,
    ) -> GatewayResult<()> {
        self.is_changed = true;
        let record = ContentRecord { size_bytes, references: 0, place, confirmed_ms: None };
        put(&mut self.contents, &id.0.to_be_bytes(), &record)
    }

    /// The store has said itself that it has these bytes, asked for them or in a listing: since then, by its clock.
    pub(crate) fn confirm_content(&mut self, id: ContentId, since_ms: i64) -> GatewayResult<()> {
        let Some(mut record) = self.content(id)? else { return Ok(()) };
        self.is_changed = true;
        record.confirmed_ms = Some(since_ms);
        put(&mut self.contents, &id.0.to_be_bytes(), &record)
    }

    /// The content is in the journal from now on, and the store's object is nobody's.
    pub(crate) fn move_content(&mut self, id: ContentId, place: ContentPlace) -> GatewayResult<()> {
        let Some(mut record) = self.content(id)? else { return Ok(()) };
        self.is_changed = true;
        let former = std::mem::replace(&mut record.place, place);
        // So the next start knows that no client's write has taken the room.
        record.confirmed_ms = record.confirmed_ms.or(Some(now_ms()));
        self.abandon(id, &former, record.size_bytes)?;
        put(&mut self.contents, &id.0.to_be_bytes(), &record)
    }

    fn retain(&mut self, extents: &[ContentExtent]) -> GatewayResult<()> {
        for extent in extents {
            let Some(mut record) = self.content(extent.content)? else {
                return Err(GatewayError::Local(format!(
                    "content {} is used and not there: run `underlay-gateway check`",
                    extent.content.0
                )));
            };
            record.references += 1;
            put(&mut self.contents, &extent.content.0.to_be_bytes(), &record)?;
        }
        Ok(())
    }

    fn release(&mut self, extents: &[ContentExtent]) -> GatewayResult<()> {
        for extent in extents {
            let Some(mut record) = self.content(extent.content)? else { continue };
            record.references = record.references.saturating_sub(1);
            let key = extent.content.0.to_be_bytes();
            if record.references > 0 {
                put(&mut self.contents, &key, &record)?;
                continue;
            }
            self.contents.remove(key.as_slice()).map_err(unwritable)?;
            self.abandon(extent.content, &record.place, record.size_bytes)?;
        }
        Ok(())
    }

    /// The store gave the same bytes another ETag.
    pub(crate) fn set_place(&mut self, id: ContentId, place: ContentPlace) -> GatewayResult<()> {
        let Some(mut record) = self.content(id)? else { return Ok(()) };
        self.is_changed = true;
        record.place = place;
        put(&mut self.contents, &id.0.to_be_bytes(), &record)
    }

    /// Nothing uses the bytes at this place any more.
    fn abandon(&mut self, content: ContentId, place: &ContentPlace, size_bytes: u64) -> GatewayResult<()> {
        match place {
            ContentPlace::Local { segment, offset_bytes } => {
                let (segment, offset_bytes) = (*segment, *offset_bytes);
                self.released.push(ReleasedRange { content, segment, offset_bytes, size_bytes });
            }
            ContentPlace::Remote { bucket, key, .. } => {
                let name = ObjectName::new(bucket, key);
                if self.stored(&name)?.is_some_and(|stored| stored.content == Some(content)) {
                    // The object is in the store until something overwrites or deletes it.
                    self.set_stored(&name, Some(&StoredRecord { content: None }))?;
                    if is_staged(&name.key) {
                        // Nothing else will ever be there: the flushers delete it.
                        self.mark_pending(&name)?;
                    }
                    self.unblocked.push((name, content));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn stored(&self, name: &ObjectName) -> GatewayResult<Option<StoredRecord>> {
        fetch(&self.stored, &name.to_bytes())
    }

    pub(crate) fn set_stored(
        &mut self,
        name: &ObjectName,
        record: Option<&StoredRecord>,
    ) -> GatewayResult<()> {
        self.is_changed = true;
        match record {
            Some(record) => put(&mut self.stored, &name.to_bytes(), record),
            None => self.stored.remove(name.to_bytes().as_slice()).map_err(unwritable).map(|_| ()),
        }
    }

    pub(crate) fn pending(&self, name: &ObjectName) -> GatewayResult<Option<PendingRecord>> {
        fetch(&self.pending, &name.to_bytes())
    }

    /// The store has to be brought up to date at this name. A pending name keeps its age.
    pub(crate) fn mark_pending(&mut self, name: &ObjectName) -> GatewayResult<()> {
        self.is_changed = true;
        let since_ms = self.pending(name)?.map_or_else(now_ms, |former| former.since_ms);
        put(&mut self.pending, &name.to_bytes(), &PendingRecord { since_ms })?;
        self.queued.push((name.clone(), Some(since_ms)));
        Ok(())
    }

    pub(crate) fn clear_pending(&mut self, name: &ObjectName) -> GatewayResult<()> {
        self.is_changed = true;
        self.pending.remove(name.to_bytes().as_slice()).map_err(unwritable)?;
        self.queued.push((name.clone(), None));
        Ok(())
    }

    pub(crate) fn upload(&self, name: &ObjectName, upload: &str) -> GatewayResult<Option<UploadRecord>> {
        fetch(&self.uploads, &upload_key(name, upload))
    }

    pub(crate) fn set_upload(
        &mut self,
        name: &ObjectName,
        upload: &str,
        record: &UploadRecord,
    ) -> GatewayResult<()> {
        self.is_changed = true;
        if self.upload(name, upload)?.is_none() {
            self.unfinished.push(UploadCounts { bucket: name.bucket.clone(), uploads: 1, parts: 0 });
        }
        put(&mut self.uploads, &upload_key(name, upload), record)
    }

    pub(crate) fn part(&self, upload: &str, number: u16) -> GatewayResult<Option<PartRecord>> {
        fetch(&self.parts, &part_key(upload, number))
    }

    pub(crate) fn set_part(&mut self, upload: &str, number: u16, record: &PartRecord) -> GatewayResult<()> {
        self.is_changed = true;
        let former = self.part(upload, number)?;
        if former.is_none() {
            self.unfinished.push(UploadCounts { bucket: String::new(), uploads: 0, parts: 1 });
        }
        self.retain(&record.extents)?;
        put(&mut self.parts, &part_key(upload, number), record)?;
        match former {
            Some(former) => self.release(&former.extents),
            None => Ok(()),
        }
    }

    /// As [`set_part`](Self::set_part), of a part that a client sends: what of it is in the journal may have to go to
    /// the store.
    pub(crate) fn take_part(&mut self, holder: &Holder, record: &PartRecord) -> GatewayResult<()> {
        self.set_part(&holder.upload, holder.number, record)?;
        for extent in &record.extents {
            if let Some(ContentRecord { size_bytes, place: ContentPlace::Local { .. }, .. }) =
                self.content(extent.content)?
            {
                self.part_contents.push(PartContent {
                    holder: holder.clone(),
                    content: extent.content,
                    size_bytes,
                });
            }
        }
        Ok(())
    }

    /// When the latest part of an upload came; the least number of all if none did.
    pub(crate) fn last_part_ms(&self, upload: &str) -> GatewayResult<i64> {
        let start = part_key(upload, 0);
        let prefix = &start[..start.len() - 2];
        let mut latest = i64::MIN;
        scan(&self.parts, Bound::Included(&start), |key, value| {
            if !key.starts_with(prefix) {
                return Ok(false);
            }
            latest = latest.max(decode::<PartRecord>(value)?.modified_ms);
            Ok(true)
        })?;
        Ok(latest)
    }

    /// Some of a bucket's uploads.
    pub(crate) fn uploads_in(&self, bucket: &str, most: usize) -> GatewayResult<Vec<(ObjectName, String)>> {
        let mut uploads = Vec::new();
        scan(&self.uploads, Bound::Included(&ObjectName::new(bucket, "").to_bytes()), |key, _| {
            let upload = split_upload_key(key).filter(|(name, _)| name.bucket == bucket);
            let is_ours = upload.is_some();
            uploads.extend(upload);
            Ok(is_ours && uploads.len() < most)
        })?;
        Ok(uploads)
    }

    /// Removes an upload with its parts. Returns how many these were.
    pub(crate) fn remove_upload(&mut self, name: &ObjectName, upload: &str) -> GatewayResult<usize> {
        self.is_changed = true;
        let removed = self.uploads.remove(upload_key(name, upload).as_slice()).map_err(unwritable)?;
        let uploads = -i64::from(removed.is_some());
        drop(removed);
        let mut numbers = Vec::new();
        let start = part_key(upload, 0);
        let prefix = start[..start.len() - 2].to_vec();
        scan(&self.parts, Bound::Included(&start), |key, _| {
            let number = key.strip_prefix(prefix.as_slice()).and_then(|rest| <[u8; 2]>::try_from(rest).ok());
            numbers.extend(number);
            Ok(number.is_some())
        })?;
        let count = numbers.len();
        let parts = -i64::try_from(count).unwrap_or(0);
        self.unfinished.push(UploadCounts { bucket: name.bucket.clone(), uploads, parts });
        self.ended.push(upload.to_owned());
        for number in numbers {
            let key = part_key(upload, u16::from_be_bytes(number));
            let part: Option<PartRecord> = fetch(&self.parts, &key)?;
            self.parts.remove(key.as_slice()).map_err(unwritable)?;
            if let Some(part) = part {
                self.release(&part.extents)?;
            }
        }
        Ok(count)
    }

    /// For `repair`: counts references anew. The extents of objects and parts are the truth.
    pub(crate) fn set_references(&mut self, id: ContentId, references: u64) -> GatewayResult<()> {
        let Some(mut record) = self.content(id)? else { return Ok(()) };
        self.is_changed = true;
        if references == 0 {
            self.contents.remove(id.0.to_be_bytes().as_slice()).map_err(unwritable)?;
            return self.abandon(id, &record.place, record.size_bytes);
        }
        record.references = references;
        put(&mut self.contents, &id.0.to_be_bytes(), &record)
    }

    /// For `repair`: an object whose bytes are lost.
    pub(crate) fn drop_damaged(&mut self, name: &ObjectName) -> GatewayResult<()> {
        self.set_object(name, None)?;
        self.clear_pending(name)
    }

    /// Names of objects below a prefix, for taking them out of the metadata.
    pub(crate) fn names_below(&self, prefix: &ObjectName, most: usize) -> GatewayResult<Vec<ObjectName>> {
        let mut names = Vec::new();
        let start = prefix.to_bytes();
        for table in [&self.objects, &self.stored] {
            scan(table, Bound::Included(&start), |key, _| {
                let is_below = key.starts_with(&start);
                if is_below {
                    names.extend(ObjectName::from_bytes(key));
                }
                Ok(is_below && names.len() < most)
            })?;
        }
        Ok(names)
    }
}

/// Whether a table has a name of the same bucket, this one or one behind it.
fn has_row(table: &OpenTables<'_>, from: &ObjectName) -> GatewayResult<bool> {
    let mut found = false;
    scan(table, Bound::Included(&from.to_bytes()), |key, _| {
        found = ObjectName::from_bytes(key).is_some_and(|name| name.bucket == from.bucket);
        Ok(false)
    })?;
    Ok(found)
}
