//! The directory tree in memory: inodes, names and extents. It changes only by operations, so that replaying the
//! journal gives the same tree.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::extents::{BlockRun, ExtentContent, ExtentMap, SegmentPlace};
use super::operation::{InodeAttributes, InodeKind, TreeOperation};

pub const ROOT: u64 = 1;

#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub kind: InodeKind,
    pub attributes: InodeAttributes,
    /// Names of a file; for a directory, two plus one for each directory in it.
    pub links: u32,
    pub home: u64,
    pub device_number: u32,
    pub target: Vec<u8>,
    pub extents: ExtentMap,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub entries: DirectoryNames,
    /// The parent of a directory; the directory itself at the root, and where it has been removed.
    pub parent: u64,
}

/// A directory's names. Each has a number that never changes. So a listing in pieces neither repeats nor misses a name
/// that exists throughout.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectoryNames {
    by_name: BTreeMap<Arc<[u8]>, (u64, u64)>,
    by_number: BTreeMap<u64, Arc<[u8]>>,
    next_number: u64,
}

impl DirectoryNames {
    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|(inode, _)| *inode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Number, name and inode of every entry after number `after`.
    pub(super) fn entries_after(&self, after: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        self.by_number
            .range(after.saturating_add(1)..)
            .map(|(number, name)| (*number, &**name, self.by_name.get(name).map_or(0, |(inode, _)| *inode)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.by_name.iter().map(|(name, (inode, _))| (&**name, *inode))
    }

    fn insert(&mut self, name: &[u8], inode: u64) {
        let name: Arc<[u8]> = name.into();
        self.next_number += 1;
        self.by_number.insert(self.next_number, Arc::clone(&name));
        self.by_name.insert(name, (inode, self.next_number));
    }

    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (inode, number) = self.by_name.remove(name)?;
        self.by_number.remove(&number);
        Some(inode)
    }
}

#[derive(Clone, Debug)]
pub(super) struct InodeTree {
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    /// The largest size of a snapshot, kept up to date.
    metadata_bytes: u64,
}

/// An operation that does not fit the tree: the journal is not one of this directory, or is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the directory's metadata contradicts itself: {0}")]
pub(super) struct TreeContradiction(pub String);

/// Upper bounds for the size of each in a snapshot.
const INODE_BYTES: u64 = 128;
const ENTRY_BYTES: u64 = 24;
const EXTENT_BYTES: u64 = 41;
const XATTR_BYTES: u64 = 16;

impl Default for InodeTree {
    fn default() -> InodeTree {
        InodeTree { inodes: HashMap::new(), next_inode: ROOT, metadata_bytes: 16 }
    }
}

impl InodeTree {
    pub(super) fn get(&self, inode: u64) -> Option<&Inode> {
        self.inodes.get(&inode)
    }

    /// For attributes, which are written together with the transaction. Everything else changes by
    /// [`InodeTree::apply`].
    pub(super) fn attributes_mut(&mut self, inode: u64) -> Option<&mut InodeAttributes> {
        self.inodes.get_mut(&inode).map(|found| &mut found.attributes)
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = (u64, &Inode)> {
        self.inodes.iter().map(|(number, inode)| (*number, inode))
    }

    pub(super) fn count(&self) -> usize {
        self.inodes.len()
    }

    /// A number that no inode has or had.
    pub(super) fn next_inode(&self) -> u64 {
        self.next_inode
    }

    /// The largest possible size of a snapshot at present.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes
    }

