//! How an offered rate changes over time: steps and ramps, and when the n-th operation is due.

use std::time::Duration;

/// The offered rate as a sequence of pieces; in each the rate is constant or changes evenly. After the last piece its
/// final rate continues.
#[derive(Clone, Debug, PartialEq)]
pub struct RateProfile {
    pieces: Vec<ProfilePiece>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct ProfilePiece {
    begin_s: f64,
    /// Infinite for the last one.
    length_s: f64,
    from_per_s: f64,
    to_per_s: f64,
    /// Operations due before it begins.
    before: f64,
}

impl ProfilePiece {
    /// By how much the rate rises each second.
    fn slope(&self) -> f64 {
        if self.length_s.is_finite() { (self.to_per_s - self.from_per_s) / self.length_s } else { 0.0 }
    }

    /// Operations due up to `t_s` seconds after it began.
    fn due_within(&self, t_s: f64) -> f64 {
        (self.from_per_s + self.slope() * t_s / 2.0) * t_s
    }
}

/// A part of a profile, as requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RatePart {
    Steady { rate_per_s: f64, length: Duration },
    Ramp { from_per_s: f64, to_per_s: f64, length: Duration },
}

impl RateProfile {
    /// One rate forever, above 0.
    pub fn constant(rate_per_s: f64) -> Self {
        let piece = ProfilePiece {
            begin_s: 0.0,
            length_s: f64::INFINITY,
            from_per_s: rate_per_s,
            to_per_s: rate_per_s,
            before: 0.0,
        };
        RateProfile { pieces: vec![piece] }
    }

    /// Parts one after the other.
    ///
    /// # Errors
    /// When there are none, one has no length, or a rate is zero or negative: names the part and the expected value.
    pub fn from_parts(parts: &[RatePart]) -> Result<Self, String> {
        if parts.is_empty() {
            return Err("a rate without parts: expected at least one".to_owned());
        }
        let mut pieces: Vec<ProfilePiece> = Vec::new();
        let (mut begin_s, mut before) = (0.0, 0.0);
        for (place, part) in (1..).zip(parts) {
            let (from_per_s, to_per_s, length) = match *part {
                RatePart::Steady { rate_per_s, length } => (rate_per_s, rate_per_s, length),
                RatePart::Ramp { from_per_s, to_per_s, length } => (from_per_s, to_per_s, length),
            };
            for rate in [from_per_s, to_per_s] {
                if !(rate.is_finite() && rate >= 0.0) {
                    return Err(format!(
                        "part {place} of the rate is {rate}: expected a number of at least 0"
                    ));
                }
            }
            if from_per_s + to_per_s <= 0.0 {
                return Err(format!("part {place} of the rate offers nothing: expected more than 0"));
            }
            if length.is_zero() {
                return Err(format!("part {place} of the rate has no length: expected more than 0 s"));
            }
            let length_s = length.as_secs_f64();
            let piece = ProfilePiece { begin_s, length_s, from_per_s, to_per_s, before };
            before += piece.due_within(length_s);
            begin_s += length_s;
            pieces.push(piece);
        }
        let last = pieces.last().expect("there are parts").to_per_s;
        if last <= 0.0 {
            return Err("a rate that ends at 0: expected its last part to end above 0".to_owned());
        }
        // Every search for a piece ends here at the latest, however long the run lasts.
        pieces.push(ProfilePiece {
            begin_s,
            length_s: f64::INFINITY,
            from_per_s: last,
            to_per_s: last,
            before,
        });
        Ok(RateProfile { pieces })
    }

    /// The same in slow motion: every rate divided by `dilation`, every time multiplied by it.
    pub fn dilated(&self, dilation: f64) -> Self {
        let stretch = |piece: &ProfilePiece| ProfilePiece {
            begin_s: piece.begin_s * dilation,
            length_s: piece.length_s * dilation,
            from_per_s: piece.from_per_s / dilation,
            to_per_s: piece.to_per_s / dilation,
            before: piece.before,
        };
        RateProfile { pieces: self.pieces.iter().map(stretch).collect() }
    }

