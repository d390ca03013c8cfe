//! A model of S3 that is too simple to be wrong: for each key the requests that changed it, and which of them a read
//! may find. A request without an answer may have happened, or happen later. `docs/gateway.md` has the promises.

mod content;
mod final_look;
mod register;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use underlay_sync::Mutex;

use crate::script::{GatewaySettings, RuleConsistency, ScriptSetup, StoreKind};
use crate::world::SimulatedWorld;
use register::{EventNumber, KeyRegister, WriteAttempt, WriteFate};

pub use content::ObjectContent;

/// A request without an answer has no effect any more after so long, even if the store carries it out.
const OPEN_FOR: Duration = Duration::from_secs(300);
/// Copies of copies of what is not known yet.
const MAX_DEPTH: usize = 4;

/// The gateway sends longer objects to a store in parts.
pub const MAX_SENT_WHOLE_BYTES: u64 = 8 << 20;

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    pub content: ObjectContent,
    /// Without quotes; `None` where only the gateway knows.
    pub etag: Option<String>,
    /// The user metadata by which it is known; `None` if it has none.
    pub id: Option<String>,
}

/// A read's result.
#[derive(Clone, Debug)]
pub struct SeenObject {
    pub size: u64,
    pub etag: Option<String>,
    /// `None` if the answer has no headers of the object.
    pub id: Option<Option<String>>,
    /// These bytes, of this range.
    pub bytes: Option<(Range<u64>, Bytes)>,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingEntry {
    Key {
        key: String,
        size: u64,
        etag: String,
    },
    /// All keys that begin so.
    Group(String),
}

impl ListingEntry {
    pub(crate) fn name(&self) -> &str {
        match self {
            ListingEntry::Key { key, .. } => key,
            ListingEntry::Group(group) => group,
        }
    }
}

/// A change that was begun.
#[derive(Debug)]
pub struct BegunChange {
    key: String,
    at: usize,
    moment: EventNumber,
}

impl BegunChange {
    pub fn moment(&self) -> u64 {
        self.moment
    }
}

/// How a change ended, as far as its client knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    Done,
    NotDone,
    Unknown,
}

struct ModelState {
    settings: GatewaySettings,
    kind: StoreKind,
    has_etags_of_its_own: bool,
    is_alone: bool,
    keys: BTreeMap<String, KeyRegister>,
    /// Those with writes that end by their time.
    timed: BTreeSet<String>,
    versions: Vec<ObjectVersion>,
    moment: EventNumber,
    next_seed: u64,
    died: BTreeMap<usize, EventNumber>,
    may_have_skew: bool,
    /// ETags of objects in parts are the store's own by now.
    has_listed_anew: bool,
    unfinished_uploads: BTreeSet<String>,
    failure: Option<String>,
    acknowledged: u64,
    refused: u64,
}

/// See the module. Its clones are one.
#[derive(Clone)]
pub struct ObjectModel {
    world: SimulatedWorld,
    state: Arc<Mutex<ModelState>>,
}

fn bare(etag: &str) -> &str {
    etag.trim_matches('"')
}

impl ModelState {
    fn tick(&mut self) -> EventNumber {
        self.moment += 1;
        self.moment
    }

    fn register(&mut self, key: &str) -> &mut KeyRegister {
        self.keys.entry(key.to_owned()).or_insert_with(KeyRegister::new)
    }

    fn consistency(&self, key: &str) -> RuleConsistency {
        let rules = self.settings.rules.iter().filter(|(prefix, _)| key.starts_with(prefix.as_str()));
        rules.max_by_key(|(prefix, _)| prefix.len()).map_or(self.settings.consistency, |(_, rule)| *rule)
    }

    fn is_exclusive(&self, key: &str) -> bool {
        self.consistency(key) == RuleConsistency::Exclusive
    }

