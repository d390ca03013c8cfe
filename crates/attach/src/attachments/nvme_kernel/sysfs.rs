//! The kernel's controllers and namespaces in sysfs.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{NAMESPACE_TIMEOUT, POLL, line_of};

const CONTROLLERS: &str = "/sys/class/nvme";
const BLOCK_DEVICES: &str = "/sys/block";
const SECRETS: [&str; 2] = ["dhchap_secret", "dhchap_ctrl_secret"];

/// A controller, identified by the requested names, and by its number once the kernel has reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SysfsController {
    pub subsystem_nqn: String,
    pub host_nqn: String,
    /// `nvme0` is 0. Another connection may have the same names; without a number, all of them are meant.
    pub instance: Option<u32>,
}

impl SysfsController {
    /// The numbers of the host's TCP connections to the subsystem: `nvme0` is 0.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.numbers_in(Path::new(CONTROLLERS))
    }

    fn numbers_in(&self, controllers: &Path) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(controllers) else { return Vec::new() };
        let mut numbers: Vec<u32> = entries
            .flatten()
            .filter(|entry| self.is_at(&entry.path()))
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("nvme")?.parse().ok())
            .filter(|number| self.instance.is_none_or(|instance| instance == *number))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    fn is_at(&self, directory: &Path) -> bool {
        let has_line =
            |file: &str, text: &str| line_of(&directory.join(file)).is_some_and(|found| found == text);
        has_line("transport", "tcp")
            && has_line("subsysnqn", &self.subsystem_nqn)
            && has_line("hostnqn", &self.host_nqn)
    }

    /// The kernel shows a controller's secrets to every user until this is called.
    pub(super) fn hide_secrets(&self) -> io::Result<()> {
        self.hide_secrets_in(Path::new(CONTROLLERS))
    }

    fn hide_secrets_in(&self, controllers: &Path) -> io::Result<()> {
        for number in self.numbers_in(controllers) {
            for name in SECRETS {
                let file = controllers.join(format!("nvme{number}")).join(name);
                match fs::set_permissions(&file, fs::Permissions::from_mode(0o600)) {
                    // A kernel without authentication.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    outcome => outcome?,
                }
            }
        }
        Ok(())
    }

    /// Whether it is there and connected.
    pub(super) fn is_live(&self) -> bool {
        let state = |number: &u32| line_of(&Path::new(CONTROLLERS).join(format!("nvme{number}/state")));
        self.numbers().iter().any(|number| state(number).is_some_and(|state| state == "live"))
    }

    /// The block devices of all its namespaces.
    pub(crate) fn devices(&self) -> Vec<PathBuf> {
        if self.numbers().is_empty() {
            return Vec::new();
        }
        let names = self.names_in(Path::new(CONTROLLERS), Path::new(BLOCK_DEVICES));
        names.into_iter().map(|(name, _)| Path::new("/dev").join(name)).collect()
    }

    /// The block device of a namespace, once it exists.
    pub(super) fn device(&self, nsid: u32) -> Option<PathBuf> {
        let name = self.device_in(Path::new(CONTROLLERS), Path::new(BLOCK_DEVICES), nsid);
        name.map(|name| Path::new("/dev").join(name))
    }

    fn device_in(&self, controllers: &Path, devices: &Path, nsid: u32) -> Option<String> {
        let names = self.names_in(controllers, devices);
        names.into_iter().find(|(_, found)| *found == nsid).map(|(name, _)| name)
    }

    /// Whether a device has a path through this controller. With the kernel's multipath, the device `nvme2n1` belongs
    /// to the subsystem, and the controller `nvme5` has the hidden `nvme2c5n1`. The subsystem may have other
    /// controllers, and the device may belong to one of these alone.
    fn leads_to(&self, controllers: &Path, device: &str) -> bool {
        let Some(instance) = self.instance else { return true };
        let controller = controllers.join(format!("nvme{instance}"));
        let path = device.rsplit_once('n').map(|(subsystem, nsid)| format!("{subsystem}c{instance}n{nsid}"));
        controller.join(device).exists() || path.is_some_and(|path| controller.join(path).exists())
    }

    /// With the kernel's multipath the device belongs to the subsystem, and each path has a hidden device as well.
    fn names_in(&self, controllers: &Path, devices: &Path) -> Vec<(String, u32)> {
        let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
        let named = |entry: fs::DirEntry| {
            let path = entry.path();
            let has_line =
                |file: &str, text: &str| line_of(&path.join(file)).is_some_and(|found| found == text);
            let name = entry.file_name().into_string().ok()?;
            let is_ours = name.starts_with("nvme")
                && !has_line("hidden", "1")
                && has_line("device/subsysnqn", &self.subsystem_nqn)
                && self.leads_to(controllers, &name);
            is_ours.then(|| line_of(&path.join("nsid"))?.parse().ok().map(|nsid| (name, nsid)))?
        };
        entries.flatten().filter_map(named).collect()
    }

    /// Disconnects, and waits until the controller is gone.
    pub(super) fn delete(&self) -> io::Result<()> {
        let deadline = Instant::now() + NAMESPACE_TIMEOUT;
        for number in self.numbers() {
            let directory = Path::new(CONTROLLERS).join(format!("nvme{number}"));
            match fs::write(directory.join("delete_controller"), "1") {
                // Otherwise it has disappeared on its own meanwhile.
                Err(error) if directory.exists() => return Err(error),
                _ => {}
            }
            // By its names, not by its number, which may refer to another controller by now.
            while self.is_at(&directory) {
                if Instant::now() >= deadline {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not let go of it"));
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn controller_secrets_are_hidden() {
        let sysfs = tempfile::tempdir().unwrap();
        let ours = controller(None);
        let attributes = [("transport", "tcp"), ("subsysnqn", "nqn.x:data"), ("hostnqn", "nqn.x:host")];
        put(&sysfs.path().join("nvme0"), &attributes);
        ours.hide_secrets_in(sysfs.path()).unwrap();
        put(&sysfs.path().join("nvme0"), &[("dhchap_secret", "DHHC-1:"), ("dhchap_ctrl_secret", "DHHC-1:")]);
        ours.hide_secrets_in(sysfs.path()).unwrap();
        for name in SECRETS {
            let mode = fs::metadata(sysfs.path().join("nvme0").join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn controllers_and_their_devices_are_told_apart_from_others() {
        let sysfs = tempfile::tempdir().unwrap();
        let (class, block) = (sysfs.path().join("class"), sysfs.path().join("block"));
        for (name, transport, subsystem, host) in [
            ("nvme0", "pcie", "nqn.x:disk", ""),
            ("nvme1", "tcp", "nqn.x:data", "nqn.x:other"),
            ("nvme2", "tcp", "nqn.x:data", "nqn.x:host"),
            ("nvme3", "tcp", "nqn.x:log", "nqn.x:host"),
            ("nvme-subsys2", "tcp", "nqn.x:data", "nqn.x:host"),
        ] {
            let directory = class.join(name);
            put(&directory, &[("transport", transport), ("subsysnqn", subsystem), ("hostnqn", host)]);
        }
        for (name, hidden, nsid, subsystem) in [
            ("sda", "0", "1", "nqn.x:data"),
            ("nvme2c2n1", "1", "1", "nqn.x:data"),
            ("nvme2n1", "0", "1", "nqn.x:data"),
            ("nvme2n2", "0", "2", "nqn.x:data"),
            ("nvme3n1", "0", "1", "nqn.x:log"),
        ] {
            let directory = block.join(name);
            put(&directory, &[("hidden", hidden), ("nsid", nsid), ("device/subsysnqn", subsystem)]);
        }
        let ours = controller(None);
        assert_eq!(ours.numbers_in(&class), [2]);
        assert_eq!(ours.device_in(&class, &block, 1).as_deref(), Some("nvme2n1"));
        assert_eq!(ours.device_in(&class, &block, 2).as_deref(), Some("nvme2n2"));
        assert_eq!(ours.device_in(&class, &block, 3), None);
    }

    /// Two servers with the same name, as in two simultaneous runs. The kernel puts both controllers in one subsystem
    /// and refuses the second's namespace. The device belongs to the first, and the second must not format it.
    #[test]
    fn same_names_on_other_controller_are_not_ours() {
        let sysfs = tempfile::tempdir().unwrap();
        let (class, block) = (sysfs.path().join("class"), sysfs.path().join("block"));
        let attributes = [("transport", "tcp"), ("subsysnqn", "nqn.x:data"), ("hostnqn", "nqn.x:host")];
        put(&class.join("nvme2"), &attributes);
        put(&class.join("nvme5"), &attributes);
        put(&class.join("nvme2/nvme2c2n1"), &[("hidden", "1")]);
        let found = [("hidden", "0"), ("nsid", "1"), ("device/subsysnqn", "nqn.x:data")];
        put(&block.join("nvme2n1"), &found);
        let device = |instance| controller(instance).device_in(&class, &block, 1);
        assert_eq!(device(Some(2)).as_deref(), Some("nvme2n1"));
        assert_eq!(device(Some(5)), None);
        assert_eq!(controller(Some(5)).numbers_in(&class), [5]);
        assert_eq!(controller(None).numbers_in(&class), [2, 5]);
        // A second path to the same namespace, and a kernel without multipath.
        put(&class.join("nvme5/nvme2c5n1"), &[("hidden", "1")]);
        assert_eq!(device(Some(5)).as_deref(), Some("nvme2n1"));
        put(&class.join("nvme7/nvme7n1"), &[("hidden", "0")]);
        put(&block.join("nvme7n1"), &found);
        assert_eq!(device(Some(7)).as_deref(), Some("nvme7n1"));
    }

    fn controller(instance: Option<u32>) -> SysfsController {
        SysfsController { subsystem_nqn: "nqn.x:data".into(), host_nqn: "nqn.x:host".into(), instance }
    }
}
