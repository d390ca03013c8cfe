//! Peers that are slow, looked at when they are.

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A request of whose body nothing is here, and that has a place.
fn awaited(seats: &Arc<ConnectionSeats>, kind: BodyKind) -> SeatGuard {
    let seated = seats.take();
    assert!(seated.seat.request_begins());
    seated.seat.has_slot();
    seated.seat.body_begins(kind);
    seated.seat.body_is_awaited(Waker::noop()).unwrap();
    seated
}

/// One whose peer does not take its answer.
fn unread(seats: &Arc<ConnectionSeats>) -> SeatGuard {
    let seated = seats.take();
    assert!(seated.seat.request_begins());
    seated.seat.has_slot();
    seated.seat.pace.lock().writing.begins(Instant::now());
    seated
}

#[test]
fn body_without_bytes_in_a_window_is_refused() {
    let seats = ConnectionSeats::new(false);
    let (silent, trickling, moving) = (
        awaited(&seats, BodyKind::Upload(1 << 30)),
        awaited(&seats, BodyKind::Upload(1 << 30)),
        awaited(&seats, BodyKind::Upload(1 << 30)),
    );
    trickling.seat.body_moves(MIN_BYTES - 1).unwrap();
    trickling.seat.body_is_awaited(Waker::noop()).unwrap();
    moving.seat.body_moves(MIN_BYTES).unwrap();
    moving.seat.body_is_awaited(Waker::noop()).unwrap();
    let now = Instant::now();
    for seated in [&silent, &trickling, &moving] {
        seated.seat.look(now + BODY_WINDOW - s(1));
        assert_eq!(seated.seat.given_up(), None);
        seated.seat.look(now + BODY_WINDOW + s(1));
    }
    assert_eq!(silent.seat.given_up(), Some(GivenUp::TooSlow));
    assert_eq!(silent.seat.body_is_awaited(Waker::noop()), Err(GivenUp::TooSlow));
    assert_eq!(trickling.seat.given_up(), Some(GivenUp::TooSlow));
    // Its bytes count for their own window alone.
    assert_eq!(moving.seat.given_up(), None);
    moving.seat.look(now + BODY_WINDOW * 2 + s(2));
    assert_eq!(moving.seat.given_up(), Some(GivenUp::TooSlow));
}

#[test]
fn slow_gateway_blames_no_peer() {
    let seats = ConnectionSeats::new(false);
    let seated = awaited(&seats, BodyKind::Upload(1 << 30));
    // It came, and nobody asks for more.
    seated.seat.body_moves(1).unwrap();
    let later = Instant::now() + s(1000);
    seated.seat.look(later);
    assert_eq!(seated.seat.given_up(), None);
    assert_eq!(seats.make_room_by(ScarceResource::Slot, later), RoomAnswer::None);
}

#[test]
fn document_must_arrive_in_time() {
    let seats = ConnectionSeats::new(false);
    let seated = awaited(&seats, BodyKind::Document);
    seated.seat.body_moves(1 << 20).unwrap();
    seated.seat.body_is_awaited(Waker::noop()).unwrap();
    let now = Instant::now();
    seated.seat.look(now + DOCUMENT_IN - s(1));
    assert_eq!(seated.seat.given_up(), None);
    seated.seat.look(now + DOCUMENT_IN + s(1));
    assert_eq!(seated.seat.given_up(), Some(GivenUp::TooSlow));
}

#[test]
fn peer_that_reads_nothing_is_closed() {
    let seats = ConnectionSeats::new(false);
    let (stalled, reading) = (unread(&seats), unread(&seats));
    let now = Instant::now();
    reading.seat.pace.lock().writing.ends(now, MIN_BYTES);
    reading.seat.pace.lock().writing.begins(now);
    // The slot went with the last byte that was handed on, and the peer still takes none.
    stalled.seat.request_ends();
    for seated in [&stalled, &reading] {
        seated.seat.look(now + READER_WINDOW + s(1));
    }
    assert!(stalled.seat.pace.lock().is_over && !reading.seat.pace.lock().is_over);
    assert!(!stalled.seat.request_begins());
}

