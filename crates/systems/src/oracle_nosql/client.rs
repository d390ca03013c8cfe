//! The client process: Oracle NoSQL Database's own client, from the user's installation.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::NAME;
use super::config::{ExistingStore, NosqlConfig};
use super::home::KvHome;
use crate::connect_allowlist::ConnectAllowlist;
use crate::credentials;
use crate::java::{ClassPath, Java};
use crate::java_server;
use crate::jvm::{self, JvmChild, JvmSpec};
use crate::network_namespace::NetworkNamespace;
use crate::private_file::write_private;
use crate::system::{LoadProgress, SystemError, SystemResources};

/// The client process is not part of the system, so its memory does not count towards the budget.
const HEAP_BYTES: u64 = 256 << 20;
/// The environment variables for an existing store that is secured: the file of its security properties, as Oracle
/// NoSQL Database's own clients take them, and a user with a password if the file does not name them.
const LOGIN_FILE: &str = "ORACLE_NOSQL_SECURITY";
pub(super) const USERNAME: &str = "ORACLE_NOSQL_USERNAME";
pub(super) const PASSWORD: &str = "ORACLE_NOSQL_PASSWORD";

/// A file of security properties has some ten lines.
const MAX_PROPERTIES_BYTES: u64 = 1 << 20;

/// Who one is at an existing store.
#[derive(Default)]
pub(super) struct StoreLogin {
    file: Option<PathBuf>,
    user: Option<(String, String)>,
}

impl StoreLogin {
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<StoreLogin, SystemError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let file = variable(LOGIN_FILE).map(PathBuf::from);
        if let Some(path) = &file {
            let refused = |problem: String, remedy: String| {
                let missing = format!("the security properties of the store ({}: {problem})", path.display());
                SystemError::Missing { system: NAME, missing, remedy }
            };
            let text = properties_in(path).map_err(|error| {
                let remedy =
                    format!("set {LOGIN_FILE} to a file of security properties that this user can read");
                refused(error.to_string(), remedy)
            })?;
            if !is_encrypted(&text) {
                return Err(refused(
                    "it does not say oracle.kv.transport=ssl".to_owned(),
                    "say it there, or passwords would be sent unencrypted".to_owned(),
                ));
            }
        }
        let user = credentials::read(variable, [USERNAME, PASSWORD]).map_err(|missing| {
            let remedy = format!("set both {USERNAME} and {PASSWORD}, or neither");
            credentials::missing(NAME, missing, remedy)
        })?;
        // A password must not go over a connection that nobody encrypts, and how to encrypt it stands in the file.
        if user.is_some() && file.is_none() {
            let remedy = format!(
                "set {LOGIN_FILE} to a file with oracle.kv.transport=ssl, so that the password of {USERNAME} is sent encrypted"
            );
            return Err(credentials::missing(NAME, LOGIN_FILE, remedy));
        }
        Ok(StoreLogin { file, user })
    }

    /// The variables that its secrets come from, if there are any.
    pub(super) fn named(&self) -> Option<[&'static str; 2]> {
        match (&self.user, &self.file) {
            (Some(_), _) => Some([USERNAME, PASSWORD]),
            (None, Some(_)) => Some([LOGIN_FILE, USERNAME]),
            (None, None) => None,
        }
    }
}

fn properties_in(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_PROPERTIES_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether Java's properties say so that connections are encrypted.
fn is_encrypted(properties: &str) -> bool {
    let lines = properties.lines().map(str::trim_start).filter(|line| !line.starts_with(['#', '!']));
    let mut values = lines.filter_map(|line| {
        let value = line.strip_prefix("oracle.kv.transport")?;
        let value = value.strip_prefix(|letter: char| letter.is_whitespace() || "=:".contains(letter))?;
        Some(value.trim_start_matches(|letter: char| letter.is_whitespace() || "=:".contains(letter)).trim())
    });
    // Of several the last one counts.
    values.next_back() == Some("ssl")
}

/// Compiles the driver against the client of the installation: what the client process finds its classes by.
pub(super) fn class_path(home: &KvHome, progress: &dyn Fn(&LoadProgress)) -> Result<ClassPath, SystemError> {
    Java::find(NAME)?;
    let child = JvmChild::prepare(NAME, progress)?;
    let needed = home.client().with_classes(child);
    let driver = jvm::ORACLE_NOSQL.classes(NAME, &needed, progress)?;
    Ok(home.client().with_classes(driver))
}

/// How to start the client process.
pub(super) struct ClientPlan<'a> {
    pub config: &'a NosqlConfig,
    pub home: &'a KvHome,
    /// Those of the store.
    pub resources: &'a SystemResources,
    pub fields: u32,
    pub timeout: Duration,
    pub limit: Duration,
    pub scratch: &'a Path,
}

