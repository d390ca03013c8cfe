//! Why the program failed. Each kind of failure has its exit code, which tells a supervisor whether a restart can help.

/// What ended a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument, the configuration, or a file that it names (a secret, a certificate): a restart does not help before somebody has corrected it.
    Mistake(String),
    /// Something that the gateway needs failed: a disk, a store, etcd, a port. A restart may help.
    Failed(String),
    /// A bug in the gateway.
    Bug(String),
}

impl Failure {
    pub(crate) fn text(&self) -> &str {
        let (Failure::Mistake(text) | Failure::Failed(text) | Failure::Bug(text)) = self;
        text
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Failed(text)
    }
}
