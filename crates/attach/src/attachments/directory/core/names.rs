//! Names, attributes, and the lifetime of inodes.

use std::sync::Arc;

use rustix::io::Errno;

use super::operation::{FileTimestamp, InodeAttributes, InodeKind, TreeOperation};
use super::ranges::LockAccess;
use super::tree::{Inode, ROOT};
use super::{CoreState, DirectoryCore, now};

const MAX_NAME_BYTES: usize = 255;
/// The limit in Linux (`PATH_MAX`, with its final zero).
const MAX_TARGET_BYTES: usize = 4095;
const MAX_XATTR_NAME_BYTES: usize = 255;
const MAX_XATTR_BYTES: usize = 64 << 10;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// An inode's attributes, as in stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub inode: u64,
    pub kind: InodeKind,
    pub attributes: InodeAttributes,
    pub links: u32,
    /// Allocated blocks of [`super::BLOCK_BYTES`].
    pub blocks: u64,
    pub device_number: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryListing {
    /// To continue after this entry.
    pub number: u64,
    pub name: Vec<u8>,
    pub stat: FileStat,
}

#[derive(Clone, Debug)]
pub struct NewNode {
    pub kind: InodeKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub device_number: u32,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

/// Changes of an inode's attributes, except its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<FileTimestamp>,
    pub mtime: Option<FileTimestamp>,
    pub ctime: Option<FileTimestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

/// Of the whole file system, in blocks of [`super::BLOCK_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemSpace {
    pub total_blocks: u64,
    pub free_blocks: u64,
    pub inodes: u64,
    /// How many more inodes there is room for.
    pub free_inodes: u64,
}

fn stat(number: u64, inode: &Inode) -> FileStat {
    FileStat {
        inode: number,
        kind: inode.kind,
        attributes: inode.attributes,
        links: match inode.kind {
            InodeKind::Directory if number != ROOT && inode.parent == number => 0,
            _ => inode.links,
        },
        blocks: inode.extents.blocks(),
        device_number: inode.device_number,
    }
}

impl CoreState {
    pub(super) fn stat(&self, inode: u64) -> Result<FileStat, Errno> {
        self.tree.get(inode).map(|found| stat(inode, found)).ok_or(Errno::NOENT)
    }

    fn directory(&self, inode: u64) -> Result<&Inode, Errno> {
        let found = self.tree.get(inode).ok_or(Errno::NOENT)?;
        if found.kind == InodeKind::Directory { Ok(found) } else { Err(Errno::NOTDIR) }
    }

    /// A directory that names can be added to.
    fn living_directory(&self, inode: u64) -> Result<&Inode, Errno> {
        let found = self.directory(inode)?;
        if inode != ROOT && found.parent == inode { Err(Errno::NOENT) } else { Ok(found) }
    }

    fn entry(&self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        check_name(name)?;
        self.directory(parent)?.entries.get(name).ok_or(Errno::NOENT)
    }

