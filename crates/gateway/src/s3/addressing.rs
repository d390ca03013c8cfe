//! How clients address the gateway: which bucket the `Host` of a request names, and the URL and region that answers
//! give.
//!
//! `Host` is signed, so what a client meant is known. A name that is not the gateway's own may stand for a bucket; the
//! path then begins with a key. Such a request is refused, since it would be carried out on another bucket.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use s3s::host::{S3Host, VirtualHost};
use s3s::{S3Error, S3ErrorCode, S3Result};

use super::answers::invalid_request;
use crate::url_escapes;

/// Always this machine.
const LOCALHOST: &str = "localhost";
/// The region that clients sign for by default.
pub(crate) const USUAL_REGION: &str = "us-east-1";

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct BucketAddressing {
    /// The gateway's own names, in lower case.
    hosts: Vec<String>,
    region: Option<String>,
    has_tls: bool,
}

/// Where a request names its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AddressingStyle {
    /// As the first segment of its path.
    Path,
    /// Before the gateway's name in its `Host`.
    Virtual(String),
}

/// The target of a request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathLevel {
    Bucket,
    Object,
}

impl AddressingStyle {
    /// Of a request with this path; `None` where it names neither.
    pub(super) fn level(&self, path: &str) -> Option<PathLevel> {
        let path = path.trim_start_matches('/');
        let key = match self {
            AddressingStyle::Virtual(_) => path,
            AddressingStyle::Path if path.is_empty() => return None,
            AddressingStyle::Path => path.split_once('/').map_or("", |(_, key)| key),
        };
        Some(if key.is_empty() { PathLevel::Bucket } else { PathLevel::Object })
    }
}

impl BucketAddressing {
    pub(crate) fn new(hosts: &[String], region: Option<&str>, has_tls: bool) -> BucketAddressing {
        let mut hosts: Vec<String> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        // Of two names that end alike, the longer one is meant.
        hosts.sort_by_key(|host| std::cmp::Reverse(host.len()));
        BucketAddressing { hosts, region: region.map(str::to_owned), has_tls }
    }

    /// The region that answers name.
    pub(crate) fn region(&self) -> &str {
        self.region.as_deref().unwrap_or(USUAL_REGION)
    }

    /// Whether a signature may be for this region: for any one, unless the configuration has one.
    pub(super) fn is_region(&self, region: &str) -> bool {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        match &self.region {
            Some(own) => own == region,
            None => !region.is_empty() && region.bytes().all(is_name),
        }
    }

    /// The bucket in a `Host` header.
    ///
    /// # Errors
    /// When it is none of the gateway's names, and may be a bucket's.
    pub(crate) fn style_of(&self, host: &str) -> S3Result<AddressingStyle> {
        let name = without_port(host).trim_end_matches('.');
        // A name without a dot has no room for a bucket.
        if !name.contains('.') || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return Ok(AddressingStyle::Path);
        }
        let name = name.to_ascii_lowercase();
        for own in self.hosts.iter().map(String::as_str).chain([LOCALHOST]) {
            match name.strip_suffix(own).map(|before| before.strip_suffix('.').unwrap_or(before)) {
                Some("") => return Ok(AddressingStyle::Path),
                Some(bucket) if name.len() > bucket.len() + own.len() => {
                    return Ok(AddressingStyle::Virtual(bucket.to_owned()));
                }
                _ => {}
            }
        }
        if let Some(bucket) = before_address(&name) {
            return Ok(AddressingStyle::Virtual(bucket.to_owned()));
        }
        Err(invalid_request(format!(
            "this gateway does not know itself as {:?}, which may begin with a bucket's name: use the gateway's address and path style, \
             or add the host that clients use to its configuration, as in `hosts = [\"gateway.example\"]`",
            host.chars().take(200).collect::<String>()
        )))
    }

    /// The same of all headers of a request. One without a `Host` has its bucket in the path.
    ///
    /// # Errors
    /// As [`style_of`](Self::style_of), or when there are several.
    pub(crate) fn style_in(&self, headers: &HeaderMap) -> S3Result<AddressingStyle> {
        let mut hosts = headers.get_all(HOST).iter();
        let Some(host) = hosts.next() else { return Ok(AddressingStyle::Path) };
        if hosts.next().is_some() {
            // RFC 9112, section 3.2.
            return Err(invalid_request("the request has several Host headers"));
        }
        self.style_of(host.to_str().map_err(|_| invalid_request("the Host header is not a valid name"))?)
    }

    /// The path that a request would have in path style, for those who read of it later.
    pub(crate) fn path_of<'a>(&self, headers: &HeaderMap, path: &'a str) -> Cow<'a, str> {
        match self.style_in(headers) {
            Ok(AddressingStyle::Virtual(bucket)) => Cow::Owned(format!("/{bucket}{path}")),
            _ => Cow::Borrowed(path),
        }
    }

    /// The URL of an object for the client that asked, in the style in which it asked.
    pub(super) fn url_of(&self, headers: &HeaderMap, bucket: &str, key: &str) -> String {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).filter(|host| !host.is_empty());
        let key = url_escapes::escape_in_path(key.as_bytes());
        let Some(host) = host else { return format!("/{bucket}/{key}") };
        let scheme = if self.has_tls { "https" } else { "http" };
        match self.style_of(host) {
            Ok(AddressingStyle::Virtual(_)) => format!("{scheme}://{host}/{key}"),
            _ => format!("{scheme}://{host}/{bucket}/{key}"),
        }
    }
}

