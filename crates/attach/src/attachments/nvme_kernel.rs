//! The attachment `nvme-kernel`: external volumes, through the kernel's own NVMe/TCP initiator.
//!
//! Writing options to [`FABRICS`] creates a controller, just as `nvme connect` does; its `delete_controller` in sysfs
//! removes it. Secrets go the same way, so that they are on no command line.

mod sysfs;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use underlay_sync::{Mutex, MutexGuard};

use underlay_nvme::initiator::{self, ControllerOptions, InitiatorError};
use underlay_nvme::nqn;
use underlay_record::{DeviceActivity, DeviceGlance};
use underlay_storage::contents::{self, DeviceContents};
use underlay_storage::stack::{PacingMode, RemoteSpec, StackNode, StackSpec};

use crate::attachments::attachment::{
    AttachSpec, AttachedStorage, Attachment, HeldResource, check_mount_point, check_names, needs_filesystem,
    split_directories,
};
use crate::attachments::filesystem::FilesystemKind;
use crate::machine::error::AttachError;
use crate::machine::missing::MissingCapability;
use crate::machine::mounts;
use crate::machine::privileges::probe_privileges;
use crate::measurement::real_activity::{CounterSampler, RealDevice};
use crate::serving::remote;
use crate::undo::registry::{OwnedResource, RegistryNote, ResourceRegistry};
pub(crate) use sysfs::SysfsController;

pub const NAME: &str = "nvme-kernel";
/// Where the kernel accepts connections.
pub const FABRICS: &str = "/dev/nvme-fabrics";
/// How long a namespace may take to appear, and a controller to disappear.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Writes that remain when a file system is unmounted may have to wait for a slow target.
const WRITE_OUT_LIMIT: Duration = Duration::from_secs(60);

/// The attachment of volumes that are just one external namespace each: layers are ours, not the kernel's.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelNvme;

impl Attachment for KernelNvme {
    fn name(&self) -> &'static str {
        NAME
    }

    fn probe(&self) -> Result<(), MissingCapability> {
        probe_privileges()?;
        match OpenOptions::new().read(true).write(true).open(FABRICS) {
            Ok(_) => Ok(()),
            Err(error) => Err(MissingCapability::new(
                format!("the kernel's NVMe/TCP initiator ({FABRICS}: {error})"),
                "load it with `modprobe nvme-tcp`; where there is no such module use a kernel that has it (on Debian, \
                 linux-image-amd64), or leave the attachment to Underlay, whose own initiator needs none",
            )),
        }
    }

    fn attach(&self, spec: &AttachSpec, registry: &ResourceRegistry) -> Result<AttachedStorage, AttachError> {
        self.probe()?;
        check_names(&spec.stack)?;
        check_mount_point(spec)?;
        let filesystem = needs_filesystem(NAME, spec)?;
        if spec.format {
            filesystem.probe()?;
        }
        let remotes = remotes(&spec.stack)?;
        let mut volumes = KernelVolumes {
            registry: registry.clone(),
            controllers: Vec::new(),
            mounted: Vec::new(),
            directories: Vec::new(),
            devices: Vec::new(),
            sampler: Mutex::default(),
        };
        let attached = volumes.attach_all(spec, filesystem, &remotes);
        match attached.and_then(|paths| split_directories(paths, &spec.stack)) {
            Ok(paths) => Ok(AttachedStorage::new(NAME, paths, Box::new(volumes))),
            Err(error) => {
                // Steps that can't be undone stay in the registry; the first error counts.
                let _ = volumes.detach();
                Err(error)
            }
        }
    }
}

/// Whether every volume of the stack comes from a server, with no layers before it that only we can show.
pub(crate) fn can_show(stack: &StackSpec) -> bool {
    stack.volumes.iter().all(|volume| matches!(volume.root, StackNode::Remote(_)))
}

/// Whether this is a device of the kernel's own NVMe driver: `/dev/nvme0n1`.
pub(crate) fn is_device(path: &Path) -> bool {
    path.parent() == Some(Path::new("/dev"))
        && path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"nvme"))
}

