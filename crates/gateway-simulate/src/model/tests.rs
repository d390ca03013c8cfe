//! The model by itself.

use super::*;
use crate::script::{StoreKind, StoreSetup};
use crate::store::SimulatedStores;

pub(crate) fn setup() -> ScriptSetup {
    ScriptSetup {
        gateways: 1,
        clients: 1,
        settings: GatewaySettings {
            journal_bytes: 64 << 20,
            memory_bytes: 8 << 20,
            block_bytes: 64 << 10,
            flushes: 4,
            requests: 16,
            write_back_ms: Some(1000),
            consistency: RuleConsistency::Exclusive,
            rules: vec![("raw/".to_owned(), RuleConsistency::Ttl { ms: 5000 })],
            patience_ms: 5000,
            drain_ms: 60_000,
            uploads_expire_s: 3600,
            disk_bytes: 1 << 30,
            is_encrypted: false,
        },
        store: StoreSetup {
            kind: StoreKind::S3,
            most_copy_bytes: None,
            has_etags_of_its_own: false,
            page: 10,
            before: Vec::new(),
        },
    }
}

fn model() -> ObjectModel {
    ObjectModel::new(SimulatedWorld::new(1, false), &setup())
}

fn version(model: &ObjectModel, size: u64, id: &str) -> ObjectVersion {
    let content = model.fresh(size);
    ObjectVersion { content, etag: Some(format!("etag-of-{id}").replace('-', "")), id: Some(id.to_owned()) }
}

fn put(model: &ObjectModel, key: &str, id: &str, answer: ChangeOutcome) -> ObjectVersion {
    let version = version(model, 10, id);
    let begun = model.begin_put(key, 0, version.clone());
    model.end(&begun, answer, None);
    version
}

fn seen(version: &ObjectVersion) -> SeenObject {
    let bytes = version.content.bytes();
    SeenObject {
        size: version.content.size(),
        etag: version.etag.clone(),
        id: Some(version.id.clone()),
        bytes: Some((0..version.content.size(), bytes)),
    }
}

fn read(model: &ObjectModel, key: &str, found: Option<&ObjectVersion>) -> bool {
    let start = model.begin_read();
    model.check_read("GET", key, start, found.map(seen).as_ref());
    model.failure().is_none()
}

#[test]
fn acknowledged_write_must_be_read() {
    let model = model();
    assert!(read(&model, "a", None));
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    let second = put(&model, "a", "2", ChangeOutcome::Done);
    assert!(read(&model, "a", Some(&second)));
    assert!(!read(&model, "a", Some(&first)));
}

#[test]
fn lost_acknowledged_write_is_found() {
    let model = model();
    put(&model, "a", "1", ChangeOutcome::Done);
    assert!(!read(&model, "a", None));
}

#[test]
fn unanswered_write_is_decided_by_read_or_kill() {
    let model = model();
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    let second = put(&model, "a", "2", ChangeOutcome::Unknown);
    assert!(read(&model, "a", Some(&first)) && read(&model, "a", Some(&second)));
    assert!(!read(&model, "a", Some(&first)));
}

#[test]
fn other_bytes_or_headers_are_found() {
    let model = model();
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    assert!(!read(&model, "a", Some(&ObjectVersion { id: Some("2".into()), ..first.clone() })));
    let model = self::model();
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    assert!(!read(&model, "a", Some(&ObjectVersion { content: model.fresh(10), ..first })));
}

#[test]
fn copy_has_a_version_of_its_source() {
    let model = model();
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    let begun = model.begin_copy("a", "b", 0, Some("3".to_owned()));
    let second = put(&model, "a", "2", ChangeOutcome::Done);
    let third = ObjectVersion { id: Some("3".to_owned()), ..first.clone() };
    // In flight, it may be any of both.
    assert!(read(&model, "b", None));
    model.end(&begun, ChangeOutcome::Done, Some("\"etagof1\""));
    assert!(read(&model, "b", Some(&third)));
    assert!(!read(&model, "b", Some(&ObjectVersion { id: Some("3".to_owned()), ..second })));
}

#[test]
fn copy_of_nonexistent_version_is_found() {
    let model = model();
    put(&model, "a", "1", ChangeOutcome::Done);
    let begun = model.begin_copy("a", "b", 0, None);
    model.end(&begun, ChangeOutcome::Done, Some("other"));
    assert!(model.failure().is_some());
}

