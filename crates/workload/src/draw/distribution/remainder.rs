//! Remainders by a constant divisor, without division.

/// `number % divisor` by a multiplication with the divisor's reciprocal, rounded up: Granlund and Montgomery,
/// "Division by Invariant Integers using Multiplication" (PLDI 1994), theorem 4.2 for numbers of 63 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FastRemainder {
    divisor: u64,
    /// `floor(2^(64 + shift) / divisor) + 1`, which has 64 bits; zero where there is nothing to divide.
    reciprocal: u64,
    shift: u32,
}

impl FastRemainder {
    /// For a divisor from 1 up to 2^63.
    pub(super) fn new(divisor: u64) -> Self {
        debug_assert!((1..=1 << 63).contains(&divisor), "{divisor} is no divisor of 63-bit numbers");
        if divisor <= 1 {
            return FastRemainder { divisor: 1, reciprocal: 0, shift: 0 };
        }
        // 2^ceiling is the lowest power of two that is not below the divisor.
        let ceiling = u64::BITS - (divisor - 1).leading_zeros();
        let reciprocal = ((1u128 << (63 + ceiling)) / u128::from(divisor)) as u64 + 1;
        FastRemainder { divisor, reciprocal, shift: ceiling - 1 }
    }

    /// The remainder of a number below 2^63.
    #[inline]
    pub(super) fn remainder(self, number: u64) -> u64 {
        debug_assert!(number < 1 << 63, "{number} has more than 63 bits");
        if self.reciprocal == 0 {
            return 0;
        }
        let quotient = ((u128::from(number) * u128::from(self.reciprocal)) >> 64) as u64 >> self.shift;
        number - quotient * self.divisor
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = (1 << 63) - 1;

    #[test]
    fn edges_of_numbers_and_divisors_are_right() {
        let powers = (0..63).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let edges: Vec<u64> = powers.chain([MAX - 1, MAX]).collect();
        for &divisor in edges.iter().filter(|&&divisor| divisor > 0) {
            let remainder = FastRemainder::new(divisor);
            for &number in &edges {
                assert_eq!(remainder.remainder(number), number % divisor, "{number} % {divisor}");
            }
            // A reciprocal that is too small or too large shows where the quotient steps up.
            for multiple in [MAX / divisor * divisor, divisor] {
                assert_eq!(remainder.remainder(multiple), 0);
                assert_eq!(remainder.remainder(multiple - 1), divisor - 1);
            }
        }
        assert_eq!(FastRemainder::new(1 << 63).remainder(MAX), MAX);
    }

    proptest! {
        #[test]
        fn remainders_are_those_of_dividing(
            number in 0..=MAX,
            divisor in 1..=MAX,
            number_shift in 0u32..63,
            divisor_shift in 0u32..63,
        ) {
            let (number, divisor) = (number >> number_shift, (divisor >> divisor_shift).max(1));
            prop_assert_eq!(FastRemainder::new(divisor).remainder(number), number % divisor);
        }
    }
}
