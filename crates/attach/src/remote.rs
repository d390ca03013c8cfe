//! Devices that another program serves by NVMe/TCP, reached by our own initiator: the device daemon gives them to
//! the kernel as it gives it modelled ones, so that no host needs the kernel's own.

use std::sync::Arc;
use std::time::Duration;

use underlay_nvme::auth::{HostSecrets, Secret};
use underlay_nvme::initiator::{Controller, InitiatorError, Options};
use underlay_nvme::pdu::Digests;
use underlay_storage::stack::{Figure, OpenedRemote, Opener, RemoteSpec, Way};

/// Connects by NVMe/TCP.
pub struct NvmeTcp;

impl Opener for NvmeTcp {
    fn open(&self, remote: &RemoteSpec) -> Result<OpenedRemote, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let options = options(remote, variable)?;
        let said = |error: InitiatorError| error.to_string();
        let controller = Controller::connect(options).map_err(said)?;
        let device = controller.namespace(remote.nsid).map_err(said)?;
        Ok(OpenedRemote { device: Arc::new(device), way: Arc::new(Connection(controller)) })
    }
}

/// What a spec says, with the secrets that `variable` finds in the environment.
pub(crate) fn options(
    remote: &RemoteSpec,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Options, String> {
    let mut options = Options::new(&remote.address, &remote.subsystem_nqn);
    if let Some(host_nqn) = &remote.host_nqn {
        options = options.with_host_nqn(host_nqn);
    }
    let secret = |name: &Option<String>| -> Result<Option<Secret>, String> {
        let Some(name) = name else { return Ok(None) };
        let text = variable(name).ok_or_else(|| {
            format!("the environment variable {name}, which holds a secret for DH-HMAC-CHAP, is not set")
        })?;
        Secret::parse(&text).map(Some).map_err(|error| format!("the environment variable {name}: {error}"))
    };
    let secrets = match (secret(&remote.secret_env)?, secret(&remote.controller_secret_env)?) {
        (Some(host), controller) => Some(HostSecrets { host, controller }),
        (None, None) => None,
        (None, Some(_)) => {
            return Err(
                "it has a controller's secret and no host's: a controller proves itself only to a host \
                        that does"
                    .into(),
            );
        }
    };
    Ok(Options {
        queues: remote.queues,
        queue_depth: remote.queue_depth,
        digests: Digests { header: remote.header_digest, data: remote.data_digest },
        loss_timeout: Duration::from_secs(u64::from(remote.loss_timeout_s)),
        secrets,
        ..options
    })
}

struct Connection(Controller);

impl Way for Connection {
    fn begin_measurement(&self) {
        self.0.reset_latencies();
    }

    fn figures(&self) -> Vec<Figure> {
        let found = self.0.figures();
        let count = |name, value| Figure { name, value, counts: true };
        let level = |name, value| Figure { name, value, counts: false };
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
    use underlay_nvme::auth::Hash;

    use super::*;

    fn spec() -> RemoteSpec {
        RemoteSpec::new("pool/data", "127.0.0.1:4420", "nqn.2026-01.org.example:data", 1)
    }

    #[test]
    fn secrets_come_from_the_environment_and_a_missing_one_is_named() {
        let secret = Secret::generate(Hash::Sha256).unwrap();
        let with_secret = RemoteSpec { secret_env: Some("HOST_SECRET".into()), ..spec() };
        let found = options(&with_secret, |name| (name == "HOST_SECRET").then(|| secret.reveal())).unwrap();
        assert_eq!(found.secrets.unwrap().host, secret);
        let refused = options(&with_secret, |_| None).unwrap_err();
        assert!(refused.contains("HOST_SECRET") && refused.contains("not set"), "{refused}");
        let refused = options(&with_secret, |_| Some("DHHC-1:01:abc:".into())).unwrap_err();
        assert!(refused.contains("HOST_SECRET") && !refused.contains("abc"), "{refused}");
        let alone = RemoteSpec { controller_secret_env: Some("CONTROLLER".into()), ..spec() };
        assert!(options(&alone, |_| Some(secret.reveal())).unwrap_err().contains("no host's"));
    }

    #[test]
    fn a_spec_becomes_options() {
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
