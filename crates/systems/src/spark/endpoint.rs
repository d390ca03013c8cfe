//! Where an S3 store is that is not started here, and what the environment has for it.

use std::net::{IpAddr, Ipv4Addr};

use super::NAME;
use crate::ceph::S3Keys;
use crate::credentials::missing;
use crate::port_forward::ADDRESS;
use crate::system::SystemError;

/// `https://s3.example.com`, or another port: `http://10.0.0.5:9000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreEndpoint {
    pub https: bool,
    pub host: String,
    pub port: u16,
}

impl StoreEndpoint {
    pub(super) fn read(text: &str) -> Result<StoreEndpoint, String> {
        let expected = || {
            format!(
                "expected https:// or http:// and a host, such as https://s3.example.com or http://10.0.0.5:9000, not '{text}'"
            )
        };
        let (https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(expected()),
        };
        if rest.contains('@') {
            return Err("expected no user and no key in it: name the variables that have them by `access_key_variable` and `secret_key_variable`".to_owned());
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.split_once(':') {
            Some((host, digits)) => {
                (host, digits.parse().ok().filter(|&port: &u16| port != 0).ok_or_else(expected)?)
            }
            None => (rest, if https { 443 } else { 80 }),
        };
        let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
        if host.split('.').any(|label| label.is_empty() || !label.chars().all(plain)) {
            return Err(expected());
        }
        let endpoint = StoreEndpoint { https, host: host.to_ascii_lowercase(), port };
        if https && endpoint.is_address() {
            return Err(
                "expected a name and no address behind https://, since certificates are for names".to_owned()
            );
        }
        Ok(endpoint)
    }

    pub(super) fn show(&self) -> String {
        let (scheme, usual) = if self.https { ("https", 443) } else { ("http", 80) };
        match self.port == usual {
            true => format!("{scheme}://{}", self.host),
            false => format!("{scheme}://{}:{}", self.host, self.port),
        }
    }

    fn is_address(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }

    /// By which clients in the network of Spark know it: a name is looked up in [`names`](StoreEndpoint::names) there,
    /// and an address is the door's.
    pub(super) fn host_inside(&self) -> String {
        if self.is_address() { ADDRESS.to_string() } else { self.host.clone() }
    }

    /// The line of a file of hosts.
    pub(super) fn names(&self, bucket: &str) -> String {
        match self.is_address() {
            true => String::new(),
            false => format!("{ADDRESS} {} {bucket}.{}\n", self.host, self.host),
        }
    }

    /// The address that may be connected to: `HOST:PORT`.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub(super) fn url_inside(&self) -> String {
        StoreEndpoint { host: self.host_inside(), ..self.clone() }.show()
    }
}

/// A bucket's name as all stores allow it (3 to 63 characters).
pub(super) fn bucket(text: &str) -> Result<String, String> {
    let plain =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
    let is_address = text.parse::<Ipv4Addr>().is_ok();
    match (3..=63).contains(&text.len()) && text.chars().all(plain) && !is_address && !text.contains("..") {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "expected a bucket's name (3 to 63 small letters, digits, '-' and '.'), not '{text}'"
        )),
    }
}

pub(super) fn region(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected a region, such as eu-central-1, not '{text}'")),
    }
}

/// The name of a variable, never what it has: a study is read by more people than a key should be.
pub(super) fn variable(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    // Keys have small letters or no underscore, so that none passes for a name and is printed.
    match text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.contains('_')
        && text.chars().all(plain)
    {
        true => Ok(text.to_owned()),
        // Without the text, which may be the key itself.
        false => Err("expected the name of an environment variable in capitals with an underscore, such as S3_SECRET_KEY: what is written here does not stay secret".to_owned()),
    }
}

/// The values of environment variables: the two keys, and the token of a session.
///
/// # Errors
/// Which variable is not set, or has something that is no key.
pub(super) fn keys(
    [access, secret]: [&str; 2],
    token: Option<&str>,
    read: impl Fn(&str) -> Option<String>,
) -> Result<(S3Keys, Option<String>), SystemError> {
    let value = |name: &str| {
        let remedy = format!("set {name} to what the store at the study's `endpoint` gave you");
        let value =
            read(name).filter(|value| !value.is_empty()).ok_or_else(|| missing(NAME, name, remedy))?;
        // Spark's file of settings would read anything else in a way of its own.
        match value.chars().all(|letter| letter.is_ascii_graphic() && letter != '\\') {
            true => Ok(value),
            false => Err(SystemError::starting(
                NAME,
                format!("the environment variable {name} has characters that no key of S3 has"),
            )),
        }
    };
    let [access, secret] = [access, secret].map(value);
    let token = token.map(value).transpose()?;
    Ok((S3Keys { access: access?, secret: secret? }, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_scheme_host_and_port() {
        for (text, url_inside, names) in [
            (
                "https://s3.example.com/",
                "https://s3.example.com",
                "127.1.1.1 s3.example.com b.s3.example.com\n",
            ),
            ("http://S3:9000", "http://s3:9000", "127.1.1.1 s3 b.s3\n"),
            ("http://10.0.0.5:9000", "http://127.1.1.1:9000", ""),
        ] {
            let endpoint = StoreEndpoint::read(text).unwrap();
            assert_eq!((endpoint.url_inside().as_str(), endpoint.names("b").as_str()), (url_inside, names));
        }
        for text in [
            "s3.example.com",
            "ftp://a",
            "https://",
            "https://a:0",
            "https://a:b",
            "https://a/b",
            "https://a b",
            "https://10.0.0.1",
        ] {
            assert!(StoreEndpoint::read(text).is_err(), "{text}");
        }
        let message = StoreEndpoint::read("https://key:secret@a").unwrap_err();
        assert!(message.contains("access_key_variable") && !message.contains("secret@"), "{message}");
    }

    #[test]
    fn key_in_study_is_refused_without_quoting() {
        let message = variable("AKIA+secret/key=").unwrap_err();
        assert!(!message.contains("AKIA"), "{message}");
        assert!(variable("AKIAIOSFODNN7EXAMPLE").is_err() && variable("wJalr_XUtnFEMI").is_err());
        assert_eq!(variable("S3_KEY").unwrap(), "S3_KEY");
        assert!(bucket("My_Bucket").is_err() && bucket("10.0.0.1").is_err() && bucket("my-bucket").is_ok());
    }

    #[test]
    fn unset_variable_is_named() {
        let names = ["A", "B"];
        let keys_with =
            |value: &'static str| keys(names, None, move |name| (name != value).then(|| format!("of{name}")));
        assert_eq!(keys_with("").unwrap().0.secret, "ofB");
        assert!(keys_with("B").unwrap_err().to_string().contains("the environment variable B"));
        let odd = keys(names, None, |_| Some("a b".to_owned())).unwrap_err().to_string();
        assert!(odd.contains("variable A") && !odd.contains("a b"), "{odd}");
    }
}
