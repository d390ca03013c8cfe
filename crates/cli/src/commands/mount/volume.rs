//! `underlay mount nvme-tcp://ADDRESS:PORT/VOLUME DIR`: a volume of a server, by Underlay's own initiator.

use underlay_attach::{FilesystemKind, choice, directory};
use underlay_nvme::auth::{HostSecrets, read_secrets};
use underlay_nvme::initiator::{ControllerOptions, InitiatorError, NvmeController, discover};
use underlay_nvme::log_page::DiscoveryEntry;
use underlay_storage::contents::{self, DeviceContents};
use underlay_storage::stack::{RemoteSpec, StackNode, StackSpec, VolumeSpec};
use underlay_volume::server::nqn;

use crate::arguments::MountArguments;
use crate::exit_codes::ExitFailure;

const DIRECTORY: &str = directory::NAME;
const SCHEME: &str = "nvme-tcp://";
/// Each volume is the first namespace of its own subsystem.
const NSID: u32 = 1;
const XFS_MAGIC: &[u8] = b"XFSB";
// 0xEF53, little-endian, 56 bytes into the superblock, which begins at byte 1024.
const EXT4_MAGIC: [u8; 2] = [0x53, 0xef];
const EXT4_MAGIC_OFFSET: u64 = 1080;

/// A volume as it was found.
pub(super) struct RemoteVolume {
    pub stack: StackSpec,
    /// Both its ends are zeros.
    pub is_blank: bool,
    /// The file system that it holds, where that is known.
    pub filesystem: Option<FilesystemKind>,
    /// The name of the attachment, where only one will do or one is asked for.
    pub attachment: Option<String>,
}

pub(super) fn is_url(text: &str) -> bool {
    text.starts_with(SCHEME)
}

/// Finds the volume and looks at what it holds.
pub(super) fn find(arguments: &MountArguments) -> Result<RemoteVolume, ExitFailure> {
    let url = &arguments.medium;
    for (option, is_given) in [
        ("--storage", arguments.storage.is_some()),
        ("--size", arguments.size.is_some()),
        ("--time", arguments.time.is_some()),
        ("--keep", arguments.keep.is_some()),
        ("--power-cut", arguments.power_cut),
    ] {
        if is_given {
            return Err(ExitFailure::Mistake(format!(
                "{option} does not go with {url}: what it holds is its server's"
            )));
        }
    }
    let (address, name) = parse(url)?;
    let options = options(arguments, address)?;
    let subsystem_nqn = match name.starts_with("nqn.") {
        true => name.to_owned(),
        false => choose(&discover(&options).map_err(failure)?, address, name, &options.host_nqn)?,
    };
    let controller =
        NvmeController::connect(ControllerOptions { subsystem_nqn: subsystem_nqn.clone(), ..options })
            .map_err(failure)?;
    let device = controller.namespace(NSID).map_err(failure)?;
    let existing = contents::inspect_device(&device)
        .map_err(|error| ExitFailure::Failed(format!("{url} can't be read: {error}")))?;
    let filesystem = existing.as_ref().and_then(filesystem_of);
    let is_directory =
        existing.as_ref().and_then(|existing| existing.bytes_at(0)).is_some_and(directory::is_beginning);
    let is_kept = existing.is_some() && !arguments.format;
    let attachment = arguments.attachment.clone();
    let attachment = match (attachment.as_deref(), is_kept) {
        (None, true) if is_directory => Some(DIRECTORY.to_owned()),
        (Some(DIRECTORY), true) if !is_directory => {
            return Err(ExitFailure::Mistake(format!(
                "{url} was not made by {DIRECTORY}: leave out --attachment. If nothing on it is needed, --format makes it \
                 again"
            )));
        }
        (Some(other), true) if is_directory && other != DIRECTORY => {
            return Err(ExitFailure::Mistake(format!(
                "{url} was made by {DIRECTORY}, and {other} can't read it: leave out --attachment. If nothing on it is needed, --format \
                 makes it again"
            )));
        }
        // The kernel's initiator authenticates the controller once. When it reconnects, it accepts any.
        (None, _) if arguments.secrets.has_controller() => Some(choice::choose(None)?.name().to_owned()),
        _ => attachment,
    };
    if let (Some(existing), None, false, false) = (&existing, filesystem, is_directory, arguments.format) {
        return Err(ExitFailure::Mistake(format!(
            "{url} holds {}, and `mount` knows XFS and ext4: check its name. If nothing on it is needed, --format makes a file \
             system on it all the same",
            existing.describe()
        )));
    }
    let remote = RemoteSpec {
        host_nqn: arguments.host_nqn.clone(),
        secrets: arguments.secrets.places()?,
        // Looked at again on the connection that formats it.
        must_be_blank: existing.is_none() && !arguments.format,
        ..RemoteSpec::new(format!("{address}/{name}"), address, subsystem_nqn, NSID)
    };
    let volumes = vec![VolumeSpec::new("disk", StackNode::Remote(remote))];
    Ok(RemoteVolume {
        stack: StackSpec { volumes, dilation: 1.0, seed: 1 },
        is_blank: existing.is_none(),
        filesystem,
        attachment,
    })
}

