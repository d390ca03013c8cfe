//! A simulated gateway: the process, the machine's disk and clock that it has, and the configuration of its next start.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use underlay_gateway::config::{GatewayConfig, StorePlace};
use underlay_gateway::in_process::{GatewayFailure, HandedConnections, PeerStream, SimulatedCluster, serve};
use underlay_gateway::store::{BackendKind, StoreBackend};

use crate::disk::SimulatedDisks;
use crate::etcd::SimulatedEtcd;
use crate::machine;
use crate::network::{GatewayStream, SimulatedNetwork};
use crate::script::{GatewaySettings, RuleConsistency, StoreKind};
use crate::store::{FoldingMedium, SimulatedStores};
use crate::world::SimulatedWorld;

/// The bucket that clients know, and that the store has.
pub(crate) const BUCKET: &str = "lake";
pub(crate) const KEY_ID: &str = "CLIENT";
pub(crate) const SECRET: &str = "a-secret-of-the-simulation-alone";
/// The room that a gateway sets aside, and leaves beside that.
const ROOM_BYTES: u64 = 64 << 20;
const CLUSTER_TTL: Duration = Duration::from_secs(5);
/// Where the first gateway of a cluster listens for others.
const FIRST_INNER_PORT: u16 = 9100;
/// Of a local disk that is encrypted.
const DISK_KEY: &str = "6b1c7d1fd0d6a1e35d1e9fdd6f0cbb11c2f4b1a4a39f8f4a7f9e0f6c0f5d4e3a";

/// State that all gateways of a run share.
#[derive(Clone)]
pub(crate) struct SharedWorld {
    pub(crate) world: SimulatedWorld,
    pub(crate) disks: Rc<SimulatedDisks>,
    pub(crate) network: SimulatedNetwork,
    pub(crate) stores: SimulatedStores,
    /// How many gateways there are: several are a cluster.
    pub(crate) gateways: usize,
    pub(crate) kind: StoreKind,
    pub(crate) etcd: SimulatedEtcd,
    /// A directory for files that are on no simulated disk.
    pub(crate) scratch: PathBuf,
}

impl SharedWorld {
    fn store_directory(&self) -> PathBuf {
        self.scratch.join("store")
    }

    /// Where the store is, if it is a directory.
    ///
    /// # Errors
    /// When it can't be made.
    pub(crate) fn make_store_directory(&self) -> std::io::Result<PathBuf> {
        let directory = self.store_directory();
        std::fs::create_dir_all(&directory)?;
        make_private(&directory)?;
        Ok(directory)
    }
}

/// See the module.
pub(crate) struct SimulatedGateway {
    number: usize,
    surroundings: SharedWorld,
    disk: usize,
    directory: PathBuf,
    pub(crate) settings: GatewaySettings,
    /// Those that it served with last.
    good_settings: GatewaySettings,
    wall_off_ms: i64,
    /// No sync has failed, and no other gateway is there: once it serves, it goes on.
    may_not_end: bool,
    process: Option<GatewayProcess>,
}

struct GatewayProcess {
    runtime: Runtime,
    /// Of the process's clock, and of the world's, when it began.
    began: (Instant, Duration),
    serving: JoinHandle<Result<bool, GatewayFailure>>,
    terminate: Arc<Notify>,
    is_terminating: bool,
    settings: GatewaySettings,
    /// It began with room for what it keeps for bad times.
    had_room: bool,
    is_ready: Arc<AtomicBool>,
    lives: Arc<AtomicBool>,
    stopped_at: Option<Duration>,
    /// It is dying: not later than this, and whether it takes what was not synced with it.
    doomed: Option<(Duration, bool)>,
}

/// How a process has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// By SIGTERM, and whether the stores have everything.
    Stopped {
        is_stored: bool,
    },
    Failed {
        why: String,
        is_bug: bool,
    },
    Killed,
}

