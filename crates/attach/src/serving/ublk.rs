//! Block devices served by this process through ublk, without FUSE and loop in between.
//!
//! A device has one queue. Its slots are offered to the kernel, which puts a request into one. One command returns a
//! result and fetches the next request, many of them in one system call. The device daemon creates the devices and puts
//! a link to each into its export's directory, under the volume's name. The kernel stores a number for the server with
//! each device: it identifies the owner, so that [`remove`] finds our devices even after the daemon has died.

mod control;
mod protocol;
mod queue;

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use underlay_storage::device::{BlockDevice, DeviceGeometry};

use crate::attachments::loop_device::{self, QueueSettings};
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::serving::ring;
use control::UblkControl;
use protocol::{ANY_NUMBER, DeviceInfo};

/// Requests that a device can have in flight, as with a loop device.
const MAX_UNDER_WAY: usize = 128;
/// The kernel detects a dead server by a slot that is offered and unused, so one is never given to a request.
const SLOTS: usize = MAX_UNDER_WAY + 1;

const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// How long a device's node may take to appear or disappear.
const NODE_LIMIT: Duration = Duration::from_secs(5);

/// Whether this host supports it. Changes nothing.
///
/// # Errors
/// The missing capability.
pub fn probe() -> Result<(), MissingCapability> {
    match File::options().read(true).write(true).open(control::PATH) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MissingCapability::new(
                format!("ublk ({} is not there)", control::PATH),
                "load the module with `modprobe ublk_drv`; where there is none, use a kernel from 6.4 on that has it: \
                 on Debian, linux-image-amd64 of release 13",
            ));
        }
        Err(error) => {
            return Err(MissingCapability::new(
                format!("ublk ({}: {error})", control::PATH),
                "run as root, and in a container pass --privileged",
            ));
        }
    }
    ring::probe().map_err(|error| {
        MissingCapability::new(
            format!("io_uring ({error})"),
            "allow it: `sysctl kernel.io_uring_disabled=0`, and in a container a seccomp profile that permits it",
        )
    })
}

/// The daemon's devices: one for each volume.
pub(crate) struct UblkDisks {
    control: UblkControl,
    devices: Vec<(u32, JoinHandle<()>)>,
}

impl UblkDisks {
    /// `export` is the directory for the links; its path identifies the devices.
    pub(crate) fn start<'a>(
        export: &Path,
        volumes: impl Iterator<Item = (&'a str, Arc<dyn BlockDevice>, bool)>,
    ) -> Result<UblkDisks, AttachError> {
        let control =
            UblkControl::open().map_err(|error| AttachError::io("open", Path::new(control::PATH), error))?;
        let mut serving = UblkDisks { control, devices: Vec::new() };
        for (name, volume, is_rotational) in volumes {
            let number = serving.add(export, volume, is_rotational).map_err(|error| {
                AttachError::failed(format!("could not make a ublk device for volume '{name}': {error}"))
            })?;
            let link = export.join(name);
            std::os::unix::fs::symlink(node(number), &link)
                .map_err(|error| AttachError::io("make the link", &link, error))?;
        }
        Ok(serving)
    }

    fn add(&mut self, export: &Path, volume: Arc<dyn BlockDevice>, is_rotational: bool) -> io::Result<u32> {
        let DeviceGeometry { capacity_bytes, block_bytes, .. } = volume.geometry();
        let number = self.control.add(DeviceInfo {
            number: ANY_NUMBER,
            queue_depth: SLOTS as u16,
            largest_request_bytes: MAX_REQUEST_BYTES,
            tag: tag(export),
        })?;
        let parameters = protocol::parameters(capacity_bytes, block_bytes, MAX_REQUEST_BYTES, is_rotational);
        self.control.set_parameters(number, parameters)?;
        let device = open_when_there(&PathBuf::from(format!("/dev/ublkc{number}")))?;
        let (sender, started) = mpsc::channel();
        let thread = queue::UblkWorker::start(number, device, volume, sender)?;
        // A thread that sends nothing has panicked, which ends the process.
        started.recv().map_err(io::Error::other)??;
        // Only after every slot was fetched: START_DEV waits for that, and forever if a thread has failed.
        self.control.start(number)?;
        self.devices.push((number, thread));
        // The queue is in sysfs only once the device is started.
        keep_a_slot(number)?;
        Ok(number)
    }

