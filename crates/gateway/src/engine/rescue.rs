//! Bytes that copies and unfinished uploads consist of, in an object of the store that is to be replaced or deleted:
//! they are fetched into the journal first. They have room of their own there, so that no client's writes wait for
//! them. Of a long object, only what is in use is fetched. The store keeps bytes that the local disk has no room for
//! [under another name](super::staging).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_sync::planted::{PlantedBug, is_planted};

use super::GatewayEngine;
use super::read::ByteRun;
use crate::errors::{GatewayError, GatewayResult};
use crate::journal::WrittenContent;
use crate::meta::{MetadataChange, MetadataView, ObjectName};
use crate::model::{ContentExtent, ContentId, ContentPlace, ContentRecord};

/// A reader that is slower than this may find its bytes gone: it gets an error then, and never wrong bytes.
const READERS_GET: Duration = Duration::from_secs(60);
/// A shorter content is fetched whole: there is no need to look for its users.
const SHORT_BYTES: u64 = 16 << 20;
/// Ranges that are no further apart are fetched as one.
const GAP_BYTES: u64 = 1 << 20;
/// A content in use in more ranges than these comes whole.
const MAX_RANGES: usize = 1_000;

/// An object that consists of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ContentUser {
    Object(ObjectName),
    Part { upload: String, number: u16 },
}

/// The ranges of a content to fetch.
struct WantedRanges {
    users: Vec<ContentUser>,
    ranges: Vec<Range<u64>>,
}

/// Where a range of a content is from now on.
struct FetchedRange {
    range: Range<u64>,
    content: ContentId,
    place: ContentPlace,
}

