use futures_util::FutureExt as _;

use super::*;
use crate::errors::{GatewayError, StoreRefusal};

fn take(queue: &FlushQueue) -> Option<ObjectName> {
    queue.state.lock().take(Instant::now()).ok().map(|turn| turn.name)
}

fn apply(queue: &FlushQueue, name: &ObjectName, since_ms: Option<i64>, delay: Duration) {
    queue.apply(vec![(name.clone(), since_ms)], &[], |_| delay);
}

#[test]
fn requeued_name_waits_for_its_flusher() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    apply(&queue, &name, Some(1), Duration::ZERO);
    assert_eq!(take(&queue), Some(name.clone()));
    // The flusher's commit settles the first version, and a second one comes before the flusher says that it is
    // through.
    apply(&queue, &name, None, Duration::ZERO);
    assert_eq!(queue.summary().0, 1, "somebody is still at it");
    apply(&queue, &name, Some(2), Duration::ZERO);
    drop(queue.hasten(&name));
    assert_eq!(take(&queue), None);
    queue.finish(&name, AttemptOutcome::Done);
    assert_eq!(take(&queue), Some(name.clone()));
    assert_eq!(take(&queue), None);
    apply(&queue, &name, None, Duration::ZERO);
    queue.finish(&name, AttemptOutcome::Done);
    assert_eq!((take(&queue), queue.summary().0), (None, 0));
}

fn fail(queue: &FlushQueue, name: &ObjectName, error: &GatewayError) {
    queue.hasten_those(|_| true);
    assert_eq!(take(queue), Some(name.clone()));
    queue.finish(name, AttemptOutcome::Failed(error.clone().into()));
}

fn refused() -> GatewayError {
    GatewayError::Refused { refusal: StoreRefusal::Denied, text: "as the test wants it".to_owned() }
}

/// What was in the way may go just when the attempt has failed by it.
#[test]
fn name_whose_obstacle_goes_is_tried_at_once() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    let obstacle = ObjectName::new("lake", "a/b");
    apply(&queue, &name, Some(1), Duration::ZERO);
    fail(&queue, &name, &refused());
    assert_eq!(take(&queue), None, "it has its pause");
    queue.hasten_around(&obstacle);
    assert_eq!(take(&queue), Some(name.clone()));
    queue.hasten_around(&obstacle);
    queue.finish(&name, AttemptOutcome::Failed(refused().into()));
    assert_eq!(take(&queue), Some(name.clone()), "it went during the attempt");
    queue.finish(&name, AttemptOutcome::Failed(refused().into()));
    assert_eq!(take(&queue), None, "once");
    queue.hasten_around(&ObjectName::new("other", "a/b"));
    assert_eq!(take(&queue), None);
}

#[test]
fn failing_name_is_listed_until_stored() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    apply(&queue, &name, Some(1), Duration::ZERO);
    fail(&queue, &name, &GatewayError::Store("as the test wants it".to_owned()));
    let since_ms = queue.failing(i64::MAX, 9)[0].failed.as_ref().unwrap().since_ms;
    assert!(queue.failing(since_ms - 1, 9).is_empty(), "it has not failed for so long");
    fail(&queue, &name, &refused());
    let listed = queue.failing(since_ms, 9);
    let failed = FailingName {
        since_ms,
        cause: FailureCause::Refused(StoreRefusal::Denied),
        why: "as the test wants it".to_owned(),
    };
    assert_eq!(listed, [UnstoredName { name: name.clone(), failed: Some(failed) }]);
    assert_eq!((queue.unstored(9), queue.failing_counts().len()), (listed, 1));
    apply(&queue, &name, None, Duration::ZERO);
    assert!(queue.failing(i64::MAX, 9).is_empty() && queue.failing_counts().is_empty());
}

