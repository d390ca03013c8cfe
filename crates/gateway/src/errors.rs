//! A request's errors, in S3's terms. `s3/answers.rs` turns each into a status and a code.

use serde::{Deserialize, Serialize};

/// Why a request was not carried out. Nothing of it was then, unless the text says so. One gateway tells another, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum GatewayError {
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
    #[error("the request has more than 2 KiB of user metadata")]
    MetadataTooLarge,
    #[error("the headers that are kept with an object have more than 7 KiB together")]
    HeadersTooLarge,
    /// The store behind refuses it, and will again.
    #[error("{text}")]
    Refused { refusal: StoreRefusal, text: String },
    /// Of a chunk of a body, or of what comes behind it.
    #[error("the signature of a part of the body is wrong: {0}")]
    WrongSignature(String),
    /// The store is not there, or does not give what it has taken. The words are the gateway's own: clients may read
    /// them.
    #[error("{0}")]
    StoreAway(String),
    /// It contradicts itself, or what it is about.
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    TooManyBuckets(String),
}

/// Why a store refuses a request that it would refuse again, by its answer's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StoreRefusal {
    /// It takes no such request.
    Request,
    /// The gateway may not do it.
    Denied,
    /// The store's bucket is not there.
    NoBucket,
    /// The object, or its headers, are too large.
    TooLarge,
    /// It has no such operation.
    NotSupported,
    /// It has no place for this name: it is too long, or taken by a directory.
    Name,
    /// It can't give the file another name there: too many links, or another file system.
    Links,
    /// It can't be written to at all.
    ReadOnly,
}

impl StoreRefusal {
    /// The label of `/metrics` and `top`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            StoreRefusal::Request => "request_refused",
            StoreRefusal::Denied => "denied",
            StoreRefusal::NoBucket => "no_bucket",
            StoreRefusal::TooLarge => "too_large",
            StoreRefusal::NotSupported => "not_supported",
            StoreRefusal::Name => "name",
            StoreRefusal::Links => "links",
            StoreRefusal::ReadOnly => "read_only",
        }
    }
}

pub(crate) type GatewayResult<T> = std::result::Result<T, GatewayError>;

impl GatewayError {
    /// The local storage's error during `action`.
    pub(crate) fn local(action: &str, error: impl std::fmt::Display) -> GatewayError {
        GatewayError::Local(format!("{action}: {error}"))
    }
}
