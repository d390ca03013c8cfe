//! The session that runs the jobs: the Python program in `spark/`, with the Java program that it starts. It answers
//! requests on a Unix socket, one line of JSON each, and tells how far it is in between.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NAME;
use super::environment::without_variables_of_the_user;
use super::servers::{ServerPlan, executor_environment};
use crate::answer_lines::LineSplitter;
use crate::child::ChildProcess;
use crate::connection::SocketPath;
use crate::java::without_options_of_the_user;
use crate::pid_namespace::{NamespaceMounts, contained_program, program_of};
use crate::system::SystemError;

/// The name of a source, and its text.
macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../spark/", $name)))
    };
}

const SOURCES: &[(&str, &str)] = &[
    source!("alone.py"),
    source!("files.py"),
    source!("kmeans.py"),
    source!("rows.py"),
    source!("serve.py"),
    source!("store.py"),
    source!("tables.py"),
    source!("teragen.py"),
    source!("terasort.py"),
    source!("teravalidate.py"),
    source!("tpcds.py"),
];
const MAIN: &str = "serve.py";
const POLL: Duration = Duration::from_millis(200);
/// How long a cancelled request may take to be over.
const CANCELLING_LIMIT: Duration = Duration::from_secs(20);

/// The running driver. Dropping it kills it and the Java program that it started.
#[derive(Debug)]
pub(super) struct SparkDriver {
    child: ChildProcess,
    socket: SocketPath,
}

/// Its own folder.
fn folder(plan: &ServerPlan) -> PathBuf {
    plan.scratch.join("driver")
}

/// The names of the sources that executors import too: all of them.
pub(super) fn source_names() -> Vec<&'static str> {
    SOURCES.iter().map(|&(name, _)| name).collect()
}

/// Writes the jobs' sources into a folder of the run's own.
pub(super) fn write_sources(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    SOURCES.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))
}

impl SparkDriver {
    /// Starts it inside the budget: it is a part of what is measured. It need not listen yet when this returns.
    /// `configuration` has `spark-defaults.conf`; `hadoop` is the configuration directory of HDFS or YARN.
    pub(super) fn start(
        plan: &ServerPlan,
        jobs: &Path,
        configuration: &Path,
        hadoop: Option<&Path>,
    ) -> Result<SparkDriver, SystemError> {
        let failed = |problem: String| SystemError::starting(NAME, problem);
        let folder = folder(plan);
        std::fs::create_dir_all(folder.join("tmp"))
            .map_err(|error| failed(format!("can't make {}: {error}", folder.display())))?;
        let socket = SocketPath::new(&folder, NAME)
            .map_err(|error| failed(format!("can't create a socket: {error}")))?;
        let java = program_of(NAME, &plan.java)?;
        let home = java.parent().and_then(Path::parent).unwrap_or(Path::new("/")).display().to_string();
        // The Java program that it starts, and others, end with it also when this program is killed.
        let python = contained_program(
            NAME,
            &plan.environment.python,
            &folder,
            "contained-python",
            NamespaceMounts::Shared,
        )?;
        let mut command = Command::new(python);
        command.arg(jobs.join(MAIN)).arg(socket.as_path()).current_dir(&folder);
        without_variables_of_the_user(&mut command);
        without_options_of_the_user(&mut command);
        let executor_python = match plan.config.master {
            Some(_) => PathBuf::from(&plan.config.executor_python),
            None => plan.environment.python.clone(),
        };
        let of_jobs = (plan.config.version, &plan.environment);
        command.envs(executor_environment(of_jobs, &plan.local_directories, &home));
        command
            .env("SPARK_CONF_DIR", configuration)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PYTHONUNBUFFERED", "1")
            // Files of every Java process below `/tmp`, which one that is killed would leave.
            .env("SPARK_LAUNCHER_OPTS", "-XX:-UsePerfData")
            // Spark's own setting is for those who start by its scripts.
            .env("PYSPARK_PYTHON", executor_python)
            .env("TMPDIR", folder.join("tmp"));
        if let Some(hadoop) = hadoop {
            command.env("HADOOP_CONF_DIR", hadoop);
        }
        match &plan.namespace {
            Some(namespace) => namespace.enter(&mut command),
            // The address is the session's, which executors elsewhere must reach.
            None => {
                command.env_remove("SPARK_LOCAL_IP");
            }
        }
        let child =
            ChildProcess::spawn_as(NAME, "driver", command, &folder.join("driver.log"), &plan.resources)?;
        Ok(SparkDriver { child, socket })
    }

