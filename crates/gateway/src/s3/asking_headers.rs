//! Headers that ask for something: for encryption, a lock, a grant, a condition. `s3s` passes over those that an
//! operation has no field for. A client that asks for it must not think that it was done, so each
//! [operation](super) lists those that it reads, and all others are refused.

use std::borrow::Cow;

use hyper::http::Extensions;
use hyper::{HeaderMap, Method, Uri};
use s3s::{S3Error, S3Result};

use super::answers::{error, invalid};
use super::rewriting::moved_headers;
use super::{acl, input, queries};
use crate::errors::GatewayError;

/// Headers that ask for one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderFamily {
    Encryption,
    Lock,
    Grant,
    Rename,
    /// The range of a copy's source.
    CopyRange,
    /// The source of a copy, and its conditions.
    CopySource,
    Acl,
    StorageClass,
    IfMatch,
    IfNoneMatch,
    /// Conditions on dates.
    IfModified,
    /// S3's own condition of AbortMultipartUpload.
    IfInitiated,
    /// And those of DeleteObject.
    IfSizeOrTime,
}

/// Those of RFC 9110. S3 ignores them in reads of a bucket, whose answers have neither ETags nor dates.
pub(super) const CONDITIONS: &[HeaderFamily] =
    &[HeaderFamily::IfMatch, HeaderFamily::IfNoneMatch, HeaderFamily::IfModified];

/// How names begin, those that say more first.
const BEGINNINGS: [(&str, HeaderFamily); 15] = [
    ("x-amz-server-side-", HeaderFamily::Encryption),
    ("x-amz-copy-source-server-side-", HeaderFamily::Encryption),
    ("x-amz-object-lock-", HeaderFamily::Lock),
    ("x-amz-grant-", HeaderFamily::Grant),
    ("x-amz-rename-source", HeaderFamily::Rename),
    ("x-amz-copy-source-range", HeaderFamily::CopyRange),
    ("x-amz-copy-source", HeaderFamily::CopySource),
    ("x-amz-acl", HeaderFamily::Acl),
    ("x-amz-storage-class", HeaderFamily::StorageClass),
    ("x-amz-if-match-initiated-", HeaderFamily::IfInitiated),
    ("x-amz-if-match-", HeaderFamily::IfSizeOrTime),
    ("if-match", HeaderFamily::IfMatch),
    ("if-none-match", HeaderFamily::IfNoneMatch),
    ("if-modified-since", HeaderFamily::IfModified),
    ("if-unmodified-since", HeaderFamily::IfModified),
];

/// Keys of a client's own that bytes are to be encrypted with, those of a copy's source too.
const CUSTOMER_KEYS: [&str; 2] =
    ["x-amz-server-side-encryption-customer-", "x-amz-copy-source-server-side-encryption-customer-"];

impl HeaderFamily {
    fn from_name(name: &str) -> Option<HeaderFamily> {
        BEGINNINGS.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, family)| *family)
    }

    fn is_condition(self) -> bool {
        CONDITIONS.contains(&self)
    }

    /// Whether a read means anything by it.
    fn is_of_reads(self) -> bool {
        self == HeaderFamily::Encryption || self.is_condition()
    }
}

/// Refuses a request with a header that its operation does not read. Those that are parameters still, no operation
/// reads: others have become [headers](super::query_headers).
///
/// # Errors
/// `NotImplemented`, or S3's own code for a value that S3 does not have.
pub(super) fn check(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &Extensions,
    reads: &[HeaderFamily],
) -> S3Result<()> {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    let moved = moved_headers(extensions).into_iter().flatten();
    let written = headers
        .iter()
        .chain(moved)
        .map(|(name, value)| (Cow::Borrowed(name.as_str()), String::from_utf8_lossy(value.as_bytes()), true));
    let parameters = queries::pairs(uri)
        .filter(|(name, _)| name.get(..6).is_some_and(|begin| begin.eq_ignore_ascii_case("x-amz-")))
        .map(|(name, value)| (Cow::Owned(name.to_ascii_lowercase()), Cow::Owned(value), false));
    let asked: Vec<AskedHeader<'_>> = written
        .chain(parameters)
        .filter_map(|(name, value, is_header)| {
            let family = HeaderFamily::from_name(&name)?;
            let is_of_no_use = is_read && !family.is_of_reads();
            let is_looked_at = is_header && reads.contains(&family);
            // `s3s` takes an empty header for none.
            let is_passed_over = is_of_no_use || is_looked_at || value.is_empty();
            (!is_passed_over).then_some((name, value, family))
        })
        .collect();
    refuse(&asked)
}

/// The same of the fields of a form, which stand for headers and have their names.
///
/// # Errors
/// As [`check`].
pub(super) fn check_fields<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> S3Result<()> {
    let family_of = |(name, value): (&'a str, &'a str)| {
        Some((Cow::Borrowed(name), Cow::Borrowed(value), HeaderFamily::from_name(name)?))
    };
    let asked: Vec<AskedHeader<'_>> =
        fields.filter(|(_, value)| !value.is_empty()).filter_map(family_of).collect();
    refuse(&asked)
}

/// A name that nobody looks at, with its value.
type AskedHeader<'a> = (Cow<'a, str>, Cow<'a, str>, HeaderFamily);

