//! The export: a FUSE filesystem of one directory, in which each volume is a file of its capacity.
//!
//! A request becomes one request to the volume's device, and its reply is sent from the device's completion, on
//! whichever thread that runs. So as many are in flight as the kernel sends. Nothing is cached here: files are opened
//! for direct I/O, and their readers (loop devices) use direct I/O as well.

use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use underlay_sync::{Mutex, MutexGuard};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request as FuseRequest, TimeOrNow, WriteFlags,
};
use underlay_storage::device::{BlockDevice, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest};

use super::control::VolumeInfo;

/// Names and sizes never change, so the kernel may cache them for any time.
pub(crate) const VALID: Duration = Duration::from_secs(24 * 3600);

/// Requests that the kernel may have in flight in the background, including direct I/O. This is several times the 128
/// that a loop device queues, so that a storage with many volumes is not limited here.
const MAX_BACKGROUND_REQUESTS: u16 = 1024;

/// The largest request: what 256 pages hold, the kernel's own limit.
pub(crate) const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Blocks in which the kernel counts, by the definition of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The granularity of discards, which a loop device takes from here.
pub(crate) const REPORTED_BLOCK_BYTES: u32 = 4096;

const FIRST_VOLUME_INODE: u64 = INodeNo::ROOT.0 + 1;

/// The export as fuser serves it, by reading `/dev/fuse`.
pub(super) struct FuseExport {
    files: Arc<ExportFiles>,
    over_uring: bool,
}

/// The directory and its files, shared by all transports.
pub(crate) struct ExportFiles {
    volumes: Vec<ExportedFile>,
    started: SystemTime,
    pub(crate) buffers: ReadBuffers,
}

pub(crate) struct ExportedFile {
    pub(crate) name: OsString,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) geometry: DeviceGeometry,
}

impl FuseExport {
    /// With `over_uring` the kernel waits for rings, and sends nothing that matters here.
    pub(super) fn new(files: Arc<ExportFiles>, over_uring: bool) -> FuseExport {
        FuseExport { files, over_uring }
    }

    fn volume(&self, inode: INodeNo) -> Option<&ExportedFile> {
        self.files.volume(inode)
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        self.files.attributes(inode)
    }
}

impl ExportFiles {
    pub(crate) fn new<'a>(volumes: impl Iterator<Item = (&'a str, Arc<dyn BlockDevice>)>) -> ExportFiles {
        let volumes = volumes
            .map(|(name, device)| ExportedFile { name: name.into(), geometry: device.geometry(), device })
            .collect();
        ExportFiles { volumes, started: SystemTime::now(), buffers: ReadBuffers::default() }
    }

    pub(super) fn infos(&self) -> Vec<VolumeInfo> {
        let info = |volume: &ExportedFile| VolumeInfo {
            name: volume.name.to_string_lossy().into_owned(),
            capacity_bytes: volume.geometry.capacity_bytes,
            block_bytes: volume.geometry.block_bytes,
        };
        self.volumes.iter().map(info).collect()
    }

    pub(crate) fn volumes(&self) -> &[ExportedFile] {
        &self.volumes
    }

    pub(crate) fn volume(&self, inode: INodeNo) -> Option<&ExportedFile> {
        let index = inode.0.checked_sub(FIRST_VOLUME_INODE)?;
        self.volumes.get(usize::try_from(index).ok()?)
    }

    /// The file of this name in the directory `parent`.
    pub(crate) fn find(&self, parent: INodeNo, name: &OsStr) -> Option<FileAttr> {
        let index = self.volumes.iter().position(|volume| parent == INodeNo::ROOT && volume.name == name)?;
        self.attributes(INodeNo(FIRST_VOLUME_INODE + index as u64))
    }

    /// The directory's entries, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (INodeNo, FileType, &OsStr)> {
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, OsStr::new(name)));
        let files = (FIRST_VOLUME_INODE..)
            .zip(&self.volumes)
            .map(|(inode, volume)| (INodeNo(inode), FileType::RegularFile, volume.name.as_os_str()));
        dots.into_iter().chain(files)
    }

    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.geometry.capacity_bytes).sum()
    }

    pub(crate) fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let size = match inode {
            INodeNo::ROOT => 0,
            inode => self.volume(inode)?.geometry.capacity_bytes,
        };
        let (kind, perm, nlink) = if inode == INodeNo::ROOT {
            (FileType::Directory, 0o500, 2)
        } else {
            (FileType::RegularFile, 0o600, 1)
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(STAT_BLOCK_BYTES),
            atime: self.started,
            mtime: self.started,
            ctime: self.started,
            crtime: self.started,
            kind,
            perm,
            nlink,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: REPORTED_BLOCK_BYTES,
            flags: 0,
        })
    }
}

