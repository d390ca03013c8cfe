//! The resources that a registry can hold.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::processes::ProcessId;

/// The limits of dirty pages that a device had before ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousLimits {
    pub(crate) strict_limit: u32,
    pub(crate) max_ratio_fine: u32,
    pub(crate) min_ratio_fine: u32,
}

/// A resource that may outlive the process that created it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum OwnedResource {
    /// A file system on the loop device of the file `backing`, on the ublk device of that link, or on that device.
    Mount {
        mount_point: PathBuf,
        backing: PathBuf,
    },
    /// A FUSE export with the source name `source`.
    FuseMount {
        mount_point: PathBuf,
        source: String,
    },
    /// A directory that a device daemon serves, with the source name `source`.
    Directory {
        mount_point: PathBuf,
        source: String,
    },
    /// The loop device of this file.
    Loop {
        backing: PathBuf,
    },
    /// The ublk devices of the daemon whose links are in this directory.
    Ublk {
        export: PathBuf,
    },
    /// The limit of dirty pages of the device with this number, and its former limit.
    DirtyLimit {
        device: String,
        /// The name in journals of earlier versions.
        #[serde(rename = "former")]
        previous: PreviousLimits,
    },
    /// The kernel's read-ahead on the device with this number, and its former value.
    ReadAhead {
        device: String,
        previous_kib: u64,
    },
    /// This host's kernel connection to an NVMe subsystem, over TCP.
    NvmeController {
        subsystem_nqn: String,
        host_nqn: String,
        /// Its number, once the kernel has reported it. Earlier versions did not note it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<u32>,
    },
    /// Objects below this prefix in an external store, or files below it in a directory of an external cluster. Only
    /// its owner knows how to reach it.
    ElsewhereContent {
        place: String,
    },
    /// The device daemon that was started with this configuration file and listens on this socket.
    Daemon {
        config: PathBuf,
        control: PathBuf,
    },
    /// Any other process, with a description.
    Process {
        process: ProcessId,
        what: String,
    },
    /// A control group with all processes in it.
    Cgroup {
        directory: PathBuf,
    },
    File {
        path: PathBuf,
    },
    /// A Unix socket that its owner listens on.
    Socket {
        path: PathBuf,
    },
    /// The socket on which its owner accepts commands for the nodes of a system.
    Nodes {
        control: PathBuf,
    },
    /// The socket on which its owner accepts commands for the run in this directory.
    Run {
        control: PathBuf,
        directory: PathBuf,
    },
    /// The socket on which its owner, a load or a worker, reports its metrics.
    Service {
        control: PathBuf,
    },
    /// A directory of ours with everything below it.
    Tree {
        path: PathBuf,
    },
    /// A directory that is removed only when it is empty: a mount point.
    EmptyDirectory {
        path: PathBuf,
    },
}

impl OwnedResource {
    /// The path that must not exist yet when the resource is noted: anything there before isn't ours to remove.
    pub(crate) fn made_path(&self) -> Option<&Path> {
        match self {
            OwnedResource::File { path }
            | OwnedResource::Tree { path }
            | OwnedResource::EmptyDirectory { path } => Some(path),
            OwnedResource::Cgroup { directory } => Some(directory),
            _ => None,
        }
    }
}

impl std::fmt::Display for OwnedResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OwnedResource::Mount { mount_point, .. } | OwnedResource::Directory { mount_point, .. } => {
                write!(formatter, "the mount at {}", mount_point.display())
            }
            OwnedResource::FuseMount { mount_point, .. } => {
                write!(formatter, "the export at {}", mount_point.display())
            }
            OwnedResource::Loop { backing } => write!(formatter, "the loop device of {}", backing.display()),
            OwnedResource::Ublk { export } => write!(formatter, "the ublk devices of {}", export.display()),
            OwnedResource::DirtyLimit { device, .. } => {
                write!(formatter, "the limit of dirty pages of device {device}")
            }
            OwnedResource::ReadAhead { device, .. } => write!(formatter, "the read-ahead of device {device}"),
            OwnedResource::NvmeController { subsystem_nqn, .. } => {
                write!(formatter, "the connection to {subsystem_nqn}")
            }
            OwnedResource::ElsewhereContent { place } => write!(formatter, "{place}"),
            OwnedResource::Daemon { config, .. } => {
                write!(formatter, "the device daemon of {}", config.display())
            }
            OwnedResource::Process { process, what: description } => {
                write!(formatter, "{description} (process {})", process.pid)
            }
            OwnedResource::Cgroup { directory } => {
                write!(formatter, "the control group {}", directory.display())
            }
            OwnedResource::File { path } => write!(formatter, "the file {}", path.display()),
            OwnedResource::Socket { path }
            | OwnedResource::Nodes { control: path }
            | OwnedResource::Run { control: path, .. }
            | OwnedResource::Service { control: path } => {
                write!(formatter, "the socket {}", path.display())
            }
            OwnedResource::Tree { path } | OwnedResource::EmptyDirectory { path } => {
                write!(formatter, "the directory {}", path.display())
            }
        }
    }
}
