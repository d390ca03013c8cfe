//! How far what is known of a medium carries what was asked of a device of it.
//!
//! A device keeps a sample of its requests ([`RequestTracer`]). Afterwards they are held against what the medium's
//! sources say something about
//! ([`mod@coverage`]), and asked again in virtual time of the medium as it is and with its estimates halved and doubled
//! ([`mod@replay`]).

mod coverage;
mod estimates;
mod held;
mod replay;
mod trace;

use underlay_record::{DeviceInputs, EstimateShare};

pub use coverage::covered;
pub use estimates::ModelEstimate;
pub use replay::{ReplayResult, replay};
pub use trace::{RequestTracer, TracedRequest};

use crate::catalogue::CatalogueMedium;
use crate::medium::InitialState;
use held::FigureComparison;

/// Changes of a device's time by less than this are noise of a model's draws.
const NOISE: f64 = 0.002;
/// An estimate that changes a device's time by less than this is not held against the published figures, which takes
/// its time.
const HARDLY: f64 = 0.02;
/// Each estimate is asked for by itself with this many requests: enough to see what it changes.
const REQUESTS_EACH: usize = 2048;

/// The certificate of a device's inputs, from the requests that it kept.
pub fn certify(
    medium: &CatalogueMedium,
    capacity_bytes: u64,
    initial: InitialState,
    segments: &[Vec<TracedRequest>],
) -> DeviceInputs {
    let requests: usize = segments.iter().map(Vec::len).sum();
    if requests == 0 || !medium.problems().is_empty() {
        return DeviceInputs::default();
    }
    // The same seed for all of them: what is drawn is then the same, and only estimates differ.
    let ask = |medium: &CatalogueMedium, segments: &[Vec<TracedRequest>]| {
        replay(&mut *medium.model(capacity_bytes, SEED, initial), segments)
    };
    let few = first(segments, REQUESTS_EACH);
    let base_s = ask(medium, few).busy_s();
    let comparison = FigureComparison::from_medium(medium);
    let mut estimates = Vec::new();
    let (mut fast, mut slow) = (medium.clone(), medium.clone());
    for estimate in ModelEstimate::find_all(medium) {
        // What it takes as the medium has it, and with the value as near to half or double as makes a medium that its
        // sources allow.
        let mut times = vec![(1.0, base_s)];
        for factor in [0.5, 2.0] {
            let Some(changed) = estimate.scaled(medium, factor) else { continue };
            let time_s = ask(&changed, few).busy_s();
            let change = (time_s / base_s - 1.0).abs();
            if change < NOISE {
                continue;
            }
            if change < HARDLY {
                times.push((factor, time_s));
            } else if let Some((reached, changed)) = comparison.furthest(&estimate, factor) {
                times.push((reached, ask(&changed, few).busy_s()));
            }
        }
        if times.len() == 1 {
            continue;
        }
        let by_time = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (fastest, slowest) = (times.iter().min_by(by_time), times.iter().max_by(by_time));
        let (Some(&(to_fast, _)), Some(&(to_slow, slower_s))) = (fastest, slowest) else { continue };
        // Where two of them together make no medium, the one that was first stays.
        fast = estimate.scaled(&fast, to_fast).unwrap_or(fast);
        slow = estimate.scaled(&slow, to_slow).unwrap_or(slow);
        let share = (slower_s / base_s - 1.0).clamp(0.0, 1.0);
        estimates.push(EstimateShare { name: estimate.name().to_owned(), share });
    }
    estimates.sort_by(|a, b| b.share.total_cmp(&a.share));
    let base = ask(medium, segments);
    let others = match estimates.is_empty() {
        true => [base, base],
        false => [ask(&fast, segments), ask(&slow, segments)],
    };
    // Together they need not go where each goes by itself: a disk's head may meet its sector sooner at the slower
    // speed.
    let all = [base, others[0], others[1]];
    let least = |metric: fn(&ReplayResult) -> f64| all.iter().map(metric).fold(f64::INFINITY, f64::min);
    let most = |metric: fn(&ReplayResult) -> f64| all.iter().map(metric).fold(1e-12, f64::max);
    DeviceInputs {
        requests: requests as u64,
        covered: covered(medium, segments),
        estimated: (most(ReplayResult::busy_s) / base.busy_s() - 1.0).clamp(0.0, 1.0),
        estimates,
        time_if_fast: least(|one| one.all_s).max(1e-12) / base.all_s.max(1e-12),
        time_if_slow: most(|one| one.all_s) / base.all_s.max(1e-12),
    }
}

const SEED: u64 = 1;

/// As many whole segments as it takes for so many requests.
fn first(segments: &[Vec<TracedRequest>], requests: usize) -> &[Vec<TracedRequest>] {
    let mut seen = 0;
    let enough = segments.iter().position(|segment| {
        seen += segment.len();
        seen >= requests
    });
    &segments[..enough.map_or(segments.len(), |last| last + 1)]
}
