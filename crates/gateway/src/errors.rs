//! What can go wrong with a request, in S3's terms. `s3/answers.rs` turns each into a status and a code.

use serde::{Deserialize, Serialize};

/// Why a request was not carried out. Nothing of it was then, unless the text says so. One gateway tells another, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    #[error("the gateway has no such bucket")]
    NoSuchBucket,
    #[error("the bucket has no such key")]
    NoSuchKey,
    #[error("no such multipart upload: it was completed or aborted, or never begun")]
    NoSuchUpload,
    #[error("the bucket exists")]
    BucketExists,
    #[error("the bucket has objects or unfinished uploads: delete them first")]
    BucketNotEmpty,
    #[error("{0}")]
    InvalidPart(String),
    #[error("the parts have to be listed in ascending order, each once")]
    InvalidPartOrder,
    #[error("part {0} is smaller than 5 MiB, and only the last part may be")]
    PartTooSmall(u16),
    #[error("a precondition of the request does not hold")]
    PreconditionFailed,
    #[error("not modified")]
    NotModified,
    #[error("the range begins behind the object's end")]
    InvalidRange { size_bytes: u64 },
    #[error("{0}")]
    InvalidArgument(String),
    #[error("{0}")]
    KeyTooLong(String),
    /// A directory behind the bucket can't hold both names.
    #[error("{0}")]
    NameTaken(String),
    #[error("{0}")]
    BadDigest(String),
    /// The body is not the one that was signed.
    #[error("the body is not the one that was signed: {0}")]
    NotAsSigned(String),
    #[error("{0}")]
    AccessDenied(String),
    #[error("{0}")]
    IncompleteBody(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("{0}")]
    NotImplemented(String),
    /// For now: the journal is full, or too much is going on.
    #[error("{0}")]
    Busy(String),
    /// The store behind did not do what it was asked for.
    #[error("{0}")]
    Store(String),
    /// Our own disk, or what is on it.
    #[error("{0}")]
    Local(String),
    /// Of a chunk of a body, or of what comes behind it.
    #[error("the signature of a part of the body is wrong: {0}")]
    WrongSignature(String),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the local storage said while we were at `what`.
    pub(crate) fn local(what: &str, error: impl std::fmt::Display) -> Error {
        Error::Local(format!("{what}: {error}"))
    }
}
