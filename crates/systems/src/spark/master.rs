//! A cluster that runs already: how its master is named, what goes with each kind, and what a session must be told of it.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::NAME;
use super::config::{Committer, Config};
use crate::credentials::missing;
use crate::setting::Mistakes;
use crate::system::{Settings, SystemError};

const SPARK: &str = "spark://";
const KUBERNETES: &str = "k8s://";
const YARN: &str = "yarn";
const SPARKS_PORT: u16 = 7077;
pub(super) const SECRET: &str = "spark.authenticate.secret";
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What starts executors of a cluster that runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Master {
    /// Spark's own masters, of which one leads: `HOST:PORT`.
    Spark(Vec<String>),
    /// The ResourceManager that `configuration` names.
    Yarn,
    /// Its server: `https://HOST:PORT`.
    Kubernetes(String),
}

impl Master {
    pub(super) fn read(text: &str) -> Result<Master, String> {
        let expected = || {
            format!(
                "expected spark://HOST:PORT (several masters with commas between them), yarn, or k8s://https://HOST:PORT, not '{text}'"
            )
        };
        if text == YARN {
            return Ok(Master::Yarn);
        }
        if let Some(server) = text.strip_prefix(KUBERNETES) {
            // Its credentials would go over plain HTTP for all to read.
            let place = server.strip_prefix("https://").ok_or_else(expected)?;
            return place_of(place.trim_end_matches('/'), 443)
                .map(|place| Master::Kubernetes(format!("https://{place}")))
                .ok_or_else(expected);
        }
        let places = text.strip_prefix(SPARK).ok_or_else(expected)?.split(',');
        let places: Option<Vec<String>> = places.map(|place| place_of(place.trim(), SPARKS_PORT)).collect();
        places.map(Master::Spark).ok_or_else(expected)
    }

    pub(super) fn show(&self) -> String {
        match self {
            Master::Yarn => YARN.to_owned(),
            Master::Kubernetes(server) => format!("{KUBERNETES}{server}"),
            Master::Spark(places) => format!("{SPARK}{}", places.join(",")),
        }
    }

    /// What this host connects to by itself, `HOST:PORT` each.
    fn places(&self) -> Vec<&str> {
        match self {
            Master::Spark(places) => places.iter().map(String::as_str).collect(),
            Master::Kubernetes(server) => server.strip_prefix("https://").into_iter().collect(),
            // Its configuration names it.
            Master::Yarn => Vec::new(),
        }
    }
}

/// A host with a port, or with this one.
fn place_of(text: &str, usual: u16) -> Option<String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => (host, digits.parse().ok().filter(|&port: &u16| port != 0)?),
        None => (text, usual),
    };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let is_name = host.split('.').all(|label| !label.is_empty() && label.chars().all(plain));
    is_name.then(|| format!("{host}:{port}"))
}

/// A URL of a directory, with the scheme by which Hadoop finds the file system.
pub(super) fn work_directory(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.+@=:".contains(letter);
    let (scheme, rest) = text.split_once("://").unwrap_or_default();
    let is_scheme = !scheme.is_empty() && scheme.chars().all(|letter| letter.is_ascii_alphanumeric());
    match is_scheme && rest.contains('/') && text.chars().all(plain) && !text.contains("/..") {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => Err(format!(
            "expected the URL of a directory that the executors of the cluster reach, such as hdfs://10.0.0.5:8020/underlay or file:///shared/underlay, not '{text}'"
        )),
    }
}

pub(super) fn address(text: &str) -> Result<String, String> {
    match text.parse::<IpAddr>() {
        Ok(address) if !address.is_unspecified() => Ok(address.to_string()),
        _ => Err(format!("expected an address of this host, such as 10.0.0.7, not '{text}'")),
    }
}

/// A word that goes into Spark's file of settings as it is.
pub(super) fn plain_word(text: &str) -> Result<String, String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/-_.+@:".contains(letter);
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected a word of letters, digits and /-_.+@:, not '{text}'")),
    }
}

/// What goes with a cluster that runs already, and what it needs.
const BESIDE: &[&str] = &[
    "configuration",
    "work_directory",
    "driver_address",
    "secret_variable",
    "executor_python",
    "image",
    "kubernetes_namespace",
];
/// What jobs choose, wherever they run.
const OF_JOBS: &[&str] =
    &["version", "master", "committer", "executors", "executor_cores", "executor_memory", "block_size"];

