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

use crate::hub::ConsoleHub;
pub(crate) use cell::cell;
pub(crate) use faults::{FaultWords, fault_words};
pub(crate) use frame::{PageFrame, confirm, problem};
pub(crate) use host::host;
pub(crate) use logs::{logs, logs_as_json};
pub(crate) use run::{about_to_begin, appendix, run};
pub(crate) use runs::runs;
pub(crate) use studies::{check_result, editor, studies, study_files};
pub(crate) use words::{escaped, now_s};

/// The changing part of a page: its pieces are drawn once for all viewers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageTopic {
    Runs,
    Host,
    Run { name: String, span: ChartSpan },
    Log { name: String, file: String },
}

/// How much of a run's history charts show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ChartSpan {
    #[default]
    Minutes5,
    Minutes30,
    All,
}

impl ChartSpan {
    pub(crate) const ALL: [ChartSpan; 3] = [ChartSpan::Minutes5, ChartSpan::Minutes30, ChartSpan::All];

    pub(crate) fn parse(text: &str) -> Option<ChartSpan> {
        ChartSpan::ALL.into_iter().find(|span| span.key() == text)
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            ChartSpan::Minutes5 => "5m",
            ChartSpan::Minutes30 => "30m",
            ChartSpan::All => "all",
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            ChartSpan::Minutes5 => "5 minutes",
            ChartSpan::Minutes30 => "30 minutes",
            ChartSpan::All => "whole run",
        }
    }

    pub(crate) fn seconds(self) -> f64 {
        match self {
            ChartSpan::Minutes5 => 300.0,
            ChartSpan::Minutes30 => 1800.0,
            ChartSpan::All => f64::INFINITY,
        }
    }
}

/// As addresses have it: `run/5m/NAME`. A name may hold slashes in no place but the last.
impl fmt::Display for PageTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageTopic::Runs => f.write_str("runs"),
            PageTopic::Host => f.write_str("host"),
            PageTopic::Run { name, span } => write!(f, "run/{}/{name}", span.key()),
            PageTopic::Log { name, file } => write!(f, "log/{name}/{file}"),
        }
    }
}

impl PageTopic {
    pub(crate) fn parse(text: &str) -> Option<PageTopic> {
        match text.split_once('/') {
            None if text == "runs" => Some(PageTopic::Runs),
            None if text == "host" => Some(PageTopic::Host),
            Some(("run", rest)) => {
                let (span, name) = rest.split_once('/')?;
                Some(PageTopic::Run { span: ChartSpan::parse(span)?, name: name.to_owned() })
            }
            Some(("log", rest)) => {
                let (name, file) = rest.split_once('/')?;
                Some(PageTopic::Log { name: name.to_owned(), file: file.to_owned() })
            }
            _ => None,
        }
    }
}

/// The pieces of a topic by the id of the element that each is the content of.
///
/// # Errors
/// When there is no such thing, in words.
pub(crate) fn fragments(hub: &ConsoleHub, topic: &PageTopic) -> Result<Vec<(String, Markup)>, String> {
    match topic {
        PageTopic::Runs => Ok(runs::fragments(hub)),
        PageTopic::Host => Ok(host::fragments(hub)),
        PageTopic::Run { name, span } => hub.with(name, |run| run::fragments(hub, run, *span)),
        PageTopic::Log { name, file } => logs::fragments(hub, name, file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_reads_back() {
        for topic in [
            PageTopic::Runs,
            PageTopic::Host,
            PageTopic::Run { name: "a b".to_owned(), span: ChartSpan::All },
            PageTopic::Log { name: "a".to_owned(), file: "scratch-0/x.log".to_owned() },
        ] {
            assert_eq!(PageTopic::parse(&topic.to_string()), Some(topic));
        }
        for wrong in ["", "run", "run/5m", "run/7m/a", "log/a", "other/a"] {
            assert_eq!(PageTopic::parse(wrong), None, "{wrong}");
        }
    }
}
