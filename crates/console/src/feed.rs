//! Reads a run's feed: [`FeedTail`] follows the file, `WatchedFeed` is what it comes to.

mod event;
mod history;
mod tail;
mod transitions;
mod watched;

pub(crate) use event::{EventKind, HistoryEvent};
pub(crate) use history::{MAX_STEP_S, RunHistory, SampleMoment};
pub(crate) use tail::FeedTail;
pub(crate) use transitions::bare;
pub(crate) use watched::{CellView, WatchedFeed};
