//! The power of a pool's modelled devices, one at a time: all of them at once would take the server's memory with them.

use underlay_storage::faults::{DeviceFault, FaultError, PowerCut, WriteSurvival};

use super::OpenPool;
use crate::pool::MemberState;
use crate::server::error::ServerError;

impl OpenPool {
    /// A device that has vanished is there again with what it held, and one without power has it again. Other faults
    /// stay.
    pub(in crate::server) fn bring_back(&self, device: &str) -> Result<(), ServerError> {
        let (stack, faults) = self.modelled()?;
        let _one_at_a_time = self.faulting.lock();
        faults.bring_back(stack, device)?;
        if stack.faults().iter().any(|one| one.device == device && !one.powered) {
            // It was left out when it lost its power, and so is its copy of the journal after this. Another device that
            // fails meanwhile must not keep it dark.
            self.pool.check_journal();
            let _ = self.pool.flush();
            stack.restore_power();
        }
        Ok(())
    }

    /// Cuts the power of one device: what it has not made durable may be lost, and the pool goes on with the other
    /// copies.
    pub(in crate::server) fn cut_power(
        &self,
        device: &str,
        cut: PowerCut,
    ) -> Result<WriteSurvival, ServerError> {
        let (stack, _) = self.modelled()?;
        let _one_at_a_time = self.faulting.lock();
        let member = self.check_can_lose(device)?;
        // Before anything is lost: if this process is killed, the next one that opens the pool must not find the
        // device in use.
        if !self.pool.leave_out(member) {
            return Err(not_now(device, "the pool could not record that it goes on without it"));
        }
        let survival = stack.cut_power(&[device], cut);
        // Even if that failed. Requests that were in flight have failed there and are answered by the others.
        self.pool.check_journal();
        let _ = self.pool.flush();
        survival.map_err(|error| {
            ServerError::Failed(format!(
                "{error}. The pool has left {device} out: bring it back, then resync it"
            ))
        })
    }

    /// A pool outlives what a device forgets where the others have all of it. The number of the device.
    pub(in crate::server) fn check_can_lose(&self, device: &str) -> Result<usize, ServerError> {
        let refused = |problem: String| Err(not_now(device, &problem));
        let faults = self.modelled()?.0.faults();
        let Some(number) = faults.iter().position(|one| one.device == device) else {
            let names = faults.into_iter().map(|one| one.device).collect();
            let unknown = FaultError::UnknownDevice { name: device.to_owned(), known: names };
            return Err(ServerError::Mistake(unknown.to_string()));
        };
        if !faults[number].power_cut_armed {
            return Err(ServerError::Mistake(format!(
                "{device} is not armed for power cuts: write `power_cut = true` into the pool's file, so that the old data \
                 under unflushed writes is kept"
            )));
        }
        let mut members = self.members.iter().zip(self.pool.info().members);
        let lacking = members.find(|(_, member)| member.state != MemberState::InUse);
        if let Some((other, member)) = lacking {
            return refused(format!(
                "{other} is {}, and no other device may be cut off until it is back",
                member.state.describe()
            ));
        }
        if let Some(dark) = faults.iter().find(|one| !one.powered) {
            return refused(format!(
                "{} has no power, and no other device may be cut off until it is back",
                dark.device
            ));
        }
        // One that nobody has asked since it was unplugged is in use still, and one that lies has less than the pool
        // believes.
        let is_harmless =
            |fault: &DeviceFault| matches!(fault, DeviceFault::Slow { .. } | DeviceFault::Spikes { .. });
        let mut others = faults.iter().enumerate().filter(|(other, _)| *other != number);
        if let Some((_, faulty)) =
            others.find(|(_, one)| one.faults.iter().any(|active| !is_harmless(&active.fault)))
        {
            return refused(format!("{} has a fault that can lose data: clear it first", faulty.device));
        }
        if !self.pool.journal_is_whole() {
            return refused("its journal has only one copy: bring its devices up to date first".to_owned());
        }
        match self.pool.list().into_iter().find(|volume| !volume.mirror || volume.degraded) {
            Some(volume) if volume.mirror => refused(format!(
                "part of volume '{}' has only one copy: bring its devices up to date first, or delete its snapshots if that changes nothing",
                volume.name
            )),
            Some(volume) => refused(format!(
                "volume '{}' is not mirrored, and its hosts would not learn of their losses",
                volume.name
            )),
            None => Ok(number),
        }
    }
}

