//! The widest vectors of the processor, for loops over many numbers.
//!
//! Programs are built for any processor of their architecture, with short vectors that can't multiply 64-bit numbers.

/// Runs `step`; its inlined parts are also compiled for the widest vectors, if this processor has them. The results are
/// identical to the bit: nothing is reordered or fused in a way that would round differently.
#[inline(always)]
pub(crate) fn widest<T>(step: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi2")
    {
        #[target_feature(enable = "avx512f,avx512cd,avx512dq,avx512vl,bmi2")]
        fn on_512_bits<T>(step: impl FnOnce() -> T) -> T {
            step()
        }
        // SAFETY: the processor has all that the function is compiled for.
        return unsafe { on_512_bits(step) };
    }
    step()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::draw::distribution::KeyRange;
    use crate::draw::distribution::ScrambledZipfian;
    use crate::draw::keys::{InsertOrder, KeyNaming, RecordKeys};

    proptest! {
        /// Records and their names, on any processor.
        #[test]
        fn wide_vectors_change_nothing(
            bits in prop::collection::vec(any::<u64>(), 1..65),
            records in 1u64..1 << 60,
            order in prop::sample::select(vec![InsertOrder::Hashed, InsertOrder::Ordered]),
            zero_padding in 0u32..40,
        ) {
            let zipfian = ScrambledZipfian::new(KeyRange::new(0, records).unwrap());
            let mut names = RecordKeys::new(KeyNaming { order, zero_padding }, records, bits.len());
            let mut narrow = bits.clone();
            zipfian.replace_all(&mut narrow);
            let mut wide = bits;
            widest(#[inline(always)] || zipfian.replace_all(&mut wide));
            prop_assert_eq!(&narrow, &wide);
            let made = |names: &RecordKeys| (0..wide.len()).map(|place| names.get(place).to_vec()).collect::<Vec<_>>();
            names.write_all(&mut narrow);
            let narrow_names = made(&names);
            let mut numbers = wide.clone();
            widest(#[inline(always)] || names.write_all(&mut numbers));
            prop_assert_eq!(made(&names), narrow_names);
        }
    }
}
