//! Whose a store is. One that this gateway believes to be its own alone may have been taken over by several that share
//! it: they say so in the store, and here it is looked for, at the start and now and then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BucketState, GatewayEngine};
use crate::config::StoreConsistency;
use crate::errors::{GatewayError, GatewayResult};
use crate::store::{OWNERS, StoreBackend};

/// Nothing is flushed by a look that is older.
const GOOD_FOR: Duration = Duration::from_secs(30);
/// A store that does not answer at the start is asked again; nothing is flushed to it before that.
const RETRY_DELAY: Duration = Duration::from_secs(5);

const OWNERS_LOOK: &str = "look at whose stores are";

/// A store's last answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreOwner {
    pub(crate) at: Option<Instant>,
    is_theirs: bool,
}

impl BucketState {
    fn theirs(&self) -> String {
        format!(
            "the store of bucket {} belongs to several gateways, as its object {OWNERS} says, and the configuration of this one has no [cluster]\n  what to do: see docs/gateway-cluster.md",
            self.name
        )
    }

    /// # Errors
    /// `Busy` once others are known to have the store.
    pub(super) fn check_ours(&self) -> GatewayResult<()> {
        match self.looked.lock().is_theirs {
            true => Err(GatewayError::Busy(
                "the store of this bucket belongs to several gateways by now, and this is none of them"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}

impl GatewayEngine {
    /// Whether others could have the store without our knowing.
    fn has_to_look(&self, state: &BucketState) -> bool {
        let is_exclusive =
            state.rules.iter().any(|rule| rule.rule.consistency == StoreConsistency::Exclusive);
        is_exclusive && self.setup.sharing.is_none() && self.setup.alone.is_none()
    }

    async fn look_whose(&self, state: &BucketState, backend: &StoreBackend) -> GatewayResult<()> {
        let asked = Instant::now();
        let marker = backend.marker().await?;
        {
            let mut looked = state.looked.lock();
            looked.at = Some(asked);
            // Their writes meanwhile are unknown here, so they stay the owners until the next start.
            if marker.is_none() || std::mem::replace(&mut looked.is_theirs, true) {
                drop(looked);
                return state.check_ours();
            }
        }
        tracing::error!("{}", state.theirs());
        state.check_ours()
    }

    /// To be asked before the store is changed.
    ///
    /// # Errors
    /// When it is not ours, or does not say whose it is.
    pub(super) async fn check_whose(&self, state: &BucketState) -> GatewayResult<()> {
        self.check_whose_at(state, &state.backend).await
    }

    /// The same, asked of a backend that the bucket is to have.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn check_whose_at(
        &self,
        state: &BucketState,
        backend: &StoreBackend,
    ) -> GatewayResult<()> {
        let is_known = state.looked.lock().at.is_some_and(|checked_at| checked_at.elapsed() < GOOD_FOR);
        match is_known || !self.has_to_look(state) {
            true => state.check_ours(),
            false => self.look_whose(state, backend).await,
        }
    }

    /// At the start. A store that does not answer keeps nobody from what the cache and the journal have.
    ///
    /// # Errors
    /// When a store is others'.
    pub(super) async fn check_stores(&self) -> std::result::Result<(), String> {
        for state in self.bucket_states() {
            let looked = tokio::time::timeout(RETRY_DELAY, self.check_whose(&state)).await;
            if state.check_ours().is_err() {
                return Err(state.theirs());
            }
            if !matches!(looked, Ok(Ok(()))) {
                tracing::warn!(
                    "the store of bucket {} does not answer: nothing is stored there before it has said whose it is",
                    state.name
                );
            }
        }
        Ok(())
    }

    /// Looks at every store once more.
    pub(crate) async fn look_out(&self) {
        for state in self.bucket_states().iter().filter(|state| self.has_to_look(state)) {
            let looking = self.look_whose(state, &state.backend);
            // A panic is in the log already, and the next look may succeed.
            if let Ok(Err(error)) = self.supervisor.attempt(OWNERS_LOOK, &state.name, looking).await {
                tracing::debug!("bucket {}: {error}", state.name);
            }
        }
    }

    /// Looks now and then, for as long as the engine lives: also one to which nobody writes must not go on reading.
    pub(super) fn start_looking_out(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.supervisor.run(OWNERS_LOOK, move || {
            let engine = engine.clone();
            async move {
                loop {
                    tokio::time::sleep(GOOD_FOR).await;
                    let Some(engine) = engine.upgrade() else { return };
                    engine.look_out().await;
                }
            }
        });
    }
}
