//! The plan of any study: every combination, once a repetition, in the same order each time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use underlay_study::plan;
use underlay_study::spec::{JobSpec, Study};

/// A sound study with lists of the given lengths.
#[derive(Clone, Debug)]
struct Lists {
    storages: usize,
    mixes: Vec<&'static str>,
    distributions: Vec<&'static str>,
    threads: Vec<u32>,
    /// As they are written.
    rates: Vec<&'static str>,
    sizes_gb: Vec<u32>,
    second_workload: bool,
    repetitions: u32,
    seed: u32,
}

impl Lists {
    fn toml(&self) -> String {
        let quoted =
            |words: &[&str]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let joined = |parts: Vec<String>| parts.join(", ");
        let mut text =
            "name = \"plan\"\nbaseline = \"s0\"\n[system.rocksdb]\nmemory = \"2 GiB\"\n".to_owned();
        for storage in 0..self.storages {
            text.push_str(&format!("[storage.s{storage}]\npaths = [\"/mnt/{storage}\"]\n"));
        }
        let lists = format!(
            "mixes = [{}]\n{}threads = [{}]\nrate = [{}]\ndata = [{}]\n",
            quoted(&self.mixes),
            match self.distributions.as_slice() {
                [] => String::new(),
                names => format!("distribution = [{}]\n", quoted(names)),
            },
            joined(self.threads.iter().map(u32::to_string).collect()),
            self.rates.join(", "),
            joined(self.sizes_gb.iter().map(|size| format!("\"{size} GB\"")).collect()),
        );
        text.push_str(&format!("[workload.ycsb]\n{lists}"));
        if self.second_workload {
            text.push_str(&format!("[workload.large]\nrecord = {{ fields = 1, bytes = 4000 }}\n{lists}"));
        }
        text.push_str(&format!("[run]\nrepetitions = {}\nseed = {}\n", self.repetitions, self.seed));
        text
    }

    fn study(&self) -> Study {
        Study::parse("plan.toml", &self.toml(), false).unwrap_or_else(|mistakes| panic!("{mistakes}"))
    }

    /// The number of cells by counting, mix by mix.
    fn cells(&self) -> usize {
        let of_mix = |mix: &&str| match *mix {
            "load" | "delete" => 1,
            _ => self.distributions.len().max(1),
        };
        let per_mix: usize = self.mixes.iter().map(of_mix).sum();
        let workloads = if self.second_workload { 2 } else { 1 };
        workloads * self.storages * per_mix * self.threads.len() * self.rates.len() * self.sizes_gb.len()
    }
}

/// Each is a separate cell, also where the rates of two are the same.
const RATES: [&str; 7] = [
    "\"max\"",
    "20_000",
    "90_000",
    "{ ramp = [100, 500] }",
    "{ ramp = [100, 500], over = \"7 s\" }",
    "{ steps = [100, 500] }",
    "{ steps = [1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 7e6, 8e6], each = \"500 ms\" }",
];

fn some_of<T: Clone + std::fmt::Debug + 'static>(all: Vec<T>, most: usize) -> impl Strategy<Value = Vec<T>> {
    proptest::sample::subsequence(all, 1..=most).prop_shuffle()
}

