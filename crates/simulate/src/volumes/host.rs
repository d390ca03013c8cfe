//! The process that uses volumes over the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use underlay_nvme::initiator::{ControllerOptions, NvmeController, RemoteDevice, UnflushedLimits};
use underlay_storage::device::{BlockDevice, CompletionCallback, DeviceGeometry, DeviceRequest};
use underlay_sync::simulation::{SimulatedWorld, TaskGroup};

use super::server::nqn;
use crate::content::block;
use crate::network::SimulatedNetwork;
use crate::slot::SharedSlot;

/// How long a host tries to reach a lost server, in virtual time.
const LOSS_TIMEOUT: Duration = Duration::from_secs(120);
/// Few enough that a script reaches them.
const UNFLUSHED: UnflushedLimits = UnflushedLimits { bytes: 256 << 10, commands: 64 };
/// No write of a script has this number.
const INTRUDER_TAG: u64 = (1 << 40) - 1;

pub(super) type HostDevices = BTreeMap<String, Arc<dyn BlockDevice>>;

pub(super) struct SimulatedHost {
    pub process: TaskGroup,
    pub opened: SharedSlot<Result<HostDevices, String>>,
}

fn options(network: &SimulatedNetwork, process: TaskGroup, host: &str, volume: &str) -> ControllerOptions {
    let options = ControllerOptions {
        dialer: network.dialer(process),
        loss_timeout: LOSS_TIMEOUT,
        queue_depth: 16,
        unflushed: UNFLUSHED,
        ..ControllerOptions::new("server:4420", nqn(volume))
    };
    options.with_host_nqn(format!("nqn.2014-08.org.example:simulated-{host}"))
}

fn connect(options: ControllerOptions) -> Result<Arc<dyn BlockDevice>, String> {
    let controller = NvmeController::connect(options).map_err(|error| error.to_string())?;
    let device = controller.namespace(1).map_err(|error| error.to_string())?;
    Ok(Arc::new(BoundedDevice { device, longest_bytes: AtomicUsize::new(0) }))
}

/// A remote device that is held to the bound of what it keeps.
struct BoundedDevice {
    device: RemoteDevice,
    /// Of the writes so far: one is always let through.
    longest_bytes: AtomicUsize,
}

impl BlockDevice for BoundedDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.device.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let DeviceRequest::Write { data, .. } = &request {
            self.longest_bytes.fetch_max(data.len(), Ordering::Relaxed);
        }
        self.device.submit(request, done);
        let most = (2 * UNFLUSHED.bytes).max(self.longest_bytes.load(Ordering::Relaxed));
        let kept_bytes = self.device.kept_bytes();
        assert!(kept_bytes <= most, "a host keeps {kept_bytes} bytes of writes, where {most} are allowed");
    }
}

impl SimulatedHost {
    /// Begins to connect to the volumes.
    pub(super) fn start(
        world: &SimulatedWorld,
        network: &SimulatedNetwork,
        host: &str,
        volumes: &[String],
    ) -> SimulatedHost {
        let process = world.new_group();
        let opened = SharedSlot::default();
        let all: Vec<(String, ControllerOptions)> =
            volumes.iter().map(|name| (name.clone(), options(network, process, host, name))).collect();
        let slot = opened.clone();
        let begin = move || {
            let deadline = underlay_sync::Instant::now() + LOSS_TIMEOUT;
            let mut devices = HostDevices::new();
            for (name, options) in all {
                loop {
                    match connect(options.clone()) {
                        Ok(device) => {
                            devices.insert(name, device);
                            break;
                        }
                        // As a host that mounts a volume at boot: the server may not be there yet.
                        Err(_) if underlay_sync::Instant::now() < deadline => {
                            underlay_sync::thread::sleep(Duration::from_millis(500));
                        }
                        Err(problem) => return slot.fill(Err(problem)),
                    }
                }
            }
            slot.fill(Ok(devices));
        };
        world.spawn(process, begin).expect("a thread can be had");
        SimulatedHost { process, opened }
    }

    /// Another host, or another process of the same one, writes to a volume that is in use, and goes again. It must be
    /// refused, unless it is no longer waited for: `is_over` is full then.
    pub(super) fn intrude(
        world: &SimulatedWorld,
        network: &SimulatedNetwork,
        host: &str,
        volume: &str,
        offset_bytes: u64,
        is_over: &SharedSlot<()>,
    ) {
        let process = world.new_group();
        let options = options(network, process, host, volume);
        let (name, over) = (volume.to_owned(), is_over.clone());
        let write = move || {
            let limits = ControllerOptions {
                loss_timeout: Duration::ZERO,
                connect_timeout: Duration::from_secs(5),
                ..options
            };
            if let Ok(device) = connect(limits) {
                let request = DeviceRequest::Write { offset_bytes, data: block(INTRUDER_TAG), fua: false };
                let outcome = device.execute(request);
                assert!(
                    outcome.is_err() || over.is_full(),
                    "a second writer has written to {name}, which is in use"
                );
            }
            over.fill(());
        };
        world.spawn(process, write).expect("a thread can be had");
    }
}
