//! Why the program failed. Each kind of failure has its exit code, which tells a supervisor whether a restart can help.

/// The failure that ended a command.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// An argument, the configuration, or a file that it names (a secret, a certificate): a restart does not help
    /// before somebody has corrected it.
    Mistake(String),
    /// Something that the gateway needs failed: a disk, a store, etcd, a port. A restart may help.
    Failed(String),
    /// A bug in the gateway.
    Bug(String),
}

impl CommandFailure {
    pub(crate) fn text(&self) -> &str {
        let (CommandFailure::Mistake(text) | CommandFailure::Failed(text) | CommandFailure::Bug(text)) = self;
        text
    }
}

impl From<String> for CommandFailure {
    fn from(text: String) -> CommandFailure {
        CommandFailure::Failed(text)
    }
}
