//! Draws a script from a seed.

use super::chances::{MIB, one_in, some_u32};
use super::{
    BodyFraming, BodyPace, ClientCondition, ClientHeaders, ClientOperation, GatewaySettings, RuleConsistency,
    ScriptPart, ScriptSetup, ScriptStep, SimulationScript, StoreFaults, StoreKind, StoreSetup, UploadEnd,
    scenes,
};
use crate::world::SplitMix64;

/// Draws a script with the scene of this name, or with random scenes.
pub fn generate(seed: u64, scene: Option<&str>) -> SimulationScript {
    let mut random = SplitMix64::new(seed);
    let random = &mut random;
    let mut setup = some_setup(random);
    // Each script has its own mixture. With one mixture for all, no script would have much of anything.
    let mixture = StepMixture::draw(random);
    let count = 10 + random.below(80);
    let mut scenes: Vec<Vec<ScriptStep>> =
        (0..1 + random.below(4) / 3).map(|_| scenes::draw(&mut setup, random, scene)).collect();
    // A first start takes its time.
    let mut steps = vec![ScriptStep::Wait { ms: *random.pick(&[0, 2000, 2000, 2000]) }];
    for number in 0..count {
        // Scenes do not interleave.
        if random.below(count - number) < scenes.len() as u64 {
            steps.extend(scenes.pop().into_iter().flatten());
        }
        steps.push(mixture.step(&setup, random));
    }
    SimulationScript { seed, setup, steps }
}

