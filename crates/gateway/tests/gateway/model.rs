//! The engine against a model of S3 that is too simple to be wrong: a map from keys to bytes. The store behind fails and lies now and then, the
//! engine is closed in the middle and opened again, and in the end the store has exactly what the model has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use underlay_gateway::config::{Consistency, Write};
use underlay_gateway::engine::{
    CompletedPart, Conditions, CopyRequest, Engine, Entry, ListRequest, SourceConditions,
};
use underlay_gateway::errors::Error;
use underlay_gateway::model::{Checksums, Headers};
use underlay_gateway::store::Kind;

use crate::faulty::Etags;
use crate::rig::{BUCKET, Ground, body_of, content, delete, get, in_directory, in_memory, put};

/// Few, so that operations meet; with a marker and names that a path can't have.
const KEYS: [&str; 8] = ["a", "b", "dir/", "dir/a", "dir/b", "dir/sub/a", "x//y", "../z"];
const PART_BYTES: usize = 5 << 20;

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

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS.len();
    let size = || prop_oneof![Just(0_usize), 1..2000_usize, 60_000..70_000_usize, 150_000..300_000_usize];
    let step = prop_oneof![
        6 => (key(), size(), any::<bool>()).prop_map(|(key, size, if_absent)| Step::Put { key, size, if_absent }),
        1 => (key(), size(), any::<bool>()).prop_map(|(key, size, right)| Step::PutIfMatch { key, size, right }),
        4 => (key(), key(), any::<bool>()).prop_map(|(from, to, replace)| Step::Copy { from, to, replace }),
        1 => (key(), key()).prop_map(|(a, b)| Step::Swap { a, b }),
        3 => key().prop_map(|key| Step::Delete { key }),
        1 => prop::collection::vec(key(), 1..5).prop_map(|keys| Step::DeleteMany { keys }),
        1 => (key(), prop::option::of(key()), prop::bool::weighted(0.2))
            .prop_map(|(key, copy_from, is_aborted)| Step::Multipart { key, copy_from, is_aborted }),
        4 => (key(), any::<u16>(), any::<u16>()).prop_map(|(key, at, length)| Step::Read { key, at, length }),
        2 => (key(), any::<bool>(), 1..4_usize)
            .prop_map(|(prefix, has_delimiter, page)| Step::List { prefix, has_delimiter, page }),
        3 => Just(Step::Pause),
        1 => Just(Step::Reopen),
        1 => prop_oneof![Just(0_u32), Just(300)].prop_map(|failing| Step::Fail { failing }),
        1 => prop_oneof![Just(0_u32), Just(200)].prop_map(|lying| Step::Lie { lying }),
    ];
    prop::collection::vec(step, 1..40)
}

type Model = BTreeMap<String, Bytes>;

