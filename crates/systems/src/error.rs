//! Errors of data systems, in words for the user of a study.

#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A mistake in the settings, for the user to fix.
    #[error("{system}: setting '{key}': {problem}")]
    Setting { system: &'static str, key: String, problem: String },
    /// This host lacks something that the system needs.
    #[error("{system} needs {missing}: {remedy}")]
    Missing { system: &'static str, missing: String, remedy: String },
    /// It did not start, or stopped unexpectedly.
    #[error("{system} failed while {during}: {problem}{}", log_tail.as_deref().map(|log| format!("\nits last words:\n{log}")).unwrap_or_default())]
    Failed { system: &'static str, during: &'static str, problem: String, log_tail: Option<String> },
}

impl SystemError {
    /// An error of `system` without a log.
    pub fn failed(system: &'static str, during: &'static str, problem: impl Into<String>) -> SystemError {
        SystemError::Failed { system, during, problem: problem.into(), log_tail: None }
    }

    /// `system` or one of its processes can't be started.
    pub fn starting(system: &'static str, problem: impl Into<String>) -> SystemError {
        SystemError::failed(system, "starting", problem)
    }

    /// The same with what the program itself says of it.
    pub(crate) fn with_words(mut self, words: &str) -> SystemError {
        if let SystemError::Failed { problem, .. } = &mut self {
            problem.push_str("; ");
            problem.push_str(words);
        }
        self
    }

    /// The first of the mistakes in a system's settings: (setting, what was expected).
    pub(crate) fn first_mistake(system: &'static str, mistakes: Vec<(String, String)>) -> SystemError {
        let (key, problem) = mistakes.into_iter().next().unwrap_or_default();
        SystemError::Setting { system, key, problem }
    }
}
