//! Rules and endpoints that change between two starts.

use object_store::ObjectStoreExt as _;

use super::gateway::{Site, get_from};
use crate::config::StoreConsistency;
use crate::placement::SLOTS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_again_prefix_is_relisted_in_unmoved_slots() {
    let mut site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "ours").await);
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    site.kill(a);

    site.consistency = StoreConsistency::Revalidate;
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    site.store.put(&"t/2".into(), "theirs".into()).await.unwrap();
    assert_eq!(a.get("t/2").await.unwrap().as_deref(), Some("theirs"));
    site.kill(a);

    site.consistency = StoreConsistency::Exclusive;
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    for (key, text) in [("t/1", "ours"), ("t/2", "theirs")] {
        assert_eq!(a.get(key).await.unwrap().as_deref(), Some(text), "{key}");
    }
    site.check(&[&a]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_at_new_endpoint_is_relisted() {
    let mut site = Site::new();
    site.single("single").await.unwrap().close().await;
    site.store.put(&"t/1".into(), "theirs".into()).await.unwrap();
    for (endpoint, is_known) in [("http://store", false), ("http://other", true), ("http://other", true)] {
        site.endpoint = endpoint;
        let single = site.single("single").await.unwrap();
        let found = get_from(&single, "t/1").await.unwrap();
        assert_eq!(found.as_deref(), is_known.then_some("theirs"), "{endpoint}");
        single.close().await;
    }
}
