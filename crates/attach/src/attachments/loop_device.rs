//! Loop devices: a file of the export as a block device that filesystems accept.
//!
//! Requests use direct I/O, so that there is no second page cache between the program and the device. Two limits of the
//! loop driver show in measurements. A flush or discard delays requests that arrive after it in the same control group.
//! A forced-unit-access write arrives as a write and a flush.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;

// From <linux/loop.h>.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// The largest logical block size of a loop device, in bytes: the page size. A device on smaller blocks has theirs.
pub(crate) const LOOP_BLOCK_BYTES: u32 = 4096;

/// The bytes of a file's name that the kernel keeps, without the final zero.
const MAX_NAME_BYTES: usize = 63;

/// Other programs may take the free device before it is configured.
const CONFIGURE_ATTEMPTS: u32 = 64;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset_bytes: u64,
    size_limit_bytes: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size_bytes: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// The effective queue settings of a loop device after tuning, for the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// The scheduler that every request passes before the driver; `none` here.
    pub scheduler: String,
    pub nr_requests: u32,
    /// The kernel's own default, as for a real disk.
    pub read_ahead_kb: u32,
    pub max_sectors_kb: u32,
    /// Whether the device reports that it is a rotating disk.
    pub rotational: bool,
    /// On which CPU requests complete: 2 means the one that submitted them.
    pub rq_affinity: u32,
}

/// A configured loop device. It disappears with its last user even if it is never detached.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    number: u32,
    backing: PathBuf,
    queue: QueueSettings,
    /// Open as long as the device is ours: the kernel would clear an unused device at once.
    file: Option<File>,
}

impl LoopDevice {
    /// Creates a loop device with logical blocks of `block_bytes` on the file `backing`, whose size must be a multiple
    /// of them.
    ///
    /// # Errors
    /// When there is no free device, or the kernel refuses the file.
    pub fn attach(backing: &Path, block_bytes: u32, rotational: bool) -> Result<LoopDevice, AttachError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(backing)
            .map_err(|error| AttachError::io("open the exported volume", backing, error))?;
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(|_| loop_missing())?;
        let mut last_error = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..CONFIGURE_ATTEMPTS {
            let number = control_get_free(control.as_raw_fd()).map_err(|error| {
                AttachError::failed(format!(
                    "could not get a free loop device: {error}. `losetup -a` shows those in use"
                ))
            })?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open_when_there(&path).map_err(|error| AttachError::io("open", &path, error))?;
            match configure(device.as_raw_fd(), file.as_raw_fd(), number, backing, block_bytes) {
                Ok(()) => return Self::check(path, number, backing, device, rotational),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last_error = error,
                Err(error) => return Err(AttachError::io("configure", &path, error)),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(AttachError::failed(format!(
            "no loop device could be configured in {CONFIGURE_ATTEMPTS} attempts: {last_error}"
        )))
    }

    fn check(
        path: PathBuf,
        number: u32,
        backing: &Path,
        device: File,
        rotational: bool,
    ) -> Result<LoopDevice, AttachError> {
        let mut attached = LoopDevice {
            path,
            number,
            backing: backing.to_owned(),
            queue: QueueSettings::default(),
            file: Some(device),
        };
        let direct = fs::read_to_string(format!("/sys/block/loop{number}/loop/dio")).unwrap_or_default();
        if direct.trim() != "1" {
            let place = attached.path.display().to_string();
            attached.detach()?;
            return Err(AttachError::failed(format!(
                "{place} refused direct I/O, so data would be cached twice: the kernel may be too old (5.8 is the oldest that works)"
            )));
        }
        attached.queue = tune(&format!("loop{number}"), rotational);
        Ok(attached)
    }

    /// `/dev/loop3`
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn queue(&self) -> &QueueSettings {
        &self.queue
    }

    /// Whether the kernel still has this device on our file.
    pub(crate) fn is_attached(&self) -> bool {
        self.file.is_some() && is_on(self.number, &self.backing)
    }

    /// Clears the device and waits until the kernel has released the file. A second call only checks whether that has
    /// happened.
    ///
    /// # Errors
    /// When it is still in use: its last user clears it.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        let Some(file) = self.file.take() else {
            return if is_on(self.number, &self.backing) { Err(explain_use(self.number)) } else { Ok(()) };
        };
        untune(self.number);
        clear(&file);
        // Closed before waiting: our own handle counts as a user of the device.
        drop(file);
        wait_cleared(self.number, &self.backing)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Its last user clears it, and then nothing shows that it was ours.
        if self.file.is_some() {
            untune(self.number);
        }
    }
}

