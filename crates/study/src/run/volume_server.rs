//! The volume server of a cell: `underlay volume serve` as a separate process, outside of the cell's memory
//! budget, because it stands for another machine.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use underlay_files::{Access, Folder};
use underlay_nvme::auth::{AuthHash, AuthSecret};
use underlay_nvme::initiator::this_host_nqn;
use underlay_record::{DeviceActivity, DeviceGlance, LayerActivity};
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::{InitialState, PacingMode, RemoteSpec, SecretPlaces, StackNode};
use underlay_sync::Mutex;
use underlay_systems::child::ChildProcess;
use underlay_systems::system::SystemResources;
use underlay_volume::pool::MemberState;
use underlay_volume::pool_file::control_socket;
use underlay_volume::server::PoolConnection;
use underlay_volume::server::nqn;
use underlay_volume::server::protocol::{
    PoolCommand as Verb, PoolReply, PoolState, VolumeState, VolumeTraffic,
};

use super::CellError;
use super::cell_plan::CellPlan;
use crate::spec::{DeviceSpec, PoolVolume, StorageSource};

/// The name in reports. The full name differs in each cell: two runs on one host must not share a subsystem.
const POOL: &str = "pool";
const NAME_FILE: &str = "pool.name";
const MAX_NAME_BYTES: u64 = 64;
/// Stored next to the pool's file.
const HOST_SECRET: &str = "host.secret";
const CONTROLLER_SECRET: &str = "controller.secret";
/// Devices and volumes are whole multiples of this.
const UNIT_BYTES: u64 = 1 << 20;
/// Each volume is a separate subsystem, with this one namespace.
const NAMESPACE: u32 = 1;
/// Opening a pool reads its map; a flash device in steady state is prepared first.
const START_LIMIT: Duration = Duration::from_secs(120);
/// A server that takes longer to answer is not sampled.
const WATCH_LIMIT: Duration = Duration::from_secs(1);
const START_POLL: Duration = Duration::from_millis(10);
/// A server that has ended does not come back, so requests to it fail soon. While they wait, a run that was killed
/// during attaching can't end, and keeps the kernel's lock of loop devices.
const LOSS_TIMEOUT_S: u32 = 3;
/// It writes out acknowledged data when it ends.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// From `struct sockaddr_un`, with its final zero.
const SOCKET_PATH_MAX_BYTES: usize = 107;

/// A volume server with a volume for each server of the system. Dropping it kills it.
pub(super) struct VolumeServer {
    child: ChildProcess,
    connection: Mutex<PoolConnection>,
    control: PathBuf,
    address: SocketAddr,
    /// The pool's full name.
    name: String,
    /// The secrets by which a volume's host and the server authenticate each other.
    secrets: SecretPlaces,
    /// When measuring began, and the CPU time that it had used by then.
    measured_from: Mutex<Option<(Instant, Duration)>>,
    /// The traffic of each volume until then.
    moved_before: Mutex<BTreeMap<String, VolumeTraffic>>,
    last_seen: Mutex<LastSeen>,
}

/// The pool's last state during sampling.
#[derive(Default)]
struct LastSeen {
    volumes: Vec<LayerActivity>,
    /// Devices by name, with the problem of each.
    not_in_use: BTreeMap<String, String>,
}

impl VolumeServer {
    /// Starts it in `folder`, which holds the devices' images or will hold them. Its devices complete requests at once.
    pub(super) fn start(plan: &CellPlan<'_>, folder: &Path) -> Result<VolumeServer, CellError> {
        let StorageSource::Volume(volume) = &plan.storage.source else {
            unreachable!("only volumes have a server");
        };
        let directory = devices_folder(folder);
        Folder::make(&directory, Access::Private)?;
        let secrets = secrets(folder)?;
        let name = pool_name(folder)?;
        let control = control_socket(&directory);
        if control.as_os_str().as_bytes().len() > SOCKET_PATH_MAX_BYTES {
            return Err(CellError::Failed(format!(
                "{} is too long for a socket's path: choose a shorter directory with --work",
                control.display()
            )));
        }
        for (name, text) in media_files(plan, volume) {
            fs::write(folder.join(name), text)?;
        }
        let file = folder.join("pool.toml");
        fs::write(&file, pool_file(plan, volume, &name))?;
        // This very program, even if its file has been replaced since it started.
        let mut command = Command::new("/proc/self/exe");
        // The name for lists of processes.
        std::os::unix::process::CommandExt::arg0(&mut command, "underlay");
        command.args(["volume", "serve", "--immediate"]).arg(&file);
        let resources = SystemResources::with_budget(0);
        let child = ChildProcess::spawn("volume-server", command, &folder.join("log"), &resources)?;
        let (connection, address) = wait_until_ready(&child, &control)?;
        Ok(VolumeServer {
            child,
            connection: Mutex::new(connection),
            control,
            address,
            name,
            secrets,
            measured_from: Mutex::new(None),
            moved_before: Mutex::default(),
            last_seen: Mutex::default(),
        })
    }

