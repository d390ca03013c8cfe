//! Whether programs waited for each kind of request as long as the models require, according to the kernel's counters
//! of the block devices.

use underlay_record::{Check, CheckId, PathRecord, PathWait, latency_in_words};

use super::MEAN_TOLERANCE;

/// The waits for one kind of request.
type WaitsOfKind = fn(&PathRecord) -> &PathWait;

const FLUSHES: WaitsOfKind = |path| &path.flushes;
/// Each kind has a check of its own.
const KINDS: [(CheckId, WaitsOfKind); 3] = [
    (CheckId::ReadLatencyMean, |path| &path.reads),
    (CheckId::WriteLatencyMean, |path| &path.writes),
    (CheckId::FlushLatencyMean, FLUSHES),
];
/// A kind of request below this share of all requests, or of the total waiting time, does not matter. Neither does one
/// that is late by less than this share of that time. A flush of 26 µs instead of 22 changes nothing where everything
/// else waits for a disk.
const JUDGED_SHARE: f64 = 0.01;
/// The kernel reports its times in whole milliseconds; a difference of two sums is off by less than one for each.
const ROUNDING_WALL_US: f64 = 2000.0;

/// A host that is short of CPU delays requests by milliseconds. Requests that wait longer than this in wall time wait
/// for each other. A loop device holds up every request behind a flush until the model has flushed, and slow motion
/// stretches this as well.
const HOSTS_DELAY_WALL_US: f64 = 25_000.0;

const LOOP: &str = "/dev/loop";
/// A flush that takes this much wall time delays other requests for longer than the host does.
const LONG_FLUSH_WALL_US: f64 = 5_000.0;
/// The host delays requests of all kinds alike. If others are late by this many times as much as flushes, they wait for
/// flushes.
const BEHIND_FLUSHES: f64 = 3.0;

/// Whether the late requests would be as late in slower motion.
pub(super) fn is_stretched(paths: &[PathRecord], late_us: f64, time_scale: f64) -> bool {
    late_us * time_scale > HOSTS_DELAY_WALL_US || is_behind_flushes(paths, late_us, time_scale)
}

fn is_behind_flushes(paths: &[PathRecord], late_us: f64, time_scale: f64) -> bool {
    // Other attachments pass flushes on like any request.
    if !paths.iter().any(|path| path.block_device.starts_with(LOOP)) {
        return false;
    }
    let flushes = over_all(paths, FLUSHES);
    let own_late_us = (flushes.waited_mean_us - flushes.modelled_mean_us).abs();
    flushes.requests > 0
        && flushes.modelled_mean_us * time_scale > LONG_FLUSH_WALL_US
        && late_us > BEHIND_FLUSHES * own_late_us
        && late_us < flushes.modelled_mean_us
}

/// Whether the lateness in modelled time is about the same as in faster motion. A delay by the host's CPUs takes the
/// same wall time, and so less modelled time. A value closer to that than to no change counts as mended.
pub(super) fn is_unchanged(before_us: f64, before_scale: f64, late_us: f64, time_scale: f64) -> bool {
    let mended = before_scale / time_scale;
    // Requests that came too early are a different problem.
    mended < 1.0 && before_us > 0.0 && late_us > 0.0 && late_us > before_us * (1.0 + mended) / 2.0
}

/// The remedy for a late latency, `slower` where that helps.
pub(super) fn remedy(paths: &[PathRecord], late_us: f64, time_scale: f64, slower: &str) -> String {
    match is_stretched(paths, late_us, time_scale) {
        true => "slower motion would not help: a flush of a loop device holds up the requests behind it; on a host with the driver ublk_drv \
                 (Linux 6.4) use the attachment ublk"
            .to_owned(),
        false => slower.to_owned(),
    }
}

/// The lateness of the kind of request that this check judges, in modelled time.
pub(super) fn late_us(paths: &[PathRecord], check: CheckId) -> Option<f64> {
    let (_, waits_of) = KINDS.into_iter().find(|(id, _)| *id == check)?;
    let wait = over_all(paths, waits_of);
    Some(wait.waited_mean_us - wait.modelled_mean_us)
}

