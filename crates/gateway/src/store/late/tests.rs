use object_store::client::HttpRequestBody;

use super::*;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

fn put(etag: &str) -> RequestEffect {
    RequestEffect::put(etag, 1, &ObjectHeaders::default())
}

fn generic() -> object_store::Error {
    object_store::Error::Generic { store: "stub", source: "no answer".into() }
}

fn named(name: &str, request: Option<(RequestEffect, Duration)>) -> KeptRequest {
    (name.into(), request)
}

/// As the next start gets what this one kept.
fn recalled(requests: Vec<KeptRequest>) -> Vec<RecalledRequest> {
    let requests = requests.into_iter().filter_map(|(name, request)| {
        let (effect, left) = request?;
        Some(RecalledRequest { name: name.to_string(), effect, left, is_kept: true })
    });
    requests.collect()
}

async fn lose_answer(late: &Arc<LateRequests>, effect: RequestEffect) {
    let following = late.follow("a", effect).unwrap();
    following.watch(sent(BackendKind::S3, async { Err::<(), _>(generic()) })).await.unwrap_err();
    assert!(following.may_land());
}

#[tokio::test]
async fn only_the_same_request_follows_one_without_an_answer() {
    let late = Arc::new(LateRequests::new(LONG));
    lose_answer(&late, put("1")).await;
    assert!(late.follow("b", put("2")).is_ok());
    for other in [put("2"), RequestEffect::Delete, RequestEffect::Copy] {
        assert!(late.follow("a", other).is_err());
    }
    // The same one that succeeds does not make the first one harmless.
    let again = late.follow("a", put("1")).unwrap();
    again.watch(sent(BackendKind::S3, async { Ok(()) })).await.unwrap();
    drop(again);
    assert!(late.follow("a", put("2")).is_err());
    assert_eq!(late.names(), ["a"]);
}

#[tokio::test]
async fn request_follows_after_late_window() {
    let late = Arc::new(LateRequests::new(Duration::ZERO));
    for effect in [put("1"), RequestEffect::Delete, RequestEffect::Copy, put("2")] {
        lose_answer(&late, effect).await;
    }
    assert!(late.names().is_empty());
    let state = late.state.lock();
    assert!(state.names.is_empty() && state.ends.is_empty());
}

#[tokio::test]
async fn unanswered_copy_is_not_repeated() {
    let late = Arc::new(LateRequests::new(LONG));
    lose_answer(&late, RequestEffect::Copy).await;
    assert!(late.follow("a", RequestEffect::Copy).is_err());
}

#[tokio::test]
async fn recorded_unanswered_requests_are_recalled() {
    let late = Arc::new(LateRequests::new(LONG));
    lose_answer(&late, put("1")).await;
    let unanswered = late.to_keep(false).unwrap();
    assert!(late.to_keep(false).is_none());
    // If it could not be written down, it is returned again.
    late.not_kept();
    // Some time has passed meanwhile.
    let effects = |requests: &[KeptRequest]| -> Vec<(Arc<str>, Option<RequestEffect>)> {
        let effect =
            |request: &Option<(RequestEffect, Duration)>| request.as_ref().map(|(effect, _)| effect.clone());
        requests.iter().map(|(name, request)| (Arc::clone(name), effect(request))).collect()
    };
    assert_eq!(effects(&late.to_keep(false).unwrap()), effects(&unanswered));
    let next = Arc::new(LateRequests::new(LONG));
    next.recall(recalled(unanswered), |_| true);
    // What is kept as it is need not be written again.
    assert!(next.to_keep(false).is_none());
    assert!(next.follow("a", put("1")).is_ok() && next.follow("a", RequestEffect::Delete).is_err());
    // A clock that was set back makes nothing wait for longer than a request can take.
    let next = Arc::new(LateRequests::new(Duration::ZERO));
    next.recall(recalled(vec![named("a", Some((RequestEffect::Delete, LONG)))]), |_| true);
    assert!(next.follow("a", put("1")).is_ok());
}

async fn lose_answers(late: &Arc<LateRequests>, names: &[&str]) -> Vec<bool> {
    let mut have_place = Vec::new();
    for name in names {
        let Ok(following) = late.follow_for_client(name, RequestEffect::Delete) else {
            have_place.push(false);
            continue;
        };
        following.watch(sent(BackendKind::S3, async { Err::<(), _>(generic()) })).await.unwrap_err();
        have_place.push(true);
    }
    have_place
}

