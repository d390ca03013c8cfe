//! Draws a script from a seed.

use super::chances::{MIB, one_in, some_u32};
use super::{
    Condition, Consistency, End, Framing, Headers, Operation, Pace, Part, Script, Settings, Setup, Step,
    StoreFaults, StoreKind, StoreSetup, scenes,
};
use crate::world::Random;

/// Draws a script with the scene of this name, or with random scenes.
pub fn generate(seed: u64, scene: Option<&str>) -> Script {
    let mut random = Random::new(seed);
    let random = &mut random;
    let mut setup = some_setup(random);
    // Each script has its own mixture. With one mixture for all, no script would have much of anything.
    let mixture = Mixture::draw(random);
    let count = 10 + random.below(80);
    let mut scenes: Vec<Vec<Step>> =
        (0..1 + random.below(4) / 3).map(|_| scenes::draw(&mut setup, random, scene)).collect();
    // A first start takes its time.
    let mut steps = vec![Step::Wait { ms: *random.pick(&[0, 2000, 2000, 2000]) }];
    for number in 0..count {
        // Scenes do not interleave.
        if random.below(count - number) < scenes.len() as u64 {
            steps.extend(scenes.pop().into_iter().flatten());
        }
        steps.push(mixture.step(&setup, random));
    }
    Script { seed, setup, steps }
}

pub(super) fn some_settings(random: &mut Random) -> Settings {
    let consistency = match random.below(8) {
        0 => Consistency::Ttl { ms: 3000 },
        1 => Consistency::Revalidate,
        _ => Consistency::Exclusive,
    };
    let rule = match random.below(4) {
        0 => Some(Consistency::Ttl { ms: 5000 }),
        1 => Some(Consistency::Revalidate),
        2 => Some(Consistency::Exclusive),
        _ => None,
    };
    Settings {
        journal_bytes: *random.pick(&[16, 32, 64, 128]) * MIB,
        memory_bytes: *random.pick(&[4, 16, 64]) * MIB,
        block_bytes: *random.pick(&[64 << 10, 256 << 10, MIB]),
        flushes: *random.pick(&[1, 2, 4, 8]),
        requests: *random.pick(&[4, 8, 32, 256]),
        write_back_ms: *random.pick(&[Some(100), Some(1000), Some(5000), Some(5000), None]),
        consistency,
        rules: rule.into_iter().map(|rule| ("raw/".to_owned(), rule)).collect(),
        patience_ms: *random.pick(&[1000, 5000, 30_000]),
        drain_ms: 60_000,
        uploads_expire_s: *random.pick(&[600, 3600, 7 * 24 * 3600]),
        disk_bytes: *random.pick(&[256, 1024, 4096]) * MIB,
        is_encrypted: one_in(random, 4),
    }
}

fn some_setup(random: &mut Random) -> Setup {
    let settings = some_settings(random);
    let before = if one_in(random, 3) { 1 + random.below(6) } else { 0 };
    let before = (0..before).map(|_| (some_u32(random), *random.pick(&[0, 16, 5000, 100_000]))).collect();
    let store = StoreSetup {
        kind: StoreKind::S3,
        most_copy_bytes: None,
        has_etags_of_its_own: one_in(random, 5),
        page: *random.pick(&[1, 2, 3, 1000]),
        before,
    };
    Setup { gateways: 1, clients: 1 + random.below(4) as usize, settings, store }
}

/// How often each kind of step comes.
struct Mixture {
    changes: u64,
    reads: u64,
    lists: u64,
    uploads: u64,
    others: u64,
    crashes: u64,
    store_faults: u64,
    disk_faults: u64,
    clocks: u64,
    waits: u64,
    /// Few keys, because operations have to meet.
    keys: u64,
    sizes: &'static [u32],
}

const SMALL: &[u32] = &[0, 16, 100, 5000];
const MIDDLE: &[u32] = &[0, 16, 5000, 66_000, 200_000, 1 << 20];
const LARGE: &[u32] = &[16, 66_000, 1 << 20, 9 << 20];

impl Mixture {
    fn draw(random: &mut Random) -> Mixture {
        let mut weight = |most: u64| if one_in(random, 4) { 0 } else { 1 + random.below(most) };
        Mixture {
            changes: 20,
            reads: weight(20),
            lists: weight(6),
            uploads: weight(3),
            others: weight(4),
            crashes: weight(4),
            store_faults: weight(5),
            disk_faults: weight(2),
            clocks: weight(2),
            waits: weight(12),
            keys: *random.pick(&[2, 5, 20]),
            sizes: *random.pick::<&'static [u32]>(&[SMALL, SMALL, MIDDLE, LARGE]),
        }
    }

