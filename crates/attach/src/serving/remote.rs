//! Devices that another program serves over NVMe/TCP, reached by our own initiator. The device daemon offers them to
//! the kernel just like modelled ones, so that no host needs the kernel's own initiator.

use std::sync::Arc;
use std::time::Duration;

use underlay_nvme::auth::{HostSecrets, read_secrets};
use underlay_nvme::initiator::{ControllerOptions, InitiatorError, NvmeController};
use underlay_nvme::pdu::Digests;
use underlay_storage::contents::{self, DeviceContents};
use underlay_storage::stack::{LayerMetric, OpenedRemote, RemoteConnection, RemoteOpener, RemoteSpec};

/// Connects by NVMe/TCP.
pub struct NvmeTcp;

impl RemoteOpener for NvmeTcp {
    fn open(&self, remote: &RemoteSpec) -> Result<OpenedRemote, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let options = options(remote, variable)?;
        let describe = |error: InitiatorError| error.to_string();
        let controller = NvmeController::connect(options).map_err(describe)?;
        let device = controller.namespace(remote.nsid).map_err(describe)?;
        if remote.must_be_blank {
            // First of all, so that nothing is written after the check. A target that refuses this refuses our writes
            // as well, or does not support it.
            let _ = device.reserve();
            let existing = contents::inspect_device(&device).map_err(|error| error.to_string())?;
            check_blank(remote, existing.as_ref())?;
        }
        Ok(OpenedRemote { device: Arc::new(device), connection: Arc::new(MeasuredConnection(controller)) })
    }
}

/// Refuses a device that holds something.
pub(crate) fn check_blank(remote: &RemoteSpec, existing: Option<&DeviceContents>) -> Result<(), String> {
    match existing {
        None => Ok(()),
        Some(existing) => Err(format!(
            "{} was blank a moment ago and now holds {}: another host has written to it, or its server has restored it. Nothing has \
             changed. Find out which, then mount again",
            remote.name,
            existing.describe()
        )),
    }
}

/// A spec's options, with the secrets that it names; `variable` reads the environment.
pub(crate) fn options(
    remote: &RemoteSpec,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ControllerOptions, String> {
    let mut options = ControllerOptions::new(&remote.address, &remote.subsystem_nqn);
    if let Some(host_nqn) = &remote.host_nqn {
        options = options.with_host_nqn(host_nqn);
    }
    let secrets = read_secrets(&remote.secrets, variable).map_err(|error| error.to_string())?;
    let secrets = secrets.map(|(host, controller)| HostSecrets { host, controller });
    Ok(ControllerOptions {
        queues: remote.queues,
        queue_depth: remote.queue_depth,
        digests: Digests { header: remote.header_digest, data: remote.data_digest },
        loss_timeout: Duration::from_secs(u64::from(remote.loss_timeout_s)),
        secrets,
        ..options
    })
}

struct MeasuredConnection(NvmeController);

impl RemoteConnection for MeasuredConnection {
    fn begin_measurement(&self) {
        self.0.reset_latencies();
    }

    fn figures(&self) -> Vec<LayerMetric> {
        let found = self.0.figures();
        let count = |name, value| LayerMetric { name, value, counts: true };
        let level = |name, value| LayerMetric { name, value, counts: false };
        vec![
            count("requests", found.requests),
            count("read_bytes", found.read_bytes),
            count("written_bytes", found.written_bytes),
            count("reconnects", found.reconnects),
            count("resent", found.resent),
            level("io_queues", self.0.io_queues() as u64),
            level("command_mean_ns", found.command.mean_ns),
            level("command_p50_ns", found.command.p50_ns),
            level("command_p99_ns", found.command.p99_ns),
            level("command_p999_ns", found.command.p999_ns),
            level("network_count", found.network.count),
            level("network_mean_ns", found.network.mean_ns),
            level("network_p50_ns", found.network.p50_ns),
            level("network_p99_ns", found.network.p99_ns),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use underlay_nvme::auth::{AuthHash, AuthSecret};
    use underlay_storage::stack::SecretPlaces;

    use super::*;

    fn spec() -> RemoteSpec {
        RemoteSpec::new("pool/data", "127.0.0.1:4420", "nqn.2026-01.org.example:data", 1)
    }

    fn with_secrets(secrets: SecretPlaces) -> RemoteSpec {
        RemoteSpec { secrets, ..spec() }
    }

    #[test]
    fn secrets_come_from_files_that_nobody_else_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let [host, controller] = [(); 2].map(|()| AuthSecret::generate(AuthHash::Sha256).unwrap());
        let place = |name: &str, secret: &AuthSecret| {
            let file = folder.path().join(name);
            std::fs::write(&file, secret.reveal() + "\n").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            Some(file)
        };
        let spec = with_secrets(SecretPlaces {
            secret_file: place("host", &host),
            controller_secret_file: place("controller", &controller),
            ..SecretPlaces::default()
        });
        let found = options(&spec, |_| None).unwrap().secrets.unwrap();
        assert_eq!((found.host, found.controller), (host, Some(controller)));
        let file = folder.path().join("controller");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = options(&spec, |_| None).unwrap_err();
        assert!(refused.contains(file.to_str().unwrap()) && refused.contains("chmod 600"), "{refused}");
        std::fs::remove_file(&file).unwrap();
        assert!(options(&spec, |_| None).unwrap_err().contains(file.to_str().unwrap()));
    }

    #[test]
    fn missing_secret_variable_is_named() {
        let secret = AuthSecret::generate(AuthHash::Sha256).unwrap();
        let with_secret =
            with_secrets(SecretPlaces { secret_env: Some("HOST_SECRET".into()), ..SecretPlaces::default() });
        let found = options(&with_secret, |name| (name == "HOST_SECRET").then(|| secret.reveal())).unwrap();
        assert_eq!(found.secrets.unwrap().host, secret);
        let refused = options(&with_secret, |_| None).unwrap_err();
        assert!(refused.contains("HOST_SECRET") && refused.contains("not set"), "{refused}");
        let refused = options(&with_secret, |_| Some("DHHC-1:01:abc:".into())).unwrap_err();
        assert!(refused.contains("HOST_SECRET") && !refused.contains("abc"), "{refused}");
        let alone = with_secrets(SecretPlaces {
            controller_secret_env: Some("CONTROLLER".into()),
            ..SecretPlaces::default()
        });
        assert!(options(&alone, |_| Some(secret.reveal())).unwrap_err().contains("no host's"));
    }

    #[test]
    fn remote_spec_becomes_options() {
        let spec = RemoteSpec {
            host_nqn: Some("nqn.2026-01.org.example:host".into()),
            queues: 3,
            header_digest: true,
            loss_timeout_s: 7,
            ..spec()
        };
        let found = options(&spec, |_| None).unwrap();
        assert_eq!((found.host_nqn.as_str(), found.queues), ("nqn.2026-01.org.example:host", 3));
        assert_eq!(found.digests, Digests { header: true, data: false });
        assert_eq!(found.loss_timeout, Duration::from_secs(7));
        assert!(found.secrets.is_none());
    }
}
