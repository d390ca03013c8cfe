//! Faults of a pool's modelled devices, kept in the pool's directory: a device that has vanished doesn't come back
//! because the server was started anew.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use underlay_storage::faults::{DeviceFault, FaultError};
use underlay_storage::stack::Stack;
use underlay_sync::Mutex;

use super::error::ServerError;
use super::whole_file;

const FILE: &str = "faults.json";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFault {
    device: String,
    fault: DeviceFault,
}

/// What is wrong with the devices, as the file has it.
pub(super) struct KnownFaults {
    path: PathBuf,
    known: Mutex<Vec<KnownFault>>,
}

impl KnownFaults {
    /// Puts what the file says on the devices, before anything is read from them.
    pub(super) fn open(directory: &Path, stack: &Stack) -> Result<KnownFaults, ServerError> {
        let path = directory.join(FILE);
        let no_sense = |problem: String| {
            let path = path.display();
            ServerError::Failed(format!("{path} is not valid ({problem}): remove it to start without faults"))
        };
        let faults: Vec<KnownFault> = match whole_file::read(&path) {
            Ok(Some(text)) => serde_json::from_slice(&text).map_err(|error| no_sense(error.to_string()))?,
            Ok(None) => Vec::new(),
            Err(error) => return Err(ServerError::io("read", path, error)),
        };
        for one in &faults {
            stack.inject(&one.device, one.fault.clone()).map_err(|error| no_sense(error.to_string()))?;
        }
        Ok(KnownFaults { path, known: Mutex::new(faults) })
    }

    /// How to be rid of them where no server runs that could be asked; nothing where there are none.
    pub(super) fn remedy(&self) -> Option<String> {
        let path = self.path.display();
        let is_any = !self.known.lock().is_empty();
        is_any.then(|| format!("{path} has faults for modelled devices: remove it to start without them"))
    }

    pub(super) fn inject(&self, stack: &Stack, device: &str, fault: DeviceFault) -> Result<(), ServerError> {
        let mut faults = self.known.lock();
        stack.inject(device, fault.clone()).map_err(mistake)?;
        faults.push(KnownFault { device: device.to_owned(), fault });
        self.write(&faults)
    }

    /// Of one device, or of all.
    pub(super) fn clear(&self, stack: &Stack, device: Option<&str>) -> Result<(), ServerError> {
        let mut faults = self.known.lock();
        match device {
            Some(device) => stack.clear_faults(device).map_err(mistake)?,
            None => stack.clear_all_faults(),
        }
        faults.retain(|one| device.is_some_and(|device| one.device != device));
        self.write(&faults)
    }

    /// Takes off only that it has vanished.
    pub(super) fn bring_back(&self, stack: &Stack, device: &str) -> Result<(), ServerError> {
        let mut faults = self.known.lock();
        stack.bring_back(device).map_err(mistake)?;
        faults.retain(|one| one.device != device || one.fault != DeviceFault::Vanish);
        self.write(&faults)
    }

    fn write(&self, faults: &[KnownFault]) -> Result<(), ServerError> {
        let text =
            serde_json::to_vec_pretty(faults).map_err(|error| ServerError::Failed(error.to_string()))?;
        whole_file::replace(&self.path, &text).map_err(|error| ServerError::io("write", &self.path, error))
    }
}

fn mistake(error: FaultError) -> ServerError {
    ServerError::Mistake(error.to_string())
}
