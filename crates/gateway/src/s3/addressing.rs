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
use s3s::path::{ParseS3PathError, S3Path, parse_virtual_hosted_style};
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

/// The kind of thing that a request's path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathLevel {
    /// The gateway as a whole.
    Service,
    Bucket,
    Object,
}

impl AddressingStyle {
    /// The bucket and the key that a path names. Each decision by the path asks here: `s3s` carries out what its own
    /// functions read, and anybody who reads another name refuses or admits another operation.
    ///
    /// # Errors
    /// Those of `s3s`, which carries out nothing for such a path.
    pub(crate) fn target(&self, path: &str) -> S3Result<S3Path> {
        // Escapes first: an escaped slash separates bucket and key as the others do.
        let path = String::from_utf8(url_escapes::decode(path));
        let path = path.map_err(|_| unreadable("the path of the request is not UTF-8"))?;
        let bucket = match self {
            AddressingStyle::Path => None,
            AddressingStyle::Virtual(bucket) => Some(bucket.as_str()),
        };
        parse_virtual_hosted_style(bucket, &path).map_err(|cause| match cause {
            ParseS3PathError::InvalidPath => {
                unreadable("the path of the request does not begin with a slash")
            }
            ParseS3PathError::InvalidBucketName => {
                S3Error::with_message(S3ErrorCode::InvalidBucketName, "no bucket can have this name")
            }
            ParseS3PathError::KeyTooLong => {
                S3Error::with_message(S3ErrorCode::KeyTooLongError, "a key has at most 1024 bytes")
            }
        })
    }

    /// # Errors
    /// As [`target`](Self::target).
    pub(super) fn level(&self, path: &str) -> S3Result<PathLevel> {
        self.target(path).map(|target| match target {
            S3Path::Root => PathLevel::Service,
            S3Path::Bucket { .. } => PathLevel::Bucket,
            S3Path::Object { .. } => PathLevel::Object,
        })
    }
}

fn unreadable(reason: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidURI, reason)
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
    use hyper::Request;
    use proptest::prelude::*;
    use s3s::access::{S3Access, S3AccessContext};
    use s3s::auth::{S3Auth, SecretKey};
    use s3s::service::{S3Service, S3ServiceBuilder};
    use s3s::{Body, S3};
    use underlay_sync::Mutex;

    use super::*;

    /// Notes what `s3s` takes a path for, and carries out nothing.
    #[derive(Clone, Default)]
    struct TargetRecorder(Arc<Mutex<Option<String>>>);

    impl S3 for TargetRecorder {}

    #[async_trait::async_trait]
    impl S3Auth for TargetRecorder {
        async fn get_secret_key(&self, _: &str) -> S3Result<SecretKey> {
            Err(invalid_request("nobody signs here"))
        }
    }

    #[async_trait::async_trait]
    impl S3Access for TargetRecorder {
        async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
            *self.0.lock() = Some(format!("{:?}", context.s3_path()));
            Err(invalid_request("read"))
        }
    }

    fn addressing_of_example() -> BucketAddressing {
        BucketAddressing::new(&["gateway.example".to_owned()], None, false)
    }

    fn recording_service() -> (TargetRecorder, S3Service) {
        let recorder = TargetRecorder::default();
        let mut builder = S3ServiceBuilder::new(recorder.clone());
        builder.set_auth(recorder.clone());
        builder.set_access(recorder.clone());
        builder.set_host(VirtualHosts(Arc::new(addressing_of_example())));
        (recorder, builder.build())
    }

    /// What `s3s` takes a path for; nothing where it refuses it.
    fn target_in_s3s(
        (recorder, service): &(TargetRecorder, S3Service),
        host: &str,
        path: &str,
    ) -> Option<String> {
        *recorder.0.lock() = None;
        let request = Request::builder().uri(path).header(HOST, host).body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(service.call(request)).unwrap();
        recorder.0.lock().take()
    }

    fn check_as_s3s(service: &(TargetRecorder, S3Service), path: &str) {
        for (host, style) in [
            ("gateway.example", AddressingStyle::Path),
            ("lake.gateway.example", AddressingStyle::Virtual("lake".to_owned())),
        ] {
            let target = style.target(path).ok();
            let shown = target.as_ref().map(|target| format!("{target:?}"));
            assert_eq!(shown, target_in_s3s(service, host, path), "{host} {path}");
            let level = match target {
                None => None,
                Some(S3Path::Root) => Some(PathLevel::Service),
                Some(S3Path::Bucket { .. }) => Some(PathLevel::Bucket),
                Some(S3Path::Object { .. }) => Some(PathLevel::Object),
            };
            assert_eq!(style.level(path).ok(), level, "{host} {path}");
        }
    }

    #[test]
    fn path_names_what_s3s_reads() {
        let service = recording_service();
        for path in [
            "/",
            "//",
            "///",
            "/%2F",
            "/lake",
            "/lake/",
            "/lake%2F",
            "/lake//",
            "/lake%2fkey",
            "/l%61ke%2Fkey",
            "/lake%252Fkey",
            "//lake/key",
            "/lake/%ff",
            "/lake/100%",
            "/Lake/key",
            "/lake/%00",
        ] {
            check_as_s3s(&service, path);
        }
        let own = AddressingStyle::Virtual("lake".to_owned());
        let level = |style: &AddressingStyle, path: &str| style.level(path).ok();
        assert_eq!(level(&AddressingStyle::Path, "/lake%2Fkey"), Some(PathLevel::Object));
        assert_eq!(level(&AddressingStyle::Path, "/lake%2F"), Some(PathLevel::Bucket));
        assert_eq!((level(&own, "/"), level(&own, "//")), (Some(PathLevel::Bucket), Some(PathLevel::Object)));
    }

    /// Each byte as it is or escaped, with capitals or without.
    fn escaped(text: &str, choices: &[u8]) -> String {
        let mut choices = choices.iter().cycle();
        let write = |byte: u8| match choices.next().map_or(0, |choice| choice % 3) {
            0 if byte.is_ascii_alphanumeric() || b"/-._~+!$&'()*,;=:@".contains(&byte) => {
                char::from(byte).to_string()
            }
            1 => format!("%{byte:02x}"),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(write).collect()
    }

    proptest! {
        #[test]
        fn path_level_is_that_of_s3s(
            bucket in "(lake|[a-z/]{0,4})",
            key in "(/{0,2}|[a%/]{0,6}|\\PC{0,12})",
            choices in prop::collection::vec(any::<u8>(), 1..24),
            odd in "([a/%2Ff]|%2F|%2f|%25){0,8}",
        ) {
            let service = recording_service();
            check_as_s3s(&service, &format!("/{}", escaped(&format!("{bucket}/{key}"), &choices)));
            check_as_s3s(&service, &format!("/{}", escaped(&key, &choices)));
            check_as_s3s(&service, &format!("/lake{odd}"));
            check_as_s3s(&service, &format!("/{odd}"));
        }
    }

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
