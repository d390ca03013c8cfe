//! The power of a pool's modelled devices, one at a time: all of them at once would take the server's memory with them.

use underlay_storage::faults::{FaultError, PowerCut, Survival};
use underlay_storage::stack::Stack;

use super::OpenPool;
use crate::pool::{MemberState, PoolError};
use crate::server::error::ServerError;

impl OpenPool {
    /// A device that has vanished is there again with what it held, and one without power has it again. Other faults stay.
    pub(in crate::server) fn bring_back(&self, device: &str) -> Result<(), ServerError> {
        let (stack, faults) = self.modelled()?;
        faults.bring_back(stack, device)?;
        if stack.faults().iter().any(|one| one.device == device && !one.powered) {
            // While the pool takes what the device has lost for written, it stays dark: this has it left out.
            self.pool.flush().map_err(PoolError::Device)?;
            stack.restore_power();
        }
        Ok(())
    }

    /// Cuts the power of one device: what it has not made durable may be lost, and the pool goes on with the other copies.
    pub(in crate::server) fn cut_power(&self, device: &str, cut: PowerCut) -> Result<Survival, ServerError> {
        let (stack, _) = self.modelled()?;
        self.check_can_lose(device)?;
        let survival = stack.cut_power(&[device], cut).map_err(|error| match error {
            FaultError::NotArmed { device } => ServerError::Mistake(format!(
                "{device} is not armed for power cuts: write `power_cut = true` into the pool's file, so that what it needs to lose \
                 writes is kept from the start"
            )),
            other => ServerError::Mistake(other.to_string()),
        })?;
        // Whatever the device had to make durable it fails now, and is left out for it, before anybody could bring it back.
        let _ = self.pool.flush();
        Ok(survival)
    }

    /// A pool outlives what a device forgets where the others have all of it.
    fn check_can_lose(&self, device: &str) -> Result<(), ServerError> {
        let refused = |problem: String| {
            Err(ServerError::Mistake(format!(
                "the power of {device} can't be cut while the pool is served: {problem}"
            )))
        };
        let mut members = self.members.iter().zip(self.pool.info().members);
        let lacking = members.find(|(_, member)| member.state != MemberState::InUse);
        if let Some((other, member)) = lacking {
            return refused(format!(
                "{other} is {}, and nothing else may go before it is back",
                member.state.in_words()
            ));
        }
        let dark = self.stack.iter().flat_map(Stack::faults).find(|one| !one.powered);
        if let Some(dark) = dark {
            return refused(format!(
                "{} has no power, and nothing else may go before it is back",
                dark.device
            ));
        }
        match self.pool.list().into_iter().find(|volume| !volume.mirror || volume.degraded) {
            Some(volume) if volume.mirror => refused(format!(
                "some of volume '{}' has one copy: bring its devices up to date first",
                volume.name
            )),
            Some(volume) => refused(format!(
                "volume '{}' is not mirrored, and its hosts could not know what is lost of it",
                volume.name
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use underlay_storage::device::{BlockDevice as _, Request};
    use underlay_storage::faults::Fault;

    use super::super::tests::modelled;
    use super::*;
    use crate::pool::{Volume, VolumeSpec};
    use crate::pool_file::VolumeFile;

    const CUT: PowerCut = PowerCut { seed: 1, torn: true, reordered: true };

    fn volume(pool: &OpenPool, name: &str, mirror: bool) -> Volume {
        let spec = VolumeSpec { mirror, ..VolumeSpec::new(4 << 20) };
        pool.create(&VolumeFile { name: name.into(), spec, admission: Default::default() }).unwrap()
    }

    fn states(pool: &OpenPool) -> Vec<MemberState> {
        pool.state().members.iter().map(|member| member.state).collect()
    }

    #[test]
    fn a_device_that_loses_its_power_is_out_until_it_has_all_again() {
        let folder = tempfile::tempdir().unwrap();
        let pool = OpenPool::open(&modelled(folder.path())).unwrap();
        let [one, other] = ["ssd-sata.0", "ssd-sata.1"];
        let data = volume(&pool, "data", true);
        let write = |byte: u8| {
            let request = Request::Write { offset_bytes: 0, data: vec![byte; 8192], fua: false };
            data.execute(request).unwrap();
        };
        let read = || data.execute(Request::Read { offset_bytes: 0, buffer: vec![0; 8192] }).unwrap();
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
    fn where_something_is_there_once_no_power_is_cut() {
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
    fn a_device_that_is_brought_back_keeps_its_other_faults() {
        let folder = tempfile::tempdir().unwrap();
        let file = modelled(folder.path());
        let pool = OpenPool::open(&file).unwrap();
        let device = "ssd-sata.1";
        pool.inject(device, Fault::Slow { factor: 2.0 }).unwrap();
        pool.inject(device, Fault::Vanish).unwrap();
        pool.bring_back(device).unwrap();
        let left = |pool: &OpenPool| -> Vec<Fault> {
            let faults = pool.faults().unwrap().swap_remove(1).faults;
            faults.into_iter().map(|active| active.fault).collect()
        };
        assert_eq!(left(&pool), [Fault::Slow { factor: 2.0 }]);
        drop(pool);
        assert_eq!(left(&OpenPool::open(&file).unwrap()), [Fault::Slow { factor: 2.0 }]);
    }

    #[test]
    fn a_pool_that_is_not_armed_says_how_to_arm_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = crate::pool_file::PoolFile { power_cut: false, ..modelled(folder.path()) };
        let pool = OpenPool::open(&file).unwrap();
        let problem = pool.cut_power("ssd-sata.0", CUT).unwrap_err().to_string();
        assert!(problem.contains("power_cut = true"), "{problem}");
    }
}
