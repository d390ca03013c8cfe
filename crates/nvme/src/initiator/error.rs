//! Why a controller can't be used.

use std::io;

use super::exchange::LostAnswer;
use crate::auth::AuthError;
use crate::pdu::ReceiveError;
use crate::status::NvmeStatus;

#[derive(Debug, thiserror::Error)]
pub enum InitiatorError {
    #[error("{0}")]
    Options(String),
    #[error("{address} can't be reached: {source}. Is the target running, and is this its address and port?")]
    Unreachable { address: String, source: io::Error },
    #[error("{address} does not follow the NVMe/TCP protocol: {problem}")]
    Protocol { address: String, problem: String },
    #[error("the target refused the connection to {subsystem}: {status}. {advice}")]
    Refused { subsystem: String, status: NvmeStatus, advice: &'static str },
    #[error("the subsystem {0} admits no host without DH-HMAC-CHAP, but no secret was given for this one")]
    AuthenticationRequired(String),
    #[error(
        "the subsystem {0} asks for no authentication, although its controller must prove that it knows its \
             secret: it has none configured, or another one is in its place"
    )]
    NoAuthentication(String),
    #[error("the authentication failed: {0}")]
    Authentication(#[from] AuthError),
    #[error("{what} failed: {status}")]
    Command { what: &'static str, status: NvmeStatus },
    #[error("{what} was not answered in time")]
    TimedOut { what: &'static str },
    #[error("the connection was lost during {what}: {reason}")]
    Lost { what: &'static str, reason: String },
    #[error("the controller has no namespace {nsid}: it has {}", said(.there))]
    NoNamespace { nsid: u32, there: Vec<u32> },
    #[error(
        "namespace {nsid} is not the one that it was ({difference}): nothing meant for the old one is sent to it"
    )]
    OtherNamespace { nsid: u32, difference: String },
    #[error(
        "another host, or another process on this one, wrote to namespace {nsid} while the connection was down: \
             this host's view of it is out of date, so nothing more is written"
    )]
    WrittenByAnother { nsid: u32 },
    #[error("could not start a thread for a connection: {0}")]
    Thread(#[source] io::Error),
    #[error("the system provides no random bytes: {0}")]
    Entropy(#[source] io::Error),
}

fn said(namespaces: &[u32]) -> String {
    match namespaces {
        [] => "none".into(),
        [one] => format!("only {one}"),
        many => {
            let names: Vec<String> = many.iter().take(16).map(u32::to_string).collect();
            names.join(", ")
        }
    }
}

impl InitiatorError {
    pub(super) fn lost(operation: &'static str, lost: LostAnswer) -> InitiatorError {
        let reason = match lost {
            LostAnswer::Connection(reason) => reason,
            LostAnswer::Gone => "it was closed".into(),
        };
        InitiatorError::Lost { what: operation, reason }
    }

    pub(super) fn received(address: &str, error: ReceiveError) -> InitiatorError {
        match error {
            ReceiveError::Io(source) => InitiatorError::Unreachable { address: address.to_owned(), source },
            other => InitiatorError::Protocol { address: address.to_owned(), problem: other.to_string() },
        }
    }

    /// Whether trying again may help without anybody doing anything.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            InitiatorError::Unreachable { .. }
            | InitiatorError::TimedOut { .. }
            | InitiatorError::Lost { .. }
            | InitiatorError::Protocol { .. }
            | InitiatorError::Thread(_)
            | InitiatorError::NoNamespace { .. } => true,
            // A target that starts may not have all its subsystems yet.
            InitiatorError::Refused { .. } => true,
            InitiatorError::Command { status, .. } => !status.says_do_not_retry(),
            InitiatorError::Options(_)
            | InitiatorError::OtherNamespace { .. }
            | InitiatorError::WrittenByAnother { .. }
            | InitiatorError::AuthenticationRequired(_)
            | InitiatorError::NoAuthentication(_)
            | InitiatorError::Authentication(_)
            | InitiatorError::Entropy(_) => false,
        }
    }
}
