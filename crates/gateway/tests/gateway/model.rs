//! The engine against a model of S3 that is too simple to be wrong: a map from keys to bytes, headers and tags. The
//! store behind fails and lies now and then, the engine is closed in the middle and opened again, and in the end the
//! store has exactly what the model has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use object_store::{Attribute, ObjectStoreExt as _};
use proptest::prelude::*;
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{
    CompletedPart, CopyRequest, GatewayEngine, ListEntry, ListRequest, PutRequest, SourceConditions,
    WriteConditions,
};
use underlay_gateway::errors::GatewayError;
use underlay_gateway::model::{ObjectChecksums, ObjectHeaders};
use underlay_gateway::store::{BackendKind, path_of};

use crate::faulty::Etags;
use crate::rig::{BUCKET, Ground, body_of, content, delete, get, in_memory};

/// Few, so that operations meet; with a marker and names that a path can't have.
const KEYS: [&str; 8] = ["a", "b", "dir/", "dir/a", "dir/b", "dir/sub/a", "x//y", "../z"];
const PART_BYTES: usize = 5 << 20;

/// What the source of a copy has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Only {
    Anything,
    /// The version that is there.
    This,
    AnotherThanThis,
    Other,
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: usize,
        size: usize,
        if_absent: bool,
    },
    /// With the ETag that is there, or another.
    PutIfMatch {
        key: usize,
        size: usize,
        right: bool,
    },
    Copy {
        from: usize,
        to: usize,
        replace: bool,
        only: Only,
    },
    /// Two objects exchange their names by way of a third.
    Swap {
        a: usize,
        b: usize,
    },
    Delete {
        key: usize,
    },
    DeleteMany {
        keys: Vec<usize>,
    },
    /// Of two parts, the second of which may be a range of another object.
    Multipart {
        key: usize,
        copy_from: Option<usize>,
        is_aborted: bool,
    },
    Read {
        key: usize,
        at: u16,
        length: u16,
    },
    Head {
        key: usize,
    },
    SetTags {
        key: usize,
    },
    List {
        prefix: usize,
        has_delimiter: bool,
        page: usize,
    },
    Pause,
    Reopen,
    Fail {
        failing: u32,
    },
    Lie {
        lying: u32,
    },
}

fn only() -> impl Strategy<Value = Only> {
    prop_oneof![6 => Just(Only::Anything), 1 => Just(Only::This), 1 => Just(Only::AnotherThanThis), 1 => Just(Only::Other)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS.len();
    let size = || prop_oneof![Just(0_usize), 1..2000_usize, 60_000..70_000_usize, 150_000..300_000_usize];
    let step = prop_oneof![
        6 => (key(), size(), any::<bool>()).prop_map(|(key, size, if_absent)| Step::Put { key, size, if_absent }),
        1 => (key(), size(), any::<bool>()).prop_map(|(key, size, right)| Step::PutIfMatch { key, size, right }),
        4 => (key(), key(), any::<bool>(), only())
            .prop_map(|(from, to, replace, only)| Step::Copy { from, to, replace, only }),
        1 => (key(), key()).prop_map(|(a, b)| Step::Swap { a, b }),
        3 => key().prop_map(|key| Step::Delete { key }),
        1 => prop::collection::vec(key(), 1..5).prop_map(|keys| Step::DeleteMany { keys }),
        1 => (key(), prop::option::of(key()), prop::bool::weighted(0.2))
            .prop_map(|(key, copy_from, is_aborted)| Step::Multipart { key, copy_from, is_aborted }),
        4 => (key(), any::<u16>(), any::<u16>()).prop_map(|(key, at, length)| Step::Read { key, at, length }),
        2 => key().prop_map(|key| Step::Head { key }),
        1 => key().prop_map(|key| Step::SetTags { key }),
        2 => (key(), any::<bool>(), 1..4_usize)
            .prop_map(|(prefix, has_delimiter, page)| Step::List { prefix, has_delimiter, page }),
        3 => Just(Step::Pause),
        1 => Just(Step::Reopen),
        1 => prop_oneof![Just(0_u32), Just(300)].prop_map(|failing| Step::Fail { failing }),
        1 => prop_oneof![Just(0_u32), Just(200)].prop_map(|lying| Step::Lie { lying }),
    ];
    prop::collection::vec(step, 1..40)
}

#[derive(Clone, Debug)]
struct Object {
    bytes: Bytes,
    headers: ObjectHeaders,
    tags: Vec<(String, String)>,
    /// Where it is not the store's.
    etag: Option<String>,
}

type Model = BTreeMap<String, Object>;

const OTHER_ETAG: &str = "0123456789abcdef";

/// Some have none.
fn headers_of(seed: u64) -> ObjectHeaders {
    match seed % 3 {
        0 => ObjectHeaders::default(),
        _ => ObjectHeaders {
            content_type: Some(format!("text/{seed}")),
            user: vec![("by".to_owned(), format!("step {seed}")), ("of".to_owned(), "model".to_owned())],
            ..ObjectHeaders::default()
        },
    }
}

fn md5(bytes: &[u8]) -> String {
    let sum = openssl::hash::hash(openssl::hash::MessageDigest::md5(), bytes).unwrap();
    base16ct::lower::encode_string(&sum)
}

/// Whether reads may fail, since the store does.
fn same(found: Result<Bytes, GatewayError>, expected: Option<&Bytes>, may_fail: bool, label: &str) {
    match (found, expected) {
        (Ok(found), Some(expected)) => {
            assert!(found == *expected, "{label}: {} and {} bytes", found.len(), expected.len())
        }
        (Err(GatewayError::NoSuchKey), None) => {}
        (Err(GatewayError::Store(_) | GatewayError::StoreAway(_)), Some(_)) if may_fail => {}
        (found, expected) => panic!("{label}: {found:?}, expected {:?}", expected.map(Bytes::len)),
    }
}

/// What S3 lists, worked out anew from all keys.
fn expected_listing(model: &Model, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
    let mut names = Vec::new();
    for key in model.keys().filter(|key| key.starts_with(prefix)) {
        let name = match delimiter.and_then(|delimiter| key[prefix.len()..].find(delimiter)) {
            Some(end) => &key[..prefix.len() + end + 1],
            None => key,
        };
        if names.last().is_none_or(|last| last != name) {
            names.push(name.to_owned());
        }
    }
    names
}

struct Run<'a> {
    ground: &'a Ground,
    directory: &'a Path,
    /// None only while it is closed.
    open: Option<Arc<GatewayEngine>>,
    model: Model,
    seed: u64,
}

