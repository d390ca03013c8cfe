//! Numbers that a seed decides.

/// A permuted congruential generator (PCG-XSH-RR 64/32; O'Neill 2014): small, and the same on every machine.
#[derive(Clone, Debug)]
pub struct SimulationRng {
    state: u64,
}

// Knuth's constants for MMIX, which the PCG reference code uses too.
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

impl SimulationRng {
    pub fn new(seed: u64) -> SimulationRng {
        let mut random = SimulationRng { state: seed.wrapping_add(INCREMENT) };
        // So that neighbouring seeds give unrelated sequences.
        random.next_u32();
        random.state = random.state.wrapping_add(seed.rotate_left(32));
        random.next_u32();
        random
    }

    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let mixed = (((old >> 18) ^ old) >> 27) as u32;
        mixed.rotate_right((old >> 59) as u32)
    }

    pub fn next_u64(&mut self) -> u64 {
        (u64::from(self.next_u32()) << 32) | u64::from(self.next_u32())
    }

    /// From 0 to `bound` - 1. The bias of a multiplication is below one in 2^32 divided by `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        if bound <= u64::from(u32::MAX) {
            (u64::from(self.next_u32()) * bound) >> 32
        } else {
            ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
        }
    }

    /// True with a probability of one in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times.max(1)) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