#[test]
fn refused_copy_is_sent_as_bytes_until_next_version() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    let wants_bytes = || {
        queue.hasten_those(|_| true);
        let turn = queue.state.lock().take(Instant::now()).ok().unwrap();
        turn.wants_bytes
    };
    apply(&queue, &name, Some(1), Duration::ZERO);
    for _ in 0..MAX_REFUSED_COPIES {
        assert!(!wants_bytes());
        queue.finish(&name, AttemptOutcome::Failed(refused().into()));
    }
    assert!(wants_bytes());
    // A client overwrites it meanwhile, and that is another matter.
    apply(&queue, &name, Some(1), Duration::ZERO);
    queue.finish(&name, AttemptOutcome::Failed(refused().into()));
    assert!(!wants_bytes());
}

#[test]
fn repeatedly_refused_name_is_not_waited_for() {
    let (queue, name, other) =
        (FlushQueue::default(), ObjectName::new("lake", "a"), ObjectName::new("lake", "b"));
    apply(&queue, &name, Some(1), Duration::ZERO);
    for _ in 0..9 {
        fail(&queue, &name, &refused());
    }
    assert!(!queue.is_held_up(), "nobody waits for it");
    queue.hurry();
    for _ in 0..REFUSED_IN_VAIN {
        assert!(!queue.is_held_up(), "it is tried some times more");
        fail(&queue, &name, &refused());
    }
    assert!(queue.is_held_up());
    apply(&queue, &other, Some(2), Duration::from_secs(3600));
    assert!(!queue.is_held_up(), "another one may yet be stored");
}

#[tokio::test]
async fn pending_names_stay_below_limit() {
    let queue = Arc::new(FlushQueue::new(2));
    let name = |key: &str| ObjectName::new("lake", key);
    let first = queue.reserve(&[name("a")]).await;
    apply(&queue, &name("b"), Some(1), Duration::ZERO);
    assert!(queue.reserve(&[name("c")]).now_or_never().is_none());
    // Of two that are asked for at once, none is had.
    assert!(queue.reserve(&[name("b"), name("c")]).now_or_never().is_none());
    // A pending name takes no further place.
    assert!(queue.reserve(&[name("b")]).now_or_never().is_some());
    drop(first);
    let second = queue.reserve(&[name("c")]).await;
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.reserve(&[ObjectName::new("lake", "d")]).await }
    });
    tokio::task::yield_now().await;
    apply(&queue, &name("b"), None, Duration::ZERO);
    drop(waiting.await.unwrap());
    drop(second);
    assert_eq!(queue.state.lock().reserved, 0);
}

/// And no more than twice as many names are pending, even if the stores refuse all.
#[tokio::test]
async fn permanently_refused_names_leave_room_for_others() {
    let queue = Arc::new(FlushQueue::new(2));
    let name = |key: &str| ObjectName::new("lake", key);
    for (key, error) in [("a", refused()), ("b", refused()), ("c", refused()), ("d", refused())] {
        let reserved = queue.reserve(&[name(key)]).now_or_never();
        assert!(reserved.is_some(), "{key}");
        apply(&queue, &name(key), Some(1), Duration::ZERO);
        drop(reserved);
        while let Some(turn) = take(&queue) {
            queue.finish(&turn, AttemptOutcome::Failed(error.clone().into()));
        }
    }
    assert!(queue.reserve(&[name("e")]).now_or_never().is_none());
    // Names that pass take places as before.
    let queue = Arc::new(FlushQueue::new(2));
    for key in ["a", "b"] {
        apply(&queue, &name(key), Some(1), Duration::ZERO);
        while let Some(turn) = take(&queue) {
            queue.finish(&turn, AttemptOutcome::Failed(GatewayError::Store("no".to_owned()).into()));
        }
    }
    assert!(queue.reserve(&[name("c")]).now_or_never().is_none());
}