impl Run<'_> {
    fn engine(&self) -> &Arc<GatewayEngine> {
        self.open.as_ref().unwrap()
    }

    fn failing(&self) -> bool {
        let mood = &self.ground.mood;
        mood.failing.load(Ordering::Relaxed) > 0 || mood.lying.load(Ordering::Relaxed) > 0
    }

    fn is_exclusive(&self) -> bool {
        self.ground.consistency == StoreConsistency::Exclusive
    }

    /// Where others write there is no place for any.
    fn tags_of(&self, seed: u64) -> Vec<(String, String)> {
        match self.is_exclusive() && seed.is_multiple_of(2) {
            true => vec![("step".to_owned(), seed.to_string())],
            false => Vec::new(),
        }
    }

    /// Puts an object of this step, with headers and tags.
    async fn put(
        &self,
        key: &str,
        size: usize,
        conditions: WriteConditions,
    ) -> (Result<(), GatewayError>, Object) {
        let bytes = content(self.seed, size);
        let (headers, tags) = (headers_of(self.seed), self.tags_of(self.seed));
        let etag = self.is_exclusive().then(|| md5(&bytes));
        let request = PutRequest {
            size_bytes: size as u64,
            headers: headers.clone(),
            tags: tags.clone(),
            conditions,
            ..PutRequest::default()
        };
        let outcome = self.engine().put(BUCKET, key, request, body_of(&bytes), Box::new(|_, _| Ok(()))).await;
        if let (Ok(stored), Some(etag)) = (&outcome, &etag) {
            assert_eq!(stored.etag, *etag, "{key}");
        }
        (outcome.map(drop), Object { bytes, headers, tags, etag })
    }

    /// Everything that is said of an object without its bytes.
    async fn head(&self, key: &str, label: &str) {
        match (self.engine().resolve(BUCKET, key).await, self.model.get(key)) {
            (Ok(resolved), Some(object)) => {
                let record = resolved.record;
                assert_eq!(record.size_bytes, object.bytes.len() as u64, "{label}");
                assert_eq!((&record.headers, &record.tags), (&object.headers, &object.tags), "{label}");
                assert!(object.etag.as_ref().is_none_or(|etag| *etag == record.etag), "{label}");
            }
            (Err(GatewayError::NoSuchKey), None) => {}
            (found, expected) => {
                panic!("{label}: {:?}, expected {expected:?}", found.map(|found| found.record))
            }
        }
    }

    /// Written through, a write that the store did not take is an error, and stands.
    fn stands(&self, outcome: Result<(), GatewayError>, label: &str) {
        match outcome {
            Ok(()) => {}
            Err(GatewayError::Store(_) | GatewayError::StoreAway(_) | GatewayError::Busy(_))
                if self.ground.write == WriteMode::Through => {}
            Err(error) => panic!("{label}: {error}"),
        }
    }

    async fn step(&mut self, step: &Step) {
        self.seed += 1;
        let label = format!("{step:?}");
        match step {
            Step::Put { key, size, if_absent } => {
                let key = KEYS[*key];
                let conditions = WriteConditions { if_none_match: *if_absent, ..WriteConditions::default() };
                let (outcome, object) = self.put(key, *size, conditions).await;
                if *if_absent && self.model.contains_key(key) {
                    assert_eq!(outcome, Err(GatewayError::PreconditionFailed), "{label}");
                    return;
                }
                self.stands(outcome, &label);
                self.model.insert(key.to_owned(), object);
            }
            Step::PutIfMatch { key, size, right } => {
                let key = KEYS[*key];
                let etag = match self.engine().resolve(BUCKET, key).await {
                    Ok(resolved) if *right => resolved.record.etag,
                    _ => OTHER_ETAG.to_owned(),
                };
                let conditions =
                    WriteConditions { if_match: Some(etag.into()), ..WriteConditions::default() };
                let (outcome, object) = self.put(key, *size, conditions).await;
                match self.model.contains_key(key) {
                    false => assert_eq!(outcome, Err(GatewayError::NoSuchKey), "{label}"),
                    true if !*right => assert_eq!(outcome, Err(GatewayError::PreconditionFailed), "{label}"),
                    true => {
                        self.stands(outcome, &label);
                        self.model.insert(key.to_owned(), object);
                    }
                }
            }
            Step::Copy { from, to, replace, only } => {
                self.copy(KEYS[*from], KEYS[*to], *replace, *only, &label).await;
            }
            Step::Swap { a, b } if a != b => {
                let (a, b) = (KEYS[*a], KEYS[*b]);
                if !self.model.contains_key(a) || !self.model.contains_key(b) {
                    return;
                }
                self.copy(a, "swap", false, Only::Anything, &label).await;
                self.copy(b, a, false, Only::Anything, &label).await;
                self.copy("swap", b, false, Only::Anything, &label).await;
                self.stands(delete(self.engine(), "swap").await, &label);
                self.model.remove("swap");
            }
            Step::Swap { .. } => {}
            Step::Delete { key } => {
                self.stands(delete(self.engine(), KEYS[*key]).await, &label);
                self.model.remove(KEYS[*key]);
            }
            Step::DeleteMany { keys } => {
                let keys: Vec<String> = keys.iter().map(|key| KEYS[*key].to_owned()).collect();
                let asked = keys.iter().map(|key| (key.clone(), WriteConditions::default())).collect();
                for outcome in self.engine().delete(BUCKET, asked).await.unwrap() {
                    self.stands(outcome, &label);
                }
                keys.iter().for_each(|key| drop(self.model.remove(key)));
            }
            Step::Multipart { key, copy_from, is_aborted } => {
                self.multipart(KEYS[*key], copy_from.map(|from| KEYS[from]), *is_aborted, &label).await;
            }
            Step::Read { key, at: offset, length } => {
                let key = KEYS[*key];
                let whole = self.model.get(key).map(|object| &object.bytes);
                let size = whole.map_or(1, |bytes| bytes.len() as u64);
                let (offset, length) = (u64::from(*offset) % size.max(1), u64::from(*length));
                let range = offset.min(size)..(offset + length).min(size);
                let expected = whole.map(|bytes| bytes.slice(range.start as usize..range.end as usize));
                same(get(self.engine(), key, Some(range)).await, expected.as_ref(), self.failing(), &label);
            }
            Step::Head { key } => self.head(KEYS[*key], &label).await,
            Step::SetTags { key } => {
                let (key, tags) = (KEYS[*key], vec![("set".to_owned(), self.seed.to_string())]);
                let outcome = self.engine().set_tags(BUCKET, key, tags.clone()).await;
                match self.model.get_mut(key) {
                    None => assert_eq!(outcome, Err(GatewayError::NoSuchKey), "{label}"),
                    Some(object) => {
                        outcome.unwrap();
                        object.tags = tags;
                    }
                }
            }
            Step::List { prefix, has_delimiter, page } => {
                let prefix = &KEYS[*prefix][..KEYS[*prefix].len().min(4)];
                self.list(prefix, has_delimiter.then_some("/"), *page).await;
            }
            Step::Pause => tokio::time::sleep(Duration::from_millis(8)).await,
            Step::Reopen => {
                self.engine().close().await;
                self.open = None;
                self.open = Some(self.ground.open(self.directory).await);
            }
            Step::Fail { failing } => self.ground.mood.failing.store(*failing, Ordering::Relaxed),
            Step::Lie { lying } => self.ground.mood.lying.store(*lying, Ordering::Relaxed),
        }
    }

    async fn copy(&mut self, from: &str, to: &str, replace: bool, only: Only, label: &str) {
        let headers = headers_of(self.seed);
        let etag = self.engine().resolve(BUCKET, from).await.map(|resolved| resolved.record.etag);
        let etag = etag.unwrap_or_else(|_| OTHER_ETAG.to_owned());
        let source = match only {
            Only::Anything => SourceConditions::default(),
            Only::This => SourceConditions { if_match: Some(etag.into()), ..SourceConditions::default() },
            Only::AnotherThanThis => {
                SourceConditions { if_none_match: Some(etag.into()), ..SourceConditions::default() }
            }
            Only::Other => SourceConditions {
                if_match: Some(OTHER_ETAG.to_owned().into()),
                ..SourceConditions::default()
            },
        };
        let request = CopyRequest {
            from: (BUCKET.to_owned(), from.to_owned()),
            to: (BUCKET.to_owned(), to.to_owned()),
            headers: replace.then_some(headers.clone()),
            source,
            ..CopyRequest::default()
        };
        let outcome = self.engine().copy(request).await.map(drop);
        match self.model.get(from).cloned() {
            _ if from == to && !replace => {
                assert!(matches!(outcome, Err(GatewayError::InvalidRequest(_))), "{label}")
            }
            None => assert_eq!(outcome, Err(GatewayError::NoSuchKey), "{label}"),
            Some(_) if matches!(only, Only::AnotherThanThis | Only::Other) => {
                assert_eq!(outcome, Err(GatewayError::PreconditionFailed), "{label}");
            }
            Some(object) => {
                self.stands(outcome, label);
                let headers = if replace { headers } else { object.headers };
                self.model.insert(to.to_owned(), Object { headers, ..object });
                self.head(to, label).await;
            }
        }
    }

    async fn multipart(&mut self, key: &str, copy_from: Option<&str>, is_aborted: bool, label: &str) {
        let (headers, tags) = (headers_of(self.seed), self.tags_of(self.seed));
        let upload =
            self.engine().create_upload(BUCKET, key, headers.clone(), tags.clone(), None).await.unwrap();
        let first = content(self.seed, PART_BYTES);
        let size = first.len() as u64;
        let part = self
            .engine()
            .upload_part(BUCKET, key, &upload, 1, size, &[], body_of(&first), Box::new(|_, _| Ok(())))
            .await
            .unwrap();
        let mut parts =
            vec![CompletedPart { number: 1, etag: part.etag, checksums: ObjectChecksums::default() }];
        let mut whole = first.to_vec();
        if let Some(from) = copy_from
            && let Some(Object { bytes: source, .. }) = self.model.get(from)
        {
            let range = (!source.is_empty()).then(|| source.len() as u64 / 3..source.len() as u64);
            let part = self
                .engine()
                .upload_part_copy(
                    BUCKET,
                    key,
                    &upload,
                    7,
                    (BUCKET, from),
                    SourceConditions::default(),
                    range.clone(),
                )
                .await
                .unwrap();
            parts.push(CompletedPart { number: 7, etag: part.etag, checksums: ObjectChecksums::default() });
            whole.extend_from_slice(&source[range.map_or(0, |range| range.start as usize)..]);
        }
        // A page each.
        let mut after = 0;
        for (index, expected) in parts.iter().enumerate() {
            let (found, is_truncated) = self.engine().list_parts(BUCKET, key, &upload, after, 1).unwrap();
            let sizes = [size, whole.len() as u64 - size];
            let [part] = found.as_slice() else { panic!("{label}: {found:?}") };
            assert_eq!(
                (part.number, &part.etag, part.size_bytes),
                (expected.number, &expected.etag, sizes[index]),
                "{label}"
            );
            assert_eq!(is_truncated, index + 1 < parts.len(), "{label}");
            after = part.number;
        }
        if is_aborted {
            self.engine().abort_upload(BUCKET, key, &upload).await.unwrap();
            assert!(matches!(self.engine().upload(BUCKET, key, &upload), Err(GatewayError::NoSuchUpload)));
            return;
        }
        let completed = self
            .engine()
            .complete_upload(
                BUCKET,
                key,
                &upload,
                parts,
                WriteConditions::default(),
                ObjectChecksums::default(),
                None,
            )
            .await;
        let etag = completed.as_ref().ok().filter(|_| self.is_exclusive()).map(|stored| stored.etag.clone());
        self.stands(completed.map(drop), label);
        let object = Object { bytes: Bytes::from(whole), headers, tags, etag };
        self.model.insert(key.to_owned(), object);
    }

    async fn list(&self, prefix: &str, delimiter: Option<&str>, page: usize) {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let request = ListRequest {
                prefix: prefix.to_owned(),
                delimiter: delimiter.map(str::to_owned),
                after: after.clone(),
                most: page,
            };
            let listing = self.engine().list(BUCKET, &request).await.unwrap();
            assert!(listing.entries.len() <= page);
            for entry in &listing.entries {
                if let ListEntry::Object(key, record) = entry {
                    let object = &self.model[key];
                    assert_eq!(record.size_bytes, object.bytes.len() as u64);
                    assert!(object.etag.as_ref().is_none_or(|etag| *etag == record.etag), "{key}");
                }
                names.push(entry.name().to_owned());
            }
            if !listing.is_truncated {
                break;
            }
            after = names.last().cloned();
        }
        assert_eq!(names, expected_listing(&self.model, prefix, delimiter), "{prefix:?} {delimiter:?}");
    }
}

