//! Steps of which each by itself is common, and which seldom meet by chance.

use underlay_sync::simulation::SimulationRng;

use crate::disk::FailurePoint;
use crate::script::{LayersSetup, ScriptSetup, ScriptStep, VolumesSetup};
use crate::tree::DeviceTree;

/// At least as many as there ever are.
const MEMBERS: u32 = 4;

/// Nothing where chance alone does.
pub(super) fn draw(setup: &ScriptSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    match setup {
        ScriptSetup::Volumes(VolumesSetup { is_remote: true, .. }) => draw_host(random),
        ScriptSetup::Volumes(volumes) => draw_pool(volumes, random),
        ScriptSetup::Layers(LayersSetup { tree: DeviceTree::Compress(_), .. }) => {
            replaced_during_flush(random)
        }
        _ => Vec::new(),
    }
}

fn draw_pool(volumes: &VolumesSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    match random.below(6) {
        0 => doomed_deletion(volumes, random),
        1 => moved_while_a_flush_fails(volumes, random),
        2 | 3 if volumes.are_mirrored() => copies_that_differ(volumes, random),
        // The third member and the fourth have nothing of the journal.
        4 | 5 if volumes.are_mirrored() && volumes.members > 2 => first_write_and_resync(volumes, random),
        _ => Vec::new(),
    }
}

fn draw_host(random: &mut SimulationRng) -> Vec<ScriptStep> {
    match random.below(12) {
        0..=2 => late_write(random),
        3 | 4 => overtaken_write(random),
        5..=7 => refused_repetition(random),
        8 | 9 => burst(random),
        10 => second_host(random),
        _ => other_server(random),
    }
}

fn for_all(step: impl Fn(u32) -> ScriptStep) -> impl Iterator<Item = ScriptStep> {
    (0..MEMBERS).map(step)
}

fn place(random: &mut SimulationRng) -> (u32, u32) {
    (random.next_u32(), random.below(60) as u32)
}

/// A write that a slow disk has when its connection breaks, and a newer one by another connection when it is fast
/// again.
fn late_write(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let write = ScriptStep::Write { volume, block, count: 1, fua: random.one_in(4) };
    let mut steps = vec![write, ScriptStep::Settle];
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 300 }));
    steps.extend([write, ScriptStep::Pause { us: *random.pick(&[300, 1_000, 5_000]) }]);
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 1 }));
    steps.push(if random.one_in(2) { ScriptStep::BreakAll } else { ScriptStep::KillHost });
    let pause = ScriptStep::Pause { us: *random.pick(&[3_000, 10_000, 30_000]) };
    steps.extend([
        pause,
        write,
        ScriptStep::Pause { us: 200_000 },
        ScriptStep::Read { volume, block, count: 1 },
    ]);
    steps
}

/// A write that is on its way when its connection breaks, and arrives when a newer one was answered on another
/// connection.
fn overtaken_write(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let write = ScriptStep::Write { volume, block, count: 1, fua: random.one_in(4) };
    let mut steps = vec![ScriptStep::Release, write, ScriptStep::Settle, write, ScriptStep::Strand];
    if random.one_in(3) {
        steps.push(ScriptStep::KillHost);
    }
    let pause = ScriptStep::Pause { us: *random.pick(&[3_000, 10_000, 30_000]) };
    steps.extend([pause, write, ScriptStep::Settle, ScriptStep::Release, ScriptStep::Pause { us: 200_000 }]);
    steps.push(ScriptStep::Read { volume, block, count: 1 });
    steps
}

/// The server loses a write, and can't do it again.
fn refused_repetition(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let count = *random.pick(&[1, 20, 70]);
    let write = ScriptStep::Write { volume, block, count, fua: false };
    let mut steps = vec![write, ScriptStep::Settle, ScriptStep::CutPower];
    steps.push(ScriptStep::Pause { us: *random.pick(&[1_000, 3_000, 5_000, 10_000, 20_000]) });
    steps.extend(for_all(|member| ScriptStep::Fail { member, what: FailurePoint::Write, count: 2 }));
    steps.extend([ScriptStep::Pause { us: 6_000_000 }, ScriptStep::Read { volume, block, count }]);
    steps.extend([
        ScriptStep::Flush { volume },
        ScriptStep::Flush { volume },
        ScriptStep::Read { volume, block, count },
    ]);
    steps
}

