//! Processes of this user that serve something on this host: volume servers, loads, workers, gateways, mounts, and what
//! they tell of themselves.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use underlay_attach::ResourceRegistry;
use underlay_console::host::{LiveServiceInfo, ServicePart};
use underlay_record::{LiveService, ServiceMoment};
use underlay_sync::UnsimulatedMutex;
use underlay_volume::pool::MemberState;
use underlay_volume::server as volume;
use underlay_volume::server::protocol::{self as volume_protocol, PoolReply};

use super::in_time;
use super::kept::CachedAnswer;
use crate::arguments::ServeVolumesArguments;
use crate::commands::{gateway, live_service};

/// A process that is only looked at has to answer within this time.
const SHOWN_LIMIT: Duration = Duration::from_secs(2);
/// A gateway is asked by a process of its own.
const GATEWAY_FRESH: Duration = Duration::from_secs(3);
const GATEWAY_LIMIT: Duration = Duration::from_secs(10);
const MAX_FIGURES_BYTES: u64 = 4 << 20;
const MAX_PROCESSES: usize = 64;

/// Of a gateway, by name.
type GatewayMetrics = BTreeMap<String, f64>;

/// The state of processes between two looks.
#[derive(Clone, Default)]
pub(super) struct ServiceTable(Arc<ServiceState>);

#[derive(Default)]
struct ServiceState {
    /// By process: what a load or a worker has told until now.
    told: UnsimulatedMutex<HashMap<u32, LiveService>>,
    gateways: UnsimulatedMutex<HashMap<u32, Arc<CachedAnswer<GatewayMetrics>>>>,
}

/// A process that serves.
pub(super) struct ServiceProcess {
    pub service: LiveServiceInfo,
    proc: PathBuf,
    /// Who started it.
    pub parent: Option<u32>,
    /// The file of its pool, or its configuration.
    file: Option<String>,
}

impl ServiceTable {
    /// All of this user's, by their numbers; not those of runs, which belong to them.
    pub(super) fn look(&self, registry: &ResourceRegistry, runs: &[u32]) -> Vec<LiveServiceInfo> {
        let controls = live_service::controls(registry);
        let mut all: Vec<ServiceProcess> = found_all();
        all.retain(|found| found.parent.is_none_or(|parent| !runs.contains(&parent)));
        let living: Vec<u32> = all.iter().map(|found| found.service.process).collect();
        self.0.told.lock().retain(|process, _| living.contains(process));
        self.0.gateways.lock().retain(|process, _| living.contains(process));
        let mut services = Vec::new();
        for found in all {
            let process = found.service.process;
            let parts = found.state().map(parts_of).unwrap_or_default();
            let control = controls.iter().find(|(owner, _)| owner.process.pid == process);
            let live = control.and_then(|(_, control)| self.told(process, control));
            let figures = match (found.service.kind.as_str(), &found.file) {
                ("gateway", Some(file)) => self.gateway(process, &found.proc, file),
                _ => BTreeMap::new(),
            };
            services.push(LiveServiceInfo { parts, live, figures, ..found.service });
        }
        services
    }

    /// The reports of a load or a worker until now.
    fn told(&self, process: u32, control: &Path) -> Option<LiveService> {
        let since_ms = {
            let services = self.0.told.lock();
            services.get(&process).and_then(|service| service.moments.last()).map_or(0, |moment| moment.at_ms)
        };
        let news = live_service::ask(control, since_ms, SHOWN_LIMIT);
        let mut services = self.0.told.lock();
        if let Some(news) = news
            && (services.len() < MAX_PROCESSES || services.contains_key(&process))
        {
            let earlier = services.remove(&process).map(|earlier| earlier.moments).unwrap_or_default();
            let LiveService { kind, what: description, state, moments } = news;
            let moments = followed_by(earlier, moments);
            services.insert(process, LiveService { kind, what: description, state, moments });
        }
        services.get(&process).cloned()
    }

