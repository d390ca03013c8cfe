//! A first study of a system: sizes with which it runs on two cores in minutes.

const MB: u64 = 1_000_000;

/// What `underlay new` gives a system. Sizes are those on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstStudy {
    /// Of the system and its page cache, scaled with the data. `None` for what stores nothing.
    pub memory_bytes: Option<u64>,
    /// Its processes' memory, independent of the data.
    pub fixed_memory: Option<&'static str>,
    /// Further lines of its section.
    pub settings: &'static str,
    pub data_bytes: u64,
    /// The volumes' bytes over those of the data: indexes, garbage, a compaction in progress.
    pub room: f64,
    pub work: FirstWork,
    /// `None` for jobs, which take as long as they take.
    pub times: Option<RunTimes>,
    /// Further lines of `[run]`.
    pub run: &'static str,
}

/// Lines of `[run]`: warm-up and duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTimes {
    /// Where slow motion is the host's to choose.
    pub modelled: &'static str,
    /// The same with disks, which answer few requests in a time.
    pub of_disks: &'static str,
    /// Where there is no slow motion.
    pub wall: &'static str,
}

/// What a first study has its system do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstWork {
    /// YCSB's mixes, as a list of TOML, and the number of clients.
    Requests { mixes: &'static str, threads: u32 },
    /// Batch jobs, as a list of TOML.
    Jobs { jobs: &'static str },
}

const REPEATED: &str = "repetitions = 3                   # more make the intervals narrower\n";
/// Each repetition of a system in Java starts all its processes.
const ONCE: &str = "repetitions = 1                   # 3 or more show what is chance\n";
const ONCE_COLD: &str = "repetitions = 1                   # 3 or more show what is chance\n\
                         cache = \"cold\"                    # the page cache is dropped before each job\n";

impl FirstStudy {
    /// Of a system in one process that is there at once.
    pub(crate) const OF_REQUESTS: FirstStudy = FirstStudy {
        memory_bytes: Some(100 * MB),
        fixed_memory: None,
        settings: "",
        data_bytes: 450 * MB,
        room: 2.0,
        work: FirstWork::Requests { mixes: r#"["a", "b", "c"]"#, threads: 20 },
        times: Some(RunTimes {
            modelled: "warmup = \"50 ms\"\nduration = \"500 ms\"\n",
            of_disks: "warmup = \"100 ms\"\nduration = \"1 s\"\n",
            wall: "warmup = \"1 s\"\nduration = \"5 s\"\n",
        }),
        run: REPEATED,
    };

    /// Of one in Java, which is compiled while it runs.
    pub(crate) const IN_JAVA: FirstStudy = FirstStudy {
        data_bytes: 300 * MB,
        times: Some(RunTimes {
            modelled: "warmup = \"500 ms\"\nduration = \"1 s\"\n",
            of_disks: "warmup = \"500 ms\"\nduration = \"2 s\"\n",
            wall: "warmup = \"10 s\"\nduration = \"20 s\"\n",
        }),
        run: ONCE,
        ..FirstStudy::OF_REQUESTS
    };

    /// Of one that runs batch jobs.
    pub(crate) const OF_JOBS: FirstStudy = FirstStudy {
        memory_bytes: Some(400 * MB),
        data_bytes: 300 * MB,
        work: FirstWork::Jobs { jobs: r#"["teragen", "terasort", "teravalidate"]"# },
        times: None,
        run: ONCE_COLD,
        ..FirstStudy::OF_REQUESTS
    };
}
