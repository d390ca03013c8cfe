//! Going on with a controller that was found again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use underlay_sync::Instant;

use super::{Phase, Shared, State};
use crate::command::nvm;
use crate::initiator::association::Association;
use crate::initiator::device::Namespace;
use crate::initiator::error::InitiatorError;
use crate::initiator::exchange::{Answer, Exchange, Lost};
use crate::initiator::repetition::{REPEAT_LIMIT, repeat};

impl Shared {
    /// One attempt. What no flush had covered is done again before anything else is sent, and then every write that had no
    /// answer when the connection was lost.
    pub(super) fn resume(self: &Arc<Shared>, number: u64) -> Result<(), InitiatorError> {
        let association = self.establish(number)?;
        let orphans = self.lock().orphans.len() as u64;
        let outcome = self.renew_namespaces(&association).and_then(|repeated| match repeated {
            0 => Ok(()),
            _ => self.send_unanswered_writes(&association),
        });
        if let Err(error) = outcome {
            association.close();
            association.join();
            return Err(error);
        }
        let counters = &self.stats.counters;
        counters.reconnects.fetch_add(1, Ordering::Relaxed);
        counters.resent.fetch_add(orphans, Ordering::Relaxed);
        self.install(association);
        let mut state = self.lock();
        if state.phase == Phase::Reconnecting {
            state.phase = Phase::Connected;
        }
        Ok(())
    }

    /// How many kept writes were repeated.
    fn renew_namespaces(&self, association: &Association) -> Result<usize, InitiatorError> {
        let mut repeated = 0;
        let namespaces: Vec<Arc<Namespace>> =
            self.lock_namespaces().values().filter_map(Weak::upgrade).collect();
        for namespace in namespaces {
            let (data, identity) = self.identify_namespace(association, namespace.nsid)?;
            namespace.renew(&data, &identity)?;
            let is_new = namespace.was_answered() || association.last_writer != self.first_found_writer();
            if association.last_writer != 0 && is_new && namespace.has_written() {
                return Err(InitiatorError::WrittenByAnother { nsid: namespace.nsid });
            }
            repeated += repeat(association, &namespace)?;
        }
        Ok(repeated)
    }

    /// Sends each write that had no answer, and waits until it has one.
    ///
    /// The target may have carried it out on the lost connection, and a read may have found it. What was repeated since is
    /// older: where the two overlap, the next read would find the older one again, if it came before the write does.
    fn send_unanswered_writes(self: &Arc<Shared>, association: &Association) -> Result<(), InitiatorError> {
        const WHAT: &str = "sending again what was not answered";
        let lost = || InitiatorError::Lost { what: WHAT, reason: "it ended again".into() };
        let writes = self.lock().take_unanswered_writes();
        let unanswered = Arc::new(AtomicUsize::new(writes.len()));
        let mut is_sent = true;
        for write in writes {
            let counted = self.count_answer(write, &unanswered);
            if let Err(exchange) = association.pick().submit(counted) {
                // One that has not gone out now goes out with the next connection.
                self.lock().orphans.push(*exchange);
                is_sent = false;
            }
        }
        let deadline = Instant::now() + REPEAT_LIMIT;
        let mut state = self.lock();
        loop {
            let has_ended = state.ended.as_ref().is_some_and(|(number, _)| *number == association.number);
            if !is_sent || has_ended || state.phase == Phase::Closed {
                return Err(lost());
            }
            // The target has not carried out what it wants to be asked again.
            let refused = state.retries.iter().filter(|(_, exchange)| is_write(exchange)).count();
            if unanswered.load(Ordering::SeqCst) <= refused {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(InitiatorError::TimedOut { what: WHAT });
            }
            state = self.changed.wait_timeout(state, left);
        }
    }

    fn count_answer(self: &Arc<Shared>, write: Exchange, unanswered: &Arc<AtomicUsize>) -> Exchange {
        let (shared, unanswered) = (Arc::downgrade(self), Arc::clone(unanswered));
        let Exchange { done, .. } = write;
        let answered = move |outcome: Result<Answer, Lost>| {
            done(outcome);
            let shared = shared.upgrade();
            // Under the lock: who waits has not seen the old count after this.
            let state = shared.as_ref().map(|shared| shared.lock());
            unanswered.fetch_sub(1, Ordering::SeqCst);
            drop(state);
            if let Some(shared) = &shared {
                shared.changed.notify_all();
            }
        };
        Exchange { done: Box::new(answered), ..write }
    }
}

impl State {
    fn take_unanswered_writes(&mut self) -> Vec<Exchange> {
        let (writes, others) = std::mem::take(&mut self.orphans).into_iter().partition(is_write);
        self.orphans = others;
        let (refused, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.retries).into_iter().partition(|(_, exchange)| is_write(exchange));
        self.retries = others;
        let mut all: Vec<Exchange> = writes;
        all.extend(refused.into_iter().map(|(_, exchange)| exchange));
        all
    }
}

fn is_write(exchange: &Exchange) -> bool {
    matches!(exchange.command.opcode, nvm::WRITE | nvm::WRITE_ZEROES | nvm::DATASET_MANAGEMENT)
}
