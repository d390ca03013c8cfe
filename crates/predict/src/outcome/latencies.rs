//! Latencies of a simulation's operations, and the percentiles if more or fewer of them had waited for reads.

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OperationLatency {
    pub total_us: f64,
    /// The part of it that waited for reads.
    pub reads_us: f64,
}

/// The latencies of all measured operations, the shortest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationLatencies(Vec<OperationLatency>);

impl OperationLatencies {
    pub(crate) fn new(mut all: Vec<OperationLatency>) -> OperationLatencies {
        all.sort_by(|a, b| a.total_us.total_cmp(&b.total_us));
        OperationLatencies(all)
    }

    /// The latency that this share of the operations (0 to 1) does not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        match self.0.len() {
            0 => f64::INFINITY,
            count => self.0[((count - 1) as f64 * share.clamp(0.0, 1.0)).round() as usize].total_us,
        }
    }

    /// The same if `times` as many had waited for reads, but no more than the share `most` of all. Operations that no
    /// longer wait keep their time without reads.
    pub fn quantile_with_us(&self, share: f64, times: f64, most: f64) -> f64 {
        let waiting = self.0.iter().filter(|one| one.reads_us > 0.0).count() as f64;
        let now = waiting / self.0.len().max(1) as f64;
        let then = (now * times).clamp(0.0, most.max(now).min(1.0));
        if now <= 0.0 || (then - now).abs() < 1e-9 {
            return self.quantile_us(share);
        }
        let of_waiting = then / now;
        let of_others = if then > now && now < 1.0 { (1.0 - then) / (1.0 - now) } else { 1.0 };
        let mut weighted: Vec<(f64, f64)> = Vec::with_capacity(2 * self.0.len());
        for one in &self.0 {
            if one.reads_us > 0.0 {
                weighted.push((one.total_us, of_waiting));
                if of_waiting < 1.0 {
                    weighted.push(((one.total_us - one.reads_us).max(0.0), 1.0 - of_waiting));
                }
            } else {
                weighted.push((one.total_us, of_others));
            }
        }
        weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = share.clamp(0.0, 1.0) * weighted.iter().map(|one| one.1).sum::<f64>();
        for &(us, weight) in &weighted {
            left -= weight;
            if left <= 0.0 {
                return us;
            }
        }
        weighted.last().map_or(f64::INFINITY, |last| last.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 45 reads of 1 ms in a hundred operations; the others take a microsecond.
    fn mix() -> OperationLatencies {
        let one = |index| match index < 45 {
            true => OperationLatency { total_us: 1_000.0 + f64::from(index), reads_us: 995.0 },
            false => OperationLatency { total_us: 1.0, reads_us: 0.0 },
        };
        OperationLatencies::new((0..100).map(one).collect())
    }

    #[test]
    fn median_changes_kind_when_more_operations_wait() {
        let mix = mix();
        assert_eq!(mix.quantile_us(0.5), 1.0);
        assert_eq!(mix.quantile_with_us(0.5, 1.1, 1.0), 1.0);
        assert!(mix.quantile_with_us(0.5, 1.2, 1.0) > 900.0);
        // Only half of the operations read at all.
        assert_eq!(mix.quantile_with_us(0.49, 3.0, 0.5), 1.0);
        assert!(mix.quantile_with_us(0.9, 0.1, 1.0) < 60.0);
        assert!(mix.quantile_us(0.99) > 900.0);
    }

    #[test]
    fn empty_latencies_have_infinite_quantiles() {
        assert_eq!(OperationLatencies::default().quantile_us(0.5), f64::INFINITY);
        assert_eq!(OperationLatencies::default().quantile_with_us(0.5, 2.0, 1.0), f64::INFINITY);
        let alone = OperationLatencies::new(vec![OperationLatency { total_us: 7.0, reads_us: 7.0 }]);
        assert_eq!(alone.quantile_with_us(0.5, 0.0, 1.0), 0.0);
    }
}
