use underlay_record::live::{EARLIER_FEED_FILE, FEED_FILE, feed_line};
use underlay_record::{LiveDevice, NodeExit};

use super::*;

/// An observer that ignores everything.
struct Deaf;

impl RunObserver for Deaf {
    fn planned(&self, _: usize, _: usize, _: Duration) {}
    fn preparing(&self, _: &str) {}
    fn cell_started(&self, _: &PlannedCell, _: usize) {}
    fn live(&self, _: &LiveCell) {}
    fn cell_ended(&self, _: &PlannedCell, _: &RunRecord, _: Duration) {}
}

fn lines(folder: &std::path::Path) -> Vec<FeedEntry> {
    let text = std::fs::read_to_string(folder.join(FEED_FILE)).unwrap();
    text.lines().filter_map(feed_line).map(|line| line.entry).collect()
}

/// A device that has a fault for a while, and a node that goes down.
#[derive(Default)]
struct Troubled(Mutex<u32>);

impl LiveSource for Troubled {
    fn fill(&self, sample: &mut LiveSample) {
        let mut asked = self.0.lock();
        *asked += 1;
        // The second time it does not answer.
        if *asked == 2 {
            return;
        }
        let faults = if *asked == 1 { vec!["slow".to_owned()] } else { Vec::new() };
        sample.devices.push(LiveDevice { id: DeviceId::new("ssd.0"), faults, ..LiveDevice::default() });
    }

    fn node_events(&self) -> Vec<NodeEventRecord> {
        let event = NodeEventRecord { chosen: "node1".to_owned(), how: NodeExit::Kill, ..Default::default() };
        vec![event]
    }
}

#[test]
fn changes_between_samples_are_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let feed = RunFeed::open(folder.path(), &Deaf);
    feed.planned(2, 0, Duration::from_secs(9));
    feed.preparing("loading");
    let source = Troubled::default();
    let answer = sampled(&feed, &source, || {
        while *source.0.lock() < 3 {
            std::thread::sleep(Duration::from_millis(20));
        }
        7
    });
    assert_eq!(answer, 7);
    feed.ended(&Err(RunError::Failed("the disk is full".to_owned())));
    let found = lines(folder.path());
    let count =
        |predicate: &dyn Fn(&FeedEntry) -> bool| found.iter().filter(|entry| predicate(entry)).count();
    assert_eq!(count(&|entry| matches!(entry, FeedEntry::Fault { began: true, .. })), 1, "{found:?}");
    assert_eq!(count(&|entry| matches!(entry, FeedEntry::Fault { began: false, .. })), 1, "{found:?}");
    assert_eq!(count(&|entry| matches!(entry, FeedEntry::Node { index: 0, .. })), 1, "{found:?}");
    assert!(count(&|entry| matches!(entry, FeedEntry::Sample(_))) >= 3, "{found:?}");
    // A fault is not reported as over just because its device did not answer.
    let over = found.iter().position(|entry| matches!(entry, FeedEntry::Fault { began: false, .. }));
    let before = found[..over.unwrap()].iter().filter(|entry| matches!(entry, FeedEntry::Sample(_)));
    assert_eq!(before.count(), 2, "{found:?}");
    assert!(matches!(&found[0], FeedEntry::Begun { process, .. } if *process == std::process::id()));
    assert!(matches!(found.last(), Some(FeedEntry::Ended { problem: Some(_), .. })), "{found:?}");
}

#[test]
fn feed_continues_after_torn_line_within_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FEED_FILE), "{\"at_ms\":1,\"ki").unwrap();
    let feed = RunFeed::open(folder.path(), &Deaf);
    feed.planned(3, 1, Duration::ZERO);
    // More than twice the bound, in lines that are almost too long.
    let message = "x".repeat(MAX_FEED_LINE_BYTES - 200);
    for _ in 0..2 * MAX_FEED_BYTES / message.len() as u64 + 4 {
        feed.notice(&message);
        // No run writes so much at once that the writer's queue is full.
        std::thread::sleep(Duration::from_millis(1));
    }
    feed.notice(&"y".repeat(MAX_FEED_LINE_BYTES));
    drop(feed);
    let length = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    let most = MAX_FEED_BYTES + MAX_FEED_LINE_BYTES as u64;
    assert!(length(FEED_FILE) <= most && length(EARLIER_FEED_FILE) <= most);
    let found = lines(folder.path());
    // A reader that begins here knows the plan.
    assert!(matches!(
        &found[..2],
        [FeedEntry::Begun { .. }, FeedEntry::Planned { total: 3, finished: 1, .. }]
    ));
    assert!(
        !found
            .iter()
            .any(|entry| matches!(entry, FeedEntry::Notice { what: message } if message.starts_with('y')))
    );
}

#[test]
fn watching_is_told_over_a_time_that_says_something() {
    // The end of a phase forces a sample at once: its share would cover only some microseconds.
    let mut cost = just_begun();
    let begun = cost.at;
    assert_eq!(cost.share(), None);
    assert_eq!(cost.at, begun, "the time counts towards the next look");
    cost.at = Instant::now().checked_sub(MIN_SAMPLE_TIME * 2).unwrap();
    let share = cost.share().unwrap();
    assert!((0.0..=1.0).contains(&share), "{share}");
}

/// Independent of how long this host takes to continue.
fn just_begun() -> SamplerCost {
    SamplerCost { at: Instant::now() + Duration::from_secs(3600), used: thread_time() }
}

#[test]
fn short_phase_has_no_sample_but_reports_faults() {
    let folder = tempfile::tempdir().unwrap();
    let feed = RunFeed::open(folder.path(), &Deaf);
    feed.take(&Troubled::default(), &mut just_begun());
    feed.ended(&Err(RunError::Stopped));
    let found = lines(folder.path());
    assert!(found.iter().any(|entry| matches!(entry, FeedEntry::Fault { began: true, .. })), "{found:?}");
    assert!(!found.iter().any(|entry| matches!(entry, FeedEntry::Sample(_))), "{found:?}");
}

#[test]
fn reader_starting_with_later_file_knows_skips() {
    let folder = tempfile::tempdir().unwrap();
    let feed = RunFeed::open(folder.path(), &Deaf);
    feed.planned(3, 0, Duration::ZERO);
    feed.asked(&RunCommand::Skip { position: 2 }, &[]);
    feed.state.lock().written_bytes = MAX_FEED_BYTES + 1;
    feed.notice("in a new file");
    drop(feed);
    let found = lines(folder.path());
    let [FeedEntry::Begun { .. }, FeedEntry::Planned { .. }, FeedEntry::SkipAsked { position: 2 }, ..] =
        found.as_slice()
    else {
        panic!("{found:?}")
    };
}

#[test]
fn run_continues_without_writable_feed() {
    let folder = tempfile::tempdir().unwrap();
    // A link in its place is not followed.
    let other = folder.path().join("other");
    std::fs::write(&other, "kept").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join(FEED_FILE)).unwrap();
    let feed = RunFeed::open(folder.path(), &Deaf);
    feed.notice("hello");
    assert_eq!(sampled(&feed, &Troubled::default(), || 3), 3);
    assert_eq!(std::fs::read_to_string(other).unwrap(), "kept");
}