#[test]
fn failed_attempt_says_nothing_about_newer_version() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    let failed = || AttemptOutcome::Failed(GatewayError::Store("no".to_owned()).into());
    apply(&queue, &name, Some(1), Duration::ZERO);
    assert_eq!(take(&queue), Some(name.clone()));
    // It may be sent already when its writer begins to wait.
    let mut first = queue.hasten(&name);
    // A second client writes to the name while the first one's version is sent.
    apply(&queue, &name, Some(1), Duration::ZERO);
    let mut second = queue.hasten(&name);
    queue.finish(&name, failed());
    assert!(matches!(first.try_recv(), Ok(Err(_))) && second.try_recv().is_err());
    queue.hasten_those(|_| true);
    assert_eq!(take(&queue), Some(name.clone()));
    queue.finish(&name, failed());
    assert!(matches!(second.try_recv(), Ok(Err(_))));
}

#[test]
fn name_with_late_request_waits_for_its_end() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    apply(&queue, &name, Some(1), Duration::ZERO);
    let mut waiter = queue.hasten(&name);
    assert_eq!(take(&queue), Some(name.clone()));
    queue.finish(&name, AttemptOutcome::Waits(Instant::now() + Duration::from_secs(3600)));
    assert_eq!((take(&queue), queue.summary().0), (None, 1));
    // Nothing has failed: the waiter for the store keeps waiting.
    assert!(waiter.try_recv().is_err());
}

#[test]
fn version_queued_during_flush_keeps_its_delay() {
    let (queue, name) = (FlushQueue::default(), ObjectName::new("lake", "a"));
    apply(&queue, &name, Some(1), Duration::ZERO);
    assert_eq!(take(&queue), Some(name.clone()));
    apply(&queue, &name, None, Duration::ZERO);
    apply(&queue, &name, Some(2), Duration::from_secs(3600));
    queue.finish(&name, AttemptOutcome::Done);
    assert_eq!(take(&queue), None);
    drop(queue.hasten(&name));
    assert_eq!(take(&queue), Some(name));
}

#[test]
fn hasten_of_bucket_leaves_failed_and_waiting_names() {
    let queue = FlushQueue::default();
    let name = |key: &str| ObjectName::new("lake", key);
    for (key, attempt) in [
        ("failed", AttemptOutcome::Failed(refused().into())),
        ("waits", AttemptOutcome::Waits(Instant::now() + Duration::from_secs(3600))),
    ] {
        apply(&queue, &name(key), Some(1), Duration::ZERO);
        assert_eq!(take(&queue), Some(name(key)));
        queue.finish(&name(key), attempt);
    }
    let later = Duration::from_secs(3600);
    apply(&queue, &name("new"), Some(1), later);
    apply(&queue, &ObjectName::new("other", "a"), Some(1), later);
    // A failure may be tried again after a tenth of a second.
    queue.state.lock().set_due(&name("failed"), Instant::now() + later);
    queue.hasten_new_in("lake");
    assert_eq!((take(&queue), take(&queue)), (Some(name("new")), None));
    queue.hasten_bucket("lake");
    assert_eq!((take(&queue), take(&queue)), (Some(name("failed")), Some(name("waits"))));
}

#[test]
fn blocked_name_with_waiter_is_stuck_next_turn() {
    let (queue, name, other) =
        (FlushQueue::default(), ObjectName::new("lake", "a"), ObjectName::new("lake", "b"));
    // There is something else to do.
    apply(&queue, &other, Some(1), Duration::from_secs(3600));
    apply(&queue, &name, Some(1), Duration::ZERO);
    let is_stuck = || {
        queue.state.lock().set_due(&name, Instant::now());
        let turn = queue.state.lock().take(Instant::now()).ok().unwrap();
        queue.finish(&name, AttemptOutcome::Blocked);
        turn.is_stuck
    };
    assert!(!is_stuck() && !is_stuck(), "it may be blocked no more soon");
    let waiter = queue.hasten(&name);
    assert!(is_stuck() && is_stuck());
    // The waiter has gone.
    drop(waiter);
    assert!(!is_stuck());
}