    /// The possible results of a read between two moments, with their writes.
    fn possible(
        &self,
        key: &str,
        start: EventNumber,
        end: EventNumber,
        depth: usize,
    ) -> Vec<(usize, Option<ObjectVersion>)> {
        let Some(register) = self.keys.get(key) else { return vec![(0, None)] };
        let mut found = Vec::new();
        for index in register.possible(start, end) {
            let write = &register.writes[index];
            match &write.copy_of {
                Some((from, id)) if write.outcomes.is_empty() && depth < MAX_DEPTH => {
                    let source = self.possible(from, write.begun, end, depth + 1);
                    let copied = source.into_iter().filter_map(|(_, version)| version);
                    found.extend(copied.map(|version| {
                        (index, Some(with_id(self.with_foreseen_etag(&[key, from], version), id.as_deref())))
                    }));
                }
                _ => found.extend(
                    write
                        .outcomes
                        .iter()
                        .map(|outcome| (index, outcome.map(|one| self.versions[one].clone()))),
                ),
            }
        }
        found
    }

    /// Below a prefix that others write to, ETags are the store's. For objects in parts, only answers show them; also
    /// for copies to or from such a prefix. `keys` are those of the object and of its source.
    fn with_foreseen_etag(&self, keys: &[&str], version: ObjectVersion) -> ObjectVersion {
        let has_parts = version.content.size() > MAX_SENT_WHOLE_BYTES
            || version.etag.as_ref().is_some_and(|etag| etag.contains('-'));
        match has_parts && !keys.iter().all(|key| self.is_exclusive(key)) {
            true => ObjectVersion { etag: None, ..version },
            false => version,
        }
    }

    fn is_it(&self, version: &ObjectVersion, seen: &SeenObject) -> bool {
        let keeps_headers = self.kind == StoreKind::S3;
        let is_etag = match (&version.etag, &seen.etag) {
            (Some(expected), Some(found)) if !self.has_etags_of_its_own => {
                let is_whole = !expected.contains('-') && !bare(found).contains('-');
                (!is_whole && self.has_listed_anew) || bare(expected) == bare(found)
            }
            _ => true,
        };
        version.content.size() == seen.size
            && is_etag
            && seen.id.as_ref().is_none_or(|id| !keeps_headers || *id == version.id)
            && seen.bytes.as_ref().is_none_or(|(range, bytes)| {
                version.content.range(range.start, range.end - range.start).bytes() == *bytes
            })
    }

    fn described(&self, possible: &[(usize, Option<ObjectVersion>)]) -> String {
        let one = |version: &Option<ObjectVersion>| match version {
            None => "nothing".to_owned(),
            Some(version) => format!(
                "{} bytes, ETag {}, id {}",
                version.content.size(),
                version.etag.as_deref().unwrap_or("unknown"),
                version.id.as_deref().unwrap_or("none")
            ),
        };
        let all: Vec<String> = possible.iter().map(|(_, version)| one(version)).collect();
        if all.is_empty() { "nothing known".to_owned() } else { all.join("; or ") }
    }
}

fn with_id(version: ObjectVersion, id: Option<&str>) -> ObjectVersion {
    match id {
        Some(id) => ObjectVersion { id: Some(id.to_owned()), ..version },
        None => version,
    }
}

impl ObjectModel {
    pub fn new(world: SimulatedWorld, setup: &ScriptSetup) -> ObjectModel {
        let state = ModelState {
            settings: setup.settings.clone(),
            kind: setup.store.kind,
            has_etags_of_its_own: setup.store.has_etags_of_its_own,
            is_alone: setup.gateways == 1,
            keys: BTreeMap::new(),
            timed: BTreeSet::new(),
            versions: Vec::new(),
            moment: 0,
            next_seed: 1,
            died: BTreeMap::new(),
            may_have_skew: false,
            // A key that goes to another gateway has the store's ETag from then on.
            has_listed_anew: setup.gateways > 1,
            unfinished_uploads: BTreeSet::new(),
            failure: None,
            acknowledged: 0,
            refused: 0,
        };
        ObjectModel { world, state: Arc::new(Mutex::new(state)) }
    }