    /// Changes the tree; device blocks that become unused are added to `freed`.
    pub(super) fn apply(
        &mut self,
        operation: &TreeOperation,
        freed: &mut Vec<BlockRun>,
    ) -> Result<(), TreeContradiction> {
        match operation {
            TreeOperation::Make { inode, kind, home, device_number, target, attributes } => {
                if *inode == 0 || self.inodes.contains_key(inode) {
                    return contradiction(format!("inode {inode} is made a second time"));
                }
                // A number is never reused, even after its inode is gone.
                self.next_inode = self.next_inode.max(inode.saturating_add(1));
                self.metadata_bytes += INODE_BYTES + target.len() as u64;
                let made = Inode {
                    kind: *kind,
                    attributes: *attributes,
                    // A directory's own `.` and its name in the parent. Other inodes count their names as these are
                    // added.
                    links: if *kind == InodeKind::Directory { 2 } else { 0 },
                    home: *home,
                    device_number: *device_number,
                    target: target.clone(),
                    extents: ExtentMap::default(),
                    xattrs: BTreeMap::new(),
                    entries: DirectoryNames::default(),
                    // Until it is linked. A directory that stays so is an orphan when the journal is opened.
                    parent: *inode,
                };
                self.inodes.insert(*inode, made);
            }
            TreeOperation::SetAttributes { inode, attributes } => {
                self.inode(*inode)?.attributes = *attributes
            }
            TreeOperation::Link { parent, name, inode } => self.link(*parent, name, *inode)?,
            TreeOperation::Unlink { parent, name } => self.unlink(*parent, name)?,
            TreeOperation::Map { inode, at: offset, device, count, written } => {
                // The numbers come from a device, so their sums may be too large.
                let ends = (offset.checked_add(*count), device.checked_add(*count));
                if *count == 0 || ends.0.is_none() || ends.1.is_none() {
                    return contradiction(format!(
                        "inode {inode} has an extent of {count} blocks at {offset}"
                    ));
                }
                let run = BlockRun { start: *device, count: *count };
                let content = if *written { ExtentContent::Written } else { ExtentContent::Unwritten };
                self.change_extents(*inode, |extents| extents.map(*offset, run, content), freed)?;
            }
            TreeOperation::Unmap { inode, range } => {
                self.change_extents(*inode, |extents| extents.unmap(range.clone()), freed)?;
            }
            TreeOperation::SetXattr { inode, name, value } => {
                let grown = XATTR_BYTES + (name.len() + value.len()) as u64;
                let old = self.inode(*inode)?.xattrs.insert(name.clone(), value.clone());
                let shrunk = old.map_or(0, |old| XATTR_BYTES + (name.len() + old.len()) as u64);
                self.metadata_bytes = self.metadata_bytes + grown - shrunk;
            }
            TreeOperation::RemoveXattr { inode, name } => match self.inode(*inode)?.xattrs.remove(name) {
                Some(old) => self.metadata_bytes -= XATTR_BYTES + (name.len() + old.len()) as u64,
                None => return contradiction(format!("inode {inode} loses an attribute it has not")),
            },
            TreeOperation::Remove { inode } => {
                let Some(removed) = self.inodes.get(inode) else {
                    return contradiction(format!("inode {inode} is removed and was not there"));
                };
                if !removed.entries.is_empty() {
                    return contradiction(format!("directory {inode} is removed with what is in it"));
                }
                // While the inode still exists: this alone frees its blocks.
                self.change_extents(*inode, |extents| extents.unmap(0..u64::MAX), freed)?;
                if let Some(removed) = self.inodes.remove(inode) {
                    let of_xattr =
                        |(name, value): (&Vec<u8>, &Vec<u8>)| XATTR_BYTES + (name.len() + value.len()) as u64;
                    let xattrs: u64 = removed.xattrs.iter().map(of_xattr).sum();
                    self.metadata_bytes -= INODE_BYTES + removed.target.len() as u64 + xattrs;
                }
            }
            TreeOperation::NextInode { inode } => self.next_inode = self.next_inode.max(*inode),
        }
        Ok(())
    }

    /// Marks a file's content in these blocks as doubtful, where it still lies there, and returns the changes for the
    /// journal. Nothing changes in memory: it is read as before.
    pub(super) fn doubt(&mut self, inode: u64, offset: u64, run: BlockRun) -> Vec<TreeOperation> {
        let Some(file) = self.inodes.get(&inode) else { return Vec::new() };
        let lies_there =
            |place: SegmentPlace, from: u64| place == SegmentPlace::Written(run.start + (from - offset));
        let mut pieces = file.extents.segments(offset..offset + run.count);
        pieces.retain(|piece| lies_there(piece.place, piece.at));
        let mut operations = Vec::new();
        for piece in pieces {
            let device = run.start + (piece.at - offset);
            let again = BlockRun { start: device, count: piece.count };
            let mark = |extents: &mut ExtentMap| extents.map(piece.at, again, ExtentContent::Doubtful);
            // The blocks stay the same, so nothing becomes free, and the file exists.
            let _ = self.change_extents(inode, mark, &mut Vec::new());
            operations.push(TreeOperation::Map {
                inode,
                at: piece.at,
                device,
                count: piece.count,
                written: false,
            });
        }
        operations
    }

