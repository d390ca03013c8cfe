//! Programs' waits for a mounted disk, beside its model's times.

use underlay_record::{Histogram, PathRecord, PathWait, path};
use underlay_report::quantity;

/// Programs' waits for each request, as far as known: `delivered` is what the devices took.
pub(super) fn waited(paths: &[PathRecord], delivered: &Histogram) -> Histogram {
    path::waited(paths, delivered).unwrap_or_else(|| delivered.clone())
}

/// `disk: programs waited 812 µs for a read (modelled 800 µs, +1.5 %), ...`; nothing of a volume that had no requests.
pub(super) fn line(path: &PathRecord) -> Option<String> {
    let kinds = [("read", &path.reads), ("write", &path.writes), ("flush", &path.flushes)];
    let waits: Vec<String> = kinds
        .into_iter()
        .filter(|(_, wait)| wait.requests > 0)
        .map(|(kind, wait)| told(kind, wait))
        .collect();
    let whole = format!("{}: programs waited on average {}", path.id.name, waits.join(", "));
    (!waits.is_empty()).then_some(whole)
}

fn told(kind: &str, wait: &PathWait) -> String {
    let late = (wait.waited_mean_us / wait.modelled_mean_us.max(f64::MIN_POSITIVE) - 1.0) * 100.0;
    format!(
        "{}{} for a {kind} (modelled {}, {late:+.1} %)",
        if wait.is_estimate { "about " } else { "" },
        quantity::latency(wait.waited_mean_us),
        quantity::latency(wait.modelled_mean_us),
    )
}

#[cfg(test)]
mod tests {
    use underlay_record::DeviceId;

    use super::*;

    #[test]
    fn only_what_was_asked_for_is_told() {
        let reads =
            PathWait { requests: 10, modelled_mean_us: 800.0, waited_mean_us: 880.0, ..PathWait::default() };
        let writes = PathWait { is_estimate: true, ..reads };
        let path = PathRecord { id: DeviceId::new("disk"), reads, writes, ..PathRecord::default() };
        let text = line(&path).unwrap();
        assert!(text.starts_with("disk: programs waited on average ") && text.contains("+10.0 %"), "{text}");
        assert!(
            text.contains("for a read") && text.contains(", about ") && !text.contains("flush"),
            "{text}"
        );
        assert_eq!(line(&PathRecord::default()), None);
    }
}