/// Whether a setting says something with a cluster that runs already.
pub(super) fn applies(name: &str) -> bool {
    applies_there_alone(name) || OF_JOBS.contains(&name)
}

/// Whether it says something with such a cluster alone.
pub(super) fn applies_there_alone(name: &str) -> bool {
    name == "master" || BESIDE.contains(&name)
}

/// What does not go together with a master, or without one.
pub(super) fn mistakes(values: &BTreeMap<String, String>, config: &Config) -> Mistakes {
    let mut mistakes = Mistakes::new();
    let mut mistake = |key: &str, problem: &str| mistakes.push((key.to_owned(), problem.to_owned()));
    let Some(master) = &config.master else {
        for key in BESIDE.iter().filter(|key| values.contains_key(**key)) {
            mistake(key, "expected not to be set without master");
        }
        return mistakes;
    };
    for key in values.keys().map(String::as_str) {
        if !BESIDE.contains(&key) && !OF_JOBS.contains(&key) {
            mistake(key, "expected not to be set: the cluster of 'master' has its own");
        }
    }
    if config.work_directory.is_none() {
        mistake("work_directory", "expected to be set beside master: where jobs read and write");
    }
    if !config.is_s3a() && matches!(config.committer, Committer::Directory | Committer::Magic) {
        mistake(
            "committer",
            "expected file-v1 or file-v2: this one commits to S3A alone (work_directory = \"s3a://...\")",
        );
    }
    if config.committer == Committer::Iceberg {
        mistake(
            "committer",
            "expected another one: the catalog of tables is in the driver, and the cluster's executors lack Iceberg",
        );
    }
    match master {
        Master::Yarn if config.configuration.is_none() => {
            mistake(
                "configuration",
                "expected to be set beside master = \"yarn\": it names the ResourceManager",
            );
        }
        Master::Kubernetes(_) if config.image.is_none() => {
            mistake(
                "image",
                "expected to be set beside a master of Kubernetes: what executors' containers run",
            );
        }
        _ => {}
    }
    if !matches!(master, Master::Kubernetes(_)) {
        for key in ["image", "kubernetes_namespace"].iter().filter(|key| values.contains_key(**key)) {
            mistake(key, "expected not to be set without a master of Kubernetes");
        }
    }
    if !matches!(master, Master::Spark(_)) && config.secret_variable.is_some() {
        mistake(
            "secret_variable",
            "expected not to be set: YARN and Kubernetes give each application a secret",
        );
    }
    mistakes
}

/// A master that answers, and how to be found by its executors.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Reached {
    pub master: Master,
    /// By which executors find the driver.
    pub driver_address: String,
    /// Where all of a run's jobs read and write.
    pub directory: String,
    secret: Option<String>,
}

impl std::fmt::Debug for Reached {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reached").field("master", &self.master).finish_non_exhaustive()
    }
}

/// Connects to the master of `config`, and finds the address of this host on the way there.
///
/// # Errors
/// When nobody answers there, it may not be connected to, or a secret is missing.
pub(super) fn reach(
    (config, master): (&Config, &Master),
    settings: &Settings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Reached, SystemError> {
    let failed = |problem: String| SystemError::starting(NAME, problem);
    if settings.slow_motion > 1.0 {
        return Err(failed(format!(
            "the cluster of {} goes its own pace and can't be slowed down: set `time = 1` in [scale]",
            master.show()
        )));
    }
    if let Some(configuration) = &config.configuration
        && !configuration.is_dir()
    {
        let problem = format!("there is no directory {}", configuration.display());
        return Err(SystemError::Setting { system: NAME, key: "configuration".to_owned(), problem });
    }
    let secret = match config.secret_variable.as_deref() {
        None => None,
        Some(name) => Some(variable(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            missing(NAME, name, format!("set {name} to the cluster's spark.authenticate.secret"))
        })?),
    };
    if secret
        .as_deref()
        .is_some_and(|secret| !secret.chars().all(|letter| letter.is_ascii_graphic() && letter != '\\'))
    {
        return Err(failed(
            "the secret of 'secret_variable' has characters that Spark's file of settings can't hold"
                .to_owned(),
        ));
    }
    let places: Vec<String> = master.places().into_iter().map(str::to_owned).collect();
    if !places.is_empty() {
        let credentials = config.secret_variable.as_deref().map(|name| [name, name]);
        settings.may_connect.check(NAME, ("master", &places), credentials)?;
    }
    let local = connect(master).map_err(failed)?;
    let driver_address = match (&config.driver_address, local) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) => address.to_string(),
        (None, None) => {
            let problem =
                "expected to be set: which address of this host the executors connect to is not known"
                    .to_owned();
            return Err(SystemError::Setting { system: NAME, key: "driver_address".to_owned(), problem });
        }
    };
    let random = crate::credentials::random_password()
        .map_err(|error| failed(format!("there are no random numbers: {error}")))?;
    let directory = format!("{}/underlay-{random}", config.work_directory.as_deref().unwrap_or_default());
    Ok(Reached { master: master.clone(), driver_address, directory, secret })
}