/// Whether reads may fail, since the store does.
fn same(found: Result<Bytes, Error>, expected: Option<&Bytes>, may_fail: bool, what: &str) {
    match (found, expected) {
        (Ok(found), Some(expected)) => {
            assert!(found == *expected, "{what}: {} and {} bytes", found.len(), expected.len())
        }
        (Err(Error::NoSuchKey), None) => {}
        (Err(Error::Store(_)), Some(_)) if may_fail => {}
        (found, expected) => panic!("{what}: {found:?}, expected {:?}", expected.map(Bytes::len)),
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
    open: Option<Arc<Engine>>,
    model: Model,
    seed: u64,
}

impl Run<'_> {
    fn engine(&self) -> &Arc<Engine> {
        self.open.as_ref().unwrap()
    }

    fn failing(&self) -> bool {
        let mood = &self.ground.mood;
        mood.failing.load(Ordering::Relaxed) > 0 || mood.lying.load(Ordering::Relaxed) > 0
    }

    /// Written through, a write that the store did not take is an error, and stands.
    fn stands(&self, outcome: Result<(), Error>, what: &str) {
        match outcome {
            Ok(()) => {}
            Err(Error::Store(_) | Error::Busy(_)) if self.ground.write == Write::Through => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }

    async fn step(&mut self, step: &Step) {
        self.seed += 1;
        let what = format!("{step:?}");
        match step {
            Step::Put { key, size, if_absent } => {
                let (key, bytes) = (KEYS[*key], content(self.seed, *size));
                let conditions = Conditions { if_none_match: *if_absent, ..Conditions::default() };
                let outcome = put(self.engine(), key, &bytes, conditions).await;
                if *if_absent && self.model.contains_key(key) {
                    assert_eq!(outcome, Err(Error::PreconditionFailed), "{what}");
                    return;
                }
                self.stands(outcome.map(drop), &what);
                self.model.insert(key.to_owned(), bytes);
            }
            Step::PutIfMatch { key, size, right } => {
                let (key, bytes) = (KEYS[*key], content(self.seed, *size));
                let etag = match self.engine().resolve(BUCKET, key).await {
                    Ok(resolved) if *right => resolved.record.etag,
                    _ => "0123456789abcdef".to_owned(),
                };
                let conditions = Conditions { if_match: Some(etag), ..Conditions::default() };
                let outcome = put(self.engine(), key, &bytes, conditions).await;
                match self.model.contains_key(key) {
                    false => assert_eq!(outcome, Err(Error::NoSuchKey), "{what}"),
                    true if !*right => assert_eq!(outcome, Err(Error::PreconditionFailed), "{what}"),
                    true => {
                        self.stands(outcome.map(drop), &what);
                        self.model.insert(key.to_owned(), bytes);
                    }
                }
            }
            Step::Copy { from, to, replace } => self.copy(KEYS[*from], KEYS[*to], *replace, &what).await,
            Step::Swap { a, b } if a != b => {
                let (a, b) = (KEYS[*a], KEYS[*b]);
                if !self.model.contains_key(a) || !self.model.contains_key(b) {
                    return;
                }
                self.copy(a, "swap", false, &what).await;
                self.copy(b, a, false, &what).await;
                self.copy("swap", b, false, &what).await;
                self.stands(delete(self.engine(), "swap").await, &what);
                self.model.remove("swap");
            }
            Step::Swap { .. } => {}
            Step::Delete { key } => {
                self.stands(delete(self.engine(), KEYS[*key]).await, &what);
                self.model.remove(KEYS[*key]);
            }
            Step::DeleteMany { keys } => {
                let keys: Vec<String> = keys.iter().map(|key| KEYS[*key].to_owned()).collect();
                let asked = keys.iter().map(|key| (key.clone(), Conditions::default())).collect();
                for outcome in self.engine().delete(BUCKET, asked).await.unwrap() {
                    self.stands(outcome, &what);
                }
                keys.iter().for_each(|key| drop(self.model.remove(key)));
            }
            Step::Multipart { key, copy_from, is_aborted } => {
                self.multipart(KEYS[*key], copy_from.map(|from| KEYS[from]), *is_aborted, &what).await;
            }
            Step::Read { key, at, length } => {
                let key = KEYS[*key];
                let whole = self.model.get(key);
                let size = whole.map_or(1, |bytes| bytes.len() as u64);
                let (at, length) = (u64::from(*at) % size.max(1), u64::from(*length));
                let range = at.min(size)..(at + length).min(size);
                let expected = whole.map(|bytes| bytes.slice(range.start as usize..range.end as usize));
                same(get(self.engine(), key, Some(range)).await, expected.as_ref(), self.failing(), &what);
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

    async fn copy(&mut self, from: &str, to: &str, replace: bool, what: &str) {
        let headers = Headers { content_type: Some(format!("text/{}", self.seed)), ..Headers::default() };
        let request = CopyRequest {
            from: (BUCKET.to_owned(), from.to_owned()),
            to: (BUCKET.to_owned(), to.to_owned()),
            headers: replace.then_some(headers.clone()),
            ..CopyRequest::default()
        };
        let outcome = self.engine().copy(request).await.map(drop);
        match self.model.get(from).cloned() {
            _ if from == to && !replace => {
                assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{what}")
            }
            None => assert_eq!(outcome, Err(Error::NoSuchKey), "{what}"),
            Some(bytes) => {
                self.stands(outcome, what);
                self.model.insert(to.to_owned(), bytes);
                if replace {
                    let record = self.engine().resolve(BUCKET, to).await.unwrap().record;
                    assert_eq!(record.headers, headers, "{what}");
                }
            }
        }
    }

    async fn multipart(&mut self, key: &str, copy_from: Option<&str>, is_aborted: bool, what: &str) {
        let upload =
            self.engine().create_upload(BUCKET, key, Headers::default(), Vec::new(), None).await.unwrap();
        let first = content(self.seed, PART_BYTES);
        let size = first.len() as u64;
        let part = self
            .engine()
            .upload_part(BUCKET, key, &upload, 1, size, &[], body_of(&first), Box::new(|_, _| Ok(())))
            .await
            .unwrap();
        let mut parts = vec![CompletedPart { number: 1, etag: part.etag, checksums: Checksums::default() }];
        let mut whole = first.to_vec();
        if let Some(from) = copy_from
            && let Some(source) = self.model.get(from)
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
            parts.push(CompletedPart { number: 7, etag: part.etag, checksums: Checksums::default() });
            whole.extend_from_slice(&source[range.map_or(0, |range| range.start as usize)..]);
        }
        if is_aborted {
            self.engine().abort_upload(BUCKET, key, &upload).await.unwrap();
            assert!(matches!(self.engine().upload(BUCKET, key, &upload), Err(Error::NoSuchUpload)));
            return;
        }
        let completed = self
            .engine()
            .complete_upload(BUCKET, key, &upload, parts, Conditions::default(), Checksums::default(), None)
            .await;
        self.stands(completed.map(drop), what);
        self.model.insert(key.to_owned(), Bytes::from(whole));
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
                if let Entry::Object(key, record) = entry {
                    assert_eq!(record.size_bytes, self.model[key].len() as u64);
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

fn check(steps: &[Step], write: Write, consistency: Consistency, etags: Etags) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), Kind::S3);
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
            same(get(run.engine(), key, None).await, run.model.get(key), run.failing(), key);
        }
        ground.drain(run.engine()).await;
        for key in KEYS {
            same(get(run.engine(), key, None).await, run.model.get(key), false, key);
        }
        let stored = ground.stored().await;
        let expected: Vec<(String, Bytes)> = run.model.clone().into_iter().collect();
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
        let write = Write::Back { after: Duration::from_millis(5) };
        check(&steps, write, Consistency::Exclusive, Etags::OfTheStore);
    }

    #[test]
    fn written_through_it_is_as_s3_would_have_it(steps in steps()) {
        check(&steps, Write::Through, Consistency::Exclusive, Etags::Md5);
    }

    #[test]
    fn where_others_write_it_is_as_s3_would_have_it(steps in steps()) {
        // A store that fails is the client's business there, and `InMemory` takes no ETags as S3 writes them.
        let plain =
            |step: &Step| !matches!(step, Step::Fail { .. } | Step::Lie { .. } | Step::PutIfMatch { .. });
        let steps: Vec<Step> = steps.into_iter().filter(plain).collect();
        check(&steps, Write::Through, Consistency::Revalidate, Etags::OfTheStore);
        check(&steps, Write::Through, Consistency::Ttl(Duration::from_secs(60)), Etags::OfTheStore);
    }
}

/// Renaming a directory costs the store one upload for each object, and nothing before the flush.
#[test]
fn a_rename_before_the_flush_uploads_each_object_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), Kind::S3);
        ground.write = Write::Back { after: Duration::from_secs(3600) };
        let engine = ground.open(&directory.path().join("local")).await;
        for at in 0..100_u64 {
            let temporary = format!("out/_temporary/0/task/part-{at:03}");
            put(&engine, &temporary, &content(at, 1000), Conditions::default()).await.unwrap();
            let request = CopyRequest {
                from: (BUCKET.to_owned(), temporary.clone()),
                to: (BUCKET.to_owned(), format!("out/part-{at:03}")),
                ..CopyRequest::default()
            };
            engine.copy(request).await.unwrap();
            delete(&engine, &temporary).await.unwrap();
        }
        put(&engine, "gone", &content(1, 5000), Conditions::default()).await.unwrap();
        delete(&engine, "gone").await.unwrap();
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 0);
        assert_eq!(engine.pending().0, 100);
        ground.drain(&engine).await;
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 100);
        assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 0);
        let stored = ground.stored().await;
        assert_eq!(stored.len(), 100);
        assert!(stored.iter().enumerate().all(|(at, (_, bytes))| *bytes == content(at as u64, 1000)));
        // Renamed again, the store copies what it has, and sends nothing.
        let request = CopyRequest {
            from: (BUCKET.to_owned(), "out/part-000".to_owned()),
            to: (BUCKET.to_owned(), "moved".to_owned()),
            ..CopyRequest::default()
        };
        engine.copy(request).await.unwrap();
        delete(&engine, "out/part-000").await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 100);
        assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 1);
        assert_eq!(get(&engine, "moved", None).await.unwrap(), content(0, 1000));
        assert_eq!(ground.stored().await.len(), 100);
    });
}

