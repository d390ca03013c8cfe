//! A member's own tasks: one holds the lease, the other one changes slots.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::control::ClusterControl;
use super::{BROKEN, LEAVE_PAUSE, MemberRefusal, MemberShared};
use crate::ownership::boot_ms;

/// A part of the lease that is not made use of: clocks do not run at the same speed.
const MARGIN: u32 = 5;
/// A member whose slots nobody has seen to for so long hangs, with its disk as a rule: others are to have what they
/// can. Etcd that does not answer takes a part of a lease at a time.
const MAX_ROUND_TIME: Duration = Duration::from_secs(120);
const HANGS: &str = "a change of slots has taken over two minutes, as when the local disk hangs: this gateway has left the cluster until the change goes on";

impl MemberShared {
    /// It would be wrong to go on: nothing is served, and the lease ends. Whether that is still so, every attempt to
    /// get another one finds out.
    pub(super) fn give_up(&self) {
        *self.lease.lock() = None;
        self.ownership.let_go();
    }

    /// The lease lasts from when etcd was asked, or later; we make use of a part of it.
    pub(super) fn hold_from(&self, asked_ms: u64, ttl: Duration) {
        let used = ttl - ttl / MARGIN;
        self.ownership.hold_until(asked_ms + u64::try_from(used.as_millis()).unwrap_or(0));
    }

    /// Renews the lease, and gets another one when it is gone.
    pub(super) async fn hold(self: Arc<Self>) {
        let mut last_logged = String::new();
        let mut say = |reason: String| {
            if last_logged != reason {
                tracing::warn!("{reason}");
                last_logged = reason;
            }
        };
        while !self.has_left.load(Ordering::Acquire) {
            tokio::time::sleep(self.tick).await;
            if self.has_left.load(Ordering::Acquire) {
                return;
            }
            let hangs = self.came_round.lock().elapsed() > MAX_ROUND_TIME;
            if hangs || self.engine.takes_no_more() {
                let lease = self.lease.lock().take();
                self.ownership.let_go();
                if let Some(lease) = lease {
                    // Without that it ends by itself.
                    let _ = self.etcd.revoke(lease).await;
                }
                say(if self.engine.takes_no_more() { BROKEN } else { HANGS }.to_owned());
                continue;
            }
            let lease = *self.lease.lock();
            let Some(lease) = lease else {
                match self.register().await {
                    Ok(()) => say("in the cluster again".to_owned()),
                    Err(MemberRefusal::Wrong(reason) | MemberRefusal::NotYet(reason)) => {
                        say(format!("not in the cluster: {reason}"))
                    }
                }
                continue;
            };
            let asked_ms = boot_ms();
            match self.etcd.keep_alive(lease).await {
                Ok(Some(ttl)) => {
                    // One that was given up meanwhile by `leave` must not come back.
                    let current = self.lease.lock();
                    if *current == Some(lease) {
                        self.hold_from(asked_ms, ttl);
                    }
                }
                Ok(None) => {
                    // In this order: what `control` has looked at under it is not gone by any more.
                    *self.lease.lock() = None;
                    self.ownership.let_go();
                    say("the lease is gone: nothing is served before there is another one".to_owned());
                }
                Err(error) => say(error.to_string()),
            }
        }
    }

    pub(super) async fn control(self: Arc<Self>) {
        let mut control = ClusterControl::new(Arc::clone(&self));
        let mut last_logged = String::new();
        while !self.has_left.load(Ordering::Acquire) {
            let outcome = tokio::select! {
                () = self.ownership.asked() => control.mark_dirty_or_look().await,
                () = self.leaving.notified() => {
                    control.is_leaving = true;
                    control.pass().await
                }
                () = self.poked.notified() => control.pass().await,
                () = tokio::time::sleep(if control.is_leaving { LEAVE_PAUSE } else { self.tick }) => control.pass().await,
            };
            *self.came_round.lock() = Instant::now();
            if control.is_leaving && outcome.is_ok() && control.is_rid_of_all() {
                self.has_left.store(true, Ordering::Release);
            }
            let has_only_uploads = control.is_leaving && outcome.is_ok() && control.has_only_uploads();
            self.has_only_uploads.store(has_only_uploads, Ordering::Release);
            if let Err(reason) = outcome
                && last_logged != reason
            {
                tracing::warn!("the cluster: {reason}");
                last_logged = reason;
            }
        }
    }
}