fn remotes(stack: &StackSpec) -> Result<Vec<&RemoteSpec>, AttachError> {
    let remote = |volume: &'_ underlay_storage::stack::VolumeSpec| match &volume.root {
        StackNode::Remote(_) => Ok(()),
        _ => Err(AttachError::failed(format!(
            "volume '{}' is not a volume of an NVMe/TCP server alone, and the attachment {NAME} knows no other: use \
             another attachment",
            volume.name
        ))),
    };
    stack.volumes.iter().try_for_each(remote)?;
    Ok(stack.volumes.iter().flat_map(|volume| volume.remotes()).collect())
}

impl SysfsController {
    fn resource(&self) -> OwnedResource {
        let SysfsController { subsystem_nqn, host_nqn, instance } = self.clone();
        OwnedResource::NvmeController { subsystem_nqn, host_nqn, instance }
    }
}

struct KernelVolumes {
    registry: ResourceRegistry,
    controllers: Vec<(SysfsController, RegistryNote)>,
    mounted: Vec<(PathBuf, RegistryNote)>,
    directories: Vec<(PathBuf, RegistryNote)>,
    devices: Vec<RealDevice>,
    sampler: Mutex<Option<CounterSampler>>,
}

impl KernelVolumes {
    fn attach_all(
        &mut self,
        spec: &AttachSpec,
        filesystem: FilesystemKind,
        remotes: &[&RemoteSpec],
    ) -> Result<Vec<PathBuf>, AttachError> {
        let mut paths = Vec::new();
        for (volume, remote) in spec.stack.volumes.iter().zip(remotes) {
            let device = self.connect(remote)?;
            let wanted = spec.mount_point.clone().unwrap_or_else(|| spec.mount_root.join(&volume.name));
            let (mount_point, made) = mounts::empty_directory(&wanted, &self.registry)?;
            self.directories.extend(made);
            if spec.format {
                filesystem.make(&device)?;
            }
            let resource = OwnedResource::Mount { mount_point: mount_point.clone(), backing: device.clone() };
            let note = self.registry.note(resource)?;
            if let Err(error) = filesystem.mount(&device, &mount_point) {
                self.registry.forget(note);
                return Err(error);
            }
            self.mounted.push((mount_point.clone(), note));
            self.devices.extend(RealDevice::below(&mount_point));
            paths.push(mount_point);
        }
        Ok(paths)
    }

    /// The block device of the namespace.
    fn connect(&mut self, remote: &RemoteSpec) -> Result<PathBuf, AttachError> {
        let failed = |problem: String| AttachError::failed(format!("{}: {problem}", remote.name));
        let options = remote::options(remote, |name| std::env::var(name).ok()).map_err(failed)?;
        let mut wanted = SysfsController {
            subsystem_nqn: options.subsystem_nqn.clone(),
            host_nqn: options.host_nqn.clone(),
            instance: None,
        };
        if let Some(number) = wanted.numbers().first() {
            return Err(failed(format!(
                "this host is connected to {} already (nvme{number}): disconnect it with `nvme disconnect -n {}`",
                options.subsystem_nqn, options.subsystem_nqn
            )));
        }
        prove(&options).map_err(|error| failed(error.to_string()))?;
        let note = self.registry.note(wanted.resource())?;
        let refused = |error: io::Error| {
            failed(format!(
                "the kernel could not connect to {}: {error}; its log (`dmesg`) tells more",
                options.address
            ))
        };
        match make_controller(&options) {
            Ok(KernelController { instance: Ok(instance) }) => wanted.instance = Some(instance),
            Ok(KernelController { instance: Err(error) }) => {
                // It exists, and its names identify it for removal when this is dropped.
                if options.secrets.is_some() {
                    let _ = wanted.hide_secrets();
                }
                self.controllers.push((wanted, note));
                return Err(refused(error));
            }
            Err(error) => {
                self.registry.forget(note);
                return Err(refused(error));
            }
        }
        // By its number too, once that is known, since others may have the same names.
        let numbered = self.registry.note(wanted.resource());
        let (note, noted) = match numbered {
            Ok(numbered) => {
                self.registry.forget(note);
                (numbered, Ok(()))
            }
            Err(error) => (note, Err(error)),
        };
        self.controllers.push((wanted.clone(), note));
        noted?;
        if options.secrets.is_some() {
            wanted.hide_secrets().map_err(|error| {
                failed(format!("the secrets that the kernel shows in sysfs can't be hidden: {error}"))
            })?;
        }
        let deadline = Instant::now() + NAMESPACE_TIMEOUT;
        loop {
            let device = wanted.device(remote.nsid);
            if let Some((device, file)) =
                device.and_then(|device| File::open(&device).ok().map(|file| (device, file)))
            {
                if remote.must_be_blank {
                    // On the connection that is formatted, and not only on the one by which it was chosen.
                    let existing = held_by(&file).map_err(|error| AttachError::io("read", &device, error))?;
                    remote::check_blank(remote, existing.as_ref()).map_err(AttachError::failed)?;
                }
                return Ok(device);
            }
            if Instant::now() >= deadline {
                return Err(failed(format!("the kernel shows no namespace {} of it", remote.nsid)));
            }
            std::thread::sleep(POLL);
        }
    }