/// What was in the store before the gateway came is renamed by the store itself.
#[test]
fn what_was_there_before_is_taken_over_and_renamed_without_its_bytes() {
    use object_store::ObjectStoreExt as _;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        for kind in [Kind::S3, Kind::Directory] {
            let store = match kind {
                Kind::S3 => in_memory(),
                Kind::Directory => in_directory(&directory.path().join("store")),
            };
            let ground = Ground::new(store, kind);
            ground
                .store
                .put(&object_store::path::Path::from("old/a"), content(1, 100_000).into())
                .await
                .unwrap();
            let engine = ground.open(&directory.path().join(format!("{kind:?}"))).await;
            let request = CopyRequest {
                from: (BUCKET.to_owned(), "old/a".to_owned()),
                to: (BUCKET.to_owned(), "new/a".to_owned()),
                ..CopyRequest::default()
            };
            engine.copy(request).await.unwrap();
            delete(&engine, "old/a").await.unwrap();
            ground.drain(&engine).await;
            assert_eq!(ground.mood.puts.load(Ordering::Relaxed), 0);
            assert_eq!(ground.mood.copies.load(Ordering::Relaxed), 1);
            assert_eq!(get(&engine, "new/a", None).await.unwrap(), content(1, 100_000));
            assert_eq!(ground.stored().await, [("new/a".to_owned(), content(1, 100_000))]);
        }
    });
}

