//! The export mounted for real, over a device that shows its requests and answers on command.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver, Sender};

use fuser::BackgroundSession;
use rustix::fs::FallocateFlags;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use underlay_storage::device::CompletionCallback;

use super::*;
use crate::serving::daemon::{DaemonTransport, mount_export};

/// Far longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Within this time, a reply that does not wait for the device would have arrived many times over.
const NO_REPLY: Duration = Duration::from_millis(200);

/// Passes each request with its answer to the test.
struct Spy {
    arrived: Mutex<Sender<(DeviceRequest, CompletionCallback)>>,
}

impl BlockDevice for Spy {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { capacity_bytes: 1 << 20, block_bytes: 4096, optimal_io_bytes: 4096 }
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        // Without its test a request is dropped, which the kernel sees as an error.
        let _ = self.arrived.lock().send((request, done));
    }
}

struct Mounted {
    arrived: Receiver<(DeviceRequest, CompletionCallback)>,
    session: Option<BackgroundSession>,
    directory: tempfile::TempDir,
}

impl Mounted {
    /// One for each transport of this host, invisible to other processes. None where mounting is impossible; in CI that
    /// is a failure.
    fn all() -> Vec<Mounted> {
        if let Err(missing) = crate::machine::privileges::probe_privileges()
            .and_then(|()| crate::machine::privileges::probe_fuse())
        {
            assert!(std::env::var_os("CI").is_none(), "{missing}");
            eprintln!("SKIPPED: {missing}");
            return Vec::new();
        }
        enter_own_mount_namespace();
        match crate::serving::fuse_uring::probe() {
            Ok(()) => vec![Mounted::new(DaemonTransport::DevFuse), Mounted::new(DaemonTransport::Uring)],
            Err(missing) => {
                eprintln!("SKIPPED WITH io_uring: {missing}");
                vec![Mounted::new(DaemonTransport::DevFuse)]
            }
        }
    }

    fn new(transport: DaemonTransport) -> Mounted {
        let (sender, arrived) = mpsc::channel();
        let device: Arc<dyn BlockDevice> = Arc::new(Spy { arrived: Mutex::new(sender) });
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(ExportFiles::new(std::iter::once(("data", device))));
        let session = mount_export(&files, transport, directory.path(), "underlay:test").unwrap();
        let mount_point = directory.path().to_str().unwrap();
        let has_it = |process: &str| {
            std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap().contains(mount_point)
        };
        assert!(has_it("thread-self"));
        let outside = rustix::process::getppid().unwrap().as_raw_nonzero().to_string();
        assert!(!has_it(&outside), "it would outlive tests that are killed");
        Mounted { arrived, session: Some(session.spawn().unwrap()), directory }
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(self.directory.path().join("data")).unwrap()
    }

    /// Calls the kernel on a thread, and checks three things: the requests that reach the device, that the call does
    /// not return before the device has answered, and that there are no other requests. Returns the call's result.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(File) -> T + Send + 'static,
        is_expected: impl FnOnce(&DeviceRequest) -> bool,
        answer: impl FnOnce(DeviceRequest) -> DeviceCompletion,
    ) -> T {
        let (sender, returned) = mpsc::channel();
        let file = self.open();
        std::thread::spawn(move || {
            let _ = sender.send(work(file));
        });
        let (request, done) = self.arrived.recv_timeout(TIMEOUT).expect("nothing reached the device");
        assert!(is_expected(&request), "{request:?}");
        assert!(returned.recv_timeout(NO_REPLY).is_err(), "it returned before the device had answered");
        done(answer(request));
        let outcome = returned.recv_timeout(TIMEOUT).expect("it did not return though the device answered");
        let more = self.arrived.try_recv().ok().map(|(request, _)| request);
        assert!(more.is_none(), "{more:?}");
        outcome
    }
}

/// Moves the future mounts of this thread, and of those that it starts, into a separate namespace. The kernel removes
/// them with its last thread, however that ends.
fn enter_own_mount_namespace() {
    // SAFETY: the flag gives this thread mounts and a working directory of its own; no memory is shared or unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
    // With shared mounts, the host would otherwise see ours.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Requests that were not taken fail now, and later ones at once: the unmount has nothing to wait for.
        drop(std::mem::replace(&mut self.arrived, mpsc::channel().1));
        drop(self.session.take());
    }
}

fn io_error() -> DeviceError {
    DeviceError::Io("a bad sector".into())
}