    fn sampler(&self) -> MutexGuard<'_, Option<CounterSampler>> {
        self.sampler.lock()
    }
}

/// Connects once ourselves where the controller must authenticate. The kernel authenticates the controller only if the
/// controller requires it, and accepts one that requires nothing.
fn prove(options: &ControllerOptions) -> Result<(), InitiatorError> {
    let must_prove = options.secrets.as_ref().is_some_and(|secrets| secrets.controller.is_some());
    if must_prove {
        drop(initiator::NvmeController::connect(options.clone())?);
    }
    Ok(())
}

fn held_by(device: &File) -> io::Result<Option<DeviceContents>> {
    let mut end = device;
    let length_bytes = end.seek(SeekFrom::End(0))?;
    contents::inspect_file(device, length_bytes)
}

/// A controller that the kernel has created.
struct KernelController {
    /// Its number, or why it is not known.
    instance: io::Result<u32>,
}

/// An error where the kernel has created none.
fn make_controller(options: &ControllerOptions) -> io::Result<KernelController> {
    let text = connect_options(options)?;
    let mut fabrics = OpenOptions::new().read(true).write(true).open(FABRICS)?;
    make_by(&mut fabrics, &text)
}

fn make_by(fabrics: &mut (impl Read + Write), options: &str) -> io::Result<KernelController> {
    fabrics.write_all(options.as_bytes())?;
    let mut answer = [0; 256];
    let instance = fabrics.read(&mut answer).and_then(|length| {
        let answer = String::from_utf8_lossy(&answer[..length]);
        instance_in(&answer).ok_or_else(|| {
            let problem = format!("{FABRICS} does not tell the new controller's number: {:?}", answer.trim());
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })
    });
    Ok(KernelController { instance })
}

/// From `instance=0,cntlid=1`.
fn instance_in(answer: &str) -> Option<u32> {
    answer.trim().split(',').find_map(|part| part.strip_prefix("instance=")?.parse().ok())
}

/// The options for the kernel (`nvmf_parse_options` in its `drivers/nvme/host/fabrics.c`).
fn connect_options(options: &ControllerOptions) -> io::Result<String> {
    let (host, port) = options
        .address
        .rsplit_once(':')
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the address has no port"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut parts = vec![
        "transport=tcp".to_owned(),
        format!("traddr={host}"),
        format!("trsvcid={port}"),
        format!("nqn={}", options.subsystem_nqn),
        format!("hostnqn={}", options.host_nqn),
        format!("hostid={}", nqn::uuid_text(&options.host_id)),
        format!("nr_io_queues={}", options.queues),
        // The kernel's minimum (NVMF_MIN_QUEUE_SIZE).
        format!("queue_size={}", options.queue_depth.max(16)),
        format!("keep_alive_tmo={}", options.keep_alive_timeout.as_secs()),
        format!("ctrl_loss_tmo={}", options.loss_timeout.as_secs()),
        "reconnect_delay=1".to_owned(),
    ];
    parts.extend(options.digests.header.then(|| "hdr_digest".to_owned()));
    parts.extend(options.digests.data.then(|| "data_digest".to_owned()));
    if let Some(secrets) = &options.secrets {
        parts.push(format!("dhchap_secret={}", secrets.host.reveal()));
        parts.extend(
            secrets.controller.iter().map(|secret| format!("dhchap_ctrl_secret={}", secret.reveal())),
        );
    }
    // Commas separate options: one inside a name would begin another option.
    let mistaken = parts.iter().any(|part| part.contains([',', '\n']));
    if mistaken {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name has a comma or a line break in it"));
    }
    Ok(parts.join(","))
}

