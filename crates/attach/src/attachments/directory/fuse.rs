//! Connects the core to the kernel's FUSE.
//!
//! The kernel caches the pages of files (write-back cache). Many small writes become few large requests, and the pages
//! count against the memory of the program that touched them. It may cache names and attributes too, since nothing else
//! changes them. It checks permissions itself (`default_permissions`), and manages locks itself.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::core::{
    AllocateMode, AttributeChange, BLOCK_BYTES, CoreCallback, DirectoryCore, FileStat, FileTimestamp,
    InodeKind, NewNode, RenameMode, WriteOptions,
};

/// Only the kernel changes names.
const NAMES_VALID: Duration = Duration::from_secs(3600);
/// The number of a file's blocks changes without the kernel's knowledge, when its pages are written.
const ATTRIBUTES_VALID: Duration = Duration::from_secs(1);

const MAX_BACKGROUND_REQUESTS: u16 = 256;
const MAX_REQUEST_BYTES: u32 = 1 << 20;
const MAX_NAME_BYTES: u32 = 255;
const STAT_BLOCK_BYTES: u64 = 512;
/// Entries fetched at once: more than fit into a reply.
const LISTED_AT_ONCE: usize = 1024;

pub(super) struct FuseRequestHandler {
    core: Arc<DirectoryCore>,
}

impl FuseRequestHandler {
    pub(super) fn new(core: Arc<DirectoryCore>) -> FuseRequestHandler {
        FuseRequestHandler { core }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        node: NewNode,
    ) -> Result<FileStat, Errno> {
        self.core.throttle().map_err(errno)?;
        let node = NewNode { uid: request.uid(), gid: request.gid(), ..node };
        self.core.make(parent.0, name.as_bytes(), node).map_err(errno)
    }

    fn enter(&self, made: Result<FileStat, Errno>, reply: ReplyEntry) {
        match made {
            Ok(stat) => {
                self.core.looked_up(stat.inode);
                reply.entry_with_ttls(
                    &ATTRIBUTES_VALID,
                    &NAMES_VALID,
                    &file_attributes(&stat),
                    Generation(0),
                );
            }
            Err(error) => reply.error(error),
        }
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

fn answer(reply: ReplyEmpty, outcome: Result<(), rustix::io::Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn later(reply: ReplyEmpty) -> CoreCallback<()> {
    Box::new(move |outcome| answer(reply, outcome))
}

fn system_time(time: FileTimestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.s.unsigned_abs());
    let whole = if time.s < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(u64::from(time.ns)))).unwrap_or(UNIX_EPOCH)
}

fn timestamp(time: SystemTime) -> FileTimestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since_epoch) => FileTimestamp { s: since_epoch.as_secs() as i64, ns: since_epoch.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let (s, ns) = (-(before.as_secs() as i64), before.subsec_nanos());
            if ns == 0 { FileTimestamp { s, ns } } else { FileTimestamp { s: s - 1, ns: 1_000_000_000 - ns } }
        }
    }
}

fn wanted_time(time: TimeOrNow) -> FileTimestamp {
    match time {
        TimeOrNow::SpecificTime(time) => timestamp(time),
        TimeOrNow::Now => timestamp(SystemTime::now()),
    }
}

fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
        InodeKind::Fifo => FileType::NamedPipe,
        InodeKind::Socket => FileType::Socket,
        InodeKind::CharDevice => FileType::CharDevice,
        InodeKind::BlockDevice => FileType::BlockDevice,
    }
}