/// For `s3s`.
pub(super) struct VirtualHosts(pub(super) Arc<BucketAddressing>);

impl S3Host for VirtualHosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        Ok(match self.0.style_of(host)? {
            AddressingStyle::Path => VirtualHost::new(host),
            AddressingStyle::Virtual(bucket) => VirtualHost::new(host).with_bucket(bucket),
        })
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An address of IPv6 without brackets has no port.
        Some((name, _)) if name.contains(':') && !name.ends_with(']') => host,
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The label before an address: no host has such a name, so it can only be a bucket.
fn before_address(name: &str) -> Option<&str> {
    let address: Vec<&str> = name.rsplitn(5, '.').collect();
    let [d, c, b, a, bucket] = address[..] else { return None };
    format!("{a}.{b}.{c}.{d}").parse::<Ipv4Addr>().is_ok().then_some(bucket)
}

/// A method that the place of a request does not have: RFC 9110, section 15.5.6.
pub(super) fn not_allowed(allowed: &'static str) -> S3Error {
    let mut refused = S3Error::with_message(
        S3ErrorCode::MethodNotAllowed,
        "S3 does not have this method for this resource",
    );
    let headers = [
        (ALLOW, HeaderValue::from_static(allowed)),
        (CONTENT_TYPE, HeaderValue::from_static("application/xml")),
    ];
    refused.set_headers(headers.into_iter().collect());
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(hosts: &[&str], host: &str) -> Option<AddressingStyle> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        BucketAddressing::new(&hosts, None, false).style_of(host).ok()
    }

    fn bucket(name: &str) -> Option<AddressingStyle> {
        Some(AddressingStyle::Virtual(name.to_owned()))
    }

    #[test]
    fn host_is_gateway_or_bucket() {
        let hosts = ["gateway.example", "s3.gateway.example", "store"];
        for (host, expected) in [
            ("gateway.example", Some(AddressingStyle::Path)),
            ("Gateway.Example:9000", Some(AddressingStyle::Path)),
            ("gateway.example.", Some(AddressingStyle::Path)),
            ("lake.gateway.example", bucket("lake")),
            ("a.b.gateway.example:9000", bucket("a.b")),
            ("s3.gateway.example", Some(AddressingStyle::Path)),
            ("lake.s3.gateway.example", bucket("lake")),
            ("lake.store", bucket("lake")),
            ("lakegateway.example", None),
            ("other.example", None),
            ("gateway.example.evil", None),
        ] {
            assert_eq!(style(&hosts, host), expected, "{host}");
        }
    }

    #[test]
    fn hosts_without_configured_names_are_addresses_or_plain_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9000",
            "[::1]:9000",
            "[::1]",
            "::1",
            "localhost",
            "LOCALHOST:9000",
            "gateway:9000",
            "",
        ] {
            assert_eq!(style(&[], host), Some(AddressingStyle::Path), "{host}");
        }
        assert_eq!(style(&[], "lake.localhost:9000"), bucket("lake"));
        assert_eq!(style(&[], "lake.127.0.0.1:9000"), bucket("lake"));
        assert_eq!(style(&[], "a.b.127.0.0.1"), bucket("a.b"));
        for host in ["lake.gateway", "gateway.example", "lake.gateway.example:9000", "1.2.3", ".localhosts.x"]
        {
            assert_eq!(style(&[], host), None, "{host}");
        }
    }

    #[test]
    fn object_url_follows_request_style() {
        let addressing = BucketAddressing::new(&["gateway.example".to_owned()], None, true);
        let url = |host: &str| {
            let headers = [(HOST, host.parse().unwrap())].into_iter().collect();
            addressing.url_of(&headers, "lake", "a b/c+d")
        };
        assert_eq!(url("gateway.example:9000"), "https://gateway.example:9000/lake/a%20b/c%2Bd");
        assert_eq!(url("lake.gateway.example"), "https://lake.gateway.example/a%20b/c%2Bd");
        assert_eq!(addressing.url_of(&HeaderMap::new(), "lake", "a"), "/lake/a");
        let path = |host: &'static str| {
            let headers = [(HOST, HeaderValue::from_static(host))].into_iter().collect();
            addressing.path_of(&headers, "/a/b").into_owned()
        };
        assert_eq!(
            (path("gateway.example"), path("lake.gateway.example")),
            ("/a/b".to_owned(), "/lake/a/b".to_owned())
        );
    }
}
