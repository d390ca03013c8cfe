//! What must hold at the end of a run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use underlay_storage::device::{BlockDevice, DeviceError};
use underlay_sync::simulation::TaskGroup;
use underlay_volume::VolumePool;
use underlay_volume::pool::{MemberState, PoolError};

use super::{VolumesRig, name_of};
use crate::user::{DeviceUser, await_answer, wait_until};

impl VolumesRig {
    /// All faults are over: everything acknowledged must be there, now and after another power cut.
    pub(super) fn finish(&mut self) {
        self.faults.heal();
        self.network.set_stalled(false);
        if self.serves_other {
            self.restart_server(false);
            // What it was connected to is not what is there now.
            self.kill_host();
        }
        self.settle();
        self.pause_until(Duration::from_secs(60), || self.unfinished().is_empty());
        for round in 0..2 {
            // A device that failed a flush has to be opened again.
            self.restart_server(round == 1);
            let pool = self.await_server();
            if self.events.anything_goes.load(Ordering::Relaxed) {
                return;
            }
            let pool = pool.unwrap_or_else(|problem| panic!("sound disks can't be opened: {problem}"));
            if round == 0 && self.has_lost_its_server() {
                self.kill_host();
            }
            self.await_host();
            self.check_pool(&pool);
            self.read_and_flush_all(&pool);
        }
        self.restart_server(true);
        let pool = self.await_server().unwrap_or_else(|problem| panic!("it can't be opened: {problem}"));
        self.read_all(&pool);
        self.check_other();
    }

    /// Whether the host has given up to look for it, or could never connect.
    fn has_lost_its_server(&mut self) -> bool {
        if self.host.is_none() {
            return false;
        }
        self.await_host_or_not();
        for user in self.users() {
            let Some((device, process)) = self.device(&user) else { return true };
            let read = await_answer(&self.world, "whether the host has its volumes", |then| {
                self.world.enter(process, || user.read_and(&*device, 0, 1, then));
            });
            if read == Err(DeviceError::Gone) {
                return true;
            }
        }
        false
    }

    fn await_host_or_not(&self) {
        if let Some(host) = &self.host {
            wait_until(&self.world, || "the host connects, or gives up".into(), || host.opened.is_full());
        }
    }

    fn check_pool(&self, pool: &VolumePool) {
        let (own, members) = (pool.clone(), self.disks.len());
        let problems = self.run_in_server("resync and check", move || {
            for member in 0..members {
                match own.resync(member) {
                    Ok(()) | Err(PoolError::Device(DeviceError::NoSpace)) => {}
                    Err(PoolError::MemberFails(_, DeviceError::NoSpace)) => {}
                    Err(error) => panic!("a sound member can't be taken back: {error}"),
                }
            }
            let states = own.info().members;
            assert!(
                states.iter().all(|member| member.state == MemberState::InUse),
                "a sound member is not in use: {states:?}"
            );
            own.check().unwrap_or_else(|error| panic!("a sound pool can't be checked: {error}")).problems
        });
        assert_eq!(problems, Vec::<String>::new(), "the pool is not consistent");
    }

    fn run_in_server<T: Send + 'static>(
        &self,
        description: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        await_answer(&self.world, description, |then| {
            let task = self.world.spawn(self.server.process, move || then(act()));
            task.expect("a thread can be had");
        })
    }

    fn read_and_flush_all(&mut self, pool: &VolumePool) {
        for user in self.users() {
            let Some((device, process)) = self.device(&user) else { panic!("{} is not there", user.name) };
            let flushed = await_answer(&self.world, "a last flush", |then| {
                self.world.enter(process, || user.flush_and(&*device, then));
            });
            let outcome = match flushed {
                Err(error) if error != DeviceError::Gone => self.rewrite(&user, &*device, process, &error),
                other => other,
            };
            if outcome == Err(DeviceError::Gone) && self.setup.is_remote {
                // It gave up: another host takes its place, with what the server has.
                self.kill_host();
                self.await_host();
            } else {
                assert_eq!(outcome, Ok(()), "a flush succeeds once all faults are over");
            }
        }
        self.read_all(pool);
    }

    /// The host was told that writes are lost: once they are written again, all is well.
    fn rewrite(
        &self,
        user: &Arc<DeviceUser>,
        device: &dyn BlockDevice,
        process: TaskGroup,
        error: &DeviceError,
    ) -> Result<(), DeviceError> {
        assert!(self.setup.is_remote, "a flush of a sound pool fails: {error}");
        let again = await_answer(&self.world, "another flush", |then| {
            self.world.enter(process, || user.flush_and(device, then));
        });
        if again.is_ok() {
            // Writes that were still in flight have covered it: what is read afterwards decides.
            return Ok(());
        }
        let mut first = 0;
        while first < user.blocks() {
            self.world.enter(process, || user.discard(device, first, 64));
            first += 64;
            if first % 1024 == 0 {
                self.settle();
            }
        }
        self.settle();
        await_answer(&self.world, "a flush after writing again", |then| {
            self.world.enter(process, || user.flush_and(device, then));
        })
    }

    fn read_all(&mut self, pool: &VolumePool) {
        let users: Vec<Arc<DeviceUser>> = self.known().values().cloned().collect();
        for user in users {
            let found = pool.volume(&user.name);
            let volume = found.unwrap_or_else(|error| panic!("{} is not there: {error}", user.name));
            user.must_read_all(&self.world, self.server.process, &volume);
        }
    }

    /// Nothing meant for the first pool may have come to the other one.
    fn check_other(&mut self) {
        if !self.other_folder().exists() {
            return;
        }
        self.stop_server(false);
        self.serves_other = true;
        self.start_other_server();
        let pool = self.await_server().unwrap_or_else(|problem| panic!("the other pool: {problem}"));
        for number in 0..self.setup.volumes.len() {
            let Ok(volume) = pool.volume(&name_of(number)) else { continue };
            let used = volume.info().used_bytes;
            assert_eq!(used, 0, "writes for one pool's volume {} came to another's", name_of(number));
        }
    }
}
