//! The pages: rendered here, kept up to date by pieces that are rendered here too.

mod cell;
mod charts;
mod events;
mod faults;
mod frame;
mod host;
mod loads;
mod logs;
mod matrix;
mod run;
mod runs;
mod studies;
mod topology;
mod words;

use std::fmt;

use maud::Markup;

use crate::hub::Hub;
pub(crate) use cell::cell;
pub(crate) use faults::{FaultWords, fault_words};
pub(crate) use frame::{Frame, confirm, problem};
pub(crate) use host::host;
pub(crate) use logs::logs;
pub(crate) use run::{about_to_begin, appendix, run};
pub(crate) use runs::runs;
pub(crate) use studies::{check_result, editor, studies};
pub(crate) use words::{escaped, now_s};

/// What a page shows that changes: its pieces are drawn once for all who look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topic {
    Runs,
    Host,
    Run { name: String, span: Span },
    Log { name: String, file: String },
}

/// How much of a run's history charts show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    #[default]
    Minutes5,
    Minutes30,
    All,
}

impl Span {
    pub(crate) const ALL: [Span; 3] = [Span::Minutes5, Span::Minutes30, Span::All];

    pub(crate) fn of(text: &str) -> Option<Span> {
        Span::ALL.into_iter().find(|span| span.key() == text)
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            Span::Minutes5 => "5m",
            Span::Minutes30 => "30m",
            Span::All => "all",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Span::Minutes5 => "5 minutes",
            Span::Minutes30 => "30 minutes",
            Span::All => "whole run",
        }
    }

    pub(crate) fn seconds(self) -> f64 {
        match self {
            Span::Minutes5 => 300.0,
            Span::Minutes30 => 1800.0,
            Span::All => f64::INFINITY,
        }
    }
}

/// As addresses have it: `run/5m/NAME`. A name may hold slashes in no place but the last.
impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topic::Runs => f.write_str("runs"),
            Topic::Host => f.write_str("host"),
            Topic::Run { name, span } => write!(f, "run/{}/{name}", span.key()),
            Topic::Log { name, file } => write!(f, "log/{name}/{file}"),
        }
    }
}

impl Topic {
    pub(crate) fn parse(text: &str) -> Option<Topic> {
        match text.split_once('/') {
            None if text == "runs" => Some(Topic::Runs),
            None if text == "host" => Some(Topic::Host),
            Some(("run", rest)) => {
                let (span, name) = rest.split_once('/')?;
                Some(Topic::Run { span: Span::of(span)?, name: name.to_owned() })
            }
            Some(("log", rest)) => {
                let (name, file) = rest.split_once('/')?;
                Some(Topic::Log { name: name.to_owned(), file: file.to_owned() })
            }
            _ => None,
        }
    }
}

/// The pieces of a topic by the id of the element that each is the content of.
///
/// # Errors
/// When there is no such thing, in words.
pub(crate) fn fragments(hub: &Hub, topic: &Topic) -> Result<Vec<(String, Markup)>, String> {
    match topic {
        Topic::Runs => Ok(runs::fragments(hub)),
        Topic::Host => Ok(host::fragments(hub)),
        Topic::Run { name, span } => hub.with(name, |run| run::fragments(hub, run, *span)),
        Topic::Log { name, file } => logs::fragments(hub, name, file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_reads_back() {
        for topic in [
            Topic::Runs,
            Topic::Host,
            Topic::Run { name: "a b".to_owned(), span: Span::All },
            Topic::Log { name: "a".to_owned(), file: "scratch-0/x.log".to_owned() },
        ] {
            assert_eq!(Topic::parse(&topic.to_string()), Some(topic));
        }
        for wrong in ["", "run", "run/5m", "run/7m/a", "log/a", "other/a"] {
            assert_eq!(Topic::parse(wrong), None, "{wrong}");
        }
    }
}
