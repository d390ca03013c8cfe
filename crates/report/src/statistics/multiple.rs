//! Many comparisons at once: of a hundred without any difference, five would show one by chance.

/// The p-values corrected so that all of them together are wrong with the probability that each has: of those below
/// 0.05, even one is a false alarm in at most 5 % of cases, however the comparisons depend on one another.
///
/// S. Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of Statistics 6 (1979).
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut corrected = vec![1.0; p_values.len()];
    let mut highest = 0.0f64;
    for (rank, &index) in order.iter().enumerate() {
        let left = (p_values.len() - rank) as f64;
        // Holm rejects step by step and stops at the first that stays: none may end up below one before it.
        highest = highest.max((left * p_values[index]).min(1.0));
        corrected[index] = highest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_compares_with_remaining_tests() {
        // Sorted they are 0.005, 0.01, 0.03 and 0.04, times 4, 3, 2 and 1; none below one before it.
        let found = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert_eq!(holm(&[0.7]), [0.7]);
        assert_eq!(holm(&[0.6, 0.9]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }
}
