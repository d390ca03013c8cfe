//! A member that is really there: a block device or a file, without a model.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use underlay_sync::Mutex;
use underlay_sync::thread::JoinHandle;
use underlay_sync::{Receiver, SendError, Sender, channel};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::exclusive;
use underlay_storage::failed_sync::BelievableSync;

const BLOCK_BYTES: u32 = 4096;
/// Requests to one device at once: each takes a thread for as long as the device takes.
const THREADS: usize = 8;
const MAX_ZEROS_BYTES: u64 = 1 << 20;

/// Reads and writes through the page cache of this machine; a flush is `fdatasync`, so what was flushed outlives a
/// power cut as far as the device does, and after a failed one none succeeds.
pub(super) struct RealDevice {
    threads: BelievableSync<BlockingThreads>,
}

/// The calls that block, each on a thread.
struct BlockingThreads {
    geometry: DeviceGeometry,
    queue: Option<Sender<(DeviceRequest, CompletionCallback)>>,
    threads: Vec<JoinHandle<()>>,
}

impl RealDevice {
    /// Opens it and keeps others from using it as a device. Its size in whole blocks is its capacity.
    pub(super) fn open(path: &Path) -> io::Result<RealDevice> {
        // A FIFO is refused below, instead of waited for.
        let flags = OFlags::NONBLOCK;
        let is_block_device = std::fs::metadata(path)?.file_type().is_block_device();
        // Refuses what is mounted, or is part of a RAID, a volume group or swap, and keeps it from becoming so.
        let flags = if is_block_device { flags | OFlags::EXCL } else { flags };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        let mut file = options.open(path).map_err(explain_busy)?;
        let kind = file.metadata()?.file_type();
        let is_as_before = kind.is_block_device() == is_block_device;
        if !is_as_before || !(kind.is_file() || kind.is_block_device()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is neither a block device nor a file",
            ));
        }
        exclusive::claim(&file)?;
        // The metadata of a block device says 0 bytes, but its end can be sought.
        let capacity_bytes = file.seek(SeekFrom::End(0))? / u64::from(BLOCK_BYTES) * u64::from(BLOCK_BYTES);
        let (queue, received) = channel::<(DeviceRequest, CompletionCallback)>();
        let (file, received) = (Arc::new(file), Arc::new(Mutex::new(received)));
        let has_failed = Arc::<AtomicBool>::default();
        let mut threads = Vec::new();
        for _ in 0..THREADS {
            let (file, received) = (Arc::clone(&file), Arc::clone(&received));
            let has_failed = Arc::clone(&has_failed);
            let work = move || work(&received, &has_failed, |request| carry_out(&file, request));
            threads.push(underlay_sync::thread::ThreadBuilder::new().name("member".into()).spawn(work)?);
        }
        let geometry =
            DeviceGeometry { capacity_bytes, block_bytes: BLOCK_BYTES, optimal_io_bytes: BLOCK_BYTES };
        let threads = BlockingThreads { geometry, queue: Some(queue), threads };
        Ok(RealDevice { threads: BelievableSync::new(threads) })
    }
}

/// What a thread of the device does until nobody sends any more. After a panic, which may have left anything half done,
/// every request is answered with an error, rather than left waiting; the panic goes on once there are no more.
fn work(
    received: &Mutex<Receiver<(DeviceRequest, CompletionCallback)>>,
    has_failed: &AtomicBool,
    carry_out: impl Fn(DeviceRequest) -> DeviceCompletion,
) {
    let mut panicked = None;
    loop {
        // Held while it waits: one thread waits for a request, the others for the lock.
        let next = received.lock().recv();
        let Ok((request, done)) = next else { break };
        let mut note = |panic| {
            has_failed.store(true, Ordering::SeqCst);
            panicked.get_or_insert(panic);
        };
        let completion = match has_failed.load(Ordering::SeqCst) {
            true => Err(failed()),
            false => catch_unwind(AssertUnwindSafe(|| carry_out(request))).unwrap_or_else(|panic| {
                note(panic);
                Err(failed())
            }),
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| done(completion))) {
            note(panic);
        }
    }
    if let Some(panic) = panicked {
        resume_unwind(panic);
    }
}

fn failed() -> DeviceError {
    DeviceError::Io("a thread of the device has failed by a bug, which has been printed".into())
}

fn explain_busy(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => io::Error::new(
            io::ErrorKind::ResourceBusy,
            "it is in use: mounted, or part of a RAID, a volume group or swap",
        ),
        _ => error,
    }
}

impl BlockDevice for RealDevice {
    fn geometry(&self) -> DeviceGeometry {
        self.threads.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        self.threads.submit(request, done);
    }
}

