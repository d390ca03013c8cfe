//! Listings: from the metadata where a prefix is ours alone, and from the store, merged in, where others write as well.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;

use futures_util::StreamExt as _;
use underlay_sync::planted::{PlantedBug, is_planted};

use super::elsewhere::{PeerAnswer, PeerQuestion, confused};
use super::pages::{ListEntry, ListPage, ListRequest};
use super::shared::record_of;
use super::{BucketState, GatewayEngine};
use crate::errors::{GatewayError, GatewayResult};
use crate::model::{ObjectHeaders, ObjectRecord};
use crate::ownership::OwnerShare;
use crate::store::{
    BackendKind, MAX_KEY_BYTES, StoredInfo, folder_of, has_own_name, holds_escaped, is_behind_escaped,
};

/// The largest character. Few keys have it, so what a prefix and this one make is behind nearly all keys with that
/// prefix, and never behind a key without it. It is a character that keys may have, so a listing that goes on from
/// there may still meet the same prefix.
const LAST: char = '\u{10ffff}';

/// Folders of an S3 store that one request asks about at the same time.
const FOLDERS_A_STEP: usize = 8;
/// Requests of one bucket that do so at the same time: connections to its store are few.
pub(super) const FOLDER_STEPS: usize = 8;
/// As many keys as S3 lists in one answer. Where a listing needs none of them in a row, asking behind them all is no
/// more work than reading on.
const KEYS_AN_ANSWER: usize = 1000;

/// Groups keys that come in order.
struct KeyGrouping<'a> {
    request: &'a ListRequest,
    entries: Vec<ListEntry>,
}

impl KeyGrouping<'_> {
    /// The common prefix that a key has, with the delimiter.
    fn group_of<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
        let begin = self.request.prefix.len();
        let end = key.get(begin..)?.find(delimiter)? + begin + delimiter.len();
        Some(&key[..end])
    }

    /// Whether the listing goes on behind this key: a group that was listed before is left out.
    fn is_behind(&self, key: &str) -> bool {
        match &self.request.after {
            None => true,
            Some(after) => key > after.as_str() && self.group_of(key) != Some(after.as_str()),
        }
    }

    /// Whether the page has nothing more from the folder of this name, of which one key has been looked at.
    fn is_over(&self, names: &FirstNames, folder: &str) -> bool {
        let prefix = self.request.prefix.as_str();
        if !folder.starts_with(prefix) && !prefix.starts_with(folder) {
            return true;
        }
        let after = self.request.after.as_deref();
        let is_before_page = after.is_some_and(|after| after > folder && !after.starts_with(folder));
        // All of the folder has this name or a later one.
        let group = self.group_of(folder);
        let first = group.unwrap_or(folder);
        let last = self.entries.last().filter(|_| self.is_full()).map(ListEntry::name);
        let last_of_names = names.shown.last_key_value().filter(|_| names.shown.len() > self.request.most);
        let is_behind_page = last.is_some_and(|last| first > last)
            || last_of_names.is_some_and(|(last, _)| first > last.as_str());
        let is_shown = group.is_some_and(|group| Some(group) == after || names.shown.contains_key(group));
        is_before_page || is_behind_page || is_shown
    }

    /// Whether a key that the store has belongs to the listing of what others write as well.
    fn is_wanted(&self, state: &BucketState, key: &str) -> bool {
        key.starts_with(&self.request.prefix) && !state.is_exclusive(key) && self.is_behind(key)
    }

    fn is_full(&self) -> bool {
        // One more tells whether there are more.
        self.entries.len() > self.request.most
    }

    fn last_group(&self) -> Option<&str> {
        match self.entries.last() {
            Some(ListEntry::Prefix(group)) => Some(group),
            _ => None,
        }
    }

    fn add(&mut self, key: &str, record: ObjectRecord) {
        match self.group_of(key) {
            Some(group) if self.last_group() == Some(group) => {}
            Some(group) => self.entries.push(ListEntry::Prefix(group.to_owned())),
            None => self.entries.push(ListEntry::Object(key.to_owned(), Box::new(shortened(record)))),
        }
    }
}

