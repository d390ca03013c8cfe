//! A private corner of this machine for one test, and proof that it was left as it was found.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use underlay_attach::daemon::DaemonTransport;
use underlay_attach::{
    AttachSpec, Attachment, BlockAttachment, FilesystemKind, FuseDirectory, ResourceRegistry, cleanup,
    loop_device, mounts, processes,
};
use underlay_storage::catalogue;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, StackSpec, VolumeSpec};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct Fixture {
    directory: tempfile::TempDir,
    pub registry: ResourceRegistry,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        // Short, since a socket's path must be.
        let directory = tempfile::Builder::new().prefix("underlay-test-").tempdir().unwrap();
        let registry = ResourceRegistry::open_at(&directory.path().join("run")).unwrap();
        Fixture { directory, registry }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    /// Loop devices, mounts, processes and files that tests in this corner made and did not take away.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let root = self.path("");
        let loops = loop_device::below(&root).into_iter().map(|device| device.display().to_string());
        let mounted = mounts::all().into_iter().filter(|mount| mount.mount_point.starts_with(&root));
        let mounted = mounted.map(|mount| format!("mount {}", mount.mount_point.display()));
        let daemons = processes::all()
            .into_iter()
            .filter(|pid| mentions(*pid, &root))
            .map(|pid| format!("process {pid}"));
        let entries = std::fs::read_dir(self.registry.directory()).unwrap().flatten();
        let files = entries.map(|entry| entry.path().display().to_string());
        loops.chain(mounted).chain(daemons).chain(files).collect()
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.leftovers(), Vec::<String>::new());
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A failed test must not leave its killed owner's mounts to the machine.
            let _ = cleanup::clean(&self.registry, &mut |line| eprintln!("{line}"));
        }
    }
}

fn mentions(pid: u32, root: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    processes::ProcessId::from_pid(pid).is_some()
        && String::from_utf8_lossy(&line).contains(&*root.to_string_lossy())
}

/// Runs the tests that take one attachment with this one instead.
const ATTACHMENT_VARIABLE: &str = "UNDERLAY_TEST_ATTACHMENT";

/// Both transports, as far as this machine has them: for what every attachment must do.
pub(crate) fn fuse_loops() -> Vec<BlockAttachment> {
    let Some(plain) = fuse_loop() else { return Vec::new() };
    if std::env::var(ATTACHMENT_VARIABLE).is_ok_and(|name| name == "ublk") {
        return vec![plain];
    }
    let over_uring = plain.clone().with_transport(DaemonTransport::Uring);
    match over_uring.probe() {
        Ok(()) => vec![plain.with_transport(DaemonTransport::DevFuse), over_uring],
        Err(missing) => {
            eprintln!("\n*** SKIPPED FOR fuse-uring+loop: {missing} ***\n");
            vec![plain]
        }
    }
}

/// The attachment with the daemon built for these tests. A machine that can't run it skips the test, but CI fails.
pub(crate) fn fuse_loop() -> Option<BlockAttachment> {
    let attachment = BlockAttachment::with_daemon(env!("CARGO_BIN_EXE_underlay-device-daemon"), Vec::new());
    let attachment = match std::env::var(ATTACHMENT_VARIABLE).as_deref() {
        Ok("fuse-uring+loop") => attachment.with_transport(DaemonTransport::Uring),
        Ok("ublk") => attachment.with_transport(DaemonTransport::Ublk),
        Ok("fuse+loop") | Err(_) => attachment,
        Ok(other) => {
            panic!("{ATTACHMENT_VARIABLE} is '{other}': expected fuse+loop, fuse-uring+loop or ublk")
        }
    };
    let probed = attachment
        .probe()
        .and_then(|()| FilesystemKind::Xfs.probe())
        .and_then(|()| FilesystemKind::Ext4.probe());
    match probed {
        Ok(()) => Some(attachment),
        Err(missing) => {
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("\n*** SKIPPED, NOTHING WAS TESTED: {missing} ***\n");
            None
        }
    }
}

/// The attachment that makes directories of its own, with the same daemon.
pub(crate) fn fuse_directory() -> Option<FuseDirectory> {
    let attachment = FuseDirectory::with_daemon(env!("CARGO_BIN_EXE_underlay-device-daemon"), Vec::new());
    match attachment.probe() {
        Ok(()) => Some(attachment),
        Err(missing) => {
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("\n*** SKIPPED, NOTHING WAS TESTED: {missing} ***\n");
            None
        }
    }
}

/// One volume for each name, of one device that completes at once.
pub(crate) fn stack(volumes: &[(&str, u64, BackingSpec)]) -> StackSpec {
    let volume = |(name, capacity_bytes, backing): &(&str, u64, BackingSpec)| {
        let device = DeviceSpec::new(format!("{name}.0"), None, *capacity_bytes, backing.clone());
        VolumeSpec::new(*name, StackNode::Device(device))
    };
    StackSpec { volumes: volumes.iter().map(volume).collect(), dilation: 1.0, seed: 1 }
}

/// One volume on one device of a medium of the catalogue, by a clock so fast that tests can wait for it.
pub(crate) fn modelled(medium: &str, capacity_bytes: u64, backing: BackingSpec) -> StackSpec {
    let mut stack = stack(&[("data", capacity_bytes, backing)]);
    let medium = catalogue::find(medium).unwrap();
    stack.volumes[0].root.for_each_device(&mut |device| device.medium = Some(medium.clone()));
    stack.dilation = 0.02;
    stack
}

pub(crate) fn spec(stack: StackSpec, filesystem: FilesystemKind, mount_root: PathBuf) -> AttachSpec {
    AttachSpec { stack, filesystem: Some(filesystem), mount_root, format: true, mount_point: None }
}

/// Runs `work` on a thread and fails when it hangs: the time is far beyond what anything here takes.
pub(crate) fn without_hanging<T: Send + 'static>(task: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(work());
    });
    receiver.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{task} hangs or panicked"))
}

/// SplitMix64 (Steele, Lea and Flood 2014): random moments; a failure can name the seed.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}
