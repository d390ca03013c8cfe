//! A tree of plain vectors, and the steps to take on both.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Create(String),
    MakeDirectory(String),
    Symlink(String),
    Write { path: String, offset: u64, length: usize, byte: u8 },
    Truncate { path: String, size: u64 },
    Allocate { path: String, range: Range<u64>, what: AllocateMode, keep_size: bool },
    Unlink(String),
    RemoveDirectory(String),
    Rename { from: String, to: String, mode: RenameMode },
    Link { from: String, to: String },
    SetXattr { path: String, value: Vec<u8> },
    Sync(String),
    Commit,
    Remount,
}

use std::ops::Range;

fn some_path() -> impl Strategy<Value = String> {
    prop_oneof![3 => "[a-c]", 2 => "[a-c]/[a-c]", 1 => "[a-c]/[a-c]/[a-b]"]
}

pub(super) fn some_step() -> impl Strategy<Value = Step> {
    let range = || (0..40_000_u64, 1..20_000_u64).prop_map(|(start, length)| start..start + length);
    let allocate_mode =
        prop_oneof![Just(AllocateMode::Reserve), Just(AllocateMode::Zero), Just(AllocateMode::Punch)];
    let mode =
        prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    prop_oneof![
        4 => some_path().prop_map(Step::Create),
        3 => some_path().prop_map(Step::MakeDirectory),
        1 => some_path().prop_map(Step::Symlink),
        8 => (some_path(), 0..40_000_u64, 1..20_000_usize, 1..=255_u8)
            .prop_map(|(path, offset, length, byte)| Step::Write { path, offset, length, byte }),
        3 => (some_path(), 0..60_000_u64).prop_map(|(path, size)| Step::Truncate { path, size }),
        4 => (some_path(), range(), allocate_mode, any::<bool>()).prop_map(|(path, range, allocate_mode, keep)| {
            Step::Allocate { path, range, what: allocate_mode, keep_size: keep || allocate_mode == AllocateMode::Punch }
        }),
        2 => some_path().prop_map(Step::Unlink),
        1 => some_path().prop_map(Step::RemoveDirectory),
        3 => (some_path(), some_path(), mode).prop_map(|(from, to, mode)| Step::Rename { from, to, mode }),
        1 => (some_path(), some_path()).prop_map(|(from, to)| Step::Link { from, to }),
        1 => (some_path(), proptest::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(path, value)| Step::SetXattr { path, value }),
        2 => some_path().prop_map(Step::Sync),
        1 => Just(Step::Commit),
        1 => Just(Step::Remount),
    ]
}

pub(super) fn some_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(some_step(), 1..most)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Directory,
    Symlink(u64),
}

/// Paths, and files by a number, so that two paths may be one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reference {
    pub nodes: BTreeMap<String, Node>,
    pub files: BTreeMap<u64, Vec<u8>>,
    xattrs: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

fn above(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(above, _)| above)
}