impl GatewayEngine {
    /// Fetches a content from the store into the journal, or what is in use of it, since its object is to be
    /// overwritten or deleted while others still need the bytes.
    pub(super) async fn rescue(&self, content: ContentId) -> GatewayResult<()> {
        let waited = tokio::time::Instant::now();
        while self.journal.pin_count(content) > 0 && waited.elapsed() < READERS_GET {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let view = self.metadata.view()?;
        let Some(record) = view.content(content)? else { return Ok(()) };
        let ContentPlace::Remote { bucket, .. } = &record.place else { return Ok(()) };
        let state = self.any_bucket(bucket)?;
        let whole = [ContentExtent { content, offset_bytes: 0, length_bytes: record.size_bytes }];
        let runs = self.runs_of(&view, &state, &whole)?;
        let wanted = match record.size_bytes > SHORT_BYTES {
            true if is_planted(PlantedBug::RescuedWithoutLimit) => None,
            true => {
                let of_content = record.clone();
                // There may be a million names to look at.
                crate::blocking::spawn_blocking(move || wanted_of(&view, content, &of_content))
                    .await
                    .unwrap_or_else(|error| Err(GatewayError::local("cannot read the metadata", error)))?
            }
            false => None,
        };
        // Ranges that never find room together come as one content, which may be longer than all the room.
        let lengths_of = |wanted: &WantedRanges| -> Vec<u64> {
            wanted.ranges.iter().map(|range| range.end - range.start).collect()
        };
        let wanted = wanted.filter(|wanted| {
            wanted.ranges.len() == 1 || self.journal.fit_beyond(lengths_of(wanted).into_iter())
        });
        let sizes_bytes = wanted.as_ref().map_or_else(|| vec![record.size_bytes], lengths_of);
        let mut outcome = match wanted {
            Some(wanted) => self.rescue_ranges(content, record.clone(), &runs, wanted).await,
            None => self.rescue_whole(content, record.clone(), &runs).await,
        };
        if matches!(outcome, Err(GatewayError::Busy(_))) {
            self.spills.want_fetched();
            // Bytes fetched before give their room back. Where that is not enough, there may never be room.
            if !self.journal.may_fit_beyond(sizes_bytes.into_iter()) {
                outcome = self.rescue_in_store(content, record, &runs).await;
            }
        }
        // It was freed or moved meanwhile; the journal takes its room back.
        outcome.or_else(|error| if error == GatewayError::NoSuchKey { Ok(()) } else { Err(error) })
    }

    async fn rescue_whole(
        &self,
        content: ContentId,
        record: ContentRecord,
        runs: &[ByteRun],
    ) -> GatewayResult<()> {
        let written = self.fetch_into_journal(content, runs, 0..record.size_bytes).await?;
        let place = written.place();
        self.committer
            .commit(vec![written], move |change| match change.content(content)? {
                Some(now) if now.place == record.place => change.move_content(content, place),
                _ => Err(GatewayError::NoSuchKey),
            })
            .await
    }

    async fn rescue_ranges(
        &self,
        content: ContentId,
        record: ContentRecord,
        runs: &[ByteRun],
        wanted: WantedRanges,
    ) -> GatewayResult<()> {
        let (mut written, mut fetched) = (Vec::new(), Vec::new());
        for range in wanted.ranges {
            let content = ContentId(self.number());
            let bytes = self.fetch_into_journal(content, runs, range.clone()).await?;
            fetched.push(FetchedRange { range, content, place: bytes.place() });
            written.push(bytes);
        }
        let users = wanted.users;
        self.committer
            .commit(written, move |change| match change.content(content)? {
                Some(now) if now.place == record.place => move_users(change, content, &users, &fetched),
                _ => Err(GatewayError::NoSuchKey),
            })
            .await
    }

    async fn fetch_into_journal(
        &self,
        content: ContentId,
        runs: &[ByteRun],
        range: Range<u64>,
    ) -> GatewayResult<WrittenContent> {
        let size_bytes = range.end - range.start;
        let journal = Arc::clone(&self.journal);
        let mut writer = journal.reserve_beyond(content, size_bytes)?;
        let mut offset = range.start;
        while offset < range.end {
            let end = (offset + self.blocks.block_bytes()).min(range.end);
            writer.write(self.read_runs(runs, offset..end).await?).await?;
            offset = end;
        }
        self.counters.rescued_bytes.fetch_add(size_bytes, Ordering::Relaxed);
        writer.finish().await
    }
}

/// The objects that consist of a content, with their ranges; `None` if it is better fetched whole: most of it is in
/// use, or not all its users are found. The users are parts of unfinished uploads, and objects that are to be flushed.
fn wanted_of(
    view: &MetadataView,
    content: ContentId,
    record: &ContentRecord,
) -> GatewayResult<Option<WantedRanges>> {
    let mut uses = ContentUses { content, users: Vec::new(), extents: Vec::new() };
    let references = usize::try_from(record.references).unwrap_or(usize::MAX);
    view.each_part(|upload, number, part| {
        uses.note(&part.extents, || ContentUser::Part { upload: upload.to_owned(), number });
        Ok(uses.extents.len() < references)
    })?;
    if uses.extents.len() < references {
        let mut failed = None;
        view.each_pending(|name, _| match view.object(&name) {
            Ok(Some(object)) => uses.note(&object.extents, || ContentUser::Object(name)),
            Ok(None) => {}
            Err(error) => failed = Some(error),
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    if uses.extents.len() != references {
        return Ok(None);
    }
    let ranges = merged(&uses.extents);
    let used: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let is_worth_it = used <= record.size_bytes / 4 * 3 && ranges.len() <= MAX_RANGES;
    Ok(is_worth_it.then_some(WantedRanges { users: uses.users, ranges }))
}

/// The uses of a content, as far as they have been found.
struct ContentUses {
    content: ContentId,
    users: Vec<ContentUser>,
    extents: Vec<ContentExtent>,
}

impl ContentUses {
    fn note(&mut self, extents: &[ContentExtent], user: impl FnOnce() -> ContentUser) {
        let before = self.extents.len();
        self.extents.extend(extents.iter().filter(|extent| extent.content == self.content).copied());
        if self.extents.len() > before {
            self.users.push(user());
        }
    }
}

/// The ranges that the extents cover, in order.
fn merged(extents: &[ContentExtent]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> =
        extents.iter().map(|extent| extent.offset_bytes..extent.offset_bytes + extent.length_bytes).collect();
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// The extents with those of a content where they are now; `None` if there is none of it.
fn moved(
    extents: &[ContentExtent],
    content: ContentId,
    fetched: &[FetchedRange],
) -> Option<Vec<ContentExtent>> {
    let mut has_moved = false;
    let moved = extents.iter().map(|extent| {
        let end = extent.offset_bytes + extent.length_bytes;
        // They are in order, and none overlaps another.
        let count = fetched.partition_point(|fetched| fetched.range.start <= extent.offset_bytes);
        let covering = fetched[..count].last().filter(|fetched| end <= fetched.range.end);
        match covering.filter(|_| extent.content == content) {
            None => *extent,
            Some(fetched) => {
                has_moved = true;
                let offset_bytes = extent.offset_bytes - fetched.range.start;
                ContentExtent { content: fetched.content, offset_bytes, ..*extent }
            }
        }
    });
    let moved = moved.collect();
    has_moved.then_some(moved)
}

fn move_users(
    change: &mut MetadataChange<'_>,
    content: ContentId,
    users: &[ContentUser],
    fetched: &[FetchedRange],
) -> GatewayResult<()> {
    let (mut objects, mut parts, mut used) = (Vec::new(), Vec::new(), HashSet::new());
    for user in users {
        match user {
            ContentUser::Object(name) => {
                let Some(mut record) = change.object(name)? else { continue };
                let Some(extents) = moved(&record.extents, content, fetched) else { continue };
                used.extend(extents.iter().map(|extent| extent.content));
                record.extents = extents;
                objects.push((name, record));
            }
            ContentUser::Part { upload, number } => {
                let Some(mut record) = change.part(upload, *number)? else { continue };
                let Some(extents) = moved(&record.extents, content, fetched) else { continue };
                used.extend(extents.iter().map(|extent| extent.content));
                record.extents = extents;
                parts.push((upload, *number, record));
            }
        }
    }
    // One that nobody uses any more would stay forever.
    if fetched.iter().any(|fetched| !used.contains(&fetched.content)) {
        return Err(GatewayError::NoSuchKey);
    }
    for FetchedRange { range, content, place } in fetched {
        change.add_content(*content, range.end - range.start, place.clone())?;
        // As `move_content` says it.
        change.confirm_content(*content, crate::model::now_ms())?;
    }
    for (name, record) in objects {
        change.set_object(name, Some(&record))?;
    }
    for (upload, number, record) in parts {
        change.set_part(upload, number, &record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(content: u64, offset_bytes: u64, length_bytes: u64) -> ContentExtent {
        ContentExtent { content: ContentId(content), offset_bytes, length_bytes }
    }

    #[test]
    fn ranges_in_use_are_put_together() {
        let extents = [extent(1, 10 << 20, 1), extent(1, 0, 5), extent(1, 3, 10), extent(1, 10 << 20, 7)];
        assert_eq!(merged(&extents), [0..13, (10 << 20)..(10 << 20) + 7]);
        assert_eq!(
            merged(&[extent(1, 0, 5), extent(1, 5 + GAP_BYTES, 1)]),
            std::slice::from_ref(&(0..6 + GAP_BYTES))
        );
    }

    #[test]
    fn extents_follow_their_bytes() {
        let place = ContentPlace::Local { segment: 0, offset_bytes: 0 };
        let fetched = [
            FetchedRange { range: 100..200, content: ContentId(8), place: place.clone() },
            FetchedRange { range: 500..600, content: ContentId(9), place },
        ];
        let extents = [extent(1, 150, 50), extent(2, 150, 50), extent(1, 500, 100), extent(1, 300, 10)];
        let found = moved(&extents, ContentId(1), &fetched);
        assert_eq!(
            found,
            Some(vec![extent(8, 50, 50), extent(2, 150, 50), extent(9, 0, 100), extent(1, 300, 10)])
        );
        assert_eq!(moved(&extents, ContentId(3), &fetched), None);
    }
}