fn lists() -> impl Strategy<Value = Lists> {
    (
        1usize..4,
        some_of(vec!["load", "a", "b", "c", "d", "e", "f", "delete"], 5),
        prop_oneof![Just(Vec::new()), some_of(vec!["uniform", "zipfian", "latest", "hotspot"], 3)],
        some_of(vec![1, 8, 64, 200], 2),
        some_of(RATES.to_vec(), 3),
        some_of(vec![16, 32, 64, 100], 2),
        any::<bool>(),
        1u32..4,
        any::<u32>(),
    )
        .prop_map(
            |(
                storages,
                mixes,
                distributions,
                threads,
                rates,
                sizes_gb,
                second_workload,
                repetitions,
                seed,
            )| Lists {
                storages,
                mixes,
                distributions,
                threads,
                rates,
                sizes_gb,
                second_workload,
                repetitions,
                seed,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn combinations_run_once_per_repetition(lists in lists()) {
        let study = lists.study();
        let cells = plan::expand(&study);
        prop_assert_eq!(cells.len(), lists.cells());
        let ids: BTreeSet<_> = cells.iter().map(|cell| cell.id.clone()).collect();
        prop_assert_eq!(ids.len(), cells.len(), "ids are unique");
        // On one storage of one system, a table tells its rows apart by the workload's label.
        let rows: BTreeSet<_> = cells.iter().map(|cell| (&cell.system, &cell.storage, cell.label())).collect();
        prop_assert_eq!(rows.len(), cells.len(), "labels are unique");

        let planned = plan::order(&study);
        prop_assert_eq!(planned.len(), cells.len() * lists.repetitions as usize);
        for (index, round) in planned.chunks(cells.len()).enumerate() {
            let of_round: BTreeSet<_> = round.iter().map(|planned| planned.cell.id.clone()).collect();
            prop_assert_eq!(&of_round, &ids);
            prop_assert!(round.iter().all(|planned| planned.repetition as usize == index + 1));
        }
        let files: BTreeSet<_> = planned.iter().map(|planned| planned.file.to_lowercase()).collect();
        prop_assert_eq!(files.len(), planned.len(), "files are unique, also where case does not count");
        for file in files {
            prop_assert!(file.len() <= 200 && !file.starts_with('.'), "{}", file);
            prop_assert!(
                file.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'),
                "{}", file
            );
        }
    }

    #[test]
    fn order_depends_on_study_alone(lists in lists()) {
        let planned = plan::order(&lists.study());
        prop_assert_eq!(&planned, &plan::order(&lists.study()));
        // More repetitions come after those that a shorter run has had.
        let longer = Lists { repetitions: lists.repetitions + 1, ..lists.clone() };
        prop_assert_eq!(&plan::order(&longer.study())[..planned.len()], &planned[..]);
    }

    #[test]
    fn cells_share_data_set_exactly_when_equal(lists in lists()) {
        let study = lists.study();
        let mut by_key: BTreeMap<String, BTreeSet<(u64, u64)>> = BTreeMap::new();
        for cell in plan::expand(&study) {
            let key = plan::dataset_key(&study, &cell);
            prop_assert!(key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            by_key.entry(key).or_default().insert((cell.requests().unwrap().records, cell.data_bytes));
        }
        prop_assert!(by_key.values().all(|shapes| shapes.len() == 1));
        let workloads = if lists.second_workload { 2 } else { 1 };
        prop_assert_eq!(by_key.len(), workloads * lists.sizes_gb.len());
    }
}

fn ten_cells(seed: u32) -> Lists {
    Lists {
        storages: 2,
        mixes: vec!["a", "b", "c", "d", "load"],
        distributions: vec![],
        threads: vec![8],
        rates: vec!["\"max\""],
        sizes_gb: vec![16],
        second_workload: false,
        repetitions: 2,
        seed,
    }
}

/// Batch jobs beside requests, for no particular system.
fn with_jobs(storages: usize, jobs: usize, repetitions: u32, seed: u32) -> Study {
    let lists = Lists { storages, repetitions, mixes: vec!["a", "c"], ..ten_cells(seed) };
    let mut study = lists.study();
    for name in ["first", "second"] {
        let mut batch = study.workloads[0].clone();
        batch.name = name.to_owned();
        batch.mixes.clear();
        batch.jobs = (0..jobs)
            .map(|job| JobSpec {
                name: format!("job-{job}"),
                data_bytes: 1 << 30,
                maps: None,
                reduces: None,
                compressibility: 0.5,
                limit: Duration::from_secs(60),
            })
            .collect();
        study.workloads.push(batch);
    }
    study
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn jobs_that_belong_together_run_together_and_in_order(
        storages in 1usize..4, jobs in 1usize..5, repetitions in 1u32..3, seed in any::<u32>(),
    ) {
        let study = with_jobs(storages, jobs, repetitions, seed);
        let planned = plan::order(&study);
        let groups = plan::groups(&planned);
        // They are all of the plan, each cell once.
        let all: Vec<usize> = groups.iter().cloned().flatten().collect();
        prop_assert_eq!(all, (0..planned.len()).collect::<Vec<_>>());
        // Two cells of requests and two workloads of jobs on each storage.
        prop_assert_eq!(groups.len(), 4 * storages * repetitions as usize);
        for group in groups {
            let cells = &planned[group];
            let names: Vec<String> = cells.iter().map(|one| one.cell.mix_or_job().to_owned()).collect();
            if cells[0].cell.is_job() {
                prop_assert_eq!(names, (0..jobs).map(|job| format!("job-{job}")).collect::<Vec<_>>());
                let first = &cells[0];
                for one in cells {
                    let workload = one.cell.id.split('/').nth(2);
                    prop_assert_eq!(workload, first.cell.id.split('/').nth(2));
                    prop_assert_eq!(&one.cell.storage, &first.cell.storage);
                    prop_assert_eq!(one.repetition, first.repetition);
                }
            } else {
                prop_assert_eq!(names.len(), 1);
            }
        }
    }
}

#[test]
fn job_cell_describes_itself() {
    let cells = plan::expand(&with_jobs(1, 2, 1, 1));
    let jobs: Vec<_> = cells.iter().filter(|cell| cell.is_job()).collect();
    let ids: Vec<&str> = jobs.iter().map(|cell| cell.id.as_str()).collect();
    assert_eq!(ids[..2], ["rocksdb/s0/first/job-0", "rocksdb/s0/first/job-1"]);
    assert_eq!((jobs[0].mix_or_job(), jobs[0].label().as_str()), ("job-0", "first job-0"));
    assert_eq!((jobs[0].data_bytes, cells.iter().filter(|cell| !cell.is_job()).count()), (1 << 30, 2));
}

#[test]
fn seed_decides_order() {
    let ids = |seed: u32| -> Vec<String> {
        plan::order(&ten_cells(seed).study()).into_iter().map(|planned| planned.cell.id).collect()
    };
    let orders: BTreeSet<_> = (0..20).map(ids).collect();
    assert!(orders.len() > 15, "20 seeds gave {} orders", orders.len());
    let first = ids(1);
    assert_ne!(first[..10], first[10..], "each round has a shuffle of its own");
}

#[test]
fn plan_with_changing_rates_rereads_unchanged() {
    let rates = vec!["{ ramp = [0.1, 333.3], over = \"7 s\" }", "{ steps = [1, 2, 3] }"];
    let mut study = Lists { mixes: vec!["a"], rates, ..ten_cells(1) }.study();
    study.scale.time = 7.0;
    let planned = plan::order(&study);
    let text = serde_json::to_string(&planned).unwrap();
    assert_eq!(serde_json::from_str::<Vec<underlay_record::PlannedCell>>(&text).unwrap(), planned);
    let cells = plan::expand(&study);
    assert_eq!(cells[0].label(), "a, ramp 0.1/s to 333.3/s over 7 s");
    assert_eq!(cells[0].id, "rocksdb/s0/ycsb-a-zipfian-8t-ramp-0.1-333.3-7s");
    assert_eq!((cells[1].label().as_str(), cells[1].rate_per_s()), ("a, steps 1/s, 2/s, 3/s", Some(2.0)));
    let lengths: Vec<f64> = cells[1].rate_parts().iter().map(|part| part.length_s).collect();
    assert_eq!(lengths, [2.857143; 3]);
}

#[test]
fn labels_say_what_varies_and_no_more() {
    let labels = |lists: &Lists| -> Vec<String> {
        plan::expand(&lists.study())
            .into_iter()
            .filter(|cell| cell.storage == "s0")
            .map(|cell| cell.label())
            .collect()
    };
    let plain = ten_cells(1);
    assert_eq!(labels(&plain), ["a", "b", "c", "d", "load"]);
    let distributions: Vec<_> = plan::expand(&plain.study())
        .into_iter()
        .take(5)
        .map(|cell| cell.requests().unwrap().distribution.clone())
        .collect();
    assert_eq!(distributions, ["zipfian", "zipfian", "zipfian", "latest", "sequential"]);
    let wide = Lists {
        mixes: vec!["a", "load"],
        distributions: vec!["uniform", "zipfian"],
        threads: vec![8, 64],
        rates: vec!["\"max\"", "20_000"],
        sizes_gb: vec![16, 32],
        ..plain
    };
    let wide = labels(&wide);
    assert_eq!(wide[0], "a, uniform, 16 GB, 8 threads, unthrottled");
    assert_eq!(wide[1], "a, uniform, 16 GB, 8 threads, 20,000/s");
    assert_eq!(wide[8], "load, 16 GB, 8 threads, unthrottled");
    let ids: Vec<_> = plan::expand(&ten_cells(1).study()).into_iter().map(|cell| cell.id).collect();
    assert_eq!(ids[0], "rocksdb/s0/ycsb-a-zipfian-8t");
}

#[test]
fn earlier_run_resumes_with_planned_cells() {
    let head = concat!(env!("CARGO_MANIFEST_DIR"), "/../record/tests/schema-2/run.json");
    let run = underlay_record::read::run(&std::fs::read_to_string(head).unwrap()).unwrap();
    let study = Study::parse("the study in run.json", &run.study_toml, run.short).unwrap();
    let mut order = plan::order(&study);
    assert!(plan::is_same(&order, &run.plan));
    let names = |planned: &[underlay_record::PlannedCell]| -> Vec<String> {
        planned.iter().map(|planned| planned.cell.label()).collect()
    };
    assert_eq!(names(&order), names(&run.plan));
    order.swap(0, 1);
    assert!(!plan::is_same(&order, &run.plan));
}
