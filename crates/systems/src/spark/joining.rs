//! Joining a cluster that runs already: whether its master can be reached, and a session's settings for it.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::NAME;
use super::config::SparkConfig;
use super::master::ExternalMaster;
use crate::connect_allowlist::MayConnect;
use crate::credentials::missing;
use crate::system::{SystemError, SystemSettings};

pub(super) const SECRET: &str = "spark.authenticate.secret";
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A master that answers, and how to be found by its executors.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ReachedMaster {
    pub master: ExternalMaster,
    /// By which executors find the driver.
    pub driver_address: String,
    /// Where all of a run's jobs read and write.
    pub directory: String,
    secret: Option<String>,
}

impl std::fmt::Debug for ReachedMaster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ReachedMaster").field("master", &self.master).finish_non_exhaustive()
    }
}

/// Connects to the master of `config`, and finds the address of this host on the way there.
///
/// # Errors
/// When nobody answers there, it may not be connected to, or a secret is missing.
pub(super) fn reach(
    (config, master): (&SparkConfig, &ExternalMaster),
    settings: &SystemSettings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ReachedMaster, SystemError> {
    let failed = |problem: String| SystemError::starting(NAME, problem);
    if settings.slow_motion > 1.0 {
        return Err(failed(format!(
            "the cluster of {} goes its own pace and can't be slowed down: set `time = 1` in [scale]",
            master.show()
        )));
    }
    // A coordinator has no say in what runs in the network of its worker's host.
    if settings.may_connect != MayConnect::Anywhere {
        return Err(failed("a worker of another host's run starts no session of jobs".to_owned()));
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
    Ok(ReachedMaster { master: master.clone(), driver_address, directory, secret })
}

/// Connects to one of the masters, and returns the address of this host that it was reached from. `None` if there is
/// nothing to connect to.
fn connect(master: &ExternalMaster) -> Result<Option<IpAddr>, String> {
    let mut problem = None;
    for place in master.places() {
        let found = place.to_socket_addrs().map_err(|error| format!("{}: {error}", place));
        let addresses = match found {
            Ok(addresses) => addresses,
            Err(reason) => {
                problem = Some(reason);
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
        Some(reason) => Err(format!(
            "the master {} can't be reached ({reason}): check `master`, and that it runs",
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

impl ReachedMaster {
    /// A session's settings, in place of those for this machine alone. `jobs` is the folder of the jobs' sources.
    pub(super) fn settings(
        &self,
        config: &SparkConfig,
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
            // The driver's is of this run; executors have their own, and of their user, as Hadoop does it.
            ("spark.hadoop.hadoop.tmp.dir", "${java.io.tmpdir}/hadoop-${user.name}".to_owned()),
        ]);
        match &self.master {
            ExternalMaster::Spark(_) => {
                if let Some(secret) = &self.secret {
                    settings.insert("spark.authenticate", "true".to_owned());
                    settings.insert(SECRET, secret.clone());
                }
            }
            // Each draws a secret for the application.
            ExternalMaster::Yarn => {
                settings.insert("spark.authenticate", "true".to_owned());
            }
            ExternalMaster::Kubernetes(_) => {
                settings.insert("spark.authenticate", "true".to_owned());
                settings.insert("spark.kubernetes.container.image", config.image.clone().unwrap_or_default());
                settings.insert("spark.kubernetes.namespace", config.kubernetes_namespace.clone());
            }
        }
        settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Settings of a session on this machine alone that this one must not have.
    pub(super) fn without() -> &'static [&'static str] {
        &[
            "spark.executor.extraClassPath",
            "spark.executor.extraJavaOptions",
            "spark.executorEnv.PYTHONPATH",
            "spark.executorEnv.TMPDIR",
            // Its machines are several.
            "spark.locality.wait",
            // Executors have folders of their own.
            "spark.hadoop.fs.s3a.buffer.dir",
            "spark.hadoop.fs.s3a.committer.staging.tmp.path",
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn config(pairs: &[(&str, &str)]) -> SparkConfig {
        let values = pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        SparkConfig::resolve(&values, None, None).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
    }

    #[test]
    fn master_kinds_get_own_properties() {
        let properties_for = |pairs: &[(&str, &str)]| {
            let config = config(&[&[("work_directory", "hdfs://a/x"), ("executors", "3")], pairs].concat());
            let master = config.master.clone().unwrap();
            let reached = ReachedMaster {
                master,
                driver_address: "10.0.0.7".to_owned(),
                directory: String::new(),
                secret: Some("s3cret".to_owned()),
            };
            assert!(!format!("{reached:?}").contains("s3cret"));
            reached.settings(&config, &["a.py", "b.py"], Path::new("/jobs"))
        };
        let spark = properties_for(&[("master", "spark://a"), ("secret_variable", "SPARK_SECRET")]);
        assert_eq!(spark["spark.master"], "spark://a:7077");
        assert_eq!(spark["spark.submit.pyFiles"], "/jobs/a.py,/jobs/b.py");
        assert_eq!(
            (&*spark["spark.driver.host"], &*spark["spark.authenticate.secret"]),
            ("10.0.0.7", "s3cret")
        );
        let kubernetes = properties_for(&[
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
        let yarn = properties_for(&[("master", "yarn"), ("configuration", "/etc/hadoop")]);
        assert_eq!((&*yarn["spark.master"], &*yarn["spark.pyspark.python"]), ("yarn", "python3"));
    }

    #[test]
    fn unreachable_master_is_reported() {
        // It is free again at once, so nothing listens there.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let master = format!("spark://127.0.0.1:{port}");
        let reached = |pairs: &[(&str, &str)], settings: &SystemSettings| {
            let config = config(&[&[("work_directory", "file:///shared")], pairs].concat());
            reach((&config, &config.master.clone().unwrap()), settings, |_| None)
        };
        let refusal_for = |pairs: &[(&str, &str)], settings: &SystemSettings| {
            reached(pairs, settings).unwrap_err().to_string()
        };
        let here = SystemSettings::default();
        let refused = refusal_for(&[("master", &master), ("without_secret", "true")], &here);
        assert!(
            refused.contains("can't be reached")
                && refused.contains("Connection refused")
                && refused.contains("check `master`"),
            "{refused}"
        );
        let slowed = refusal_for(
            &[("master", &master), ("without_secret", "true")],
            &SystemSettings { slow_motion: 2.0, ..SystemSettings::default() },
        );
        assert!(slowed.contains("set `time = 1` in [scale]"), "{slowed}");
        let unset = refusal_for(&[("master", &master), ("secret_variable", "SPARK_STUDY_SECRET")], &here);
        assert!(unset.contains("SPARK_STUDY_SECRET"), "{unset}");
        let nowhere = refusal_for(&[("master", "yarn"), ("configuration", "/no/such/directory")], &here);
        assert!(nowhere.contains("there is no directory /no/such/directory"), "{nowhere}");

        let worker =
            SystemSettings { may_connect: MayConnect::WithoutCredentials, ..SystemSettings::default() };
        let theirs = refusal_for(&[("master", &master), ("without_secret", "true")], &worker);
        assert!(theirs.contains("starts no session of jobs"), "{theirs}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = format!("spark://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let found = reached(&[("master", &master), ("without_secret", "true")], &here).unwrap();
        assert_eq!(found.driver_address, "127.0.0.1");
        assert!(found.directory.starts_with("file:///shared/underlay-"));
        assert_ne!(
            found.directory,
            reached(&[("master", &master), ("without_secret", "true")], &here).unwrap().directory
        );
    }
}