#[test]
fn idle_connections_are_closed_longest_idle_first() {
    let seats = ConnectionSeats::new(false);
    let (first, busy, second) = (seats.take(), seats.take(), seats.take());
    assert!(busy.seat.request_begins());
    first.seat.pace.lock().idle_since = Some(Instant::now() - s(2));
    let is_over = |seated: &SeatGuard| seated.seat.pace.lock().is_over;
    assert!(seats.close_idlest());
    assert!(is_over(&first) && !is_over(&second));
    assert!(seats.close_idlest());
    assert!(is_over(&second) && !seats.close_idlest(), "the other one has a request");
    let third = seats.take();
    third.seat.look(Instant::now() + IDLE - s(1));
    assert!(!is_over(&third));
    third.seat.look(Instant::now() + IDLE + s(1));
    assert!(is_over(&third));
    busy.seat.look(Instant::now() + s(1000));
    assert!(!is_over(&busy));
}

#[test]
fn slowest_peer_makes_room_after_waiting() {
    let seats = ConnectionSeats::new(false);
    let (slow, slower) = (awaited(&seats, BodyKind::Upload(10)), awaited(&seats, BodyKind::Document));
    let fast = awaited(&seats, BodyKind::Upload(1 << 30));
    fast.seat.body_moves(FAST_BYTES * 10).unwrap();
    fast.seat.body_is_awaited(Waker::noop()).unwrap();
    slow.seat.body_moves(1000).unwrap();
    slow.seat.body_is_awaited(Waker::noop()).unwrap();
    let now = Instant::now();
    assert!(
        matches!(seats.make_room_by(ScarceResource::Slot, now), RoomAnswer::After(pause) if pause <= RIPE)
    );
    let later = now + RIPE + s(1);
    assert_eq!(seats.make_room_by(ScarceResource::Slot, later), RoomAnswer::Coming);
    assert_eq!((slower.seat.given_up(), slow.seat.given_up()), (Some(GivenUp::MadeRoom), None));
    assert_eq!(seats.make_room_by(ScarceResource::Slot, later), RoomAnswer::Coming);
    assert_eq!(slow.seat.given_up(), Some(GivenUp::MadeRoom));
    assert_eq!(seats.make_room_by(ScarceResource::Slot, later), RoomAnswer::None);
    assert_eq!(fast.seat.given_up(), None);
    // One that reads nothing has had the head of its answer.
    let unread = unread(&seats);
    assert_eq!(seats.make_room_by(ScarceResource::Slot, Instant::now() + RIPE + s(1)), RoomAnswer::Coming);
    assert!(unread.seat.pace.lock().is_over);
}

#[test]
fn journal_room_comes_from_slow_bodies() {
    let seats = ConnectionSeats::new(false);
    let (short, long) =
        (awaited(&seats, BodyKind::Upload(1 << 20)), awaited(&seats, BodyKind::Upload(5 << 30)));
    // Faster than others have to be, and still hours from its end.
    long.seat.body_moves(FAST_BYTES * 10).unwrap();
    long.seat.body_is_awaited(Waker::noop()).unwrap();
    let (reader, document) = (unread(&seats), awaited(&seats, BodyKind::Document));
    let later = Instant::now() + RIPE + s(1);
    let given_up = |seated: &SeatGuard| seated.seat.given_up().is_some() || seated.seat.pace.lock().is_over;
    for next in [&long, &short, &reader] {
        assert!(!given_up(next));
        assert_eq!(seats.make_room_by(ScarceResource::Journal, later), RoomAnswer::Coming);
        assert!(given_up(next));
    }
    assert_eq!(seats.make_room_by(ScarceResource::Journal, later), RoomAnswer::None);
    assert!(!given_up(&document));
}

#[test]
fn other_gateways_are_left_their_pace() {
    let seats = ConnectionSeats::new(true);
    let seated = awaited(&seats, BodyKind::Upload(1 << 30));
    seats.look();
    assert_eq!(seats.make_room_by(ScarceResource::Slot, Instant::now() + s(1000)), RoomAnswer::None);
    assert_eq!(seated.seat.given_up(), None);
}

#[test]
fn journal_waiters_displace_a_single_peer_at_once() {
    let seats = ConnectionSeats::new(false);
    let slow: Vec<SeatGuard> = (0..3).map(|_| awaited(&seats, BodyKind::Upload(1 << 20))).collect();
    let given_up = || slow.iter().filter(|seated| seated.seat.given_up().is_some()).count();
    let later = Instant::now() + RIPE + s(1);
    assert_eq!(seats.make_room_in_journal_by(later), Some(RoomAnswer::Coming));
    for _ in 0..10 {
        assert_eq!(seats.make_room_in_journal_by(later + JOURNAL_PAUSE / 2), None);
    }
    assert_eq!(given_up(), 1);
    assert_eq!(seats.make_room_in_journal_by(later + JOURNAL_PAUSE), Some(RoomAnswer::Coming));
    assert_eq!(given_up(), 2);
}
