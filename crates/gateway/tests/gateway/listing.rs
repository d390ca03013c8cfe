//! Listings against one that is trivially right, with keys of the whole alphabet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use underlay_gateway::config::{StoreConsistency, WriteMode};
use underlay_gateway::engine::{GatewayEngine, ListRequest, WriteConditions};
use underlay_gateway::store::{BackendKind, path_of};

use crate::own_s3::OwnS3;
use crate::program::Program;
use crate::rig::{BUCKET, Ground, content, in_memory, put};
use crate::signed::{ask, tags};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// An engine with these keys.
async fn with_keys(
    consistency: StoreConsistency,
    local: &std::path::Path,
    keys: &BTreeSet<String>,
) -> Arc<GatewayEngine> {
    let mut ground = Ground::new(in_memory(), BackendKind::S3);
    ground.consistency = consistency;
    ground.write = match consistency {
        StoreConsistency::Exclusive => WriteMode::Back { after: Duration::from_secs(3600) },
        _ => WriteMode::Through,
    };
    let engine = ground.open(local).await;
    for key in keys {
        put(&engine, key, &content(1, 3), WriteConditions::default()).await.unwrap();
    }
    engine
}

/// All pages of a listing.
async fn listed(engine: &GatewayEngine, prefix: &str, delimiter: Option<&str>, page: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let request = ListRequest {
            prefix: prefix.to_owned(),
            delimiter: delimiter.map(str::to_owned),
            after: after.clone(),
            most: page,
        };
        let answer = tokio::time::timeout(Duration::from_secs(60), engine.list(BUCKET, &request)).await;
        let listing = answer.expect("the listing never ends").unwrap();
        names.extend(listing.entries.iter().map(|entry| entry.name().to_owned()));
        if !listing.is_truncated {
            return names;
        }
        assert!(after < names.last().cloned(), "a page does not get on: {names:?}");
        after = names.last().cloned();
    }
}

/// What a listing has behind a key.
async fn listed_behind(
    engine: &GatewayEngine,
    prefix: &str,
    delimiter: Option<&str>,
    after: &str,
) -> Vec<String> {
    let request = ListRequest {
        prefix: prefix.to_owned(),
        delimiter: delimiter.map(str::to_owned),
        after: Some(after.to_owned()),
        most: 1000,
    };
    let page = engine.list(BUCKET, &request).await.unwrap();
    page.entries.iter().map(|entry| entry.name().to_owned()).collect()
}

/// The same, worked out from all keys.
fn expected(keys: &BTreeSet<String>, prefix: &str, delimiter: Option<&str>) -> Vec<String> {
    expected_behind(keys, prefix, delimiter, "")
}