#[test]
fn flush_reaches_device_before_acknowledgement() {
    for mounted in Mounted::all() {
        let is_flush = |request: &DeviceRequest| matches!(request, DeviceRequest::Flush);
        let answer_empty = |_| Ok(Vec::new());
        mounted.call(|file| file.sync_all(), is_flush, answer_empty).unwrap();
        mounted.call(|file| file.sync_data(), is_flush, answer_empty).unwrap();
        let failed = mounted.call(|file| file.sync_all(), is_flush, |_| Err(io_error())).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        // A failed flush is no reason to skip the next one.
        mounted.call(|file| file.sync_all(), is_flush, answer_empty).unwrap();
    }
}

#[test]
fn punched_hole_discards_exact_range() {
    for mounted in Mounted::all() {
        let punch = |file: File| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, flags, 8192, 12_288)
        };
        let is_discard = |request: &DeviceRequest| {
            matches!(request, DeviceRequest::Discard { offset_bytes: 8192, length_bytes: 12_288 })
        };
        mounted.call(punch, is_discard, |_| Ok(Vec::new())).unwrap();
        assert_eq!(mounted.call(punch, is_discard, |_| Err(io_error())), Err(rustix::io::Errno::IO));
        // A range that is only to be reserved must not be discarded, which would destroy its contents.
        let reserve = |file: File| rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096);
        assert_eq!(reserve(mounted.open()), Err(rustix::io::Errno::OPNOTSUPP));
        assert!(mounted.arrived.try_recv().is_err());
    }
}

#[test]
fn reads_and_writes_carry_their_data_and_their_errors() {
    for mounted in Mounted::all() {
        let is_write = |request: &DeviceRequest| matches!(request, DeviceRequest::Write { offset_bytes: 4096, data, fua: false } if *data == [7; 8192]);
        let write = |file: File| file.write_at(&[7; 8192], 4096);
        assert_eq!(mounted.call(write, is_write, |_| Ok(Vec::new())).unwrap(), 8192);
        let failed = mounted.call(write, is_write, |_| Err(io_error())).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        let failed = mounted.call(write, is_write, |_| Err(DeviceError::NoSpace)).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::ENOSPC));

        let is_read =
            |request: &DeviceRequest| matches!(request, DeviceRequest::Read { offset_bytes: 4096, .. });
        let read = |file: File| {
            let mut found = vec![0; 4096];
            file.read_exact_at(&mut found, 4096).map(|()| found)
        };
        let filled = |request| match request {
            DeviceRequest::Read { buffer, .. } => Ok(vec![9; buffer.len()]),
            other => panic!("{other:?}"),
        };
        assert_eq!(mounted.call(read, is_read, filled).unwrap(), [9; 4096]);
        let failed = mounted.call(read, is_read, |_| Err(DeviceError::Gone)).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    }
}

#[test]
fn directory_lists_volumes_with_sizes() {
    for mounted in Mounted::all() {
        let directory = mounted.directory.path();
        let names: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["data"]);
        assert_eq!(std::fs::metadata(directory.join("data")).unwrap().len(), 1 << 20);
        assert!(std::fs::metadata(directory).unwrap().is_dir());
        let missing = File::open(directory.join("log")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let resized = mounted.open().set_len(4096).unwrap_err();
        assert_eq!(resized.raw_os_error(), Some(libc::EPERM));
        let room = rustix::fs::statvfs(directory).unwrap();
        assert_eq!(room.f_blocks * room.f_frsize, 1 << 20);
        assert!(mounted.arrived.try_recv().is_err());
    }
}

#[test]
fn concurrent_requests_complete_in_any_order() {
    const WRITERS: u64 = 40;
    for mounted in Mounted::all() {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let file = mounted.open();
                std::thread::spawn(move || file.write_at(&[number as u8; 4096], number * 4096).unwrap())
            })
            .collect();
        // All must have arrived before the first is answered.
        let mut requests: Vec<_> = (0..WRITERS)
            .map(|_| mounted.arrived.recv_timeout(TIMEOUT).expect("a request is held back"))
            .collect();
        requests.reverse();
        for (request, done) in requests {
            let DeviceRequest::Write { offset_bytes, data, .. } = request else { panic!("{request:?}") };
            assert_eq!(data, vec![(offset_bytes / 4096) as u8; 4096]);
            done(Ok(Vec::new()));
        }
        for writer in writers {
            assert_eq!(writer.join().unwrap(), 4096);
        }
    }
}

#[test]
fn request_dropped_by_device_fails() {
    for mounted in Mounted::all() {
        let file = mounted.open();
        let writer = std::thread::spawn(move || file.write_at(&[1; 4096], 0));
        drop(mounted.arrived.recv_timeout(TIMEOUT).expect("nothing reached the device"));
        assert_eq!(writer.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