/// The missing capability when there is no `/dev/loop-control`.
pub(crate) fn loop_missing() -> MissingCapability {
    MissingCapability::new(
        "loop devices (/dev/loop-control)",
        "run as root, load the module with `modprobe loop`, and in a container pass --privileged",
    )
}

/// Loop devices on exactly this file, deleted or not, and those that [`LoopDevice::attach`] put there before the
/// file's mount was detached lazily.
pub fn on_file(backing: &Path) -> Vec<PathBuf> {
    with_backing(|path| path == backing)
}

/// Loop devices on any file below `directory`. This queries only the kernel, never the file system there, which may
/// hang.
pub fn below(directory: &Path) -> Vec<PathBuf> {
    try_below(directory).unwrap_or_default()
}

/// As [`below`], for decisions that must not mistake an unreadable list for an empty one.
///
/// # Errors
/// When the kernel's list of block devices can't be read.
pub(crate) fn try_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    try_with_backing(|path| path.starts_with(directory))
}

fn with_backing(matches: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    try_with_backing(matches).unwrap_or_default()
}

fn try_with_backing(matches: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok());
        if let Some(number) = number.filter(|number| names_of(*number).iter().any(|path| matches(path))) {
            devices.push(PathBuf::from(format!("/dev/loop{number}")));
        }
    }
    Ok(devices)
}

/// Clears every loop device on this file, to clean up after a crash.
///
/// # Errors
/// When one of them is still in use.
pub(crate) fn clear_on_file(backing: &Path) -> Result<Vec<PathBuf>, AttachError> {
    let devices = on_file(backing);
    for path in &devices {
        let file = File::open(path).map_err(|error| AttachError::io("open", path, error))?;
        let number = path.to_str().and_then(|name| name.strip_prefix("/dev/loop")?.parse().ok());
        // Before it is cleared: afterwards it may belong to someone else.
        number.into_iter().filter(|number| is_on(*number, backing)).for_each(untune);
        clear(&file);
        drop(file);
        wait_cleared(number.unwrap_or(u32::MAX), backing)?;
    }
    Ok(devices)
}

fn clear(file: &File) {
    // SAFETY: LOOP_CLR_FD takes no argument. An error (ENXIO) means that it is cleared already.
    unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD) };
}

fn wait_cleared(number: u32, backing: &Path) -> Result<(), AttachError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    // LOOP_CLR_FD only marks a device that others (udev, for one) have open: their last close clears it.
    while is_on(number, backing) {
        if Instant::now() >= deadline {
            return Err(explain_use(number));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn explain_use(number: u32) -> AttachError {
    let device = PathBuf::from(format!("/dev/loop{number}"));
    let holders = crate::machine::processes::holders(&device);
    let mut users: Vec<String> = holders.iter().map(ToString::to_string).collect();
    users.extend(crate::machine::processes::mounted_elsewhere(&device).iter().map(ToString::to_string));
    let users = match users.is_empty() {
        true => "no process that this one may see holds it".to_owned(),
        false => users.join("; "),
    };
    AttachError::InUse(format!("{} is still in use and was not cleared: {users}", device.display()))
}

fn backing_of(number: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    let path = text.trim_end_matches('\n');
    Some(PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path)))
}

fn is_on(number: u32, backing: &Path) -> bool {
    names_of(number).iter().any(|path| path == backing)
}

/// The file below a device: by the path that the kernel has now and, if a lazy unmount has cut that off, by the one in
/// the device's configuration.
fn names_of(number: u32) -> Vec<PathBuf> {
    let Some(path) = backing_of(number) else { return Vec::new() };
    // Our files are directly in the root of their mount, which is all that then remains of the path.
    let is_cut_off = path.parent() == Some(Path::new("/"));
    let configured = is_cut_off.then(|| configured_name(number)).flatten();
    std::iter::once(path).chain(configured).collect()
}

