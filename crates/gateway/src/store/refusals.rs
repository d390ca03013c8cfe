//! Which failures of a store are refusals: the same request would fail again. Only types decide that: the status and
//! code of an S3 store's answer, or the error number of a directory's.

use std::error::Error as _;
use std::fmt;
use std::io::ErrorKind;

use hyper::StatusCode;

use super::BackendKind;
use crate::errors::StoreRefusal;

/// Of what a store says of an error.
const MAX_MESSAGE_CHARS: usize = 600;

/// An answer of an S3 store that `object_store` would misread, or whose status it would not show to its callers. This
/// error stands for it.
#[derive(Debug)]
pub(super) struct RefusedAnswer {
    status: StatusCode,
    /// None if the same request may succeed next time.
    refusal: Option<StoreRefusal>,
    said: String,
}

impl fmt::Display for RefusedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store answers {}: {}", self.status, self.said)
    }
}

impl std::error::Error for RefusedAnswer {}

/// Codes with a status of refusals that are none: the next request may succeed, or it was spoiled on its way. From S3's
/// list of error codes.
const PASSING: [&str; 14] = [
    "RequestTimeout",
    "ExpiredToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "BadDigest",
    "IncompleteBody",
    "XAmzContentSHA256Mismatch",
    "InvalidPart",
    "InvalidPartOrder",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "ServiceUnavailable",
    "InternalError",
];

/// Codes that say more than their status does.
const TELLING: [(&str, StoreRefusal); 13] = [
    ("EntityTooLarge", StoreRefusal::TooLarge),
    ("MetadataTooLarge", StoreRefusal::TooLarge),
    ("RequestHeaderSectionTooLarge", StoreRefusal::TooLarge),
    ("MaxMessageLengthExceeded", StoreRefusal::TooLarge),
    ("KeyTooLongError", StoreRefusal::Name),
    ("InvalidURI", StoreRefusal::Name),
    ("InvalidAccessKeyId", StoreRefusal::Denied),
    ("AccountProblem", StoreRefusal::Denied),
    // About the gateway's own key or region, which its administrator can change.
    ("InvalidToken", StoreRefusal::Denied),
    ("AuthorizationHeaderMalformed", StoreRefusal::Denied),
    ("InvalidSecurity", StoreRefusal::Denied),
    ("NotSignedUp", StoreRefusal::Denied),
    ("NotImplemented", StoreRefusal::NotSupported),
];

/// Whether an answer with this status may be one for [`refused`]. Most of those that `object_store` has its own errors
/// for are not among them.
pub(super) fn may_refuse(status: StatusCode) -> bool {
    matches!(
        status.as_u16(),
        400 | 402
            | 404
            | 405
            | 406
            | 409
            | 410
            | 411
            | 413
            | 414
            | 415
            | 417
            | 421
            | 422
            | 431
            | 451
            | 501
            | 505
    )
}

/// The meaning of an answer with a status of [refusals](may_refuse) and this body.
pub(super) fn refused(status: StatusCode, body: &str) -> Option<RefusedAnswer> {
    let code = body
        .split_once("<Code>")
        .and_then(|(_, tail)| tail.split_once("</Code>"))
        .map_or("", |(code, _)| code.trim());
    if PASSING.contains(&code) && status != StatusCode::CONFLICT {
        return None;
    }
    let listed = TELLING.iter().find(|(name, _)| *name == code).map(|(_, refusal)| *refusal);
    let refusal = match status.as_u16() {
        // Taken for a missing object, this would make a deletion done that is not.
        404 if code == "NoSuchBucket" => Some(StoreRefusal::NoBucket),
        404 => return None,
        // Something else is in progress there. `object_store` takes it for a condition that does not hold, also where a
        // request has none.
        409 => None,
        413 | 431 => Some(listed.unwrap_or(StoreRefusal::TooLarge)),
        414 => Some(listed.unwrap_or(StoreRefusal::Name)),
        405 | 501 | 505 => Some(listed.unwrap_or(StoreRefusal::NotSupported)),
        _ => Some(listed.unwrap_or(StoreRefusal::Request)),
    };
    let excerpt: String = body.chars().take(MAX_MESSAGE_CHARS).collect();
    Some(RefusedAnswer { status, refusal, said: excerpt.escape_debug().to_string() })
}

/// Whether the store answered that something else is in progress there.
pub(super) fn is_conflict(error: &object_store::Error) -> bool {
    find_cause::<RefusedAnswer>(error).is_some_and(|answer| answer.status == StatusCode::CONFLICT)
}

/// The first error of this type among an error's causes.
fn find_cause<T: std::error::Error + 'static>(error: &object_store::Error) -> Option<&T> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Whether an error of a request that changes something is a refusal.
pub(super) fn refusal_of(kind: BackendKind, error: &object_store::Error) -> Option<StoreRefusal> {
    match error {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            return Some(StoreRefusal::Denied);
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            return Some(StoreRefusal::NotSupported);
        }
        object_store::Error::InvalidPath { .. } => return Some(StoreRefusal::Name),
        // The store's objects decide, and those change.
        object_store::Error::NotFound { .. }
        | object_store::Error::AlreadyExists { .. }
        | object_store::Error::Precondition { .. }
        | object_store::Error::NotModified { .. } => return None,
        _ => {}
    }
    match kind {
        BackendKind::S3 => find_cause::<RefusedAnswer>(error)?.refusal,
        BackendKind::Directory => refusal_of_number(find_cause::<std::io::Error>(error)?.raw_os_error()?),
    }
}