fn is_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Reference {
    fn can_hold(&self, path: &str) -> bool {
        above(path).is_none_or(|above| self.nodes.get(above) == Some(&Node::Directory))
    }

    fn add(&mut self, path: &str, node: Node) -> bool {
        let possible = self.can_hold(path) && !self.nodes.contains_key(path);
        if possible {
            self.nodes.insert(path.to_owned(), node);
        }
        possible
    }

    fn is_empty(&self, path: &str) -> bool {
        !self.nodes.keys().any(|other| other != path && is_below(other, path))
    }

    fn file(&mut self, path: &str) -> Option<&mut Vec<u8>> {
        match self.nodes.get(path) {
            Some(Node::File(number)) => self.files.get_mut(number),
            _ => None,
        }
    }

    /// Takes a step; false where it can't be taken.
    pub(super) fn apply(&mut self, step: &Step) -> bool {
        match step {
            Step::Create(path) => {
                self.next += 1;
                let made = self.add(path, Node::File(self.next));
                if made {
                    self.files.insert(self.next, Vec::new());
                }
                made
            }
            Step::MakeDirectory(path) => self.add(path, Node::Directory),
            // It has its own number, so that two names are one link only if they were linked.
            Step::Symlink(path) => {
                self.next += 1;
                self.add(path, Node::Symlink(self.next))
            }
            Step::Write { path, offset, length, byte } => match self.file(path) {
                Some(file) => {
                    let end = *offset as usize + length;
                    file.resize(file.len().max(end), 0);
                    file[*offset as usize..end].fill(*byte);
                    true
                }
                None => false,
            },
            Step::Truncate { path, size } => match self.file(path) {
                Some(file) => {
                    file.resize(*size as usize, 0);
                    true
                }
                None => false,
            },
            Step::Allocate { path, range, what: allocate_mode, keep_size } => match self.file(path) {
                Some(file) => {
                    if !keep_size {
                        file.resize(file.len().max(range.end as usize), 0);
                    }
                    // Reserving blocks changes no existing byte.
                    if *allocate_mode != AllocateMode::Reserve {
                        let end = file.len().min(range.end as usize);
                        let start = end.min(range.start as usize);
                        file[start..end].fill(0);
                    }
                    true
                }
                None => false,
            },
            Step::Unlink(path) => match self.nodes.get(path) {
                Some(Node::File(_) | Node::Symlink(_)) => self.nodes.remove(path).is_some(),
                _ => false,
            },
            Step::RemoveDirectory(path) => {
                let possible = self.nodes.get(path) == Some(&Node::Directory) && self.is_empty(path);
                possible && self.nodes.remove(path).is_some()
            }
            Step::Rename { from, to, mode } => self.rename(from, to, *mode),
            Step::Link { from, to } => match self.nodes.get(from).cloned() {
                Some(node @ (Node::File(_) | Node::Symlink(_))) => self.add(to, node),
                _ => false,
            },
            Step::SetXattr { path, value } => match self.nodes.get(path) {
                Some(Node::File(number)) => {
                    self.xattrs.insert(*number, value.clone());
                    true
                }
                _ => false,
            },
            Step::Sync(path) => self.nodes.contains_key(path),
            // They change what is durable, but nothing that a reader sees.
            Step::Commit | Step::Remount => true,
        }
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> bool {
        let Some(node) = self.nodes.get(from).cloned() else { return false };
        if !self.can_hold(to) {
            return false;
        }
        let target = self.nodes.get(to).cloned();
        if (node == Node::Directory && above(to).is_some_and(|above| is_below(above, from)))
            || (mode == RenameMode::NoReplace && target.is_some())
            || (mode == RenameMode::Exchange && target.is_none())
        {
            return false;
        }
        let same_file = node != Node::Directory && target.as_ref() == Some(&node);
        if from == to || same_file {
            return true;
        }
        match mode {
            RenameMode::Exchange => {
                let is_directory = target == Some(Node::Directory);
                if is_directory && above(from).is_some_and(|above| is_below(above, to)) {
                    return false;
                }
                self.swap(from, to);
            }
            _ => {
                let is_directory = node == Node::Directory;
                if let Some(target) = target {
                    if is_directory != (target == Node::Directory)
                        || (target == Node::Directory && !self.is_empty(to))
                    {
                        return false;
                    }
                    self.nodes.remove(to);
                }
                self.swap(from, to);
            }
        }
        true
    }

    fn swap(&mut self, a: &str, b: &str) {
        let nodes = std::mem::take(&mut self.nodes);
        for (path, node) in nodes {
            let moved = if is_below(&path, a) {
                format!("{b}{}", &path[a.len()..])
            } else if is_below(&path, b) {
                format!("{a}{}", &path[b.len()..])
            } else {
                path
            };
            self.nodes.insert(moved, node);
        }
    }

    /// Every name, kind and byte must be the same.
    pub(super) fn compare(&self, core: &Arc<DirectoryCore>) {
        assert_eq!(listing(core).keys().collect::<Vec<_>>(), self.nodes.keys().collect::<Vec<_>>());
        for (path, node) in &self.nodes {
            let stat = find(core, path).unwrap();
            match node {
                Node::Directory => assert_eq!(stat.kind, InodeKind::Directory),
                Node::Symlink(_) => assert_eq!(core.read_link(stat.inode).unwrap(), b"target"),
                Node::File(number) => {
                    assert_eq!(content(core, stat.inode), self.files[number], "{path}");
                    let names = self.nodes.values().filter(|other| *other == node).count();
                    assert_eq!(stat.links as usize, names, "{path}");
                    let xattr = core.xattr(stat.inode, b"user.note").ok();
                    assert_eq!(xattr.as_ref(), self.xattrs.get(number), "{path}");
                }
            }
        }
    }
}

/// Path and inode of everything that is there.
pub(super) fn listing(core: &DirectoryCore) -> BTreeMap<String, FileStat> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((prefix, directory)) = todo.pop() {
        for entry in core.list(directory, 0, usize::MAX).unwrap() {
            let path = format!("{prefix}{}", String::from_utf8(entry.name).unwrap());
            if entry.stat.kind == InodeKind::Directory {
                todo.push((format!("{path}/"), entry.stat.inode));
            }
            found.insert(path, entry.stat);
        }
    }
    found
}

