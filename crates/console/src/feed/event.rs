//! Something that happened in a run, and what it is about.

/// An event's subject, for filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EventKind {
    Run,
    Cell,
    Node,
    Device,
    System,
    Notice,
}

impl EventKind {
    pub(crate) const ALL: [EventKind; 6] = [
        EventKind::Run,
        EventKind::Cell,
        EventKind::Node,
        EventKind::Device,
        EventKind::System,
        EventKind::Notice,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            EventKind::Run => "run",
            EventKind::Cell => "cell",
            EventKind::Node => "node",
            EventKind::Device => "device",
            EventKind::System => "system",
            EventKind::Notice => "notice",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct HistoryEvent {
    pub at_s: f64,
    pub kind: EventKind,
    /// The cell that ran.
    pub position: Option<u32>,
    pub what: String,
    pub is_bad: bool,
}
