//! Which attachment modelled storage gets: the best one on this host, or the one that the user names.

use crate::attachments::attachment::Attachment;
use crate::attachments::block_attachment::BlockAttachment;
use crate::attachments::directory::{self, FuseDirectory};
use crate::attachments::nvme_kernel::{self, KernelNvme};
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::serving::daemon::DaemonTransport;
use underlay_storage::stack::StackSpec;

/// A way of attaching storage.
pub struct AttachmentKind {
    /// Its name in records and on command lines.
    pub name: &'static str,
    /// A line about its nature and advantage.
    pub gist: &'static str,
    make: fn() -> Result<Box<dyn Attachment>, AttachError>,
}

/// All of them, the best first: those with the lowest cost per request, and among these the ones that show programs
/// most of a real disk.
pub const ATTACHMENTS: &[AttachmentKind] = &[
    AttachmentKind {
        name: "ublk",
        gist: "a block device with its own filesystem, straight from the kernel's block layer",
        make: || Ok(Box::new(BlockAttachment::new()?.with_transport(DaemonTransport::Ublk))),
    },
    AttachmentKind {
        name: "fuse-uring+loop",
        gist: "a block device with its own filesystem; requests come by io_uring, at the least cost",
        make: || Ok(Box::new(BlockAttachment::new()?.with_transport(DaemonTransport::Uring))),
    },
    AttachmentKind {
        name: "fuse+loop",
        gist: "a block device with its own filesystem",
        make: || Ok(Box::new(BlockAttachment::new()?.with_transport(DaemonTransport::DevFuse))),
    },
    AttachmentKind {
        name: directory::NAME,
        gist: "a directory on a file system of its own, which needs no root",
        make: || Ok(Box::new(FuseDirectory::new()?)),
    },
    AttachmentKind {
        name: nvme_kernel::NAME,
        gist: "a volume of an NVMe/TCP server, and nothing else, by the kernel's own initiator",
        make: || Ok(Box::new(KernelNvme)),
    },
];

impl AttachmentKind {
    /// With this program as the device daemon.
    ///
    /// # Errors
    /// When this program can't be found, which is started again as the daemon.
    pub fn attachment(&self) -> Result<Box<dyn Attachment>, AttachError> {
        (self.make)()
    }

    /// The missing part on this host.
    ///
    /// # Errors
    /// The missing capability.
    pub fn probe(&self) -> Result<(), AttachError> {
        Ok(self.attachment()?.probe()?)
    }
}

/// The attachment of this name, or the best one for modelled storage that works here; probed.
///
/// # Errors
/// When no attachment has the name, or this host lacks something: for the named one, or for all of them.
pub fn choose(name: Option<&str>) -> Result<Box<dyn Attachment>, AttachError> {
    // The kernel's initiator can't show modelled devices.
    first_that_works(&match name {
        Some(name) => vec![named(name)?],
        None => for_modelled().collect(),
    })
}

/// The same for this stack. Volumes of an NVMe/TCP server, with no layers of ours in front of them, use the kernel's
/// own initiator where there is one, as they would without Underlay. Its name does not affect stacks without external
/// volumes, so a study may name it and have storage of both kinds.
///
/// # Errors
/// As [`choose`].
pub fn choose_for(stack: &StackSpec, name: Option<&str>) -> Result<Box<dyn Attachment>, AttachError> {
    first_that_works(&candidates(stack, name)?)
}

fn candidates(stack: &StackSpec, name: Option<&str>) -> Result<Vec<&'static AttachmentKind>, AttachError> {
    let is_remote = stack.volumes.iter().any(|volume| !volume.remotes().is_empty());
    Ok(match name {
        Some(nvme_kernel::NAME) if !is_remote => for_modelled().collect(),
        Some(name) => vec![named(name)?],
        None if nvme_kernel::can_show(stack) => {
            ATTACHMENTS.iter().filter(|kind| is_kernels(kind)).chain(for_modelled()).collect()
        }
        None => for_modelled().collect(),
    })
}

fn is_kernels(kind: &AttachmentKind) -> bool {
    kind.name == nvme_kernel::NAME
}

