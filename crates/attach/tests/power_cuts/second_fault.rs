//! A power cut together with a second fault, on a mirror of two disks. First, a member fails before the cut and returns
//! with power, with its old copies. Second, a member vanishes while the file system recovers. Third, after the first
//! case, the only complete member vanishes then. Acknowledged data are intact once the fault is over, and in the first
//! two cases also while it lasts.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use underlay_attach::{
    AttachError, AttachSpec, AttachedStorage, Attachment, FilesystemKind, ServedStorage, mounts,
};
use underlay_storage::catalogue;
use underlay_storage::faults::{DeviceFault, WriteSurvival};
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode};

use crate::fixture::{Fixture, MIB, Random, fuse_loop, modelled, without_hanging};
use crate::{Acknowledged, CUTS_A_DISK, LIMIT, MAX_RUN_US, MEDIA, cuts, look, some_cut, write_until_cut};

/// Of the cuts that are asked for, one in so many has a second fault.
const SHARE: u64 = 5;
const CAPACITY: u64 = 320 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    /// A member is out at the cut.
    BeforeTheCut,
    /// A member vanishes while the file system recovers on the mirror.
    AtRecovery,
    /// One is out at the cut, the other one vanishes at the recovery.
    BothInTurn,
}

const SECONDS: [Second; 3] = [Second::BeforeTheCut, Second::AtRecovery, Second::BothInTurn];

struct MirroredDisk<'a> {
    fixture: &'a Fixture,
    filesystem: FilesystemKind,
    medium: &'static str,
    known: Arc<Mutex<Acknowledged>>,
}

/// What came about.
#[derive(Default)]
struct Counts {
    survival: WriteSurvival,
    by_second: [u64; 3],
    /// Members that the mirror had left out when the power was cut.
    out_at_cuts: u64,
    /// Faults that came before the file system was mounted again.
    while_mounting: u64,
    refused_mounts: u64,
}

fn member(index: u64) -> String {
    format!("mirrored.{index}")
}

fn words(error: impl ToString) -> String {
    error.to_string()
}

impl MirroredDisk<'_> {
    fn attach(&self, format: bool) -> Result<AttachedStorage, AttachError> {
        let mut stack = modelled(self.medium, CAPACITY, BackingSpec::Memory);
        let members = (0..2).map(|index| {
            let backing = BackingSpec::File(self.fixture.path(&format!("{}.img", member(index))));
            let medium = catalogue::find(self.medium).unwrap();
            let device = DeviceSpec::new(member(index), Some(medium), CAPACITY, backing);
            StackNode::Device(DeviceSpec { power_cut_armed: true, ..device })
        });
        stack.volumes[0].root = StackNode::Mirror { members: members.collect() };
        let mount_root = self.fixture.path("mnt");
        let spec =
            AttachSpec { stack, filesystem: Some(self.filesystem), mount_root, format, mount_point: None };
        fuse_loop().unwrap().attach(&spec, &self.fixture.registry)
    }

    /// Attaches it anew, and has a member vanish as soon as there is anyone to tell; whether that was before the end.
    fn attach_while_one_vanishes(&self, vanishing: u64) -> (Result<AttachedStorage, AttachError>, bool) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let striking = scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let was_injected =
                        ServedStorage::all(&self.fixture.registry).first().is_some_and(|served| {
                            served.inject(&member(vanishing), DeviceFault::Vanish, None).is_ok()
                        });
                    if was_injected {
                        return !is_over.load(Ordering::SeqCst);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                false
            });
            let attached = self.attach(false);
            is_over.store(true, Ordering::SeqCst);
            (attached, striking.join().unwrap())
        })
    }

    /// The file system's checker, and what was acknowledged.
    fn look(&self, attached: &AttachedStorage) -> Result<(), String> {
        look(self.filesystem, &attached.paths()[0], &self.known)
    }

    /// Writes until the power of both is cut; a member may fail before that. Whether the mirror had left it out.
    fn cut(
        &self,
        attached: &AttachedStorage,
        round: u64,
        failing: Option<u64>,
        random: &mut Random,
    ) -> (WriteSurvival, bool) {
        let served = attached.served().unwrap();
        let (directory, acknowledged): (PathBuf, _) = (attached.paths()[0].clone(), Arc::clone(&self.known));
        let seed = random.below(u64::MAX);
        let cut = some_cut(random);
        let fault = match random.below(2) {
            0 => DeviceFault::Vanish,
            _ => DeviceFault::Errors { operations: Vec::new(), rate: 1.0, extent: None, seed },
        };
        let delays = [MAX_RUN_US, MAX_RUN_US].map(|limit| Duration::from_micros(random.below(limit)));
        self.known.lock().unwrap().is_dark = false;
        std::thread::scope(|scope| {
            let cutting = scope.spawn(|| {
                std::thread::sleep(delays[0]);
                if let Some(failing) = failing {
                    served.inject(&member(failing), fault, None).unwrap();
                    std::thread::sleep(delays[1]);
                }
                let is_out = out(attached) > 0;
                self.known.lock().unwrap().is_dark = true;
                (served.cut_power(&[], cut).unwrap(), is_out)
            });
            without_hanging("the writer", move || write_until_cut(&directory, round, seed, &acknowledged));
            cutting.join().unwrap()
        })
    }

    fn round(
        &self,
        attached: AttachedStorage,
        round: u64,
        random: &mut Random,
        counts: &mut Counts,
    ) -> Result<AttachedStorage, String> {
        let second = SECONDS[(round % 3) as usize];
        let failing = random.below(2);
        let before = (second != Second::AtRecovery).then_some(failing);
        let (survival, is_out) = self.cut(&attached, round, before, random);
        counts.survival += survival;
        counts.out_at_cuts += u64::from(is_out && before.is_some());
        counts.by_second[(round % 3) as usize] += 1;
        put_away(attached);

        let attached = match second {
            Second::BeforeTheCut => self.attach(false).map_err(words)?,
            Second::AtRecovery => {
                let (attached, in_time) = self.attach_while_one_vanishes(failing);
                let attached = attached.map_err(words)?;
                counts.while_mounting += u64::from(in_time);
                if in_time {
                    self.look(&attached).map_err(|problem| format!("on one member: {problem}"))?;
                    attached.served().unwrap().bring_back(&member(failing)).map_err(words)?;
                }
                attached
            }
            Second::BothInTurn => {
                // Errors are all that it may answer with, so there is nothing to look at.
                let (attached, in_time) = self.attach_while_one_vanishes(1 - failing);
                counts.while_mounting += u64::from(in_time);
                match attached {
                    Ok(attached) => put_away(attached),
                    Err(_) => counts.refused_mounts += 1,
                }
                self.attach(false).map_err(words)?
            }
        };
        self.look(&attached)?;
        Ok(attached)
    }
}