impl Drop for BlockingThreads {
    fn drop(&mut self) {
        drop(self.queue.take());
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last handle may go with an answer, on one of these threads.
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
    }
}

impl BlockDevice for BlockingThreads {
    fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        if let Err(error) = request.check(&self.geometry) {
            return done(Err(error));
        }
        let Some(queue) = &self.queue else { return done(Err(DeviceError::Gone)) };
        if let Err(SendError((_, done))) = queue.send((request, done)) {
            done(Err(DeviceError::Gone));
        }
    }
}

fn carry_out(file: &File, request: DeviceRequest) -> DeviceCompletion {
    let outcome = match request {
        DeviceRequest::Read { offset_bytes, mut buffer } => {
            return file.read_exact_at(&mut buffer, offset_bytes).map(|()| buffer).map_err(device_error);
        }
        // A forced write is followed by a flush, which is asked for on its own.
        DeviceRequest::Write { offset_bytes, data, fua: _ } => file.write_all_at(&data, offset_bytes),
        DeviceRequest::Flush => file.sync_data(),
        DeviceRequest::Discard { offset_bytes, length_bytes } => discard(file, offset_bytes, length_bytes),
    };
    outcome.map(|()| Vec::new()).map_err(device_error)
}

/// Reads as zeros afterwards; the space is given back where the device can.
fn discard(file: &File, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
    if length_bytes == 0 {
        return Ok(());
    }
    loop {
        // `PUNCH_HOLE` is allowed with `KEEP_SIZE` only (fallocate(2)).
        match fallocate(
            file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset_bytes,
            length_bytes,
        ) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    let zeros = vec![0; length_bytes.min(MAX_ZEROS_BYTES) as usize];
    let mut done_bytes = 0;
    while done_bytes < length_bytes {
        let part = (length_bytes - done_bytes).min(zeros.len() as u64);
        file.write_all_at(&zeros[..part as usize], offset_bytes + done_bytes)?;
        done_bytes += part;
    }
    Ok(())
}

fn device_error(error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DeviceError::NoSpace,
        _ => DeviceError::Io(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_device_of_its_size_for_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        assert_eq!(RealDevice::open(&path).err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        std::fs::write(&path, vec![1; (1 << 20) + 5]).unwrap();
        let device = RealDevice::open(&path).unwrap();
        assert_eq!(device.geometry().capacity_bytes, 1 << 20);
        assert_eq!(
            RealDevice::open(&path).err().map(|error| error.kind()),
            Some(io::ErrorKind::ResourceBusy)
        );
        device.execute(DeviceRequest::Write { offset_bytes: 4096, data: vec![7; 8192], fua: true }).unwrap();
        device.execute(DeviceRequest::Discard { offset_bytes: 8192, length_bytes: 4096 }).unwrap();
        device.execute(DeviceRequest::Flush).unwrap();
        let read = device.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![9; 16384] }).unwrap();
        assert!(read[..4096].iter().all(|&byte| byte == 1) && read[4096..8192].iter().all(|&byte| byte == 7));
        assert!(
            read[8192..12288].iter().all(|&byte| byte == 0) && read[12288..].iter().all(|&byte| byte == 1)
        );
        let outside = device.execute(DeviceRequest::Read { offset_bytes: 1 << 20, buffer: vec![0; 4096] });
        assert!(matches!(outside, Err(DeviceError::OutOfRange { .. })));
    }

    #[test]
    fn panic_leaves_no_request_waiting_and_shows() {
        for panics_in_done in [false, true] {
            let (queue, received) = channel::<(DeviceRequest, CompletionCallback)>();
            let (received, has_failed) = (Arc::new(Mutex::new(received)), Arc::<AtomicBool>::default());
            let thread = std::thread::spawn(move || {
                let carry_out = |request| match request {
                    DeviceRequest::Flush if !panics_in_done => panic!("a bug of the device"),
                    _ => Ok(Vec::new()),
                };
                work(&received, &has_failed, carry_out);
            });
            let (sender, answers) = std::sync::mpsc::channel();
            let answer = |panics: bool| {
                let sender = sender.clone();
                let done: CompletionCallback = Box::new(move |completion: DeviceCompletion| {
                    sender.send(completion.is_ok()).unwrap();
                    assert!(!panics, "a bug of a caller");
                });
                done
            };
            for done in [answer(panics_in_done), answer(false), answer(panics_in_done), answer(false)] {
                assert!(queue.send((DeviceRequest::Flush, done)).is_ok());
            }
            let next = || answers.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
            assert_eq!([next(), next(), next(), next()], [panics_in_done, false, false, false]);
            drop(queue);
            assert!(thread.join().is_err());
        }
    }

    #[test]
    fn directory_is_refused_as_device() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RealDevice::open(folder.path()).is_err());
    }
}