    /// The block devices.
    pub(crate) fn nodes(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|(number, _)| node(*number)).collect()
    }

    /// Whether all were stopped from outside.
    pub(crate) fn is_over(&self) -> bool {
        self.devices.iter().all(|(_, thread)| thread.is_finished())
    }

    /// Removes the devices. A thread ends when its device has no request left.
    pub(crate) fn stop(mut self) -> Result<(), AttachError> {
        let failed =
            |number, error| AttachError::failed(format!("could not stop ublk device {number}: {error}"));
        for (number, _) in &self.devices {
            self.control.stop(*number).map_err(|error| failed(*number, error))?;
        }
        for (number, thread) in self.devices {
            // A thread that panicked has ended the process.
            let _ = thread.join();
            self.control.delete(number).map_err(|error| failed(number, error))?;
        }
        Ok(())
    }
}

/// Limits the requests in flight to one less than there are slots. The limit applies to the slots themselves only
/// without a scheduler, which none of our devices has anyway.
fn keep_a_slot(number: u32) -> io::Result<()> {
    let queue = PathBuf::from(format!("/sys/block/ublkb{number}/queue"));
    fs::write(queue.join("scheduler"), "none")?;
    fs::write(queue.join("nr_requests"), MAX_UNDER_WAY.to_string())
}

/// A device served by a daemon, from its launcher's view.
pub(crate) struct UblkDisk {
    path: PathBuf,
    queue: QueueSettings,
}

impl UblkDisk {
    /// The device that the daemon's link points to.
    pub(crate) fn from_link(link: &Path, is_rotational: bool) -> Result<UblkDisk, AttachError> {
        let path = fs::read_link(link).map_err(|error| AttachError::io("read the link", link, error))?;
        open_when_there(&path).map_err(|error| AttachError::io("open", &path, error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(UblkDisk { path, queue: loop_device::tune(&name, is_rotational) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn queue(&self) -> &QueueSettings {
        &self.queue
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.path.file_name().is_some_and(|name| Path::new("/sys/block").join(name).exists())
    }
}

/// The block devices of the daemon with this export, served or dead.
pub(crate) fn nodes_of(export: &Path) -> Vec<PathBuf> {
    try_nodes_of(export).unwrap_or_default()
}

/// Like [`nodes_of`], for decisions that must not mistake an unreadable list for an empty one.
///
/// # Errors
/// When the kernel can't be asked for its devices.
pub(crate) fn try_nodes_of(export: &Path) -> io::Result<Vec<PathBuf>> {
    let mut control = UblkControl::open()?;
    Ok(try_numbers_of(&mut control, export)?.into_iter().map(node).collect())
}

/// Removes the devices of a daemon that has ended, and returns their names. A device that is still open disappears when
/// it is closed.
pub(crate) fn remove(export: &Path) -> Result<Vec<PathBuf>, AttachError> {
    let Ok(mut control) = UblkControl::open() else { return Ok(Vec::new()) };
    let numbers = numbers_of(&mut control, export);
    for &number in &numbers {
        let path = node(number);
        control
            .stop(number)
            .and_then(|()| control.delete(number))
            .map_err(|error| AttachError::io("remove", &path, error))?;
        wait_gone(&path);
    }
    Ok(numbers.into_iter().map(node).collect())
}

fn numbers_of(control: &mut UblkControl, export: &Path) -> Vec<u32> {
    try_numbers_of(control, export).unwrap_or_default()
}

fn try_numbers_of(control: &mut UblkControl, export: &Path) -> io::Result<Vec<u32>> {
    let tag = tag(export);
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/dev")? {
        let name = entry?.file_name();
        // The control node exists from ADD_DEV on, so devices that were never started are found too.
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse::<u32>().ok());
        // One for which the kernel returns nothing has disappeared meanwhile, or belongs to another user.
        if let Some(number) = number.filter(|number| control.info(*number).is_ok_and(|info| info.tag == tag))
        {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

fn node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// FNV-1a of the path. No two daemons of one boot have the same export.
fn tag(export: &Path) -> u64 {
    let bytes = b"underlay:".iter().chain(export.as_os_str().as_bytes());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

fn open_when_there(path: &Path) -> io::Result<File> {
    let deadline = Instant::now() + NODE_LIMIT;
    loop {
        match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

fn wait_gone(path: &Path) {
    let deadline = Instant::now() + NODE_LIMIT;
    while path.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_apart_by_their_exports() {
        let tags = ["/run/underlay/session-7-1/export", "/run/underlay/session-7-2/export", "/"]
            .map(Path::new)
            .map(tag);
        assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[0] != tags[2]);
        assert_eq!(tags[0], tag(Path::new("/run/underlay/session-7-1/export")));
    }

    #[test]
    fn missing_ublk_capability_has_a_remedy() {
        if let Err(missing) = probe() {
            assert!(missing.remedy.len() > 10, "{missing}");
        }
    }
}
