//! Whether two generators draw from one law, told from what they drew.

use std::collections::BTreeMap;

/// Values that both drew less often than this, together, are joined with their neighbours: the statistic's law is only
/// right for cells that are not too small.
const MIN_PER_CELL: u64 = 20;
/// How many cells a comparison of shapes has.
const CELLS_OF_A_SHAPE: u64 = 20;

/// The chi-square statistic of homogeneity of two samples, and its degrees of freedom. Cells follow the order of the
/// values.
pub(crate) fn statistic<K: Ord>(ours: &BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) -> (f64, f64) {
    over_cells(pairs(ours, theirs), MIN_PER_CELL)
}

/// The same over few cells, each with as many draws, of values in the order of how often they came. A law that is a
/// little steeper or flatter changes every value by less than chance does: it shows where many are taken together. The
/// order follows from what both drew together, which says nothing of how it is divided among them.
pub(crate) fn statistic_of_shape<K: Ord>(ours: &BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) -> (f64, f64) {
    let mut pairs = pairs(ours, theirs);
    pairs.sort_by_key(|(ours, theirs)| std::cmp::Reverse(ours + theirs));
    let all: u64 = pairs.iter().map(|(ours, theirs)| ours + theirs).sum();
    over_cells(pairs, (all / CELLS_OF_A_SHAPE).max(MIN_PER_CELL))
}

/// How often each value came on both sides.
fn pairs<K: Ord>(ours: &BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) -> Vec<(u64, u64)> {
    let mut both: BTreeMap<&K, (u64, u64)> = BTreeMap::new();
    for (value, count) in ours {
        both.entry(value).or_default().0 += count;
    }
    for (value, count) in theirs {
        both.entry(value).or_default().1 += count;
    }
    both.into_values().collect()
}

fn over_cells(pairs: Vec<(u64, u64)>, fewest_in_a_cell: u64) -> (f64, f64) {
    let mut cells: Vec<(u64, u64)> = Vec::new();
    let mut open = (0, 0);
    for (left, right) in pairs {
        open = (open.0 + left, open.1 + right);
        if open.0 + open.1 >= fewest_in_a_cell {
            cells.push(std::mem::take(&mut open));
        }
    }
    match cells.last_mut() {
        Some(last) => *last = (last.0 + open.0, last.1 + open.1),
        None => cells.push(open),
    }
    let sum = |side: fn(&(u64, u64)) -> u64| cells.iter().map(side).sum::<u64>() as f64;
    let (left, right) = (sum(|cell| cell.0), sum(|cell| cell.1));
    let (to_left, to_right) = ((right / left).sqrt(), (left / right).sqrt());
    let squares = cells.iter().map(|&(ours, theirs)| {
        (to_left * ours as f64 - to_right * theirs as f64).powi(2) / (ours + theirs) as f64
    });
    (squares.sum(), cells.len() as f64 - 1.0)
}

/// By how many standard deviations of a normal distribution the statistic is too large (E. B. Wilson and M. M.
/// Hilferty, "The Distribution of Chi-Square", PNAS 17 (1931)).
pub(crate) fn excess((statistic, freedom): (f64, f64)) -> f64 {
    if freedom < 1.0 {
        return 0.0;
    }
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Why two samples can't be of one law, if they can't. YCSB's draws are other ones every time, so this must hardly ever
/// come of chance: beyond five standard deviations lies one outcome in three million.
pub(crate) fn difference<K: Ord>(ours: &BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) -> Option<String> {
    let statistics =
        [("value by value", statistic(ours, theirs)), ("in shape", statistic_of_shape(ours, theirs))];
    let (method, found) = statistics.into_iter().find(|&(_, found)| excess(found) >= 5.0)?;
    let (statistic, freedom) = found;
    Some(format!(
        "{method}, chi-square is {statistic:.1} at {freedom} degrees of freedom, {:.1} standard deviations too large",
        excess(found)
    ))
}

pub(crate) fn assert_same<K: Ord>(label: &str, ours: &BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) {
    if let Some(difference) = difference(ours, theirs) {
        panic!("{label}: {difference}");
    }
}

fn counted(draws: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    draws.for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

/// A sequence that is as uneven as a random one: multiples of the golden ratio, hashed.
fn noise(seed: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| {
        let mixed = (index + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
    })
}

#[test]
fn same_law_passes_and_another_fails() {
    let uniform = |seed| counted(noise(seed, 100_000).map(|word| word % 1000));
    assert!(excess(statistic(&uniform(1), &uniform(7_000_000))) < 5.0);
    // Odd values a tenth too often.
    let odd = |word: u64| if word.is_multiple_of(5) { (word % 1000) | 1 } else { word % 1000 };
    assert!(excess(statistic(&uniform(1), &counted(noise(3_000_000, 100_000).map(odd)))) > 5.0);
    // Ten values of a thousand that never come.
    let gap = counted(noise(5_000_000, 100_000).map(|word| word % 990 + 10));
    assert!(excess(statistic(&uniform(1), &gap)) > 5.0);
}

#[test]
fn samples_of_different_sizes_are_compared_by_their_shares() {
    let few = BTreeMap::from([("read", 500), ("update", 500)]);
    let many = BTreeMap::from([("read", 50_300), ("update", 49_700)]);
    assert!(excess(statistic(&few, &many)) < 2.0);
    let other = BTreeMap::from([("read", 60_000), ("update", 40_000)]);
    assert!(excess(statistic(&few, &other)) > 5.0);
    // The textbook's figure for two rows of two: 20 : 30 against 30 : 20.
    let (found, freedom) =
        statistic(&BTreeMap::from([(0, 20), (1, 30)]), &BTreeMap::from([(0, 30), (1, 20)]));
    assert!((found - 4.0).abs() < 1e-9 && freedom == 1.0, "{found} {freedom}");
}

#[test]
fn shape_statistic_detects_what_single_values_miss() {
    // A tenth of the values has 70 % of the draws, or 68.
    let hot = |seed, percent| {
        counted(noise(seed, 100_000).map(move |word| match word % 100 < percent {
            true => word / 128 % 100,
            false => 100 + word / 128 % 900,
        }))
    };
    let (one, other) = (hot(1, 70), hot(9_000_000, 68));
    assert!(excess(statistic(&one, &other)) < 5.0);
    assert!(excess(statistic_of_shape(&one, &other)) > 5.0);
    // One law in two samples shows none, although both have the order of the cells in common.
    assert!(excess(statistic_of_shape(&one, &hot(9_000_000, 70))) < 4.0);
    let uniform = |seed| counted(noise(seed, 100_000).map(|word| word % 1000));
    assert!(excess(statistic_of_shape(&uniform(1), &uniform(7_000_000))) < 4.0);
}