    fn step(&self, setup: &Setup, random: &mut Random) -> Step {
        let weights = [
            self.changes,
            self.reads,
            self.lists,
            self.uploads,
            self.others,
            self.crashes,
            self.store_faults,
            self.disk_faults,
            self.clocks,
            self.waits,
        ];
        let mut at = random.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| match at.checked_sub(*weight) {
            Some(left) => {
                at = left;
                false
            }
            None => true,
        });
        let gateway = random.below(setup.gateways as u64) as usize;
        let operation = match kind.unwrap_or(0) {
            0 => self.change(random),
            1 => self.read(random),
            2 => Operation::List {
                prefix: some_u32(random),
                has_delimiter: one_in(random, 2),
                page: *random.pick(&[1, 2, 3, 1000]),
            },
            3 => self.upload(random),
            4 => Operation::Others {
                key: 7 + random.below(3) as u32,
                size: (!one_in(random, 4)).then_some(100),
            },
            5 => return crash(gateway, random),
            6 => return Step::Store(some_faults(random)),
            7 => return disk_fault(gateway, random),
            8 => {
                return Step::JumpClock {
                    gateway,
                    ms: *random.pick(&[-7_200_000, -60_000, 60_000, 7_200_000]),
                };
            }
            _ => return some_wait(random),
        };
        Step::Do { client: random.below(setup.clients as u64) as usize, operation }
    }

    fn key(&self, random: &mut Random) -> u32 {
        random.below(self.keys) as u32
    }

    fn change(&self, random: &mut Random) -> Operation {
        let condition = *random.pick(&[
            Condition::None,
            Condition::None,
            Condition::None,
            Condition::None,
            Condition::IfAbsent,
            Condition::IfSame,
        ]);
        match random.below(10) {
            0 => Operation::Delete { key: self.key(random) },
            1 => Operation::DeleteMany { keys: (0..1 + random.below(4)).map(|_| self.key(random)).collect() },
            2..=4 => Operation::Copy {
                from: self.key(random),
                to: self.key(random),
                replaces_headers: one_in(random, 3),
                condition,
            },
            _ => Operation::Put {
                key: self.key(random),
                size: *random.pick(self.sizes),
                condition,
                headers: if one_in(random, 8) { Headers::EncodedWord } else { Headers::Plain },
                framing: some_framing(random),
                pace: Pace::Full,
            },
        }
    }

    fn read(&self, random: &mut Random) -> Operation {
        let key = self.key(random);
        match random.below(4) {
            0 => Operation::Head { key },
            1 => {
                let size = *random.pick(self.sizes);
                let at = random.below(u64::from(size) + 1) as u32;
                Operation::Get { key, range: Some((at, 1 + some_u32(random) % 100_000)), pace: Pace::Full }
            }
            _ => Operation::Get { key, range: None, pace: Pace::Full },
        }
    }

    fn upload(&self, random: &mut Random) -> Operation {
        let mut parts = Vec::new();
        for _ in 0..random.below(2) {
            parts.push(Part::Bytes { size: 5 << 20 });
        }
        parts.push(match one_in(random, 2) {
            true => Part::Copied { from: self.key(random), at: 0, size: 1 << 20 },
            false => Part::Bytes { size: 1000 },
        });
        let end = *random.pick(&[End::Complete, End::Complete, End::Complete, End::Abort, End::Leave]);
        Operation::Upload { key: self.key(random), parts, end }
    }
}

pub(super) fn some_framing(random: &mut Random) -> Framing {
    match random.below(6) {
        0 => Framing::Signed { chunk_bytes: *random.pick(&[8 << 10, 64 << 10, 64 << 20]) },
        1 => Framing::Trailer { chunk_bytes: *random.pick(&[8 << 10, 64 << 20]) },
        _ => Framing::Whole,
    }
}

pub(super) fn some_wait(random: &mut Random) -> Step {
    match one_in(random, 4) {
        true => Step::Barrier,
        false => Step::Wait { ms: *random.pick(&[1, 10, 100, 1000, 6000, 30_000, 130_000]) },
    }
}

pub(super) fn some_faults(random: &mut Random) -> StoreFaults {
    match random.below(8) {
        0 => StoreFaults { is_down: true, ..StoreFaults::default() },
        1 => StoreFaults { stalling: 300, stall_ms: 20_000, ..StoreFaults::default() },
        2 => StoreFaults { failing_before: 200, failing_after: 200, ..StoreFaults::default() },
        3 => StoreFaults { landing_late: 300, late_ms: 100_000, ..StoreFaults::default() },
        4 => StoreFaults { hanging: 100, breaking: 300, ..StoreFaults::default() },
        _ => StoreFaults::default(),
    }
}

pub(super) fn crash(gateway: usize, random: &mut Random) -> Step {
    match random.below(6) {
        0 | 1 => Step::Kill { gateway },
        2 => Step::CutPower { gateway },
        3 => Step::Terminate { gateway },
        _ => Step::Start { gateway },
    }
}

fn disk_fault(gateway: usize, random: &mut Random) -> Step {
    match random.below(6) {
        0 => Step::FailSyncs { gateway, count: 1 + random.below(2) as u32 },
        1 => Step::FillDisk { gateway, left_bytes: *random.pick(&[0, MIB, 40 * MIB, 70 * MIB]) },
        2 => Step::DropPages { gateway },
        3 => Step::Heal,
        _ => Step::FreeDisk { gateway },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_script_and_it_can_be_kept() {
        for seed in 0..500 {
            let script = generate(seed, None);
            assert_eq!(script, generate(seed, None));
            let text = serde_json::to_string(&script).unwrap();
            assert_eq!(serde_json::from_str::<Script>(&text).unwrap(), script);
            assert!(!script.steps.is_empty());
        }
    }
}