fn check(steps: &[Step], write: WriteMode, consistency: StoreConsistency, etags: Etags) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), BackendKind::S3);
        (ground.write, ground.consistency) = (write, consistency);
        *ground.mood.etags.lock() = etags;
        let engine = ground.open(&directory.path().join("local")).await;
        let path = directory.path().join("local");
        let mut run =
            Run { ground: &ground, directory: &path, open: Some(engine), model: Model::new(), seed: 0 };
        for step in steps {
            run.step(step).await;
        }
        for key in KEYS {
            let expected = run.model.get(key).map(|object| &object.bytes);
            same(get(run.engine(), key, None).await, expected, run.failing(), key);
        }
        ground.drain(run.engine()).await;
        for key in KEYS {
            let object = run.model.get(key);
            same(get(run.engine(), key, None).await, object.map(|object| &object.bytes), false, key);
            run.head(key, key).await;
            let Some(object) = object else { continue };
            // Others who read the store find the headers there, too.
            let path = path_of(key, BackendKind::S3).unwrap();
            let attributes = ground.store.get(&path).await.unwrap().attributes;
            let stored_attribute =
                |attribute: Attribute| attributes.get(&attribute).map(|value| value.as_ref().to_owned());
            assert_eq!(stored_attribute(Attribute::ContentType), object.headers.content_type, "{key}");
            let user_value = object.headers.user.first().map(|(_, value)| value.clone());
            assert_eq!(stored_attribute(Attribute::Metadata("by".into())), user_value, "{key}");
        }
        let stored = ground.stored().await;
        let expected: Vec<(String, Bytes)> =
            run.model.iter().map(|(key, object)| (key.clone(), object.bytes.clone())).collect();
        let names = |list: &[(String, Bytes)]| {
            list.iter().map(|(key, bytes)| (key.clone(), bytes.len())).collect::<Vec<_>>()
        };
        assert!(stored == expected, "the store has {:?}, expected {:?}", names(&stored), names(&expected));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn written_back_it_is_as_s3_would_have_it(steps in steps()) {
        let write = WriteMode::Back { after: Duration::from_millis(5) };
        check(&steps, write, StoreConsistency::Exclusive, Etags::OfTheStore);
    }

    #[test]
    fn written_through_it_is_as_s3_would_have_it(steps in steps()) {
        check(&steps, WriteMode::Through, StoreConsistency::Exclusive, Etags::Md5);
    }

    #[test]
    fn shared_prefix_behaves_like_s3(steps in steps()) {
        // A store that fails is the client's business there, and `InMemory` takes no ETags as S3 writes them.
        let plain =
            |step: &Step| !matches!(step, Step::Fail { .. } | Step::Lie { .. } | Step::PutIfMatch { .. } | Step::SetTags { .. });
        let steps: Vec<Step> = steps.into_iter().filter(plain).collect();
        check(&steps, WriteMode::Through, StoreConsistency::Revalidate, Etags::OfTheStore);
        check(&steps, WriteMode::Through, StoreConsistency::Ttl(Duration::from_secs(60)), Etags::OfTheStore);
    }
}
