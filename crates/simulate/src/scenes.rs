//! Steps of which each by itself is common, and which seldom meet by chance.

use underlay_sync::simulation::Random;

use crate::disk::What;
use crate::script::Step;

/// At least as many as there ever are.
const MEMBERS: u32 = 4;

pub fn draw(random: &mut Random) -> Vec<Step> {
    match random.below(12) {
        0..=2 => late_write(random),
        3 | 4 => overtaken_write(random),
        5..=7 => refused_repetition(random),
        8 | 9 => burst(random),
        10 => second_host(random),
        _ => other_server(random),
    }
}

fn for_all(step: impl Fn(u32) -> Step) -> impl Iterator<Item = Step> {
    (0..MEMBERS).map(step)
}

fn place(random: &mut Random) -> (u32, u32) {
    (random.next_u32(), random.below(60) as u32)
}

/// A write that a slow disk has when its connection breaks, and a newer one by another connection when it is fast again.
fn late_write(random: &mut Random) -> Vec<Step> {
    let (volume, block) = place(random);
    let write = Step::Write { volume, block, count: 1, fua: random.one_in(4) };
    let mut steps = vec![write, Step::Settle];
    steps.extend(for_all(|member| Step::Slow { member, factor: 300 }));
    steps.extend([write, Step::Pause { us: *random.pick(&[300, 1_000, 5_000]) }]);
    steps.extend(for_all(|member| Step::Slow { member, factor: 1 }));
    steps.push(if random.one_in(2) { Step::BreakAll } else { Step::KillHost });
    let pause = Step::Pause { us: *random.pick(&[3_000, 10_000, 30_000]) };
    steps.extend([pause, write, Step::Pause { us: 200_000 }, Step::Read { volume, block, count: 1 }]);
    steps
}

/// A write that is on its way when its connection breaks, and arrives when a newer one was answered on another connection.
fn overtaken_write(random: &mut Random) -> Vec<Step> {
    let (volume, block) = place(random);
    let write = Step::Write { volume, block, count: 1, fua: random.one_in(4) };
    let mut steps = vec![Step::Release, write, Step::Settle, write, Step::Strand];
    if random.one_in(3) {
        steps.push(Step::KillHost);
    }
    let pause = Step::Pause { us: *random.pick(&[3_000, 10_000, 30_000]) };
    steps.extend([pause, write, Step::Settle, Step::Release, Step::Pause { us: 200_000 }]);
    steps.push(Step::Read { volume, block, count: 1 });
    steps
}

/// The server loses a write, and can't do it again.
fn refused_repetition(random: &mut Random) -> Vec<Step> {
    let (volume, block) = place(random);
    let count = *random.pick(&[1, 20, 70]);
    let write = Step::Write { volume, block, count, fua: false };
    let mut steps = vec![write, Step::Settle, Step::CutPower];
    steps.push(Step::Pause { us: *random.pick(&[1_000, 3_000, 5_000, 10_000, 20_000]) });
    steps.extend(for_all(|member| Step::Fail { member, what: What::Write, count: 2 }));
    steps.extend([Step::Pause { us: 6_000_000 }, Step::Read { volume, block, count }]);
    steps.extend([Step::Flush { volume }, Step::Flush { volume }, Step::Read { volume, block, count }]);
    steps
}

/// More than is kept, at once.
fn burst(random: &mut Random) -> Vec<Step> {
    let volume = random.next_u32();
    let count = *random.pick(&[30, 60, 150]);
    let mut steps: Vec<Step> = for_all(|member| Step::Slow { member, factor: 10 }).collect();
    steps.extend((0..8).map(|number| Step::Write { volume, block: number * count, count, fua: false }));
    steps.extend(for_all(|member| Step::Slow { member, factor: 1 }));
    steps
}

fn second_host(random: &mut Random) -> Vec<Step> {
    let (volume, block) = place(random);
    let write = Step::Write { volume, block, count: 1, fua: false };
    vec![Step::Settle, write, Step::Settle, Step::Intrude { volume, block }]
}

fn other_server(random: &mut Random) -> Vec<Step> {
    let (volume, block) = place(random);
    let write = Step::Write { volume, block, count: 2, fua: false };
    let read = Step::Read { volume, block, count: 2 };
    vec![write, Step::Settle, Step::OtherServer, write, read, Step::Pause { us: 6_000_000 }]
}

/// Of a compressed volume: a chunk is written anew, and while the flush for that goes on so many others are that all space
/// comes round again. Then the power goes, and the chunk is where it was before.
pub fn replaced_during_flush(random: &mut Random) -> Vec<Step> {
    const CHUNK_BLOCKS: u32 = 4;
    const CHUNKS: u64 = 24;
    let write = |chunk: u64| {
        let block = chunk as u32 * CHUNK_BLOCKS;
        Step::Write { volume: 0, block, count: CHUNK_BLOCKS, fua: false }
    };
    let chunk = random.below(CHUNKS);
    let flush = Step::Flush { volume: 0 };
    let mut steps = vec![write(chunk), Step::Settle, flush, Step::Settle, write(chunk), Step::Settle];
    // The flush alone is slow.
    steps.extend(for_all(|member| Step::Slow { member, factor: 300 }));
    steps.push(flush);
    steps.extend(for_all(|member| Step::Slow { member, factor: 1 }));
    for _ in 0..20 + random.below(30) {
        steps.extend([write(random.below(CHUNKS)), Step::Pause { us: 200 }]);
    }
    let end = if random.one_in(3) { Step::KillServer } else { Step::CutPower };
    steps.extend([end, Step::Pause { us: 10_000 }]);
    steps.push(Step::Read { volume: 0, block: chunk as u32 * CHUNK_BLOCKS, count: CHUNK_BLOCKS });
    steps
}
