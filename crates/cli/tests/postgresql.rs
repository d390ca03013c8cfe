//! PostgreSQL as the bundled study runs it: its power is cut, it is killed, and what it acknowledged is there.

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underlay_attach::{
    AttachSpec, AttachedStorage, Attachment as _, BlockAttachment, FilesystemKind, ResourceRegistry,
    ServedStorage,
};
use underlay_record::{BetterDirection, MetricDilation};
use underlay_storage::catalogue;
use underlay_storage::faults::PowerCut;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackSpec, VolumeSpec};
use underlay_study::spec::Study;
use underlay_systems::benchmark::{BenchmarkPlan, FigurePlan, MetricReading, MetricSource, ValueChoice};
use underlay_systems::command::CommandSystem;
use underlay_systems::system::{
    BenchmarkRequest, RunningSystem, StoragePaths, System as _, SystemResources, SystemSettings,
};

const WRITERS: usize = 4;
/// Times in PostgreSQL's configuration are stretched so: its log writer then runs every two seconds.
const SLOW_MOTION: f64 = 10.0;
/// "At most three times `wal_writer_delay`" (PostgreSQL's documentation of asynchronous commit).
const MAX_LOST_TIME: Duration = Duration::from_secs(6);

struct Disk {
    folder: PathBuf,
    attached: AttachedStorage,
    served: ServedStorage,
    settings: SystemSettings,
    lives: usize,
}

impl Disk {
    fn make(folder: &Path) -> Disk {
        let registry = ResourceRegistry::open_at(&folder.join("runtime")).unwrap();
        let medium = Some(catalogue::find("ssd-sata").unwrap());
        let mut device = DeviceSpec::new("disk.0", medium, 512 << 20, BackingSpec::Memory);
        device.power_cut_armed = true;
        let spec = AttachSpec {
            // Fast, so that there is much to lose; what is lost does not depend on it.
            stack: StackSpec {
                volumes: vec![VolumeSpec::striped("disk", vec![device], 65536)],
                dilation: 0.1,
                seed: 1,
            },
            filesystem: Some(FilesystemKind::Xfs),
            mount_root: folder.join("mnt"),
            format: true,
            mount_point: None,
        };
        let program = env!("CARGO_BIN_EXE_underlay");
        let attached = BlockAttachment::with_daemon(program, vec!["device-daemon".into()])
            .attach(&spec, &registry)
            .unwrap();
        let served = attached.served().unwrap();
        let text = include_str!("../../../studies/postgresql.toml");
        let study = Study::parse("postgresql.toml", text, false).unwrap();
        let values = study.systems[0].settings.clone();
        let settings = SystemSettings { values, slow_motion: SLOW_MOTION, ..SystemSettings::default() };
        Disk { folder: folder.to_owned(), attached, served, settings, lives: 0 }
    }

    fn start(&mut self) -> Box<dyn RunningSystem> {
        self.lives += 1;
        let scratch = self.folder.join(format!("scratch-{}", self.lives));
        std::fs::create_dir(&scratch).unwrap();
        let paths = StoragePaths { data: self.attached.paths().to_vec(), scratch, ..StoragePaths::default() };
        CommandSystem.start(&paths, &SystemResources::with_budget(128 << 20), &self.settings).unwrap()
    }

    /// The acknowledgements that a writer got, in this life.
    fn acknowledged(&self, writer: usize) -> i64 {
        let log = self.folder.join(format!("scratch-{}/program/acknowledged-{writer}", self.lives));
        let text = std::fs::read_to_string(log).unwrap_or_default();
        // The last line may have been cut.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(|line| line.parse().ok()).max().unwrap_or(-1)
    }
}

fn ask(running: &dyn RunningSystem, run: &str) -> Result<f64, String> {
    let figure = FigurePlan {
        name: "answer".to_owned(),
        unit: "count".to_owned(),
        better: BetterDirection::Higher,
        slow_motion: MetricDilation::None,
        file: None,
        reading: MetricReading::Pattern("(?m)^answer ([0-9-]+)$".to_owned()),
        progress: None,
        take: ValueChoice::Last,
    };
    let plan = BenchmarkPlan {
        run: format!(
            "export PGPASSFILE={{temp}}/pgpass PGHOST={{host}} PGPORT={{port}} PGUSER=postgres PGDATABASE=postgres\n{run}"
        ),
        job: None,
        in_budget: Some(false),
        limit: Duration::from_secs(120),
        figures: MetricSource::Planned(vec![figure]),
        marks: Vec::new(),
    };
    let request = BenchmarkRequest {
        name: "ask".to_owned(),
        plan,
        data_bytes: 0,
        seed: 0,
        duration: Duration::from_secs(1),
        warmup: Duration::ZERO,
    };
    let benchmark = running.run_benchmark(&request, &|_| true).unwrap().map_err(|error| error.to_string())?;
    Ok(benchmark.figures[0].value)
}

