//! The CPU time of an operation: a base, additions for a device read and a write, and the system's own use even when
//! idle.

use crate::cell::MeasuredCell;

/// Rounds of the fit: each parameter in turn, none below zero.
const ROUNDS: usize = 400;
/// The maximum CPU share of an idle system, for timers and statistics, relative to its cores' time.
const MAX_IDLE_SHARE: f64 = 0.05;

/// `each_us + read_us x reads + write_us x writes` for an operation; `idle_us_per_s` is spent in each second in
/// addition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CpuTime {
    pub each_us: f64,
    pub read_us: f64,
    /// The additional CPU time of a write, background work included.
    pub write_us: f64,
    pub idle_us_per_s: f64,
}

/// The terms of an operation's CPU time, in the order of the parameters.
const TERMS: usize = 4;
const IDLE: usize = 3;

/// A measured cell in the form for the fit.
#[derive(Clone, Copy, Debug)]
struct FitRow {
    terms: [f64; TERMS],
    cpu_us: f64,
    weight: f64,
}

impl CpuTime {
    /// From cells of one system, whatever their mix and distribution, each with its weight. `None` if no CPU time was
    /// measured.
    pub(crate) fn fit<'a>(cells: impl Iterator<Item = (&'a MeasuredCell, f64)>) -> Option<CpuTime> {
        let mut cores = 0u32;
        let rows: Vec<FitRow> = cells
            .inspect(|(cell, _)| cores = cores.max(cell.point.cores.unwrap_or(0)))
            .filter(|(cell, _)| cell.demand.cpu_us() > 0.0)
            .map(|(cell, weight)| FitRow {
                terms: [
                    1.0,
                    cell.demand.reads(),
                    cell.demand.writing_share(),
                    1.0 / cell.figures.throughput_per_s.value.max(1e-9),
                ],
                cpu_us: cell.demand.cpu_us(),
                weight,
            })
            .collect();
        fit(&rows, MAX_IDLE_SHARE * 1e6 * f64::from(cores.max(1)))
    }

    /// For an operation with this many device reads and this many writes (0 or 1, or the share of operations that
    /// write).
    pub(crate) fn estimate(&self, reads: f64, writes: f64) -> f64 {
        self.each_us + self.read_us * reads + self.write_us * writes
    }
}

/// Several cells of one system show how much CPU time a read adds to an operation, so that reading kinds get more of
/// it.
pub fn divide_cpu_time(cells: &mut [MeasuredCell]) {
    let times: Vec<Option<CpuTime>> = cells
        .iter()
        .map(|cell| {
            let alike = cells.iter().filter(|other| {
                let (a, b) = (&cell.point, &other.point);
                a.system == b.system && a.settings == b.settings
            });
            CpuTime::fit(alike.map(|other| (other, 1.0)))
        })
        .collect();
    for (cell, time) in cells.iter_mut().zip(times) {
        let Some(time) = time else { continue };
        let whole = cell.demand.cpu_us();
        cell.demand
            .classes
            .iter_mut()
            .for_each(|class| class.cpu_us = time.estimate(class.reads, f64::from(u8::from(class.writes))));
        let divided = cell.demand.cpu_us();
        if divided > 0.0 {
            cell.demand.classes.iter_mut().for_each(|class| class.cpu_us *= whole / divided);
        }
    }
}

/// Least squares of relative errors, with no parameter below zero: coordinate descent, which converges since the
/// problem is convex.
fn fit(rows: &[FitRow], most_idle_us: f64) -> Option<CpuTime> {
    if rows.is_empty() {
        return None;
    }
    // A single cell gives a single value: the time of an operation.
    let smallest = rows.iter().map(|row| row.cpu_us).fold(f64::INFINITY, f64::min);
    let mut found = [smallest, 0.0, 0.0, 0.0];
    let is_varied = |term: usize| {
        let values = || rows.iter().map(|row| row.terms[term]);
        let (low, high) =
            values().fold((f64::INFINITY, 0.0f64), |(low, high), one| (low.min(one), high.max(one)));
        term == 0 || high > 1.1 * low + 1e-12
    };
    // Two cells can't separate four values: idle use is considered the least likely.
    let term_count = rows.len().min(TERMS);
    let free: Vec<usize> = (0..TERMS).filter(|&term| is_varied(term)).take(term_count).collect();
    for _ in 0..ROUNDS {
        for &term in &free {
            let (mut up, mut down) = (0.0, 0.0);
            for row in rows {
                let others: f64 = (0..TERMS)
                    .filter(|&other| other != term)
                    .map(|other| found[other] * row.terms[other])
                    .sum();
                let weight = row.weight / (row.cpu_us * row.cpu_us);
                up += weight * row.terms[term] * (row.cpu_us - others);
                down += weight * row.terms[term] * row.terms[term];
            }
            if down > 0.0 {
                let most = if term == IDLE { most_idle_us } else { f64::INFINITY };
                found[term] = (up / down).clamp(0.0, most);
            }
        }
    }
    let [each_us, read_us, write_us, idle_us_per_s] = found;
    Some(CpuTime { each_us, read_us, write_us, idle_us_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reads: f64, writes: f64, per_s: f64, cpu_us: f64) -> FitRow {
        FitRow { terms: [1.0, reads, writes, 1.0 / per_s], cpu_us, weight: 1.0 }
    }

    #[test]
    fn fitted_cpu_parts_match_generated_cells() {
        let sample_row = |reads: f64, writes: f64, per_s: f64| {
            row(reads, writes, per_s, 15.0 + 60.0 * reads + 30.0 * writes + 2e5 / per_s)
        };
        let rows = [
            sample_row(0.0, 0.0, 1e6),
            sample_row(0.6, 0.05, 2.8e5),
            sample_row(0.9, 0.0, 1.9e5),
            sample_row(0.3, 0.5, 2e5),
            sample_row(0.7, 0.05, 3.8e3),
            sample_row(1.0, 0.0, 2.5e3),
        ];
        let found = fit(&rows, 8e5).unwrap();
        assert!((found.each_us - 15.0).abs() < 1.0, "{found:?}");
        assert!((found.read_us - 60.0).abs() < 3.0, "{found:?}");
        assert!((found.write_us - 30.0).abs() < 5.0, "{found:?}");
        assert!((found.idle_us_per_s / 2e5 - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn few_cells_tell_few_parts() {
        assert_eq!(fit(&[], 8e5), None);
        let one = fit(&[row(0.9, 0.0, 1e5, 70.0)], 8e5).unwrap();
        assert!((one.estimate(0.9, 0.0) - 70.0).abs() < 1e-6 && one.read_us == 0.0, "{one:?}");
        let two = fit(&[row(0.0, 0.0, 1e6, 15.0), row(1.0, 0.0, 1e5, 75.0)], 8e5).unwrap();
        assert!(
            (two.estimate(1.0, 0.0) - 75.0).abs() < 0.5 && (two.estimate(0.0, 0.0) - 15.0).abs() < 0.5,
            "{two:?}"
        );
    }
}
