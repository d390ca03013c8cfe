use super::*;

fn holder(upload: &str, number: u16) -> Holder {
    Holder { name: ObjectName::new("lake", "a"), upload: upload.to_owned(), number }
}

fn next(spills: &SpillQueue, share_bytes: u64, now: Instant) -> Option<u64> {
    spills.state.lock().next((share_bytes, 30), now).ok().map(|(content, _)| content.0)
}

#[tokio::test]
async fn oldest_parts_are_spilled_above_their_share() {
    let spills = SpillQueue::default();
    let now = Instant::now();
    for number in [3, 1, 2] {
        spills.park(ContentId(u64::from(number)), 10, holder("u", number));
    }
    assert_eq!(spills.journal_bytes(), 30);
    assert_eq!(next(&spills, 30, now), None);
    assert_eq!(next(&spills, 15, now + AGAIN_AFTER), Some(1));
    assert_eq!(next(&spills, 15, now + AGAIN_AFTER), Some(2));
    assert_eq!(next(&spills, 15, now + AGAIN_AFTER), None);
    // Old parts give their room up.
    assert_eq!(next(&spills, 15, now + LAIN_FOR * 2), Some(3));
    assert_eq!(spills.journal_bytes(), 0);
}

#[tokio::test]
async fn parts_filling_journal_make_room_for_waiters() {
    let spills = SpillQueue::default();
    spills.park(ContentId(1), 10, holder("u", 1));
    let now = Instant::now();
    let next = |used_bytes| spills.state.lock().next((100, used_bytes), now);
    assert!(next(10).is_err());
    let waiting = spills.wait();
    // Flushes make room.
    assert_eq!(next(21).unwrap_err(), now + LOOK_WHILE_WAITED);
    let (content, parked) = next(20).unwrap();
    spills.state.lock().insert(content, parked);
    drop(waiting);
    assert_eq!(next(20).unwrap_err(), now + LOOK_EVERY);
}

#[tokio::test]
async fn failed_spill_lets_others_go_first() {
    let spills = SpillQueue::default();
    for number in [1, 2] {
        spills.park(ContentId(u64::from(number)), 10, holder("u", number));
    }
    let now = Instant::now();
    let (content, mut parked) = spills.state.lock().next((0, 30), now).unwrap();
    parked.not_before = now + AGAIN_AFTER;
    spills.state.lock().insert(content, parked);
    assert_eq!(next(&spills, 0, now), Some(2));
    let deadline = spills.state.lock().next((0, 30), now).unwrap_err();
    assert_eq!((deadline, next(&spills, 0, deadline)), (now + AGAIN_AFTER, Some(1)));
}

fn refused(refusal: StoreRefusal) -> FailedAttempt {
    GatewayError::Refused { refusal, text: "no".to_owned() }.into()
}

/// Each attempt sends a part whole, so a bucket that takes none is not asked with one part after the other.
#[tokio::test]
async fn refusing_bucket_is_asked_ever_more_seldom() {
    tokio::time::pause();
    let spills = SpillQueue::default();
    for number in [1, 2] {
        spills.park(ContentId(u64::from(number)), 10, holder("u", number));
    }
    let mut now = Instant::now();
    let (mut attempts, mut pauses) = (0, Vec::new());
    while attempts < 12 {
        let next_part = spills.state.lock().next((0, 30), now);
        match next_part {
            Ok((content, parked)) => {
                spills.state.lock().fail(content, parked, &refused(StoreRefusal::Denied));
                attempts += 1;
            }
            Err(deadline) => {
                pauses.push(deadline.saturating_duration_since(now));
                now = deadline;
                tokio::time::advance(deadline.saturating_duration_since(Instant::now())).await;
            }
        }
    }
    // Never two parts in a row without a pause, though each had failed less often than both together.
    assert!(pauses.len() >= attempts - 1, "{pauses:?}");
    assert!(pauses.iter().sum::<Duration>() > Duration::from_secs(60), "{pauses:?}");
    assert_eq!(spills.failing_counts(), BTreeMap::from([(FailureCause::Refused(StoreRefusal::Denied), 2)]));
    assert_eq!(spills.failing(i64::MAX, 9).len(), 1);
    // A part that comes later waits, too.
    spills.park(ContentId(3), 10, holder("u", 3));
    assert_eq!(next(&spills, 0, now), None);
    spills.note_stored("lake");
    assert!(next(&spills, 0, now).is_some());
}

/// It may be the only one that the store does not take.
#[tokio::test]
async fn refused_part_blocks_no_other_of_its_bucket() {
    tokio::time::pause();
    let spills = SpillQueue::default();
    for number in [1, 2] {
        spills.park(ContentId(u64::from(number)), 10, holder("u", number));
    }
    let (content, parked) = spills.state.lock().next((0, 30), Instant::now()).unwrap();
    assert_eq!(content.0, 1);
    spills.state.lock().fail(content, parked, &refused(StoreRefusal::Request));
    let deadline = spills.state.lock().next((0, 30), Instant::now()).unwrap_err();
    tokio::time::advance(deadline.saturating_duration_since(Instant::now())).await;
    assert_eq!(next(&spills, 0, Instant::now()), Some(2));
    // It is on its way, and the other one waits for what comes of it.
    assert_eq!(next(&spills, 0, Instant::now()), None);
}

