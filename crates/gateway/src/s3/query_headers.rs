//! Headers in a query. SDKs write `x-amz-` headers of a presigned URL as its parameters, and S3 reads them as headers.
//! `s3s` would pass over them: an upload without the metadata, the tags or the lock that its URL asks for. So they are
//! made headers once the signature has been verified, which covers the query.

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use s3s::S3Result;

use super::answers::{invalid, invalid_request};
use super::queries;
use crate::digests::ChecksumKind;

/// Of the signature, in lower case.
const OF_SIGNATURE: [&str; 7] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
];

/// How the body comes. Who signs the URL can't know it, and S3 asks the request alone.
const OF_BODY: [&str; 4] =
    ["x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-sdk-checksum-algorithm", "x-amz-trailer"];

/// Whether a parameter is one of the signature, in any case.
pub(super) fn is_of_signature(name: &str) -> bool {
    OF_SIGNATURE.iter().any(|parameter| name.eq_ignore_ascii_case(parameter))
}

/// Whether a parameter of this name, in any case, stands for a header. A checksum does not: SDKs sign that of an empty
/// body, which they take for the one to come, and S3 passes over it.
pub(super) fn is_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_checksum =
        name.strip_prefix("x-amz-checksum-").is_some_and(|kind| ChecksumKind::from_name(kind).is_some());
    name.starts_with("x-amz-") && !is_of_signature(&name) && !OF_BODY.contains(&name.as_str()) && !is_checksum
}

/// Headers that the query of a request has, with names in lower case.
pub(super) fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    queries::pairs(uri)
        .filter(|(name, _)| is_header(name))
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
}

/// Makes headers of them.
///
/// # Errors
/// When one can't be a header, or the request has another value for it.
pub(super) fn move_into(headers: &mut HeaderMap, uri: &Uri) -> S3Result<()> {
    for (name, value) in pairs(uri) {
        let unfit = || invalid(format!("the parameter {} can't be a header", name.escape_debug()));
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit())?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| unfit())?;
        if headers.get_all(&header).iter().any(|other| *other != value) {
            // Which of them counts, nobody should have to know.
            return Err(invalid_request(format!("the request has several values of {name}")));
        }
        headers.insert(header, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(target: &str, headers: &[(&'static str, &'static str)]) -> Result<Vec<String>, String> {
        let values = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers: HeaderMap = values.collect();
        move_into(&mut headers, &target.parse().unwrap())
            .map_err(|refusal| refusal.code().as_str().to_owned())?;
        let shown = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
        };
        Ok(headers.iter().map(shown).collect())
    }

    #[test]
    fn parameters_of_presigned_url_become_headers() {
        for (query, header) in [
            ("x-amz-meta-color=deep%20blue", "x-amz-meta-color: deep blue"),
            ("X-Amz-Tagging=a%3D1%26b%3D2", "x-amz-tagging: a=1&b=2"),
            ("x%2Damz-copy-source=lake%2Fa%2520b", "x-amz-copy-source: lake/a%20b"),
            ("x-amz-meta-name=%C3%A9", "x-amz-meta-name: \u{e9}"),
            ("x-amz-expected-bucket-owner=somebody", "x-amz-expected-bucket-owner: somebody"),
            ("x-amz-website-redirect-location=%2Fb", "x-amz-website-redirect-location: /b"),
        ] {
            let target = format!("/lake/a?X-Amz-Signature=0&{query}&x-id=PutObject");
            assert_eq!(moved(&target, &[]), Ok(vec![header.to_owned()]), "{query}");
        }
        for query in [
            "X-Amz-Credential=K&X-Amz-Security-Token=t",
            "X-Amz-Content-Sha256=UNSIGNED-PAYLOAD",
            "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32",
            "prefix=x-amz-meta-a",
        ] {
            assert_eq!(moved(&format!("/lake/a?{query}"), &[]), Ok(Vec::new()), "{query}");
        }
    }

    #[test]
    fn parameter_beside_another_value_of_its_header_is_refused() {
        let (target, one) = ("/lake/a?x-amz-acl=private", "x-amz-acl: private".to_owned());
        assert_eq!(moved(target, &[("x-amz-acl", "private")]), Ok(vec![one.clone()]));
        assert_eq!(moved("/lake/a?x-amz-acl=private&X-Amz-Acl=private", &[]), Ok(vec![one]));
        let refused = Err("InvalidRequest".to_owned());
        assert_eq!(moved(target, &[("x-amz-acl", "public-read")]), refused);
        assert_eq!(moved("/lake/a?x-amz-meta-a=1&x-amz-meta-a=2", &[]), refused);
        for unfit in ["x-amz-meta-a=1%0A2", "x-amz-meta-a%20b=1", "x-amz-meta-%C3%A9=1"] {
            assert_eq!(moved(&format!("/lake/a?{unfit}"), &[]), Err("InvalidArgument".to_owned()), "{unfit}");
        }
    }
}