/// Seed 1027 had a copy of 20 MiB below `raw/`, and the ETag was the store's, of three parts.
#[test]
fn long_object_below_shared_prefix_has_store_etag() {
    let model = model();
    let md5 = version(&model, MAX_SENT_WHOLE_BYTES + 1, "1");
    let in_parts = ObjectVersion { etag: Some("parts-2".to_owned()), ..md5.clone() };
    let begun = model.begin_put("raw/a", 0, md5.clone());
    // In flight, both ETags are possible.
    assert!(read(&model, "raw/a", Some(&md5)) && read(&model, "raw/a", Some(&in_parts)));
    model.end(&begun, ChangeOutcome::Done, Some("\"parts-2\""));
    assert!(read(&model, "raw/a", Some(&in_parts)));
    // A copy's ETag is unknown as well, in either direction.
    let begun = model.begin_copy("raw/a", "b", 0, None);
    model.end(&begun, ChangeOutcome::Done, md5.etag.as_deref());
    assert!(read(&model, "b", Some(&md5)));
    let begun = model.begin_copy("b", "raw/c", 0, None);
    model.end(&begun, ChangeOutcome::Done, Some("\"other-2\""));
    let copied = ObjectVersion { etag: Some("other-2".to_owned()), ..md5.clone() };
    assert!(read(&model, "raw/c", Some(&copied)));
    assert!(!read(&model, "raw/a", Some(&md5)));
    // A short one has the MD5 there as well.
    let model = self::model();
    let first = put(&model, "raw/a", "1", ChangeOutcome::Done);
    assert!(!read(&model, "raw/a", Some(&ObjectVersion { etag: Some("parts-2".to_owned()), ..first })));
}

#[test]
fn listing_has_exactly_existing_keys() {
    let key = |key: &str, id: &str| ListingEntry::Key {
        key: key.to_owned(),
        size: 10,
        etag: format!("etagof{id}"),
    };
    let listed = |has_delimiter: bool, entries: &[ListingEntry]| {
        let model = model();
        for (index, name) in ["a/x", "a/y", "b", "c"].iter().enumerate() {
            put(&model, name, &index.to_string(), ChangeOutcome::Done);
        }
        let begun = model.begin_delete("c", 0);
        model.end(&begun, ChangeOutcome::Done, None);
        put(&model, "d", "4", ChangeOutcome::Unknown);
        let start = model.begin_read();
        model.check_list("", has_delimiter, start, entries);
        model.failure()
    };
    let group = ListingEntry::Group("a/".to_owned());
    assert_eq!(listed(false, &[key("a/x", "0"), key("a/y", "1"), key("b", "2")]), None);
    assert_eq!(listed(true, &[group.clone(), key("b", "2"), key("d", "4")]), None);
    for wrong in [
        vec![group.clone()],
        vec![key("b", "2")],
        vec![group.clone(), key("b", "2"), key("c", "3")],
        vec![group.clone(), key("b", "3")],
        vec![key("b", "2"), group.clone()],
        vec![group.clone(), key("b", "2"), ListingEntry::Group("e/".to_owned())],
        vec![group.clone(), key("b", "2"), key("x", "2")],
    ] {
        assert!(listed(true, &wrong).is_some(), "{wrong:?}");
    }
}

#[test]
fn foreign_write_may_be_hidden_until_ttl() {
    let model = model();
    let first = put(&model, "raw/a", "1", ChangeOutcome::Done);
    let second = version(&model, 10, "2");
    model.note_others("raw/a", Some(second.clone()));
    assert!(read(&model, "raw/a", Some(&second)) && read(&model, "raw/a", Some(&first)));
    model.world.advance(Duration::from_secs(6));
    assert!(read(&model, "raw/a", Some(&second)) && !read(&model, "raw/a", Some(&first)));
}

#[test]
fn kill_decides_writes_in_flight() {
    let model = model();
    let first = put(&model, "a", "1", ChangeOutcome::Done);
    put(&model, "a", "2", ChangeOutcome::Unknown);
    model.gateway_died(0);
    let third = put(&model, "a", "3", ChangeOutcome::Done);
    assert!(read(&model, "a", Some(&third)));
    assert!(!read(&model, "a", Some(&first)));
}

#[test]
fn final_store_must_match_model() {
    use object_store::{Attribute, Attributes};
    let world = SimulatedWorld::new(1, false);
    let check = |store: &[(&str, &str)]| {
        let model = ObjectModel::new(world.clone(), &setup());
        let first = put(&model, "a", "1", ChangeOutcome::Done);
        put(&model, "b", "2", ChangeOutcome::Done);
        let begun = model.begin_delete("b", 0);
        model.end(&begun, ChangeOutcome::Done, None);
        let stores = SimulatedStores::new(world.clone(), &setup().store);
        for (key, id) in store {
            let mut attributes = Attributes::new();
            attributes.insert(Attribute::Metadata("id".into()), (*id).to_owned().into());
            stores.change("lake", key, Some(first.content.bytes()), attributes);
        }
        model.check_stores(&stores, "lake");
        model.failure()
    };
    assert_eq!(check(&[("a", "1"), ("%underlay-cluster", "")]), None);
    assert!(check(&[]).is_some() && check(&[("a", "2")]).is_some());
    assert!(check(&[("a", "1"), ("b", "2")]).is_some() && check(&[("a", "1"), ("c", "1")]).is_some());
    assert!(check(&[("a", "1"), ("%underlay-parts/x", "1")]).is_some());
}
