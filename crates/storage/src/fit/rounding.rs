//! How many digits a fitted medium has.

/// To five digits, which is more than was measured.
pub(super) fn rounded(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 10f64.powf(4.0 - value.log10().floor());
    (value * digits).round() / digits
}