/// The log names only the first errors: a device that fails every request would fill the disk otherwise.
const MAX_LOGGED_ERRORS: u32 = 100;
static LOGGED_ERRORS: AtomicU32 = AtomicU32::new(0);

/// The error number that a program gets for a device's error; the device's message goes to the log.
pub(crate) fn errno(error: &DeviceError) -> Errno {
    if LOGGED_ERRORS.load(Ordering::Relaxed) < MAX_LOGGED_ERRORS {
        LOGGED_ERRORS.fetch_add(1, Ordering::Relaxed);
        tracing::error!("{error}");
    }
    match error {
        DeviceError::Unaligned { .. } => Errno::EINVAL,
        DeviceError::NoSpace => Errno::ENOSPC,
        DeviceError::OutOfRange { .. } | DeviceError::Io(_) | DeviceError::Gone => Errno::EIO,
    }
}

/// The error number of a completion that carries no data.
fn outcome(completion: DeviceCompletion) -> Result<(), Errno> {
    completion.map(|_| ()).map_err(|error| errno(&error))
}

/// Whether `fallocate` with this mode empties the range. A loop device sends the first for a discard and the others to
/// write zeros. Discarded ranges of our devices read as zeros, so one request serves all.
pub(crate) fn is_discard(mode: i32) -> bool {
    let discards = [
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        libc::FALLOC_FL_ZERO_RANGE,
    ];
    discards.contains(&mode)
}