    /// The first failure.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    pub fn fail(&self, message: impl Into<String>) {
        let message = message.into();
        self.world.note(format_args!("FAILURE: {message}"));
        let mut state = self.state.lock();
        if state.failure.is_none() {
            let text = format!("at {:.3} s: {message}", self.world.now().as_secs_f64());
            state.failure = Some(text);
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.state.lock().acknowledged
    }

    pub fn refused(&self) -> u64 {
        self.state.lock().refused
    }

    /// A gateway starts with these.
    pub fn configure(&self, settings: &GatewaySettings) {
        let mut state = self.state.lock();
        state.has_listed_anew |=
            state.settings.rules != settings.rules || state.settings.consistency != settings.consistency;
        state.settings = settings.clone();
    }

    pub fn settings(&self) -> GatewaySettings {
        self.state.lock().settings.clone()
    }

    /// Signatures may be refused from now on.
    pub fn note_clock_jump(&self) {
        self.state.lock().may_have_skew = true;
    }

    pub fn may_have_skew(&self) -> bool {
        self.state.lock().may_have_skew
    }

    /// Requests in flight through it have happened by now or never happen.
    pub fn gateway_died(&self, gateway: usize) {
        let mut state = self.state.lock();
        let moment = state.tick();
        state.died.insert(gateway, moment);
        if !state.is_alone {
            return;
        }
        let shared: BTreeSet<String> =
            state.keys.keys().filter(|key| !state.is_exclusive(key)).cloned().collect();
        for (key, register) in &mut state.keys {
            for write in register.writes.iter_mut().filter(|_| !shared.contains(key)) {
                if write.fate == WriteFate::Unknown && write.gateway == gateway && write.ends_at.is_some() {
                    write.ended = Some(write.ended.unwrap_or(moment));
                }
            }
        }
    }

    /// Bytes that nothing had before.
    pub fn fresh(&self, size: u64) -> ObjectContent {
        let mut state = self.state.lock();
        let seed = state.next_seed;
        state.next_seed += 1;
        ObjectContent::new(seed, size)
    }

    /// An identity for a version's headers.
    pub fn fresh_id(&self) -> String {
        let mut state = self.state.lock();
        state.next_seed += 1;
        format!("v{}", state.next_seed)
    }

    /// Whether the ETags of what others put are not known beforehand.
    pub fn has_etags_of_its_own(&self) -> bool {
        let state = self.state.lock();
        state.has_etags_of_its_own || state.kind != StoreKind::S3
    }

    pub fn is_s3(&self) -> bool {
        self.state.lock().kind == StoreKind::S3
    }

    pub fn consistency(&self, key: &str) -> RuleConsistency {
        self.state.lock().consistency(key)
    }

    /// Headers were taken that no store takes. The final check shows whether they were kept.
    pub fn note_odd_headers(&self, key: &str) {
        self.world.note(format_args!("headers were taken with {key:?} that no store takes"));
    }

    /// A moment at which a request begins.
    pub fn begin_read(&self) -> EventNumber {
        let now = self.world.now();
        let mut state = self.state.lock();
        let moment = state.tick();
        let ModelState { keys, timed, .. } = &mut *state;
        timed.retain(|key| keys.get_mut(key).is_some_and(|register| register.pass(now, moment)));
        moment
    }

    fn begin(
        &self,
        key: &str,
        gateway: usize,
        outcomes: Vec<Option<ObjectVersion>>,
        copy_of: Option<(String, Option<String>)>,
    ) -> BegunChange {
        let moment = self.begin_read();
        let mut state = self.state.lock();
        let outcomes = outcomes
            .into_iter()
            .map(|outcome| {
                outcome.map(|version| {
                    state.versions.push(version);
                    state.versions.len() - 1
                })
            })
            .collect();
        let register = state.register(key);
        register.writes.push(WriteAttempt {
            outcomes,
            copy_of,
            begun: moment,
            ended: None,
            ends_at: None,
            fate: WriteFate::Unknown,
            gone_since: None,
            gateway,
        });
        BegunChange { key: key.to_owned(), at: register.writes.len() - 1, moment }
    }

