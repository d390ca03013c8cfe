//! Names in a request's query, by the path's kind and by method. The library `s3s` ignores unknown ones and carries out
//! the rest: a PUT of an object's annotation would be a PUT of the object, and a DELETE of its ACL would delete it.

use hyper::{Method, Uri};
use reqwest::Url;
use s3s::{S3Error, S3ErrorCode};

use super::addressing::PathLevel;
use crate::url_escapes;

/// Names that a write may have, those of operations that the gateway does not have included: `s3s` knows these, and
/// they answer `NotImplemented`.
struct QueryRow {
    method: Method,
    level: PathLevel,
    names: &'static [&'static str],
}

const WRITES: [QueryRow; 6] = [
    QueryRow {
        method: Method::PUT,
        level: PathLevel::Bucket,
        names: &[
            "accelerate",
            "acl",
            "analytics",
            "cors",
            "encryption",
            "id",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "logging",
            "metrics",
            "notification",
            "object-lock",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "requestPayment",
            "tagging",
            "versioning",
            "website",
        ],
    },
    QueryRow {
        method: Method::DELETE,
        level: PathLevel::Bucket,
        names: &[
            "analytics",
            "cors",
            "encryption",
            "id",
            "intelligent-tiering",
            "inventory",
            "lifecycle",
            "metadataTable",
            "metrics",
            "ownershipControls",
            "policy",
            "publicAccessBlock",
            "replication",
            "tagging",
            "website",
        ],
    },
    QueryRow { method: Method::POST, level: PathLevel::Bucket, names: &["delete", "metadataTable"] },
    QueryRow {
        method: Method::PUT,
        level: PathLevel::Object,
        names: &["acl", "legal-hold", "partNumber", "retention", "tagging", "uploadId", "versionId"],
    },
    QueryRow {
        method: Method::DELETE,
        level: PathLevel::Object,
        names: &["tagging", "uploadId", "versionId"],
    },
    QueryRow {
        method: Method::POST,
        level: PathLevel::Object,
        names: &["restore", "select", "select-type", "uploadId", "uploads", "versionId"],
    },
];

/// Names without a value for GET and HEAD: each names something of a bucket or an object.
const READ: &[&str] = &[
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "retention",
    "session",
    "tagging",
    "torrent",
    "uploads",
    "versioning",
    "versions",
    "website",
    // Parameters that clients send without a value.
    "continuation-token",
    "delimiter",
    "encoding-type",
    "key-marker",
    "marker",
    "max-keys",
    "prefix",
    "start-after",
    "upload-id-marker",
    "version-id-marker",
    "versionId",
];

/// Parameters of the request as a whole: the SDK's word for its operation, and signatures of versions 4 and 2.
fn is_of_request(name: &str) -> bool {
    let is_signature = name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
    is_signature || matches!(name, "x-id" | "AWSAccessKeyId" | "Signature" | "Expires")
}

/// Names and values of a query, without their escapes.
pub(super) fn pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> {
    let query = uri.query().filter(|query| !query.is_empty());
    let url = query.and_then(|query| Url::parse(&format!("http://gateway/?{query}")).ok());
    let owned = |url: Url| -> Vec<(String, String)> {
        url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
    };
    url.map(owned).unwrap_or_default().into_iter()
}

/// Whether a query has one of these names, however it is written.
pub(super) fn has_name(uri: &Uri, wanted: &[&str]) -> bool {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.any(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        match name.contains(['%', '+']) {
            false => wanted.contains(&name),
            true => url_escapes::decode_form(name).is_ok_and(|name| wanted.contains(&name.as_str())),
        }
    })
}

/// A request that asks for something that nobody here would see.
pub(super) fn refused_query(method: &Method, uri: &Uri, level: PathLevel) -> Option<S3Error> {
    if level == PathLevel::Service {
        return None;
    }
    let pairs: Vec<(String, String)> = pairs(uri).collect();
    let mut asked = pairs.iter().filter(|(name, _)| !is_of_request(name));
    let unknown = match WRITES.iter().find(|row| row.method == *method && row.level == level) {
        Some(row) => asked.find(|(name, _)| !row.names.contains(&name.as_str())),
        // As S3 does, a parameter with a value that nobody knows is passed over: it changes nothing.
        None if *method == Method::GET || *method == Method::HEAD => asked.find(|(name, value)| {
            value.is_empty() && !READ.contains(&name.as_str()) && !name.starts_with("response-")
        }),
        None => None,
    };
    if let Some((name, _)) = unknown {
        return Some(not_implemented(name));
    }
    // A part has both: with one of them, it would be a PUT of the object.
    let has_parameter = |wanted: &str| pairs.iter().any(|(name, _)| name == wanted);
    let is_half = *method == Method::PUT && has_parameter("partNumber") != has_parameter("uploadId");
    is_half.then(|| {
        let reason = "a part has `partNumber` and `uploadId`, and this request has one of them";
        S3Error::with_message(S3ErrorCode::InvalidRequest, reason)
    })
}