fn newest(running: &dyn RunningSystem, writer: usize) -> i64 {
    let query = format!(
        "psql -X -q -t -A -c \"select 'answer ' || coalesce(max(n), -1) from told where writer = {writer}\""
    );
    ask(running, &query).unwrap() as i64
}

fn count(running: &dyn RunningSystem, writer: usize) -> i64 {
    let query =
        format!("psql -X -q -t -A -c \"select 'answer ' || count(*) from told where writer = {writer}\"");
    ask(running, &query).unwrap() as i64
}

/// Each writer inserts one number after the other, and writes down each acknowledged one.
fn writing(from: &[i64; WRITERS], synchronous_commit: &str) -> String {
    let mut run = format!("export PGOPTIONS='-c synchronous_commit={synchronous_commit}'\n");
    for (writer, from) in from.iter().enumerate() {
        run += &format!(
            "( n={from}; while :; do echo \"insert into told values ({writer}, $n) returning n;\"; n=$((n+1)); done | \
             stdbuf -oL psql -X -q -t -A > {{scratch}}/acknowledged-{writer} 2> /dev/null ) &\n"
        );
    }
    run + "wait; echo answer 1"
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    PowerCut(u64),
    /// Every process at once, by SIGKILL; the machine runs on.
    Killed,
}

/// Writes for so long and ends the life. Returns each writer's last acknowledged number, `before` seconds earlier and
/// at the end.
fn live(
    disk: &mut Disk,
    commit: &str,
    wait: Duration,
    before: Duration,
    end: End,
) -> ([i64; WRITERS], [i64; WRITERS]) {
    let running = disk.start();
    let from = std::array::from_fn(|writer| newest(running.as_ref(), writer) + 1);
    let all_acknowledged = |disk: &Disk| std::array::from_fn(|writer| disk.acknowledged(writer));
    let is_over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let writers = scope.spawn(|| {
            let outcome = ask(running.as_ref(), &writing(&from, commit));
            is_over.store(true, Ordering::SeqCst);
            outcome
        });
        let begun = Instant::now();
        while (0..WRITERS).any(|writer| disk.acknowledged(writer) < 0) {
            assert!(!is_over.load(Ordering::SeqCst), "the writers ended by themselves");
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing was acknowledged");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(wait.saturating_sub(before));
        let earlier = all_acknowledged(disk);
        std::thread::sleep(before);
        let last = all_acknowledged(disk);
        match end {
            End::PowerCut(seed) => {
                disk.served.cut_power(&[], PowerCut { seed, torn: true, reordered: true }).unwrap();
            }
            End::Killed => {}
        }
        running.abort();
        let _ = writers.join();
        (earlier, last)
    });
    drop(running);
    if let End::PowerCut(_) = end {
        disk.served.restore_power().unwrap();
    }
    outcome
}

#[test]
fn postgresql_keeps_what_it_acknowledged() {
    if !support::can_mount() {
        return;
    }
    let playground = support::Playground::new();
    let mut disk = Disk::make(playground.folder.path());
    let running = disk.start();
    ask(running.as_ref(), "psql -X -q -c 'create table told (writer int, n bigint)' && echo answer 1")
        .unwrap();
    running.stop().unwrap();

    // With synchronous_commit = on: everything.
    let ends = [End::PowerCut(1), End::Killed, End::PowerCut(2), End::PowerCut(3)];
    for (round, end) in ends.into_iter().enumerate() {
        let wait = Duration::from_millis(300 * (round as u64 + 1));
        let (_, acknowledged) = live(&mut disk, "on", wait, Duration::ZERO, end);
        let running = disk.start();
        for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
            let (newest, count) = (newest(running.as_ref(), writer), count(running.as_ref(), writer));
            assert!(
                newest >= acknowledged,
                "{end:?}: writer {writer} had {acknowledged} acknowledged, and {newest} is the newest"
            );
            assert_eq!(count, newest + 1, "{end:?}: some of writer {writer} are missing");
        }
        running.stop().unwrap();
    }

    // Off: what is lost is no older than three rounds of the log writer, and there is something to lose.
    let mut lost = 0;
    for seed in 4..14 {
        let (earlier, acknowledged) = live(
            &mut disk,
            "off",
            MAX_LOST_TIME + Duration::from_secs(3),
            MAX_LOST_TIME,
            End::PowerCut(seed),
        );
        let running = disk.start();
        for writer in 0..WRITERS {
            let newest = newest(running.as_ref(), writer);
            assert!(newest >= earlier[writer], "writer {writer} lost more than the last {MAX_LOST_TIME:?}");
            assert_eq!(count(running.as_ref(), writer), newest + 1, "some of writer {writer} are missing");
            lost += (acknowledged[writer] - newest).max(0);
        }
        running.stop().unwrap();
        if lost > 0 {
            break;
        }
    }
    println!("asynchronous commit lost {lost} transactions");
    assert!(lost > 0, "nothing was lost in ten power cuts, so the test above shows nothing");
    disk.attached.detach().unwrap();
    assert_eq!(playground.left_behind(), [""; 0]);
}