    pub fn begin_put(&self, key: &str, gateway: usize, version: ObjectVersion) -> BegunChange {
        let version = self.state.lock().with_foreseen_etag(&[key], version);
        self.begin(key, gateway, vec![Some(version)], None)
    }

    pub fn begin_delete(&self, key: &str, gateway: usize) -> BegunChange {
        self.begin(key, gateway, vec![None], None)
    }

    /// A copy of `from` as it is during the request, with this identity if it gets its own headers.
    pub fn begin_copy(&self, from: &str, to: &str, gateway: usize, id: Option<String>) -> BegunChange {
        self.begin(to, gateway, Vec::new(), Some((from.to_owned(), id)))
    }

    /// The ETag is that of the answer, if there was one.
    pub fn end(&self, begun: &BegunChange, answer: ChangeOutcome, etag: Option<&str>) {
        let now = self.world.now();
        let mut state = self.state.lock();
        let moment = state.tick();
        let write = &state.register(&begun.key).writes[begun.at];
        let (copy_of, was_begun, gateway) = (write.copy_of.clone(), write.begun, write.gateway);
        let mut resolved = None;
        if let Some((from, id)) = copy_of.filter(|_| answer != ChangeOutcome::NotDone) {
            let source = state.possible(&from, was_begun, moment, 0);
            let versions: Vec<ObjectVersion> = source
                .into_iter()
                .filter_map(|(_, version)| version)
                .map(|version| state.with_foreseen_etag(&[&begun.key, &from], version))
                .filter(|version| match (&version.etag, etag) {
                    (Some(recorded), Some(answered))
                        if !state.has_etags_of_its_own && !state.has_listed_anew =>
                    {
                        bare(recorded) == bare(answered)
                    }
                    _ => true,
                })
                .map(|version| with_id(version, id.as_deref()))
                .collect();
            if versions.is_empty() && answer == ChangeOutcome::Done {
                drop(state);
                self.fail(format!("a copy of {from:?} has the ETag {etag:?}, and its source never had"));
                return;
            }
            let from = state.versions.len();
            let count = versions.len();
            state.versions.extend(versions);
            resolved = Some((from..from + count).map(Some).collect());
        }
        let has_died = state.is_alone
            && state.is_exclusive(&begun.key)
            && state.died.get(&gateway).is_some_and(|died| *died > was_begun);
        let write = &mut state.register(&begun.key).writes[begun.at];
        if let Some(resolved) = resolved {
            write.outcomes = resolved;
        }
        // A read that has found it meanwhile knows better.
        if write.fate == WriteFate::Unknown {
            write.fate = match answer {
                ChangeOutcome::Done => WriteFate::Done,
                ChangeOutcome::NotDone => WriteFate::NotDone,
                ChangeOutcome::Unknown => WriteFate::Unknown,
            };
        }
        match answer {
            ChangeOutcome::Unknown if has_died => write.ended = Some(write.ended.unwrap_or(moment)),
            ChangeOutcome::Unknown => write.ends_at = Some(now + OPEN_FOR),
            ChangeOutcome::Done | ChangeOutcome::NotDone => {
                write.ended = Some(write.ended.map_or(moment, |ended| ended.min(moment)))
            }
        }
        let outcome = write.outcomes.first().copied().flatten();
        if write.ends_at.is_some() {
            state.timed.insert(begun.key.clone());
        }
        if let (ChangeOutcome::Done, Some(etag), Some(version)) = (&answer, etag, outcome)
            && state.versions[version].etag.is_none()
        {
            state.versions[version].etag = Some(bare(etag).to_owned());
        }
        match answer {
            ChangeOutcome::Done => state.acknowledged += 1,
            ChangeOutcome::NotDone | ChangeOutcome::Unknown => state.refused += 1,
        }
    }