impl SimulatedGateway {
    pub(crate) fn new(
        number: usize,
        surroundings: &SharedWorld,
        settings: &GatewaySettings,
    ) -> std::io::Result<SimulatedGateway> {
        let place = surroundings.scratch.join(format!("gateway-{number}"));
        let (directory, stash) = (place.join("local"), place.join("stash"));
        std::fs::create_dir_all(&directory)?;
        std::fs::create_dir_all(&stash)?;
        make_private(&directory)?;
        let disk = surroundings.disks.add(directory.clone(), stash, settings.disk_bytes);
        for (name, text) in [("secret", SECRET), ("disk-key", DISK_KEY), ("cluster-secret", SECRET)] {
            std::fs::write(place.join(name), text)?;
            make_private(&place.join(name))?;
        }
        Ok(SimulatedGateway {
            number,
            surroundings: surroundings.clone(),
            disk,
            directory,
            settings: settings.clone(),
            good_settings: settings.clone(),
            wall_off_ms: 0,
            may_not_end: surroundings.gateways == 1,
            process: None,
        })
    }

    pub(crate) fn disk(&self) -> usize {
        self.disk
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_ready.load(Ordering::Relaxed))
    }

    pub(crate) fn fail_syncs(&mut self, count: u64) {
        self.may_not_end = false;
        let sound = self.surroundings.world.with_random(|random| random.below(4));
        self.surroundings.disks.fail_syncs(self.disk, sound, count);
    }

    pub(crate) fn take_back_settings(&mut self) {
        self.settings = self.good_settings.clone();
    }

    pub(crate) fn jump_clock(&mut self, ms: i64) {
        self.wall_off_ms = self.wall_off_ms.saturating_add(ms);
    }

    pub(crate) fn set_clock_right(&mut self) {
        self.wall_off_ms = 0;
    }

    /// # Errors
    /// When the configuration makes no sense, which is a mistake in the script, or there is no runtime to be had.
    pub(crate) fn start(&mut self) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        self.surroundings.disks.set_capacity(self.disk, self.settings.disk_bytes);
        let store = match self.surroundings.kind {
            StoreKind::S3 => format!("s3://{BUCKET}"),
            _ => self.surroundings.store_directory().display().to_string(),
        };
        let mut text = config_text(&self.settings, &self.directory, &store);
        if self.surroundings.gateways > 1 {
            text.push_str(&cluster_text(self.number, &self.directory));
        }
        let config = GatewayConfig::parse("gateway.toml", &text)
            .map_err(|findings| format!("{findings:?}\n{text}"))?;
        let lives = self.surroundings.disks.begin(self.disk);
        let had_room = self.surroundings.disks.free_bytes(self.disk) >= ROOM_BYTES;
        let (terminate, is_ready) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|error| error.to_string())?;
        machine::set_wall_offset(self.wall_off_ms);
        let (stores, number, of_store) = (self.surroundings.stores.clone(), self.number, Arc::clone(&lives));
        let kind = self.surroundings.kind;
        let open_store = Box::new(move |place: &StorePlace| match place {
            StorePlace::S3 { bucket, .. } => {
                let store = stores.open(bucket, number, Arc::clone(&of_store));
                Ok(StoreBackend::new(store, BackendKind::S3).reached_at("http://store.simulated"))
            }
            StorePlace::Directory(path) => {
                let store = stores.open(BUCKET, number, Arc::clone(&of_store));
                let backend = StoreBackend::new(store, BackendKind::Directory)
                    .with_root(path)
                    .map_err(|error| error.to_string())?;
                Ok(match kind {
                    StoreKind::Folding => {
                        backend.trying_names_in(Arc::new(|| Box::new(FoldingMedium::default())))
                    }
                    _ => backend,
                })
            }
        });
        let (network, lives_too) = (self.surroundings.network.clone(), Arc::clone(&lives));
        let (ready, terminating) = (Arc::clone(&is_ready), Arc::clone(&terminate));
        let clients = HandedConnections(network.listen(number, lives_too));
        let others = self.others(&lives);
        // A port is taken before the work begins; what comes meanwhile waits.
        let work = async move {
            let terminated = async move { terminating.notified().await };
            serve(
                config,
                open_store,
                clients,
                others,
                move || ready.store(true, Ordering::Relaxed),
                terminated,
            )
            .await
        };
        let serving = runtime.spawn(work);
        let began = (runtime.block_on(async { Instant::now() }), self.surroundings.world.now());
        self.surroundings.world.note(format_args!("gateway {number} starts"));
        self.process = Some(GatewayProcess {
            runtime,
            began,
            serving,
            terminate,
            is_terminating: false,
            settings: self.settings.clone(),
            had_room,
            is_ready,
            lives,
            stopped_at: None,
            doomed: None,
        });
        Ok(())
    }

    /// How it reaches the rest of its cluster, if it is of one.
    fn others(
        &self,
        lives: &Arc<AtomicBool>,
    ) -> Option<(HandedConnections<GatewayStream>, SimulatedCluster)> {
        let SharedWorld { network, etcd, gateways, .. } = &self.surroundings;
        if *gateways < 2 {
            return None;
        }
        let arrivals = HandedConnections(network.listen(gateways + self.number, Arc::clone(lives)));
        let (network, first) = (network.clone(), *gateways);
        let connect = Box::new(move |address: &str| {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0_usize);
            let stream = network.connect_now(first + port.wrapping_sub(usize::from(FIRST_INNER_PORT)))?;
            Ok(Box::new(stream) as Box<dyn PeerStream>)
        });
        let etcd = etcd.reached(CLUSTER_TTL / 5, Arc::clone(lives));
        Some((arrivals, SimulatedCluster { etcd, connect }))
    }

    /// Goes on until the world's time. Returns how the process has ended, if it has.
    pub(crate) fn step(&mut self) -> Option<ProcessEnd> {
        let now = self.surroundings.world.now();
        let process = self.process.as_mut()?;
        if process.stopped_at.is_none() {
            machine::set_wall_offset(self.wall_off_ms);
            let (instant, start) = process.began;
            process
                .runtime
                .block_on(async move { tokio::time::sleep_until(instant + now.saturating_sub(start)).await });
            machine::set_wall_offset(0);
        }
        if process.is_ready.load(Ordering::Relaxed) {
            self.good_settings.clone_from(&process.settings);
        }
        let is_late = process.doomed.is_some_and(|(deadline, _)| now >= deadline);
        if is_late || !process.lives.load(Ordering::Relaxed) {
            let cuts_power = process.doomed.is_some_and(|(_, cuts)| cuts);
            return self.die(cuts_power);
        }
        if !process.serving.is_finished() || process.stopped_at.is_some() {
            return None;
        }
        let GatewayProcess { runtime, serving, is_ready, had_room, .. } = self.process.take()?;
        let outcome = runtime.block_on(serving);
        let end = match outcome {
            Ok(Ok(is_stored)) => ProcessEnd::Stopped { is_stored },
            // A full disk is no reason to end, with what is kept for that.
            Ok(Err(GatewayFailure { why: reason, .. }))
                if self.may_not_end && had_room && is_ready.load(Ordering::Relaxed) =>
            {
                ProcessEnd::Failed { why: format!("without a reason: {reason}"), is_bug: true }
            }
            Ok(Err(GatewayFailure { why: reason, is_bug })) => ProcessEnd::Failed { why: reason, is_bug },
            Err(error) => ProcessEnd::Failed { why: error.to_string(), is_bug: true },
        };
        drop(runtime);
        self.clean_up();
        Some(end)
    }

    /// At once.
    pub(crate) fn die(&mut self, cuts_power: bool) -> Option<ProcessEnd> {
        let process = self.process.take()?;
        process.lives.store(false, Ordering::Relaxed);
        // The drops of its tasks have no effect.
        drop(process);
        self.clean_up();
        if cuts_power {
            self.surroundings.disks.cut_power(self.disk);
        }
        Some(ProcessEnd::Killed)
    }

    fn clean_up(&mut self) {
        self.surroundings.network.close(self.number);
        self.surroundings.network.close(self.surroundings.gateways + self.number);
        self.surroundings.disks.close_left(self.disk);
        self.surroundings.stores.gateway_died(self.number);
    }

    /// After so many more changes of its disk, or when this time is over.
    pub(crate) fn doom(&mut self, changes: u64, deadline: Duration, cuts_power: bool) {
        if let Some(process) = &mut self.process {
            process.doomed = Some((deadline, cuts_power));
            self.surroundings.disks.die_in(self.disk, changes);
        }
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.doomed.is_some())
    }

    pub(crate) fn terminate(&mut self) {
        if let Some(process) = &mut self.process
            && !process.is_terminating
        {
            process.is_terminating = true;
            process.terminate.notify_one();
            self.surroundings.world.note(format_args!("gateway {} is terminated", self.number));
        }
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_terminating)
    }

    /// SIGSTOP.
    pub(crate) fn stop(&mut self) {
        let now = self.surroundings.world.now();
        if let Some(process) = &mut self.process {
            process.stopped_at.get_or_insert(now);
        }
    }

    /// SIGCONT: its clock has gone on, and all its timers are late at once.
    pub(crate) fn go_on(&mut self) {
        let now = self.surroundings.world.now();
        if let Some(process) = &mut self.process
            && let Some(stopped) = process.stopped_at.take()
        {
            machine::set_wall_offset(self.wall_off_ms);
            process.runtime.block_on(async move { tokio::time::advance(now.saturating_sub(stopped)).await });
            machine::set_wall_offset(0);
        }
    }
}

fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// The extra configuration of a cluster's gateway.
fn cluster_text(number: usize, directory: &Path) -> String {
    let place = directory.parent().unwrap_or(directory).display();
    format!(
        "[cluster]\netcd = [\"http://127.0.0.1:2379\"]\nname = \"gateway-{number}\"\nlisten = \"127.0.0.1:{}\"\n\
         secret_file = \"{place}/cluster-secret\"\nttl = \"{} s\"\n",
        usize::from(FIRST_INNER_PORT) + number,
        CLUSTER_TTL.as_secs(),
    )
}

fn consistency_text(consistency: RuleConsistency) -> String {
    match consistency {
        RuleConsistency::Exclusive => "consistency = \"exclusive\"".to_owned(),
        RuleConsistency::Revalidate => "consistency = \"revalidate\"".to_owned(),
        RuleConsistency::Ttl { ms } => format!("consistency = \"ttl\"\nttl = \"{ms} ms\""),
    }
}

/// The text of a `gateway.toml`.
fn config_text(settings: &GatewaySettings, directory: &Path, store: &str) -> String {
    let place = directory.parent().unwrap_or(directory).display();
    let write = |consistency: RuleConsistency| match (consistency, settings.write_back_ms) {
        (RuleConsistency::Exclusive, Some(ms)) => format!("write = \"back\"\nflush_after = \"{ms} ms\"\n"),
        _ => "write = \"through\"\n".to_owned(),
    };
    let encryption = match settings.is_encrypted {
        true => format!("encryption_key_file = \"{place}/disk-key\"\n"),
        false => String::new(),
    };
    let mut text = format!(
        "listen = \"127.0.0.1:9000\"\n\
         [local]\ndirectory = \"{}\"\njournal = \"{} B\"\nmemory = \"{} B\"\nmetadata_memory = \"4 MiB\"\nblock = \"{} B\"\n{encryption}\
         [limits]\nrequests = {}\nflushes = {}\npatience = \"{} ms\"\ndrain = \"{} ms\"\nuploads_expire = \"{} s\"\n\
         [admin]\nlisten = \"127.0.0.1:9001\"\n\
         [key.client]\nid = \"{KEY_ID}\"\nsecret_file = \"{place}/secret\"\n\
         allow = [{{ bucket = \"{BUCKET}\", may = [\"read\", \"write\"] }}]\n\
         [bucket.{BUCKET}]\nstore = \"{store}\"\n{}\n{}",
        directory.display(),
        settings.journal_bytes,
        settings.memory_bytes,
        settings.block_bytes,
        settings.requests,
        settings.flushes,
        settings.patience_ms,
        settings.drain_ms,
        settings.uploads_expire_s,
        consistency_text(settings.consistency),
        write(settings.consistency),
    );
    for (prefix, consistency) in &settings.rules {
        let of_rule = consistency_text(*consistency);
        text.push_str(&format!(
            "[[bucket.{BUCKET}.prefix]]\nprefix = \"{prefix}\"\n{of_rule}\n{}",
            write(*consistency)
        ));
    }
    text
}
