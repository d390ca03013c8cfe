//! Its process: started on a storage, asked what it does, waited for until the store has everything.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_record::GatewayStatus;

use super::configuration::{ADDRESS, ADMIN, GatewayPlan, HOST, KEY_SECRET, STORE_SECRET, TOKEN, text};
use crate::ceph::S3Keys;
use crate::certificate::ServerCertificate;
use crate::child::ChildProcess;
use crate::credentials::random_password;
use crate::network_namespace::NetworkNamespace;
use crate::private_file::write_private;
use crate::system::{SystemError, SystemResources};
use crate::web::get_json_as;

const SETTINGS: &str = "gateway.toml";
const POLL: Duration = Duration::from_millis(50);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const END_LIMIT: Duration = Duration::from_secs(30);

/// A running gateway. Dropping it kills it.
pub(crate) struct GatewayProcess {
    system: &'static str,
    child: ChildProcess,
    namespace: Arc<NetworkNamespace>,
    token: String,
}

impl std::fmt::Debug for GatewayProcess {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("GatewayProcess").field("child", &self.child).finish_non_exhaustive()
    }
}

/// Draws the keys of a gateway's clients, before it runs.
pub(crate) fn draw_keys(system: &'static str) -> Result<S3Keys, SystemError> {
    let random = || {
        random_password()
            .map_err(|error| SystemError::starting(system, format!("there are no random numbers: {error}")))
    };
    Ok(S3Keys { access: format!("UNDERLAY{}", &random()?[..12]), secret: random()? })
}

/// A gateway's certificate for TLS, made in `folder` before it runs: they have to know whom to trust.
pub(crate) fn make_certificate(
    system: &'static str,
    folder: &Path,
) -> Result<ServerCertificate, SystemError> {
    let made = std::fs::create_dir_all(folder).and_then(|()| ServerCertificate::make(folder, HOST));
    made.map_err(|error| {
        SystemError::starting(system, format!("can't make a certificate in {}: {error}", folder.display()))
    })
}

impl GatewayProcess {
    /// Starts it in `namespace`, inside `resources`, for clients that have `keys`. When this returns, it serves.
    ///
    /// # Errors
    /// When it can't be started, or does not serve within `limit`.
    pub(crate) fn start(
        plan: &GatewayPlan,
        keys: &S3Keys,
        namespace: &Arc<NetworkNamespace>,
        resources: &SystemResources,
        limit: Duration,
    ) -> Result<GatewayProcess, SystemError> {
        let failed = |problem: String| SystemError::starting(plan.system, problem);
        let token =
            random_password().map_err(|error| failed(format!("there are no random numbers: {error}")))?;
        std::fs::create_dir_all(&plan.scratch)
            .map_err(|error| failed(format!("can't make {}: {error}", plan.scratch.display())))?;
        let configuration = plan.scratch.join(SETTINGS);
        let settings = text(plan, &keys.access, &plan.scratch);
        for (name, content) in [
            (KEY_SECRET, keys.secret.as_str()),
            (STORE_SECRET, plan.store.keys.secret.as_str()),
            (TOKEN, token.as_str()),
            (SETTINGS, settings.as_str()),
        ] {
            let path = plan.scratch.join(name);
            write_private(&path, content)
                .map_err(|error| failed(format!("can't write {}: {error}", path.display())))?;
        }
        let mut command = Command::new(&plan.program);
        command.arg("serve").arg(&configuration).current_dir(&plan.scratch);
        // No way leads from its network to a proxy of the host's.
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        namespace.enter(&mut command);
        let log = plan.scratch.join("gateway.log");
        let child = ChildProcess::spawn_as(plan.system, "the S3 gateway", command, &log, resources)?;
        let connects = || TcpStream::connect_timeout(&ADDRESS, CONNECT_LIMIT).is_ok();
        let gateway = GatewayProcess { system: plan.system, child, namespace: Arc::clone(namespace), token };
        // It listens before it has listed the bucket, and answers behind that.
        gateway.child.state().wait_until("starting", "serving", limit, POLL, &|| {
            Ok(namespace.within(connects).unwrap_or(false) && gateway.status("starting").is_ok())
        })?;
        Ok(gateway)
    }

    /// Its status and its totals.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn status(&self, during: &'static str) -> Result<GatewayStatus, SystemError> {
        get_json_as(&self.namespace, ADMIN, "/status", Some(&self.token)).map_err(|error| {
            let state = self.child.state();
            state.failed(during, format!("{} does not report its status: {error}", state.describe()))
        })
    }

    /// Waits until the store has everything that was acknowledged. `go_on` is asked in between.
    ///
    /// # Errors
    /// When it has ended, the run is stopped, or the store does not have everything after `limit`.
    pub(crate) fn drain(
        &self,
        during: &'static str,
        limit: Duration,
        go_on: &dyn Fn() -> Result<(), SystemError>,
    ) -> Result<GatewayStatus, SystemError> {
        let began = Instant::now();
        loop {
            self.check(during)?;
            let status = self.status(during)?;
            if status.pending_objects == 0 {
                return Ok(status);
            }
            go_on()?;
            if began.elapsed() > limit {
                let failure = status
                    .last_failure
                    .map_or_else(String::new, |(name, reason)| format!("; {name}: {reason}"));
                let problem = format!(
                    "after {:.0} s the store still lacks {} objects that the gateway has acknowledged{failure}",
                    limit.as_secs_f64(),
                    status.pending_objects
                );
                return Err(SystemError::failed(self.system, during, problem));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Fails with the end of its log if it has ended.
    pub(crate) fn check(&self, during: &'static str) -> Result<(), SystemError> {
        let state = self.child.state();
        if state.is_running() { Ok(()) } else { Err(state.failed(during, state.describe())) }
    }

    /// Kills it: what it has acknowledged is in its journal.
    pub(crate) fn kill(&self) {
        self.child.kill();
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// When it had to be killed, or its end was a failure.
    pub(crate) fn stop(self) -> Result<(), SystemError> {
        self.child.state().terminate();
        self.child.wait_for_end(END_LIMIT)
    }
}
