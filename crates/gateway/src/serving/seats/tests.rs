//! Peers that are slow, looked at when they are.

use super::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A request of whose body nothing is here, and that has a place.
fn awaited(seats: &Arc<Seats>, kind: Kind) -> Seated {
    let seated = seats.take();
    assert!(seated.seat.request_begins());
    seated.seat.has_slot();
    seated.seat.body_begins(kind);
    seated.seat.body_is_awaited(Waker::noop()).unwrap();
    seated
}

/// One whose peer does not take its answer.
fn unread(seats: &Arc<Seats>) -> Seated {
    let seated = seats.take();
    assert!(seated.seat.request_begins());
    seated.seat.has_slot();
    seated.seat.pace.lock().writing.begins(Instant::now());
    seated
}

#[test]
fn a_body_has_to_bring_something_in_every_window() {
    let seats = Seats::new(false);
    let (silent, trickling, moving) = (
        awaited(&seats, Kind::Upload(1 << 30)),
        awaited(&seats, Kind::Upload(1 << 30)),
        awaited(&seats, Kind::Upload(1 << 30)),
    );
    trickling.seat.body_moves(LEAST_BYTES - 1).unwrap();
    trickling.seat.body_is_awaited(Waker::noop()).unwrap();
    moving.seat.body_moves(LEAST_BYTES).unwrap();
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
    // What it brought counts for its own window alone.
    assert_eq!(moving.seat.given_up(), None);
    moving.seat.look(now + BODY_WINDOW * 2 + s(2));
    assert_eq!(moving.seat.given_up(), Some(GivenUp::TooSlow));
}

#[test]
fn a_gateway_that_is_slow_itself_blames_nobody() {
    let seats = Seats::new(false);
    let seated = awaited(&seats, Kind::Upload(1 << 30));
    // It came, and nobody asks for more.
    seated.seat.body_moves(1).unwrap();
    let later = Instant::now() + s(1000);
    seated.seat.look(later);
    assert_eq!(seated.seat.given_up(), None);
    assert_eq!(seats.make_room_by(Scarce::Slot, later), Room::None);
}

#[test]
fn all_of_a_document_has_to_come_in_time() {
    let seats = Seats::new(false);
    let seated = awaited(&seats, Kind::Document);
    seated.seat.body_moves(1 << 20).unwrap();
    seated.seat.body_is_awaited(Waker::noop()).unwrap();
    let now = Instant::now();
    seated.seat.look(now + DOCUMENT_IN - s(1));
    assert_eq!(seated.seat.given_up(), None);
    seated.seat.look(now + DOCUMENT_IN + s(1));
    assert_eq!(seated.seat.given_up(), Some(GivenUp::TooSlow));
}

#[test]
fn a_peer_that_takes_nothing_is_closed() {
    let seats = Seats::new(false);
    let (stalled, reading) = (unread(&seats), unread(&seats));
    let now = Instant::now();
    reading.seat.pace.lock().writing.ends(now, LEAST_BYTES);
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
fn a_connection_without_a_request_is_closed_after_a_while_and_the_idlest_first() {
    let seats = Seats::new(false);
    let (first, busy, second) = (seats.take(), seats.take(), seats.take());
    assert!(busy.seat.request_begins());
    first.seat.pace.lock().idle_since = Some(Instant::now() - s(2));
    let is_over = |seated: &Seated| seated.seat.pace.lock().is_over;
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
fn the_slowest_makes_room_once_it_was_waited_for() {
    let seats = Seats::new(false);
    let (slow, slower) = (awaited(&seats, Kind::Upload(10)), awaited(&seats, Kind::Document));
    let fast = awaited(&seats, Kind::Upload(1 << 30));
    fast.seat.body_moves(FAST_BYTES * 10).unwrap();
    fast.seat.body_is_awaited(Waker::noop()).unwrap();
    slow.seat.body_moves(1000).unwrap();
    slow.seat.body_is_awaited(Waker::noop()).unwrap();
    let now = Instant::now();
    assert!(matches!(seats.make_room_by(Scarce::Slot, now), Room::After(pause) if pause <= RIPE));
    let later = now + RIPE + s(1);
    assert_eq!(seats.make_room_by(Scarce::Slot, later), Room::Coming);
    assert_eq!((slower.seat.given_up(), slow.seat.given_up()), (Some(GivenUp::MadeRoom), None));
    assert_eq!(seats.make_room_by(Scarce::Slot, later), Room::Coming);
    assert_eq!(slow.seat.given_up(), Some(GivenUp::MadeRoom));
    assert_eq!(seats.make_room_by(Scarce::Slot, later), Room::None);
    assert_eq!(fast.seat.given_up(), None);
    // One that reads nothing has had the head of its answer.
    let unread = unread(&seats);
    assert_eq!(seats.make_room_by(Scarce::Slot, Instant::now() + RIPE + s(1)), Room::Coming);
    assert!(unread.seat.pace.lock().is_over);
}

#[test]
fn room_in_the_journal_comes_from_what_would_take_long() {
    let seats = Seats::new(false);
    let (short, long) = (awaited(&seats, Kind::Upload(1 << 20)), awaited(&seats, Kind::Upload(5 << 30)));
    // Faster than others have to be, and still hours from its end.
    long.seat.body_moves(FAST_BYTES * 10).unwrap();
    long.seat.body_is_awaited(Waker::noop()).unwrap();
    let (reader, document) = (unread(&seats), awaited(&seats, Kind::Document));
    let later = Instant::now() + RIPE + s(1);
    let given_up = |seated: &Seated| seated.seat.given_up().is_some() || seated.seat.pace.lock().is_over;
    for next in [&long, &short, &reader] {
        assert!(!given_up(next));
        assert_eq!(seats.make_room_by(Scarce::Journal, later), Room::Coming);
        assert!(given_up(next));
    }
    assert_eq!(seats.make_room_by(Scarce::Journal, later), Room::None);
    assert!(!given_up(&document));
}

#[test]
fn other_gateways_are_left_their_pace() {
    let seats = Seats::new(true);
    let seated = awaited(&seats, Kind::Upload(1 << 30));
    seats.look();
    assert_eq!(seats.make_room_by(Scarce::Slot, Instant::now() + s(1000)), Room::None);
    assert_eq!(seated.seat.given_up(), None);
}

#[test]
fn many_who_wait_for_the_journal_take_it_from_one_peer_at_a_time() {
    let seats = Seats::new(false);
    let slow: Vec<Seated> = (0..3).map(|_| awaited(&seats, Kind::Upload(1 << 20))).collect();
    let given_up = || slow.iter().filter(|seated| seated.seat.given_up().is_some()).count();
    let later = Instant::now() + RIPE + s(1);
    assert_eq!(seats.make_room_in_journal_by(later), Some(Room::Coming));
    for _ in 0..10 {
        assert_eq!(seats.make_room_in_journal_by(later + JOURNAL_PAUSE / 2), None);
    }
    assert_eq!(given_up(), 1);
    assert_eq!(seats.make_room_in_journal_by(later + JOURNAL_PAUSE), Some(Room::Coming));
    assert_eq!(given_up(), 2);
}
