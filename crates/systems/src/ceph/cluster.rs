//! A cluster that serves S3, from making its empty stores to shutting down.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use underlay_record::{NodeRole, NodeState};
use underlay_sync::Mutex;

use super::configuration::{self, GATEWAY, GATEWAY_PORT, MONITOR};
use super::plan::CephPlan;
use super::programs::{CephDaemon, CephPrograms, check_installed};
use super::requests::RequestLog;
use crate::certificate::ServerCertificate;
use crate::credentials::random_password;
use crate::figures::NodeTotals;
use crate::network_namespace::NetworkNamespace;
use crate::nodes::{NodeProcess, PlannedNode, Roster, SystemNodes};
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};

/// These limits only tell a stuck program from a slow one.
const START_LIMIT_S: f64 = 180.0;
const STOP_LIMIT_S: f64 = 60.0;
const POLL: Duration = Duration::from_millis(200);
/// OSDs tell the manager of their placement groups every five seconds, and it tells the monitor every two: what the
/// monitor says may be this old.
const HEARD_AFTER: Duration = Duration::from_secs(8);
/// Other states of a placement group with all of its copies.
const AT_REST: [&str; 4] = ["active", "clean", "scrubbing", "deep"];
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const USER: &str = "underlay";
const STARTING: &str = "starting";

/// A running cluster. Dropping it kills its processes; [`Ceph::stop`] shuts them down.
#[derive(Debug)]
pub struct Ceph {
    plan: CephPlan,
    // In the order in which they must be dropped.
    gateway: CephDaemon,
    osds: Roster<CephDaemon>,
    manager: CephDaemon,
    monitor: CephDaemon,
    programs: CephPrograms,
    resources: SystemResources,
    keys: S3Keys,
    /// `None` where clients use plain HTTP.
    certificate: Option<ServerCertificate>,
    totals: Mutex<NodeTotals>,
}

/// The keys of a client of the gateway.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Keys {
    pub access: String,
    pub secret: String,
}

impl std::fmt::Debug for S3Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("S3Keys").finish_non_exhaustive()
    }
}

/// A bucket as its clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CephBucket {
    pub name: String,
    /// `http://127.0.0.1:7480`
    pub endpoint: String,
    /// PEM of the authority that signed the store's certificate, for an https `endpoint`.
    pub authority: Option<PathBuf>,
    pub keys: S3Keys,
}

/// The nodes that a cluster of so many OSDs will have.
pub(crate) fn planned_nodes(osds: usize) -> Vec<PlannedNode> {
    let planned = |number| PlannedNode { name: name_of(number), roles: &[NodeRole::Osd], shards: Vec::new() };
    (0..osds).map(planned).collect()
}

pub(super) fn name_of(number: usize) -> String {
    format!("osd{number}")
}

impl Ceph {
    /// Checks that Ceph's programs are there.
    ///
    /// # Errors
    /// Which one is missing, and how to get it.
    pub fn check_installed(system: &'static str) -> Result<(), SystemError> {
        check_installed(system)
    }

    /// The version of what is installed.
    pub fn version() -> Option<String> {
        let output = std::process::Command::new("ceph-osd").arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.strip_prefix("ceph version ")?.split_whitespace().next().map(str::to_owned)
    }

