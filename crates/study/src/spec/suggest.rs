//! "Did you mean": the known word nearest to what was typed.

/// The candidate that `word` most likely meant: at most a third of its letters inserted, left out, replaced or
/// swapped with a neighbour, in either case. `None` when nothing is that near.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A pasted paragraph is no typo, and comparing it would take its length squared.
    if word.chars().count() > 64 {
        return None;
    }
    let allowed = word.chars().count() / 3;
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
fn edit_distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (i, &a) in left.iter().enumerate() {
        let mut row = vec![i + 1; right.len() + 1];
        for (j, &b) in right.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a == right[j - 1] && left[i - 1] == b {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        before_last = last;
        last = row;
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slip_of_the_fingers_finds_its_word() {
        let media = ["hdd-7200-sata", "hdd-7200-sas", "ssd-sata", "nvme-9300-max"];
        assert_eq!(closest("hdd-7200-stat", media), Some("hdd-7200-sata"));
        assert_eq!(closest("nvme-9300", media), None, "four letters are missing, three may be");
        assert_eq!(closest("NVMe-9300-MAX", media), Some("nvme-9300-max"));
        assert_eq!(closest("tape", media), None);
        assert_eq!(closest("g", ["a", "f"]), None, "any letter is one letter away from any other");
        assert_eq!(closest("A", ["a", "f"]), Some("a"));
        assert_eq!(closest("warmpu", ["warmup", "duration"]), Some("warmup"));
    }

    /// The definition, straight from its recurrence and slow.
    fn reference_distance(a: &[char], b: &[char]) -> usize {
        let (Some((&x, a_rest)), Some((&y, b_rest))) = (a.split_last(), b.split_last()) else {
            return a.len() + b.len();
        };
        let mut best = (reference_distance(a_rest, b_rest) + usize::from(x != y))
            .min(reference_distance(a_rest, b) + 1)
            .min(reference_distance(a, b_rest) + 1);
        if let (Some((&p, a_rest)), Some((&q, b_rest))) = (a_rest.split_last(), b_rest.split_last())
            && x == q
            && y == p
        {
            best = best.min(reference_distance(a_rest, b_rest) + 1);
        }
        best
    }

    proptest! {
        #[test]
        fn distance_is_as_defined(a in "[abc]{0,5}", b in "[abc]{0,5}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(edit_distance(&a, &b), reference_distance(&chars(&a), &chars(&b)));
        }
    }
}
