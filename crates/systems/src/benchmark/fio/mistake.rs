//! A mistake in a job file, with its place.

use std::ops::Range;

use super::job_file::JobOption;

/// A mistake in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMistake {
    /// Bytes of the job's text.
    pub span: Range<usize>,
    /// The mistake.
    pub message: String,
    /// The expected value there.
    pub expected: String,
}

impl JobMistake {
    pub(super) fn new(
        span: &Range<usize>,
        message: impl Into<String>,
        expected: impl Into<String>,
    ) -> JobMistake {
        JobMistake { span: span.clone(), message: message.into(), expected: expected.into() }
    }

    pub(super) fn from_setting(
        setting: &JobOption,
        problem: &str,
        expected: impl Into<String>,
    ) -> JobMistake {
        let message = match &setting.value {
            Some(value) => format!("fio's `{}={}` {problem}", setting.key, shortened(value)),
            None => format!("fio's `{}` {problem}", setting.key),
        };
        JobMistake::new(&setting.span, message, expected)
    }
}

pub(super) fn shortened(value: &str) -> String {
    match value.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}
