//! Failed checks of certificates: once for each cell and remedy, regardless of the number of checks.

use underlay_record::Check;

use super::{ReportWarning, WarningCollector, cell_name, key_of};
use crate::comparison::{CellResult, RunComparison};
use crate::quantity;

/// Checks that a warning lists; the report's certificates have all of them.
const CHECKS_TOLD: usize = 4;

/// Checks that failed together and have one remedy.
struct CheckCause<'r> {
    remedy: Option<&'r str>,
    /// Each with its worst repetition.
    checks: Vec<&'r Check>,
}

/// Causes of several cells that are the same.
struct SharedCauses<'r> {
    cells: Vec<String>,
    cause: CheckCause<'r>,
    /// Another cell or repetition was less bad.
    has_others: bool,
}

pub(super) fn about_certificates(comparison: &RunComparison, found: &mut WarningCollector) {
    let mut shared: Vec<SharedCauses> = Vec::new();
    for result in comparison.cells() {
        let name = cell_name(comparison, result);
        let doubtful = || result.certificates().filter(|one| one.is_doubtful());
        if doubtful().any(|certificate| certificate.failed().next().is_none()) {
            let text = "The certificate calls it doubtful, but names no failed check";
            found.add(ReportWarning::doubtful(text).with_cell(&name));
        }
        for cause in causes(result) {
            match shared.iter_mut().find(|entry| is_same(&entry.cause, &cause)) {
                Some(entry) => {
                    entry.has_others = true;
                    entry.cells.push(name.clone());
                    for (worst, check) in entry.cause.checks.iter_mut().zip(&cause.checks) {
                        *worst = worse(worst, check);
                    }
                }
                None => {
                    let is_repeated = doubtful().count() > 1;
                    shared.push(SharedCauses { cells: vec![name.clone()], cause, has_others: is_repeated });
                }
            }
        }
    }
    for one in shared {
        let text = format!("Doubtful, {}", describe_checks(&one.cause.checks, one.has_others));
        let warning = ReportWarning::doubtful(text);
        let remedy = one.cause.remedy.map(str::to_owned);
        found.add_as_it_is(ReportWarning { cells: one.cells, remedy, ..warning });
    }
}

/// The failed checks of a cell by what there is to try, in the order of its certificates.
fn causes<'r>(result: &CellResult<'r>) -> Vec<CheckCause<'r>> {
    let mut causes: Vec<CheckCause<'r>> = Vec::new();
    let failed = result.certificates().filter(|one| one.is_doubtful());
    for check in failed.flat_map(|certificate| certificate.failed()) {
        let remedy = check.remedy.as_deref();
        let is_known = |cause: &&mut CheckCause| cause.remedy.map(key_of) == remedy.map(key_of);
        let Some(cause) = causes.iter_mut().find(is_known) else {
            causes.push(CheckCause { remedy, checks: vec![check] });
            continue;
        };
        match cause.checks.iter_mut().find(|worst| worst.is_like(check)) {
            Some(worst) => *worst = worse(worst, check),
            None => cause.checks.push(check),
        }
    }
    causes
}

fn worse<'r>(one: &'r Check, other: &'r Check) -> &'r Check {
    if other.extent > one.extent { other } else { one }
}

fn is_same(one: &CheckCause, other: &CheckCause) -> bool {
    let is_like = |(one, other): (&&Check, &&Check)| one.is_like(other);
    one.remedy.map(key_of) == other.remedy.map(key_of)
        && one.checks.len() == other.checks.len()
        && one.checks.iter().zip(&other.checks).all(is_like)
}

/// `device latency mean: ...; p50: ...; p99: ...`
fn describe_checks(checks: &[&Check], has_others: bool) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut before = "";
    for check in checks.iter().take(CHECKS_TOLD) {
        words.push(format!("{}: {}", beyond(before, &check.name), check.finding));
        before = &check.name;
    }
    let more = checks.len().saturating_sub(CHECKS_TOLD);
    if more > 0 {
        words.push(format!("and {}", quantity::plural(more, "further check")));
    }
    let worst = if has_others { ", in the worst case" } else { "" };
    words.join("; ") + worst
}

/// A name without the words that it begins with like the one before it, as far as something is left.
fn beyond<'n>(before: &str, name: &'n str) -> &'n str {
    let (prefix_words, words): (Vec<&str>, Vec<&str>) =
        (before.split(' ').collect(), name.split(' ').collect());
    let same = prefix_words.iter().zip(&words).take_while(|(one, other)| one == other).count();
    if same == 0 || same >= words.len() {
        return name;
    }
    let skipped: usize = words[..same].iter().map(|word| word.len() + 1).sum();
    &name[skipped..]
}

#[cfg(test)]
mod tests {
    use underlay_record::CheckId;

    use super::*;

    #[test]
    fn check_name_prefix_is_not_repeated() {
        assert_eq!(beyond("", "device latency mean"), "device latency mean");
        assert_eq!(beyond("device latency mean", "device latency p50"), "p50");
        assert_eq!(beyond("device latency p50", "write latency mean"), "write latency mean");
        assert_eq!(beyond("CPU", "CPU"), "CPU");
    }

    #[test]
    fn listed_checks_are_limited() {
        let checks: Vec<Check> = [
            CheckId::DeviceLatencyMean,
            CheckId::DeviceLatencyP50,
            CheckId::PathOverhead,
            CheckId::SystemCpu,
            CheckId::CpuSpeed,
            CheckId::CpuSlices,
        ]
        .map(|id| Check::new(id, false, "late"))
        .into();
        let all: Vec<&Check> = checks.iter().collect();
        let words = "device latency mean: late; p50: late; path overhead: late; system CPU: late; and 2 further checks";
        assert_eq!(describe_checks(&all, false), words);
        assert_eq!(describe_checks(&all[..1], true), "device latency mean: late, in the worst case");
    }
}