    /// Somebody else has changed the store.
    pub fn note_others(&self, key: &str, version: Option<ObjectVersion>) {
        let begun = self.begin(key, usize::MAX, vec![version], None);
        let now = self.world.now();
        let mut state = self.state.lock();
        let moment = state.tick();
        let seen_after = match state.consistency(key) {
            RuleConsistency::Ttl { ms } => Some(Duration::from_millis(ms)),
            RuleConsistency::Exclusive | RuleConsistency::Revalidate => None,
        };
        let write = &mut state.register(key).writes[begun.at];
        write.fate = WriteFate::Done;
        match seen_after {
            Some(after) => write.ends_at = Some(now + after),
            None => write.ended = Some(moment),
        }
        if seen_after.is_some() {
            state.timed.insert(key.to_owned());
        }
    }

    /// Whether a read that began then may find nothing, and whether it may find something.
    pub fn may_be(&self, key: &str, start: EventNumber) -> (bool, bool) {
        let mut state = self.state.lock();
        let end = state.tick();
        let possible = state.possible(key, start, end, 0);
        (
            possible.iter().any(|(_, version)| version.is_none()),
            possible.iter().any(|(_, version)| version.is_some()),
        )
    }

    /// The versions that a read that began then may find.
    pub fn versions(&self, key: &str, start: EventNumber) -> Vec<ObjectVersion> {
        let mut state = self.state.lock();
        let end = state.tick();
        state.possible(key, start, end, 0).into_iter().filter_map(|(_, version)| version).collect()
    }

    /// As [`may_be`](Self::may_be), for the answer to a condition of a change that was begun: that one does not
    /// count.
    pub fn may_have_been(&self, begun: &BegunChange) -> (bool, Vec<ObjectVersion>) {
        let mut state = self.state.lock();
        let end = state.tick();
        let possible = state.possible(&begun.key, begun.moment, end, 0);
        let others: Vec<_> = possible.into_iter().filter(|(index, _)| *index != begun.at).collect();
        let may_be_nothing = others.iter().any(|(_, version)| version.is_none());
        (may_be_nothing, others.into_iter().filter_map(|(_, version)| version).collect())
    }

    /// Checks what a read that began then has found.
    pub fn check_read(&self, request: &str, key: &str, start: EventNumber, seen: Option<&SeenObject>) {
        let wrong = {
            let mut state = self.state.lock();
            let end = state.tick();
            let possible = state.possible(key, start, end, 0);
            let mut found: Vec<usize> = possible
                .iter()
                .filter(|(_, version)| match (version, seen) {
                    (None, None) => true,
                    (Some(version), Some(seen)) => state.is_it(version, seen),
                    _ => false,
                })
                .map(|(index, _)| *index)
                .collect();
            found.dedup();
            // Others' writes may be seen now, and then older versions, from a cache that `ttl` allows.
            if let [only] = found[..]
                && state.is_exclusive(key)
            {
                state.register(key).see(only, start, end);
            }
            found.is_empty().then(|| state.described(&possible))
        };
        if let Some(possible) = wrong {
            let found = match seen {
                None => "nothing".to_owned(),
                Some(SeenObject { size, etag, id, bytes }) => {
                    let bytes =
                        bytes.as_ref().map(|(range, bytes)| format!(", {range:?}: {}", text_of(bytes)));
                    format!("{size} bytes, ETag {etag:?}, id {id:?}{}", bytes.unwrap_or_default())
                }
            };
            self.fail(format!("{request} {key:?}: found {found}; possible is {possible}"));
        }
    }

    /// Checks a whole listing that began then.
    pub fn check_list(
        &self,
        prefix: &str,
        has_delimiter: bool,
        start: EventNumber,
        entries: &[ListingEntry],
    ) {
        let wrong = {
            let mut state = self.state.lock();
            let end = state.tick();
            state.wrong_in_list(prefix, has_delimiter, (start, end), entries)
        };
        if let Some(wrong) = wrong {
            self.fail(format!("LIST {prefix:?}{}: {wrong}", if has_delimiter { " by /" } else { "" }));
        }
    }