/// Connects to one of the masters, and returns the address of this host that it was reached from. `None` if there is nothing to connect to.
fn connect(master: &Master) -> Result<Option<IpAddr>, String> {
    let mut problem = None;
    for place in master.places() {
        let found = place.to_socket_addrs().map_err(|error| format!("{}: {error}", place));
        let addresses = match found {
            Ok(addresses) => addresses,
            Err(why) => {
                problem = Some(why);
                continue;
            }
        };
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT).and_then(|stream| stream.local_addr()) {
                Ok(local) => return Ok(Some(local.ip())),
                Err(error) => problem = Some(format!("{address}: {error}")),
            }
        }
    }
    match problem {
        Some(why) => Err(format!(
            "the master {} can't be reached ({why}): check `master`, and that it runs",
            master.show()
        )),
        // The way out of this host, if it has one. Nothing is sent.
        None => Ok(UdpSocket::bind("0.0.0.0:0")
            .and_then(|socket| socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()))
            .map(|local| local.ip())
            .ok()
            .filter(|address| !address.is_unspecified())),
    }
}

impl Reached {
    /// What a session must be told, in place of what one on this machine alone is told. `jobs` is the folder of the jobs' sources.
    pub(super) fn settings(
        &self,
        config: &Config,
        sources: &[&str],
        jobs: &Path,
    ) -> BTreeMap<String, String> {
        let files: Vec<String> = sources.iter().map(|name| jobs.join(name).display().to_string()).collect();
        let mut settings = BTreeMap::from([
            ("spark.master", self.master.show()),
            ("spark.driver.host", self.driver_address.clone()),
            ("spark.driver.bindAddress", self.driver_address.clone()),
            // Executors have none of this host's files.
            ("spark.submit.pyFiles", files.join(",")),
            ("spark.pyspark.python", config.executor_python.clone()),
            ("spark.executor.instances", config.executors.to_string()),
        ]);
        match &self.master {
            Master::Spark(_) => {
                if let Some(secret) = &self.secret {
                    settings.insert("spark.authenticate", "true".to_owned());
                    settings.insert(SECRET, secret.clone());
                }
            }
            // Each draws a secret for the application.
            Master::Yarn => {
                settings.insert("spark.authenticate", "true".to_owned());
            }
            Master::Kubernetes(_) => {
                settings.insert("spark.authenticate", "true".to_owned());
                settings.insert("spark.kubernetes.container.image", config.image.clone().unwrap_or_default());
                settings.insert("spark.kubernetes.namespace", config.kubernetes_namespace.clone());
            }
        }
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// What a session of a cluster of this machine alone has, and this one must not.
    pub(super) fn without() -> &'static [&'static str] {
        &[
            "spark.executor.extraClassPath",
            "spark.executor.extraJavaOptions",
            "spark.executorEnv.PYTHONPATH",
            "spark.executorEnv.TMPDIR",
            // Its machines are several.
            "spark.locality.wait",
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Config {
        let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        Config::resolve(&values, None, None).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
    }

    #[test]
    fn masters_are_written_as_spark_writes_them() {
        for (text, shown) in [
            ("spark://10.0.0.5:7077", "spark://10.0.0.5:7077"),
            ("spark://a.example,b.example:7078", "spark://a.example:7077,b.example:7078"),
            ("yarn", "yarn"),
            ("k8s://https://10.0.0.5:6443/", "k8s://https://10.0.0.5:6443"),
            ("k8s://https://api.example", "k8s://https://api.example:443"),
        ] {
            assert_eq!(Master::read(text).unwrap().show(), shown);
        }
        for text in [
            "10.0.0.5:7077",
            "spark://",
            "spark://a b",
            "spark://a:0",
            "k8s://a:6443",
            "k8s://http://a",
            "local[2]",
        ] {
            let told = Master::read(text).unwrap_err();
            assert!(told.contains("expected spark://HOST:PORT"), "{told}");
        }
        assert_eq!(work_directory("hdfs://a:8020/x/").unwrap(), "hdfs://a:8020/x");
        assert!(
            ["/x", "hdfs://a", "hdfs://a/../b", "file:///a b"]
                .iter()
                .all(|text| work_directory(text).is_err())
        );
    }

    #[test]
    fn what_each_kind_of_master_is_told() {
        let told = |pairs: &[(&str, &str)]| {
            let config = config(&[&[("work_directory", "hdfs://a/x"), ("executors", "3")], pairs].concat());
            let master = config.master.clone().unwrap();
            let reached = Reached {
                master,
                driver_address: "10.0.0.7".to_owned(),
                directory: String::new(),
                secret: Some("s3cret".to_owned()),
            };
            assert!(!format!("{reached:?}").contains("s3cret"));
            reached.settings(&config, &["a.py", "b.py"], Path::new("/jobs"))
        };
        let spark = told(&[("master", "spark://a")]);
        assert_eq!(spark["spark.master"], "spark://a:7077");
        assert_eq!(spark["spark.submit.pyFiles"], "/jobs/a.py,/jobs/b.py");
        assert_eq!(
            (&*spark["spark.driver.host"], &*spark["spark.authenticate.secret"]),
            ("10.0.0.7", "s3cret")
        );
        let kubernetes = told(&[
            ("master", "k8s://https://a:6443"),
            ("image", "registry.example/spark-py:3.5.7"),
            ("kubernetes_namespace", "studies"),
        ]);
        assert_eq!(kubernetes["spark.master"], "k8s://https://a:6443");
        assert_eq!(kubernetes["spark.kubernetes.container.image"], "registry.example/spark-py:3.5.7");
        assert_eq!(kubernetes["spark.kubernetes.namespace"], "studies");
        assert_eq!(
            (&*kubernetes["spark.executor.instances"], &*kubernetes["spark.authenticate"]),
            ("3", "true")
        );
        assert!(!kubernetes.contains_key("spark.authenticate.secret"));
        let yarn = told(&[("master", "yarn"), ("configuration", "/etc/hadoop")]);
        assert_eq!((&*yarn["spark.master"], &*yarn["spark.pyspark.python"]), ("yarn", "python3"));
    }

    #[test]
    fn a_master_that_is_not_there_is_told() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let master = format!("spark://127.0.0.1:{port}");
        let reached = |pairs: &[(&str, &str)], settings: &Settings| {
            let config = config(&[&[("work_directory", "file:///shared")], pairs].concat());
            reach((&config, &config.master.clone().unwrap()), settings, |_| None)
        };
        let told =
            |pairs: &[(&str, &str)], settings: &Settings| reached(pairs, settings).unwrap_err().to_string();
        let here = Settings::default();
        let gone = told(&[("master", &master)], &here);
        assert!(
            gone.contains("can't be reached")
                && gone.contains("Connection refused")
                && gone.contains("check `master`"),
            "{gone}"
        );
        let slowed = told(&[("master", &master)], &Settings { slow_motion: 2.0, ..Settings::default() });
        assert!(slowed.contains("set `time = 1` in [scale]"), "{slowed}");
        let unset = told(&[("master", &master), ("secret_variable", "SPARK_STUDY_SECRET")], &here);
        assert!(unset.contains("SPARK_STUDY_SECRET"), "{unset}");
        let nowhere = told(&[("master", "yarn"), ("configuration", "/no/such/directory")], &here);
        assert!(nowhere.contains("there is no directory /no/such/directory"), "{nowhere}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = format!("spark://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let found = reached(&[("master", &master)], &here).unwrap();
        assert_eq!(found.driver_address, "127.0.0.1");
        assert!(found.directory.starts_with("file:///shared/underlay-"));
        assert_ne!(found.directory, reached(&[("master", &master)], &here).unwrap().directory);
    }
}
