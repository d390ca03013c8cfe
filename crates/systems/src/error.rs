//! What goes wrong with a data system, in words for whoever runs a study.

#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A mistake in the settings: the user's to mend.
    #[error("{system}: setting '{key}': {problem}")]
    Setting { system: &'static str, key: String, problem: String },
    /// Not to be had on this host.
    #[error("{system} needs {missing}: {remedy}")]
    Missing { system: &'static str, missing: String, remedy: String },
    /// It did not start, or stopped by itself.
    #[error("{system} failed while {during}: {problem}{}", log_tail.as_deref().map(|log| format!("\nits last words:\n{log}")).unwrap_or_default())]
    Failed { system: &'static str, during: &'static str, problem: String, log_tail: Option<String> },
}

impl SystemError {
    /// `system` failed, and has no last words.
    pub fn failed(system: &'static str, during: &'static str, problem: impl Into<String>) -> SystemError {
        SystemError::Failed { system, during, problem: problem.into(), log_tail: None }
    }

    /// `system` can't be started, or a process of it can't.
    pub fn starting(system: &'static str, problem: impl Into<String>) -> SystemError {
        SystemError::failed(system, "starting", problem)
    }

    /// The first of the mistakes that were found in a system's settings: (setting, what was expected).
    pub fn first_mistake(system: &'static str, mistakes: Vec<(String, String)>) -> SystemError {
        let (key, problem) = mistakes.into_iter().next().unwrap_or_default();
        SystemError::Setting { system, key, problem }
    }
}
