//! How long the arm takes.

/// Seek time over distance, fitted to the three figures that manuals print.
///
/// A short seek is all acceleration and braking, so its time grows with the square root of the distance. A long one
/// coasts at full speed, so its time grows in proportion. See Ruemmler and Wilkes, "An introduction to disk drive
/// modeling", 1994:
///
/// `t(d) = a + b sqrt(d)` up to `d = k`, and `c + e d` beyond, with `d` the share of the full stroke.
///
/// `a` is the seek to the next track. Value and slope agree at `k`, and `t(1)` is the full stroke, which
/// leaves `k`: the one at which the mean over all pairs of cylinders is the printed average. Uniformly
/// random pairs lie `d` apart with density `2 (1 - d)`.
#[derive(Clone, Copy, Debug)]
pub struct SeekCurve {
    a_ms: f64,
    b_ms: f64,
    c_ms: f64,
    e_ms: f64,
    knee: f64,
}

impl SeekCurve {
    fn with_knee(track_ms: f64, full_ms: f64, knee: f64) -> SeekCurve {
        let root = knee.sqrt();
        // t(1) = a + b root / 2 + b / (2 root), from the equal value and slope at the knee.
        let b_ms = (full_ms - track_ms) / ((root + 1.0 / root) / 2.0);
        SeekCurve {
            a_ms: track_ms,
            b_ms,
            c_ms: track_ms + b_ms * root / 2.0,
            e_ms: b_ms / (2.0 * root),
            knee,
        }
    }

    /// The curve through these figures, in milliseconds. An average outside [`average_bounds_ms`] gives the
    /// curve nearest to it.
    pub fn fit(track_ms: f64, average_ms: f64, full_ms: f64) -> SeekCurve {
        // The mean grows with the knee: halve the interval.
        let (mut low, mut high) = (MIN_KNEE, 1.0);
        // More halvings than an `f64` has bits.
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if SeekCurve::with_knee(track_ms, full_ms, middle).mean_ms() < average_ms {
                low = middle;
            } else {
                high = middle;
            }
        }
        SeekCurve::with_knee(track_ms, full_ms, (low + high) / 2.0)
    }

    /// For a distance of `share` of the full stroke, above 0 and up to 1, in milliseconds.
    pub fn time_ms(&self, share: f64) -> f64 {
        if share <= self.knee { self.a_ms + self.b_ms * share.sqrt() } else { self.c_ms + self.e_ms * share }
    }

    /// The integral of `t(d) 2 (1 - d)`.
    fn mean_ms(&self) -> f64 {
        let k = self.knee;
        let short =
            self.a_ms * (2.0 * k - k * k) + self.b_ms * (4.0 / 3.0 * k.powf(1.5) - 4.0 / 5.0 * k.powf(2.5));
        let long =
            self.c_ms * (1.0 - k) * (1.0 - k) + self.e_ms * (1.0 / 3.0 - k * k + 2.0 / 3.0 * k.powi(3));
        short + long
    }
}

// Above 0, where `with_knee` would divide by zero.
const MIN_KNEE: f64 = 1e-6;

/// Between which an average seek must lie, given the seek to the next track and over the full stroke: with
/// an arm that is always coasting, and with one that never comes to.
pub fn average_bounds_ms(track_ms: f64, full_ms: f64) -> (f64, f64) {
    let mean = |knee| SeekCurve::with_knee(track_ms, full_ms, knee).mean_ms();
    (mean(MIN_KNEE), mean(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_through_the_printed_figures() {
        for (track, average, full) in [(0.23, 7.5, 17.06), (0.30, 3.8, 7.81), (0.44, 8.5, 18.08)] {
            let curve = SeekCurve::fit(track, average, full);
            assert!((curve.time_ms(1.0) - full).abs() < 1e-9);
            assert!((curve.time_ms(1e-12) - track).abs() < 1e-3);
            // An independent mean: over all distances of 2,000 cylinders, weighted by their pairs.
            let cylinders = 2000;
            let (mut sum, mut pairs) = (0.0, 0.0);
            for distance in 1..cylinders {
                let weight = f64::from(cylinders - distance);
                sum += weight * curve.time_ms(f64::from(distance) / f64::from(cylinders - 1));
                pairs += weight;
            }
            let mean: f64 = sum / pairs;
            assert!((mean / average - 1.0).abs() < 0.005, "{mean} against {average}");
        }
    }

    #[test]
    fn longer_seek_never_takes_less() {
        let curve = SeekCurve::fit(0.23, 7.5, 17.06);
        let times: Vec<f64> = (1..=1000).map(|i| curve.time_ms(f64::from(i) / 1000.0)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12));
    }
}
