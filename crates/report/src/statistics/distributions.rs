//! Quantiles of Student's t, from the incomplete beta function.

/// Natural logarithm of the gamma function for positive arguments.
///
/// Stirling's series (NIST DLMF 5.11.1) after shifting the argument above 10, where three terms leave an error
/// below 1e-10.
fn ln_gamma(x: f64) -> f64 {
    let mut shift = 0.0;
    let mut x = x;
    while x < 10.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}

/// The regularised incomplete beta function I_x(a, b), for `0 <= x <= 1` and positive `a`, `b`.
///
/// The continued fraction of NIST DLMF 8.17.22, evaluated from the front by Lentz's method; where it converges
/// slowly the symmetry I_x(a, b) = 1 − I_(1−x)(b, a) is used.
pub fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    // Keeps a vanishing denominator from dividing by zero, as Lentz's method prescribes.
    let guard = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for step in 1..10_000 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / guard(1.0 + even * d);
        c = guard(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guard(1.0 + odd * d);
        c = guard(1.0 + odd / c);
        let change = d * c;
        fraction *= change;
        if (change - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * fraction
}

/// Probability that Student's t with `degrees` degrees of freedom is at most `t`.
pub fn student_t_cdf(t: f64, degrees: f64) -> f64 {
    // NIST DLMF 8.17 relates both tails together to I_x(ν/2, 1/2) at x = ν / (ν + t²).
    let tail = 0.5 * incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5);
    if t >= 0.0 { 1.0 - tail } else { tail }
}

/// Probability that Student's t with `degrees` degrees of freedom, of which less than one count as one, is at least as far
/// from 0 as `t`: exact to its last digits where it is small.
pub fn student_t_both_tails(t: f64, degrees: f64) -> f64 {
    let degrees = if degrees.is_nan() { 1.0 } else { degrees.clamp(1.0, NORMAL_DEGREES) };
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(degrees / (degrees + t * t), degrees / 2.0, 0.5)
}

/// Degrees of freedom from which Student's t is the normal distribution within 0.1 %.
const NORMAL_DEGREES: f64 = 5_000.0;

/// The value that Student's t stays below with `probability` (0 to 1, both excluded).
///
/// Degrees of freedom below one are taken as one: an error known no better than that has no useful interval.
pub fn student_t_quantile(probability: f64, degrees: f64) -> f64 {
    let degrees = if degrees.is_nan() { 1.0 } else { degrees.clamp(1.0, NORMAL_DEGREES) };
    if probability < 0.5 {
        return -student_t_quantile(1.0 - probability, degrees);
    }
    let mut low = 0.0;
    let mut high = 1.0;
    while student_t_cdf(high, degrees) < probability && high < 1e12 {
        high *= 2.0;
    }
    // The distribution only rises, so bisection is certain; 80 halvings of at most 1e12 leave about 1e-12.
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if student_t_cdf(middle, degrees) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_quantiles_are_those_of_the_printed_table() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
        for (degrees, probability, expected) in [
            (1.0, 0.975, 12.706),
            (2.0, 0.975, 4.303),
            (3.0, 0.95, 2.353),
            (5.0, 0.99, 3.365),
            (10.0, 0.975, 2.228),
            (30.0, 0.975, 2.042),
            (100.0, 0.975, 1.984),
            (f64::INFINITY, 0.975, 1.960),
        ] {
            let found = student_t_quantile(probability, degrees);
            assert!((found - expected).abs() < 1.1e-3, "{degrees} degrees: {found}, expected {expected}");
        }
    }

    #[test]
    fn both_tails_are_those_of_the_printed_table() {
        for (degrees, t, expected) in
            [(1.0, 12.706, 0.05), (5.0, 4.032, 0.01), (30.0, 3.646, 0.001), (1e9, 1.960, 0.05)]
        {
            let found = student_t_both_tails(t, degrees);
            assert!(
                (found / expected - 1.0).abs() < 2e-3,
                "{t} of {degrees} degrees: {found}, expected {expected}"
            );
        }
        assert_eq!([0.0, f64::INFINITY].map(|t| student_t_both_tails(t, 7.0)), [1.0, 0.0]);
        assert!((1e-40..1e-20).contains(&student_t_both_tails(12.0, 1e9)));
    }

    #[test]
    fn the_incomplete_beta_function_has_its_closed_forms() {
        for x in [0.01, 0.2, 0.5, 0.77, 0.999] {
            assert!((incomplete_beta(x, 1.0, 1.0) - x).abs() < 1e-12);
            assert!((incomplete_beta(x, 3.0, 1.0) - x.powi(3)).abs() < 1e-10);
            assert!((incomplete_beta(x, 1.0, 4.0) - (1.0 - (1.0 - x).powi(4))).abs() < 1e-10);
        }
    }
}