    /// The figures of a gateway, by its own program: only that knows its configuration and its token.
    fn gateway(&self, process: u32, proc: &Path, file: &str) -> GatewayMetrics {
        let (Ok(program), Ok(folder)) = (gateway::find(), std::fs::read_link(proc.join("cwd"))) else {
            return BTreeMap::new();
        };
        let cached = Arc::clone(
            self.0.gateways.lock().entry(process).or_insert_with(|| Arc::new(CachedAnswer::new())),
        );
        let file = file.to_owned();
        cached.get(GATEWAY_FRESH, move || gateway_figures(&program, &folder, &file).unwrap_or_default())
    }
}

/// Moments and later ones, no more than the load itself keeps.
fn followed_by(mut moments: Vec<ServiceMoment>, later: Vec<ServiceMoment>) -> Vec<ServiceMoment> {
    moments.extend(later);
    let workers = moments.last().map_or(0, |latest| latest.workers.len());
    moments.drain(..moments.len().saturating_sub(live_service::max_moments(workers)));
    moments
}

/// The numbers of `underlay-gateway top`.
fn gateway_figures(program: &Path, folder: &Path, file: &str) -> Option<GatewayMetrics> {
    let mut command = Command::new(program);
    // As the gateway itself found its configuration, and what that names.
    command.args(["top", "--once", "--json", "--"]).arg(file).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let answer = child.stdout.take().map(|output| in_time::whole(output, MAX_FIGURES_BYTES, GATEWAY_LIMIT));
    // It has said all, or is not waited for.
    let _ = child.kill();
    let _ = child.wait();
    figures_of(&answer?.ok()?)
}

fn figures_of(text: &[u8]) -> Option<GatewayMetrics> {
    let status: serde_json::Value = serde_json::from_slice(text).ok()?;
    let own = status.as_object()?.iter();
    let mut figures: GatewayMetrics =
        own.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
    // Of all prefixes together: there may be thousands.
    for prefix in status["prefixes"].as_array().into_iter().flatten() {
        for (name, key) in
            [("cache_hits", "hits"), ("cache_misses", "misses"), ("fetched_bytes", "fetched_bytes")]
        {
            *figures.entry(name.to_owned()).or_default() += prefix[key].as_f64().unwrap_or(0.0);
        }
    }
    Some(figures)
}

/// All processes that serve something of this user's.
pub(super) fn found_all() -> Vec<ServiceProcess> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let programs = ProgramFiles::locate();
    let mut all: Vec<ServiceProcess> =
        entries.flatten().filter_map(|entry| found_of(&entry.path(), &programs)).collect();
    all.sort_by_key(|found| found.service.process);
    all
}

/// A process of this user and this program, or of the gateway's, that serves something.
pub(super) fn found(proc: &Path) -> Option<ServiceProcess> {
    found_of(proc, &ProgramFiles::locate())
}

/// The files of our own programs, and the mount namespace that they are seen in. A process can give itself any name,
/// and in a container's mounts the same path is another file.
struct ProgramFiles {
    own: Option<FileId>,
    gateway: Option<FileId>,
    mounts: Option<PathBuf>,
}

/// Device and inode, which tell files apart regardless of their paths.
type FileId = (u64, u64);

