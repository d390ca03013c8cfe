//! The addresses that a worker may connect to. The coordinator names the endpoints, but the password comes from the
//! worker's environment. Without a list of its own, the worker would send it to any address that the coordinator names.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::error::SystemError;

/// The option and the environment variable that the list comes from.
pub(crate) const OPTION: &str = "--may-connect";
pub const VARIABLE: &str = "UNDERLAY_MAY_CONNECT";

/// Which existing clusters may be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MayConnect {
    /// The endpoints are named by the user who started this process.
    #[default]
    Anywhere,
    /// Somebody else names them and there is no list: any may be connected to, but only without user and password.
    WithoutCredentials,
    Listed(Vec<AllowedEndpoint>),
}

/// An entry of the list: a host, with one port or all of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedEndpoint {
    host: AllowedHost,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedHost {
    Address(IpAddr),
    Name(String),
}

/// The list as addresses. Names are looked up once, when a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectAllowlist(Vec<(IpAddr, Option<u16>)>);

impl FromStr for AllowedEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        place(text).ok_or_else(|| {
            format!("'{text}' is not a host: expected HOST or HOST:PORT, such as 10.0.0.1:9042, [::1]:9042 or db.example")
        })
    }
}

fn place(text: &str) -> Option<AllowedEndpoint> {
    let port = |text: &str| text.parse().ok().filter(|&port: &u16| port != 0);
    if let Some(rest) = text.strip_prefix('[') {
        let (address, after) = rest.split_once(']')?;
        let host = AllowedHost::Address(IpAddr::V6(address.parse().ok()?).to_canonical());
        return match after.strip_prefix(':') {
            Some(digits) => Some(AllowedEndpoint { host, port: Some(port(digits)?) }),
            None => after.is_empty().then_some(AllowedEndpoint { host, port: None }),
        };
    }
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(AllowedEndpoint {
            host: AllowedHost::Address(IpAddr::V6(address).to_canonical()),
            port: None,
        });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => (host, Some(port(digits)?)),
        None => (text, None),
    };
    if let Ok(address) = host.parse() {
        return Some(AllowedEndpoint { host: AllowedHost::Address(IpAddr::V4(address)), port });
    }
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_name = name.split('.').all(|label| !label.is_empty() && label.chars().all(letters));
    // `10.0.0.256` and `10.1` are mistakes that some resolvers would accept as addresses.
    let is_number =
        name.rsplit('.').next().is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit()));
    (is_name && !is_number)
        .then(|| AllowedEndpoint { host: AllowedHost::Name(name.to_ascii_lowercase()), port })
}

/// Entries separated by commas. An error names the one that is wrong.
///
/// # Errors
/// The first entry that is not a host, with or without a port.
pub fn parse(text: &str) -> Result<Vec<AllowedEndpoint>, String> {
    text.split(',').map(|word| word.trim().parse()).collect()
}

impl ConnectAllowlist {
    fn look_up(places: &[AllowedEndpoint]) -> ConnectAllowlist {
        let mut all = Vec::new();
        for AllowedEndpoint { host, port } in places {
            match host {
                AllowedHost::Address(address) => all.push((*address, *port)),
                // A name without an address allows nothing; a run that needs it fails with an error that names it.
                AllowedHost::Name(name) => {
                    let found = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
                    all.extend(found.map(|address| (address.ip().to_canonical(), *port)));
                }
            }
        }
        ConnectAllowlist(all)
    }

    pub fn has(&self, address: IpAddr, port: u16) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|&(listed, only)| listed == address && only.is_none_or(|only| only == port))
    }

    /// For another process: `ADDRESS PORT`, separated by commas, where port 0 means all ports.
    pub(crate) fn to_words(&self) -> String {
        let words = self.0.iter().map(|(address, port)| format!("{address} {}", port.unwrap_or(0)));
        words.collect::<Vec<_>>().join(",")
    }
}

impl MayConnect {
    /// The list that every connection must be on, and the addresses of `endpoints` that are on it; `None` without a
    /// list. `credentials` are the variables that user and password of `system` come from, if they are set.
    ///
    /// # Errors
    /// When one of the `endpoints`, which the setting `key` names, may not be connected to.
    pub fn check(
        &self,
        system: &'static str,
        (key, endpoints): (&str, &[String]),
        credentials: Option<[&str; 2]>,
    ) -> Result<Option<(ConnectAllowlist, Vec<SocketAddr>)>, SystemError> {
        let refused = |problem: String| SystemError::Setting { system, key: key.to_owned(), problem };
        let places = match (self, credentials) {
            (MayConnect::Anywhere, _) | (MayConnect::WithoutCredentials, None) => return Ok(None),
            (MayConnect::WithoutCredentials, Some([user, password])) => {
                let problem = format!(
                    "this worker has a user and a password but no list of hosts that it may send them to: start it with {} (or set {VARIABLE}), \
                     or without {user} and {password}",
                    options(endpoints)
                );
                return Err(refused(problem));
            }
            (MayConnect::Listed(places), _) => places,
        };
        let allowed = ConnectAllowlist::look_up(places);
        let mut addresses = Vec::new();
        for endpoint in endpoints {
            let found = endpoint.to_socket_addrs();
            let found = found.map_err(|error| refused(format!("can't resolve '{endpoint}': {error}")))?;
            let before = addresses.len();
            addresses.extend(found.filter(|address| allowed.has(address.ip(), address.port())));
            if addresses.len() == before {
                return Err(refused(not_listed(std::slice::from_ref(endpoint))));
            }
        }
        Ok(Some((allowed, addresses)))
    }
}