/// More than is kept, at once.
fn burst(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let volume = random.next_u32();
    let count = *random.pick(&[30, 60, 150]);
    let mut steps: Vec<ScriptStep> = for_all(|member| ScriptStep::Slow { member, factor: 10 }).collect();
    steps.extend((0..8).map(|number| ScriptStep::Write { volume, block: number * count, count, fua: false }));
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 1 }));
    steps
}

fn second_host(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let write = ScriptStep::Write { volume, block, count: 1, fua: false };
    vec![ScriptStep::Settle, write, ScriptStep::Settle, ScriptStep::Intrude { volume, block }]
}

fn other_server(random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let write = ScriptStep::Write { volume, block, count: 2, fua: false };
    let read = ScriptStep::Read { volume, block, count: 2 };
    vec![write, ScriptStep::Settle, ScriptStep::OtherServer, write, read, ScriptStep::Pause { us: 6_000_000 }]
}

/// Of a mirrored volume: an extent's first write has come to one member and not yet to the other one. Meanwhile the
/// first is pulled out, so that it loses what was in its cache, and is brought up to date when it is back, by somebody
/// who can't know of the extent yet. Later it has the only copy that can be read.
fn first_write_and_resync(setup: &VolumesSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    const EXTENT_BLOCKS: u32 = 64;
    let volume = random.below(setup.volumes.len() as u64) as u32;
    let extents = setup.volumes[volume as usize].blocks / EXTENT_BLOCKS;
    let block = EXTENT_BLOCKS * (random.next_u32() % extents.max(1));
    // Enough that some are lost from a cache, whichever part of it is kept.
    let count = 16;
    let member = 2 + random.next_u32() % (setup.members - 2);
    let slow_others =
        |factor| (1..setup.members).map(move |other| ScriptStep::Slow { member: member + other, factor });
    let flush = ScriptStep::Flush { volume };
    let mut steps: Vec<ScriptStep> = for_all(|member| ScriptStep::Return { member }).collect();
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 1 }));
    for member in 0..setup.members {
        steps.extend([ScriptStep::Resync { member }, ScriptStep::Pause { us: 200_000 }]);
    }
    steps.extend([
        ScriptStep::Discard { volume, block, count: EXTENT_BLOCKS },
        ScriptStep::Settle,
        flush,
        ScriptStep::Settle,
    ]);
    // Slow for this write alone: it takes longer than all of the resync.
    steps.extend(slow_others(1000));
    steps.extend([ScriptStep::Write { volume, block, count, fua: false }, ScriptStep::Pause { us: 1_000 }]);
    steps.extend(slow_others(1));
    // The flush makes the pool see that it is gone.
    steps.extend([
        ScriptStep::PullOut { member },
        flush,
        ScriptStep::Pause { us: 6_000 },
        ScriptStep::LosePower { member },
    ]);
    steps.extend([
        ScriptStep::Return { member },
        ScriptStep::Resync { member },
        ScriptStep::Pause { us: 300_000 },
    ]);
    steps.extend([ScriptStep::Settle, ScriptStep::Vanish { member: member + 1 }]);
    steps.extend([
        ScriptStep::Read { volume, block, count },
        ScriptStep::Settle,
        ScriptStep::Return { member: member + 1 },
    ]);
    steps
}

/// Of a mirrored volume: what was written over is on one member when the power is cut, and not on the other one. Two
/// reads at once are of either copy.
fn copies_that_differ(setup: &VolumesSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    let volume = random.below(setup.volumes.len() as u64) as u32;
    let (block, count) = (random.below(60) as u32, 16);
    let (write, read) =
        (ScriptStep::Write { volume, block, count, fua: false }, ScriptStep::Read { volume, block, count });
    let mut steps = vec![write, ScriptStep::Settle, ScriptStep::Flush { volume }, ScriptStep::Settle, write];
    steps.push(ScriptStep::Pause { us: *random.pick(&[100, 1_000, 5_000]) });
    steps.extend([ScriptStep::CutPower, ScriptStep::Pause { us: 10_000 }]);
    for _ in 0..3 {
        steps.extend([read, read, ScriptStep::Settle]);
    }
    steps
}

