//! What a run writes while it goes on, read: [`Tail`] follows the file, `Watched` is what it comes to.

mod event;
mod history;
mod tail;
mod turns;
mod watched;

pub(crate) use event::{Event, EventKind};
pub(crate) use history::{History, MAX_STEP_S, Moment};
pub(crate) use tail::Tail;
pub(crate) use turns::bare;
pub(crate) use watched::{CellView, Watched};
