//! A cluster that runs already: how its master is named, and which settings go with each kind.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::setting::SettingMistakes;

const SPARK: &str = "spark://";
const KUBERNETES: &str = "k8s://";
const YARN: &str = "yarn";
const SPARKS_PORT: u16 = 7077;

/// The master of an external cluster, which starts executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExternalMaster {
    /// Spark's own masters; one of them leads: `HOST:PORT`.
    Spark(Vec<String>),
    /// The ResourceManager that `configuration` names.
    Yarn,
    /// Its server: `https://HOST:PORT`.
    Kubernetes(String),
}

impl ExternalMaster {
    pub(super) fn read(text: &str) -> Result<ExternalMaster, String> {
        let expected = || {
            format!(
                "expected spark://HOST:PORT (several masters with commas between them), yarn, or k8s://https://HOST:PORT, not '{text}'"
            )
        };
        if text == YARN {
            return Ok(ExternalMaster::Yarn);
        }
        if let Some(server) = text.strip_prefix(KUBERNETES) {
            // Its credentials would go over plain HTTP for all to read.
            let place = server.strip_prefix("https://").ok_or_else(expected)?;
            return place_of(place.trim_end_matches('/'), 443)
                .map(|place| ExternalMaster::Kubernetes(format!("https://{place}")))
                .ok_or_else(expected);
        }
        let places = text.strip_prefix(SPARK).ok_or_else(expected)?.split(',');
        let places: Option<Vec<String>> = places.map(|place| place_of(place.trim(), SPARKS_PORT)).collect();
        places.map(ExternalMaster::Spark).ok_or_else(expected)
    }

    pub(super) fn show(&self) -> String {
        match self {
            ExternalMaster::Yarn => YARN.to_owned(),
            ExternalMaster::Kubernetes(server) => format!("{KUBERNETES}{server}"),
            ExternalMaster::Spark(places) => format!("{SPARK}{}", places.join(",")),
        }
    }

    /// The addresses that this host connects to by itself, `HOST:PORT` each.
    pub(super) fn places(&self) -> Vec<&str> {
        match self {
            ExternalMaster::Spark(places) => places.iter().map(String::as_str).collect(),
            ExternalMaster::Kubernetes(server) => server.strip_prefix("https://").into_iter().collect(),
            // Its configuration names it.
            ExternalMaster::Yarn => Vec::new(),
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

/// Settings that go with an external cluster, and those that it needs.
const BESIDE: &[&str] = &[
    "configuration",
    "work_directory",
    "driver_address",
    "secret_variable",
    "without_secret",
    "executor_python",
    "image",
    "kubernetes_namespace",
];
/// Settings of jobs on any cluster.
const OF_JOBS: &[&str] =
    &["version", "master", "committer", "executors", "executor_cores", "executor_memory", "block_size"];

const OF_THE_CLUSTER: &str = "expected not to be set: the cluster of 'master' has its own";
pub(super) const NO_CACHE: &str =
    "expected not to be set beside master: a cache stands in front of a Ceph that is started here";

/// Whether a setting says something with a cluster that runs already.
pub(super) fn applies(name: &str) -> bool {
    applies_there_alone(name) || OF_JOBS.contains(&name)
}

/// Whether it says something with such a cluster alone.
pub(super) fn applies_there_alone(name: &str) -> bool {
    name == "master" || BESIDE.contains(&name)
}

/// A study's settings of such a cluster.
pub(super) struct MasterSettings<'a> {
    pub master: Option<&'a ExternalMaster>,
    pub work_directory: Option<&'a str>,
    pub configuration: bool,
    pub image: bool,
    pub secret: bool,
    pub without_secret: bool,
    /// The committer is one of S3A's own.
    pub commits_to_s3a: bool,
    pub writes_tables: bool,
}

/// Contradictions with a master, or without one.
pub(super) fn mistakes(values: &BTreeMap<String, String>, settings: &MasterSettings<'_>) -> SettingMistakes {
    let mut mistakes = SettingMistakes::new();
    let mut mistake = |key: &str, problem: &str| mistakes.push((key.to_owned(), problem.to_owned()));
    let Some(master) = settings.master else {
        for key in BESIDE.iter().filter(|key| values.contains_key(**key)) {
            mistake(key, "expected not to be set without master");
        }
        return mistakes;
    };
    for key in values.keys().map(String::as_str).filter(|key| !applies(key)) {
        mistake(key, if key.starts_with("cache") { NO_CACHE } else { OF_THE_CLUSTER });
    }
    if settings.work_directory.is_none() {
        mistake("work_directory", "expected to be set beside master: where jobs read and write");
    }
    if settings.commits_to_s3a && !settings.work_directory.is_some_and(is_s3a) {
        mistake(
            "committer",
            "expected file-v1 or file-v2: this one commits to S3A alone (work_directory = \"s3a://...\")",
        );
    }
    if settings.writes_tables {
        mistake(
            "committer",
            "expected another one: the catalog of tables is in the driver, and the cluster's executors lack Iceberg",
        );
    }
    match master {
        ExternalMaster::Yarn if !settings.configuration => {
            mistake(
                "configuration",
                "expected to be set beside master = \"yarn\": it names the ResourceManager",
            );
        }
        ExternalMaster::Kubernetes(_) if !settings.image => {
            mistake(
                "image",
                "expected to be set beside a master of Kubernetes: what executors' containers run",
            );
        }
        ExternalMaster::Spark(_) if !settings.secret && !settings.without_secret => {
            mistake(
                "secret_variable",
                "expected to be set: without the secret of spark.authenticate, anybody who reaches the driver's ports runs code in it with your \
                 rights; in a network that you trust, say without_secret = true",
            );
        }
        _ => {}
    }
    if !matches!(master, ExternalMaster::Kubernetes(_)) {
        for key in ["image", "kubernetes_namespace"].iter().filter(|key| values.contains_key(**key)) {
            mistake(key, "expected not to be set without a master of Kubernetes");
        }
    }
    for key in ["secret_variable", "without_secret"].iter().filter(|key| values.contains_key(**key)) {
        if !matches!(master, ExternalMaster::Spark(_)) {
            mistake(key, "expected not to be set: YARN and Kubernetes give each application a secret");
        }
    }
    if settings.secret && settings.without_secret {
        mistake("without_secret", "expected not to be set beside secret_variable");
    }
    mistakes
}

/// Whether a URL is one of S3A's.
pub(super) fn is_s3a(url: &str) -> bool {
    url.starts_with("s3a://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_written_as_spark_writes_them() {
        for (text, shown) in [
            ("spark://10.0.0.5:7077", "spark://10.0.0.5:7077"),
            ("spark://a.example,b.example:7078", "spark://a.example:7077,b.example:7078"),
            ("yarn", "yarn"),
            ("k8s://https://10.0.0.5:6443/", "k8s://https://10.0.0.5:6443"),
            ("k8s://https://api.example", "k8s://https://api.example:443"),
        ] {
            assert_eq!(ExternalMaster::read(text).unwrap().show(), shown);
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
            let message = ExternalMaster::read(text).unwrap_err();
            assert!(message.contains("expected spark://HOST:PORT"), "{message}");
        }
        assert_eq!(work_directory("hdfs://a:8020/x/").unwrap(), "hdfs://a:8020/x");
        assert!(
            ["/x", "hdfs://a", "hdfs://a/../b", "file:///a b"]
                .iter()
                .all(|text| work_directory(text).is_err())
        );
    }
}
