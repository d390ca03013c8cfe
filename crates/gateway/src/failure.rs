//! Why the program failed. Each kind of failure has its exit code, which tells a supervisor whether a restart can help.

/// What ended a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument, the configuration, or a file that it names (a secret, a certificate): a new start does not help before somebody has changed it.
    Mistake(String),
    /// Something that the gateway needs: a disk, a store, etcd, a port. The next start may find it.
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
