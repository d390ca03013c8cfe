//! A volume server as a process, which ends with its test, even if that fails.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use underlay_nvme::initiator::{ControllerOptions, NvmeController, RemoteDevice};

use super::Playground;

pub(crate) struct VolumeServer {
    child: Child,
    pub address: String,
    /// What it said when it began to serve.
    pub said: serde_json::Value,
}

impl VolumeServer {
    /// Serves `pool.toml` of the playground and waits until it does.
    pub(crate) fn start(playground: &Playground, more: &[&str]) -> VolumeServer {
        VolumeServer::start_with(playground, more, &[])
    }

    pub(crate) fn start_with(
        playground: &Playground,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> VolumeServer {
        let arguments = [&["volume", "serve", "pool.toml", "--json"], more].concat();
        let mut command = playground.underlay(&arguments);
        let log = playground.path("server.log");
        let errors = std::fs::File::create(&log).unwrap();
        command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| {
            let _ = child.kill();
            let log_text = std::fs::read_to_string(&log).unwrap_or_default();
            panic!("it did not serve ({error}): {line:?}, {log_text}, {:?}", child.wait())
        });
        let address = announced["address"].as_str().unwrap().to_owned();
        VolumeServer { child, address, said: announced }
    }

    pub(crate) fn nqn(&self, volume: &str) -> String {
        let volumes = self.said["volumes"].as_array().unwrap();
        let found = volumes.iter().find(|one| one["name"] == volume).unwrap_or_else(|| panic!("no {volume}"));
        found["nqn"].as_str().unwrap().to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Connects to a volume, once: a lost connection is not looked for.
    pub(crate) fn connect(&self, nqn: &str) -> (NvmeController, RemoteDevice) {
        let options = ControllerOptions {
            loss_timeout: Duration::from_millis(1),
            ..ControllerOptions::new(&self.address, nqn)
        };
        let controller = NvmeController::connect(options).unwrap();
        let device = controller.namespace(1).unwrap();
        (controller, device)
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and what it ended with.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        self.child.wait().unwrap().code()
    }
}

impl Drop for VolumeServer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
