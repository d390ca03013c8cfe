//! A first study's load for each system: sizes with which it runs on two cores in minutes.

use underlay_config::closest;
use underlay_report::comparison::system_title;
use underlay_systems::system::{System, SystemCapabilities};

use crate::bundled_studies;
use crate::exit_codes::ExitFailure;

const MB: u64 = 1_000_000;

/// A system, and what it is given. Sizes are those on this machine.
pub(super) struct NewSystem {
    pub name: &'static str,
    pub capabilities: SystemCapabilities,
    /// Of the system and its page cache, scaled with the data. None for what stores nothing.
    pub memory_bytes: Option<u64>,
    /// Its processes' memory, independent of the data.
    pub fixed_memory: Option<&'static str>,
    /// Further lines of its section.
    pub settings: &'static str,
    pub data_bytes: u64,
    /// The volumes' bytes over those of the data: indexes, garbage, a compaction under way.
    pub room: f64,
    pub work: NewWork,
    /// None for jobs, which take as long as they take.
    pub times: Option<RunTimes>,
    /// Further lines of `[run]`.
    pub run: &'static str,
}

/// Lines of `[run]`: warm-up and duration.
pub(super) struct RunTimes {
    /// Where slow motion is the host's to choose.
    pub modelled: &'static str,
    /// The same with disks, which answer few requests in a time.
    pub of_disks: &'static str,
    /// Where there is no slow motion.
    pub wall: &'static str,
}

pub(super) enum NewWork {
    /// YCSB's mixes and the number of clients.
    Requests {
        mixes: &'static str,
        threads: u32,
    },
    Jobs {
        jobs: &'static str,
    },
}

const REPEATED: &str = "repetitions = 3                   # more make the intervals narrower\n";
/// Each repetition of a system in Java starts all its processes.
const ONCE: &str = "repetitions = 1                   # 3 or more show what is chance\n";

/// Java compiles a program while it runs.
const JAVA_TIMES: RunTimes = RunTimes {
    modelled: "warmup = \"500 ms\"\nduration = \"1 s\"\n",
    of_disks: "warmup = \"500 ms\"\nduration = \"2 s\"\n",
    wall: "warmup = \"10 s\"\nduration = \"20 s\"\n",
};

/// Finds the system that `--system` names.
pub(super) fn find(name: &str) -> Result<NewSystem, ExitFailure> {
    let Some(system) = underlay_systems::find(name) else {
        // A program that a bundled study describes by commands is no system of its own.
        if let Some(study) = bundled_studies::list_command_studies().find(|study| is_called(study, name)) {
            return Err(ExitFailure::Mistake(format!(
                "'{name}' is not a built-in system, but a bundled study describes it by commands: begin with \
                 `underlay new NAME --like {study}`"
            )));
        }
        let names = underlay_systems::names();
        let meant = closest(name, names.iter().copied());
        let meant = meant.map(|meant| format!("did you mean '{meant}'? ")).unwrap_or_default();
        return Err(ExitFailure::Mistake(format!(
            "unknown system '{name}': {meant}expected one of {}. Any other program is described by commands: begin with \
             `underlay new NAME --like sqlite`, and see docs/any-system.md",
            names.join(", ")
        )));
    };
    if system.capabilities().by_command {
        return Err(ExitFailure::Mistake(
            "what commands a program needs can't be guessed: begin with one that is there, `underlay new NAME --like sqlite` (or \
             postgresql, fio), and see docs/any-system.md"
                .to_owned(),
        ));
    }
    Ok(start_of(system))
}

/// Whether a study's program goes by this name: `postgres` is PostgreSQL's other name, as `sqlite3` is SQLite's.
fn is_called(study: &str, name: &str) -> bool {
    const ENOUGH_LETTERS: usize = 6;
    let name = name.to_ascii_lowercase();
    name == study || name.len() >= ENOUGH_LETTERS && (study.starts_with(&name) || name.starts_with(study))
}

