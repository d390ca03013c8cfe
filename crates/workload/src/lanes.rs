//! The widest vectors that the processor has, for loops over many numbers.
//!
//! Programs are built for any processor of their architecture, whose vectors are short and can't multiply 64-bit numbers.

/// Runs `step`, of which what is inlined is compiled for the widest vectors too where this processor has them. The
/// results are the same to the bit: nothing is reordered or fused that would round differently.
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