fn expected_behind(
    keys: &BTreeSet<String>,
    prefix: &str,
    delimiter: Option<&str>,
    after: &str,
) -> Vec<String> {
    let mut names = Vec::new();
    for key in keys.iter().filter(|key| key.starts_with(prefix) && key.as_str() > after) {
        let name = match delimiter.and_then(|text| Some(key[prefix.len()..].find(text)? + text.len())) {
            Some(length) => &key[..prefix.len() + length],
            None => key,
        };
        if name != after && names.last().is_none_or(|last| last != name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// How many listings the store is asked for, which has thousands of keys in the folder of a prefix.
#[test]
fn listing_of_prefix_passes_over_rest_of_folder() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    let keys = (0..600).map(|index| format!("folder/a{index:04}"));
    let others =
        ["folder/z", "folder/z%underlay-empty", "folder/zz/x", "folder/%underlay-hash-z#1x", "folder/~", "z"];
    // The first of these is what a client's `%underlay-0` becomes.
    store.put_directly("%underlay-literal-%underlay-0", b"x", &[]);
    store.put_directly("b/c", b"x", &[]);
    for key in keys.chain(others.map(str::to_owned)) {
        store.put_directly(&key, b"x", &[]);
    }
    let sections = store.sections(directory.path(), "consistency = \"revalidate\"");
    let program = Program::start(directory.path(), &sections);
    let listed = |query: &str| {
        let before = store.lists();
        let reply = ask(program.address, "GET", &format!("/lake?list-type=2&{query}"), &[], b"").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        (tags(&reply.text(), "Key"), store.lists() - before)
    };
    // Pages of the store have three keys. One more listing looks for names that the gateway has escaped.
    let (found, lists) = listed("prefix=folder%2Fa030");
    assert_eq!((found.len(), found[0].as_str(), found[9].as_str()), (10, "folder/a0300", "folder/a0309"));
    assert_eq!(lists, 5);
    let (found, lists) = listed("max-keys=1&prefix=folder%2Fa030");
    assert_eq!((found, lists), (vec!["folder/a0300".to_owned()], 2));
    let (found, lists) = listed("prefix=folder%2Fa030&start-after=folder%2Fa0308");
    assert_eq!((found, lists), (vec!["folder/a0309".to_owned()], 2));
    let (found, lists) = listed("prefix=folder%2Fz");
    assert_eq!(found, ["folder/z", "folder/z#1", "folder/z%underlay-empty", "folder/zz/x"]);
    assert!(lists <= 4, "{lists}");
    let (found, _) = listed("max-keys=1&prefix=folder%2Fz&start-after=folder%2Fz");
    assert_eq!(found, ["folder/z#1"]);
    let (found, lists) = listed("max-keys=1&prefix=folder%2Fz&start-after=folder%2Fz%231");
    assert_eq!((found, lists), (vec!["folder/z%underlay-empty".to_owned()], 2));
    // A name that is not escaped, next to those that are.
    for (after, next) in [("", "%25underlay-0"), ("%25underlay-0", "b%2Fc"), ("b%2Fc", "folder%2Fa0000")] {
        let (found, _) = listed(&format!("max-keys=1&start-after={after}"));
        let expected = percent_encoding::percent_decode_str(next).decode_utf8().unwrap();
        assert_eq!(found, [expected.as_ref()], "{after}");
    }
    // The rest of a folder is not read for one name that has another in the store.
    let (found, lists) = listed("max-keys=1&start-after=folder%2Fa0300%231");
    assert_eq!((found, lists), (vec!["folder/a0301".to_owned()], 3));
    let (found, lists) = listed("prefix=folder%2Fnone");
    assert!(found.is_empty() && lists == 2, "{found:?} {lists}");
    let (found, _) = listed("prefix=z");
    assert_eq!(found, ["z"]);
}

/// Thousands of keys that begin with a slash, by mistake, must not be read for each page of the others; nor may a text
/// to begin after ask about hundreds of folders that are not there.
#[test]
fn escaped_folders_of_other_pages_are_passed_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.has_pages_of(1000);
    for index in 0..4500 {
        store.put_directly(&format!("%underlay-empty/x/{index:04}"), b"x", &[]);
        store.put_directly(&format!("f/%underlay-dot/{index:04}"), b"x", &[]);
    }
    for key in ["%underlay-parts/1", "%underlay-parts/2", "b", "c", "d/e", "f/g", "f/h"] {
        store.put_directly(key, b"x", &[]);
    }
    let sections = store.sections(directory.path(), "consistency = \"revalidate\"");
    let program = Program::start(directory.path(), &sections);
    let listed = |query: &str| {
        let before = store.lists();
        let reply = ask(program.address, "GET", &format!("/lake?{query}"), &[], b"").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        (tags(&reply.text(), "Key"), tags(&reply.text(), "Prefix"), store.lists() - before)
    };
    let (found, _, lists) = listed("list-type=2&max-keys=1&start-after=b");
    assert_eq!(found, ["c"]);
    assert!(lists <= 4, "{lists}");
    let (found, _, lists) = listed("list-type=2&prefix=f%2F&start-after=f%2Fg");
    assert_eq!(found, ["f/h"]);
    assert!(lists <= 4, "{lists}");
    let (found, groups, _) = listed("delimiter=%2F&list-type=2");
    assert_eq!(found, ["b", "c"]);
    assert_eq!(groups[groups.len() - 3..], ["/", "d/", "f/"]);
    let (found, groups, lists) = listed("delimiter=%2F&list-type=2&start-after=b");
    assert_eq!(
        (found, &groups[groups.len() - 2..]),
        (vec!["c".to_owned()], &["d/".to_owned(), "f/".to_owned()][..])
    );
    assert!(lists <= 10, "{lists}");
    let (found, _, _) = listed("list-type=2&max-keys=1000&prefix=f%2F");
    assert_eq!((found.len(), found[0].as_str(), found[999].as_str()), (1000, "f/./0000", "f/./0999"));
    for levels in [500, 15_000] {
        let (found, _, lists) =
            listed(&format!("list-type=2&max-keys=1&start-after={}b", "a%2F".repeat(levels)));
        assert_eq!(found, ["b"], "{levels}");
        assert!(lists <= 14, "{levels}: {lists}");
    }
    let (found, _, lists) = listed(&format!("list-type=2&prefix={}", "a%2F".repeat(1000)));
    assert!(found.is_empty() && lists == 0, "{found:?} {lists}");
}

/// Asking once for each folder would be a thousand times the work of reading on.
#[test]
fn listing_passes_over_many_escaped_folders_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = OwnS3::start(0);
    store.may_list(usize::MAX);
    store.has_pages_of(1000);
    let stored_as = |key: &str| path_of(key, BackendKind::S3).unwrap().to_string();
    for index in 0..1500 {
        store.put_directly(&stored_as(&format!("build#{index:04}/log")), b"x", &[]);
    }
    for index in 0..5000 {
        store.put_directly(&stored_as(&format!("/x/{index:04}")), b"x", &[]);
    }
    for key in ["b", "c", "d"] {
        store.put_directly(key, b"x", &[]);
    }
    let sections = store.sections(directory.path(), "consistency = \"revalidate\"");
    let program = Program::start(directory.path(), &sections);
    let listed = |query: &str| {
        let before = store.lists();
        let reply = ask(program.address, "GET", &format!("/lake?{query}"), &[], b"").unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        (tags(&reply.text(), "Key"), tags(&reply.text(), "Prefix"), store.lists() - before)
    };
    for (query, expected, most_lists) in [
        ("list-type=2&start-after=c", &["d"][..], 8),
        ("list-type=2&prefix=c", &["c"], 6),
        ("delimiter=%2F&list-type=2&prefix=c", &["c"], 6),
    ] {
        let (found, _, lists) = listed(query);
        assert_eq!(found, expected, "{query}");
        assert!(lists <= most_lists, "{query}: {lists}");
    }
    let (found, groups, lists) = listed("delimiter=%2F&list-type=2&max-keys=1000");
    assert_eq!((found.len(), groups.len()), (1, 1000), "{found:?}");
    assert!(lists <= 12, "{lists}");
}