fn not_now(device: &str, problem: &str) -> ServerError {
    ServerError::Mistake(format!("the power of {device} can't be cut while the pool is served: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::modelled;
    use super::*;
    use crate::pool::{VolumeHandle, VolumeSpec};
    use crate::pool_file::VolumeFile;
    use underlay_storage::device::{BlockDevice as _, DeviceRequest};

    const CUT: PowerCut = PowerCut { seed: 1, torn: true, reordered: true };

    fn volume(pool: &OpenPool, name: &str, mirror: bool) -> VolumeHandle {
        let spec = VolumeSpec { mirror, ..VolumeSpec::new(4 << 20) };
        pool.create(&VolumeFile { name: name.into(), spec, admission: Default::default() }).unwrap()
    }

    fn states(pool: &OpenPool) -> Vec<MemberState> {
        pool.state().members.iter().map(|member| member.state).collect()
    }

    #[test]
    fn device_after_power_loss_is_out_until_resynced() {
        let folder = tempfile::tempdir().unwrap();
        let pool = OpenPool::open(&modelled(folder.path())).unwrap();
        let [one, other] = ["ssd-sata.0", "ssd-sata.1"];
        let data = volume(&pool, "data", true);
        let write = |byte: u8| {
            let request = DeviceRequest::Write { offset_bytes: 0, data: vec![byte; 8192], fua: false };
            data.execute(request).unwrap();
        };
        let read = || data.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 8192] }).unwrap();
        write(7);
        pool.pool.flush().unwrap();
        write(8);
        pool.cut_power(other, CUT).unwrap();
        assert_eq!((read(), states(&pool)), (vec![8; 8192], vec![MemberState::InUse, MemberState::Out]));
        let refused = |device: &str| pool.cut_power(device, CUT).unwrap_err();
        assert!(refused(one).is_mistake() && refused(one).to_string().contains("ssd-sata.1 is out of use"));
        // With power it still lacks what was written without it.
        pool.bring_back(other).unwrap();
        assert!(pool.faults().unwrap()[1].powered && states(&pool)[1] == MemberState::Out);
        write(9);
        pool.resync(other).unwrap();
        assert_eq!(states(&pool), [MemberState::InUse; 2]);
        pool.cut_power(one, CUT).unwrap();
        assert_eq!(read(), vec![9; 8192]);
    }

    #[test]
    fn device_cut_off_without_writes_is_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = modelled(folder.path());
        let pool = OpenPool::open(&file).unwrap();
        let (data, cut_off) = (volume(&pool, "data", true), "ssd-sata.1");
        let request = DeviceRequest::Write { offset_bytes: 0, data: vec![2; 8192], fua: false };
        data.execute(request).unwrap();
        // Nothing is left that a flush would ask the device for.
        pool.pool.flush().unwrap();
        pool.cut_power(cut_off, CUT).unwrap();
        assert_eq!(states(&pool), [MemberState::InUse, MemberState::Out]);
        // Another one that fails meanwhile keeps nobody in the dark.
        pool.inject("ssd-sata.0", DeviceFault::Vanish).unwrap();
        pool.bring_back(cut_off).unwrap();
        assert!(pool.faults().unwrap()[1].powered);
        pool.bring_back("ssd-sata.0").unwrap();
        assert_eq!(states(&pool)[1], MemberState::Out, "what it may have lost, it still lacks");
        // Closing forgets nothing of it.
        drop((data, pool));
        let pool = OpenPool::open(&file).unwrap();
        assert_eq!(states(&pool)[1], MemberState::Out);
        let data = pool.volume("data").unwrap();
        let read = || data.execute(DeviceRequest::Read { offset_bytes: 0, buffer: vec![0; 8192] }).unwrap();
        assert!((0..20).all(|_| read() == vec![2; 8192]));
    }

    #[test]
    fn pool_device_never_ignores_flushes() {
        let folder = tempfile::tempdir().unwrap();
        let pool = OpenPool::open(&modelled(folder.path())).unwrap();
        let refused = pool.inject("ssd-sata.1", DeviceFault::IgnoreFlushes).unwrap_err();
        assert!(refused.is_mistake() && refused.to_string().contains("belongs to a pool"), "{refused}");
    }

    #[test]
    fn power_cut_is_refused_while_another_device_is_down() {
        let folder = tempfile::tempdir().unwrap();
        let pool = OpenPool::open(&modelled(folder.path())).unwrap();
        let data = volume(&pool, "data", true);
        let request = DeviceRequest::Write { offset_bytes: 0, data: vec![1; 8192], fua: false };
        data.execute(request).unwrap();
        // Nobody has asked it since.
        pool.inject("ssd-sata.0", DeviceFault::Vanish).unwrap();
        let problem = pool.cut_power("ssd-sata.1", CUT).unwrap_err().to_string();
        assert!(problem.contains("ssd-sata.0 has a fault"), "{problem}");
        assert!(pool.faults().unwrap()[1].powered);
        assert_eq!(states(&pool), [MemberState::InUse; 2]);
    }

    #[test]
    fn power_cut_is_refused_without_second_copy() {
        let folder = tempfile::tempdir().unwrap();
        let pool = OpenPool::open(&modelled(folder.path())).unwrap();
        drop(volume(&pool, "once", false));
        let problem = pool.cut_power("ssd-sata.0", CUT).unwrap_err().to_string();
        assert!(problem.contains("volume 'once' is not mirrored"), "{problem}");
        pool.delete("once").unwrap();
        assert!(pool.cut_power("ssd-sata.7", CUT).unwrap_err().is_mistake());
        pool.cut_power("ssd-sata.0", CUT).unwrap();
        // Nothing was lost, and a second one may not go all the same.
        let problem = pool.cut_power("ssd-sata.1", CUT).unwrap_err().to_string();
        assert!(problem.contains("ssd-sata.0 "), "{problem}");
    }

    #[test]
    fn restored_device_keeps_other_faults() {
        let folder = tempfile::tempdir().unwrap();
        let file = modelled(folder.path());
        let pool = OpenPool::open(&file).unwrap();
        let device = "ssd-sata.1";
        pool.inject(device, DeviceFault::Slow { factor: 2.0 }).unwrap();
        pool.inject(device, DeviceFault::Vanish).unwrap();
        pool.bring_back(device).unwrap();
        let left = |pool: &OpenPool| -> Vec<DeviceFault> {
            let faults = pool.faults().unwrap().swap_remove(1).faults;
            faults.into_iter().map(|active| active.fault).collect()
        };
        assert_eq!(left(&pool), [DeviceFault::Slow { factor: 2.0 }]);
        drop(pool);
        assert_eq!(left(&OpenPool::open(&file).unwrap()), [DeviceFault::Slow { factor: 2.0 }]);
    }

    #[test]
    fn unarmed_pool_explains_arming() {
        let folder = tempfile::tempdir().unwrap();
        let file = crate::pool_file::PoolFile { power_cut: false, ..modelled(folder.path()) };
        let pool = OpenPool::open(&file).unwrap();
        let problem = pool.cut_power("ssd-sata.0", CUT).unwrap_err().to_string();
        assert!(problem.contains("power_cut = true"), "{problem}");
    }
}