impl HeldResource for KernelVolumes {
    /// The devices are the server's, and so is their pace.
    fn set_pace(&self, _pace: PacingMode) -> Result<(), AttachError> {
        Ok(())
    }

    fn begin_measurement(&self, interval_s: f64) -> Result<(), AttachError> {
        *self.sampler() = Some(CounterSampler::start(self.devices.clone(), interval_s)?);
        Ok(())
    }

    fn end_measurement(&self) -> Result<Vec<DeviceActivity>, AttachError> {
        Ok(self.sampler().take().map(CounterSampler::finish).unwrap_or_default())
    }

    fn glance(&self) -> Result<Vec<DeviceGlance>, AttachError> {
        Ok(self.devices.iter().filter_map(RealDevice::glance).collect())
    }

    /// The kernel serves them.
    fn daemon_pid(&self) -> Option<u32> {
        None
    }

    fn health(&self) -> Result<(), AttachError> {
        if let Some((path, _)) = self.mounted.iter().find(|(path, _)| mounts::find(path).is_none()) {
            return Err(AttachError::failed(format!("{} was unmounted by someone", path.display())));
        }
        match self.controllers.iter().find(|(controller, _)| !controller.is_live()) {
            Some((controller, _)) => Err(AttachError::failed(format!(
                "the connection to {} is lost: is its server running?",
                controller.subsystem_nqn
            ))),
            None if self.controllers.is_empty() => Err(AttachError::failed("the storage has been detached")),
            None => Ok(()),
        }
    }

    fn detach(&mut self) -> Result<(), AttachError> {
        self.sampler().take();
        let mut lost = None;
        while let Some((path, _)) = self.mounted.last() {
            // A successful unmount doesn't prove that everything was written; this does.
            if let Err(error) = mounts::write_out_within(path, WRITE_OUT_LIMIT) {
                lost.get_or_insert(AttachError::failed(format!(
                    "{} could not write everything out ({error}): unflushed writes are lost",
                    path.display()
                )));
                // Requests that hang on a lost target end with errors.
                self.controllers.iter().filter(|(controller, _)| !controller.is_live()).for_each(
                    |(controller, _)| {
                        let _ = controller.delete();
                    },
                );
            }
            if let Err(error) = mounts::try_unmount(path, WRITE_OUT_LIMIT) {
                // Lost data matters more than the process that keeps the mount.
                return Err(lost.unwrap_or_else(|| mounts::explain(path, error)));
            }
            if let Some((_, note)) = self.mounted.pop() {
                self.registry.forget(note);
            }
        }
        while let Some((controller, _)) = self.controllers.last() {
            controller.delete().map_err(|error| {
                AttachError::io("disconnect", Path::new(&controller.subsystem_nqn), error)
            })?;
            if let Some((_, note)) = self.controllers.pop() {
                self.registry.forget(note);
            }
        }
        self.registry.remove_directories(&mut self.directories);
        lost.map_or(Ok(()), Err)
    }
}

impl Drop for KernelVolumes {
    fn drop(&mut self) {
        let _ = self.detach();
    }
}

/// Disconnects the connections of a process that has ended; returns the names of those that existed.
pub(crate) fn remove(controller: &SysfsController) -> Result<Vec<String>, AttachError> {
    let names = controller.numbers().iter().map(|number| format!("nvme{number}")).collect();
    match controller.delete() {
        Ok(()) => Ok(names),
        Err(error) => Err(AttachError::io("disconnect", Path::new(&controller.subsystem_nqn), error)),
    }
}