/// Why these endpoints are not connected to.
pub(crate) fn not_listed(endpoints: &[String]) -> String {
    format!(
        "this worker may not connect to {}: start it with {} as well (or name it in {VARIABLE})",
        endpoints.join(", "),
        options(endpoints)
    )
}

fn options(endpoints: &[String]) -> String {
    endpoints.iter().map(|endpoint| format!("{OPTION} {endpoint}")).collect::<Vec<_>>().join(" ")
}

/// The nodes of a cluster that are not on the list.
pub fn strangers(allowed: &ConnectAllowlist, nodes: impl IntoIterator<Item = (IpAddr, u16)>) -> Vec<String> {
    let strange = nodes.into_iter().filter(|&(address, port)| !allowed.has(address, port));
    let named: BTreeMap<SocketAddr, ()> =
        strange.map(|(address, port)| (SocketAddr::new(address, port), ())).collect();
    named.into_keys().map(|address| address.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> MayConnect {
        MayConnect::Listed(parse(text).unwrap())
    }

    fn check(list: &MayConnect, endpoint: &str, credentials: bool) -> Result<(), String> {
        let variables = credentials.then_some(["DB_USER", "DB_PASSWORD"]);
        let checked = list.check("cassandra", ("endpoints", &[endpoint.to_owned()]), variables);
        checked.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_are_read_with_ports_and_without() {
        let read = |text: &str| text.parse::<AllowedEndpoint>().map(|place| (place.host, place.port));
        let address = |text: &str| AllowedHost::Address(text.parse().unwrap());
        let name = |text: &str| AllowedHost::Name(text.to_owned());
        for (text, host, port) in [
            ("10.0.0.1", address("10.0.0.1"), None),
            ("10.0.0.1:9042", address("10.0.0.1"), Some(9042)),
            ("[::1]:9042", address("::1"), Some(9042)),
            ("[::1]", address("::1"), None),
            ("2001:db8::1", address("2001:db8::1"), None),
            ("::ffff:10.0.0.1", address("10.0.0.1"), None),
            ("DB-1.Example.", name("db-1.example"), None),
            ("db_1:9042", name("db_1"), Some(9042)),
            ("3com.example", name("3com.example"), None),
        ] {
            assert_eq!(read(text), Ok((host, port)), "{text}");
        }
        for text in [
            "",
            ":9042",
            "a:",
            "a:0",
            "a:65536",
            "a:x",
            "a b",
            "a/b",
            "[::1",
            "[::1]9042",
            "[::1]:",
            "[10.0.0.1]:1",
            "::1%lo",
            // Numbers and dots that are no address could be taken for a name, and resolve to something.
            "10.0.0.256",
            "10.1",
            "1:2:3",
            "a..b",
            "http://a",
            "*",
            "*.example",
            "10.0.0.0/8",
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(&format!("'{text}' is not a host")), "{error}");
        }
        assert_eq!(parse("10.0.0.1, [::1]:9042").unwrap().len(), 2);
        assert!(parse("10.0.0.1,,b").is_err());
    }

    #[test]
    fn only_listed_addresses_are_reachable() {
        let list = listed("127.0.0.1:9042,127.0.0.2,[::1]:9042,localhost:9142");
        for endpoint in [
            "127.0.0.1:9042",
            "127.0.0.2:1",
            "[::1]:9042",
            "[::ffff:127.0.0.1]:9042",
            "localhost:9142",
            "127.0.0.1:9142",
        ] {
            assert_eq!(check(&list, endpoint, true), Ok(()), "{endpoint}");
        }
        for endpoint in ["127.0.0.1:9043", "127.0.0.3:9042", "[::1]:9043", "localhost:9043"] {
            // Without a password it may not either: the list says where it may connect to.
            for credentials in [true, false] {
                let error = check(&list, endpoint, credentials).unwrap_err();
                assert!(error.contains(&format!("--may-connect {endpoint}")), "{error}");
                assert!(error.starts_with("cassandra: setting 'endpoints'"), "{error}");
            }
        }
        // A name that has no address allows nothing.
        assert!(check(&listed("no-such-host.invalid"), "127.0.0.1:9042", true).is_err());
    }

    #[test]
    fn without_a_list_no_password_is_sent() {
        let error = check(&MayConnect::WithoutCredentials, "10.0.0.9:9042", true).unwrap_err();
        for word in ["--may-connect 10.0.0.9:9042", VARIABLE, "DB_USER and DB_PASSWORD"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert_eq!(check(&MayConnect::WithoutCredentials, "10.0.0.9:9042", false), Ok(()));
        assert_eq!(check(&MayConnect::Anywhere, "10.0.0.9:9042", true), Ok(()));
    }

    #[test]
    fn only_addresses_on_the_list_are_given() {
        let checked = listed("[::1]").check("x", ("endpoints", &["[::1]:7".to_owned()]), None).unwrap();
        let (allowed, addresses) = checked.unwrap();
        assert_eq!(addresses, ["[::1]:7".parse().unwrap()]);
        assert_eq!(allowed.to_words(), "::1 0");
        let node = |text: &str| (text.parse::<IpAddr>().unwrap(), 9042);
        assert_eq!(strangers(&allowed, [node("::1"), node("10.0.0.2"), node("10.0.0.2")]), ["10.0.0.2:9042"]);
    }
}