/// Address with port, and the name of a volume or a whole NQN.
fn parse(url: &str) -> Result<(&str, &str), ExitFailure> {
    let parts = url.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'));
    let is_port = |address: &str| {
        address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    match parts {
        Some((address, name)) if is_port(address) && !name.is_empty() && !name.contains('/') => {
            Ok((address, name))
        }
        _ => Err(ExitFailure::Mistake(format!(
            "'{url}': expected {SCHEME}ADDRESS:PORT/VOLUME, as in {SCHEME}127.0.0.1:4420/data"
        ))),
    }
}

fn options(arguments: &MountArguments, address: &str) -> Result<ControllerOptions, ExitFailure> {
    // Overwritten before it is used: discovery has its own subsystem.
    let mut options = ControllerOptions::new(address, underlay_nvme::fabrics::DISCOVERY_NQN);
    if let Some(host_nqn) = &arguments.host_nqn {
        options = options.with_host_nqn(host_nqn);
    }
    let secrets = read_secrets(&arguments.secrets.places()?, |name| std::env::var(name).ok())
        .map_err(|error| ExitFailure::Mistake(error.to_string()))?;
    options.secrets = secrets.map(|(host, controller)| HostSecrets { host, controller });
    Ok(options)
}

fn choose(
    found: &[DiscoveryEntry],
    address: &str,
    name: &str,
    host_nqn: &str,
) -> Result<String, ExitFailure> {
    let mut named: Vec<&str> = found
        .iter()
        .map(|entry| entry.subsystem_nqn.as_str())
        .filter(|subsystem| nqn::is_volume(subsystem, name))
        .collect();
    named.sort_unstable();
    named.dedup();
    match named.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => {
            let volumes: Vec<&str> = found.iter().map(|entry| entry.subsystem_nqn.as_str()).collect();
            let volumes =
                if volumes.is_empty() { "nothing for this host".to_owned() } else { volumes.join(", ") };
            Err(ExitFailure::Mistake(format!(
                "{address} has no volume '{name}' for the host {host_nqn}; it has {volumes}. --host-nqn names another host, and the \
                 server's operator lists hosts in `hosts` of a volume"
            )))
        }
        several => Err(ExitFailure::Mistake(format!(
            "{address} has several volumes '{name}': write the whole name, one of {}",
            several.join(", ")
        ))),
    }
}

fn filesystem_of(contents: &DeviceContents) -> Option<FilesystemKind> {
    match contents.signatures() {
        // A partition table beside it, say, would not go with it.
        Ok(signatures) => {
            let [only] = signatures.as_slice() else { return None };
            [FilesystemKind::Xfs, FilesystemKind::Ext4]
                .into_iter()
                .find(|filesystem| filesystem.name() == only)
        }
        Err(_) => {
            let begins = |offset_bytes, magic: &[u8]| {
                contents.bytes_at(offset_bytes).is_some_and(|bytes| bytes.starts_with(magic))
            };
            let is_ext4 = begins(EXT4_MAGIC_OFFSET, &EXT4_MAGIC);
            if begins(0, XFS_MAGIC) {
                Some(FilesystemKind::Xfs)
            } else {
                is_ext4.then_some(FilesystemKind::Ext4)
            }
        }
    }
}

fn failure(error: InitiatorError) -> ExitFailure {
    match error {
        InitiatorError::Options(_)
        | InitiatorError::Refused { .. }
        | InitiatorError::AuthenticationRequired(_)
        | InitiatorError::NoAuthentication(_)
        | InitiatorError::Authentication(_)
        | InitiatorError::NoNamespace { .. } => ExitFailure::Mistake(error.to_string()),
        other => ExitFailure::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_address_needs_port_and_name() {
        let read = |url| parse(url).map_err(|error| error.to_string());
        assert_eq!(read("nvme-tcp://127.0.0.1:4420/data"), Ok(("127.0.0.1:4420", "data")));
        assert_eq!(read("nvme-tcp://[::1]:4420/nqn.2014-08.a:b"), Ok(("[::1]:4420", "nqn.2014-08.a:b")));
        for wrong in
            ["nvme-tcp://127.0.0.1/data", "nvme-tcp://h:4420", "nvme-tcp://h:4420/", "nvme-tcp://:4420/a"]
        {
            assert!(read(wrong).unwrap_err().contains("ADDRESS:PORT/VOLUME"), "{wrong}");
        }
    }
}