    /// Waits until it has a session with so many executors.
    pub(super) fn wait_until_ready(
        &self,
        during: &'static str,
        executors: u64,
        limit: Duration,
        healthy: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        let socket = self.socket.as_path().to_owned();
        let state = self.child.state();
        state.wait_until(during, "accepting requests", limit, POLL, &|| {
            healthy()?;
            Ok(UnixStream::connect(&socket).is_ok())
        })?;
        state.wait_until(during, "given all of its executors", limit, POLL, &|| {
            healthy()?;
            let answer = self.request_within(during, &json!({ "do": "ready" }), limit, healthy)?;
            Ok(answer["executors"].as_u64() >= Some(executors))
        })
    }

    /// Sends a request that should be answered at once, and cancels it after `limit` or when something that it needs is
    /// not `healthy`.
    pub(super) fn request_within(
        &self,
        during: &'static str,
        request: &Value,
        limit: Duration,
        healthy: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<Value, SystemError> {
        let began = Instant::now();
        let mut ended_because = None;
        let answer = self.request(during, request, &mut |_| {
            if ended_because.is_none() {
                ended_because = match began.elapsed() > limit {
                    true => {
                        let problem = format!(
                            "{} and has not answered after {:.0} s",
                            self.child.state().describe(),
                            limit.as_secs_f64()
                        );
                        Some(self.child.state().failed(during, problem))
                    }
                    false => healthy().err(),
                };
            }
            ended_because.is_none()
        });
        ended_because.map_or(answer, Err)
    }

    /// Fails with the end of its log if it has ended.
    pub(super) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let state = self.child.state();
        if state.is_running() { Ok(()) } else { Err(state.failed(during, state.describe())) }
    }

    /// Kills it and the Java program.
    pub(super) fn kill(&self) {
        self.child.kill();
    }

    /// Sends a request and returns its last answer. `each` gets the answers before that, and `null` several times a
    /// second in between. If it returns `false`, the request is cancelled, which makes it fail.
    pub(super) fn request(
        &self,
        during: &'static str,
        request: &Value,
        each: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, SystemError> {
        let state = self.child.state();
        let lost = |error: std::io::Error| match state.wait(POLL) {
            true => state.failed(during, state.describe()),
            false => state.failed(during, format!("{}, but does not answer: {error}", state.describe())),
        };
        let mut stream = UnixStream::connect(self.socket.as_path()).map_err(lost)?;
        stream.set_read_timeout(Some(POLL)).map_err(lost)?;
        stream.write_all(format!("{request}\n").as_bytes()).map_err(lost)?;
        let mut lines = LineSplitter::default();
        let mut cancelled: Option<Instant> = None;
        loop {
            let line = lines.next(&mut stream).map_err(lost)?;
            let answer: Value = match &line {
                Some(line) => serde_json::from_slice(line).map_err(|error| {
                    SystemError::failed(NAME, during, format!("can't read the driver's answer: {error}"))
                })?,
                None => Value::Null,
            };
            match answer["event"].as_str() {
                Some("finished") => return Ok(answer),
                Some("failed") => {
                    let problem = answer["problem"].as_str().unwrap_or("for no stated reason").to_owned();
                    return Err(SystemError::failed(NAME, during, problem));
                }
                _ => {}
            }
            if !each(&answer) && cancelled.is_none() {
                cancelled = Some(Instant::now());
                // Fails only if the driver has closed the connection, and then its last answer is on its way.
                let _ = stream.write_all(b"cancel\n");
            }
            // Spark can cancel its own jobs alone. A driver that copies objects, or makes data, goes on until it is
            // done.
            if cancelled.is_some_and(|cancelled_at| cancelled_at.elapsed() > CANCELLING_LIMIT) {
                self.child.kill();
            }
            if !state.is_running() {
                return Err(state.failed(during, state.describe()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_sources_are_all_included() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spark");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".py"))
            .collect();
        files.sort();
        let sources: Vec<&str> = SOURCES.iter().map(|&(name, _)| name).collect();
        assert_eq!(files, sources);
    }
}
