//! A target with one namespace on a store in memory, for tests of the initiator.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use underlay_nvme::target::{
    AllowedHosts, NamespaceConfig, NvmSubsystem, NvmeTarget, SubsystemConfig, SubsystemTable, TargetConfig,
};
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};

pub(crate) const NQN: &str = "nqn.2026-01.org.example:tests";
pub(crate) const MIB: u64 = 1 << 20;

/// Bytes, and those of them that a loss of power leaves.
pub(crate) struct Volatile {
    state: Mutex<State>,
}

struct State {
    current: Vec<u8>,
    durable: Vec<u8>,
    failure: Option<DeviceError>,
    /// As on a device without space: the rest goes on.
    refuses_writes: bool,
    holds_flushes: bool,
    /// Requests that wait, while they do.
    held: Option<Vec<(DeviceRequest, CompletionCallback)>>,
}

impl Volatile {
    pub(crate) fn new(capacity_bytes: u64) -> Arc<Volatile> {
        let bytes = vec![0; capacity_bytes as usize];
        let state = State {
            current: bytes.clone(),
            durable: bytes,
            failure: None,
            refuses_writes: false,
            holds_flushes: false,
            held: None,
        };
        Arc::new(Volatile { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn durable(&self) -> Vec<u8> {
        self.lock().durable.clone()
    }

    pub(crate) fn cut_power(&self) {
        let mut state = self.lock();
        state.current = state.durable.clone();
    }

    pub(crate) fn fail_with(&self, failure: Option<DeviceError>) {
        self.lock().failure = failure;
    }

    pub(crate) fn refuse_writes(&self, refuses: bool) {
        self.lock().refuses_writes = refuses;
    }

    /// Answers no flush, or all that waited.
    pub(crate) fn hold_flushes(&self, should_hold: bool) {
        self.lock().holds_flushes = should_hold;
        if !should_hold {
            self.hold(false);
        }
    }

    /// Answers nothing, or everything that waited.
    pub(crate) fn hold(&self, should_hold: bool) {
        let waiting = if should_hold {
            self.lock().held = Some(Vec::new());
            Vec::new()
        } else {
            self.lock().held.take().unwrap_or_default()
        };
        waiting.into_iter().for_each(|(request, done)| self.submit(request, done));
    }

    pub(crate) fn resize(&self, capacity_bytes: u64) {
        let mut state = self.lock();
        state.current.resize(capacity_bytes as usize, 0);
        state.durable.resize(capacity_bytes as usize, 0);
    }
}

impl State {
    fn carry_out(&mut self, request: DeviceRequest) -> DeviceCompletion {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.refuses_writes
            && matches!(request, DeviceRequest::Write { .. } | DeviceRequest::Discard { .. })
        {
            return Err(DeviceError::NoSpace);
        }
        let (offset, length) = request.extent();
        let range = offset as usize..(offset + length) as usize;
        match request {
            DeviceRequest::Read { mut buffer, .. } => {
                buffer.copy_from_slice(&self.current[range]);
                return Ok(buffer);
            }
            DeviceRequest::Write { data, fua, .. } => {
                self.current[range.clone()].copy_from_slice(&data);
                if fua {
                    self.durable[range].copy_from_slice(&data);
                }
            }
            DeviceRequest::Discard { .. } => self.current[range].fill(0),
            DeviceRequest::Flush => self.durable.clone_from(&self.current),
        }
        Ok(Vec::new())
    }
}

impl BlockDevice for Volatile {
    fn geometry(&self) -> DeviceGeometry {
        let capacity_bytes = self.lock().current.len() as u64;
        DeviceGeometry { capacity_bytes, block_bytes: 4096, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry()) {
            return done(Err(error));
        }
        let completion = {
            let mut state = self.lock();
            let waits = match state.holds_flushes {
                true => matches!(request, DeviceRequest::Flush),
                false => state.held.is_some(),
            };
            if waits {
                state.held.get_or_insert_default().push((request, done));
                return;
            }
            state.carry_out(request)
        };
        done(completion);
    }
}

/// A target that can go away and come back.
pub(crate) struct Server {
    pub store: Arc<Volatile>,
    address: SocketAddr,
    uuid: [u8; 16],
    target: Option<NvmeTarget>,
}

impl Server {
    pub(crate) fn start(capacity_bytes: u64) -> Server {
        let store = Volatile::new(capacity_bytes);
        let uuid = [7; 16];
        let target = serve(&store, uuid, "127.0.0.1:0".parse().unwrap());
        Server { store, address: target.addresses()[0], uuid, target: Some(target) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn subsystem(&self) -> Arc<NvmSubsystem> {
        self.target.as_ref().unwrap().subsystems().get(NQN).unwrap()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(target) = self.target.take() {
            target.stop();
        }
    }

    /// With all that was written.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.target = Some(serve(&self.store, self.uuid, self.address));
    }

    pub(crate) fn restart_after_power_cut(&mut self) {
        self.stop();
        self.store.cut_power();
        self.target = Some(serve(&self.store, self.uuid, self.address));
    }

    /// With an empty volume in the old one's place.
    pub(crate) fn restart_as_another(&mut self) {
        self.stop();
        let capacity_bytes = self.store.geometry().capacity_bytes;
        (self.store, self.uuid) = (Volatile::new(capacity_bytes), [8; 16]);
        self.target = Some(serve(&self.store, self.uuid, self.address));
    }

    pub(crate) fn resize(&self, capacity_bytes: u64) {
        self.store.resize(capacity_bytes);
        self.subsystem().resize_namespace(1).unwrap();
    }
}

fn serve(store: &Arc<Volatile>, uuid: [u8; 16], address: SocketAddr) -> NvmeTarget {
    let subsystems = Arc::new(SubsystemTable::default());
    let config =
        SubsystemConfig { nqn: NQN.into(), serial_number: "TEST".into(), hosts: AllowedHosts::Any(None) };
    let device: Arc<dyn BlockDevice> = store.clone();
    let namespace = NamespaceConfig { nsid: 1, uuid, device };
    subsystems.add(config).unwrap().add_namespace(namespace).unwrap();
    NvmeTarget::start_with(TargetConfig { listen: vec![address], ..TargetConfig::default() }, subsystems)
        .unwrap()
}

/// Fails when it hangs: the time is far beyond what anything here takes.
pub(crate) fn within<T: Send + 'static>(limit_s: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(work());
    });
    receiver.recv_timeout(Duration::from_secs(limit_s)).expect("it hangs or panicked")
}