    pub fn begin_upload(&self, id: &str) {
        self.state.lock().unfinished_uploads.insert(id.to_owned());
    }

    pub fn end_upload(&self, id: &str) {
        self.state.lock().unfinished_uploads.remove(id);
    }

    /// All keys that something was ever asked of.
    pub fn keys(&self) -> Vec<String> {
        self.state.lock().keys.keys().cloned().collect()
    }
}

/// The first bytes, for people.
fn text_of(bytes: &Bytes) -> String {
    let first = base16ct::lower::encode_string(&bytes[..bytes.len().min(16)]);
    format!("{} bytes from {first} on", bytes.len())
}

impl ModelState {
    fn wrong_in_list(
        &self,
        prefix: &str,
        has_delimiter: bool,
        (start, last): (EventNumber, EventNumber),
        entries: &[ListingEntry],
    ) -> Option<String> {
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name() >= pair[1].name()) {
            return Some(format!("{:?} stands before {:?}", pair[0].name(), pair[1].name()));
        }
        let group_of = |key: &str| {
            let end = key.get(prefix.len()..).filter(|_| has_delimiter)?.find('/')?;
            Some(key[..prefix.len() + end + 1].to_owned())
        };
        // Whether the group has to be there: one key that surely exists is enough.
        let mut expected_groups: BTreeMap<String, bool> = BTreeMap::new();
        let listed: BTreeMap<&str, (u64, &str)> = entries
            .iter()
            .filter_map(|entry| match entry {
                ListingEntry::Key { key, size, etag } => Some((key.as_str(), (*size, etag.as_str()))),
                ListingEntry::Group(_) => None,
            })
            .collect();
        if let Some(unknown) =
            listed.keys().find(|key| !self.keys.contains_key(**key) || group_of(key).is_some())
        {
            return Some(format!("it has {unknown:?}, which it can't have"));
        }
        for key in self.keys.keys().filter(|key| key.starts_with(prefix)) {
            let possible = self.possible(key, start, last, 0);
            // The listing took a while, so it may show any state that the key had meanwhile.
            let may_be_nothing = possible.iter().any(|(_, version)| version.is_none());
            let may_be_there = possible.iter().any(|(_, version)| version.is_some());
            if let Some(group) = group_of(key) {
                if may_be_there {
                    *expected_groups.entry(group).or_default() |= !may_be_nothing;
                }
                continue;
            }
            match listed.get(key.as_str()) {
                None if !may_be_nothing => {
                    return Some(format!("it lacks {key:?}; possible is {}", self.described(&possible)));
                }
                None => {}
                Some((size, etag)) => {
                    let seen =
                        SeenObject { size: *size, etag: Some((*etag).to_owned()), id: None, bytes: None };
                    let is_it = |version: &ObjectVersion| self.is_it(version, &seen);
                    if !possible.iter().any(|(_, version)| version.as_ref().is_some_and(is_it)) {
                        let possible = self.described(&possible);
                        return Some(format!(
                            "it has {key:?} with {size} bytes, ETag {etag}; possible is {possible}"
                        ));
                    }
                }
            }
        }
        let groups: BTreeSet<&str> = entries
            .iter()
            .filter_map(|entry| match entry {
                ListingEntry::Group(group) => Some(group.as_str()),
                ListingEntry::Key { .. } => None,
            })
            .collect();
        if let Some(unknown) = groups.iter().find(|group| !expected_groups.contains_key(**group)) {
            return Some(format!("it has the group {unknown:?}, in which nothing can be"));
        }
        let lacking =
            expected_groups.iter().find(|(group, has_to)| **has_to && !groups.contains(group.as_str()));
        lacking.map(|(group, _)| format!("it lacks the group {group:?}"))
    }
}

#[cfg(test)]
pub(crate) mod tests;
