//! The gateways' log, between other events. It is no part of the trace: it names paths, which differ from run to run.

use std::fmt::Write as _;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::world::SimulatedWorld;

struct ToNotes(SimulatedWorld);

struct LogText(String);

impl Visit for LogText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let name = field.name();
        let _ = match name {
            "message" => write!(self.0, " {value:?}"),
            _ => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber> Layer<S> for ToNotes {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = LogText(format!("log: {}", event.metadata().level()));
        event.record(&mut text);
        self.0.remark(text.0);
    }
}

/// For as long as what is returned lives, this thread's log goes to the notes of the world.
pub(crate) fn note_log(world: &SimulatedWorld) -> tracing::subscriber::DefaultGuard {
    let filter = tracing_subscriber::filter::Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("underlay_gateway", LevelFilter::DEBUG)
        .with_target("s3s", LevelFilter::OFF);
    let layer = ToNotes(world.clone()).with_filter(filter);
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}