/// How many members the mirror leaves out, or is bringing up to date.
fn out(attached: &AttachedStorage) -> u64 {
    let layers = attached.layers().unwrap();
    let figure_sum =
        |name: &str| layers.iter().filter_map(|layer| layer.figures.get(name)).sum::<f64>() as u64;
    figure_sum("members_out") + figure_sum("members_resyncing")
}

/// Without power, or without a member, it can't end in order: what counts is that nothing of it stays.
fn put_away(mut attached: AttachedStorage) {
    let _ = mounts::try_unmount(&attached.paths()[0], LIMIT);
    let _ = attached.detach();
}

fn survive_two(filesystem: FilesystemKind) {
    if fuse_loop().is_none() {
        return;
    }
    let (rounds, seed) = ((cuts() / SHARE).max(3), u64::from(std::process::id()));
    let mut random = Random(seed);
    let (mut counts, mut syncs, mut round) = (Counts::default(), 0, 0);
    while round < rounds {
        let fixture = Fixture::new();
        let medium = MEDIA[(round / CUTS_A_DISK % 2) as usize];
        let disk = MirroredDisk { fixture: &fixture, filesystem, medium, known: Arc::default() };
        let mut attached = disk.attach(true).unwrap();
        for _ in 0..CUTS_A_DISK.min(rounds - round) {
            attached = disk.round(attached, round, &mut random, &mut counts).unwrap_or_else(|problem| {
                let (name, second) = (filesystem.name(), SECONDS[(round % 3) as usize]);
                panic!("seed {seed}, {name} on {medium}, round {round}, {second:?}: {problem}")
            });
            round += 1;
        }
        syncs += disk.known.lock().unwrap().syncs;
        attached.detach().unwrap();
        fixture.assert_nothing_left();
    }
    let Counts { survival, by_second: [before, during, both], out_at_cuts, while_mounting, refused_mounts } =
        counts;
    println!(
        "{} on a mirror: {rounds} power cuts with a second fault ({before} before the cut, {during} at the recovery, {both} one and then the \
         other), {syncs} acknowledged syncs, all intact; {out_at_cuts} times a member was out at the cut, {while_mounting} times one \
         vanished while it was mounted, {refused_mounts} mounts refused meanwhile; {} unflushed writes were lost",
        filesystem.name(),
        survival.lost
    );
    assert!(before > 0 && during > 0 && both > 0 && syncs > rounds, "{syncs} syncs");
    assert!(out_at_cuts > 0, "no member was out at a cut");
    assert!(while_mounting > 0, "no member vanished in time");
}

#[test]
fn xfs_on_mirror_keeps_acknowledged_data_over_two_faults() {
    survive_two(FilesystemKind::Xfs);
}

#[test]
fn ext4_on_mirror_keeps_acknowledged_data_over_two_faults() {
    survive_two(FilesystemKind::Ext4);
}