fn refuse(asked: &[AskedHeader<'_>]) -> S3Result<()> {
    let is_asked = |wanted: &str| asked.iter().any(|(name, ..)| name == wanted);
    let is_incomplete = |begin: &&str| {
        asked.iter().any(|(name, ..)| name.starts_with(begin)) && !is_asked(&format!("{begin}algorithm"))
    };
    if let Some(begin) = CUSTOMER_KEYS.iter().find(|begin| is_incomplete(begin)) {
        return Err(invalid(format!("the request has a key of the client's own without {begin}algorithm")));
    }
    for (name, value, family) in asked {
        match family {
            HeaderFamily::Acl => acl::check_canned(Some(value))?,
            HeaderFamily::StorageClass => input::check_storage_class(Some(value))?,
            _ => return Err(not_done(name)),
        }
    }
    Ok(())
}

pub(super) fn not_done(name: &str) -> S3Error {
    let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
    error(GatewayError::NotImplemented(format!("this gateway can't carry out the request: {name}")))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn code(
        method: Method,
        target: &str,
        headers: &[(&'static str, &str)],
        reads: &[HeaderFamily],
    ) -> String {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        match check(&method, &target.parse().unwrap(), &headers, &Extensions::new(), reads) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.code().as_str().to_owned(),
        }
    }

    #[test]
    fn conditions_of_writes_that_nobody_looks_at_are_refused() {
        for name in ["if-match", "if-none-match", "if-unmodified-since", "if-modified-since"] {
            for method in [Method::PUT, Method::POST, Method::DELETE, Method::GET] {
                assert_eq!(code(method.clone(), "/lake/a", &[(name, "*")], &[]), "NotImplemented", "{name}");
                assert_eq!(code(method, "/lake/a", &[(name, "*")], CONDITIONS), "", "{name}");
            }
        }
        let of_deletion = &[HeaderFamily::IfMatch, HeaderFamily::IfSizeOrTime];
        assert_eq!(code(Method::DELETE, "/lake/a", &[("x-amz-if-match-size", "5")], of_deletion), "");
        let initiated = [("x-amz-if-match-initiated-time", "a date")];
        assert_eq!(code(Method::DELETE, "/lake/a", &initiated, of_deletion), "NotImplemented");
    }

    #[test]
    fn customer_key_without_its_algorithm_is_an_invalid_argument() {
        for begin in CUSTOMER_KEYS {
            let [algorithm, key] =
                ["algorithm", "key"].map(|end| (HeaderName::try_from(format!("{begin}{end}")).unwrap(), "a"));
            let refusal = |headers: &[(HeaderName, &str)]| {
                let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
                let (uri, headers) = (Uri::from_static("/lake/a"), headers.collect());
                let checked = check(&Method::GET, &uri, &headers, &Extensions::new(), &[]);
                checked.unwrap_err().code().as_str().to_owned()
            };
            assert_eq!(refusal(std::slice::from_ref(&key)), "InvalidArgument", "{begin}");
            assert_eq!(refusal(&[algorithm.clone(), key]), "NotImplemented", "{begin}");
            assert_eq!(refusal(&[algorithm]), "NotImplemented", "{begin}");
        }
    }

    #[test]
    fn parameters_of_presigned_url_count_as_headers() {
        for (parameter, expected) in [
            ("X-Amz-Server-Side-Encryption=AES256", "NotImplemented"),
            ("x-amz-copy%2Dsource=lake%2Fb", "NotImplemented"),
            ("x-amz-acl=public-read", "NotImplemented"),
            ("x-amz-storage-class=GLACIER", "InvalidStorageClass"),
            ("x-amz-acl=private&x-amz-storage-class=STANDARD&x-amz-acl=", ""),
            ("X-Amz-Algorithm=AWS4-HMAC-SHA256&x-amz-meta-a=b&x-amz-checksum-crc32=AAAAAA%3D%3D", ""),
        ] {
            let target = format!("/lake/a?{parameter}");
            assert_eq!(code(Method::PUT, &target, &[], &[HeaderFamily::CopySource]), expected, "{parameter}");
        }
    }

    #[test]
    fn headers_that_clients_send_by_themselves_are_passed_over() {
        for name in [
            "x-amz-sdk-checksum-algorithm",
            "x-amz-content-sha256",
            "x-amz-decoded-content-length",
            "x-amz-expected-bucket-owner",
            "x-amz-meta-x-amz-grant-read",
            "x-amz-mp-object-size",
            "x-amz-object-attributes",
            "x-amz-request-payer",
            "x-amz-security-token",
            "x-amz-tagging",
            "x-amz-user-agent",
            "x-amz-website-redirect-location",
            "if-range",
        ] {
            assert_eq!(code(Method::PUT, "/lake/a", &[(name, "any")], &[]), "", "{name}");
        }
        let of_writes = [("x-amz-acl", "public-read"), ("x-amz-copy-source", "lake/b")];
        assert_eq!(code(Method::GET, "/lake/a", &of_writes, &[]), "");
        assert_eq!(code(Method::PUT, "/lake/a", &[("x-amz-server-side-encryption", "")], &[]), "");
    }
}