pub(super) fn find(core: &DirectoryCore, path: &str) -> Result<FileStat, Errno> {
    let mut stat = core.stat(ROOT)?;
    for name in path.split('/') {
        stat = core.lookup(stat.inode, name.as_bytes())?;
    }
    Ok(stat)
}

fn place<'a>(core: &DirectoryCore, path: &'a str) -> Result<(u64, &'a [u8]), Errno> {
    match path.rsplit_once('/') {
        None => Ok((ROOT, path.as_bytes())),
        Some((above, name)) => Ok((find(core, above)?.inode, name.as_bytes())),
    }
}

fn file_at(core: &DirectoryCore, path: &str) -> Result<u64, Errno> {
    let stat = find(core, path)?;
    if stat.kind == InodeKind::File { Ok(stat.inode) } else { Err(Errno::INVAL) }
}

/// Takes a step on the core; the caller does remounts.
pub(super) fn perform(core: &Arc<DirectoryCore>, step: &Step) -> Result<(), Errno> {
    let make = |path: &String, kind| {
        let target = if kind == InodeKind::Symlink { b"target".to_vec() } else { Vec::new() };
        let (parent, name) = place(core, path)?;
        core.make(parent, name, NewNode { target, ..node(kind) }).map(|_| ())
    };
    match step {
        Step::Create(path) => make(path, InodeKind::File),
        Step::MakeDirectory(path) => make(path, InodeKind::Directory),
        Step::Symlink(path) => make(path, InodeKind::Symlink),
        Step::Write { path, offset, length, byte } => {
            write(core, file_at(core, path)?, *offset, &vec![*byte; *length])
        }
        Step::Truncate { path, size } => {
            let inode = file_at(core, path)?;
            wait(|done| core.set_size(inode, *size, done))
        }
        Step::Allocate { path, range, what: allocate_mode, keep_size } => {
            let inode = file_at(core, path)?;
            wait(|done| core.allocate(inode, range.clone(), *allocate_mode, *keep_size, done))
        }
        Step::Unlink(path) => {
            let (parent, name) = place(core, path)?;
            core.unlink(parent, name)
        }
        Step::RemoveDirectory(path) => {
            let (parent, name) = place(core, path)?;
            core.rmdir(parent, name)
        }
        Step::Rename { from, to, mode } => core.rename(place(core, from)?, place(core, to)?, *mode),
        Step::Link { from, to } => {
            let inode = find(core, from)?.inode;
            let (parent, name) = place(core, to)?;
            core.link(inode, parent, name).map(|_| ())
        }
        Step::SetXattr { path, value } => {
            // Whether it exists or not, as in the reference.
            core.set_xattr(file_at(core, path)?, b"user.note", value, (false, false))
        }
        Step::Sync(path) => {
            let inode = find(core, path)?.inode;
            wait(|done| core.sync(inode, false, done))
        }
        Step::Commit => core.commit(),
        Step::Remount => Ok(()),
    }
}
