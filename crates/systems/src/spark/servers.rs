//! Spark's master and workers, as processes of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::NAME;
use super::config::SparkConfig;
use super::environment::PythonEnvironment;
use super::memory::{MIB, SERVER_HEAP_BYTES};
use super::shuffle_service::ShuffleService;
use super::version::SparkVersion;
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer, hosts};
use crate::network_namespace::NetworkNamespace;
use crate::nodes::Roster;
use crate::pid_namespace::{NamespaceMounts, contained, program_of};
use crate::system::{SystemError, SystemResources};
use crate::web::get_json;

const MASTER: std::net::SocketAddr =
    std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7077);
pub(super) const MASTER_URL: &str = "spark://127.0.0.1:7077";
const MASTER_WEB_PORT: u16 = 8080;
/// Of the first worker; each further one's are higher by one.
const WORKER_PORT: u16 = 7101;
const WORKER_WEB_PORT: u16 = 8101;
/// Where the master tells what it has.
const MASTER_STATE: &str = "/json/";
const POLL: Duration = Duration::from_millis(200);
const MASTER_CLASS: &str = "org.apache.spark.deploy.master.Master";
const WORKER_CLASS: &str = "org.apache.spark.deploy.worker.Worker";
/// Java's own classes that Spark accesses by reflection.
const OPENED: [&str; 8] = [
    "java.lang",
    "java.lang.invoke",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "sun.nio.ch",
];

/// The servers. Dropping this kills them and every executor.
#[derive(Debug)]
pub(super) struct SparkServers {
    plan: ServerPlan,
    pub workers: Roster<JavaProcess>,
    master: JavaProcess,
}

/// How to start them.
#[derive(Clone, Debug)]
pub(super) struct ServerPlan {
    pub java: Java,
    pub environment: PythonEnvironment,
    pub config: SparkConfig,
    /// For shuffle files and spills.
    pub local_directories: Vec<PathBuf>,
    pub scratch: PathBuf,
    /// The network of everything that is started; that of the host for a driver whose executors are on other machines.
    pub namespace: Option<Arc<NetworkNamespace>>,
    pub resources: SystemResources,
    pub limit: Duration,
}

pub(super) fn worker_name(number: usize) -> String {
    format!("worker{}", number + 1)
}

/// As messages call it.
fn server_name(number: usize) -> String {
    format!("Worker {}", number + 1)
}

impl ServerPlan {
    /// The file by which all of Spark resolves this host's name.
    pub(super) fn hosts(&self) -> PathBuf {
        self.scratch.join("hosts")
    }

    /// The folder of everything, with that file.
    pub(super) fn prepare(&self) -> Result<(), SystemError> {
        std::fs::create_dir_all(&self.scratch)
            .and_then(|()| std::fs::write(self.hosts(), self.names()))
            .map_err(|error| {
                SystemError::starting(NAME, format!("can't write to {}: {error}", self.scratch.display()))
            })
    }

    fn names(&self) -> String {
        let config = &self.config;
        let of_store = config.endpoint.as_ref().zip(config.bucket.as_deref());
        hosts() + &of_store.map(|(endpoint, bucket)| endpoint.names(bucket)).unwrap_or_default()
    }

    fn folder_of(&self, server: &str) -> PathBuf {
        self.scratch.join(server.to_lowercase().replace(' ', "-"))
    }

    /// That of the only worker, if there is one.
    fn shuffle_service(&self) -> Option<ShuffleService> {
        self.config.shuffle_service.then(|| ShuffleService::from_folder(&self.folder_of(&server_name(0))))
    }

    fn server(&self, name: &str, class: &str) -> JavaServer {
        JavaServer {
            system: NAME,
            name: name.to_owned(),
            class: class.to_owned(),
            arguments: Vec::new(),
            class_path: ClassPath::new().with_jars(self.environment.spark_home.join("jars")),
            heap_bytes: SERVER_HEAP_BYTES,
            direct_bytes: Some(32 * MIB),
            options: OPENED.iter().map(|part| format!("--add-opens=java.base/{part}=ALL-UNNAMED")).collect(),
            environment: Vec::new(),
            quick_start: true,
            folder: self.folder_of(name),
            namespace: self.namespace.clone(),
            own_mounts: None,
        }
    }

    fn start_worker(&self, number: usize) -> Result<JavaProcess, SystemError> {
        let config = &self.config;
        // The executors that it has room for, and not one more.
        let executors = config.executors.div_ceil(config.workers);
        let memory_mib = executors * (config.division().executor_heap_bytes / MIB);
        let mut worker = self.server(&server_name(number), WORKER_CLASS);
        if let Some(service) = self.shuffle_service() {
            worker.options.extend(service.options().map_err(|error| {
                SystemError::starting(NAME, format!("can't write to {}: {error}", worker.folder.display()))
            })?);
        }
        let port = |first: u16| (usize::from(first) + number).to_string();
        worker.arguments = [
            "--host",
            "127.0.0.1",
            "--port",
            &port(WORKER_PORT),
            "--webui-port",
            &port(WORKER_WEB_PORT),
            "--cores",
            &(executors * config.executor_cores).to_string(),
            "--memory",
            &format!("{memory_mib}m"),
            "--work-dir",
            &worker.folder.join("work").display().to_string(),
            MASTER_URL,
        ]
        .map(str::to_owned)
        .into();
        let program = program_of(NAME, &self.java)?;
        let home = program.parent().and_then(Path::parent).unwrap_or(Path::new("/")).display().to_string();
        worker.environment =
            executor_environment((config.version, &self.environment), &self.local_directories, &home);
        // Executors get their own process groups.
        let contained = contained(NAME, &self.java, &worker.folder, config.version.mounts())?;
        if config.version.mounts() == NamespaceMounts::Own {
            let own = self.local_directories.iter().chain([&self.scratch]);
            worker.own_mounts = Some(own.cloned().collect());
        }
        worker.start(&contained, &self.resources)
    }
}