    /// The operations that build this tree from an empty one.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.metadata_bytes as usize);
        TreeOperation::NextInode { inode: self.next_inode }.encode(&mut out);
        let mut numbers: Vec<u64> = self.inodes.keys().copied().collect();
        // The order of a hash map differs from run to run; the snapshot of a tree must not.
        numbers.sort_unstable();
        for &number in &numbers {
            let inode = &self.inodes[&number];
            TreeOperation::Make {
                inode: number,
                kind: inode.kind,
                home: inode.home,
                device_number: inode.device_number,
                target: inode.target.clone(),
                attributes: inode.attributes,
            }
            .encode(&mut out);
            for (name, value) in &inode.xattrs {
                TreeOperation::SetXattr { inode: number, name: name.clone(), value: value.clone() }
                    .encode(&mut out);
            }
            for segment in inode.extents.iter() {
                let written = matches!(segment.place, SegmentPlace::Written(_));
                let device = segment.place.device().unwrap_or(0);
                let map = TreeOperation::Map {
                    inode: number,
                    at: segment.at,
                    device,
                    count: segment.count,
                    written,
                };
                map.encode(&mut out);
            }
        }
        // After all inodes: a directory's number may be higher or lower than those of its entries.
        for number in numbers {
            for (name, inode) in self.inodes[&number].entries.iter() {
                TreeOperation::Link { parent: number, name: name.to_vec(), inode }.encode(&mut out);
            }
        }
        out
    }

    fn inode(&mut self, number: u64) -> Result<&mut Inode, TreeContradiction> {
        self.inodes.get_mut(&number).ok_or_else(|| TreeContradiction(format!("inode {number} is not there")))
    }

    fn directory(&mut self, number: u64) -> Result<&mut Inode, TreeContradiction> {
        let inode = self.inode(number)?;
        match inode.kind {
            InodeKind::Directory => Ok(inode),
            _ => contradiction(format!("inode {number} is not a directory")),
        }
    }

    fn link(&mut self, parent: u64, name: &[u8], inode: u64) -> Result<(), TreeContradiction> {
        let is_directory = self.inode(inode)?.kind == InodeKind::Directory;
        if is_directory
            && (inode == ROOT || self.inode(inode)?.parent != inode || self.is_below(parent, inode))
        {
            return contradiction(format!("directory {inode} is given a second place, or one in itself"));
        }
        let directory = self.directory(parent)?;
        if directory.entries.get(name).is_some() {
            return contradiction(format!("a name in directory {parent} is given twice"));
        }
        directory.entries.insert(name, inode);
        if is_directory {
            directory.links += 1;
            self.inode(inode)?.parent = parent;
        } else {
            self.inode(inode)?.links += 1;
        }
        self.metadata_bytes += ENTRY_BYTES + name.len() as u64;
        Ok(())
    }

    fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<(), TreeContradiction> {
        let Some(number) = self.directory(parent)?.entries.remove(name) else {
            return contradiction(format!("a name in directory {parent} is removed and was not there"));
        };
        self.metadata_bytes -= ENTRY_BYTES + name.len() as u64;
        let inode = self.inode(number)?;
        if inode.kind == InodeKind::Directory {
            inode.parent = number;
            let directory = self.inode(parent)?;
            directory.links = directory.links.saturating_sub(1);
        } else {
            inode.links = inode.links.saturating_sub(1);
        }
        Ok(())
    }

    /// Whether an inode is this directory or in it, however deep.
    pub(super) fn is_below(&self, mut inode: u64, ancestor: u64) -> bool {
        loop {
            if inode == ancestor {
                return true;
            }
            match self.inodes.get(&inode) {
                Some(found) if found.parent != inode => inode = found.parent,
                _ => return false,
            }
        }
    }

    fn change_extents(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut ExtentMap) -> Vec<BlockRun>,
        freed: &mut Vec<BlockRun>,
    ) -> Result<(), TreeContradiction> {
        let inode = self.inode(number)?;
        let before = inode.extents.len() as u64;
        freed.append(&mut change(&mut inode.extents));
        let after = inode.extents.len() as u64;
        self.metadata_bytes = self.metadata_bytes + EXTENT_BYTES * after - EXTENT_BYTES * before;
        Ok(())
    }
}

fn contradiction<T>(message: String) -> Result<T, TreeContradiction> {
    Err(TreeContradiction(message))
}