/// The first names of a listing whose entries come in no order.
#[derive(Default)]
struct FirstNames {
    /// Without an object: a common prefix.
    shown: BTreeMap<String, Option<StoredInfo>>,
}

impl FirstNames {
    fn add(&mut self, grouping: &KeyGrouping<'_>, key: String, object: StoredInfo) {
        match grouping.group_of(&key) {
            Some(group) => self.shown.insert(group.to_owned(), None),
            None => self.shown.insert(key, Some(object)),
        };
        if self.shown.len() > grouping.request.most + 1 {
            self.shown.pop_last();
        }
    }

    fn merge(&mut self, most: usize, other: FirstNames) {
        self.shown.extend(other.shown);
        while self.shown.len() > most + 1 {
            self.shown.pop_last();
        }
    }

    fn into_entries(self) -> impl Iterator<Item = ListEntry> {
        self.shown.into_iter().map(|(name, object)| match object {
            Some(object) => ListEntry::Object(name, Box::new(shortened(record_of(&object)))),
            None => ListEntry::Prefix(name),
        })
    }
}

/// Puts the entries of several listings in order. A group may have keys in more than one of them.
fn sort_names(entries: &mut Vec<ListEntry>) {
    entries.sort_by(|a, b| a.name().cmp(b.name()));
    entries.dedup_by(|a, b| a.name() == b.name());
}

/// No key is as long as this request's beginning may be: what is behind that length decides nothing.
fn with_short_beginning(request: &ListRequest) -> Cow<'_, ListRequest> {
    let Some(after) = request.after.as_ref().filter(|after| after.len() > MAX_KEY_BYTES + 1) else {
        return Cow::Borrowed(request);
    };
    let end = (MAX_KEY_BYTES + 1..after.len()).find(|end| after.is_char_boundary(*end));
    let after = after[..end.unwrap_or(after.len())].to_owned();
    Cow::Owned(ListRequest { after: Some(after), ..request.clone() })
}

/// The least text that comes behind everything with this prefix; `None` where nothing does.
fn successor_of(prefix: &str) -> Option<String> {
    if is_planted(PlantedBug::LastCharacterHides) {
        return Some(format!("{prefix}{LAST}"));
    }
    let mut rest = prefix.to_owned();
    while let Some(last) = rest.pop() {
        // A range of characters leaves out what is none.
        if let Some(next) = (last..=LAST).nth(1) {
            rest.push(next);
            return Some(rest);
        }
    }
    None
}

/// Without what no listing tells of: some of it is as long as an object has parts.
fn shortened(record: ObjectRecord) -> ObjectRecord {
    if is_planted(PlantedBug::WholeObjectInMemory) {
        return record;
    }
    ObjectRecord {
        extents: Vec::new(),
        part_sizes_bytes: Vec::new(),
        part_checksums: Vec::new(),
        tags: Vec::new(),
        headers: ObjectHeaders::default(),
        ..record
    }
}

impl GatewayEngine {
    /// A page of a bucket.
    ///
    /// # Errors
    /// When the bucket is not there, or its store has to be asked and does not answer.
    pub async fn list(&self, bucket: &str, request: &ListRequest) -> GatewayResult<ListPage> {
        let state = self.bucket(bucket)?;
        if request.prefix.len() > MAX_KEY_BYTES {
            return Ok(ListPage::default());
        }
        let request = with_short_beginning(request);
        let request = request.as_ref();
        let mut entries = match self.shares(bucket, &request.prefix)? {
            None => self.list_ours(&state, request, |_| true)?,
            Some(shares) => self.list_shares(bucket, request, shares).await?,
        };
        if !state.is_exclusive_below(&request.prefix) {
            let theirs = self.list_shared(&state, request).await?;
            entries.extend(theirs);
            sort_names(&mut entries);
        }
        let is_truncated = entries.len() > request.most;
        entries.truncate(request.most);
        Ok(ListPage { entries, is_truncated })
    }