    /// The path to the volume of one of the system's servers.
    pub(super) fn volume(&self, server: u32) -> StackNode {
        let volume = volume_name(server);
        let subsystem = nqn::volume_nqn(&self.name, &volume);
        let address = self.address.to_string();
        StackNode::Remote(RemoteSpec {
            host_nqn: Some(this_host_nqn()),
            secrets: self.secrets.clone(),
            loss_timeout_s: LOSS_TIMEOUT_S,
            ..RemoteSpec::new(format!("{POOL}/{volume}"), address, subsystem, NAMESPACE)
        })
    }

    pub(super) fn set_pace(&self, pace: PacingMode) -> Result<(), CellError> {
        self.tell(&Verb::SetPace { pace })
    }

    pub(super) fn begin_measurement(&self, interval_s: f64) -> Result<(), CellError> {
        self.tell(&Verb::BeginMeasurement { interval_s })?;
        let volumes = self.state()?.volumes.into_iter();
        *self.moved_before.lock() = volumes.map(|volume| (volume.name, volume.traffic)).collect();
        *self.measured_from.lock() = Some((Instant::now(), cpu_time(self.child.state().pid())));
        Ok(())
    }

    /// The activity of the pool's devices, and the cores that the server used.
    pub(super) fn end_measurement(&self) -> Result<(Vec<DeviceActivity>, f64), CellError> {
        let cores = self.measured_from.lock().take().map_or(0.0, |(begun, before)| {
            let wall = begun.elapsed().as_secs_f64();
            let used = cpu_time(self.child.state().pid()).saturating_sub(before).as_secs_f64();
            if wall > 0.0 { used / wall } else { 0.0 }
        });
        match self.ask(&Verb::EndMeasurement)? {
            PoolReply::Activity { devices } => Ok((devices, cores)),
            other => Err(unexpected("what its devices did", &other)),
        }
    }

    /// The state of the pool's devices, and of its volumes if they answer in time; counting continues.
    pub(super) fn glance(&self) -> Result<(Vec<DeviceGlance>, Vec<LayerActivity>), CellError> {
        let silent = |error| CellError::Failed(format!("the volume server does not answer: {error}"));
        // A connection of its own: a late answer would be taken for the answer to the next question.
        let mut connection = PoolConnection::open_within(&self.control, WATCH_LIMIT).map_err(silent)?;
        let mut devices = match connection.ask(&Verb::Glance).map_err(silent)? {
            PoolReply::Glance { devices } => devices,
            other => return Err(unexpected("how its devices stand", &other)),
        };
        let mut last_seen = self.last_seen.lock();
        // A pool that is late is not repaired, but has lost nothing either.
        if let Ok(PoolReply::State(state)) = connection.ask(&Verb::List) {
            let before = self.moved_before.lock();
            let volumes = state.volumes.into_iter();
            last_seen.volumes = volumes.map(|volume| live_volume(before.get(&volume.name), volume)).collect();
            let not_in_use = state.members.into_iter().filter(|member| member.state != MemberState::InUse);
            last_seen.not_in_use =
                not_in_use.map(|member| (member.name, member.state.describe().to_owned())).collect();
        }
        for device in &mut devices {
            device.state = last_seen.not_in_use.get(&device.id.name).cloned();
        }
        Ok((devices, last_seen.volumes.clone()))
    }

