//! Rules that change between two starts of a gateway that keeps its slots.

use object_store::ObjectStoreExt as _;

use super::gateway::Site;
use crate::config::Consistency;
use crate::placement::SLOTS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_exclusive_again_is_listed_anew_in_slots_that_never_moved() {
    let mut site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "ours").await);
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    site.kill(a);

    site.consistency = Consistency::Revalidate;
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    site.store.put(&"t/2".into(), "theirs".into()).await.unwrap();
    assert_eq!(a.get("t/2").await.unwrap().as_deref(), Some("theirs"));
    site.kill(a);

    site.consistency = Consistency::Exclusive;
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    for (key, text) in [("t/1", "ours"), ("t/2", "theirs")] {
        assert_eq!(a.get(key).await.unwrap().as_deref(), Some(text), "{key}");
    }
    site.check(&[&a]);
}