pub(super) fn some_settings(random: &mut SplitMix64) -> GatewaySettings {
    let consistency = match random.below(8) {
        0 => RuleConsistency::Ttl { ms: 3000 },
        1 => RuleConsistency::Revalidate,
        _ => RuleConsistency::Exclusive,
    };
    let rule = match random.below(4) {
        0 => Some(RuleConsistency::Ttl { ms: 5000 }),
        1 => Some(RuleConsistency::Revalidate),
        2 => Some(RuleConsistency::Exclusive),
        _ => None,
    };
    GatewaySettings {
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

fn some_setup(random: &mut SplitMix64) -> ScriptSetup {
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
    ScriptSetup { gateways: 1, clients: 1 + random.below(4) as usize, settings, store }
}

/// How often each kind of step comes.
struct StepMixture {
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

impl StepMixture {
    fn draw(random: &mut SplitMix64) -> StepMixture {
        let mut weight = |most: u64| if one_in(random, 4) { 0 } else { 1 + random.below(most) };
        StepMixture {
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
            sizes: random.pick::<&'static [u32]>(&[SMALL, SMALL, MIDDLE, LARGE]),
        }
    }

    fn step(&self, setup: &ScriptSetup, random: &mut SplitMix64) -> ScriptStep {
        // In the order of the kinds below.
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
        let mut remaining = random.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| match remaining.checked_sub(*weight) {
            Some(left) => {
                remaining = left;
                false
            }
            None => true,
        });
        let gateway = random.below(setup.gateways as u64) as usize;
        let operation = match kind.unwrap_or(0) {
            0 => self.change(random),
            1 => self.read(random),
            2 => ClientOperation::List {
                prefix: some_u32(random),
                has_delimiter: one_in(random, 2),
                page: *random.pick(&[1, 2, 3, 1000]),
            },
            3 => self.upload(random),
            4 => ClientOperation::Others {
                key: 7 + random.below(3) as u32,
                size: (!one_in(random, 4)).then_some(100),
            },
            5 => return crash(gateway, random),
            6 => return ScriptStep::Store(some_faults(random)),
            7 => return disk_fault(gateway, random),
            8 => {
                return ScriptStep::JumpClock {
                    gateway,
                    ms: *random.pick(&[-7_200_000, -60_000, 60_000, 7_200_000]),
                };
            }
            _ => return some_wait(random),
        };
        ScriptStep::Do { client: random.below(setup.clients as u64) as usize, operation }
    }

    fn key(&self, random: &mut SplitMix64) -> u32 {
        random.below(self.keys) as u32
    }

    fn change(&self, random: &mut SplitMix64) -> ClientOperation {
        let condition = *random.pick(&[
            ClientCondition::None,
            ClientCondition::None,
            ClientCondition::None,
            ClientCondition::None,
            ClientCondition::IfAbsent,
            ClientCondition::IfSame,
        ]);
        match random.below(10) {
            0 => ClientOperation::Delete { key: self.key(random) },
            1 => ClientOperation::DeleteMany {
                keys: (0..1 + random.below(4)).map(|_| self.key(random)).collect(),
            },
            2..=4 => ClientOperation::Copy {
                from: self.key(random),
                to: self.key(random),
                replaces_headers: one_in(random, 3),
                condition,
            },
            _ => ClientOperation::Put {
                key: self.key(random),
                size: *random.pick(self.sizes),
                condition,
                headers: if one_in(random, 8) { ClientHeaders::EncodedWord } else { ClientHeaders::Plain },
                framing: some_framing(random),
                pace: BodyPace::Full,
            },
        }
    }

    fn read(&self, random: &mut SplitMix64) -> ClientOperation {
        let key = self.key(random);
        match random.below(4) {
            0 => ClientOperation::Head { key },
            1 => {
                let size = *random.pick(self.sizes);
                let offset = random.below(u64::from(size) + 1) as u32;
                ClientOperation::Get {
                    key,
                    range: Some((offset, 1 + some_u32(random) % 100_000)),
                    pace: BodyPace::Full,
                }
            }
            _ => ClientOperation::Get { key, range: None, pace: BodyPace::Full },
        }
    }

    fn upload(&self, random: &mut SplitMix64) -> ClientOperation {
        let mut parts = Vec::new();
        for _ in 0..random.below(2) {
            parts.push(ScriptPart::Bytes { size: 5 << 20 });
        }
        parts.push(match one_in(random, 2) {
            true => ScriptPart::Copied { from: self.key(random), at: 0, size: 1 << 20 },
            false => ScriptPart::Bytes { size: 1000 },
        });
        let end = *random.pick(&[
            UploadEnd::Complete,
            UploadEnd::Complete,
            UploadEnd::Complete,
            UploadEnd::Abort,
            UploadEnd::Leave,
        ]);
        ClientOperation::Upload { key: self.key(random), parts, end }
    }
}

pub(super) fn some_framing(random: &mut SplitMix64) -> BodyFraming {
    match random.below(6) {
        0 => BodyFraming::Signed { chunk_bytes: *random.pick(&[8 << 10, 64 << 10, 64 << 20]) },
        1 => BodyFraming::Trailer { chunk_bytes: *random.pick(&[8 << 10, 64 << 20]) },
        _ => BodyFraming::Whole,
    }
}

pub(super) fn some_wait(random: &mut SplitMix64) -> ScriptStep {
    match one_in(random, 4) {
        true => ScriptStep::Barrier,
        false => ScriptStep::Wait { ms: *random.pick(&[1, 10, 100, 1000, 6000, 30_000, 130_000]) },
    }
}

pub(super) fn some_faults(random: &mut SplitMix64) -> StoreFaults {
    match random.below(8) {
        0 => StoreFaults { is_down: true, ..StoreFaults::default() },
        1 => StoreFaults { stalling: 300, stall_ms: 20_000, ..StoreFaults::default() },
        2 => StoreFaults { failing_before: 200, failing_after: 200, ..StoreFaults::default() },
        3 => StoreFaults { landing_late: 300, late_ms: 100_000, ..StoreFaults::default() },
        4 => StoreFaults { hanging: 100, breaking: 300, ..StoreFaults::default() },
        _ => StoreFaults::default(),
    }
}

pub(super) fn crash(gateway: usize, random: &mut SplitMix64) -> ScriptStep {
    match random.below(6) {
        0 | 1 => ScriptStep::Kill { gateway },
        2 => ScriptStep::CutPower { gateway },
        3 => ScriptStep::Terminate { gateway },
        _ => ScriptStep::Start { gateway },
    }
}

fn disk_fault(gateway: usize, random: &mut SplitMix64) -> ScriptStep {
    match random.below(6) {
        0 => ScriptStep::FailSyncs { gateway, count: 1 + random.below(2) as u32 },
        1 => ScriptStep::FillDisk { gateway, left_bytes: *random.pick(&[0, MIB, 40 * MIB, 70 * MIB]) },
        2 => ScriptStep::DropPages { gateway },
        3 => ScriptStep::Heal,
        _ => ScriptStep::FreeDisk { gateway },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_gives_one_script_that_round_trips() {
        for seed in 0..500 {
            let script = generate(seed, None);
            assert_eq!(script, generate(seed, None));
            let text = serde_json::to_string(&script).unwrap();
            assert_eq!(serde_json::from_str::<SimulationScript>(&text).unwrap(), script);
            assert!(!script.steps.is_empty());
        }
    }
}