    /// Starts a new cluster in the network `namespace`, inside `resources`. When this returns, its gateway answers.
    ///
    /// # Errors
    /// When the plan does not allow it, a program is missing, or a server does not start.
    pub fn start(
        plan: &CephPlan,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
    ) -> Result<Ceph, SystemError> {
        plan.check()?;
        check_installed(plan.system)?;
        let id = uuid(plan.system)?;
        let certificate = prepare(plan, &id)?;
        let programs = CephPrograms::new(plan.system, &plan.scratch, namespace, resources);
        let limit = stretched(START_LIMIT_S, plan.slow_motion);
        let run = |program: &str, words: &[&str]| programs.run(STARTING, limit, program, words);
        let map = plan.scratch.join("monitors").display().to_string();
        run("monmaptool", &["--create", "--fsid", &id, "--addv", "a", &format!("[v1:{MONITOR}]"), &map])?;
        run("ceph-mon", &["--mkfs", "--id", "a", "--monmap", &map])?;
        let monitor = programs.start("monitor", "ceph-mon", &["--id", "a"], resources)?;
        // The next step waits for it, for however long.
        monitor.state().wait_until(STARTING, "accepting connections", limit, POLL, &|| {
            Ok(namespace
                .within(|| TcpStream::connect_timeout(&MONITOR, CONNECT_LIMIT).is_ok())
                .unwrap_or(false))
        })?;
        // Before it has elected itself it refuses some commands (`EPERM`).
        let lives = || monitor.check(STARTING);
        let asked = || programs.run_unless(STARTING, limit, "ceph", &["quorum_status"], &lives);
        let has_quorum = || lives().map(|()| asked().is_ok());
        monitor.state().wait_until(STARTING, "in a quorum", limit, POLL, &has_quorum)?;
        let manager = programs.start("manager", "ceph-mgr", &["--id", "a"], resources)?;
        let servers = || [&monitor, &manager].iter().try_for_each(|server| server.check(STARTING));
        let osds = make_osds(&programs, plan, resources, limit, &servers)?;
        let osds = Roster::new(plan.system, osds);
        wait_for_osds(&programs, plan, limit, &|| servers().and_then(|()| osds.check(STARTING)))?;
        let gateway = programs.start("S3 gateway", "radosgw", &["--name", GATEWAY], resources)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, GATEWAY_PORT));
        gateway.state().wait_until(STARTING, "accepting connections", limit, POLL, &|| {
            servers().and_then(|()| osds.check(STARTING))?;
            let connects = || TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok();
            Ok(namespace.within(connects).unwrap_or(false))
        })?;
        let keys = make_user(&programs, limit)?;
        Ok(Ceph {
            plan: plan.clone(),
            gateway,
            osds,
            manager,
            monitor,
            programs,
            resources: resources.clone(),
            keys,
            certificate,
            totals: Mutex::default(),
        })
    }

    /// The gateway's port, at every address of its namespace.
    pub fn gateway_port(&self) -> u16 {
        GATEWAY_PORT
    }

    pub fn keys(&self) -> &S3Keys {
        &self.keys
    }

    /// The certificate that clients must trust, where they use TLS.
    pub(crate) fn certificate(&self) -> Option<&ServerCertificate> {
        self.certificate.as_ref()
    }

    /// The requests that the gateway will have answered, from the first one.
    pub fn request_log(&self) -> RequestLog {
        RequestLog::new(&configuration::request_log(&self.plan.scratch))
    }

    /// The ids of the running processes.
    pub fn processes(&self) -> Vec<u32> {
        let osds = self.osds.present();
        let servers = [&self.monitor, &self.manager, &self.gateway].into_iter();
        servers
            .chain(osds.iter().map(Arc::as_ref))
            .filter_map(|server| server.state().running_pid())
            .collect()
    }

    /// Checks that all of it works.
    ///
    /// # Errors
    /// When a process has ended that was not sent away.
    pub fn health(&self) -> Result<(), SystemError> {
        for server in [&self.monitor, &self.manager, &self.gateway] {
            server.check("running")?;
        }
        self.osds.check("running")
    }

    /// The OSDs' reads and writes of their devices, by the kernel's count.
    pub fn figures(&self) -> BTreeMap<String, f64> {
        let mut totals = self.totals.lock();
        for (name, _, osd) in self.osds.all() {
            // The id of one that has ended may be another process's by now.
            let Some(process) = osd.and_then(|osd| osd.state().running_pid()) else { continue };
            // One that has just ended counts as it did before.
            if let Some(figures) = device_bytes(process) {
                totals.count(name, process, &figures, &|_| false);
            }
        }
        totals.totals()
    }

    /// Waits until every object has all of its copies, also where an OSD was away.
    ///
    /// # Errors
    /// When that takes longer than `limit`, or a process ends meanwhile.
    pub fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        const DURING: &str = "settling";
        let (began, mut whole_since) = (Instant::now(), None);
        loop {
            self.health()?;
            let question = ["status", "--format", "json"];
            let answer = self.programs.run_unless(DURING, limit, "ceph", &question, &|| self.health())?;
            let status: Value = serde_json::from_str(answer.trim()).unwrap_or_default();
            whole_since = match has_all_copies(&status) {
                true => whole_since.or_else(|| Some(Instant::now())),
                false => None,
            };
            if whole_since.is_some_and(|instant: Instant| instant.elapsed() > HEARD_AFTER) {
                return Ok(());
            }
            // A late report alone is no failure.
            if began.elapsed() > limit && whole_since.is_none() {
                let problem = format!(
                    "after {:.0} s objects still lack copies: {}",
                    limit.as_secs_f64(),
                    status["pgmap"]["pgs_by_state"]
                );
                return Err(SystemError::failed(self.plan.system, DURING, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Kills the gateway, so that everyone who waits for an answer gets an error.
    pub fn abort(&self) {
        self.gateway.kill();
    }

    /// Shuts everything down; what takes too long is killed.
    ///
    /// # Errors
    /// The first server that had to be killed or failed.
    pub fn stop(self) -> Result<(), SystemError> {
        let limit = stretched(STOP_LIMIT_S, self.plan.slow_motion);
        let mut outcome = self.gateway.end(limit);
        for osd in self.osds.present() {
            outcome = outcome.and(osd.end(limit));
        }
        for server in [&self.manager, &self.monitor] {
            outcome = outcome.and(server.end(limit));
        }
        outcome
    }
}

impl SystemNodes for Ceph {
    fn list(&self) -> Result<Vec<NodeState>, SystemError> {
        Ok(self.osds.states(Some(NodeRole::Osd)))
    }

    fn stop(&self, name: &str) -> Result<(), SystemError> {
        let limit = stretched(STOP_LIMIT_S, self.plan.slow_motion);
        self.osds.stop(name, "stopping an OSD", |osd| osd.end(limit))
    }

    fn kill(&self, name: &str) -> Result<(), SystemError> {
        self.osds.kill(name, "killing an OSD")
    }

    fn start(&self, name: &str, process_back: &(dyn Fn() + Sync)) -> Result<(), SystemError> {
        const DURING: &str = "starting an OSD";
        let preparation = self.osds.prepare(name, DURING)?;
        let number = (0..self.plan.osds.len()).find(|&number| name_of(number) == name).unwrap_or_default();
        let limit = stretched(START_LIMIT_S, self.plan.slow_motion);
        let servers = || [&self.monitor, &self.manager].iter().try_for_each(|server| server.check(DURING));
        let is_wanted = || match preparation.given_up().load(Ordering::Relaxed) {
            true => Err(SystemError::failed(self.plan.system, DURING, "nobody wants it any more")),
            false => servers(),
        };
        // One that was killed may still count as up, since nobody has missed it yet.
        let up_before = up_osds(&self.programs, limit, &is_wanted);
        let before = up_before.map_err(|error| preparation.explained(error))?.get(&number).copied();
        let started = start_osd(&self.programs, number, &self.resources);
        let osd = Arc::new(started.map_err(|error| preparation.explained(error))?);
        let arrival = preparation.has(Arc::clone(&osd))?;
        process_back();
        let all_run = || servers().and_then(|()| osd.check(DURING));
        let is_up = || Ok(up_osds(&self.programs, limit, &all_run)?.get(&number).copied() > before);
        osd.state()
            .wait_until(DURING, "up in the cluster's map", limit, POLL, &is_up)
            .map_err(|error| arrival.explained(error))?;
        arrival.serves()
    }
}

/// Of a process, from `/proc/PID/io` (proc_pid_io(5)).
fn device_bytes(process: u32) -> Option<BTreeMap<String, f64>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let number = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.trim().parse::<f64>().ok())
    };
    let figures = [("osd_read_bytes", number("read_bytes")?), ("osd_write_bytes", number("write_bytes")?)];
    Some(figures.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

fn stretched(s: f64, slow_motion: f64) -> Duration {
    Duration::try_from_secs_f64(s * slow_motion.max(1.0)).unwrap_or(Duration::MAX)
}

/// A random UUID (RFC 9562, version 4).
fn uuid(system: &'static str) -> Result<String, SystemError> {
    let hex = random_password()
        .map_err(|error| SystemError::starting(system, format!("there are no random numbers: {error}")))?;
    Ok(format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32]))
}

