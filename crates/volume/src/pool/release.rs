//! Discards for what nobody needs: neighbours together, and a few at a time.
//!
//! A volume that is deleted leaves millions of slabs. A request for each, all at once, would take more memory than the
//! map of the volume, and members would do nothing else meanwhile.

use std::ops::Range;
use std::sync::Arc;

use underlay_storage::layers::join::{NextStep, repeat};

use super::core::PoolCore;
use super::extent::{ReleasedSpace, Slab, first_unit};

/// Discards in flight at most, over all members.
const MAX_UNDER_WAY: usize = 16;
/// 1 GiB by one request at most: a longer one would hold up a member.
const MAX_SLABS: u32 = 4096;

impl PoolCore {
    /// Gives back what no map of the journal points to.
    pub(super) fn release(self: &Arc<Self>, pieces: impl IntoIterator<Item = ReleasedSpace>) {
        let mut slabs: Vec<Slab> = pieces.into_iter().filter_map(|piece| self.space.release(piece)).collect();
        if slabs.is_empty() {
            return;
        }
        slabs.sort_unstable();
        let lanes = {
            let mut state = self.discards.state.lock();
            for slab in slabs {
                match state.waiting.back_mut() {
                    Some(last) if self.continues(last, slab) => last.end += 1,
                    _ => state.waiting.push_back(slab..slab + 1),
                }
            }
            let more = state.waiting.len().min(MAX_UNDER_WAY - state.lanes);
            state.lanes += more;
            more
        };
        for _ in 0..lanes {
            let core = Arc::clone(self);
            // A loop, so that the stack does not grow where devices answer at once.
            repeat(move |next| core.discard_next(next));
        }
    }

    fn continues(&self, slabs: &Range<Slab>, slab: Slab) -> bool {
        slabs.end == slab
            && slabs.end - slabs.start < MAX_SLABS
            && self.members.index_of(first_unit(slabs.start)) == self.members.index_of(first_unit(slab))
    }

    fn discard_next(self: &Arc<Self>, next: NextStep) {
        let slabs = {
            let mut state = self.discards.state.lock();
            let Some(slabs) = state.waiting.pop_front() else {
                state.lanes -= 1;
                return;
            };
            slabs
        };
        let core = Arc::clone(self);
        let own = slabs.clone();
        // A slab is nobody's until the member has forgotten it, or the discard could hit its next owner.
        self.members.discard(&slabs, move || {
            own.flat_map(|slab| core.space.free(slab)).for_each(|job| job());
            next.resume();
        });
    }
}
