//! Going on with a controller that was found again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use underlay_sync::Instant;

use super::device::NamespaceInfo;
use super::{ConnectionPhase, ConnectionState, ControllerShared};
use crate::command::nvm;
use crate::initiator::association::HostAssociation;
use crate::initiator::error::InitiatorError;
use crate::initiator::exchange::{CommandAnswer, CommandExchange, LostAnswer};
use crate::initiator::repetition::{REPEAT_LIMIT, RetryBackoff, repeat};

impl ControllerShared {
    /// One attempt. Before anything else, it repeats writes that no flush had covered, and then every write that had no
    /// answer when the connection was lost.
    pub(super) fn resume(self: &Arc<ControllerShared>, number: u64) -> Result<(), InitiatorError> {
        let association = self.establish(number)?;
        let orphans = self.lock().orphans.len() as u64;
        let patience = RetryBackoff { interval: self.keep_alive_interval() };
        let outcome = self.renew_namespaces(&association, &patience).and_then(|repeated| match repeated {
            0 => Ok(()),
            _ => self.send_unanswered_writes(&association, &patience),
        });
        if let Err(error) = outcome {
            association.close();
            association.join();
            return Err(error);
        }
        let counters = &self.stats.counters;
        counters.reconnects.fetch_add(1, Ordering::Relaxed);
        counters.resent.fetch_add(orphans, Ordering::Relaxed);
        // From here on others can send. Earlier, a repeated write could overwrite a newer one.
        self.install(association);
        let mut state = self.lock();
        if state.phase == ConnectionPhase::Reconnecting {
            state.phase = ConnectionPhase::Connected;
        }
        Ok(())
    }

    /// How many kept writes were repeated.
    fn renew_namespaces(
        &self,
        association: &HostAssociation,
        patience: &RetryBackoff,
    ) -> Result<usize, InitiatorError> {
        let mut repeated = 0;
        let namespaces: Vec<Arc<NamespaceInfo>> =
            self.lock_namespaces().values().filter_map(Weak::upgrade).collect();
        for namespace in namespaces {
            let (data, identity) = self.identify_namespace(association, namespace.nsid)?;
            namespace.renew(&data, &identity)?;
            let is_new = namespace.was_answered() || association.last_writer != self.first_found_writer();
            if association.last_writer != 0 && is_new && namespace.has_written() {
                return Err(InitiatorError::WrittenByAnother { nsid: namespace.nsid });
            }
            repeated += repeat(association, &namespace, patience)?;
        }
        Ok(repeated)
    }

    /// Sends each write that had no answer, and waits until it has one.
    ///
    /// The target may have carried it out on the lost connection, and a read may have found it. Writes repeated since
    /// are older: where the two overlap, the next read would find the older one again, if it came before the write
    /// does.
    fn send_unanswered_writes(
        self: &Arc<ControllerShared>,
        association: &HostAssociation,
        patience: &RetryBackoff,
    ) -> Result<(), InitiatorError> {
        const WHAT: &str = "resending unanswered commands";
        let lost = || InitiatorError::Lost { what: WHAT, reason: "it ended again".into() };
        let writes = self.lock().take_unanswered_writes();
        let unanswered = Arc::new(AtomicUsize::new(writes.len()));
        let mut due: Vec<CommandExchange> =
            writes.into_iter().map(|write| self.count_answer(write, &unanswered)).collect();
        let deadline = Instant::now() + REPEAT_LIMIT;
        let mut keep_alive_at = Instant::now() + patience.slice(REPEAT_LIMIT);
        loop {
            for write in std::mem::take(&mut due) {
                if let Err(write) = association.pick().submit(write) {
                    // It goes out with the next connection.
                    self.lock().orphans.push(*write);
                }
            }
            let mut state = self.lock();
            let has_ended = state.ended.as_ref().is_some_and(|(number, _)| *number == association.number);
            if has_ended || state.phase == ConnectionPhase::Closed {
                return Err(lost());
            }
            if unanswered.load(Ordering::SeqCst) == 0 {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(InitiatorError::TimedOut { what: WHAT });
            }
            // The target has not carried out a command that it wants to get again. On the lost connection it may have.
            let next;
            (due, next) = state.take_due_writes(now);
            if due.is_empty() && now < keep_alive_at {
                let wakeup = next.into_iter().chain([keep_alive_at, deadline]).min().unwrap_or(deadline);
                drop(self.changed.wait_timeout(state, wakeup.saturating_duration_since(now)));
            } else if now >= keep_alive_at {
                drop(state);
                patience.keep_alive(association);
                keep_alive_at = now + patience.slice(REPEAT_LIMIT);
            }
        }
    }

    fn count_answer(
        self: &Arc<ControllerShared>,
        write: CommandExchange,
        unanswered: &Arc<AtomicUsize>,
    ) -> CommandExchange {
        let (shared, unanswered) = (Arc::downgrade(self), Arc::clone(unanswered));
        let CommandExchange { done, .. } = write;
        let answered = move |outcome: Result<CommandAnswer, LostAnswer>| {
            done(outcome);
            let shared = shared.upgrade();
            // Under the lock: the waiting thread can't read the old count and then miss the notification.
            let state = shared.as_ref().map(|shared| shared.lock());
            unanswered.fetch_sub(1, Ordering::SeqCst);
            drop(state);
            if let Some(shared) = &shared {
                shared.changed.notify_all();
            }
        };
        CommandExchange { done: Box::new(answered), ..write }
    }
}

impl ConnectionState {
    fn take_unanswered_writes(&mut self) -> Vec<CommandExchange> {
        let (writes, others) = std::mem::take(&mut self.orphans).into_iter().partition(is_write);
        self.orphans = others;
        let (refused, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.retries).into_iter().partition(|(_, exchange)| is_write(exchange));
        self.retries = others;
        let mut all: Vec<CommandExchange> = writes;
        all.extend(refused.into_iter().map(|(_, exchange)| exchange));
        all
    }

    /// Writes to be sent again by now, and when the next one is due.
    fn take_due_writes(&mut self, now: Instant) -> (Vec<CommandExchange>, Option<Instant>) {
        let is_due = |(instant, exchange): &(Instant, CommandExchange)| *instant <= now && is_write(exchange);
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retries).into_iter().partition(is_due);
        self.retries = later;
        let next =
            self.retries.iter().filter(|(_, exchange)| is_write(exchange)).map(|(instant, _)| *instant).min();
        (due.into_iter().map(|(_, exchange)| exchange).collect(), next)
    }
}

fn is_write(exchange: &CommandExchange) -> bool {
    matches!(exchange.command.opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT)
}