    /// The volumes' data, and the space that they take.
    pub(super) fn volumes(&self) -> Result<Vec<LayerActivity>, CellError> {
        let state = self.state()?;
        let figures = |volume: VolumeState| LayerActivity {
            server: None,
            name: volume.name,
            kind: "volume".to_owned(),
            figures: [
                ("capacity_bytes", volume.capacity_bytes as f64),
                ("used_bytes", volume.used_bytes as f64),
                ("stored_bytes", volume.stored_bytes as f64),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        };
        Ok(state.volumes.into_iter().map(figures).collect())
    }

    /// `Err` when it has ended or does not answer.
    pub(super) fn health(&self) -> Result<(), CellError> {
        if !self.child.state().is_running() {
            return Err(self.child.state().failed("serving volumes", self.child.state().describe()).into());
        }
        match self.ask(&Verb::Ping)? {
            PoolReply::Pong { .. } => Ok(()),
            other => Err(unexpected("a sign of life", &other)),
        }
    }

    /// Shuts it down cleanly: everything acknowledged is in its images when this returns.
    pub(super) fn stop(self) -> Result<(), CellError> {
        self.tell(&Verb::Shutdown)?;
        if !self.child.state().wait(STOP_LIMIT) {
            let problem = format!("it was asked to stop {} s ago and still runs", STOP_LIMIT.as_secs());
            return Err(self.child.state().failed("stopping", problem).into());
        }
        if !self.child.state().ended_well() {
            return Err(self.child.state().failed("stopping", self.child.state().describe()).into());
        }
        Ok(())
    }

    fn state(&self) -> Result<PoolState, CellError> {
        match self.ask(&Verb::List)? {
            PoolReply::State(state) => Ok(state),
            other => Err(unexpected("how its volumes are", &other)),
        }
    }

    fn tell(&self, verb: &Verb) -> Result<(), CellError> {
        match self.ask(verb)? {
            PoolReply::Done => Ok(()),
            other => Err(unexpected("that it is done", &other)),
        }
    }

    fn ask(&self, verb: &Verb) -> Result<PoolReply, CellError> {
        match self.connection.lock().ask(verb) {
            Ok(PoolReply::Failed { problem, .. }) => {
                Err(CellError::Failed(format!("the volume server refused: {problem}")))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(self
                .child
                .state()
                .failed("answering", format!("{error}; {}", self.child.state().describe_loss()))
                .into()),
        }
    }
}

/// A volume as a layer between a server and the pool's devices. `before` is the traffic until the measurement began.
fn live_volume(before: Option<&VolumeTraffic>, volume: VolumeState) -> LayerActivity {
    let requests = |traffic: &VolumeTraffic| traffic.reads + traffic.writes;
    let moved_bytes = |traffic: &VolumeTraffic| traffic.read_bytes + traffic.written_bytes;
    let difference = |counter: &dyn Fn(&VolumeTraffic) -> u64| {
        counter(&volume.traffic).saturating_sub(before.map_or(0, counter)) as f64
    };
    let figures = [
        ("used_bytes", volume.used_bytes as f64),
        ("stored_bytes", volume.stored_bytes as f64),
        ("degraded", f64::from(u8::from(volume.degraded))),
        ("clients", f64::from(volume.clients)),
        ("requests", difference(&requests)),
        ("moved_bytes", difference(&moved_bytes)),
    ];
    LayerActivity {
        server: None,
        name: volume.name,
        kind: "volume".to_owned(),
        figures: figures.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

fn unexpected(wanted: &str, reply: &PoolReply) -> CellError {
    CellError::Failed(format!("the volume server was asked for {wanted}, but answered {reply:?}"))
}

/// The directory of a volume server's images, below `folder`.
pub(super) fn devices_folder(folder: &Path) -> PathBuf {
    folder.join("devices")
}

/// Every local user can connect to the server, and could take its place after it ends. So each side authenticates with
/// a secret of this cell. The secrets survive a restart of the server, since initiators know them.
fn secrets(folder: &Path) -> Result<SecretPlaces, CellError> {
    let opened = Folder::open(folder)?;
    let place = |name: &str| -> Result<Option<PathBuf>, CellError> {
        if !opened.has(name) {
            let secret = AuthSecret::generate(AuthHash::Sha256)?;
            opened.replace(name, Access::Private, secret.reveal().as_bytes())?;
        }
        Ok(Some(opened.path().join(name)))
    };
    Ok(SecretPlaces {
        secret_file: place(HOST_SECRET)?,
        controller_secret_file: place(CONTROLLER_SECRET)?,
        ..SecretPlaces::default()
    })
}

/// Kept across restarts, like the secrets.
fn pool_name(folder: &Path) -> Result<String, CellError> {
    let opened = Folder::open(folder)?;
    if opened.has(NAME_FILE) {
        return Ok(opened.read_text(NAME_FILE, MAX_NAME_BYTES)?);
    }
    let name = underlay_files::unique_name(POOL);
    opened.replace(NAME_FILE, Access::Private, name.as_bytes())?;
    Ok(name)
}

pub(super) fn volume_name(server: u32) -> String {
    format!("server-{server}")
}

fn wait_until_ready(child: &ChildProcess, control: &Path) -> Result<(PoolConnection, SocketAddr), CellError> {
    let begun = Instant::now();
    loop {
        if let Ok(mut connection) = PoolConnection::open(control)
            && let Ok(PoolReply::Pong { address, .. }) = connection.ask(&Verb::Ping)
        {
            return Ok((connection, address));
        }
        if !child.state().is_running() {
            return Err(child.state().failed("starting", child.state().describe()).into());
        }
        if begun.elapsed() > START_LIMIT {
            let problem = format!("it did not answer within {} s", START_LIMIT.as_secs());
            return Err(child.state().failed("starting", problem).into());
        }
        std::thread::sleep(START_POLL);
    }
}

/// The pool's file, at the study's scale.
fn pool_file(plan: &CellPlan<'_>, volume: &PoolVolume, name: &str) -> String {
    let PoolVolume { pool, capacity_bytes, compress, mirror, .. } = volume;
    // In whole MiB, since the server accepts only whole blocks.
    let here = |bytes: u64| (bytes as f64 / plan.scale.data) as u64 / UNIT_BYTES * UNIT_BYTES;
    let devices: Vec<String> = pool
        .devices
        .iter()
        .map(|device| {
            let bytes = device.capacity_bytes.unwrap_or(device.medium.capacity_bytes());
            format!(
                "{{ medium = {}, count = {}, capacity = \"{} B\" }}",
                quoted(&medium_name(plan, device)),
                device.count,
                here(bytes)
            )
        })
        .collect();
    let initial = match pool.initial {
        InitialState::Fresh => "fresh",
        InitialState::Steady => "steady",
    };
    let compress = match compress {
        None => "none",
        Some(CompressionCodec::Lz4) => "lz4",
        Some(CompressionCodec::Zstd(_)) => "zstd",
    };
    let mut text = format!(
        // Port 0: two runs on one host must not want the same port.
        "name = \"{name}\"\nlisten = \"127.0.0.1:0\"\ndirectory = \"devices\"\ndevices = [{}]\ninitial = \"{initial}\"\npower_cut = {}\n",
        devices.join(", "),
        pool.power_cut
    );
    for server in 0..plan.system.servers {
        text.push_str(&format!(
            "\n[volume.{}]\ncapacity = \"{} B\"\ncompress = \"{compress}\"\nmirror = {mirror}\nhosts = [{}]\n\
             secret_file = \"{HOST_SECRET}\"\ncontroller_secret_file = \"{CONTROLLER_SECRET}\"\n",
            volume_name(server),
            here(*capacity_bytes),
            quoted(&this_host_nqn())
        ));
    }
    // `{:?}` keeps the decimal point of a whole number, which TOML would otherwise read as an integer.
    text.push_str(&format!("\n[scale]\ntime = {:?}\n", plan.scale.time));
    text
}

/// The name of a device's medium in the pool's file: a file name if the medium is a user's file.
fn medium_name(plan: &CellPlan<'_>, device: &DeviceSpec) -> String {
    let of_file = plan.study.media_files.iter().find(|(name, text)| {
        underlay_storage::catalogue::CatalogueMedium::parse(name, text)
            .is_ok_and(|medium| medium == device.medium)
    });
    of_file.map_or_else(|| device.medium.name.clone(), |(name, _)| file_name(name))
}

/// The user's media of a pool's devices: a name below the pool's folder, and the text.
fn media_files(plan: &CellPlan<'_>, volume: &PoolVolume) -> Vec<(String, String)> {
    let named: Vec<String> = volume.pool.devices.iter().map(|device| medium_name(plan, device)).collect();
    let files = plan.study.media_files.iter().map(|(name, text)| (file_name(name), text.clone()));
    files.filter(|(name, _)| named.contains(name)).collect()
}

/// Without the directories in the study.
fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}

fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// The CPU time that a process has used; none if it has ended.
pub(super) fn cpu_time(pid: u32) -> Duration {
    // SAFETY: sysconf touches no memory of ours.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The fields after the program's name, which may hold anything but ends with the last parenthesis (proc(5)).
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    // Fields 14 and 15, utime and stime; the first here is field 3.
    let ticks: u64 = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / ticks_per_s as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::spec::{Study, read_pool_file};

    const STUDY: &str = r#"name = "x"
baseline = "remote"
[system.rocksdb]
memory = "64 GiB"
servers = 2
[pool.shared]
devices = [{ medium = "nvme-9300-max", count = 3, capacity = "3 TB" }]
initial = "fresh"
power_cut = true
[storage.remote]
pool = "shared"
capacity = "4 TB"
compress = "zstd"
mirror = true
[workload.ycsb]
data = "800 GB"
mixes = ["a"]
threads = 8
[scale]
time = 8
data = 1000
"#;

    #[test]
    fn written_pool_file_is_readable_by_server() {
        let study = Study::parse("x.toml", STUDY, false).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let order = plan::order(&study);
        let plan = CellPlan::new(&study, &order[0], 0).unwrap();
        let StorageSource::Volume(volume) = &plan.storage.source else { panic!("a volume") };
        let places = SecretPlaces {
            secret_file: Some("/cell/pool/host.secret".into()),
            controller_secret_file: Some("/cell/pool/controller.secret".into()),
            ..SecretPlaces::default()
        };
        let text = pool_file(&plan, volume, "pool-7-0123456789abcdef");
        let none = |_: &str| Err("no files here".to_owned());
        let file = read_pool_file("pool.toml", &text, Path::new("/cell/pool"), &none)
            .unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}"));
        assert_eq!(file.directory, devices_folder(Path::new("/cell/pool")));
        assert_eq!((file.dilation, file.power_cut), (8.0, true));
        let devices = file.modelled();
        assert_eq!(devices.len(), 3);
        assert!(devices.iter().all(|device| device.initial == InitialState::Fresh));
        assert_eq!(devices[0].capacity_bytes, 2861 << 20);
        assert_eq!(file.volumes.len(), 2);
        assert_eq!(file.volumes[1].name, "server-1");
        assert!(
            file.volumes[1].spec.mirror
                && matches!(file.volumes[1].spec.compress, Some(CompressionCodec::Zstd(_)))
        );
        assert_eq!(file.volumes[1].spec.capacity_bytes, 3814 << 20);
        for volume in &file.volumes {
            assert_eq!(volume.admission.hosts, [this_host_nqn()]);
            assert_eq!(volume.admission.secrets, places);
        }
    }

    #[test]
    fn cell_keeps_its_own_secrets() {
        use std::os::unix::fs::PermissionsExt as _;
        let cells = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let read = |cell: &tempfile::TempDir| {
            let SecretPlaces { secret_file, controller_secret_file, .. } = secrets(cell.path()).unwrap();
            [secret_file, controller_secret_file].map(|file| {
                let file = file.unwrap();
                assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
                fs::read_to_string(file).unwrap()
            })
        };
        let [one, other] = [read(&cells[0]), read(&cells[1])];
        assert_eq!(read(&cells[0]), one, "a server that starts again");
        assert!(one[0] != one[1] && one[0] != other[0] && one[1] != other[1]);
    }

    #[test]
    fn pool_names_differ_by_cell_and_survive_restart() {
        let cells = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [one, other] = [0, 1].map(|index: usize| pool_name(cells[index].path()).unwrap());
        assert_ne!(one, other);
        assert_eq!(pool_name(cells[0].path()).unwrap(), one);
        assert!(one.starts_with("pool-") && one.len() <= 40, "{one}");
    }

    #[test]
    fn volume_activity_before_measurement_is_excluded() {
        let traffic = |reads, read_bytes| VolumeTraffic { reads, read_bytes, ..VolumeTraffic::default() };
        let volume = || VolumeState { traffic: traffic(70, 7_000), ..volume_state() };
        let figures_of = |layer: &LayerActivity| (layer.figures["requests"], layer.figures["moved_bytes"]);
        assert_eq!(figures_of(&live_volume(Some(&traffic(20, 5_000)), volume())), (50.0, 2_000.0));
        assert_eq!(figures_of(&live_volume(None, volume())), (70.0, 7_000.0));
    }

    fn volume_state() -> VolumeState {
        VolumeState {
            name: volume_name(0),
            nqn: nqn::volume_nqn(POOL, &volume_name(0)),
            capacity_bytes: 1 << 30,
            used_bytes: 0,
            stored_bytes: 0,
            compress: None,
            mirror: true,
            degraded: false,
            writable: true,
            snapshot_of: None,
            limits: Default::default(),
            admission: Default::default(),
            clients: 0,
            writer: None,
            traffic: VolumeTraffic::default(),
        }
    }

    #[test]
    fn our_own_cpu_time_goes_on() {
        let begun = cpu_time(std::process::id());
        let deadline = Instant::now() + Duration::from_secs(20);
        while cpu_time(std::process::id()) == begun {
            assert!(Instant::now() < deadline, "twenty seconds of work took no CPU time");
        }
    }
}
