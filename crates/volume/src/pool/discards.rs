//! Which slabs members may forget, and how many requests tell them so.

use std::collections::VecDeque;
use std::ops::Range;

use underlay_sync::Mutex;

use super::extent::Slab;

#[derive(Default)]
pub(super) struct DiscardQueue {
    pub state: Mutex<DiscardState>,
}

#[derive(Default)]
pub(super) struct DiscardState {
    pub waiting: VecDeque<Range<Slab>>,
    /// Each does one after the other.
    pub lanes: usize,
}
