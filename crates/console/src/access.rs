//! Who may come in: a client with a session or the read-only token, that uses one of this host's own names, from a page
//! of ours.
//!
//! A page of somebody else's that is open in the same browser can send requests here. It knows neither token nor
//! cookie, and `SameSite=Strict` keeps the browser from adding the cookie. Where its own name was made to lead here
//! (DNS rebinding), the cookie is not that name's, and the name is not among those that are answered.
//!
//! A cookie is sent to every port of a name, and so to another user's server at another port of 127.0.0.1. So browsers
//! are served only at a name that is drawn anew at each start (`u-RANDOM.localhost`, which browsers lead to loopback).
//! Nobody can ask another port by an unknown name, and no page of an earlier console, or of its port's next owner,
//! shares the origin. From other hosts there is no such name: there, a certificate has to be shown beside the cookie.

use std::net::IpAddr;

use openssl::memcmp;

/// Random bytes in hexadecimal, compared in a time that tells nothing.
#[derive(Clone)]
pub struct AccessSecret(String);

/// Of a secret that the user brings.
const MIN_LENGTH: usize = 16;
const MAX_LENGTH: usize = 256;

impl AccessSecret {
    /// # Errors
    /// When the kernel has no random numbers.
    pub fn generate() -> Result<AccessSecret, getrandom::Error> {
        let mut bytes = [0; 24];
        getrandom::fill(&mut bytes)?;
        Ok(AccessSecret(base16ct::lower::encode_string(&bytes)))
    }

    /// A token that the user brings.
    ///
    /// # Errors
    /// When it is too short, or would have to be escaped in an address.
    pub fn parse(text: &str) -> Result<AccessSecret, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
        match text {
            short if short.len() < MIN_LENGTH => {
                Err(format!("the token has {} characters: expected {MIN_LENGTH} at least", short.len()))
            }
            long if long.len() > MAX_LENGTH => {
                Err(format!("the token has more than {MAX_LENGTH} characters"))
            }
            plain if plain.chars().all(is_plain) => Ok(AccessSecret(plain.to_owned())),
            _ => Err("the token has other characters than letters, digits, '-', '_', '.' and '~'".to_owned()),
        }
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn is(&self, other: &str) -> bool {
        self.0.len() == other.len() && memcmp::eq(self.0.as_bytes(), other.as_bytes())
    }
}

impl std::fmt::Debug for AccessSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Names of this host that requests may be for, beside addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub struct HostNames(Vec<String>);

impl HostNames {
    pub fn new(names: impl IntoIterator<Item = String>) -> HostNames {
        HostNames(names.into_iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect())
    }

    /// The first that was declared.
    pub(crate) fn first(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }

    /// Whether a `ConsoleHost` header names this host. An address can't be rebound, and a name is only known if it was
    /// declared.
    pub(crate) fn allow(&self, host: &str) -> bool {
        let Some(name) = host_name(host) else { return false };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        name == "localhost" || bare.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }
}

/// The part of `name:port` before the port.
pub(crate) fn host_name(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, rest) = host.split_at(end);
    let has_port = |rest: &str| {
        rest.strip_prefix(':')
            .is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
    };
    (!name.is_empty() && (rest.is_empty() || has_port(rest))).then_some(name)
}

/// The port of `name:port`.
pub(crate) fn port_of(host: &str) -> Option<&str> {
    host.get(host_name(host)?.len()..)?.strip_prefix(':')
}

/// Whether a request's `Origin` is a page of ours: the same scheme, name and port that the request is for.
pub(crate) fn is_own_origin(origin: &str, scheme: &str, host: &str) -> bool {
    let authority = origin.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// The value of a cookie, of a `Cookie` header.
pub(crate) fn cookie<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// The token of an `Authorization` header.
pub(crate) fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_names_of_this_host_are_answered() {
        let names = HostNames::new(["Lab-7.example.".to_owned()]);
        for own in [
            "127.0.0.1:7777",
            "127.0.0.1",
            "[::1]:80",
            "[::1]",
            "localhost:7777",
            "LOCALHOST",
            "localhost.",
            "lab-7.EXAMPLE:7777",
            "10.1.2.3:1",
        ] {
            assert!(names.allow(own), "{own}");
        }
        for foreign in [
            "rebound.example:7777",
            "127.0.0.1.nip.io",
            "localhost.example",
            "evil@localhost",
            "localhost:7777:8",
            "localhost:",
            "[::1",
            "[::1]x",
            "",
            ":80",
            "::1",
        ] {
            assert!(!names.allow(foreign), "{foreign}");
        }
    }

    #[test]
    fn port_follows_host_name() {
        for (host, port) in [
            ("127.0.0.1:7100", Some("7100")),
            ("[::1]:7", Some("7")),
            ("[::1]", None),
            ("lab", None),
            ("lab:", None),
        ] {
            assert_eq!(port_of(host), port, "{host}");
        }
    }

    #[test]
    fn page_is_ours_by_name_and_port() {
        assert!(is_own_origin("http://127.0.0.1:7777", "http", "127.0.0.1:7777"));
        assert!(is_own_origin("https://Lab.example:7", "https", "lab.example:7"));
        assert!(!is_own_origin("http://lab.example:7", "https", "lab.example:7"));
        for foreign in
            ["http://127.0.0.1:8080", "http://evil.example", "null", "", "127.0.0.1:7777", "file://"]
        {
            assert!(!is_own_origin(foreign, "http", "127.0.0.1:7777"), "{foreign}");
        }
    }

    #[test]
    fn secret_is_long_and_needs_no_escaping() {
        let secret = AccessSecret::generate().unwrap();
        assert!(
            secret.reveal().len() == 48 && secret.is(secret.reveal()) && !secret.is("") && !secret.is("x")
        );
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        assert!(AccessSecret::parse("0123456789abcdef").unwrap().is("0123456789abcdef"));
        for wrong in ["short", "0123456789abcde&", "0123456789abcde\n", &"x".repeat(300)] {
            assert!(AccessSecret::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cookies_and_bearers_are_taken_apart() {
        assert_eq!(cookie("a=1; underlay=two; b=3", "underlay"), Some("two"));
        assert_eq!(cookie("xunderlay=two", "underlay"), None);
        assert_eq!(bearer("Bearer  abc"), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
    }

    proptest! {
        #[test]
        fn host_header_of_any_bytes_never_panics(text in "\\PC{0,60}", other in "\\PC{0,30}") {
            let _ = HostNames::default().allow(&text);
            let _ = is_own_origin(&text, "https", &other);
            let _ = cookie(&text, &other);
            let _ = bearer(&text);
            let _ = port_of(&text);
        }
    }
}
