//! What was drawn a moment ago, for all who look at the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_sync::UnsimulatedMutex;

use crate::hub::Hub;
use crate::page::{self, Topic};

/// What was drawn is shown again for so long.
const FRESH: Duration = Duration::from_millis(900);
/// Topics that are kept.
const MAX_DRAWN: usize = 64;

/// Pieces of a page by the id of the element that they are the content of.
pub(crate) type Fragments = Arc<Vec<(String, Arc<str>)>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Drawn(UnsimulatedMutex<HashMap<String, (Instant, Fragments)>>);

impl Drawn {
    /// A topic's pieces, drawn now or a moment ago.
    ///
    /// # Errors
    /// When there is nothing to draw, in words.
    pub(crate) fn fragments(&self, hub: &Hub, topic: &Topic) -> Result<Fragments, String> {
        let key = topic.to_string();
        if let Some((at, fragments)) = self.0.lock().get(&key)
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(fragments));
        }
        let pieces = page::fragments(hub, topic)?;
        let fragments: Fragments =
            Arc::new(pieces.into_iter().map(|(id, markup)| (id, markup.into_string().into())).collect());
        let mut drawn = self.0.lock();
        if drawn.len() >= MAX_DRAWN {
            drawn.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        // Of more topics at once, each is drawn for itself.
        if drawn.len() < MAX_DRAWN {
            drawn.insert(key, (Instant::now(), Arc::clone(&fragments)));
        }
        Ok(fragments)
    }
}
