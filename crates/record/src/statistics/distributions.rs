//! Student's t, for any error estimate's degrees of freedom.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Degrees of freedom from which Student's t is the normal distribution within 0.1 %. Beyond it, statrs loses digits.
const NORMAL_DEGREES: f64 = 5_000.0;

/// Degrees of freedom below one are taken as one: an error known no better than that has no useful interval.
fn student_t(degrees: f64) -> StudentsT {
    let degrees = if degrees.is_nan() { 1.0 } else { degrees.clamp(1.0, NORMAL_DEGREES) };
    StudentsT::new(0.0, 1.0, degrees).expect("the degrees of freedom are positive")
}

/// Probability that Student's t with `degrees` degrees of freedom is at least as far from 0 as `t`: exact to its last
/// digits where it is small.
pub fn student_t_both_tails(t: f64, degrees: f64) -> f64 {
    // A record may hold numbers whose ratio is none, and statrs panics on NaN.
    if t.is_nan() { f64::NAN } else { 2.0 * student_t(degrees).sf(t.abs()) }
}

/// The value that Student's t stays below with `probability` (0 to 1, both excluded).
pub fn student_t_quantile(probability: f64, degrees: f64) -> f64 {
    student_t(degrees).inverse_cdf(probability)
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
        for degrees in [f64::NAN, f64::NEG_INFINITY, 0.0, 1e-300, 0.7] {
            assert_eq!(student_t_quantile(0.975, degrees), student_t_quantile(0.975, 1.0), "{degrees}");
        }
    }

    #[test]
    fn distribution_tails_match_printed_table() {
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
        assert!(student_t_both_tails(f64::NAN, 7.0).is_nan());
    }

    #[test]
    fn quantile_is_inverse_of_tails() {
        for degrees in [0.2, 1.0, 1.3, 2.7, 33.3, 1234.5, 1e9, f64::INFINITY] {
            for probability in [0.6, 0.9, 0.975, 0.9995, 0.999_999] {
                let both_tails = student_t_both_tails(student_t_quantile(probability, degrees), degrees);
                let expected = 2.0 * (1.0 - probability);
                assert!(
                    (both_tails / expected - 1.0).abs() < 1e-6,
                    "{probability} of {degrees} degrees: {both_tails}"
                );
            }
        }
    }
}