fn start_of(system: &dyn System) -> NewSystem {
    let requests = NewSystem {
        name: system.name(),
        capabilities: system.capabilities(),
        memory_bytes: Some(100 * MB),
        fixed_memory: None,
        settings: "",
        data_bytes: 450 * MB,
        room: 2.0,
        work: NewWork::Requests { mixes: r#"["a", "b", "c"]"#, threads: 20 },
        times: Some(RunTimes {
            modelled: "warmup = \"50 ms\"\nduration = \"500 ms\"\n",
            of_disks: "warmup = \"100 ms\"\nduration = \"1 s\"\n",
            wall: "warmup = \"1 s\"\nduration = \"5 s\"\n",
        }),
        run: REPEATED,
    };
    match system.name() {
        "rocksdb" => NewSystem {
            settings: "write_buffer_share = \"4 %\"        # small memtables: flushes and compactions fall into the measured time\n",
            ..requests
        },
        "je" => NewSystem {
            fixed_memory: Some("180 MB"),
            room: 4.0,
            times: Some(JAVA_TIMES),
            run: ONCE,
            ..requests
        },
        "je-ha" => NewSystem {
            fixed_memory: Some("600 MB"),
            settings: "nodes = 3                         # one shard of three members\n",
            data_bytes: 300 * MB,
            room: 8.0,
            times: Some(JAVA_TIMES),
            run: ONCE,
            ..requests
        },
        "oracle-nosql" => NewSystem {
            fixed_memory: Some("1.1 GB"),
            settings: "nodes = 3                         # one shard of three copies\n",
            data_bytes: 300 * MB,
            room: 8.0,
            times: Some(JAVA_TIMES),
            run: ONCE,
            ..requests
        },
        "cassandra" => NewSystem {
            fixed_memory: Some("520 MB"),
            data_bytes: 300 * MB,
            room: 3.0,
            work: NewWork::Requests { mixes: r#"["a", "c"]"#, threads: 32 },
            times: Some(JAVA_TIMES),
            run: ONCE,
            ..requests
        },
        "accumulo" => NewSystem {
            memory_bytes: Some(160 * MB),
            fixed_memory: Some("1.4 GB"),
            settings: "compression = \"none\"              # YCSB's values hardly compress\n",
            data_bytes: 300 * MB,
            room: 3.0,
            work: NewWork::Requests { mixes: r#"["a", "c"]"#, threads: 32 },
            times: Some(JAVA_TIMES),
            run: ONCE,
            ..requests
        },
        "hadoop" => NewSystem {
            memory_bytes: Some(400 * MB),
            fixed_memory: Some("1.6 GB"),
            settings: "datanodes = 1\nblock_size = \"16 MiB\"             # small, as the data are: each block is a map task\ncontainers = 2                    # tasks at once\n",
            data_bytes: 300 * MB,
            room: 6.0,
            work: NewWork::Jobs { jobs: r#"["teragen", "terasort", "teravalidate"]"# },
            times: None,
            run: "repetitions = 1                   # 3 or more show what is chance\ncache = \"cold\"                    # the page cache is dropped before each job\n",
            ..requests
        },
        "spark" => NewSystem {
            memory_bytes: Some(400 * MB),
            fixed_memory: Some("4 GB"),
            settings: "datanodes = 1                     # of HDFS; store = \"s3a\" is Ceph, with a committer of its own\nexecutors = 2\n",
            data_bytes: 300 * MB,
            room: 8.0,
            work: NewWork::Jobs { jobs: r#"["teragen", "terasort", "teravalidate", "kmeans"]"# },
            times: None,
            run: "repetitions = 1                   # 3 or more show what is chance\ncache = \"cold\"                    # the page cache is dropped before each job\n",
            ..requests
        },
        // One that keeps nothing, or is new here.
        _ => {
            NewSystem { memory_bytes: (!system.capabilities().keeps_nothing).then_some(100 * MB), ..requests }
        }
    }
}

impl NewSystem {
    pub(super) fn title(&self) -> &'static str {
        system_title(self.name)
    }

    /// Whether several devices become a directory each, and no stripe.
    pub(super) fn keeps_devices_apart(&self) -> bool {
        self.capabilities.many_directories && matches!(self.work, NewWork::Jobs { .. })
    }
}
