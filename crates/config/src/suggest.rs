//! "Did you mean": the known word nearest to what was typed.

use strsim::osa_distance;

/// A pasted paragraph is no typo, and comparing it would take its length squared.
const MAX_WORD_CHARACTERS: usize = 64;

/// The candidate that `word` most likely meant: about a third of its letters at most inserted, left out, replaced or
/// swapped with a neighbour, in either case. `None` when nothing is that near.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.chars().count() > MAX_WORD_CHARACTERS {
        return None;
    }
    let allowed = (word.chars().count() + 1) / 3;
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|&(distance, _)| distance <= allowed)
        // Letters are swapped more often than left out: of two equally near ones, that of the same length.
        .min_by_key(|&(distance, candidate)| (distance, candidate.len().abs_diff(word.len())))
        .map(|(_, candidate)| candidate)
}

/// Those of `candidates` that `word` may have been meant to be, nearest first, two at most.
///
/// More generous than [`closest`], since catalogue names are long and people leave parts off: a name that contains the
/// word counts.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if word.chars().count() > MAX_WORD_CHARACTERS {
        return Vec::new();
    }
    let mut near: Vec<(bool, usize, &str)> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let distance = osa_distance(word, candidate);
            let contained = word.len() >= 3 && candidate.contains(word);
            // A missing suffix says more than letters that happen to be alike: names share their patterns.
            (distance <= 1 + candidate.len() / 4 || contained).then_some((!contained, distance, candidate))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(2).map(|(_, _, candidate)| candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestion_for_typo_is_found() {
        let media = ["hdd-7200-sata", "hdd-7200-sas", "ssd-sata", "nvme-9300-max"];
        assert_eq!(closest("hdd-7200-stat", media), Some("hdd-7200-sata"));
        let in_other_order = ["hdd-7200-sas", "hdd-7200-sata"];
        assert_eq!(closest("hdd-7200-stat", in_other_order), Some("hdd-7200-sata"));
        assert_eq!(closest("nvme-9300", media), None, "four letters are missing, three may be");
        assert_eq!(closest("NVMe-9300-MAX", media), Some("nvme-9300-max"));
        assert_eq!(closest("tape", media), None);
        assert_eq!(closest("g", ["a", "f"]), None, "any letter is one letter away from any other");
        assert_eq!(closest("A", ["a", "f"]), Some("a"));
        assert_eq!(closest("warmpu", ["warmup", "duration"]), Some("warmup"));
    }
}