/// Creates the directories, the configuration, and the gateway's certificate if it is to have one.
fn prepare(plan: &CephPlan, id: &str) -> Result<Option<ServerCertificate>, SystemError> {
    let failed = |path: &Path, error: std::io::Error| {
        SystemError::starting(plan.system, format!("can't make {}: {error}", path.display()))
    };
    let folders = ["monitor", "manager", "gateway", "run"].map(|name| plan.scratch.join(name));
    for folder in folders.iter().chain(&plan.osds) {
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    }
    if let Some(used) = plan.osds.iter().find(|osd| osd.join("block").exists()) {
        let problem = format!("{} has the store of another cluster: use an empty storage", used.display());
        return Err(SystemError::starting(plan.system, problem));
    }
    let path: PathBuf = plan.scratch.join("ceph.conf");
    let made = plan.tls.map(|address| ServerCertificate::make(&plan.scratch, address)).transpose();
    let certificate = made.map_err(|error| failed(&plan.scratch.join("gateway.pem"), error))?;
    let text = configuration::text(plan, id, &plan.block_bytes()?, certificate.as_ref());
    write_private(&path, &text).map_err(|error| failed(&path, error))?;
    Ok(certificate)
}

/// Makes the OSDs with empty stores and starts them. Each gets its number after the one before, and its place and its
/// store while others get their numbers.
fn make_osds(
    programs: &CephPrograms,
    plan: &CephPlan,
    resources: &SystemResources,
    limit: Duration,
    check: &(dyn Fn() -> Result<(), SystemError> + Sync),
) -> Result<Vec<(String, Arc<CephDaemon>)>, SystemError> {
    let make = |number: usize, id: String| -> Result<(String, Arc<CephDaemon>), SystemError> {
        let (name, number_text) = (format!("osd.{number}"), number.to_string());
        // All alike: by their size, small ones would weigh nothing.
        let place = ["osd", "crush", "add", name.as_str(), "1.0", "host=underlay", "root=default"];
        programs.run_unless(STARTING, limit, "ceph", &place, check)?;
        let store = ["--mkfs", "--id", number_text.as_str(), "--osd-uuid", id.as_str()];
        programs.run(STARTING, limit, "ceph-osd", &store)?;
        Ok((name_of(number), Arc::new(start_osd(programs, number, resources)?)))
    };
    let make = &make;
    std::thread::scope(|scope| {
        let mut made = Vec::new();
        for number in 0..plan.osds.len() {
            let id = uuid(plan.system)?;
            let output = programs.run_unless(STARTING, limit, "ceph", &["osd", "new", &id], check)?;
            if output.trim() != number.to_string() {
                let problem = format!("Ceph gave an OSD the number {:?} and not {number}", output.trim());
                return Err(SystemError::starting(plan.system, problem));
            }
            made.push(scope.spawn(move || make(number, id)));
        }
        let outcomes = made.into_iter();
        outcomes.map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn start_osd(
    programs: &CephPrograms,
    number: usize,
    resources: &SystemResources,
) -> Result<CephDaemon, SystemError> {
    programs.start(&format!("OSD {number}"), "ceph-osd", &["--id", &number.to_string()], resources)
}

/// The numbers of the OSDs that serve, each with the epoch of the cluster's map since which it does. Not waited for
/// once `check` finds something wrong.
fn up_osds(
    programs: &CephPrograms,
    limit: Duration,
    check: &dyn Fn() -> Result<(), SystemError>,
) -> Result<BTreeMap<usize, u64>, SystemError> {
    let words = ["osd", "dump", "--format", "json"];
    let answer = programs.run_unless(STARTING, limit, "ceph", &words, check)?;
    let map: Value = serde_json::from_str(answer.trim()).unwrap_or_default();
    let osds = map["osds"].as_array().map(Vec::as_slice).unwrap_or_default();
    let up = osds.iter().filter(|osd| osd["up"].as_u64() == Some(1));
    let up_since =
        |osd: &Value| Some((usize::try_from(osd["osd"].as_u64()?).ok()?, osd["up_from"].as_u64()?));
    Ok(up.filter_map(up_since).collect())
}

/// Whether `ceph status` tells that all placement groups have all copies of their objects.
fn has_all_copies(status: &Value) -> bool {
    let map = &status["pgmap"];
    let states = map["pgs_by_state"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_whole = |state: &&Value| {
        let words: Vec<&str> = state["state_name"].as_str().unwrap_or_default().split('+').collect();
        words.contains(&"active")
            && words.contains(&"clean")
            && words.iter().all(|word| AT_REST.contains(word))
    };
    let whole: u64 = states.iter().filter(is_whole).filter_map(|state| state["count"].as_u64()).sum();
    map["num_pgs"].as_u64().is_some_and(|all| all > 0 && all == whole)
}

fn wait_for_osds(
    programs: &CephPrograms,
    plan: &CephPlan,
    limit: Duration,
    check: &dyn Fn() -> Result<(), SystemError>,
) -> Result<(), SystemError> {
    let began = Instant::now();
    loop {
        check()?;
        let up = up_osds(programs, limit, check)?.len();
        if up == plan.osds.len() {
            return Ok(());
        }
        if began.elapsed() > limit {
            let problem =
                format!("{up} of {} OSDs are up after {:.0} s", plan.osds.len(), limit.as_secs_f64());
            return Err(SystemError::starting(plan.system, problem));
        }
        std::thread::sleep(POLL);
    }
}

/// Makes the user of the gateway that jobs are, with keys that the gateway draws itself: on a command line others could
/// read them.
fn make_user(programs: &CephPrograms, limit: Duration) -> Result<S3Keys, SystemError> {
    let name = format!("--uid={USER}");
    let words = ["user", "create", name.as_str(), "--display-name=underlay", "--name", GATEWAY];
    let answer = programs.run(STARTING, limit, "radosgw-admin", &words)?;
    // Warnings may come before it.
    let user: Value =
        answer.find('{').and_then(|index| serde_json::from_str(&answer[index..]).ok()).unwrap_or_default();
    let key = |name: &str| user["keys"][0][name].as_str().map(str::to_owned);
    match (key("access_key"), key("secret_key")) {
        (Some(access), Some(secret)) => Ok(S3Keys { access, secret }),
        _ => Err(SystemError::starting(programs.system, "the S3 gateway gave no keys to its user")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_has_count_of_written_bytes() {
        let figures = device_bytes(std::process::id()).unwrap();
        assert!(figures["osd_write_bytes"] >= 0.0 && figures.len() == 2);
        assert_eq!(device_bytes(u32::MAX), None);
    }

    #[test]
    fn cluster_has_all_copies_when_groups_are_clean() {
        let has_all = |pgs: u64, states: &[(&str, u64)]| {
            let states: Vec<Value> = states
                .iter()
                .map(|(name, count)| serde_json::json!({ "state_name": name, "count": count }))
                .collect();
            has_all_copies(&serde_json::json!({ "pgmap": { "num_pgs": pgs, "pgs_by_state": states } }))
        };
        assert!(has_all(40, &[("active+clean", 39), ("active+clean+scrubbing+deep", 1)]));
        for state in [
            "active+undersized+degraded",
            "active+recovering+degraded",
            "active+clean+remapped",
            "stale+active+clean",
            "peering",
        ] {
            assert!(!has_all(40, &[("active+clean", 39), (state, 1)]), "{state}");
        }
        assert!(!has_all(40, &[("active+clean", 39)]), "one is not told of");
        assert!(!has_all(0, &[]) && !has_all_copies(&Value::Null));
    }

    #[test]
    fn ids_are_uuids_and_keys_are_not_told() {
        let id = uuid("test").unwrap();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!((lengths, id.as_bytes()[14]), (vec![8, 4, 4, 4, 12], b'4'));
        assert_ne!(id, uuid("test").unwrap());
        let keys = S3Keys { access: "AAAA".to_owned(), secret: "SSSS".to_owned() };
        let debug_text = format!("{keys:?}");
        assert!(!debug_text.contains("AAAA") && !debug_text.contains("SSSS"), "{debug_text}");
    }
}