    /// When the requested parts are over; zero for a constant rate.
    pub fn length_s(&self) -> f64 {
        self.pieces.last().map_or(0.0, |last| last.begin_s)
    }

    /// Offered operations per second at `t_s`.
    pub fn rate_at(&self, t_s: f64) -> f64 {
        let piece = self.piece(|piece| piece.begin_s <= t_s);
        piece.from_per_s + piece.slope() * (t_s - piece.begin_s).max(0.0)
    }

    /// How many operations are due before `t_s`, as a fractional number.
    pub fn due_before(&self, t_s: f64) -> f64 {
        let piece = self.piece(|piece| piece.begin_s <= t_s);
        piece.before + piece.due_within((t_s - piece.begin_s).max(0.0))
    }

    /// When the operation of this number, from 0, is due: the first time before which that many are due. Fractions are
    /// accepted too, which turns a Poisson process of rate 1 into one of this rate.
    pub fn due_s(&self, number: f64) -> f64 {
        let piece = self.piece(|piece| piece.before < number);
        let rest = (number - piece.before).max(0.0);
        // For a ramp from 0 the quotient below would be 0 / 0.
        if rest == 0.0 {
            return piece.begin_s;
        }
        // The root of `slope / 2 t^2 + from t = rest` in a form that loses no digits where the slope is small.
        let discriminant = piece.from_per_s * piece.from_per_s + 2.0 * piece.slope() * rest;
        let t_s = 2.0 * rest / (piece.from_per_s + discriminant.max(0.0).sqrt());
        piece.begin_s + t_s.min(piece.length_s)
    }

