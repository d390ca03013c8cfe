//! Capabilities that this host lacks.

/// A missing kernel feature, privilege or program, and how to get it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host lacks {what}: {remedy}")]
pub struct MissingCapability {
    /// `FUSE (/dev/fuse)`
    pub what: String,
    /// The remedy, as an instruction: `install the Debian package xfsprogs`.
    pub remedy: String,
}

impl MissingCapability {
    pub fn new(capability: impl Into<String>, remedy: impl Into<String>) -> Self {
        MissingCapability { what: capability.into(), remedy: remedy.into() }
    }
}