/// One check for each kind of request that matters, over all volumes. `remedy` is for those that fail.
pub(super) fn checks(paths: &[PathRecord], time_scale: f64, remedy: &str) -> Vec<Check> {
    let kinds = KINDS.map(|(id, waits_of)| (id, over_all(paths, waits_of)));
    let waited_us = |wait: &PathWait| wait.waited_mean_us * wait.requests as f64;
    let all_requests: u64 = kinds.iter().map(|(_, wait)| wait.requests).sum();
    let all_us: f64 = kinds.iter().map(|(_, wait)| waited_us(wait)).sum();
    let matters = |wait: &PathWait| {
        wait.requests as f64 > JUDGED_SHARE * all_requests as f64 && waited_us(wait) > JUDGED_SHARE * all_us
    };
    let judged = kinds.iter().filter(|(_, wait)| matters(wait));
    judged
        .map(|(id, wait)| {
            let late_us = wait.waited_mean_us - wait.modelled_mean_us;
            let slight_us = JUDGED_SHARE * all_us / wait.requests as f64;
            check(*id, wait, slight_us, time_scale, &self::remedy(paths, late_us, time_scale, remedy))
        })
        .collect()
}

/// The requests of one kind on all volumes together.
fn over_all(paths: &[PathRecord], waits_of: WaitsOfKind) -> PathWait {
    let waits = || paths.iter().map(waits_of);
    let requests: u64 = waits().map(|wait| wait.requests).sum();
    let mean = |figure: fn(&PathWait) -> f64| {
        waits().map(|wait| figure(wait) * wait.requests as f64).sum::<f64>() / requests.max(1) as f64
    };
    PathWait {
        requests,
        modelled_mean_us: mean(|wait| wait.modelled_mean_us),
        waited_mean_us: mean(|wait| wait.waited_mean_us),
        path_mean_us: mean(|wait| wait.path_mean_us),
        dated_back_mean_us: mean(|wait| wait.dated_back_mean_us),
        is_estimate: waits().any(|wait| wait.requests > 0 && wait.is_estimate),
    }
}