/// Clients that wait for room, and a drain, do not wait for ten minutes after the store has been mended.
#[tokio::test]
async fn refused_part_is_tried_sooner_while_somebody_waits() {
    tokio::time::pause();
    let spills = SpillQueue::default();
    spills.park(ContentId(1), 10, holder("u", 1));
    let mut attempts = 0;
    while attempts < 16 {
        let tried = spills.state.lock().next((0, 30), Instant::now());
        match tried {
            Ok((content, parked)) => {
                spills.state.lock().fail(content, parked, &refused(StoreRefusal::Denied));
                attempts += 1;
            }
            Err(deadline) => {
                tokio::time::advance(deadline.saturating_duration_since(Instant::now())).await;
            }
        }
    }
    let soon = Instant::now() + Duration::from_secs(31);
    assert_eq!(next(&spills, 0, soon), None);
    let waiting = spills.wait();
    assert_eq!(next(&spills, 0, soon), Some(1));
    drop(waiting);
}

#[tokio::test]
async fn part_refused_for_its_size_keeps_no_other_waiting() {
    let spills = SpillQueue::default();
    for number in [1, 2] {
        spills.park(ContentId(u64::from(number)), 10, holder("u", number));
    }
    let now = Instant::now();
    let (content, parked) = spills.state.lock().next((0, 30), now).unwrap();
    assert!(spills.state.lock().fail(content, parked, &refused(StoreRefusal::TooLarge)));
    assert_eq!(next(&spills, 0, now), Some(2));
}

#[tokio::test]
async fn repeated_parts_take_no_more_memory() {
    let spills = SpillQueue::default();
    for _ in 0..3 {
        spills.park(ContentId(1), 10, holder("u", 1));
        spills.park(ContentId(1), 10, holder("u", 2));
    }
    assert_eq!(spills.state.lock().parked[&ContentId(1)].holders.len(), 2);
    // One that is uploaded anew has another content, and the former one leaves the journal.
    spills.park(ContentId(2), 20, holder("u", 1));
    let released = ReleasedRange { content: ContentId(1), segment: 0, offset_bytes: 0, size_bytes: 10 };
    spills.apply(Vec::new(), &[], &[released]);
    assert_eq!((spills.journal_bytes(), spills.state.lock().parked.len()), (20, 1));
}

#[tokio::test]
async fn content_blocking_a_flush_is_spilled_first() {
    let spills = SpillQueue::default();
    for number in [1, 2, 3] {
        spills.park(ContentId(number), 10, holder("u", 1));
    }
    let now = Instant::now();
    assert!(!spills.is_time_to_look(now));
    spills.want_fetched();
    assert!(spills.is_time_to_look(now) && !spills.is_time_to_look(now));
    spills.want_fetched();
    // All parts are looked at, so not at once again.
    assert!(!spills.is_time_to_look(now) && spills.is_time_to_look(now + LOOK_EVERY));
    for content in [2, 4] {
        spills.put_first(ContentId(content));
    }
    assert_eq!((next(&spills, 30, now + AGAIN_AFTER), next(&spills, 30, now + AGAIN_AFTER)), (Some(2), None));
    assert_eq!(spills.journal_bytes(), 20);
    // A drain sends these and no others.
    let in_the_way = || spills.state.lock().next_in_the_way(now + LAIN_FOR * 2).map(|(content, _)| content);
    assert_eq!(in_the_way(), None);
    spills.put_first(ContentId(3));
    assert_eq!((in_the_way(), in_the_way()), (Some(ContentId(3)), None));
}

#[tokio::test]
async fn finished_upload_holds_no_content() {
    let spills = SpillQueue::default();
    spills.park(ContentId(1), 10, holder("u", 1));
    spills.park(ContentId(2), 10, holder("u", 2));
    spills.park(ContentId(2), 10, holder("v", 1));
    assert_eq!(spills.journal_bytes(), 20);
    let over = |upload: &str| spills.apply(Vec::new(), &[upload.to_owned()], &[]);
    over("u");
    assert_eq!(spills.journal_bytes(), 10);
    over("v");
    assert_eq!((spills.journal_bytes(), next(&spills, 0, Instant::now())), (0, None));
}

#[tokio::test]
async fn spill_that_fails_keeps_the_parts_that_came_meanwhile() {
    let spills = SpillQueue::default();
    spills.park(ContentId(1), 10, holder("u", 1));
    let (content, parked) = spills.state.lock().next((0, 30), Instant::now()).unwrap();
    // A copy of the part comes while its content is on its way to the store.
    spills.park(ContentId(1), 10, holder("v", 1));
    spills.state.lock().insert(content, parked);
    let holders = |upload: &str| spills.state.lock().parked[&content].holders.contains(&holder(upload, 1));
    assert!(holders("u") && holders("v"));
    assert_eq!(spills.journal_bytes(), 10);
}
