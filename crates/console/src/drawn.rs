//! Recently drawn pieces, for all viewers of the same page.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use maud::Markup;
use underlay_sync::UnsimulatedMutex;

use crate::hub::ConsoleHub;
use crate::page::{self, PageTopic};

/// A drawn piece is shown again for so long.
const FRESH: Duration = Duration::from_millis(900);
/// Topics that are kept, beside those that are being drawn.
const MAX_DRAWN: usize = 64;

/// A piece of a page, ready to be sent: all who look share one copy of it.
pub(crate) struct PagePiece {
    /// Of the element that it is the content of.
    pub id: String,
    /// Tells it from what the element held before.
    pub hash: u64,
    /// `"id":"its HTML"`, as JSON has it.
    pub json: Bytes,
}

impl PagePiece {
    fn new(id: String, html: &str) -> PagePiece {
        let mut hasher = DefaultHasher::new();
        html.hash(&mut hasher);
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let json = format!("{}:{}", text(&id), text(html)).into();
        PagePiece { hash: hasher.finish(), json, id }
    }
}

pub(crate) type PageFragments = Arc<Vec<PagePiece>>;

/// A topic's drawn pieces.
#[derive(Default)]
struct DrawnTopic {
    last: UnsimulatedMutex<Option<(Instant, PageFragments)>>,
    /// Held by the thread that draws it.
    drawing: UnsimulatedMutex<()>,
    is_drawn: AtomicBool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct DrawnPages(UnsimulatedMutex<HashMap<String, Arc<DrawnTopic>>>);

impl DrawnPages {
    /// A topic's pieces, drawn now or a moment ago.
    ///
    /// # Errors
    /// When there is nothing to draw, in words.
    pub(crate) fn fragments(&self, hub: &ConsoleHub, topic: &PageTopic) -> Result<PageFragments, String> {
        self.kept(&topic.to_string(), || page::fragments(hub, topic))
    }

    fn kept(
        &self,
        topic: &str,
        draw: impl FnOnce() -> Result<Vec<(String, Markup)>, String>,
    ) -> Result<PageFragments, String> {
        let drawn_topic = {
            let mut all = self.0.lock();
            if all.len() >= MAX_DRAWN && !all.contains_key(topic) {
                // Those that nobody looks at now.
                all.retain(|_, drawn_topic| Arc::strong_count(drawn_topic) > 1);
            }
            Arc::clone(all.entry(topic.to_owned()).or_default())
        };
        // Where somebody draws it, what was there before will do: drawing may take long, and nobody else is to be kept.
        if let Some(known_pieces) = drawn_topic.known(drawn_topic.is_drawn.load(Ordering::SeqCst)) {
            return Ok(known_pieces);
        }
        let _turn = drawn_topic.drawing.lock();
        if let Some(known_pieces) = drawn_topic.known(false) {
            return Ok(known_pieces);
        }
        drawn_topic.is_drawn.store(true, Ordering::SeqCst);
        let _lowered = LoweredOnDrop(&drawn_topic.is_drawn);
        let pieces = draw()?;
        let fragments: PageFragments = Arc::new(
            pieces.into_iter().map(|(id, markup)| PagePiece::new(id, &markup.into_string())).collect(),
        );
        *drawn_topic.last.lock() = Some((Instant::now(), Arc::clone(&fragments)));
        Ok(fragments)
    }
}

impl DrawnTopic {
    fn known(&self, however_old: bool) -> Option<PageFragments> {
        let last = self.last.lock();
        last.as_ref()
            .filter(|(instant, _)| however_old || instant.elapsed() < FRESH)
            .map(|(_, fragments)| Arc::clone(fragments))
    }
}

/// Also where drawing panics.
struct LoweredOnDrop<'a>(&'a AtomicBool);

impl Drop for LoweredOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use maud::html;

    use super::*;

    #[test]
    fn concurrent_viewers_share_one_drawing() {
        let (drawn, count) = (DrawnPages::default(), AtomicUsize::new(0));
        let draw = || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(vec![("a".to_owned(), html! { "<b>\n" })])
        };
        std::thread::scope(|scope| {
            let looking: Vec<_> = (0..20).map(|_| scope.spawn(|| drawn.kept("run", draw))).collect();
            for one in looking {
                let found = one.join().unwrap().unwrap();
                assert_eq!(found[0].json, r#""a":"&lt;b&gt;\n""#.as_bytes());
            }
        });
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(drawn.kept("other", || Err("there is none".to_owned())).is_err());
    }

    #[test]
    fn unwatched_topics_are_forgotten_when_full() {
        let drawn = DrawnPages::default();
        for topic in 0..3 * MAX_DRAWN {
            drawn.kept(&topic.to_string(), || Ok(Vec::new())).unwrap();
        }
        assert!(drawn.0.lock().len() <= MAX_DRAWN);
    }
}
