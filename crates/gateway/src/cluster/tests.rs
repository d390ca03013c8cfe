//! Members step by step, over an etcd that loses answers, carries out transactions late, and forgets; and what two such
//! faults do together.

mod fake;
mod gateway;
mod random;
mod rules;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use object_store::ObjectStoreExt as _;

use super::records::{EtcdKeys, put};
use crate::config::StoreConsistency;
use crate::engine::{
    CopyRequest, ListEntry, ListRequest, PeerAnswer, PeerQuestion, PutRequest, WriteConditions,
};
use crate::errors::GatewayError;
use crate::model::ObjectHeaders;
use crate::placement::SLOTS;
use fake::Fate;
use gateway::{BUCKET, FILES, Gateway, Site, get_from, put_to};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_possibly_becoming_clean_takes_no_write() {
    // The transaction that marks it as clean gets no answer, and is carried out after one or two more looks, or never;
    // the one that is to settle it has an answer, or none either.
    for (fates, looks) in [
        (vec![Fate::Late], 0),
        (vec![Fate::Late], 1),
        (vec![Fate::Late, Fate::Late], 1),
        (vec![Fate::Late, Fate::Late], 2),
        (vec![Fate::Late, Fate::Lost], 2),
        (vec![Fate::Done], 1),
    ] {
        let site = Site::new();
        let mut a = site.start("a").await.unwrap();
        a.pass_until(|a| a.served() == SLOTS as usize).await;
        assert!(a.put("t/1", "first").await);
        a.flushed().await;
        site.etcd.will(&fates);
        a.pass_until(|_| site.etcd.fates_left() < fates.len()).await;
        let mut is_written = false;
        for _ in 0..looks {
            is_written |= a.put("t/2", "second").await;
            site.check(&[&a]);
            let _ = a.control.pass().await;
            site.check(&[&a]);
        }
        is_written |= a.put("t/3", "third").await;
        site.etcd.carry_out_late();
        site.check(&[&a]);
        // It goes on even after an error.
        let _ = a.control.pass().await;
        assert!(a.put("t/4", "fourth").await, "{fates:?} {looks} {is_written}");
        site.check(&[&a]);
        assert_eq!(a.get("t/4").await.unwrap().as_deref(), Some("fourth"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_possibly_handed_on_is_not_used() {
    for (fates, looks) in [
        (vec![Fate::Late], 0),
        (vec![Fate::Late], 1),
        (vec![Fate::Late, Fate::Late], 2),
        (vec![Fate::Done], 1),
        (vec![Fate::Lost], 1),
    ] {
        let site = Site::new();
        let mut a = site.start("a").await.unwrap();
        a.pass_until(|a| a.served() == SLOTS as usize).await;
        for index in 0..8 {
            assert!(a.put(&format!("t{index}/x"), "first").await);
        }
        a.flushed().await;
        a.pass_until(|_| site.etcd.dirty() == 0).await;
        let mut b = site.start("b").await.unwrap();
        // It is given nothing before it has been there for a moment, which on a busy machine this look may come after.
        site.etcd.will(&fates);
        let _ = a.control.pass().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        a.pass_until(|_| site.etcd.fates_left() < fates.len()).await;
        for _ in 0..looks {
            site.check(&[&a, &b]);
            let _ = a.control.pass().await;
            let _ = b.control.pass().await;
            for index in 0..8 {
                a.put(&format!("t{index}/x"), "second").await;
            }
            site.check(&[&a, &b]);
        }
        site.etcd.carry_out_late();
        site.check(&[&a, &b]);
        site.etcd.will(&[]);
        Site::settle(&mut [&mut a, &mut b]).await;
        site.check(&[&a, &b]);
        assert!(a.served() > 50 && b.served() > 50, "{} {}", a.served(), b.served());
        assert_eq!(a.served() + b.served(), SLOTS as usize);
    }
}

/// The transaction that marks a slot as dirty is carried out, and its answer is lost. By the next mark an older copy of
/// the directory is recognised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_mark_is_new_for_each_dirty_period() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    site.etcd.will(&[Fate::Done]);
    a.put("t/1", "first").await;
    let dirty = |_: &Gateway| site.etcd.dirty() == 1;
    a.pass_until(dirty).await;
    let (slot, first) = (0..SLOTS)
        .find_map(|slot| {
            site.etcd.find_slot(slot).filter(|record| record.is_dirty).map(|record| (slot, record.mark))
        })
        .unwrap();
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    assert!(a.put("t/2", "second").await);
    let second = site.etcd.slot(slot);
    assert!(second.is_dirty && second.mark != first, "{second:?}");
}

/// A gateway that leaves has handed everything over only once etcd says so, and under its present lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_is_handed_over_only_after_etcd_confirms() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    assert!(!a.control.is_rid_of_all(), "nobody has looked");
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.control.is_rid_of_all());
    assert!(a.put("t/1", "first").await);
    assert!(!a.control.is_rid_of_all());
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    assert!(a.control.is_rid_of_all());
    site.lapse(&a);
    assert!(!a.control.is_rid_of_all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_directory_copy_is_refused_at_each_start() {
    let site = Site::new();
    let a = site.start("a").await.unwrap();
    site.kill(a);
    site.copy("a", "old");
    // It starts in vain, often: each start counts, and none makes it newer.
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "newer").await);
    site.kill(a);
    for _ in 0..3 {
        let error = site.start_as("a", "old").await.map(drop).unwrap_err();
        assert!(error.contains("an older copy"), "{error}");
    }
    // The right one goes on.
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert_eq!(a.get("t/1").await.unwrap().as_deref(), Some("newer"));
    // One that was made while it ran is known by the marks of slots that have become dirty since.
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    site.copy("a", "old");
    assert!(a.put("t/2", "newest").await);
    site.kill(a);
    let error = site.start_as("a", "old").await.map(drop).unwrap_err();
    assert!(error.contains("an older copy"), "{error}");
    // Where they are clean again, what it knows of them is not believed: the store has everything.
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    site.copy("a", "old");
    assert!(a.put("t/2", "even newer").await);
    a.flushed().await;
    a.pass_until(|_| site.etcd.dirty() == 0).await;
    site.kill(a);
    let mut a = site.start_as("a", "old").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert_eq!(a.get("t/2").await.unwrap().as_deref(), Some("even newer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_rollback_stops_all_gateways() {
    let site = Site::new();
    let a = site.start("a").await.unwrap();
    let early = site.etcd.snapshot();
    site.kill(a);
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    let snapshot = site.etcd.snapshot();
    assert!(a.put("t/1", "newer").await);
    site.etcd.restore(&snapshot);
    // The same etcd, as it was before the slot became dirty: another gateway would take it for clean.
    let error = a.control.pass().await.unwrap_err();
    assert!(error.contains("etcd is older than it was"), "{error}");
    assert!(a.get("t/1").await.is_err() && a.served() == 0);
    let error = site.start("b").await.map(drop).unwrap_err();
    assert!(error.contains("stopped the cluster"), "{error}");
    // Also when the one that knows it has to start first, with an etcd in which nobody has noticed.
    site.kill(a);
    site.etcd.restore(&early);
    let error = site.start("a").await.map(drop).unwrap_err();
    assert!(error.contains("etcd is older than it was"), "{error}");
    // And when etcd has got as far again by then: it says that a slot is clean which is not.
    for further in [0, 10_000] {
        site.etcd.restore(&snapshot);
        site.etcd.advance(further);
        let error = site.start("a").await.map(drop).unwrap_err();
        assert!(error.contains("slots that are clean in etcd"), "{error}");
    }
    // Its data can be stored all the same, once nobody else is there.
    assert_eq!(site.store_alone("a", true).await, Ok(0));
    assert_eq!(site.stored("t/1").await.as_deref(), Some("newer"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_rollback_with_later_progress_is_detected() {
    // The lost fact: that the slot became dirty, or that it did and was clean again, so that etcd has the same of it as
    // before. Who looks first: the one that wrote it, or the other, that has only seen it.
    for (is_flushed, is_other) in [(false, false), (false, true), (true, false), (true, true)] {
        let site = Site::new();
        let mut a = site.start("a").await.unwrap();
        a.pass_until(|a| a.served() == SLOTS as usize).await;
        let mut b = site.start("b").await.unwrap();
        b.control.pass().await.unwrap();
        let snapshot = site.etcd.snapshot();
        assert!(a.put("t/1", "newer").await);
        if is_flushed {
            a.flushed().await;
            a.pass_until(|_| site.etcd.dirty() == 0).await;
        }
        b.control.pass().await.unwrap();
        site.etcd.restore(&snapshot);
        site.etcd.advance(10_000);
        let (first, second) = if is_other { (&mut b, &mut a) } else { (&mut a, &mut b) };
        let error = first.control.pass().await.unwrap_err();
        assert!(error.contains("etcd is older than it was"), "{is_flushed} {is_other}: {error}");
        let error = second.control.pass().await.unwrap_err();
        assert!(error.contains("stopped the cluster"), "{is_flushed} {is_other}: {error}");
        assert_eq!((a.served(), b.served()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_gateway_detects_store_of_cluster() {
    // As it looks now and then, and as it is about to store something.
    for by_flush in [false, true] {
        let site = Site::new();
        let single = site.single("single").await.unwrap();
        put_to(&single, "t/1", "first").await.unwrap();
        single.begin_drain();
        while !single.is_clean() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(single.format(), Some(2), "an earlier gateway can go on with it");
        let mut a = site.start("a").await.unwrap();
        a.pass_until(|a| a.served() == SLOTS as usize).await;
        assert_eq!(a.engine.format(), Some(3), "and with this one it can't");
        assert_eq!(a.get("t/1").await.unwrap().as_deref(), Some("first"));
        assert!(a.put("t/1", "theirs").await);
        a.flushed().await;
        match by_flush {
            false => single.look_out().await,
            true => {
                // Its last look is no longer good.
                for state in single.bucket_states() {
                    state.looked.lock().at = None;
                }
                put_to(&single, "t/1", "ours").await.unwrap();
                while single.last_failure().is_none() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
        assert_eq!(site.stored("t/1").await.as_deref(), Some("theirs"));
        let busy = |outcome: Result<(), GatewayError>| {
            assert!(
                matches!(&outcome, Err(GatewayError::Busy(why)) if why.contains("several gateways")),
                "{outcome:?}"
            );
        };
        busy(get_from(&single, "t/1").await.map(drop));
        busy(put_to(&single, "t/2", "ours").await);
        assert_eq!((site.stored("t/1").await.as_deref(), site.stored("t/2").await), (Some("theirs"), None));
        single.close().await;
        drop(single);
        // It has listed the store long ago, and does not start over it all the same.
        let error = site.single("single").await.map(drop).unwrap_err();
        assert!(error.contains("belongs to several gateways") && error.contains("what to do"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_with_unshareable_data_does_not_join() {
    let site = Site::new();
    let single = site.single("a").await.unwrap();
    let tags = vec![("key".to_owned(), "value".to_owned())];
    for (key, tags) in [("t/1", tags), ("t/2", Vec::new())] {
        let request = PutRequest { tags, ..PutRequest::default() };
        let body = futures_util::stream::empty().boxed();
        single.put(BUCKET, key, request, body, Box::new(|_, _| Ok(()))).await.unwrap();
    }
    single.begin_drain();
    while !single.is_clean() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    single.close().await;
    drop(single);
    let error = site.start("a").await.map(drop).unwrap_err();
    assert!(error.starts_with("1 objects have tags") && error.contains("what to do"), "{error}");
    // An administrator who can do without them begins with an empty directory.
    let mut a = site.start_as("a", "empty").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert_eq!(a.get("t/1").await.unwrap().as_deref(), Some(""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_drain_keeps_slots_taken_by_others() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "older").await && a.put("u/1", "kept").await);
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    assert_ne!(slot, a.ownership.slot_of(BUCKET, "u/1"));
    site.kill(a);
    let mut b = site.start("b").await.unwrap();
    b.pass_until(|b| b.served() == SLOTS as usize - 2).await;
    // One of the two is given up, as `abandon` does it.
    let id = b.ownership.id().to_owned();
    site.etcd.change_slot(slot, |record| {
        (record.owner, record.epoch, record.is_dirty, record.mark) = (id.clone(), record.epoch + 1, false, 0);
    });
    b.pass_until(|b| b.served() == SLOTS as usize - 1).await;
    assert!(b.put("t/1", "newer").await);
    b.flushed().await;
    let error = site.store_alone("a", true).await.unwrap_err();
    assert!(error.contains("gateway b is there"), "{error}");
    site.kill(b);
    assert_eq!(site.store_alone("a", false).await, Ok(1));
    assert_eq!(site.stored("u/1").await.as_deref(), Some("kept"));
    assert_eq!(site.stored("t/1").await.as_deref(), Some("newer"));
    // Somebody has to vouch for data that etcd lacks, or may have lost.
    let snapshot = site.etcd.snapshot();
    site.etcd.write(put(EtcdKeys::new(fake::PREFIX).halted(), &"why", 0));
    let refused = site.store_alone("a", false).await.unwrap_err();
    assert!(refused.contains("--not-abandoned"), "{refused}");
    assert_eq!(site.store_alone("a", true).await, Ok(1), "what it does say is believed");
    site.etcd.wipe();
    let refused = site.store_alone("a", false).await.unwrap_err();
    assert!(refused.contains("--not-abandoned"), "{refused}");
    assert_eq!(site.stored("t/1").await.as_deref(), Some("newer"));
    site.etcd.restore(&snapshot);
    assert_eq!(site.store_alone("a", false).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_etcd_makes_no_second_cluster() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "value").await);
    site.etcd.wipe();
    let error = a.control.pass().await.unwrap_err();
    assert!(error.contains("no longer has the cluster"), "{error}");
    assert_eq!(a.served(), 0);
    // An empty directory knows nothing of a cluster; the store does.
    let error = site.start("b").await.map(drop).unwrap_err();
    assert!(error.contains("belongs to a cluster") && error.contains("%underlay-cluster"), "{error}");
    // And no listing shows what the store says of it.
    site.kill(a);
    let names: Vec<_> = site.store.list(None).collect::<Vec<_>>().await;
    assert!(names.iter().any(|meta| meta.as_ref().unwrap().location.as_ref() == crate::store::OWNERS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_store_request_is_awaited_at_lease_end() {
    let site = Site::slow(Duration::from_millis(400));
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "value").await);
    a.hasten();
    tokio::time::sleep(Duration::from_millis(150)).await;
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    site.lapse(&a);
    assert!(!a.ownership.may_flush(slot));
    // The slot can't be given away yet: a request is still at work on it.
    assert!(a.engine.unsettled_slots().await.unwrap().contains(&slot));
    let begun = tokio::time::Instant::now();
    while site.store.get(&"t/1".into()).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the request was dropped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Nothing new is begun before there is another lease.
    assert!(a.register().await.is_ok());
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    a.flushed().await;
}

/// One slot keeps it from going: its object is not stored yet. Slots that it has given away until then are the other's
/// for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_leaving_gateway_do_not_return() {
    let site = Site::new();
    let (mut a, mut b) = (site.start("a").await.unwrap(), site.start("b").await.unwrap());
    Site::settle(&mut [&mut a, &mut b]).await;
    let slot_of = |gateway: &Gateway, index: usize| gateway.ownership.slot_of(BUCKET, &format!("t{index}/x"));
    let index = (0..SLOTS as usize).find(|index| !a.ownership.is_foreign(slot_of(&a, *index))).unwrap();
    assert!(a.put(&format!("t{index}/x"), "value").await);
    let pass = a.ownership.write(BUCKET, &[&format!("t{index}/x")]).await.unwrap();
    a.control.is_leaving = true;
    let begun = tokio::time::Instant::now();
    while (a.served(), b.served()) != (1, SLOTS as usize - 1) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} {}", a.served(), b.served());
        let _ = a.control.pass().await;
        let _ = b.control.pass().await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for _ in 0..20 {
        let _ = b.control.pass().await;
        tokio::time::sleep(Duration::from_millis(2)).await;
        let _ = a.control.pass().await;
        assert_eq!((a.served(), b.served(), a.control.is_rid_of_all()), (1, SLOTS as usize - 1, false));
    }
    drop(pass);
    a.flushed().await;
    a.pass_until(|a| a.served() == 0).await;
    b.pass_until(|b| b.served() == SLOTS as usize).await;
    let _ = a.control.pass().await;
    assert!(a.control.is_rid_of_all());
    assert_eq!(b.get(&format!("t{index}/x")).await.unwrap().as_deref(), Some("value"));
}

/// As where its disk hangs: what it can't see to, others may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_with_stuck_changes_leaves_until_one_succeeds() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    let long_ago = tokio::time::Instant::now().checked_sub(Duration::from_secs(1000)).unwrap();
    *a.shared.came_round.lock() = long_ago;
    let hold = tokio::spawn(std::sync::Arc::clone(&a.shared).hold());
    let wait_until = async |is_so: &dyn Fn() -> bool| {
        let begun = tokio::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not come to that");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    wait_until(&|| !a.is_registered()).await;
    assert_eq!(a.served(), 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!a.is_registered(), "it has come back before anything moved");
    *a.shared.came_round.lock() = tokio::time::Instant::now();
    wait_until(&|| a.is_registered()).await;
    hold.abort();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_write_of_moved_slot_is_refused_at_commit() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "before").await);
    a.flushed().await;
    let (sender, body) = tokio::sync::oneshot::channel::<()>();
    let body = futures_util::stream::once(async move {
        let _ = body.await;
        Ok(Bytes::from_static(b"late"))
    });
    let request = PutRequest { size_bytes: 4, ..PutRequest::default() };
    let engine = a.engine.clone();
    let mut writing = tokio::spawn(async move {
        engine.put(BUCKET, "t/1", request, body.boxed(), Box::new(|_, _| Ok(()))).await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!((&mut writing).now_or_never().is_none(), "it waits for its body");
    // As `abandon` does it, and back again.
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    site.etcd
        .change_slot(slot, |record| (record.owner, record.epoch) = ("else".to_owned(), record.epoch + 1));
    a.pass_until(|a| !a.engine.known_slots().unwrap().contains_key(&slot)).await;
    let id = a.ownership.id().to_owned();
    site.etcd.change_slot(slot, |record| {
        (record.owner, record.epoch, record.is_dirty, record.mark) = (id.clone(), record.epoch + 1, false, 0);
    });
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    sender.send(()).unwrap();
    let outcome = writing.await.unwrap();
    assert!(matches!(outcome, Err(GatewayError::Busy(_))), "{outcome:?}");
    assert_eq!(a.get("t/1").await.unwrap().as_deref(), Some("before"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_store_answers_are_dropped_with_their_slot() {
    let mut site = Site::new();
    site.consistency = StoreConsistency::Ttl(Duration::from_secs(3600));
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    site.store.put(&"t/1".into(), "one".into()).await.unwrap();
    assert_eq!(a.get("t/1").await.unwrap().as_deref(), Some("one"));
    site.store.put(&"t/1".into(), "three".into()).await.unwrap();
    let size = async || a.engine.resolve(BUCKET, "t/1").await.unwrap().record.size_bytes;
    assert_eq!(size().await, 3, "that is what the time is for");
    a.engine.forget_slots(&(0..SLOTS).collect()).await.unwrap();
    assert_eq!(size().await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_exchange_only_needed_requests() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "value").await);
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    let bucket = BUCKET.to_owned();
    let request = ListRequest { most: usize::MAX, ..ListRequest::default() };
    let epoch = site.etcd.slot(slot).epoch;
    let asked = PeerQuestion::List { bucket: bucket.clone(), request, slots: vec![(slot, epoch)] };
    assert!(asked.only_reads());
    match a.engine.answer(asked).await.unwrap() {
        PeerAnswer::Entries(entries) => match &entries[..] {
            [ListEntry::Object(key, record)] => {
                assert!(key == "t/1" && record.size_bytes == 5 && record.extents.is_empty());
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
    // Every condition goes along.
    let unless = WriteConditions { size_bytes: Some(6), ..WriteConditions::default() };
    let asked = PeerQuestion::Delete { bucket, keys: vec![("t/1".to_owned(), unless)] };
    assert!(!asked.only_reads(), "it is not asked twice");
    let again: PeerQuestion = postcard::from_bytes(&postcard::to_allocvec(&asked).unwrap()).unwrap();
    match a.engine.answer(again).await.unwrap() {
        PeerAnswer::Deleted(outcomes) => assert_eq!(outcomes, [Err(GatewayError::PreconditionFailed)]),
        other => panic!("{other:?}"),
    }
    // The gateway refuses data that would be lost when the slot moves.
    let put = async |request: PutRequest| {
        let body = futures_util::stream::empty().boxed();
        a.engine.put(BUCKET, "t/2", request, body, Box::new(|_, _| Ok(()))).await
    };
    let tags = vec![("a".to_owned(), "b".to_owned())];
    let refused = put(PutRequest { tags, ..PutRequest::default() }).await;
    assert!(matches!(refused, Err(GatewayError::NotImplemented(_))), "{refused:?}");
    let headers = ObjectHeaders { expires: Some("0".to_owned()), ..ObjectHeaders::default() };
    put(PutRequest { headers, ..PutRequest::default() }).await.unwrap();
}

/// The next owner of its slot would find it without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_with_unkeepable_headers_is_refused() {
    let mut site = Site::new();
    site.has_files = true;
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "value").await);
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    // The first segment of a key decides its slot.
    let mut keys = (0..100_000).map(|number| format!("{number}/1"));
    let key = keys.find(|key| a.ownership.slot_of(FILES, key) == slot).unwrap();
    let copy = async || {
        let from = (BUCKET.to_owned(), "t/1".to_owned());
        let to = (FILES.to_owned(), key.clone());
        a.engine.copy(CopyRequest { from, to, ..CopyRequest::default() }).await
    };
    copy().await.unwrap();
    for headers in [
        ObjectHeaders { expires: Some("0".to_owned()), ..ObjectHeaders::default() },
        ObjectHeaders { user: vec![("a".to_owned(), "b".to_owned())], ..ObjectHeaders::default() },
    ] {
        let body = futures_util::stream::empty().boxed();
        let request = PutRequest { headers, ..PutRequest::default() };
        a.engine.put(BUCKET, "t/1", request, body, Box::new(|_, _| Ok(()))).await.unwrap();
        let refused = copy().await;
        assert!(matches!(refused, Err(GatewayError::NotImplemented(_))), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_object_of_peer_is_not_read_locally() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    // The same key with the same ETag, of a time when the slot was here.
    assert!(a.put("t/1", "value").await);
    let etag = a.engine.resolve(BUCKET, "t/1").await.unwrap().record.etag;
    let slot = a.ownership.slot_of(BUCKET, "t/1");
    a.elsewhere.has("t/1", &etag, 5);
    a.say_elsewhere(slot);
    let resolved = a.engine.resolve_source(BUCKET, "t/1").await.unwrap();
    assert_eq!(resolved.record.size_bytes, 5);
    let body: Vec<_> = a.engine.body(BUCKET, "t/1", resolved, 0..5).collect().await;
    assert!(matches!(&body[..], [Err(GatewayError::Store(why))] if why.contains("was replaced")), "{body:?}");
}

/// Only a listing has told the next owner of it, and neither a HEAD nor another listing bears that out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_missing_after_slot_move_is_absent() {
    let site = Site::new();
    let mut a = site.start("a").await.unwrap();
    a.pass_until(|a| a.served() == SLOTS as usize).await;
    assert!(a.put("t/1", "value").await);
    a.flushed().await;
    let mut b = site.start("b").await.unwrap();
    a.control.is_leaving = true;
    let begun = tokio::time::Instant::now();
    while b.served() < SLOTS as usize {
        assert!(begun.elapsed() < Duration::from_secs(30), "{} {}", a.served(), b.served());
        let _ = (a.control.pass().await, b.control.pass().await);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    site.store.delete(&"t/1".into()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(b.get("t/1").await, Ok(None));
    }
}

impl Site {
    /// Everybody looks until all slots are served, or nothing changes any more.
    async fn settle(gateways: &mut [&mut Gateway]) {
        for _ in 0..60 {
            for gateway in gateways.iter_mut() {
                let _ = gateway.control.pass().await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            if gateways.iter().map(|gateway| gateway.served()).sum::<usize>() == SLOTS as usize {
                return;
            }
        }
    }
}