    /// The keys of several gateways, each with its own: no snapshot, but every key as it is at some moment of the
    /// request.
    async fn list_shares(
        &self,
        bucket: &str,
        request: &ListRequest,
        shares: Vec<OwnerShare>,
    ) -> GatewayResult<Vec<ListEntry>> {
        let parts = shares.into_iter().map(|share| async move {
            let Some(owner) = share.owner else { return self.list_slots(bucket, request, &share.slots) };
            let question = PeerQuestion::List {
                bucket: bucket.to_owned(),
                request: request.clone(),
                slots: share.slots,
            };
            match self.ask(&owner, &question).await? {
                PeerAnswer::Entries(entries) => Ok(entries),
                _ => Err(confused()),
            }
        });
        let mut entries = futures_util::future::try_join_all(parts).await?.concat();
        sort_names(&mut entries);
        Ok(entries)
    }

    /// One more than a page of the objects in these slots, which are this gateway's.
    pub(super) fn list_slots(
        &self,
        bucket: &str,
        request: &ListRequest,
        slots: &[(u16, u64)],
    ) -> GatewayResult<Vec<ListEntry>> {
        let state = self.bucket(bucket)?;
        let pass = self.to_read_slots(slots)?;
        let wanted: HashSet<u16> = slots.iter().map(|(slot, _)| *slot).collect();
        let entries =
            self.list_ours(&state, request, |key| wanted.contains(&self.slot_of_key(bucket, key)))?;
        pass.check()?;
        Ok(entries)
    }

    fn list_ours(
        &self,
        state: &BucketState,
        request: &ListRequest,
        is_wanted: impl Fn(&str) -> bool,
    ) -> GatewayResult<Vec<ListEntry>> {
        let view = self.metadata.view()?;
        let mut grouping = KeyGrouping { request, entries: Vec::new() };
        let mut from = request.prefix.clone();
        if let Some(after) = &request.after
            && *after > from
        {
            from = after.clone();
        }
        // Each round ends behind a group, whose keys need not be looked at.
        loop {
            let mut last_group = None;
            view.objects(&state.name, Bound::Included(&from), |key, record| {
                if !key.starts_with(&request.prefix) {
                    return Ok(false);
                }
                // A key that is not listed may have the rest of its group behind it.
                if !is_wanted(key) {
                    return Ok(true);
                }
                let group = grouping.group_of(key).map(str::to_owned);
                if grouping.is_behind(key) {
                    grouping.add(key, record);
                    if grouping.is_full() {
                        return Ok(false);
                    }
                } else if group != request.after {
                    // The listing begins behind this key, and the rest of its group belongs to it.
                    return Ok(true);
                }
                match group {
                    Some(group) => {
                        last_group = Some(group);
                        Ok(false)
                    }
                    None => Ok(true),
                }
            })?;
            let Some(next) =
                last_group.filter(|_| !grouping.is_full()).and_then(|group| successor_of(&group))
            else {
                return Ok(grouping.entries);
            };
            if next <= from && is_planted(PlantedBug::LastCharacterHides) {
                return Ok(grouping.entries);
            }
            if next <= from {
                return Err(GatewayError::Local(
                    "a listing makes no progress, which is a bug in the gateway".to_owned(),
                ));
            }
            from = next;
        }
    }