#[tokio::test]
async fn unanswered_names_beyond_limit_are_refused() {
    let (places, within) = (LatePlaces::new(4), Duration::from_secs(1));
    let (late, other) = (Arc::new(LateRequests::new(LONG)), Arc::new(LateRequests::new(within)));
    late.limit_by(StorePlaces::new(Arc::clone(&places)));
    other.limit_by(StorePlaces::new(Arc::clone(&places)));
    // The same name again takes no second place, here and there together.
    assert_eq!(lose_answers(&late, &["a", "b", "a", "b", "c"]).await, [true, true, true, true, false]);
    assert_eq!(lose_answers(&other, &["c", "c", "d"]).await, [true, true, false]);
    assert_eq!(late.follow_for_client("c", put("1")).err(), Some(ClientWait::NoPlace));
    assert_eq!(late.state.lock().ends.len(), 2);
    // Flushers go on: what they send is limited elsewhere.
    assert!(late.follow("c", put("1")).is_ok());
    // A place comes free with its name, and one that was answered is given back.
    tokio::time::sleep(within).await;
    assert_eq!(other.names(), [""; 0]);
    drop(other.follow_for_client("c", put("1")).unwrap());
    assert_eq!(lose_answers(&other, &["d", "e"]).await, [true, false]);
    // What an earlier start has left counts, even beyond the limit.
    late.recall(
        recalled(vec![named("f", Some((put("1"), LONG))), named("g", Some((put("1"), LONG)))]),
        |_| true,
    );
    assert_eq!(places.count(), 5);
}

#[tokio::test]
async fn dead_store_leaves_places_to_others() {
    let places = LatePlaces::new(90);
    let stores = [(); 3].map(|()| {
        let late = Arc::new(LateRequests::new(LONG));
        late.limit_by(StorePlaces::new(Arc::clone(&places)));
        late
    });
    let names: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut remembered = Vec::new();
    for late in &stores {
        let have_place = lose_answers(late, &names).await;
        remembered.push(have_place.iter().filter(|has_place| **has_place).count());
    }
    assert_eq!(remembered, [45, 23, 11]);
    // One whose store answers goes on.
    let well = Arc::new(LateRequests::new(LONG));
    well.limit_by(StorePlaces::new(Arc::clone(&places)));
    assert!(well.follow_for_client("a", put("1")).is_ok());
}

#[tokio::test]
async fn only_changed_names_are_kept_again() {
    let late = Arc::new(LateRequests::new(LONG));
    let names = |late: &LateRequests| -> Option<Vec<String>> {
        let changes = late.to_keep(false)?;
        late.kept();
        Some(changes.iter().map(|(name, _)| name.to_string()).collect())
    };
    lose_answers(&late, &["a", "b"]).await;
    assert_eq!(names(&late).unwrap(), ["a", "b"]);
    lose_answers(&late, &["c"]).await;
    assert_eq!(names(&late).unwrap(), ["c"]);
    assert_eq!(names(&late), None);
    // A request without an answer for the same name lasts longer.
    lose_answers(&late, &["b"]).await;
    assert_eq!(names(&late).unwrap(), ["b"]);
    assert_eq!(late.state.lock().ends.len(), 3);
}

#[tokio::test]
async fn requests_in_flight_at_shutdown_are_recorded() {
    let late = Arc::new(LateRequests::new(LONG));
    let expected = vec![named("a", Some((put("1"), LONG)))];
    let following = late.follow("a", put("1")).unwrap();
    // Nothing has been sent yet.
    assert!(late.to_keep(true).is_none());
    let (answer, answered) = tokio::sync::oneshot::channel::<()>();
    let request = async {
        answered.await.unwrap();
        Ok(())
    };
    let mut request = Box::pin(following.watch(sent(BackendKind::S3, request)));
    assert!(futures_util::poll!(&mut request).is_pending());
    // It may be answered soon; a crash in between is not known of.
    assert!(late.to_keep(false).is_none());
    assert_eq!(late.to_keep(false), Some(expected.clone()));
    assert!(late.to_keep(false).is_none() && late.to_keep(true).is_none());
    let next = Arc::new(LateRequests::new(LONG));
    next.recall(recalled(expected), |_| true);
    assert!(next.follow("a", put("1")).is_ok() && next.follow("a", put("2")).is_err());
    // Once it is answered, nobody has to wait for it.
    answer.send(()).unwrap();
    request.await.unwrap();
    assert_eq!(late.to_keep(false), Some(vec![named("a", None)]));
    drop(following);
    assert!(late.to_keep(true).is_none() && late.state.lock().followings.is_empty());
    // At the end there is no second look.
    let following = late.follow("b", RequestEffect::Delete).unwrap();
    let waiting = sent(BackendKind::S3, std::future::pending::<object_store::Result<()>>());
    let mut request = Box::pin(following.watch(waiting));
    assert!(futures_util::poll!(&mut request).is_pending());
    assert_eq!(late.to_keep(true), Some(vec![named("b", Some((RequestEffect::Delete, LONG)))]));
}

