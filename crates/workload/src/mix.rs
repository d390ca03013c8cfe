//! The kinds of operations, and their proportions.

use std::fmt;

use rand::Rng;

use crate::draw::distribution::RequestDistribution;

/// The action of one operation. The order applies to every table of operations in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    Read,
    Update,
    Insert,
    Scan,
    /// A read followed by an update of the same record, timed as one.
    ReadModifyWrite,
    Delete,
}

impl OperationKind {
    pub const ALL: [OperationKind; 6] = [
        OperationKind::Read,
        OperationKind::Update,
        OperationKind::Insert,
        OperationKind::Scan,
        OperationKind::ReadModifyWrite,
        OperationKind::Delete,
    ];

    /// The name in records: `read-modify-write`.
    pub fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Update => "update",
            OperationKind::Insert => "insert",
            OperationKind::Scan => "scan",
            OperationKind::ReadModifyWrite => "read-modify-write",
            OperationKind::Delete => "delete",
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The weight of each kind of operation. Weights need not add up to one: each counts against their sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationProportions {
    weights: [f64; 6],
}

impl OperationProportions {
    /// The weights of a mix; a kind that is left out has none.
    ///
    /// # Errors
    /// When a weight is negative or not finite, or when none is positive.
    pub fn new(weights: &[(OperationKind, f64)]) -> Result<Self, String> {
        let mut proportions = OperationProportions { weights: [0.0; 6] };
        for &(kind, weight) in weights {
            if !weight.is_finite() || weight < 0.0 {
                return Err(format!(
                    "the proportion of {kind} operations is {weight}: expected a number of at least 0"
                ));
            }
            proportions.weights[kind as usize] += weight;
        }
        let total = proportions.weights.iter().sum::<f64>();
        if total > 0.0 && total.is_finite() {
            Ok(proportions)
        } else {
            Err(format!("the proportions of all operations add up to {total}: expected more than 0"))
        }
    }

    fn preset(weights: &[(OperationKind, f64)]) -> Self {
        OperationProportions::new(weights).expect("presets are valid")
    }

    /// The share of operations of this kind, 0 to 1.
    pub fn share(&self, kind: OperationKind) -> f64 {
        self.weights[kind as usize] / self.weights.iter().sum::<f64>()
    }

    /// A chooser of operations with these shares.
    pub fn chooser(&self) -> OperationChooser {
        let mut chooser =
            OperationChooser { kinds: [OperationKind::Read; 6], bounds: [u64::MAX; 6], last: 0 };
        let mut sum = 0.0;
        let mut count = 0;
        for kind in OperationKind::ALL.into_iter().filter(|&kind| self.share(kind) > 0.0) {
            sum += self.share(kind);
            chooser.kinds[count] = kind;
            // Values above 64 bits become the highest number.
            chooser.bounds[count] = (sum * DRAWS) as u64;
            count += 1;
        }
        // A weight is positive by construction.
        chooser.last = count.saturating_sub(1);
        chooser
    }
}

/// The number of possible draws of 64 bits.
const DRAWS: f64 = 18_446_744_073_709_551_616.0;

/// Draws operations by cumulative share.
#[derive(Clone, Copy, Debug)]
pub struct OperationChooser {
    /// The kinds with a share.
    kinds: [OperationKind; 6],
    /// Where the draws of the next kind begin. The last kind has no bound, since rounding may leave the shares' sum
    /// below 1.
    bounds: [u64; 6],
    /// The place of the last kind.
    last: usize,
}

impl OperationChooser {
    #[inline]
    pub fn choose<R: Rng>(&self, rng: &mut R) -> OperationKind {
        self.kind_of(rng.next_u64())
    }