const MODES: [StoreConsistency; 2] = [StoreConsistency::Exclusive, StoreConsistency::Revalidate];

#[test]
fn key_with_largest_character_hides_no_later_key() {
    let keys: BTreeSet<String> =
        ["a/1", "a/\u{10ffff}", "a/\u{10ffff}x", "a/\u{10ffff}\u{10ffff}", "b/1", "c", "\u{10ffff}/x"]
            .map(str::to_owned)
            .into();
    runtime().block_on(async {
        for consistency in MODES {
            let directory = tempfile::tempdir().unwrap();
            let engine = with_keys(consistency, &directory.path().join("local"), &keys).await;
            for page in [1, 2, 1000] {
                let names = listed(&engine, "", Some("/"), page).await;
                assert_eq!(names, ["a/", "b/", "c", "\u{10ffff}/"], "{consistency:?} {page}");
            }
            engine.close().await;
        }
    });
}

/// A listing that begins within a group has the group if some key of it comes behind, whether there is an object at the
/// place where it begins or not (`StartAfter` of ListObjectsV2, `Marker` of ListObjects).
#[test]
fn listing_begun_inside_group_has_rest_of_group() {
    let keys: BTreeSet<String> = ["p/a", "p/b/1", "p/b/2", "p/c"].map(str::to_owned).into();
    runtime().block_on(async {
        for consistency in MODES {
            let directory = tempfile::tempdir().unwrap();
            let engine = with_keys(consistency, &directory.path().join("local"), &keys).await;
            // A common prefix is one only of the listing that has it.
            assert_eq!(listed_behind(&engine, "", Some("/"), "p/b/").await, ["p/"], "{consistency:?}");
            for (after, names) in [
                ("p/b/0", vec!["p/b/", "p/c"]),
                ("p/b/1", vec!["p/b/", "p/c"]),
                ("p/b/10", vec!["p/b/", "p/c"]),
                ("p/b/2", vec!["p/c"]),
                ("p/b/", vec!["p/c"]),
            ] {
                let listed = listed_behind(&engine, "p/", Some("/"), after).await;
                assert_eq!(listed, names, "{consistency:?} {after}");
            }
            engine.close().await;
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Names that have others in the store, on both sides of the place where the store has those.
    #[test]
    fn listings_have_escaped_names_at_their_places(
        keys in proptest::collection::btree_set(
            "(/|[ %a~]|[!a~]?#[1x]|\\.{1,3}|\\t|%underlay-[0a]?){1,2}(/(/|[!a]|[!~]?#[1x]|\\.{2}|\\t){1,2}){0,2}a?#?1",
            1..20,
        ),
        prefix in "(([!a~]?#1|a|!|%)/?)?",
    ) {
        let delimiters = [None, Some("/"), Some("a"), Some("#"), Some("%"), Some("u")];
        check_listings(&keys, &prefix, &[StoreConsistency::Revalidate], &delimiters);
    }

    #[test]
    fn listings_are_right_for_keys_of_the_whole_alphabet(
        keys in proptest::collection::btree_set(
            "[0aé~\u{d7ff}\u{e000}\u{10fffe}\u{10ffff}]{1,2}(/[0aé~\u{d7ff}\u{e000}\u{10fffe}\u{10ffff}]{1,2}){0,2}",
            1..24,
        ),
        prefix in "([0a~\u{10ffff}]{1,2}/?)?",
    ) {
        let delimiters = [None, Some("/"), Some("a"), Some("\u{10ffff}"), Some("/\u{10ffff}")];
        check_listings(&keys, &prefix, &MODES, &delimiters);
    }
}

/// Holds pages of all sizes, and pages behind some keys, against what all keys say.
fn check_listings(
    keys: &BTreeSet<String>,
    prefix: &str,
    modes: &[StoreConsistency],
    delimiters: &[Option<&str>],
) {
    runtime().block_on(async {
        for consistency in modes {
            let directory = tempfile::tempdir().unwrap();
            let engine = with_keys(*consistency, &directory.path().join("local"), keys).await;
            for delimiter in delimiters.iter().copied() {
                for page in [1, 3, 1000] {
                    let names = listed(&engine, prefix, delimiter, page).await;
                    let wanted = expected(keys, prefix, delimiter);
                    assert_eq!(names, wanted, "{consistency:?} {prefix:?} {delimiter:?} {page}");
                }
                for after in keys.iter().take(6) {
                    let names = listed_behind(&engine, prefix, delimiter, after).await;
                    let wanted = expected_behind(keys, prefix, delimiter, after);
                    assert_eq!(names, wanted, "{consistency:?} {prefix:?} {delimiter:?} {after:?}");
                }
            }
            engine.close().await;
        }
    });
}