/// The text of a one-line file; `None` where there is none.
fn line_of(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use underlay_nvme::auth::{AuthHash, AuthSecret, HostSecrets};
    use underlay_nvme::pdu::Digests;
    use underlay_storage::stack::{BackingSpec, DeviceSpec, VolumeSpec};

    use super::*;

    /// Accepts or refuses writes like `/dev/nvme-fabrics`.
    struct Fabrics {
        takes: bool,
        answer: io::Result<&'static str>,
    }

    impl Write for Fabrics {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if self.takes { Ok(text.len()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Fabrics {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let answer = self.answer.as_ref().map_err(|error| io::Error::from(error.kind()))?;
            bytes[..answer.len()].copy_from_slice(answer.as_bytes());
            Ok(answer.len())
        }
    }

    #[test]
    fn connect_without_controller_number_succeeds() {
        let ask = |takes, answer| make_by(&mut Fabrics { takes, answer }, "nqn=nqn.x:data");
        assert_eq!(ask(true, Ok("instance=7,cntlid=1\n")).unwrap().instance.unwrap(), 7);
        assert!(ask(true, Ok("cntlid=1")).unwrap().instance.is_err());
        assert!(ask(true, Err(io::ErrorKind::Interrupted.into())).unwrap().instance.is_err());
        assert!(ask(false, Ok("instance=7")).is_err());
    }

    #[test]
    fn connect_options_are_formatted_for_kernel() {
        let [host, controller] = [(); 2].map(|()| AuthSecret::generate(AuthHash::Sha256).unwrap());
        let options = ControllerOptions {
            host_id: [0x12; 16],
            digests: Digests { header: true, data: false },
            secrets: Some(HostSecrets { host: host.clone(), controller: Some(controller.clone()) }),
            ..ControllerOptions::new("[::1]:4420", "nqn.x:data").with_host_nqn("nqn.x:host")
        };
        let text = connect_options(&options).unwrap();
        for part in [
            "transport=tcp,traddr=::1,trsvcid=4420,nqn=nqn.x:data,hostnqn=nqn.x:host,",
            "hostid=12121212-1212-1212-1212-121212121212,nr_io_queues=2,queue_size=128,",
            ",hdr_digest,",
            &format!(",dhchap_secret={},dhchap_ctrl_secret={}", host.reveal(), controller.reveal()),
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("data_digest"));
        let sly = ControllerOptions { subsystem_nqn: "nqn.x,hostnqn=nqn.y".into(), ..options.clone() };
        assert!(connect_options(&sly).is_err());
        assert!(connect_options(&ControllerOptions { address: "localhost".into(), ..options }).is_err());
    }

    #[test]
    fn connect_answer_names_controller() {
        assert_eq!(instance_in("instance=12,cntlid=1\n"), Some(12));
        assert_eq!(instance_in("cntlid=1,instance=0"), Some(0));
        for other in ["", "instance=", "instance=x,cntlid=1", "cntlid=1"] {
            assert_eq!(instance_in(other), None, "{other}");
        }
    }

    #[test]
    fn modelled_device_is_refused() {
        let device = DeviceSpec::new("d", None, 1 << 20, BackingSpec::Memory);
        let volumes = vec![VolumeSpec::new("data", StackNode::Device(device))];
        let refused = remotes(&StackSpec { volumes, dilation: 1.0, seed: 1 }).unwrap_err().to_string();
        assert!(refused.contains("'data'") && refused.contains(NAME), "{refused}");
        let remote = RemoteSpec::new("pool/data", "127.0.0.1:4420", "nqn.x:data", 1);
        let volumes = vec![VolumeSpec::new("data", StackNode::Remote(remote))];
        assert_eq!(remotes(&StackSpec { volumes, dilation: 1.0, seed: 1 }).unwrap().len(), 1);
    }

    #[test]
    fn missing_capability_has_a_remedy() {
        if let Err(missing) = KernelNvme.probe() {
            assert!(missing.remedy.len() > 10, "{missing}");
        }
    }
}