/// The environment that a worker passes on to its executors, and that the driver needs as well.
pub(super) fn executor_environment(
    (version, environment): (SparkVersion, &PythonEnvironment),
    local_directories: &[PathBuf],
    java_home: &str,
) -> Vec<(String, String)> {
    let locals: Vec<String> = local_directories.iter().map(|path| path.display().to_string()).collect();
    [
        ("JAVA_HOME", java_home.to_owned()),
        ("SPARK_HOME", environment.spark_home.display().to_string()),
        ("SPARK_SCALA_VERSION", version.scala().to_owned()),
        ("SPARK_LOCAL_DIRS", locals.join(",")),
        ("SPARK_LOCAL_IP", "127.0.0.1".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

impl SparkServers {
    /// Starts all of them by a plan that is prepared. Workers may not have registered yet when this returns.
    pub(super) fn start(plan: ServerPlan) -> Result<SparkServers, SystemError> {
        let mut master = plan.server("Master", MASTER_CLASS);
        master.arguments = [
            "--host",
            "127.0.0.1",
            "--port",
            &MASTER.port().to_string(),
            "--webui-port",
            &MASTER_WEB_PORT.to_string(),
        ]
        .map(str::to_owned)
        .into();
        let master = master.start(&plan.java, &plan.resources)?;
        master.wait_for_listener(MASTER, plan.limit)?;
        let mut workers = Vec::new();
        for number in 0..usize::try_from(plan.config.workers).unwrap_or(1) {
            workers.push((worker_name(number), Arc::new(plan.start_worker(number)?)));
        }
        Ok(SparkServers { workers: Roster::new(NAME, workers), master, plan })
    }

    pub(super) fn shuffle_service(&self) -> Option<ShuffleService> {
        self.plan.shuffle_service()
    }

    /// Fails with the end of its log if one has ended that was not sent away.
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        self.master.check(during)?;
        self.workers.check(during)
    }

    /// Starts a worker again that was sent away.
    pub(super) fn start_again(
        &self,
        name: &str,
        process_back: &(dyn Fn() + Sync),
    ) -> Result<(), SystemError> {
        const DURING: &str = "starting a worker";
        let preparation = self.workers.prepare(name, DURING)?;
        let count = usize::try_from(self.plan.config.workers).unwrap_or(1);
        let number = (0..count).find(|&number| worker_name(number) == name).unwrap_or_default();
        let started = self.plan.start_worker(number);
        let worker = Arc::new(started.map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&worker))?;
        process_back();
        let port_of = |first: u16| first.saturating_add(u16::try_from(number).unwrap_or(u16::MAX));
        let web = (std::net::Ipv4Addr::LOCALHOST, port_of(WORKER_WEB_PORT)).into();
        // It listens before it registers. By then the master has noticed that the former one at its port is gone.
        let registered = worker.wait_for_listener(web, self.plan.limit).and_then(|()| {
            let is_registered = || Ok(self.has_registered(port_of(WORKER_PORT)));
            let state = worker.state();
            state.wait_until(DURING, "registered with the master", self.plan.limit, POLL, &is_registered)
        });
        registered.map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }

    /// Whether the master has a worker at this port. One that can't be asked just now has none.
    fn has_registered(&self, port: u16) -> bool {
        let master = (MASTER.ip(), MASTER_WEB_PORT).into();
        let ask_master = |namespace: &Arc<NetworkNamespace>| get_json(namespace, master, MASTER_STATE).ok();
        self.plan.namespace.as_ref().and_then(ask_master).is_some_and(|status| has_worker(&status, port))
    }

    /// Kills them and every executor. They have no state to save.
    pub(super) fn end(&self) {
        self.workers.present().iter().for_each(|worker| worker.kill());
        self.master.kill();
    }
}

/// Whether the master's state tells of a worker at this port that is alive.
fn has_worker(status: &Value, port: u16) -> bool {
    let workers = status["workers"].as_array().map(Vec::as_slice).unwrap_or_default();
    workers.iter().any(|worker| {
        worker["port"].as_u64() == Some(u64::from(port)) && worker["state"].as_str() == Some("ALIVE")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dead_worker_differs_from_returned_one() {
        let worker = |port: u16, state: &str| json!({ "host": "127.0.0.1", "port": port, "state": state });
        let status = json!({ "status": "ALIVE", "workers": [worker(7101, "ALIVE"), worker(7102, "DEAD")] });
        assert!(has_worker(&status, 7101) && !has_worker(&status, 7102) && !has_worker(&status, 7103));
        let back = json!({ "workers": [worker(7102, "DEAD"), worker(7102, "ALIVE")] });
        assert!(has_worker(&back, 7102));
        assert!(!has_worker(&Value::Null, 7101));
    }
}