    /// The store's listing below prefixes that are not ours alone.
    async fn list_shared(&self, state: &BucketState, request: &ListRequest) -> GatewayResult<Vec<ListEntry>> {
        let mut grouping = KeyGrouping { request, entries: Vec::new() };
        if state.backend.kind == BackendKind::Directory {
            let mut listed = state.backend.list(&request.prefix)?;
            // A directory has no order, so all of it has to be looked at. Only what the page shows is kept.
            let mut names = FirstNames::default();
            while let Some(entry) = listed.next().await {
                let (key, object) = entry?;
                if grouping.is_wanted(state, &key) {
                    names.add(&grouping, key, object);
                }
            }
            return Ok(names.into_entries().collect());
        }
        let mut after = request.after.clone().filter(|after| *after > request.prefix);
        // Keys that have other names there come in an order of their own, at one place of each folder. A group that has
        // its own name comes in order, whatever its keys are called.
        let folder = folder_of(&request.prefix);
        let is_own = |name: &str| name.strip_prefix(folder).is_some_and(has_own_name);
        let (mut out_of_order, mut passed_over) = (FirstNames::default(), BTreeSet::new());
        // The rest of a group that was listed is passed over.
        if let Some(after) = &mut after
            && grouping.group_of(after) == Some(after.as_str())
        {
            if holds_escaped(after) {
                passed_over.insert(folder_of(after).to_owned());
            }
            after.push(LAST);
        }
        let end = successor_of(&request.prefix);
        loop {
            let mut listed = state.backend.list_prefix(&request.prefix, after.as_deref())?;
            let mut go_on = None;
            while let Some(entry) = listed.next().await {
                let (key, object) = entry?;
                if end.as_ref().is_some_and(|end| key >= *end) && is_own(&key) {
                    break;
                }
                if !grouping.is_wanted(state, &key) {
                    continue;
                }
                let is_in_order = |name: &str| name.ends_with('/') && is_own(name);
                if !is_own(&key) && !grouping.group_of(&key).is_some_and(is_in_order) {
                    out_of_order.add(&grouping, key, object);
                    continue;
                }
                grouping.add(&key, record_of(&object));
                if grouping.is_full() {
                    break;
                }
                if let Some(group) = grouping.group_of(&key) {
                    // The rest of the group is skipped by asking behind it. Keys even behind that are passed over one
                    // by one: each request begins behind the one before, or the listing would never end.
                    let next = format!("{group}{LAST}");
                    let is_behind = after.as_ref().is_none_or(|after| next > *after);
                    if is_behind || is_planted(PlantedBug::LastCharacterHides) {
                        if holds_escaped(group) {
                            passed_over.insert(folder_of(group).to_owned());
                        }
                        go_on = Some(next);
                        break;
                    }
                }
            }
            match go_on {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let mut folders = half_listed_folders(&grouping);
        folders.extend(passed_over);
        // Outer ones come first. One after the other they would take as long as a folder is deep.
        let mut folders: Vec<String> = folders.into_iter().collect();
        while !folders.is_empty() {
            let deeper_folders = folders.split_off(folders.len().min(FOLDERS_A_STEP));
            let waiting = tokio::time::timeout(self.setup.patience, state.folder_steps.acquire());
            let Ok(_permit) = waiting.await else {
                let text = "the bucket's store is busy with other listings: try again later";
                return Err(GatewayError::Busy(text.to_owned()));
            };
            let listed = folders.iter().map(|folder| list_escaped(state, &grouping, folder, &is_own));
            for names in futures_util::future::try_join_all(listed).await? {
                out_of_order.merge(request.most, names);
            }
            folders = deeper_folders;
            // A text to begin after may name hundreds that are not there.
            if let Some(next) = folders.first().cloned()
                && state.backend.list(&next)?.next().await.transpose()?.is_none()
            {
                folders.retain(|folder| !folder.starts_with(&next));
            }
        }
        let mut entries = grouping.entries;
        entries.extend(out_of_order.into_entries());
        sort_names(&mut entries);
        entries.truncate(request.most + 1);
        Ok(entries)
    }
}

/// What a page shows of the objects in a folder of an S3 store that have other names there.
async fn list_escaped(
    state: &BucketState,
    grouping: &KeyGrouping<'_>,
    folder: &str,
    is_own: &impl Fn(&str) -> bool,
) -> GatewayResult<FirstNames> {
    let (mut names, mut passed) = (FirstNames::default(), None::<String>);
    loop {
        let mut listed = state.backend.list_escaped(folder, passed.as_deref())?;
        // The folder of the latest key, if the page needs no more of it, and how many of its keys came since then.
        let mut needless: Option<(String, usize)> = None;
        let next = loop {
            let Some(entry) = listed.next().await else { break None };
            let (key, object) = entry?;
            let segment = key.get(folder.len()..).and_then(|rest| Some((rest, rest.find('/')?)));
            let segment = segment.map(|(rest, end)| rest[..end].to_owned());
            if !is_own(&key) && grouping.is_wanted(state, &key) {
                names.add(grouping, key, object);
            }
            needless = match (segment, needless) {
                (Some(segment), Some((latest, count))) if segment == latest => Some((latest, count + 1)),
                (Some(segment), _) if grouping.is_over(&names, &format!("{folder}{segment}/")) => {
                    Some((segment, 1))
                }
                _ => None,
            };
            // The rest of the folder with this name is passed over by asking behind it, once.
            if let Some((segment, KEYS_AN_ANSWER)) = &needless
                && passed.as_ref() != Some(segment)
            {
                break Some(segment.clone());
            }
        };
        match next {
            Some(segment) => passed = Some(segment),
            None => return Ok(names),
        }
    }
}

/// Folders of an S3 store in whose middle a listing of keys with their own names began or ended. It may have missed the
/// place where they have the others.
fn half_listed_folders(grouping: &KeyGrouping<'_>) -> BTreeSet<String> {
    let request = grouping.request;
    let folder = folder_of(&request.prefix);
    let mut folders = BTreeSet::new();
    if request.prefix != folder {
        folders.insert(folder.to_owned());
    }
    let after = request.after.as_deref().filter(|after| *after > request.prefix.as_str());
    let last = grouping.entries.last().filter(|_| grouping.is_full()).map(ListEntry::name);
    for (name, is_begin) in [(after, true), (last, false)] {
        let Some(name) = name.filter(|name| name.starts_with(folder)) else { continue };
        let slashes = name.match_indices('/').map(|(end, _)| end + 1).filter(|end| *end > folder.len());
        let mut looked_at = folder.len();
        for begin in std::iter::once(folder.len()).chain(slashes) {
            let (above, rest) = name.split_at(begin);
            // The page has had all of a group, and the folder above has all of one with another name.
            let is_listed =
                grouping.group_of(above).is_some_and(|group| [after, last].contains(&Some(group)));
            if above != folder && (is_listed || !has_own_name(&above[looked_at..])) {
                break;
            }
            looked_at = begin;
            // What begins before that place comes by it, and what ends behind it has.
            if is_behind_escaped(rest) == is_begin {
                folders.insert(above.to_owned());
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn behind_a_prefix_comes_its_successor() {
        for (prefix, successor) in [
            ("a/", Some("a0")),
            ("a", Some("b")),
            ("a\u{10ffff}", Some("b")),
            ("a\u{10ffff}\u{10ffff}", Some("b")),
            ("\u{d7ff}", Some("\u{e000}")),
            ("\u{7f}", Some("\u{80}")),
            ("\u{10ffff}", None),
            ("", None),
        ] {
            assert_eq!(successor_of(prefix).as_deref(), successor, "{prefix:?}");
        }
    }

    proptest! {
        #[test]
        fn prefix_successor_is_tight(
            prefix in "[a-c/\u{7f}-\u{81}\u{d7fe}-\u{e001}\u{10fffe}\u{10ffff}]{1,4}",
            other in "[a-c/\u{7f}-\u{81}\u{d7fe}-\u{e001}\u{10fffe}\u{10ffff}]{0,6}",
        ) {
            let is_before = successor_of(&prefix).is_none_or(|successor| other < successor);
            prop_assert_eq!(other.starts_with(&prefix), other >= prefix && is_before);
        }
    }
}