#[test]
fn a_full_journal_makes_writers_wait_and_then_says_so() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), Kind::S3);
        ground.journal_bytes = 3 << 20;
        let engine = ground.open(&directory.path().join("local")).await;
        ground.mood.failing.store(1000, Ordering::Relaxed);
        let megabyte = content(1, 1 << 20);
        put(&engine, "a", &megabyte, Conditions::default()).await.unwrap();
        put(&engine, "b", &megabyte, Conditions::default()).await.unwrap();
        let refused = put(&engine, "c", &megabyte, Conditions::default()).await;
        assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
        let too_large = put(&engine, "d", &content(2, 4 << 20), Conditions::default()).await;
        assert!(matches!(too_large, Err(Error::TooLarge(_))), "{too_large:?}");
        // What was acknowledged is readable whatever the store does.
        assert_eq!(get(&engine, "b", None).await.unwrap(), megabyte);
        ground.mood.failing.store(0, Ordering::Relaxed);
        // As soon as the store works again there is room.
        put(&engine, "c", &megabyte, Conditions::default()).await.unwrap();
        ground.drain(&engine).await;
        assert_eq!(ground.stored().await.len(), 3);
    });
}

#[test]
fn others_writes_show_where_the_store_is_asked_each_time() {
    use object_store::ObjectStoreExt as _;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mut ground = Ground::new(in_memory(), Kind::S3);
        (ground.write, ground.consistency) = (Write::Through, Consistency::Revalidate);
        let engine = ground.open(&directory.path().join("local")).await;
        put(&engine, "dir/a", &content(1, 200_000), Conditions::default()).await.unwrap();
        assert_eq!(get(&engine, "dir/a", None).await.unwrap(), content(1, 200_000));
        let theirs = object_store::path::Path::from("dir/a");
        ground.store.put(&theirs, content(2, 200_000).into()).await.unwrap();
        ground.store.put(&object_store::path::Path::from("new"), content(3, 10).into()).await.unwrap();
        assert_eq!(get(&engine, "dir/a", None).await.unwrap(), content(2, 200_000));
        let request = ListRequest { delimiter: Some("/".to_owned()), most: 10, ..ListRequest::default() };
        let names: Vec<String> = engine
            .list(BUCKET, &request)
            .await
            .unwrap()
            .entries
            .iter()
            .map(|entry| entry.name().to_owned())
            .collect();
        assert_eq!(names, ["dir/", "new"]);
        let absent = Conditions { if_none_match: true, ..Conditions::default() };
        assert_eq!(put(&engine, "new", &content(4, 10), absent).await, Err(Error::PreconditionFailed));
        delete(&engine, "new").await.unwrap();
        assert_eq!(ground.stored().await.len(), 1);
    });
}