/// A copy of a volume is written to and deleted, while flushes of other volumes fail and go on. In the end the deletion
/// fails as well, and what was written is there when the pool is opened again.
fn doomed_deletion(setup: &VolumesSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    let mut steps = vec![ScriptStep::Snapshot { volume: random.next_u32(), writable: true }];
    steps.push(ScriptStep::Pause { us: 6_000_000 });
    for _ in 0..4 {
        let (volume, block) = place(random);
        steps.push(ScriptStep::Write { volume, block, count: 1 + random.below(20) as u32, fua: false });
    }
    steps.extend([ScriptStep::Settle, ScriptStep::Delete { volume: random.next_u32() }]);
    let count = 1 + random.below(3) as u32;
    steps.extend((0..setup.members).map(|member| ScriptStep::Fail {
        member,
        what: FailurePoint::Flush,
        count,
    }));
    // One flush after the other, so that one begins at any moment of the deletion.
    for number in 0..random.below(24) as u32 {
        steps.extend([
            ScriptStep::Flush { volume: number },
            ScriptStep::Pause { us: *random.pick(&[1, 10, 50, 200]) },
        ]);
    }
    let end = if random.one_in(4) { ScriptStep::Settle } else { ScriptStep::KillServer };
    steps.extend([end, ScriptStep::Pause { us: 10_000 }]);
    steps
}

/// What was written moves to where no failure strikes, while a flush fails that is about it.
fn moved_while_a_flush_fails(setup: &VolumesSetup, random: &mut SimulationRng) -> Vec<ScriptStep> {
    let (volume, block) = place(random);
    let write = ScriptStep::Write { volume, block, count: 1 + random.below(4) as u32, fua: false };
    let mut steps = vec![write, ScriptStep::Settle];
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 30 }));
    steps.push(ScriptStep::Flush { volume });
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 1 }));
    let failing = 1 + random.below(2) as u32;
    let first = random.next_u32() % setup.members;
    let fail = |number| ScriptStep::Fail { member: first + number, what: FailurePoint::Flush, count: 3 };
    steps.extend((0..failing).map(fail));
    for _ in 0..1 + random.below(3) {
        steps.extend([write, ScriptStep::Pause { us: *random.pick(&[10, 100, 1_000]) }]);
    }
    steps.extend([ScriptStep::Settle, ScriptStep::CutPower, ScriptStep::Pause { us: 10_000 }]);
    steps.push(ScriptStep::Read { volume, block, count: 8 });
    steps
}

/// Of a compressed volume: a chunk is written anew, and while the flush for that goes on so many others are that all
/// space comes round again. Then the power goes, and the chunk is where it was before.
fn replaced_during_flush(random: &mut SimulationRng) -> Vec<ScriptStep> {
    const CHUNK_BLOCKS: u32 = 4;
    const CHUNKS: u64 = 24;
    let write = |chunk: u64| {
        let block = chunk as u32 * CHUNK_BLOCKS;
        ScriptStep::Write { volume: 0, block, count: CHUNK_BLOCKS, fua: false }
    };
    let chunk = random.below(CHUNKS);
    let flush = ScriptStep::Flush { volume: 0 };
    let mut steps =
        vec![write(chunk), ScriptStep::Settle, flush, ScriptStep::Settle, write(chunk), ScriptStep::Settle];
    // The flush alone is slow.
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 300 }));
    steps.push(flush);
    steps.extend(for_all(|member| ScriptStep::Slow { member, factor: 1 }));
    for _ in 0..20 + random.below(30) {
        steps.extend([write(random.below(CHUNKS)), ScriptStep::Pause { us: 200 }]);
    }
    let end = if random.one_in(3) { ScriptStep::KillServer } else { ScriptStep::CutPower };
    steps.extend([end, ScriptStep::Pause { us: 10_000 }]);
    steps.push(ScriptStep::Read { volume: 0, block: chunk as u32 * CHUNK_BLOCKS, count: CHUNK_BLOCKS });
    steps
}
