//! The process that submits jobs and reports their progress: our own Java code on the official client. It runs as long
//! as the cluster does and answers requests on a Unix socket. Each request has its own connection, with one line of
//! JSON for the request and one for each answer.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NAME;
use crate::answer_lines::LineSplitter;
use crate::compiled::JavaSources;
use crate::connection::SocketPath;
use crate::java::{ClassPath, Java};
use crate::java_server::{JavaProcess, JavaServer};
use crate::network_namespace::NetworkNamespace;
use crate::system::{SystemError, SystemResources};

/// The path of a source, and its text.
macro_rules! source {
    ($name:literal) => {
        (
            concat!("underlay/mapreduce/", $name),
            include_str!(concat!("../../../../jvm/src/main/java/underlay/mapreduce/", $name)),
        )
    };
}

/// Its sources, which include the classes of our own jobs.
pub(super) static SOURCES: JavaSources = JavaSources {
    name: "hadoop-jobs",
    files: &[
        source!("ClassList.java"),
        source!("History.java"),
        source!("JobRun.java"),
        source!("JobServer.java"),
        source!("Jobs.java"),
        source!("Request.java"),
        source!("Shuffle.java"),
        source!("Talk.java"),
    ],
};

const CLASS: &str = "underlay.mapreduce.JobServer";
const HEAP_BYTES: u64 = 192 << 20;
const POLL: Duration = Duration::from_millis(200);

/// The running job client.
#[derive(Debug)]
pub(super) struct JobClient {
    process: JavaProcess,
    socket: SocketPath,
}

/// How the job client finds its cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlace<'a> {
    pub configuration: &'a Path,
    pub library: &'a Path,
    pub classes: &'a Path,
    pub scratch: &'a Path,
    /// The network of a cluster that was started here. An existing cluster gets our classes with each job.
    pub namespace: Option<Arc<NetworkNamespace>>,
}

impl JobClient {
    /// Starts it, outside of any memory budget, since a client represents another machine. It need not listen yet when
    /// this returns. `resources` are those of its cluster.
    pub(super) fn start(
        java: &Java,
        place: &ClusterPlace<'_>,
        resources: &SystemResources,
    ) -> Result<JobClient, SystemError> {
        let failed = |problem: String| SystemError::starting(NAME, problem);
        let folder = place.scratch.join("job-client");
        std::fs::create_dir_all(&folder)
            .map_err(|error| failed(format!("can't make {}: {error}", folder.display())))?;
        let socket = SocketPath::new(&folder, NAME)
            .map_err(|error| failed(format!("can't create a socket: {error}")))?;
        let ours = place.namespace.is_some();
        let jars = if ours { "ours".to_owned() } else { folder.display().to_string() };
        let server = JavaServer {
            system: NAME,
            name: "job client".to_owned(),
            class: CLASS.to_owned(),
            arguments: vec![socket.as_path().display().to_string(), jars],
            class_path: ClassPath::new()
                .with_classes(place.configuration)
                .with_jars(place.library)
                .with_classes(place.classes),
            heap_bytes: HEAP_BYTES,
            direct_bytes: None,
            options: vec!["--add-opens=java.base/java.lang=ALL-UNNAMED".to_owned()],
            environment: Vec::new(),
            quick_start: true,
            folder,
            namespace: place.namespace.clone(),
            own_mounts: None,
        };
        Ok(JobClient { process: server.start(java, &resources.for_tools())?, socket })
    }

    pub(super) fn process(&self) -> &JavaProcess {
        &self.process
    }

    /// Waits until it listens and its cluster has a NodeManager that accepts tasks.
    pub(super) fn wait_until_ready(
        &self,
        limit: Duration,
        healthy: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<(), SystemError> {
        let socket = self.socket.as_path().to_owned();
        let started = Instant::now();
        self.process.wait_until("starting", "listening", limit, &|| {
            healthy()?;
            Ok(UnixStream::connect(&socket).is_ok())
        })?;
        loop {
            healthy()?;
            let answer = self.request("starting", &json!({ "do": "nodes" }), &mut |_| true);
            let problem = match answer {
                Ok(answer) if answer["nodes"].as_u64() > Some(0) => return Ok(()),
                Ok(_) => "no NodeManager accepts tasks".to_owned(),
                Err(error) => error.to_string(),
            };
            if started.elapsed() > limit {
                return Err(SystemError::starting(
                    NAME,
                    format!("it is not ready after {:.0} s: {problem}", limit.as_secs_f64()),
                ));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a request and returns its last answer. `each` is called with every answer before that, and with `null`
    /// several times a second in between. If it returns `false`, the request is cancelled, and the last answer says so.
    pub(super) fn request(
        &self,
        during: &'static str,
        request: &Value,
        each: &mut dyn FnMut(&Value) -> bool,
    ) -> Result<Value, SystemError> {
        let state = self.process.state();
        let lost = |error: std::io::Error| match state.wait(POLL) {
            true => state.failed(during, state.describe()),
            false => state.failed(during, format!("{}, but does not answer: {error}", state.describe())),
        };
        let mut stream = UnixStream::connect(self.socket.as_path()).map_err(lost)?;
        stream.set_read_timeout(Some(POLL)).map_err(lost)?;
        stream.write_all(format!("{request}\n").as_bytes()).map_err(lost)?;
        let mut lines = LineSplitter::default();
        let mut ended = false;
        loop {
            let line = lines.next(&mut stream).map_err(lost)?;
            let answer = match &line {
                Some(line) => serde_json::from_str(&String::from_utf8_lossy(line)).map_err(|error| {
                    SystemError::failed(
                        NAME,
                        during,
                        format!("can't parse the answer of the job client: {error}"),
                    )
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
            if !each(&answer) && !ended {
                ended = true;
                // Fails only if the job client has closed the connection, and then its last answer is on its way.
                let _ = stream.write_all(b"end\n");
            }
            if !state.is_running() {
                return Err(state.failed(during, state.describe()));
            }
        }
    }
}
