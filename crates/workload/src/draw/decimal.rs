//! Decimal digits, eight at a time. Names of records are mostly digits, and a division by ten for each would take
//! longer than everything else that a name needs.

/// The number of digits written: more than a 64-bit number has.
pub(crate) const WIDTH: usize = 24;

const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;
const EIGHT_DIGITS: u64 = 100_000_000;

/// The digits of a number in three words of eight, the highest first.
pub(crate) type DigitWords = [u64; WIDTH / 8];

/// Splits a number into three parts of eight digits each.
#[inline]
pub(crate) fn parts(number: u64) -> DigitWords {
    let rest = number % (EIGHT_DIGITS * EIGHT_DIGITS);
    [number / (EIGHT_DIGITS * EIGHT_DIGITS), rest / EIGHT_DIGITS, rest % EIGHT_DIGITS]
}

/// The eight digits of a number below 10^8, one per byte, the first one in the lowest byte.
///
/// Three halvings, each on all parts at once: into two of four digits, four of two, eight of one. A quotient is a
/// product with a rounded reciprocal and a shift: 109951163 / 2^40 for 1 / 10,000 (exact below 10^8), 10486 / 2^20 for
/// 1 / 100 (exact below 43,699), 103 / 2^10 for 1 / 10 (exact below 179). What a part's shift takes from the next part
/// is masked away.
#[inline]
pub(crate) fn spread(part: u64) -> u64 {
    let high = (part * 109_951_163) >> 40;
    let fours = high | ((part - high * 10_000) << 32);
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - hundreds * 100) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - tens * 10) << 8)
}

/// Writes the digits of words that were [`spread`], and returns the position of the number's first digit. For zero that
/// is the last one.
#[inline]
pub(crate) fn write([high, middle, low]: DigitWords, text: &mut [u8; WIDTH]) -> usize {
    text[..8].copy_from_slice(&(high | ASCII_ZEROS).to_le_bytes());
    text[8..16].copy_from_slice(&(middle | ASCII_ZEROS).to_le_bytes());
    text[16..].copy_from_slice(&(low | ASCII_ZEROS).to_le_bytes());
    let leading_zeros = |digits: u64| digits.trailing_zeros() as usize / 8;
    if high != 0 {
        leading_zeros(high)
    } else if middle != 0 {
        8 + leading_zeros(middle)
    } else if low != 0 {
        16 + leading_zeros(low)
    } else {
        WIDTH - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(number: u64) -> (String, usize) {
        let mut text = [0u8; WIDTH];
        let first = write(parts(number).map(spread), &mut text);
        (String::from_utf8(text.to_vec()).unwrap(), first)
    }

    fn assert_written(number: u64) {
        let (text, first) = written(number);
        assert_eq!(text, format!("{number:0WIDTH$}"));
        assert_eq!(text[first..], number.to_string());
    }

    #[test]
    fn edges_of_every_length_are_right() {
        let mut power: u64 = 1;
        for _ in 0..20 {
            for number in [power - 1, power, power + 1] {
                assert_written(number);
            }
            power = power.saturating_mul(10);
        }
        assert_written(u64::MAX);
    }

    #[test]
    fn upper_half_is_quotient() {
        for upper in 1..10_000u64 {
            for part in [upper * 10_000 - 1, upper * 10_000] {
                assert_eq!((part * 109_951_163) >> 40, part / 10_000, "{part}");
            }
        }
        assert_eq!((99_999_999u64 * 109_951_163) >> 40, 9_999);
    }

    #[test]
    fn four_digits_are_right_in_both_halves() {
        for number in 0..10_000 {
            assert_written(number);
            assert_written(number * 10_000);
        }
    }

    proptest! {
        #[test]
        fn any_number_is_what_the_standard_library_prints(number in any::<u64>(), shift in 0u32..64) {
            assert_written(number >> shift);
        }
    }
}