impl ClientPlan<'_> {
    /// Starts it for `store`, in the network of a store that was started here. `allowed` is what it may connect to;
    /// `None`: anything.
    pub(super) fn start(
        &self,
        store: &ExistingStore,
        login: &StoreLogin,
        namespace: Option<&NetworkNamespace>,
        allowed: Option<&ConnectAllowlist>,
    ) -> Result<JvmChild, SystemError> {
        let written = |error: std::io::Error| {
            SystemError::starting(NAME, format!("can't write to {}: {error}", self.scratch.display()))
        };
        std::fs::create_dir_all(self.scratch).map_err(written)?;
        // Its log is for what goes wrong; of each connection that is lost the client would tell at length.
        let logging = self.scratch.join("client-logging.properties");
        write_private(&logging, "handlers=java.util.logging.ConsoleHandler\n.level=SEVERE\n")
            .map_err(written)?;
        let mut options = vec![format!("-Djava.util.logging.config.file={}", logging.display())];
        if namespace.is_some() {
            // There is no name service in the namespace.
            let hosts = self.scratch.join("client-hosts");
            write_private(&hosts, &java_server::hosts()).map_err(written)?;
            options.extend([java_server::hosts_option(&hosts), "-Djava.net.preferIPv4Stack=true".to_owned()]);
        }
        let mut properties = self.properties(store, login);
        if let Some(allowed) = allowed {
            properties.insert(jvm::MAY_CONNECT.to_owned(), allowed.to_words());
        }
        JvmChild::start(&JvmSpec {
            system: NAME,
            part: None,
            driver: jvm::ORACLE_NOSQL_DRIVER,
            class_path: class_path(self.home, &|_| {})?,
            properties,
            options,
            scratch: self.scratch,
            heap_bytes: HEAP_BYTES,
            resources: &self.resources.for_tools(),
            namespace,
            timeout: self.timeout,
            start_limit: self.limit,
            give_up: None,
        })
    }

    fn properties(&self, store: &ExistingStore, login: &StoreLogin) -> BTreeMap<String, String> {
        // It is to say what went wrong before the load generator gives up.
        let timeout = self.timeout.mul_f64(0.9);
        let mut properties = BTreeMap::from(
            [
                ("store", store.store.clone()),
                ("helpers", store.helpers.join(",")),
                ("fields", self.fields.to_string()),
                ("keys", self.config.fields.word().to_owned()),
                ("durability", self.config.write_durability()),
                ("consistency", self.config.consistency.to_owned()),
                ("timeout-ms", timeout.as_millis().max(1).to_string()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        if let Some(file) = &login.file {
            properties.insert("login-file".to_owned(), file.display().to_string());
        }
        if let Some((user, password)) = &login.user {
            properties.insert("user".to_owned(), user.clone());
            properties.insert("password".to_owned(), password.clone());
        }
        properties
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_must_be_complete_with_encrypting_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("login");
        std::fs::write(&path, "oracle.kv.transport=ssl\n").unwrap();
        let file = path.to_str().unwrap();
        let login_with = |set: &[(&str, &str)]| {
            StoreLogin::read(|name| {
                set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(login_with(&[]).unwrap().named(), None);
        assert_eq!(login_with(&[(USERNAME, ""), (PASSWORD, "")]).unwrap().named(), None);
        let all = login_with(&[(LOGIN_FILE, file), (USERNAME, "ann"), (PASSWORD, "x")]);
        assert_eq!(all.unwrap().named(), Some([USERNAME, PASSWORD]));
        assert_eq!(login_with(&[(LOGIN_FILE, file)]).unwrap().named(), Some([LOGIN_FILE, USERNAME]));
        let problem = |outcome: Result<StoreLogin, SystemError>| outcome.err().unwrap().to_string();
        assert!(problem(login_with(&[(USERNAME, "ann")])).contains(PASSWORD));
        let unencrypted = problem(login_with(&[(USERNAME, "ann"), (PASSWORD, "x")]));
        assert!(unencrypted.contains("oracle.kv.transport=ssl"), "{unencrypted}");
        let missing = problem(login_with(&[(LOGIN_FILE, "/no/such")]));
        assert!(missing.contains("/no/such") && missing.contains(LOGIN_FILE), "{missing}");
        assert!(problem(login_with(&[(LOGIN_FILE, "/dev/null")])).contains("it is no file"));
        std::fs::write(&path, "oracle.kv.transport=clear\n").unwrap();
        assert!(problem(login_with(&[(LOGIN_FILE, file)])).contains("does not say oracle.kv.transport=ssl"));
    }

    #[test]
    fn properties_are_read_as_java_does() {
        for text in
            ["oracle.kv.transport=ssl", "a=b\n  oracle.kv.transport : ssl \n", "oracle.kv.transport ssl\nx=y"]
        {
            assert!(is_encrypted(text), "{text}");
        }
        for text in [
            "",
            "#oracle.kv.transport=ssl",
            "oracle.kv.transports=ssl",
            "oracle.kv.transport=ssl\noracle.kv.transport=clear",
            "oracle.kv.transport=",
        ] {
            assert!(!is_encrypted(text), "{text}");
        }
    }
}