#[test]
fn record_of_expired_request_is_emptied() {
    let late = LateRequests::new(LONG);
    late.recall(recalled(vec![named("a", Some((put("1"), Duration::ZERO)))]), |_| true);
    // The next start has to learn of it.
    assert!(!late.is_over());
    assert_eq!(late.to_keep(false), Some(vec![named("a", None)]));
    assert!(!late.is_over());
    late.kept();
    assert!(late.is_over());
}

#[tokio::test]
async fn abandoned_request_may_land() {
    for kind in [BackendKind::S3, BackendKind::Directory] {
        let late = Arc::new(LateRequests::new(LONG));
        let following = late.follow("a", put("1")).unwrap();
        let mut request =
            Box::pin(following.watch(sent(kind, std::future::pending::<object_store::Result<()>>())));
        assert!(futures_util::poll!(&mut request).is_pending());
        drop(request);
        drop(following);
        assert!(late.follow("a", RequestEffect::Delete).is_err());
    }
}

#[tokio::test]
async fn refusal_counts_as_answer() {
    let late = Arc::new(LateRequests::new(LONG));
    let refusals = [
        object_store::Error::PermissionDenied { path: String::new(), source: "no".into() },
        object_store::Error::Precondition { path: String::new(), source: "no".into() },
    ];
    for refusal in refusals {
        let following = late.follow("a", put("1")).unwrap();
        following.watch(sent(BackendKind::S3, async { Err::<(), _>(refusal) })).await.unwrap_err();
    }
    // So is an error of a directory.
    let following = late.follow("a", put("1")).unwrap();
    following.watch(sent(BackendKind::Directory, async { Err::<(), _>(generic()) })).await.unwrap_err();
    drop(following);
    assert!(late.follow("a", RequestEffect::Delete).is_ok());
}

/// Whether nothing may land behind these answers. The store's client goes by the last one.
async fn is_over(method: Method, target: &str, statuses: &[u16]) -> bool {
    let late = Arc::new(LateRequests::new(LONG));
    let following = late.follow("a", put("1")).unwrap();
    let work = async {
        for status in statuses {
            let request = hyper::Request::builder().method(&method).uri(format!("http://store:9{target}"));
            let changes = changes_object(&request.body(HttpRequestBody::empty()).unwrap());
            let answer = hyper::Response::builder().status(*status).body(bytes::Bytes::new().into());
            let answering = std::future::ready(Ok(answer.unwrap()));
            let answer = if changes { seen_on_wire(answering).await } else { answering.await };
            answer.unwrap();
        }
        match statuses.last() {
            Some(200..=299) => Ok(()),
            _ => Err(generic()),
        }
    };
    let _ = following.watch(sent(BackendKind::S3, work)).await;
    drop(following);
    late.follow("a", RequestEffect::Delete).is_ok()
}

#[tokio::test]
async fn transport_detects_unreported_repetitions() {
    for (method, target, statuses, expected) in [
        (Method::PUT, "/lake/a", &[200][..], true),
        (Method::PUT, "/lake/a", &[400], true),
        (Method::PUT, "/lake/a", &[502, 200], false),
        (Method::PUT, "/lake/a", &[503, 400], false),
        (Method::DELETE, "/lake/a", &[504, 204], false),
        (Method::POST, "/lake/a?uploadId=u", &[500, 200], false),
        // A part's fate is not the object's.
        (Method::PUT, "/lake/a?partNumber=1&uploadId=u", &[500, 200], true),
        (Method::POST, "/lake/a?uploads", &[500, 200], true),
        (Method::DELETE, "/lake/a?uploadId=u", &[500, 200], true),
    ] {
        assert_eq!(
            is_over(method.clone(), target, statuses).await,
            expected,
            "{method} {target} {statuses:?}"
        );
    }
}