impl ProgramFiles {
    fn locate() -> ProgramFiles {
        ProgramFiles {
            own: file_id(Path::new("/proc/self/exe")),
            gateway: gateway::find().ok().and_then(|program| file_id(&program)),
            mounts: mounts_of(Path::new("/proc/self")),
        }
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Its mount namespace, as the kernel names it.
fn mounts_of(proc: &Path) -> Option<PathBuf> {
    std::fs::read_link(proc.join("ns/mnt")).ok()
}

fn found_of(proc: &Path, programs: &ProgramFiles) -> Option<ServiceProcess> {
    let process: u32 = proc.file_name()?.to_str()?.parse().ok()?;
    // Few processes come further than this.
    let program = Some(file_id(&proc.join("exe"))?);
    let is_own = program == programs.own;
    if !is_own && program != programs.gateway {
        return None;
    }
    // Its working directory and its files are looked up in our mounts below.
    if mounts_of(proc)? != *programs.mounts.as_ref()? {
        return None;
    }
    if std::fs::metadata(proc).ok()?.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let line = std::fs::read(proc.join("cmdline")).ok()?;
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .skip(1)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
    let (kind, description, file) =
        if is_own { classify_own_program(&arguments) } else { classify_gateway(&arguments) }?;
    let service =
        LiveServiceInfo { kind: kind.to_owned(), process, what: description, ..LiveServiceInfo::default() };
    Some(ServiceProcess { service, proc: proc.to_owned(), parent: parent_of(proc), file })
}

/// Its kind, in words, and its file.
type ServiceKind = (&'static str, String, Option<String>);

fn classify_own_program(words: &[&str]) -> Option<ServiceKind> {
    let (kind, rest) = match words {
        ["volume", "serve", rest @ ..] => ("volume server", rest),
        ["worker", rest @ ..] => ("worker", rest),
        ["mount", rest @ ..] => ("mount", rest),
        ["media", "serve", rest @ ..] => ("served medium", rest),
        ["ycsb", rest @ ..] => ("load", rest),
        _ => return None,
    };
    let pool = if kind == "volume server" { pool_of(rest) } else { None };
    Some((kind, rest.join(" "), pool))
}

/// The pool's file, as the volume server itself reads its words.
fn pool_of(rest: &[&str]) -> Option<String> {
    let serve = ServeVolumesArguments::augment_args(clap::Command::new("serve")).no_binary_name(true);
    let matches = serve.try_get_matches_from(rest).ok()?;
    Some(ServeVolumesArguments::from_arg_matches(&matches).ok()?.pool.display().to_string())
}

fn classify_gateway(words: &[&str]) -> Option<ServiceKind> {
    let mut plain = Vec::new();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            // Its only option with a value, which may stand anywhere.
            "--log-level" => {
                words.next();
            }
            word if word.starts_with('-') => {}
            word => plain.push(word),
        }
    }
    let ["serve", file] = plain[..] else { return None };
    Some(("gateway", file.to_owned(), Some(file.to_owned())))
}

/// Field 4 of proc_pid_stat(5), behind the name, which may hold anything.
fn parent_of(proc: &Path) -> Option<u32> {
    let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

impl ServiceProcess {
    /// The control socket of a volume server.
    pub(super) fn control(&self) -> Option<PathBuf> {
        let pool = self.file.as_ref().filter(|_| self.service.kind == "volume server")?;
        let folder = std::fs::read_link(self.proc.join("cwd")).ok()?;
        Some(crate::commands::volume::read(&folder.join(pool)).ok()?.control_socket())
    }

    /// The state of a volume server's pool; nothing where it does not answer.
    pub(super) fn state(&self) -> Option<volume_protocol::PoolState> {
        let mut connection = volume::PoolConnection::open_within(&self.control()?, SHOWN_LIMIT).ok()?;
        match connection.ask(&volume_protocol::PoolCommand::List).ok()? {
            PoolReply::State(state) => Some(state),
            _ => None,
        }
    }
}

/// The devices and volumes of a pool.
fn parts_of(state: volume_protocol::PoolState) -> Vec<ServicePart> {
    let members = state.members.into_iter().map(|member| ServicePart {
        kind: "device".to_owned(),
        name: member.name,
        is_bad: member.state != MemberState::InUse,
        state: member.state.describe().to_owned(),
        used_bytes: member.space_bytes.saturating_sub(member.free_bytes),
        size_bytes: member.space_bytes,
    });
    let volumes = state.volumes.into_iter().map(|volume| ServicePart {
        kind: "volume".to_owned(),
        name: volume.name,
        is_bad: volume.degraded,
        state: match (volume.mirror, volume.degraded) {
            (_, true) => "mirror, degraded",
            (true, false) => "mirror",
            (false, false) => "plain",
        }
        .to_owned(),
        used_bytes: volume.used_bytes,
        size_bytes: volume.capacity_bytes,
    });
    members.chain(volumes).collect()
}

#[cfg(test)]
mod tests {
    use underlay_record::LiveWorker;

    use super::*;

    #[test]
    fn processes_are_known_by_their_words() {
        assert_eq!(classify_own_program(&["run", "x.toml"]), None);
        let (kind, description, file) =
            classify_own_program(&["volume", "serve", "--immediate", "pool.toml"]).unwrap();
        assert_eq!(
            (kind, description.as_str(), file.as_deref()),
            ("volume server", "--immediate pool.toml", Some("pool.toml"))
        );
        assert_eq!(classify_own_program(&["ycsb", "run", "null"]).unwrap().0, "load");
        // The value of an option is not the file.
        for words in ["--listen 127.0.0.1:0 --log-level debug pool.toml", "pool.toml --listen=127.0.0.1:0"] {
            let words: Vec<&str> = ["volume", "serve"].into_iter().chain(words.split(' ')).collect();
            assert_eq!(classify_own_program(&words).unwrap().2.as_deref(), Some("pool.toml"), "{words:?}");
        }
        for words in [
            "--log-level debug serve g.toml",
            "serve --log-level debug g.toml",
            "serve g.toml --log-level debug",
            "serve --log-level=debug g.toml",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            let (kind, description, _) = classify_gateway(&words).unwrap();
            assert_eq!((kind, description.as_str()), ("gateway", "g.toml"), "{words:?}");
        }
        assert_eq!(classify_gateway(&["top", "g.toml"]), None);
        let own = found(&PathBuf::from(format!("/proc/{}", std::process::id())));
        assert!(own.is_none(), "a test serves nothing");
        let parent = parent_of(&PathBuf::from(format!("/proc/{}", std::process::id())));
        assert_eq!(parent, Some(std::os::unix::process::parent_id()));
    }

    /// A container's root has the same number, and may have a program at the same path, or this very file bound into
    /// its mounts.
    #[test]
    fn process_is_ours_by_program_file_and_mounts() {
        let proc = tempfile::tempdir().unwrap();
        let made = |process: &str, exe: &Path, mounts: &str| {
            let place = proc.path().join(process);
            std::fs::create_dir_all(place.join("ns")).unwrap();
            std::os::unix::fs::symlink(exe, place.join("exe")).unwrap();
            std::os::unix::fs::symlink(mounts, place.join("ns/mnt")).unwrap();
            std::fs::write(place.join("cmdline"), b"underlay\0ycsb\0run\0null").unwrap();
            std::fs::write(place.join("stat"), "7 (underlay) S 1 7").unwrap();
            place
        };
        let [program, copy] = ["program", "copy"].map(|name| {
            let path = proc.path().join(name);
            std::fs::write(&path, "x").unwrap();
            path
        });
        let programs = ProgramFiles { own: file_id(&program), gateway: None, mounts: Some("mnt:[1]".into()) };
        let kind = |place: &Path| found_of(place, &programs).map(|found| found.service.kind);
        assert_eq!(kind(&made("7", &program, "mnt:[1]")).as_deref(), Some("load"));
        assert_eq!(kind(&made("8", &program, "mnt:[2]")), None);
        assert_eq!(kind(&made("9", &copy, "mnt:[1]")), None);
        assert_eq!(kind(&made("10", Path::new("/no/such/file"), "mnt:[1]")), None);
    }

    #[test]
    fn moments_are_thinned_for_many_workers() {
        let moment = |at_ms| ServiceMoment {
            at_ms,
            workers: vec![LiveWorker::default(); 160],
            ..ServiceMoment::default()
        };
        let moments = followed_by((0..80).map(moment).collect(), (80..200).map(moment).collect());
        assert_eq!((moments.len(), moments[0].at_ms), (90, 110));
    }

    #[test]
    fn gateway_status_becomes_numbers() {
        let text = br#"{"journal_bytes":5,"last_failure":["a","b"],"requests":7,"prefixes":[{"hits":1,"misses":2,"fetched_bytes":3},{"hits":10}]}"#;
        let figures = figures_of(text).unwrap();
        let figure = |name: &str| figures.get(name).copied();
        assert_eq!(
            (figure("journal_bytes"), figure("requests"), figure("last_failure")),
            (Some(5.0), Some(7.0), None)
        );
        assert_eq!((figure("cache_hits"), figure("cache_misses")), (Some(11.0), Some(2.0)));
        assert_eq!(figures_of(b"not running"), None);
    }
}
