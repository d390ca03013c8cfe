//! `--rate` with several rates.

use std::time::Duration;

use underlay_workload::RatePart;

use crate::arguments::RateArgument;
use crate::exit_codes::ExitFailure;

/// A rate that changes over the measured time; the warm-up has the first one.
pub(in crate::commands) fn rate_parts(
    rate: &RateArgument,
    warmup: Duration,
    duration: Duration,
) -> Result<Vec<RatePart>, ExitFailure> {
    if duration == Duration::MAX {
        return Err(ExitFailure::Mistake(
            "--rate has several rates: expected --duration, over which they are spread".to_owned(),
        ));
    }
    let mut parts = Vec::new();
    if !warmup.is_zero() {
        parts.push(RatePart::Steady { rate_per_s: rate.first_per_s(), length: warmup });
    }
    match rate {
        RateArgument::Constant(rate_per_s) => {
            parts.push(RatePart::Steady { rate_per_s: *rate_per_s, length: duration });
        }
        RateArgument::Ramp(from_per_s, to_per_s) => {
            parts.push(RatePart::Ramp { from_per_s: *from_per_s, to_per_s: *to_per_s, length: duration });
        }
        RateArgument::Steps(rates) => {
            let length = duration.div_f64(rates.len().max(1) as f64);
            parts.extend(rates.iter().map(|&rate_per_s| RatePart::Steady { rate_per_s, length }));
        }
    }
    Ok(parts)
}