    /// The kind that 64 random bits stand for.
    #[inline(always)]
    pub fn kind_of(&self, draw: u64) -> OperationKind {
        // Bounds never decrease, so the number of passed bounds is the place of the first one not passed. Counting has
        // no branch, which the processor would mispredict every other time.
        let passed: usize = self.bounds[..self.last].iter().map(|&bound| usize::from(draw >= bound)).sum();
        self.kinds[passed]
    }
}

/// How the operations of a mix visit the records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixKind {
    /// Inserts every record once, in the order of their numbers.
    Load,
    /// Draws operations by proportion and keys by the request distribution, without end.
    Transactions(OperationProportions),
    /// Deletes every record once, in the order of their numbers.
    Delete,
}

/// A named mix of operations: `load`, YCSB's `a` to `f`, `delete`, or custom proportions, which a name like
/// `read80-update20` spells out.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationMix {
    name: String,
    kind: MixKind,
}

impl OperationMix {
    /// The names that [`OperationMix::parse`] knows.
    pub const NAMES: [&'static str; 8] = ["load", "a", "b", "c", "d", "e", "f", "delete"];

    /// A standard mix by its name, in either case, or a custom one by its shares in percent. YCSB's file names
    /// (`workloada`) are accepted too.
    ///
    /// # Errors
    /// When there is no mix of this name.
    pub fn parse(name: &str) -> Result<OperationMix, UnknownMix> {
        use OperationKind::{Insert, Read, ReadModifyWrite, Scan, Update};
        let lower = name.trim().to_ascii_lowercase();
        let short = lower.strip_prefix("workload").unwrap_or(&lower);
        let transactions =
            |weights: &[(OperationKind, f64)]| MixKind::Transactions(OperationProportions::preset(weights));
        let kind = match short {
            "load" => MixKind::Load,
            "delete" => MixKind::Delete,
            "a" => transactions(&[(Read, 0.5), (Update, 0.5)]),
            "b" => transactions(&[(Read, 0.95), (Update, 0.05)]),
            "c" => transactions(&[(Read, 1.0)]),
            "d" => transactions(&[(Read, 0.95), (Insert, 0.05)]),
            "e" => transactions(&[(Scan, 0.95), (Insert, 0.05)]),
            "f" => transactions(&[(Read, 0.5), (ReadModifyWrite, 0.5)]),
            _ => {
                return match shares_of(short) {
                    Some(proportions) => Ok(OperationMix::spelt_out(proportions)),
                    None => Err(UnknownMix { name: name.to_owned() }),
                };
            }
        };
        Ok(OperationMix { name: short.to_owned(), kind })
    }

    /// Custom proportions; if they match a standard mix, they get its name.
    pub fn from_proportions(proportions: OperationProportions) -> OperationMix {
        let same = |mix: &OperationMix| match mix.kind {
            MixKind::Transactions(standard) => OperationKind::ALL
                .iter()
                .all(|&kind| (standard.share(kind) - proportions.share(kind)).abs() < 1e-9),
            MixKind::Load | MixKind::Delete => false,
        };
        OperationMix::NAMES
            .iter()
            .filter_map(|name| OperationMix::parse(name).ok())
            .find(same)
            .unwrap_or(OperationMix { name: "custom".to_owned(), kind: MixKind::Transactions(proportions) })
    }

    /// Custom proportions under a name that spells them out in percent, `read80-update20`, and that
    /// [`OperationMix::parse`] accepts.
    pub fn spelt_out(proportions: OperationProportions) -> OperationMix {
        let percent = |kind| {
            // To a thousandth of a percent, a difference that no run can detect.
            let share = (proportions.share(kind) * 1e5).round() / 1e3;
            (share > 0.0).then(|| format!("{}{share}", short_name(kind)))
        };
        let name = OperationKind::ALL.into_iter().filter_map(percent).collect::<Vec<_>>().join("-");
        OperationMix { name, kind: MixKind::Transactions(proportions) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn kind(&self) -> MixKind {
        self.kind
    }

    /// True for `load` and `delete`, which end when every record was visited.
    pub fn visits_every_record(&self) -> bool {
        matches!(self.kind, MixKind::Load | MixKind::Delete)
    }

    /// The share of operations of this kind, 0 to 1.
    pub fn share(&self, kind: OperationKind) -> f64 {
        match self.kind {
            MixKind::Load => f64::from(kind == OperationKind::Insert),
            MixKind::Delete => f64::from(kind == OperationKind::Delete),
            MixKind::Transactions(proportions) => proportions.share(kind),
        }
    }

    /// True when a system must support scans for it.
    pub fn scans(&self) -> bool {
        self.share(OperationKind::Scan) > 0.0
    }

    /// True when it adds or removes records, so that a data set is no longer the loaded one afterwards.
    pub fn changes_the_key_set(&self) -> bool {
        self.share(OperationKind::Insert) > 0.0 || self.share(OperationKind::Delete) > 0.0
    }

    /// The request distribution in YCSB's own workload file for this mix. Custom proportions have CoreWorkload's
    /// default.
    pub fn default_distribution(&self) -> RequestDistribution {
        match self.name.as_str() {
            "load" | "delete" => RequestDistribution::Sequential,
            "d" => RequestDistribution::Latest,
            "a" | "b" | "c" | "e" | "f" => RequestDistribution::Zipfian,
            _ => RequestDistribution::Uniform,
        }
    }

    /// The longest scan in records: 100 in workload E's file, 1,000 otherwise.
    pub fn default_max_scan_length(&self) -> u32 {
        if self.name == "e" { 100 } else { 1000 }
    }
}

/// The form used in names of mixes.
fn short_name(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::ReadModifyWrite => "rmw",
        other => other.name(),
    }
}

/// The proportions that a name spells out: kinds with their percentages, which add up to 100.
fn shares_of(name: &str) -> Option<OperationProportions> {
    let mut weights: Vec<(OperationKind, f64)> = Vec::new();
    for part in name.split('-') {
        let digits = part.find(|letter: char| letter.is_ascii_digit())?;
        let (kind, percent) = part.split_at(digits);
        let kind = OperationKind::ALL.into_iter().find(|one| short_name(*one) == kind)?;
        let is_plain = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let percent: f64 = percent.parse().ok().filter(|_| is_plain)?;
        if weights.iter().any(|(other, _)| *other == kind) {
            return None;
        }
        weights.push((kind, percent));
    }
    let sum: f64 = weights.iter().map(|(_, percent)| percent).sum();
    // Each is rounded to a thousandth.
    ((sum - 100.0).abs() < 0.005).then(|| OperationProportions::new(&weights).ok()).flatten()
}

impl fmt::Display for OperationMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no mix '{name}': expected one of {}, or shares in percent as in read80-update20",
    OperationMix::NAMES.join(", ")
)]
pub struct UnknownMix {
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelled_mix_name_rereads() {
        use OperationKind::{Insert, Read, ReadModifyWrite, Scan, Update};
        for (weights, name) in [
            (vec![(Update, 1.0)], "update100"),
            (vec![(Read, 4.0), (Update, 1.0)], "read80-update20"),
            (vec![(ReadModifyWrite, 0.125), (Scan, 0.875)], "scan87.5-rmw12.5"),
            (vec![(Read, 1.0), (Update, 1.0), (Insert, 1.0)], "read33.333-update33.333-insert33.333"),
        ] {
            let mix = OperationMix::spelt_out(OperationProportions::new(&weights).unwrap());
            assert_eq!(mix.name(), name);
            let again = OperationMix::parse(name).unwrap();
            assert_eq!(again.name(), name);
            for kind in OperationKind::ALL {
                assert!((again.share(kind) - mix.share(kind)).abs() < 1e-5, "{name}");
            }
        }
        assert_eq!(OperationMix::parse("Update20-Read80").unwrap().name(), "read80-update20");
    }

    #[test]
    fn malformed_shares_are_no_mix() {
        for name in [
            "read80",
            "read80-update30",
            "read50-read50",
            "walk100",
            "read",
            "read-100",
            "read1e2",
            "readinf",
            "100",
            "",
        ] {
            let error = OperationMix::parse(name).unwrap_err().to_string();
            assert!(error.contains("read80-update20"), "{name}: {error}");
        }
    }
}