/// The path that [`configure`] stored in the device; `None` when it may be truncated, since it would then fit others
/// too.
fn configured_name(number: u32) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let device = File::open(format!("/dev/loop{number}")).ok()?;
    let mut info = empty_info();
    // SAFETY: LOOP_GET_STATUS64 writes a struct loop_info64, which LoopInfo64 lays out as the kernel does.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
        return None;
    }
    let length = info.file_name.iter().position(|byte| *byte == 0)?;
    let is_whole = (1..MAX_NAME_BYTES).contains(&length);
    is_whole.then(|| PathBuf::from(std::ffi::OsStr::from_bytes(&info.file_name[..length])))
}

fn empty_info() -> LoopInfo64 {
    LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset_bytes: 0,
        size_limit_bytes: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    }
}

fn control_get_free(control: RawFd) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns the device's number.
    let number = unsafe { libc::ioctl(control, LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// udev may take a moment to create the node of a new device.
fn open_when_there(path: &Path) -> io::Result<File> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

fn configure(device: RawFd, file: RawFd, number: u32, backing: &Path, block_bytes: u32) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = LoopInfo64 { number, flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO, ..empty_info() };
    // Old tools show it, and it identifies a device whose file has lost its path. The last byte stays zero.
    let name = backing.as_os_str().as_bytes();
    let shown = name.len().min(MAX_NAME_BYTES);
    info.file_name[..shown].copy_from_slice(&name[..shown]);
    let config = LoopConfig {
        fd: u32::try_from(file).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?,
        block_size_bytes: block_bytes,
        info,
        reserved: [0; 8],
    };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config, which LoopConfig lays out as the kernel does.
    match unsafe { libc::ioctl(device, LOOP_CONFIGURE, &raw const config) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Restores the kernel's default for the CPU that completes requests, for the device's next owner. The earlier value
/// won't do, since a killed run may have left it.
fn untune(number: u32) {
    let _ = fs::write(format!("/sys/block/loop{number}/queue/rq_affinity"), "1");
}

/// The model reorders requests itself, so nothing before it may. Everything else stays as the kernel sets up a disk,
/// except where requests complete.
///
/// A loop device completes them in a softirq. By default (1) that is raised where the answer came from, if the two CPUs
/// share a cache: from a thread of the device's process, so that the softirq is left to `ksoftirqd`, which has to wait
/// for that process. It paces other requests meanwhile, and now and then kept the CPU until none was left: all that had
/// been answered by then came at once, up to a whole queue late. On the CPU that submitted the request (2) an interrupt
/// does it at once.
pub(crate) fn tune(disk: &str, rotational: bool) -> QueueSettings {
    let queue = Path::new("/sys/block").join(disk).join("queue");
    let read = |name: &str| fs::read_to_string(queue.join(name)).unwrap_or_default().trim().to_owned();
    let read_number = |name: &str| read(name).parse().unwrap_or(0);
    // Kernels differ in which settings they accept; the effective ones are read back.
    let _ = fs::write(queue.join("scheduler"), "none");
    // The kernel treats every loop device as solid-state.
    let _ = fs::write(queue.join("rotational"), if rotational { "1" } else { "0" });
    let _ = fs::write(queue.join("rq_affinity"), "2");
    // These counters, which an administrator may have turned off, are the source of requests' waits.
    let _ = fs::write(queue.join("iostats"), "1");
    let largest_kb = read_number("max_hw_sectors_kb").min(1024);
    let _ = fs::write(queue.join("max_sectors_kb"), largest_kb.to_string());
    QueueSettings {
        scheduler: chosen(&read("scheduler")),
        nr_requests: read_number("nr_requests"),
        read_ahead_kb: read_number("read_ahead_kb"),
        max_sectors_kb: read_number("max_sectors_kb"),
        rotational: read("rotational") == "1",
        rq_affinity: read_number("rq_affinity"),
    }
}

/// Reads `none` from `mq-deadline [none]`.
fn chosen(schedulers: &str) -> String {
    let marked = schedulers.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    marked.map_or(schedulers, |(name, _)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_structures_match_kernel_layout() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }

    #[test]
    fn active_scheduler_is_the_bracketed_one() {
        assert_eq!(chosen("mq-deadline kyber [none]"), "none");
        assert_eq!(chosen("none"), "none");
    }
}