fn not_implemented(name: &str) -> S3Error {
    let name: String = name.chars().take(100).flat_map(char::escape_debug).collect();
    S3Error::with_message(S3ErrorCode::NotImplemented, format!("this gateway does not implement {name}"))
}

#[cfg(test)]
mod tests {
    use super::super::addressing::AddressingStyle;
    use super::*;

    fn code_in(style: &AddressingStyle, method: &Method, target: &str) -> Option<String> {
        let uri: Uri = target.parse().unwrap();
        let refused = refused_query(method, &uri, style.level(uri.path()).unwrap());
        refused.map(|refused| refused.code().as_str().to_owned())
    }

    fn code(method: &Method, target: &str) -> Option<String> {
        code_in(&AddressingStyle::Path, method, target)
    }

    #[test]
    fn bucket_query_for_escaped_key_is_refused() {
        let unseen = Some("NotImplemented".to_owned());
        for target in ["/lake%2Fa?lifecycle", "/lake%2fa?policy", "/l%61ke%2Fa?policy", "/lake/%2F?policy"] {
            assert_eq!(code(&Method::DELETE, target), unseen, "{target}");
            assert_eq!(code(&Method::PUT, target), unseen, "{target}");
        }
        assert_eq!(code(&Method::DELETE, "/lake%2F?policy"), None);
        let own = AddressingStyle::Virtual("lake".to_owned());
        for target in ["//?policy", "/%2F?policy", "///?policy"] {
            assert_eq!(code_in(&own, &Method::DELETE, target), unseen, "{target}");
        }
        assert_eq!(code_in(&own, &Method::DELETE, "/?policy"), None);
    }

    #[test]
    fn ignored_query_parameters_are_refused() {
        let unseen = Some("NotImplemented".to_owned());
        for target in [
            "/lake/k?renameObject",
            "/lake/k?encryption",
            "/lake/k?annotation&x-id=PutObject",
            "/lake/k?append&position=0",
        ] {
            assert_eq!(code(&Method::PUT, target), unseen, "{target}");
        }
        for target in [
            "/lake/k?acl",
            "/lake/k?annotation",
            "/lake/k?retention",
            "/lake/k?uploads",
            "/lake?abac",
            "/lake?versioning",
        ] {
            assert_eq!(code(&Method::DELETE, target), unseen, "{target}");
        }
        for target in ["/lake?abac", "/lake?metadataConfiguration", "/lake/k?annotation"] {
            assert_eq!(code(&Method::GET, target), unseen, "{target}");
        }
        assert_eq!(code(&Method::PUT, "/lake?foo"), unseen);
        let half = Some("InvalidRequest".to_owned());
        for target in ["/lake/k?partNumber=1", "/lake/k?uploadId=x"] {
            assert_eq!(code(&Method::PUT, target), half, "{target}");
        }
    }

    #[test]
    fn names_of_query_are_found_with_escapes() {
        let is_found = |target: &str| has_name(&target.parse().unwrap(), &["delete", "uploadId"]);
        for target in ["/lake?delete", "/lake?x-id=a&delete=", "/lake?%64elete", "/lake?x&upload%49d=1"] {
            assert!(is_found(target), "{target}");
        }
        for target in
            ["/lake", "/lake?", "/lake?prefix=delete", "/lake?%2564elete", "/lake?delet%", "/lake?Delete"]
        {
            assert!(!is_found(target), "{target}");
        }
    }

    #[test]
    fn known_client_queries_are_allowed() {
        for (method, targets) in [
            (
                Method::GET,
                &[
                    "/",
                    "/lake?list-type=2&prefix=&delimiter=%2F",
                    "/lake?uploads=",
                    "/lake/k?v=17",
                    "/lake/k?versionId=",
                ][..],
            ),
            (
                Method::GET,
                &["/lake?versions&key-marker=", "/lake/k?response-content-type=", "/lake/k?partNumber=1"][..],
            ),
            (
                Method::PUT,
                &["/lake/k?partNumber=1&uploadId=x&x-id=UploadPart", "/lake/k?tagging", "/lake", "/lake?acl"]
                    [..],
            ),
            (Method::PUT, &["/lake/k?X-Amz-Algorithm=A&x-amz-acl=private&AWSAccessKeyId=A"][..]),
            (Method::POST, &["/lake?delete", "/lake/k?uploads", "/lake/k?uploadId=x", "/lake"][..]),
            (
                Method::DELETE,
                &["/lake/k?uploadId=x", "/lake/k?versionId=null", "/lake/k?tagging", "/lake"][..],
            ),
        ] {
            for target in targets {
                assert_eq!(code(&method, target), None, "{method} {target}");
            }
        }
    }
}