    /// Sets both times of a directory whose names changed, or the change time of an inode whose links did.
    fn touch(&mut self, inode: u64, time: FileTimestamp, content: bool) {
        if let Some(attributes) = self.tree.attributes_mut(inode) {
            attributes.ctime = time;
            if content {
                attributes.mtime = time;
            }
            self.changed(inode, true);
        }
    }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

impl DirectoryCore {
    /// Whether the metadata may grow by this much.
    pub(super) fn check_metadata(&self, state: &CoreState, growth_bytes: usize) -> Result<(), Errno> {
        let wanted = state.tree.metadata_bytes() + growth_bytes as u64;
        if wanted > self.metadata_limit_bytes { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// # Errors
    /// The error number of the system call.
    pub fn stat(&self, inode: u64) -> Result<FileStat, Errno> {
        self.state().stat(inode)
    }

    /// # Errors
    /// The error number of the system call.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<FileStat, Errno> {
        let state = self.state();
        state.stat(state.entry(parent, name)?)
    }

    /// The directory above.
    ///
    /// # Errors
    /// The error number of the system call.
    pub fn parent(&self, inode: u64) -> Result<u64, Errno> {
        Ok(self.state().directory(inode)?.parent)
    }

    /// # Errors
    /// The error number of the system call.
    pub fn make(&self, parent: u64, name: &[u8], node: NewNode) -> Result<FileStat, Errno> {
        check_name(name)?;
        if node.target.len() > MAX_TARGET_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        if node.kind == InodeKind::Symlink && node.target.is_empty() {
            return Err(Errno::NOENT);
        }
        let mut state = self.state();
        let directory = state.living_directory(parent)?;
        if directory.entries.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        let (directory_home, directory_mode, directory_gid) =
            (directory.home, directory.attributes.mode, directory.attributes.gid);
        self.check_metadata(&state, name.len() + node.target.len() + 256)?;
        let home = match node.kind {
            InodeKind::Directory => state.allocator.home(directory_home, parent == ROOT),
            _ => directory_home,
        };
        let time = now();
        let mut attributes = InodeAttributes {
            mode: node.mode & 0o7777,
            uid: node.uid,
            gid: node.gid,
            size: node.target.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
        };
        // Such a directory passes on its group, and to directories the bit as well (inode(7)).
        if directory_mode & SET_GID != 0 {
            attributes.gid = directory_gid;
            if node.kind == InodeKind::Directory {
                attributes.mode |= SET_GID;
            }
        }
        let inode = state.tree.next_inode();
        let NewNode { kind, device_number, target, .. } = node;
        state.perform(TreeOperation::Make { inode, kind, home, device_number, target, attributes })?;
        state.perform(TreeOperation::Link { parent, name: name.to_vec(), inode })?;
        state.touch(parent, time, true);
        state.changed(inode, true);
        if let Some(volatile) = state.volatile.get_mut(&inode) {
            volatile.tail_clean = true;
        }
        state.stat(inode)
    }

    /// # Errors
    /// The error number of the system call.
    pub fn link(&self, inode: u64, parent: u64, name: &[u8]) -> Result<FileStat, Errno> {
        check_name(name)?;
        let mut state = self.state();
        let found = state.stat(inode)?;
        if found.kind == InodeKind::Directory {
            return Err(Errno::PERM);
        }
        if found.links == 0 {
            return Err(Errno::NOENT);
        }
        if state.living_directory(parent)?.entries.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        self.check_metadata(&state, name.len() + 64)?;
        state.perform(TreeOperation::Link { parent, name: name.to_vec(), inode })?;
        let time = now();
        state.touch(parent, time, true);
        state.touch(inode, time, false);
        state.stat(inode)
    }

    /// # Errors
    /// The error number of the system call.
    pub fn unlink(self: &Arc<Self>, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = {
            let mut state = self.state();
            let inode = state.entry(parent, name)?;
            if state.stat(inode)?.kind == InodeKind::Directory {
                return Err(Errno::ISDIR);
            }
            state.perform(TreeOperation::Unlink { parent, name: name.to_vec() })?;
            let time = now();
            state.touch(parent, time, true);
            state.touch(inode, time, false);
            inode
        };
        self.remove_if_unused(inode);
        Ok(())
    }

    /// # Errors
    /// The error number of the system call.
    pub fn rmdir(self: &Arc<Self>, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = {
            let mut state = self.state();
            let inode = state.entry(parent, name)?;
            if !state.directory(inode)?.entries.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            state.perform(TreeOperation::Unlink { parent, name: name.to_vec() })?;
            let time = now();
            state.touch(parent, time, true);
            state.touch(inode, time, false);
            inode
        };
        self.remove_if_unused(inode);
        Ok(())
    }

    /// # Errors
    /// The error number of the system call.
    pub fn rename(
        self: &Arc<Self>,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        check_name(to.1)?;
        let replaced = {
            let mut state = self.state();
            let inode = state.entry(from.0, from.1)?;
            let target = state.living_directory(to.0)?.entries.get(to.1);
            let is_directory = state.stat(inode)?.kind == InodeKind::Directory;
            if is_directory && state.tree.is_below(to.0, inode) {
                return Err(Errno::INVAL);
            }
            match (mode, target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
                (RenameMode::Exchange, None) => return Err(Errno::NOENT),
                // Two names of one file: POSIX requires both to stay.
                (_, Some(target)) if target == inode => return Ok(()),
                _ => {}
            }
            if let (Some(target), RenameMode::Replace) = (target, mode) {
                let target_is_directory = state.stat(target)?.kind == InodeKind::Directory;
                match (is_directory, target_is_directory) {
                    (true, false) => return Err(Errno::NOTDIR),
                    (false, true) => return Err(Errno::ISDIR),
                    (true, true) if !state.directory(target)?.entries.is_empty() => {
                        return Err(Errno::NOTEMPTY);
                    }
                    _ => {}
                }
            }
            if let (Some(target), RenameMode::Exchange) = (target, mode)
                && state.stat(target)?.kind == InodeKind::Directory
                && state.tree.is_below(from.0, target)
            {
                return Err(Errno::INVAL);
            }
            self.check_metadata(&state, to.1.len() + 64)?;
            // Both names are removed first: the tree refuses to link a name that is taken.
            let (parent, name) = (from.0, from.1.to_vec());
            state.perform(TreeOperation::Unlink { parent, name: name.clone() })?;
            if target.is_some() {
                state.perform(TreeOperation::Unlink { parent: to.0, name: to.1.to_vec() })?;
            }
            state.perform(TreeOperation::Link { parent: to.0, name: to.1.to_vec(), inode })?;
            if let (Some(target), RenameMode::Exchange) = (target, mode) {
                state.perform(TreeOperation::Link { parent, name, inode: target })?;
            }
            let time = now();
            state.touch(from.0, time, true);
            state.touch(to.0, time, true);
            state.touch(inode, time, false);
            if let Some(target) = target {
                state.touch(target, time, false);
            }
            target
        };
        if let Some(replaced) = replaced {
            self.remove_if_unused(replaced);
        }
        Ok(())
    }

    /// # Errors
    /// The error number of the system call.
    pub fn read_link(&self, inode: u64) -> Result<Vec<u8>, Errno> {
        let state = self.state();
        let found = state.tree.get(inode).ok_or(Errno::NOENT)?;
        if found.kind == InodeKind::Symlink { Ok(found.target.clone()) } else { Err(Errno::INVAL) }
    }

    /// Up to `most` entries after number `after` (0 for the first), without `.` and `..`.
    ///
    /// # Errors
    /// The error number of the system call.
    pub fn list(&self, directory: u64, after: u64, most: usize) -> Result<Vec<DirectoryListing>, Errno> {
        let state = self.state();
        let entries = state.directory(directory)?.entries.entries_after(after).take(most);
        entries
            .map(|(number, name, inode)| {
                Ok(DirectoryListing { number, name: name.to_vec(), stat: state.stat(inode)? })
            })
            .collect()
    }

    /// # Errors
    /// The error number of the system call.
    pub fn change(&self, inode: u64, change: AttributeChange) -> Result<FileStat, Errno> {
        let mut state = self.state();
        let is_directory = state.stat(inode)?.kind == InodeKind::Directory;
        let attributes = state.tree.attributes_mut(inode).ok_or(Errno::NOENT)?;
        let AttributeChange { mode, uid, gid, atime, mtime, ctime } = change;
        if (uid.is_some() || gid.is_some()) && !is_directory {
            drop_privileges(attributes);
        }
        attributes.mode = mode.map_or(attributes.mode, |mode| mode & 0o7777);
        attributes.uid = uid.unwrap_or(attributes.uid);
        attributes.gid = gid.unwrap_or(attributes.gid);
        attributes.atime = atime.unwrap_or(attributes.atime);
        attributes.mtime = mtime.unwrap_or(attributes.mtime);
        attributes.ctime = ctime.unwrap_or_else(now);
        // Times alone are not needed to read the data.
        state.changed(inode, false);
        state.stat(inode)
    }

    /// # Errors
    /// The error number of the system call.
    pub fn xattr(&self, inode: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let state = self.state();
        state.tree.get(inode).ok_or(Errno::NOENT)?.xattrs.get(name).cloned().ok_or(Errno::NODATA)
    }

    /// Names, each followed by a zero.
    ///
    /// # Errors
    /// The error number of the system call.
    pub fn xattr_names(&self, inode: u64) -> Result<Vec<u8>, Errno> {
        let state = self.state();
        let xattrs = &state.tree.get(inode).ok_or(Errno::NOENT)?.xattrs;
        Ok(xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// With `create` it must not exist, with `replace` it must.
    ///
    /// # Errors
    /// The error number of the system call.
    pub fn set_xattr(
        &self,
        inode: u64,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
    ) -> Result<(), Errno> {
        if name.len() > MAX_XATTR_NAME_BYTES {
            return Err(Errno::RANGE);
        }
        if value.len() > MAX_XATTR_BYTES {
            return Err(Errno::TOOBIG);
        }
        // Access control lists would not be enforced.
        if name.starts_with(b"system.posix_acl_") {
            return Err(Errno::OPNOTSUPP);
        }
        let mut state = self.state();
        let xattrs = &state.tree.get(inode).ok_or(Errno::NOENT)?.xattrs;
        match xattrs.contains_key(name) {
            true if create => return Err(Errno::EXIST),
            false if replace => return Err(Errno::NODATA),
            _ => {}
        }
        let others: usize =
            xattrs.iter().filter(|(other, _)| *other != name).map(|(n, v)| n.len() + v.len()).sum();
        if others + name.len() + value.len() > MAX_XATTR_BYTES {
            return Err(Errno::NOSPC);
        }
        self.check_metadata(&state, name.len() + value.len() + 32)?;
        state.perform(TreeOperation::SetXattr { inode, name: name.to_vec(), value: value.to_vec() })?;
        state.touch(inode, now(), false);
        Ok(())
    }

    /// # Errors
    /// The error number of the system call.
    pub fn remove_xattr(&self, inode: u64, name: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        if !state.tree.get(inode).ok_or(Errno::NOENT)?.xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        state.perform(TreeOperation::RemoveXattr { inode, name: name.to_vec() })?;
        state.touch(inode, now(), false);
        Ok(())
    }

    pub fn space(&self) -> FilesystemSpace {
        let state = self.state();
        let waiting: u64 =
            state.transaction.freed.iter().chain(&state.sealed_runs).map(|run| run.count).sum();
        let reserved: u64 = state.volatile.values().map(|volatile| volatile.reserved.blocks()).sum();
        // Blocks that are being freed count as free: a write that finds no others waits for them.
        let free_blocks = state.allocator.free_blocks() + waiting + state.discarding_blocks + reserved;
        let room_bytes = self.metadata_limit_bytes.saturating_sub(state.tree.metadata_bytes());
        FilesystemSpace {
            total_blocks: state.allocator.total_blocks(),
            free_blocks,
            inodes: state.tree.count() as u64,
            free_inodes: room_bytes / 512,
        }
    }

    /// An inode stays while it is open, named, or known to the kernel.
    pub fn opened(&self, inode: u64) {
        self.state().volatile.entry(inode).or_default().opens += 1;
    }

    pub fn released(self: &Arc<Self>, inode: u64) {
        {
            let mut state = self.state();
            let Some(volatile) = state.volatile.get_mut(&inode) else { return };
            volatile.opens = volatile.opens.saturating_sub(1);
            if volatile.opens == 0 {
                state.give_back_reservation(inode);
                state.forget_heard_failure(inode);
            }
        }
        self.remove_if_unused(inode);
    }

    pub fn looked_up(&self, inode: u64) {
        self.state().volatile.entry(inode).or_default().lookups += 1;
    }

    pub fn forget(self: &Arc<Self>, inode: u64, count: u64) {
        {
            let mut state = self.state();
            let Some(volatile) = state.volatile.get_mut(&inode) else { return };
            volatile.lookups = volatile.lookups.saturating_sub(count);
        }
        self.remove_if_unused(inode);
    }

    fn remove_if_unused(self: &Arc<Self>, inode: u64) {
        {
            let mut state = self.state();
            let Ok(found) = state.stat(inode) else { return };
            let volatile = state.volatile.entry(inode).or_default();
            if found.links > 0 || volatile.opens > 0 || volatile.lookups > 0 || volatile.removing {
                return;
            }
            volatile.removing = true;
        }
        let core = Arc::clone(self);
        // Requests in flight complete first.
        self.ranges.claim(inode, 0..u64::MAX, LockAccess::Exclusive, move |lock| {
            let mut state = core.state();
            state.give_back_reservation(inode);
            // A failure is logged; the inode then stays until the next mount.
            let _ = state.perform(TreeOperation::Remove { inode });
            state.volatile.remove(&inode);
            drop(state);
            drop(lock);
        });
    }
}

/// Removes the privileges that a change of owner or content clears on a file.
pub(super) fn drop_privileges(attributes: &mut InodeAttributes) {
    attributes.mode &= !SET_UID;
    // Without group execution the bit means mandatory locking and stays.
    if attributes.mode & 0o010 != 0 {
        attributes.mode &= !SET_GID;
    }
}
