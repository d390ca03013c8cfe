//! Faults of a running storage, by the names of its devices.

use std::sync::atomic::{AtomicU64, Ordering};

use underlay_record::DisturbedBy;

use super::{Stack, StackDevice};
use crate::faults::{DeviceFault, DeviceFaults, FaultError, FaultId, FaultyDevice, PowerCut, WriteSurvival};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Stack {
    /// Puts a fault on a device by hand; a device may have several.
    ///
    /// # Errors
    /// When there is no such device, or the fault makes no sense for it.
    pub fn inject(&self, device: &str, fault: DeviceFault) -> Result<FaultId, FaultError> {
        self.inject_by(DisturbedBy::Hand, device, fault)
    }

    /// [`inject`](Stack::inject), and the record says who did it.
    ///
    /// # Errors
    /// As [`inject`](Stack::inject).
    pub fn inject_by(
        &self,
        origin: DisturbedBy,
        device: &str,
        fault: DeviceFault,
    ) -> Result<FaultId, FaultError> {
        let id = FaultId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        self.faulty(device)?.inject(id, fault, origin)?;
        Ok(id)
    }

    /// Takes off a fault whose time is over, wherever it is; false when it is gone already.
    pub fn clear_fault(&self, id: FaultId) -> bool {
        self.devices.iter().any(|device| device.faulty.clear(|candidate, _| candidate == id, None))
    }

    /// Takes all faults off a device. A device without power stays without.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn clear_faults(&self, device: &str) -> Result<(), FaultError> {
        self.clear_faults_by(DisturbedBy::Hand, device)
    }

    /// [`clear_faults`](Stack::clear_faults), and the record says who did it.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn clear_faults_by(&self, origin: DisturbedBy, device: &str) -> Result<(), FaultError> {
        self.faulty(device)?.clear(|_, _| true, Some(origin));
        Ok(())
    }

    pub fn clear_all_faults(&self) {
        self.clear_all_faults_by(DisturbedBy::Hand);
    }

    /// [`clear_all_faults`](Stack::clear_all_faults), and the record says who did it.
    pub fn clear_all_faults_by(&self, origin: DisturbedBy) {
        for device in &self.devices {
            device.faulty.clear(|_, _| true, Some(origin));
        }
    }

    /// A vanished device is there again, with what it held. False when it was never gone.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn bring_back(&self, device: &str) -> Result<bool, FaultError> {
        let origin = Some(DisturbedBy::Hand);
        Ok(self.faulty(device)?.clear(|_, fault| *fault == DeviceFault::Vanish, origin))
    }

    /// Every device in order, with what is wrong with it.
    pub fn faults(&self) -> Vec<DeviceFaults> {
        let describe = |device: &StackDevice| device.faulty.describe(device.description.medium.clone());
        let remotes = self.remotes.iter().map(|remote| remote.faults());
        self.devices.iter().map(describe).chain(remotes).collect()
    }

    /// Cuts the power of these devices in one instant, of all when none is named: requests in flight fail, and so do
    /// all later ones until [`Stack::restore_power`].
    ///
    /// # Errors
    /// When one of them does not exist, is not armed or has no power: then nothing has happened. When a backing
    /// fails: then the power is off.
    pub fn cut_power(&self, devices: &[&str], cut: PowerCut) -> Result<WriteSurvival, FaultError> {
        self.cut_power_by(DisturbedBy::Hand, devices, cut)
    }

    /// [`cut_power`](Stack::cut_power), and the record says who did it.
    ///
    /// # Errors
    /// As [`cut_power`](Stack::cut_power).
    pub fn cut_power_by(
        &self,
        origin: DisturbedBy,
        devices: &[&str],
        cut: PowerCut,
    ) -> Result<WriteSurvival, FaultError> {
        for name in devices {
            self.faulty(name)?;
        }
        if let (true, Some(remote)) = (devices.is_empty(), self.remotes.first()) {
            return Err(FaultError::Elsewhere { device: remote.name().to_owned() });
        }
        // In the stack's order and each once: a cut holds all of them at the same time, and others may be cutting.
        let is_named = |device: &&StackDevice| devices.is_empty() || devices.contains(&device.faulty.name());
        let named: Vec<&FaultyDevice> =
            self.devices.iter().filter(is_named).map(|device| &device.faulty).collect();
        let survival = FaultyDevice::cut_power(&named, cut, origin);
        if !matches!(survival, Err(FaultError::NotArmed { .. } | FaultError::NoPower { .. })) {
            self.mirrors.iter().for_each(|mirror| mirror.check_members());
        }
        survival
    }

    /// Whether the power may come back while the stack runs. A layer keeps in memory what it knows of its devices, and
    /// a power cut takes that too: such a stack is to be opened again. A mirror lives on when it lost one member only.
    ///
    /// # Errors
    /// When the layers are past going on.
    pub fn check_restart(&self) -> Result<(), FaultError> {
        let dark = self.devices.iter().filter(|device| !device.faulty.has_power()).count();
        let mut kinds: Vec<String> = self.layers().into_iter().map(|layer| layer.kind).collect();
        // The way to a device that is elsewhere keeps nothing of what was written.
        kinds.retain(|kind| kind != "remote");
        kinds.dedup();
        if kinds.is_empty()
            || (dark <= 1 && self.devices.len() > 1 && kinds.iter().all(|kind| kind == "mirror"))
        {
            return Ok(());
        }
        Err(FaultError::LayersLost { layers: kinds })
    }

    /// The power comes back, everywhere; how many devices were without. None does where [`Stack::check_restart`]
    /// refuses it.
    pub fn restore_power(&self) -> usize {
        self.restore_power_by(DisturbedBy::Hand)
    }

    /// [`restore_power`](Stack::restore_power), and the record says who did it.
    pub fn restore_power_by(&self, origin: DisturbedBy) -> usize {
        if self.check_restart().is_err() {
            return 0;
        }
        self.devices.iter().filter(|device| device.faulty.restore_power(origin)).count()
    }

    fn faulty(&self, name: &str) -> Result<&FaultyDevice, FaultError> {
        if self.remotes.iter().any(|remote| remote.name() == name) {
            return Err(FaultError::Elsewhere { device: name.to_owned() });
        }
        let found = self.devices.iter().find(|device| device.faulty.name() == name);
        found.map(|device| &device.faulty).ok_or_else(|| FaultError::UnknownDevice {
            name: name.to_owned(),
            known: self.devices.iter().map(|device| device.faulty.name().to_owned()).collect(),
        })
    }
}
