//! One thread for what no connection's own thread can do while it waits for its host: sending on where room has come,
//! and ending what has been silent for too long.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::TargetShared;

/// How often silence is looked for, in nanoseconds.
const INTERVAL_NS: i64 = 50_000_000;
const EVENTS_AT_ONCE: usize = 64;
/// No connection has this number.
const STOP: u64 = u64::MAX;

pub(super) struct TargetHousekeeper {
    epoll: OwnedFd,
    stop: OwnedFd,
}

impl TargetHousekeeper {
    pub(super) fn new() -> io::Result<TargetHousekeeper> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        Ok(TargetHousekeeper { epoll, stop })
    }

    /// Sends what a connection owes once its socket has room.
    pub(super) fn await_room(&self, number: u64, descriptor: BorrowedFd<'_>) {
        let data = epoll::EventData::new_u64(number);
        // One-shot: a socket mostly has room, and would otherwise wake this thread without end.
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        if epoll::modify(&self.epoll, descriptor, data, flags).is_err() {
            // Not known yet. A socket leaves by itself when it is closed.
            let _ = epoll::add(&self.epoll, descriptor, data, flags);
        }
    }

    pub(super) fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    pub(super) fn run(&self, shared: &Arc<TargetShared>) {
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let interval = Timespec { tv_sec: 0, tv_nsec: INTERVAL_NS };
        while !shared.is_stopping.load(Ordering::SeqCst) {
            events.clear();
            if underlay_sync::simulation::current().is_some() {
                // Streams of a simulation always have room, and their time is not the kernel's.
                underlay_sync::thread::sleep(Duration::from_nanos(INTERVAL_NS as u64));
            } else {
                // An interrupted wait is a short one.
                let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&interval));
            }
            for event in &events {
                // By number: the connection may have ended since, and `STOP` finds none.
                if let Some(queue) = shared.connection(event.data.u64()) {
                    queue.send(false);
                }
            }
            end_silent(shared);
        }
    }
}

fn end_silent(shared: &TargetShared) {
    for queue in shared.connections() {
        let association = queue.association();
        let is_discovery = association.is_some_and(|association| association.controller.is_discovery());
        // A host has to connect and authenticate soon, unless it only asks for the list of subsystems.
        if !is_discovery && !queue.is_admitted.load(Ordering::Relaxed) {
            if queue.began.elapsed() > shared.config.handshake_timeout {
                queue.kill();
            }
        } else if let Some(association) = association
            && association.queue_id == 0
            && association.controller.is_silent()
        {
            association.controller.end();
        }
    }
}
