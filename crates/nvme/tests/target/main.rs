//! The target against a host that is written by hand, over loopback.

mod commands;
mod connecting;
mod device;
mod events;
mod host;
mod lease;
mod many;
mod misbehaviour;
mod strangers;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use underlay_nvme::target::{
    AllowedHosts, NamespaceConfig, NvmSubsystem, NvmeTarget, SubsystemConfig, TargetConfig,
};

use device::TestDevice;

pub const NQN: &str = "nqn.2026-01.test.underlay:volume";
pub const CAPACITY_BYTES: u64 = 8 << 20;

/// A target with one subsystem that has one namespace.
pub struct Fixture {
    pub target: NvmeTarget,
    pub subsystem: Arc<NvmSubsystem>,
    pub device: Arc<TestDevice>,
    pub address: SocketAddr,
}

impl Fixture {
    pub fn open_to_all() -> Fixture {
        Fixture::with(AllowedHosts::Any(None), |_| {})
    }

    pub fn with(hosts: AllowedHosts, change: impl FnOnce(&mut TargetConfig)) -> Fixture {
        let mut config = TargetConfig {
            listen: vec![(Ipv4Addr::LOCALHOST, 0).into()],
            // Nobody is thrown out because the machine is busy.
            handshake_timeout: Duration::from_secs(120),
            ..TargetConfig::default()
        };
        change(&mut config);
        let target = NvmeTarget::start(config).expect("loopback can be listened on");
        let subsystem = target
            .subsystems()
            .add(SubsystemConfig { nqn: NQN.to_owned(), serial_number: "U1".to_owned(), hosts })
            .unwrap();
        let device = TestDevice::new(CAPACITY_BYTES);
        subsystem.add_namespace(NamespaceConfig { nsid: 1, uuid: [1; 16], device: device.clone() }).unwrap();
        let address = target.addresses()[0];
        Fixture { target, subsystem, device, address }
    }

    pub fn admin(&self) -> host::Host {
        host::Host::admin(self.address, NQN, &host::PLAIN)
    }

    /// An admin queue and an I/O queue.
    pub fn queues(&self, style: &host::Style) -> (host::Host, host::Host) {
        let admin = host::Host::admin(self.address, NQN, style);
        let io = admin.io(self.address, NQN, 1, style);
        (admin, io)
    }
}

/// Waits for what another thread is about to do. A test that waits in vain fails.
pub fn wait_until(condition: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came about that {condition}");
}