fn for_modelled() -> impl Iterator<Item = &'static AttachmentKind> {
    ATTACHMENTS.iter().filter(|kind| !is_kernels(kind))
}

fn named(name: &str) -> Result<&'static AttachmentKind, AttachError> {
    ATTACHMENTS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        AttachError::failed(format!(
            "no attachment is called '{name}': there are {}",
            ATTACHMENTS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
        ))
    })
}

fn first_that_works(kinds: &[&AttachmentKind]) -> Result<Box<dyn Attachment>, AttachError> {
    let attachments = kinds.iter().map(|kind| kind.attachment()).collect::<Result<Vec<_>, _>>()?;
    first_probed(attachments)
}

/// Reports what the last one lacks, since that one needs the least.
fn first_probed(attachments: Vec<Box<dyn Attachment>>) -> Result<Box<dyn Attachment>, AttachError> {
    let mut lacking: Option<MissingCapability> = None;
    for attachment in attachments {
        match attachment.probe() {
            Ok(()) => return Ok(attachment),
            Err(missing) => lacking = Some(missing),
        }
    }
    Err(lacking.map_or_else(|| AttachError::failed("there is no attachment at all"), AttachError::from))
}

#[cfg(test)]
mod tests {
    use underlay_storage::stack::{RemoteSpec, StackNode, VolumeSpec};

    use super::*;
    use crate::attachments::attachment::{AttachSpec, AttachedStorage};
    use crate::undo::registry::ResourceRegistry;

    struct Fake {
        name: &'static str,
        works: bool,
    }

    impl Attachment for Fake {
        fn name(&self) -> &'static str {
            self.name
        }

        fn probe(&self) -> Result<(), MissingCapability> {
            if self.works { Ok(()) } else { Err(MissingCapability::new(self.name, "get it")) }
        }

        fn attach(&self, _: &AttachSpec, _: &ResourceRegistry) -> Result<AttachedStorage, AttachError> {
            Err(AttachError::failed("not for use"))
        }
    }

    fn chosen(works: &[(&'static str, bool)]) -> Result<&'static str, String> {
        let fakes = works.iter().map(|&(name, works)| Box::new(Fake { name, works }) as Box<dyn Attachment>);
        first_probed(fakes.collect()).map(|found| found.name()).map_err(|error| error.to_string())
    }

    #[test]
    fn attachment_choice_tries_in_order_and_reports_last_lack() {
        assert_eq!(chosen(&[("a", false), ("b", true), ("c", true)]), Ok("b"));
        let lacking = chosen(&[("a", false), ("b", false)]).unwrap_err();
        assert!(lacking.contains("lacks b") && lacking.contains("get it"), "{lacking}");
    }

    #[test]
    fn attachment_choice_remote_volume_prefers_kernel() {
        let names = |root: &StackNode, name: Option<&str>| -> Vec<&str> {
            let volumes = vec![VolumeSpec::new("data", root.clone())];
            let stack = StackSpec { volumes, dilation: 1.0, seed: 1 };
            candidates(&stack, name).unwrap().iter().map(|kind| kind.name).collect()
        };
        let remote =
            StackNode::Remote(RemoteSpec::new("tank/data", "127.0.0.1:4420", "nqn.2026-01.org.example:d", 1));
        let linked =
            StackNode::Link { bandwidth_mb_s: 1_000.0, latency_us: 10.0, member: Box::new(remote.clone()) };
        assert_eq!(names(&remote, None)[..2], ["nvme-kernel", "ublk"]);
        assert_eq!(names(&linked, None)[0], "ublk");
        // Requested in vain: attaching reports why.
        assert_eq!(names(&linked, Some("nvme-kernel")), ["nvme-kernel"]);
        assert_eq!(names(&remote, Some("fuse+loop")), ["fuse+loop"]);
    }

    #[test]
    fn attachment_names_unknown_one_lists_all() {
        for kind in ATTACHMENTS {
            assert_eq!(kind.attachment().unwrap().name(), kind.name);
        }
        let Err(refused) = choose(Some("nbd")) else { panic!("there is no such attachment") };
        let refused = refused.to_string();
        assert!(refused.contains("'nbd'") && refused.contains("fuse+loop"), "{refused}");
    }
}