/// `slight_us` is how late each may be, since all of them together then add little.
fn check(id: CheckId, wait: &PathWait, slight_us: f64, time_scale: f64, remedy: &str) -> Check {
    let PathWait { requests, modelled_mean_us, waited_mean_us, path_mean_us, dated_back_mean_us, .. } = *wait;
    let late_us = waited_mean_us - modelled_mean_us;
    let error = late_us / modelled_mean_us.max(f64::MIN_POSITIVE);
    let rounding_us = ROUNDING_WALL_US / time_scale / requests as f64;
    let is_tolerable = late_us.abs() <= MEAN_TOLERANCE * modelled_mean_us + rounding_us;
    let passed = is_tolerable || late_us.abs() <= slight_us;
    let slight = match passed && !is_tolerable {
        true => {
            format!("; all of it is less than {:.0} % of programs' whole waiting time", JUDGED_SHARE * 100.0)
        }
        false => String::new(),
    };
    let about = if wait.is_estimate { "about " } else { "" };
    let finding = format!(
        "modelled {}, programs waited {about}{}: {:+.1} % (allowed: {:.0} %); the path to the device and back took \
         {about}{}; {} of that was compensated{slight}",
        latency_in_words(modelled_mean_us),
        latency_in_words(waited_mean_us),
        error * 100.0,
        MEAN_TOLERANCE * 100.0,
        latency_in_words(path_mean_us),
        latency_in_words(dated_back_mean_us),
    );
    Check::new(id, passed, finding).with_extent(error.abs()).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 800 µs in the daemon, which backdates by 50.
    fn wait(requests: u64, path_mean_us: f64) -> PathWait {
        PathWait {
            requests,
            modelled_mean_us: 850.0,
            waited_mean_us: 800.0 + path_mean_us,
            path_mean_us,
            dated_back_mean_us: 50.0,
            is_estimate: false,
        }
    }

    fn path(reads: PathWait, writes: PathWait, flushes: PathWait) -> PathRecord {
        let block_device = "/dev/loop0".to_owned();
        PathRecord { is_direct: true, block_device, reads, writes, flushes, ..PathRecord::default() }
    }

    fn outcome(paths: &[PathRecord]) -> Vec<(CheckId, bool)> {
        checks(paths, 8.0, "slower").into_iter().map(|check| (check.id.unwrap(), check.passed)).collect()
    }

    #[test]
    fn request_kinds_are_judged_separately() {
        let (on_time, late) = (wait(10_000, 60.0), wait(10_000, 350.0));
        let judged = |passed: [bool; 3]| KINDS.map(|(id, _)| id).into_iter().zip(passed).collect();
        let expected: [(PathRecord, Vec<(CheckId, bool)>); 4] = [
            (path(on_time, on_time, on_time), judged([true, true, true])),
            (path(late, on_time, on_time), judged([false, true, true])),
            (path(on_time, late, on_time), judged([true, false, true])),
            (path(on_time, on_time, late), judged([true, true, false])),
        ];
        for (path, wanted) in expected {
            assert_eq!(outcome(std::slice::from_ref(&path)), wanted);
        }
        assert!(outcome(&[]).is_empty());
    }

    #[test]
    fn rare_kind_decides_nothing() {
        let (on_time, rare) = (wait(10_000, 60.0), wait(50, 9000.0));
        assert_eq!(outcome(&[path(on_time, rare, PathWait::default())]).len(), 1);
        // Nor do writes that a cache absorbs in no time compared with seeks.
        let absorbed = PathWait { modelled_mean_us: 2.0, waited_mean_us: 8.0, ..wait(10_000, 6.0) };
        assert_eq!(outcome(&[path(wait(10_000, 60.0), absorbed, PathWait::default())]).len(), 1);
        // On their own they do.
        assert_eq!(
            outcome(&[path(PathWait::default(), absorbed, PathWait::default())]),
            [(CheckId::WriteLatencyMean, false)]
        );
    }

    #[test]
    fn slight_total_lateness_decides_nothing() {
        let flushes = PathWait { modelled_mean_us: 22.0, waited_mean_us: 26.0, ..wait(8_000, 0.0) };
        let reads = wait(10_000, 60.0);
        let found = checks(&[path(reads, PathWait::default(), flushes)], 8.0, "slower");
        assert!(found[1].passed && found[1].finding.contains("less than 1 %"), "{}", found[1].finding);
        // Each is 40 µs late, and together they are 4 % of the time.
        let flushes = PathWait { waited_mean_us: 62.0, ..flushes };
        assert_eq!(
            outcome(&[path(reads, PathWait::default(), flushes)])[1],
            (CheckId::FlushLatencyMean, false)
        );
    }

    #[test]
    fn volumes_are_weighed_by_their_requests() {
        let quiet = path(wait(90_000, 50.0), PathWait::default(), PathWait::default());
        let late = path(wait(10_000, 350.0), PathWait::default(), PathWait::default());
        let found = checks(&[quiet, late], 8.0, "slower");
        assert!(found[0].passed && found[0].finding.contains("waited 880.0 µs"), "{}", found[0].finding);
    }

    #[test]
    fn kernel_rounding_fails_no_cell() {
        let few = PathWait { modelled_mean_us: 10.0, waited_mean_us: 25.0, ..wait(10, 0.0) };
        assert!(outcome(&[path(few, PathWait::default(), PathWait::default())])[0].1);
    }

    /// Two milliseconds of wall time are usual, but flushes came back on time.
    #[test]
    fn stretched_path_is_found_when_flushes_are_punctual() {
        let flushes = PathWait { modelled_mean_us: 8000.0, waited_mean_us: 8010.0, ..wait(1000, 0.0) };
        let writes =
            PathWait { modelled_mean_us: 115.0, waited_mean_us: 289.0, is_estimate: true, ..wait(2000, 0.0) };
        let paths = [path(PathWait::default(), writes, flushes)];
        assert!(is_stretched(&paths, 174.0, 12.0));
        let found = checks(&paths, 12.0, "slower");
        assert!(found[0].remedy.as_deref().unwrap().contains("ublk"), "{found:?}");
        let ublk = PathRecord { block_device: "/dev/ublkb0".into(), ..paths[0].clone() };
        assert!(!is_stretched(&[ublk], 174.0, 12.0));
        // A busy host delays flushes as well, ...
        let late = PathWait { waited_mean_us: 8150.0, ..flushes };
        assert!(!is_stretched(&[path(PathWait::default(), writes, late)], 174.0, 12.0));
        // ... flushes of flash are too short to hold up other requests, and without flushes there is nothing to wait
        // for.
        let short = PathWait { modelled_mean_us: 40.0, waited_mean_us: 41.0, ..flushes };
        assert!(!is_stretched(&[path(PathWait::default(), writes, short)], 174.0, 12.0));
        assert!(!is_stretched(&[path(PathWait::default(), writes, PathWait::default())], 174.0, 12.0));
    }

    #[test]
    fn failure_reports_lateness_and_cause() {
        let late = PathWait { is_estimate: true, ..wait(10_000, 350.0) };
        let found = checks(&[path(PathWait::default(), late, PathWait::default())], 8.0, "slower");
        assert_eq!(
            found[0].finding,
            "modelled 850.0 µs, programs waited about 1.150 ms: +35.3 % (allowed: 10 %); the path to the device and back \
             took about 350.0 µs; 50.0 µs of that was compensated"
        );
        assert_eq!(found[0].remedy.as_deref(), Some("slower"));
    }
}