    /// The last piece for which `begins` holds, as it does for the first few; the first one if it holds for none.
    fn piece(&self, begins: impl Fn(&ProfilePiece) -> bool) -> &ProfilePiece {
        let count = self.pieces.partition_point(begins);
        &self.pieces[count.saturating_sub(1)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steady(rate_per_s: f64, seconds: f64) -> RatePart {
        RatePart::Steady { rate_per_s, length: Duration::from_secs_f64(seconds) }
    }

    fn ramp(from_per_s: f64, to_per_s: f64, seconds: f64) -> RatePart {
        RatePart::Ramp { from_per_s, to_per_s, length: Duration::from_secs_f64(seconds) }
    }

    #[test]
    fn constant_rate_is_due_at_equal_distances() {
        let profile = RateProfile::constant(50.0);
        assert_eq!([0.0, 1.0, 500.0].map(|number| profile.due_s(number)), [0.0, 0.02, 10.0]);
        assert_eq!((profile.rate_at(1e6), profile.due_before(3.0), profile.length_s()), (50.0, 150.0, 0.0));
    }

    #[test]
    fn steps_follow_in_order_and_last_continues() {
        let profile = RateProfile::from_parts(&[steady(10.0, 2.0), steady(100.0, 1.0)]).unwrap();
        assert_eq!([0.0, 1.999, 2.0, 50.0].map(|t_s| profile.rate_at(t_s)), [10.0, 10.0, 100.0, 100.0]);
        assert_eq!([1.0, 2.0, 3.0, 4.0].map(|t_s| profile.due_before(t_s)), [10.0, 20.0, 120.0, 220.0]);
        // The first operation of a step is due as it begins, and not one distance later.
        assert_eq!([19.0, 20.0, 21.0, 120.0, 121.0].map(|n| profile.due_s(n)), [1.9, 2.0, 2.01, 3.0, 3.01]);
        assert_eq!(profile.length_s(), 3.0);
    }

    #[test]
    fn ramp_from_zero_is_due_at_square_roots() {
        let profile = RateProfile::from_parts(&[ramp(0.0, 200.0, 10.0)]).unwrap();
        for number in [0.0, 1.0, 10.0, 250.0, 1000.0] {
            assert!((profile.due_s(number) - (number / 10.0).sqrt()).abs() < 1e-12);
        }
        assert_eq!(
            (profile.rate_at(5.0), profile.rate_at(10.0), profile.rate_at(60.0)),
            (100.0, 200.0, 200.0)
        );
        assert_eq!(profile.due_s(1200.0), 11.0);
    }

    #[test]
    fn slow_motion_moves_times_and_leaves_numbers() {
        let profile = RateProfile::from_parts(&[ramp(10.0, 50.0, 4.0), steady(5.0, 1.0)]).unwrap();
        let slow = profile.dilated(8.0);
        for number in [0.0, 17.0, 119.0, 120.0, 124.0, 400.0] {
            assert!((slow.due_s(number) - 8.0 * profile.due_s(number)).abs() < 1e-9);
        }
    }

    #[test]
    fn empty_rate_is_refused() {
        let refused = |parts: &[RatePart]| RateProfile::from_parts(parts).unwrap_err();
        assert_eq!(refused(&[]), "a rate without parts: expected at least one");
        assert_eq!(
            refused(&[steady(1.0, 1.0), steady(0.0, 1.0)]),
            "part 2 of the rate offers nothing: expected more than 0"
        );
        assert_eq!(
            refused(&[ramp(-1.0, 5.0, 1.0)]),
            "part 1 of the rate is -1: expected a number of at least 0"
        );
        assert_eq!(
            refused(&[steady(f64::NAN, 1.0)]),
            "part 1 of the rate is NaN: expected a number of at least 0"
        );
        assert_eq!(refused(&[steady(1.0, 0.0)]), "part 1 of the rate has no length: expected more than 0 s");
        assert_eq!(
            refused(&[ramp(5.0, 0.0, 1.0)]),
            "a rate that ends at 0: expected its last part to end above 0"
        );
    }

    prop_compose! {
        fn parts()(
            rates in prop::collection::vec((0.1f64..1e5, 0.1f64..1e5, 0.01f64..100.0, any::<bool>()), 1..6),
        ) -> Vec<RatePart> {
            rates
                .into_iter()
                .map(|(from, to, seconds, is_ramp)| {
                    if is_ramp { ramp(from, to, seconds) } else { steady(from, seconds) }
                })
                .collect()
        }
    }

    proptest! {
        /// Each is the other's inverse, and operations are due in order.
        #[test]
        fn due_time_and_due_count_agree(
            parts in parts(),
            shares in prop::collection::vec(0.0f64..1.5, 1..20),
        ) {
            let profile = RateProfile::from_parts(&parts).unwrap();
            let all = profile.due_before(profile.length_s());
            let mut numbers: Vec<f64> = shares.iter().map(|share| share * all).collect();
            numbers.sort_by(f64::total_cmp);
            let times: Vec<f64> = numbers.iter().map(|&number| profile.due_s(number)).collect();
            prop_assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{times:?}");
            for (number, t_s) in numbers.iter().zip(&times) {
                let found = profile.due_before(*t_s);
                prop_assert!((found - number).abs() <= 1e-6 * (1.0 + number), "{found}, expected {number}");
            }
        }

        /// Compared with the sum over small slices of time.
        #[test]
        fn due_count_is_area_below_rate(parts in parts()) {
            let profile = RateProfile::from_parts(&parts).unwrap();
            let slices = 20_000;
            let width_s = profile.length_s() / f64::from(slices);
            let area: f64 =
                (0..slices).map(|slice| profile.rate_at((f64::from(slice) + 0.5) * width_s) * width_s).sum();
            let found = profile.due_before(profile.length_s());
            // Slices across a step's edge are wrong by a slice.
            let tolerance = 1e5 * width_s * parts.len() as f64 + 1e-6 * found;
            prop_assert!((found - area).abs() <= tolerance, "{found}, expected {area}");
        }
    }
}
