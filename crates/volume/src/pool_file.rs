//! `POOL.toml` as data: the devices of a pool, the volumes that it is to have, and where they are served.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underlay_storage::catalogue::CatalogueMedium;
use underlay_storage::stack::{BackingSpec, DeviceSpec, InitialState, SecretPlaces};

use crate::pool::VolumeSpec;

/// The port that IANA assigned to NVMe over TCP.
pub const USUAL_PORT: u16 = 4420;

/// Capacities of modelled devices are whole multiples of this.
const CAPACITY_UNIT_BYTES: u64 = 1 << 20;

/// A whole pool with its volumes, every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolFile {
    pub name: String,
    /// Port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// Where backing files, the lock and the control socket are.
    pub directory: PathBuf,
    pub devices: PoolDevices,
    /// The power of its modelled devices can be cut, which costs a copy of every block written.
    #[serde(default)]
    pub power_cut: bool,
    /// In the order of the file. Volumes of the pool that it does not name stay as they are.
    pub volumes: Vec<VolumeFile>,
    /// Slow motion: wall seconds of a modelled one.
    pub dilation: f64,
}

/// What a pool stores on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolDevices {
    Modelled {
        devices: Vec<ModelledDevices>,
        initial: InitialState,
    },
    /// Block devices or files that are there.
    Paths(Vec<PathBuf>),
}

/// A number of identical devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelledDevices {
    pub medium: CatalogueMedium,
    pub count: u32,
    /// The medium's own when absent.
    pub capacity_bytes: Option<u64>,
}

/// `[volume.NAME]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeFile {
    pub name: String,
    pub spec: VolumeSpec,
    #[serde(default)]
    pub admission: VolumeAdmission,
}

/// Who may connect to a volume, and write to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeAdmission {
    /// The NQNs of the hosts that may; any host when empty.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// What they prove to know, and what is proven to them; a variable is one of the server's environment.
    #[serde(flatten)]
    pub secrets: SecretPlaces,
    /// Several hosts may write at the same time, as a cluster file system does. Otherwise one may.
    #[serde(default)]
    pub shared: bool,
}

impl PoolFile {
    /// On loopback, at the usual port.
    pub fn usual_address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), USUAL_PORT)
    }

    /// The modelled devices with their backing files; empty where the pool is of real ones.
    pub fn modelled(&self) -> Vec<DeviceSpec> {
        let PoolDevices::Modelled { devices, initial } = &self.devices else { return Vec::new() };
        let each = devices.iter().flat_map(|device| std::iter::repeat_n(device, device.count as usize));
        each.enumerate()
            .map(|(index, device)| {
                let name = format!("{}.{index}", device.medium.name);
                let bytes = device.capacity_bytes.unwrap_or(device.medium.capacity_bytes());
                let capacity_bytes = bytes / CAPACITY_UNIT_BYTES * CAPACITY_UNIT_BYTES;
                let backing = BackingSpec::File(self.directory.join(format!("{name}.img")));
                let medium = Some(device.medium.clone());
                DeviceSpec {
                    initial: *initial,
                    power_cut_armed: self.power_cut,
                    ..DeviceSpec::new(name, medium, capacity_bytes, backing)
                }
            })
            .collect()
    }

    pub fn control_socket(&self) -> PathBuf {
        control_socket(&self.directory)
    }
}

/// Where the server of the pool in this directory takes commands.
pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control")
}

/// Says what is wrong with a host's qualified name: what the target refuses when a host connects with it.
///
/// # Errors
/// What was expected instead.
pub fn check_nqn(nqn: &str) -> Result<(), String> {
    underlay_nvme::nqn::check_host(nqn).map_err(|problem| {
        format!(
            "expected a qualified name such as \"nqn.2014-08.org.nvmexpress:uuid:…\", as in /etc/nvme/hostnqn: {problem}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbered_over_all_entries() {
        let medium = underlay_storage::catalogue::find("nvme-9300-max").unwrap();
        let some = |count, capacity_bytes| ModelledDevices { medium: medium.clone(), count, capacity_bytes };
        let pool = PoolFile {
            name: "tank".into(),
            listen: PoolFile::usual_address(),
            directory: "/pools/tank".into(),
            devices: PoolDevices::Modelled {
                devices: vec![some(2, Some((1 << 30) + 7)), some(1, None)],
                initial: InitialState::Steady,
            },
            power_cut: false,
            volumes: Vec::new(),
            dilation: 1.0,
        };
        let devices = pool.modelled();
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["nvme-9300-max.0", "nvme-9300-max.1", "nvme-9300-max.2"]);
        assert_eq!(devices[0].capacity_bytes, 1 << 30);
        assert_eq!(devices[2].capacity_bytes, medium.capacity_bytes() >> 20 << 20);
        assert_eq!(devices[0].backing, BackingSpec::File("/pools/tank/nvme-9300-max.0.img".into()));
        let text = serde_json::to_string(&pool).unwrap();
        assert_eq!(serde_json::from_str::<PoolFile>(&text).unwrap(), pool);
    }

    #[test]
    fn qualified_name_has_prefix_and_limited_length() {
        assert_eq!(check_nqn("nqn.2014-08.org.nvmexpress:uuid:5e1f7a52-9d0b-4c1f-8a43-2b6f0c9d7e11"), Ok(()));
        let long = format!("nqn.2014-08.org.example:{}", "x".repeat(200));
        for wrong in ["", "nqn.", "iqn.2001-04.com.example:x", "nqn.2014-08.org.a b", long.as_str()] {
            assert!(check_nqn(wrong).is_err(), "{wrong}");
        }
    }
}