/// The part of the volume to read for `wanted` bytes at `offset`: whole blocks, not beyond the end. `None` when there
/// is nothing to read.
pub(crate) fn covering(geometry: &DeviceGeometry, offset: u64, wanted: u32) -> Option<BlockCover> {
    let end = offset.checked_add(u64::from(wanted))?.min(geometry.capacity_bytes);
    if end <= offset {
        return None;
    }
    let block_bytes = u64::from(geometry.block_bytes);
    let start = offset - offset % block_bytes;
    let stop = end.next_multiple_of(block_bytes).min(geometry.capacity_bytes);
    // All are below `wanted` plus two blocks, so they fit.
    Some(BlockCover {
        start,
        length: (stop - start) as usize,
        skip: (offset - start) as usize,
        wanted: (end - offset) as usize,
    })
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockCover {
    pub(crate) start: u64,
    pub(crate) length: usize,
    pub(crate) skip: usize,
    pub(crate) wanted: usize,
}

impl Filesystem for FuseExport {
    fn init(&mut self, _request: &FuseRequest, config: &mut KernelConfig) -> io::Result<()> {
        // Without it, direct I/O sends one request at a time; every kernel since 3.13 has it.
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's FUSE has no asynchronous direct I/O (Linux 3.13)",
            )
        })?;
        if self.over_uring {
            config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).map_err(|_| {
                io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel does not offer FUSE over io_uring, or it is switched off",
                )
            })?;
        }
        // Each refuses only values out of its range, and names the nearest one, which then fits.
        if let Err(nearest) = config.set_max_background(MAX_BACKGROUND_REQUESTS) {
            let _ = config.set_max_background(nearest);
        }
        let _ = config.set_congestion_threshold(MAX_BACKGROUND_REQUESTS);
        if let Err(nearest) = config.set_max_write(MAX_REQUEST_BYTES) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(MAX_REQUEST_BYTES) {
            let _ = config.set_max_readahead(nearest);
        }
        Ok(())
    }

    fn lookup(&self, _request: &FuseRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.files.find(parent, name) {
            Some(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &FuseRequest, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// A volume keeps its size and owner; times are accepted and ignored.
    fn setattr(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.attributes(inode) {
            None => reply.error(Errno::ENOENT),
            Some(_) if mode.is_some() || uid.is_some() || gid.is_some() || size.is_some() => {
                reply.error(Errno::EPERM)
            }
            Some(attributes) => reply.attr(&VALID, &attributes),
        }
    }

    fn open(&self, _request: &FuseRequest, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.volume(inode) {
            // Without the second flag, writes would wait for each other at the file's lock.
            Some(_) => reply.opened(
                FileHandle(inode.0),
                FopenFlags::FOPEN_DIRECT_IO
                    | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
                    | FopenFlags::FOPEN_NOFLUSH,
            ),
            None => reply.error(Errno::EISDIR),
        }
    }

    fn read(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(volume) = self.volume(inode) else { return reply.error(Errno::EISDIR) };
        let Some(BlockCover { start, length, skip, wanted }) = covering(&volume.geometry, offset, size)
        else {
            return reply.data(&[]);
        };
        let files = Arc::clone(&self.files);
        let buffer = files.buffers.take(length);
        let done = move |completion: DeviceCompletion| match completion {
            Ok(buffer) => {
                reply.data(&buffer[skip..skip + wanted]);
                files.buffers.put(buffer);
            }
            Err(error) => reply.error(errno(&error)),
        };
        volume.device.submit(DeviceRequest::Read { offset_bytes: start, buffer }, Box::new(done));
    }

    fn write(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(volume) = self.volume(inode) else { return reply.error(Errno::EISDIR) };
        let length = data.len() as u32;
        let done = move |completion: DeviceCompletion| match outcome(completion) {
            Ok(()) => reply.written(length),
            Err(errno) => reply.error(errno),
        };
        // The request outlives the receive buffer of `data`, so this copy is necessary.
        let request = DeviceRequest::Write {
            offset_bytes: offset,
            data: data.to_vec(),
            fua: flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0,
        };
        volume.device.submit(request, Box::new(done));
    }

    fn flush(
        &self,
        _request: &FuseRequest,
        _inode: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing a file promises nothing.
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        _file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let Some(volume) = self.volume(inode) else { return reply.error(Errno::EISDIR) };
        let done = move |completion: DeviceCompletion| match outcome(completion) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        };
        volume.device.submit(DeviceRequest::Flush, Box::new(done));
    }

    fn fallocate(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(volume) = self.volume(inode) else { return reply.error(Errno::EISDIR) };
        if !is_discard(mode) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let done = move |completion: DeviceCompletion| match outcome(completion) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        };
        volume
            .device
            .submit(DeviceRequest::Discard { offset_bytes: offset, length_bytes: length }, Box::new(done));
    }

    fn readdir(
        &self,
        _request: &FuseRequest,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = self.files.entries().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX));
        for (index, (inode, kind, name)) in entries {
            if reply.add(inode, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &FuseRequest, _inode: INodeNo, reply: ReplyStatfs) {
        let blocks = self.files.capacity_bytes() / u64::from(REPORTED_BLOCK_BYTES);
        reply.statfs(
            blocks,
            0,
            0,
            self.files.volumes.len() as u64,
            0,
            REPORTED_BLOCK_BYTES,
            255,
            REPORTED_BLOCK_BYTES,
        );
    }
}

