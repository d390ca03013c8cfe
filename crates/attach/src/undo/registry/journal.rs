//! The journal file of one owner, as untrusted bytes: reading never fails, whatever they are.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use underlay_files::{plain_file, scratch_dir};

use super::resource::OwnedResource;
use crate::machine::processes::{self, ProcessId};

/// The process that created the resources in a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistryOwner {
    pub process: ProcessId,
    /// Process numbers start anew with each boot. Empty when unknown.
    pub boot_id: String,
    /// A number refers to another process in each PID namespace: this is the namespace's inode. Earlier versions did
    /// not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
    pub command: String,
}

impl RegistryOwner {
    /// Whether its process numbers have the same meaning here.
    pub(crate) fn is_of_this_namespace(&self) -> bool {
        self.pid_namespace.is_none_or(|namespace| scratch_dir::pid_namespace() == Some(namespace))
    }

    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot_id.is_empty() || self.boot_id == processes::boot_id()
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RegistryLine {
    Owner(RegistryOwner),
    Note {
        id: u64,
        /// The name in journals of earlier versions.
        #[serde(rename = "thing")]
        resource: OwnedResource,
    },
    Forget {
        id: u64,
    },
}

/// A journal as far as it could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryJournal {
    pub owner: RegistryOwner,
    /// Without the owner's line, only the number of the process is known, from the file's name.
    pub is_owner_noted: bool,
    /// Outstanding resources, in the order of their notes.
    pub resources: Vec<(u64, OwnedResource)>,
    /// Lines that were cut short or damaged.
    pub unreadable_lines: usize,
    /// Its owner has locked it, or this can't be determined.
    pub is_locked: bool,
}

impl RegistryJournal {
    /// Whether the owner still runs, in this boot of the machine. An owner in another PID namespace, such as a
    /// container's, can't be seen: its lock shows that it runs.
    pub fn is_alive(&self) -> bool {
        let is_seen = || self.owner.process.is_alive();
        if !self.is_owner_noted {
            // It may have just been created, in any PID namespace: its owner locks it before writing to it.
            return self.is_locked || is_seen();
        }
        let is_there = if self.owner.is_of_this_namespace() { is_seen() } else { self.is_locked };
        self.owner.is_of_this_boot() && is_there
    }
}

/// Far more than any run writes; a larger file is not read to its end.
const MAX_BYTES: u64 = 64 << 20;

pub(super) fn file_name(pid: u32, start_ticks: u64) -> String {
    format!("owner-{pid}-{start_ticks}.jsonl")
}

/// `None` for a file that is not a journal by its name, or can't be opened.
pub(super) fn read(path: &Path) -> Option<RegistryJournal> {
    let process = parse_file_name(path.file_name()?.to_str()?)?;
    let mut bytes = Vec::new();
    let file = plain_file::open(path).ok()??;
    (&file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let is_locked = file.try_lock_shared().is_err();
    Some(RegistryJournal { is_locked, ..parse_journal(process, &bytes) })
}

fn parse_file_name(name: &str) -> Option<ProcessId> {
    let (pid, start_ticks) = name.strip_prefix("owner-")?.strip_suffix(".jsonl")?.split_once('-')?;
    Some(ProcessId { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

/// Parses a journal of `process` (known from its file name, which is valid even if the first line is damaged).
pub fn parse_journal(process: ProcessId, bytes: &[u8]) -> RegistryJournal {
    let mut owner =
        RegistryOwner { process, boot_id: String::new(), pid_namespace: None, command: "?".to_owned() };
    let mut is_owner_noted = false;
    let mut resources = BTreeMap::new();
    let mut unreadable_lines = 0;
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            // A journal copied under another name refers to another process: the name decides.
            Ok(RegistryLine::Owner(found)) if found.process == process => {
                (owner, is_owner_noted) = (found, true);
            }
            Ok(RegistryLine::Note { id, resource }) => {
                resources.insert(id, resource);
            }
            Ok(RegistryLine::Forget { id }) => {
                resources.remove(&id);
            }
            Ok(RegistryLine::Owner(_)) | Err(_) => unreadable_lines += 1,
        }
    }
    let resources = resources.into_iter().collect();
    RegistryJournal { owner, is_owner_noted, resources, unreadable_lines, is_locked: false }
}