fn file_attributes(stat: &FileStat) -> FileAttr {
    let attributes = &stat.attributes;
    FileAttr {
        ino: INodeNo(stat.inode),
        size: attributes.size,
        blocks: stat.blocks * (BLOCK_BYTES / STAT_BLOCK_BYTES),
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: system_time(attributes.ctime),
        kind: file_type(stat.kind),
        perm: attributes.mode as u16,
        nlink: stat.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: stat.device_number,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

fn new_node(kind: InodeKind, mode: u32) -> NewNode {
    NewNode { kind, mode, uid: 0, gid: 0, device_number: 0, target: Vec::new() }
}

/// Sends a reply that must fit the program's buffer.
fn answer_xattr(reply: ReplyXattr, size: u32, found: Result<Vec<u8>, rustix::io::Errno>) {
    match found {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

impl Filesystem for FuseRequestHandler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let needed = InitFlags::FUSE_WRITEBACK_CACHE | InitFlags::FUSE_ASYNC_DIO;
        config.add_capabilities(needed).map_err(|_| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's FUSE has no write-back cache (Linux 3.15)",
            )
        })?;
        // One by one: an older kernel may lack some, and runs without them.
        for flag in [
            // Otherwise each write would first query a file's capabilities.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ] {
            let _ = config.add_capabilities(flag);
        }
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

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.enter(self.core.lookup(parent.0, name.as_bytes()).map_err(errno), reply);
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.core.forget(inode.0, count);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _file: Option<FileHandle>, reply: ReplyAttr) {
        match self.core.stat(inode.0) {
            Ok(stat) => reply.attr(&ATTRIBUTES_VALID, &file_attributes(&stat)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _file: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Err(error) = self.core.throttle() {
            return reply.error(errno(error));
        }
        let (atime, mtime) = (atime.map(wanted_time), mtime.map(wanted_time));
        let change = AttributeChange { mode, uid, gid, atime, mtime, ctime: ctime.map(timestamp) };
        let core = Arc::clone(&self.core);
        let finish = move |resized: Result<(), rustix::io::Errno>| {
            let stat = resized.and_then(|()| {
                // Even an empty change would update the ctime.
                if change == AttributeChange::default() {
                    core.stat(inode.0)
                } else {
                    core.change(inode.0, change)
                }
            });
            match stat {
                Ok(stat) => reply.attr(&ATTRIBUTES_VALID, &file_attributes(&stat)),
                Err(error) => reply.error(errno(error)),
            }
        };
        match size {
            // The size first: if it can't change, the attributes stay unchanged, too.
            Some(size) => self.core.set_size(inode.0, size, Box::new(finish)),
            None => finish(Ok(())),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.core.read_link(inode.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device_number: u32,
        reply: ReplyEntry,
    ) {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => InodeKind::File,
            libc::S_IFIFO => InodeKind::Fifo,
            libc::S_IFSOCK => InodeKind::Socket,
            libc::S_IFCHR => InodeKind::CharDevice,
            libc::S_IFBLK => InodeKind::BlockDevice,
            _ => return reply.error(Errno::EINVAL),
        };
        let node = NewNode { device_number, ..new_node(kind, mode) };
        self.enter(self.make(request, parent, name, node), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.enter(self.make(request, parent, name, new_node(InodeKind::Directory, mode)), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        let node = NewNode { target, ..new_node(InodeKind::Symlink, 0o777) };
        self.enter(self.make(request, parent, name, node), reply);
    }

    fn link(&self, _request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let linked = self.core.throttle().and_then(|()| self.core.link(inode.0, parent.0, name.as_bytes()));
        self.enter(linked.map_err(errno), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.core.throttle().and_then(|()| self.core.unlink(parent.0, name.as_bytes())));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.core.throttle().and_then(|()| self.core.rmdir(parent.0, name.as_bytes())));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        answer(reply, self.core.throttle().and_then(|()| self.core.rename(from, to, mode)));
    }

    fn open(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.core.opened(inode.0);
        // The cached pages stay valid, since only the kernel changes the file.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.make(request, parent, name, new_node(InodeKind::File, mode)) {
            Ok(stat) => {
                self.core.looked_up(stat.inode);
                self.core.opened(stat.inode);
                let keep = FopenFlags::FOPEN_KEEP_CACHE;
                let attributes = file_attributes(&stat);
                reply.created(&ATTRIBUTES_VALID, &attributes, Generation(0), FileHandle(0), keep);
            }
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.core.released(inode.0);
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let done = move |outcome: Result<Vec<u8>, rustix::io::Errno>| match outcome {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        };
        self.core.read(inode.0, offset, size, Box::new(done));
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u32;
        let options = WriteOptions {
            // With the write-back cache the kernel keeps the times of cached files, and sets them by setattr.
            keep_times: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            drop_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let done = move |outcome: Result<(), rustix::io::Errno>| match outcome {
            Ok(()) => reply.written(length),
            Err(error) => reply.error(errno(error)),
        };
        // For O_SYNC and O_DSYNC the kernel sends a separate fsync after the write.
        self.core.write(inode.0, offset, data.to_vec(), options, Box::new(done));
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _file: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // The kernel has written the file's pages by now, and need not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.core.sync(inode.0, data_only, later(reply));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.core.sync(inode.0, false, later(reply));
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let allocate_mode = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => AllocateMode::Reserve,
            libc::FALLOC_FL_ZERO_RANGE => AllocateMode::Zero,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => AllocateMode::Punch,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let Some(end) = offset.checked_add(length) else { return reply.error(Errno::EFBIG) };
        self.core.allocate(inode.0, offset..end, allocate_mode, keep_size, later(reply));
    }

    // No lseek: the kernel does not write its pages out before it asks where data is, so an answer from here would miss
    // recent writes. Without it, the kernel treats a file as data up to its end.

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.listing(inode.0, offset, |number, stat, name| {
            reply.add(INodeNo(stat.inode), number, file_type(stat.kind), OsStr::from_bytes(name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _file: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.listing(inode.0, offset, |number, stat, name| {
            let attributes = file_attributes(stat);
            let name_os = OsStr::from_bytes(name);
            let full = reply.add(
                INodeNo(stat.inode),
                number,
                name_os,
                &ATTRIBUTES_VALID,
                &attributes,
                Generation(0),
            );
            // READDIRPLUS counts as a lookup of every entry but the dots.
            if !full && name != b"." && name != b".." {
                self.core.looked_up(stat.inode);
            }
            full
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let space = self.core.space();
        reply.statfs(
            space.total_blocks,
            space.free_blocks,
            space.free_blocks,
            space.inodes + space.free_inodes,
            space.free_inodes,
            BLOCK_BYTES as u32,
            MAX_NAME_BYTES,
            BLOCK_BYTES as u32,
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let constraints = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
        let set = |()| self.core.set_xattr(inode.0, name.as_bytes(), value, constraints);
        answer(reply, self.core.throttle().and_then(set));
    }

    fn getxattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(reply, size, self.core.xattr(inode.0, name.as_bytes()));
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(reply, size, self.core.xattr_names(inode.0));
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.core.throttle().and_then(|()| self.core.remove_xattr(inode.0, name.as_bytes())));
    }
}

/// Where the dots stand in a listing, before every name.
const DOTS: u64 = 2;

impl FuseRequestHandler {
    /// Passes on the entries after `offset`, until `add` reports that there is no more room.
    fn listing(
        &self,
        inode: u64,
        offset: u64,
        mut add: impl FnMut(u64, &FileStat, &[u8]) -> bool,
    ) -> Result<(), Errno> {
        for (number, name) in [(1, b".".as_slice()), (2, b"..".as_slice())] {
            if offset < number {
                let entry_inode = if number == 1 { inode } else { self.core.parent(inode).map_err(errno)? };
                if add(number, &self.core.stat(entry_inode).map_err(errno)?, name) {
                    return Ok(());
                }
            }
        }
        let entries = self.core.list(inode, offset.saturating_sub(DOTS), LISTED_AT_ONCE).map_err(errno)?;
        for entry in entries {
            if add(entry.number + DOTS, &entry.stat, &entry.name) {
                break;
            }
        }
        Ok(())
    }
}