/// Reusable read buffers: fresh ones would be cleared, and large ones mapped and unmapped, for each request.
#[derive(Default)]
pub(crate) struct ReadBuffers {
    small: BufferShelf,
    large: BufferShelf,
}

type BufferShelf = Mutex<Vec<Vec<u8>>>;

/// The limit of small buffers: 128 KiB is the size of a read-ahead.
const MAX_SMALL_BYTES: usize = 128 << 10;
const MAX_KEPT_BYTES: usize = MAX_REQUEST_BYTES as usize;
/// Enough for a full queue of small reads, and for a disk's full bandwidth.
const MAX_SMALL_BUFFERS: usize = 256;
const MAX_LARGE_BUFFERS: usize = 32;

impl ReadBuffers {
    /// The shelf for buffers of this size, and how many it holds.
    fn shelf(&self, bytes: usize) -> Option<(MutexGuard<'_, Vec<Vec<u8>>>, usize)> {
        let (shelf, most) = match bytes {
            0..=MAX_SMALL_BYTES => (&self.small, MAX_SMALL_BUFFERS),
            _ if bytes <= MAX_KEPT_BYTES => (&self.large, MAX_LARGE_BUFFERS),
            _ => return None,
        };
        Some((shelf.lock(), most))
    }

    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let mut buffer = self.shelf(length).and_then(|(mut shelf, _)| shelf.pop()).unwrap_or_default();
        // Old content may stay: the device overwrites all of it.
        buffer.resize(length, 0);
        buffer
    }

    pub(crate) fn put(&self, buffer: Vec<u8>) {
        if let Some((mut shelf, most)) = self.shelf(buffer.capacity())
            && shelf.len() < most
        {
            shelf.push(buffer);
        }
    }
}

#[cfg(test)]
mod mounted_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Compared with the plain definition: the wanted bytes are those of the range that are inside the volume.
        #[test]
        fn unaligned_read_requests_whole_blocks_and_returns_requested_bytes(
            blocks in 1_u64..20, offset in 0_u64..90_000, wanted in 0_u32..90_000,
        ) {
            let geometry = DeviceGeometry { capacity_bytes: blocks * 4096, block_bytes: 4096, optimal_io_bytes: 4096 };
            let inside = (offset..offset + u64::from(wanted)).filter(|position| *position < geometry.capacity_bytes).count();
            match covering(&geometry, offset, wanted) {
                None => prop_assert_eq!(inside, 0),
                Some(cover) => {
                    prop_assert_eq!(cover.wanted, inside);
                    prop_assert_eq!(cover.start + cover.skip as u64, offset);
                    prop_assert!(cover.skip + cover.wanted <= cover.length);
                    prop_assert!(cover.length < inside + 2 * 4096);
                    let buffer = vec![0; cover.length];
                    let request = DeviceRequest::Read { offset_bytes: cover.start, buffer };
                    prop_assert_eq!(request.check(&geometry), Ok(()));
                }
            }
        }
    }

    #[test]
    fn read_beyond_end_returns_nothing() {
        let geometry = DeviceGeometry { capacity_bytes: 4096, block_bytes: 4096, optimal_io_bytes: 4096 };
        assert_eq!(covering(&geometry, u64::MAX, 1), None);
        assert_eq!(covering(&geometry, 4096, 4096), None);
    }

    #[test]
    fn buffers_come_back_in_any_length() {
        let buffers = ReadBuffers::default();
        buffers.put(vec![7; 4096]);
        assert_eq!(buffers.take(512).len(), 512);
        assert_eq!(buffers.take(8192).len(), 8192);
        buffers.put(vec![7; 1 << 20]);
        assert!(buffers.take(4096).capacity() < 1 << 20, "a large one serves no small read");
        buffers.put(vec![7; 2 << 20]);
        assert_eq!(buffers.large.lock().len(), 1);
        assert_eq!(buffers.take(1 << 20), [7; 1 << 20]);
    }
}