/// Whether a directory store has something else at an object's path, and so no such object. The path may need a
/// directory where a file is, or a deletion may find a directory. `object_store` knows only missing names as such.
pub(super) fn says_no_object(kind: BackendKind, operation: &str, error: &object_store::Error) -> bool {
    let Some(cause) = find_cause::<std::io::Error>(error).filter(|_| kind == BackendKind::Directory) else {
        return false;
    };
    match operation {
        "HEAD" | "GET" | "LIST" => cause.kind() == ErrorKind::NotADirectory,
        "DELETE" => matches!(cause.kind(), ErrorKind::NotADirectory | ErrorKind::IsADirectory),
        // Of a request to write it says that the name can't be had.
        _ => false,
    }
}

/// Of what the kernel says of a file. Full disks and quotas are none: they pass.
fn refusal_of_number(number: i32) -> Option<StoreRefusal> {
    Some(match number {
        libc::EMLINK | libc::EXDEV => StoreRefusal::Links,
        libc::EACCES | libc::EPERM => StoreRefusal::Denied,
        libc::EROFS => StoreRefusal::ReadOnly,
        libc::EFBIG => StoreRefusal::TooLarge,
        libc::EOPNOTSUPP | libc::ENOSYS => StoreRefusal::NotSupported,
        libc::ENAMETOOLONG
        | libc::EISDIR
        | libc::ENOTDIR
        | libc::ENOTEMPTY
        | libc::EEXIST
        | libc::ELOOP
        | libc::EILSEQ
        | libc::EINVAL => StoreRefusal::Name,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_directory(number: i32) -> object_store::Error {
        let source = Box::new(std::io::Error::from_raw_os_error(number));
        object_store::Error::Generic { store: "test", source }
    }

    #[test]
    fn refusals_are_told_from_what_passes() {
        let status = |code| StatusCode::from_u16(code).unwrap();
        let refusal_of = |code: u16, body: &str| {
            refused(status(code), body).filter(|_| may_refuse(status(code))).and_then(|answer| answer.refusal)
        };
        for (code, body, refusal) in [
            (400, "<Error><Code>InvalidRequest</Code></Error>", Some(StoreRefusal::Request)),
            (400, "", Some(StoreRefusal::Request)),
            (400, "<Error><Code>RequestTimeout</Code></Error>", None),
            (400, "<Error><Code>BadDigest</Code></Error>", None),
            (400, "<Error><Code>InvalidToken</Code></Error>", Some(StoreRefusal::Denied)),
            (400, "<Error><Code>KeyTooLongError</Code></Error>", Some(StoreRefusal::Name)),
            (400, "<Error><Code>MetadataTooLarge</Code></Error>", Some(StoreRefusal::TooLarge)),
            (405, "", Some(StoreRefusal::NotSupported)),
            (413, "", Some(StoreRefusal::TooLarge)),
            (501, "", Some(StoreRefusal::NotSupported)),
            (500, "", None),
            (503, "<Error><Code>SlowDown</Code></Error>", None),
            (404, "", None),
            (404, "<Error><Code>NoSuchKey</Code></Error>", None),
            (404, "<Error><Code>NoSuchBucket</Code></Error>", Some(StoreRefusal::NoBucket)),
            (409, "<Error><Code>OperationAborted</Code></Error>", None),
            (408, "", None),
            (429, "", None),
        ] {
            assert_eq!(refusal_of(code, body), refusal, "{code} {body}");
        }
    }

    /// `object_store` would say that the object exists, or that a condition does not hold.
    #[test]
    fn conflicting_request_is_no_failed_condition() {
        let conflict = StatusCode::CONFLICT;
        assert!(may_refuse(conflict));
        let answer = refused(conflict, "<Error><Code>ConditionalRequestConflict</Code></Error>").unwrap();
        let error = object_store::Error::Generic { store: "test", source: Box::new(answer) };
        assert_eq!(refusal_of(BackendKind::S3, &error), None);
        assert!(is_conflict(&error) && !is_conflict(&of_directory(libc::EEXIST)));
        // Whatever the code.
        assert!(refused(conflict, "<Error><Code>SlowDown</Code></Error>").is_some());
    }

    #[test]
    fn permanent_directory_errors_are_refusals() {
        for (number, refusal) in [
            (libc::EMLINK, Some(StoreRefusal::Links)),
            (libc::EXDEV, Some(StoreRefusal::Links)),
            (libc::EPERM, Some(StoreRefusal::Denied)),
            (libc::EROFS, Some(StoreRefusal::ReadOnly)),
            (libc::ENAMETOOLONG, Some(StoreRefusal::Name)),
            (libc::EISDIR, Some(StoreRefusal::Name)),
            (libc::ENOSPC, None),
            (libc::EDQUOT, None),
            (libc::EIO, None),
        ] {
            assert_eq!(refusal_of(BackendKind::Directory, &of_directory(number)), refusal, "{number}");
            // A connection that a firewall refuses has such numbers, too.
            assert_eq!(refusal_of(BackendKind::S3, &of_directory(number)), None, "{number}");
        }
    }
}
