//! The figures that fio printed. Figures that it did not count, or of too few requests, are left out, with a note why.

use std::io;

use serde_json::Value;
use underlay_record::{BenchmarkFigure, BetterDirection, MetricDilation};

use super::job_file::JobFile;
use super::percentiles::{self, JobPercentiles};
use crate::benchmark::reading::{first_json, is_measurement};

/// The kinds that fio counts apart, with the word for several of them.
const KINDS: [(&str, &str); 4] =
    [("read", "reads"), ("write", "writes"), ("trim", "trims"), ("mixed", "requests")];
/// The percentiles that become figures where the job asks for none by `percentile_list`.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];
const PERCENTILES_OF_SYNCS: [f64; 2] = [50.0, 99.0];
const MAX_JOBS: usize = 100_000;
/// Two jobs have not run at the same time if one ends after less than this share of the other's time.
const SAME_TIME: f64 = 0.9;
/// So much of a text goes into a message.
const MAX_WORDS: usize = 1500;
/// `ENOTTY`, which fio gets for trims of a file.
const NOT_A_DEVICE: i32 = 25;

/// Figures from fio's output.
#[derive(Clone, Debug, PartialEq)]
pub struct FioMetrics {
    /// Never empty.
    pub figures: Vec<BenchmarkFigure>,
    /// Missing figures, and why.
    pub notes: Vec<String>,
}

/// The figures in fio's JSON, for a job of this text.
///
/// # Errors
/// When there is no JSON, a job of it had errors, or none made a request.
pub fn figures_of(printed: &str, job: &str) -> Result<FioMetrics, String> {
    let root =
        first_json(printed).map_err(|problem| format!("fio's figures: {problem}; {}", seen(printed)))?;
    let jobs = jobs_of(&root)?;
    let failed: Vec<String> = jobs.iter().filter_map(|job| error_of(job)).collect();
    if !failed.is_empty() {
        return Err(format!("{}{}", failed.join("; "), words_before(printed)));
    }
    let file = JobFile::parse(job);
    let lists_percentiles = file.jobs().any(|job| job.setting("percentile_list").is_some());
    let mut reader = FioReader { jobs: &jobs, lists_percentiles, figures: Vec::new(), notes: Vec::new() };
    for (kind, several) in KINDS {
        reader.read_kind(kind, several, expects(&file, kind))?;
    }
    reader.read_syncs()?;
    let FioReader { figures, notes, .. } = reader;
    match figures.is_empty() {
        true => Err("fio's jobs made no requests, so there are no figures".to_owned()),
        false => Ok(FioMetrics { figures, notes }),
    }
}

/// Fio's reasons for a failure, from its output: the errors of its jobs.
pub fn failure_in(printed: &str) -> Option<String> {
    let root = first_json(printed).ok();
    let jobs = root.as_ref().and_then(|root| jobs_of(root).ok()).unwrap_or_default();
    let mut errors: Vec<String> = jobs.iter().filter_map(|job| error_of(job)).collect();
    errors.dedup();
    let words = words_before(printed);
    match (errors.is_empty(), words.is_empty()) {
        (true, true) => None,
        _ => Some(format!("{}{words}", errors.join("; "))),
    }
}

fn jobs_of(root: &Value) -> Result<Vec<&Value>, String> {
    let jobs = root.get("jobs").and_then(Value::as_array).filter(|jobs| !jobs.is_empty());
    let jobs = jobs.ok_or("fio's JSON has no jobs: fio ended before any job began")?;
    Ok(jobs.iter().take(MAX_JOBS).collect())
}

/// Fio's output in front of its JSON: its messages on errors.
fn words_before(printed: &str) -> String {
    let lines = printed.split_inclusive('\n').take_while(|line| !line.starts_with('{'));
    let begin: usize = lines.map(str::len).sum();
    let words: String = printed[..begin].trim().chars().take(MAX_WORDS).collect();
    if words.is_empty() { words } else { format!("\n{words}") }
}

fn seen(printed: &str) -> String {
    match printed.trim() {
        "" => "it printed nothing".to_owned(),
        text => format!("it printed:\n{}", text.chars().take(MAX_WORDS).collect::<String>()),
    }
}

/// The errors of a job, in words. With `continue_on_error` fio ends well all the same.
fn error_of(job: &Value) -> Option<String> {
    let number = |key: &str| job.get(key).and_then(Value::as_i64).unwrap_or(0);
    let name: String = job.get("jobname").and_then(Value::as_str).unwrap_or("?").chars().take(80).collect();
    let (error, count) = (number("error"), number("total_err"));
    let code = i32::try_from(if error != 0 { error } else { number("first_error") }).unwrap_or(i32::MAX);
    let hint = match code {
        NOT_A_DEVICE => ": trims need a block device, {device} of a storage with `filesystem = \"none\"`",
        _ => "",
    };
    let reason = io::Error::from_raw_os_error(code);
    match (error, count) {
        (0, 0) => None,
        (_, 0 | 1) => Some(format!("fio's job [{name}] failed: error {code}, {reason}{hint}")),
        _ => Some(format!("fio's job [{name}] had {count} errors: the first is {code}, {reason}{hint}")),
    }
}

/// Whether a job of the file makes such requests, by its own account.
fn expects(file: &JobFile, kind: &str) -> bool {
    file.jobs().any(|job| {
        if !matches!(job.value("unified_rw_reporting"), None | Some("0" | "none" | "both")) {
            return false;
        }
        let access = job.value("rw").unwrap_or("read").split([':', ',']).next().unwrap_or_default();
        let is_mix = matches!(access, "rw" | "readwrite" | "randrw");
        match kind {
            "read" => is_mix || access.ends_with("read"),
            "write" => is_mix || access.ends_with("write"),
            "trim" => access.contains("trim"),
            _ => false,
        }
    })
}

struct FioReader<'a> {
    jobs: &'a [&'a Value],
    lists_percentiles: bool,
    figures: Vec<BenchmarkFigure>,
    notes: Vec<String>,
}

impl FioReader<'_> {
    /// The rates of requests of a kind, and what they took.
    fn read_kind(&mut self, kind: &str, several: &str, is_expected: bool) -> Result<(), String> {
        let made: Vec<&Value> = self
            .jobs
            .iter()
            .filter_map(|job| job.get(kind))
            // fio prints zeros for kinds of requests that a job does not make.
            .filter(|one| count(one, "total_ios") > 0.0)
            .collect();
        if made.is_empty() {
            if is_expected {
                self.notes.push(format!("fio made no {several}, so they have no figures"));
            }
            return Ok(());
        }
        for (name, key, unit) in [("operations", "iops", "operations/s"), ("bandwidth", "bw_bytes", "B/s")] {
            let sum = made.iter().map(|one| count(one, key)).sum();
            self.add(format!("{kind} {name}"), unit, sum)?;
        }
        // Rates add up only for jobs that ran at the same time.
        let longest_ms = made.iter().map(|one| count(one, "runtime")).fold(0.0, f64::max);
        let shortest_ms = made.iter().map(|one| count(one, "runtime")).fold(f64::INFINITY, f64::min);
        if shortest_ms < longest_ms * SAME_TIME {
            self.notes.push(format!(
                "fio's jobs made {several} for {:.1} to {:.1} s of this machine's clock: the sum of their rates is more than the rate at any time",
                shortest_ms / 1e3,
                longest_ms / 1e3
            ));
        }
        // A job without latencies has zeros there as well, which would pull the mean down.
        let timed: Vec<&Value> =
            made.iter().filter_map(|one| one.get("clat_ns")).filter(|one| count(one, "N") > 0.0).collect();
        if timed.len() < made.len() {
            let quantifier = if timed.is_empty() { "" } else { "some " };
            self.notes.push(format!(
                "fio took no completion latencies of {quantifier}{several}, since the job has `gtod_reduce` or `disable_clat`: they are left out"
            ));
        }
        if !timed.is_empty() {
            self.add_latency(format!("{kind} mean"), mean_of_all(&timed))?;
            let printed = self.read_percentiles(kind, several, &timed, &PERCENTILES)?;
            if let Some(missing) = missing(&PERCENTILES, &printed) {
                self.notes.push(format!(
                    "fio printed no {missing} of {several}, since the job has `percentile_list` or `clat_percentiles`: left out"
                ));
            }
        }
        for (word, key) in [("lat", "lat_ns"), ("slat", "slat_ns")] {
            let all: Vec<&Value> = made.iter().filter_map(|one| one.get(key)).collect();
            self.read_percentiles(&format!("{kind} {word}"), several, &all, &PERCENTILES)?;
        }
        Ok(())
    }

    /// The latencies of `fsync` and `fdatasync`, where a job makes them.
    fn read_syncs(&mut self) -> Result<(), String> {
        let all: Vec<&Value> = self
            .jobs
            .iter()
            .filter_map(|job| job.get("sync").and_then(|sync| sync.get("lat_ns")))
            .filter(|one| count(one, "N") > 0.0)
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        self.add_latency("sync mean".to_owned(), mean_of_all(&all))?;
        self.read_percentiles("sync", "syncs", &all, &PERCENTILES_OF_SYNCS).map(drop)
    }

    /// The percentiles that rest on enough requests: of several jobs the highest, since they can't be added. Gives
    /// those that fio printed.
    fn read_percentiles(
        &mut self,
        name: &str,
        several: &str,
        all: &[&Value],
        usual: &[f64],
    ) -> Result<Vec<f64>, String> {
        let is_wanted = |percentile: f64| self.lists_percentiles || usual.contains(&percentile);
        let JobPercentiles { figures, printed, too_few } = percentiles::read_jobs(all, is_wanted)?;
        let jobs = all.iter().filter(|one| one.get("percentile").is_some()).count();
        if jobs > 1 && !figures.is_empty() {
            self.notes.push(format!(
                "percentiles of several jobs can't be added: `{name}` {} of {several} are those of the slowest of {jobs} jobs. With `group_reporting` in [global], fio takes them over all",
                list_percentiles(figures.iter().map(|(percentile, _)| *percentile))
            ));
        }
        if !too_few.is_empty() {
            self.notes.push(format!(
                "fewer than ten {several} lie beyond `{name}` {}{}: left out. Measure longer",
                list_percentiles(too_few.iter().copied()),
                if jobs > 1 { " of some job" } else { "" },
            ));
        }
        for (percentile, value) in figures {
            self.add_latency(format!("{name} p{percentile}"), value)?;
        }
        Ok(printed)
    }

    fn add_latency(&mut self, name: String, value: f64) -> Result<(), String> {
        self.add(name, "ns", value)
    }

    fn add(&mut self, name: String, unit: &str, value: f64) -> Result<(), String> {
        if !is_measurement(value) {
            return Err(format!("fio's figure `{name}` is {value}, which is no measurement"));
        }
        let (better, slow_motion) = match unit {
            "ns" => (BetterDirection::Lower, MetricDilation::Time),
            _ => (BetterDirection::Higher, MetricDilation::Rate),
        };
        let (unit, series) = (unit.to_owned(), Vec::new());
        self.figures.push(BenchmarkFigure {
            name,
            value,
            unit,
            better,
            slow_motion,
            wall_value: value,
            series,
        });
        Ok(())
    }
}

fn count(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

/// The mean of the requests of all jobs: each job's mean weighs as much as it had requests.
fn mean_of_all(all: &[&Value]) -> f64 {
    let (requests, total) = all.iter().fold((0.0, 0.0), |(requests, total), one| {
        let counted = count(one, "N");
        (requests + counted, total + counted * count(one, "mean"))
    });
    total / requests
}

/// `p50, p99`: those that fio did not print.
fn missing(usual: &[f64], printed: &[f64]) -> Option<String> {
    let missing: Vec<f64> =
        usual.iter().copied().filter(|percentile| !printed.contains(percentile)).collect();
    (!missing.is_empty()).then(|| list_percentiles(missing.into_iter()))
}

/// `p50, p99.9`
fn list_percentiles(all: impl Iterator<Item = f64>) -> String {
    all.map(|percentile| format!("p{percentile}")).collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As fio prints them, over some hours: `clat` is absent where there are no latencies.
    fn made(operations: f64, percentiles: &[(&str, u64)]) -> Value {
        let requests = operations * 10_000.0;
        let percentile: serde_json::Map<String, Value> =
            percentiles.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        json!({
            "total_ios": requests, "iops": operations, "bw_bytes": operations * 4096.0,
            "clat_ns": { "mean": 1500.0, "N": requests, "percentile": percentile },
        })
    }

    fn untimed(operations: f64) -> Value {
        json!({ "total_ios": operations, "iops": operations, "bw_bytes": operations * 4096.0, "clat_ns": { "mean": 0.0, "N": 0 } })
    }

    const USUAL: [(&str, u64); 4] =
        [("50.000000", 1000), ("75.000000", 1200), ("99.000000", 2000), ("99.900000", 3000)];

    fn taken(jobs: Value, job: &str) -> (Vec<(String, f64)>, Vec<String>) {
        let metrics = figures_of(&json!({ "jobs": jobs }).to_string(), job).unwrap();
        (metrics.figures.into_iter().map(|figure| (figure.name, figure.value)).collect(), metrics.notes)
    }

    fn names(jobs: Value, job: &str) -> (Vec<String>, String) {
        let (figures, notes) = taken(jobs, job);
        (figures.into_iter().map(|(name, _)| name).collect(), notes.join("\n"))
    }

    #[test]
    fn job_without_latencies_keeps_rates() {
        let (figures, notes) =
            names(json!([{ "read": untimed(10.0), "write": untimed(5.0) }]), "[t]\nrw=randrw\ngtod_reduce=1");
        assert_eq!(figures, ["read operations", "read bandwidth", "write operations", "write bandwidth"]);
        assert!(
            notes.contains("of reads, since") && notes.contains("gtod_reduce") && notes.contains("of writes"),
            "{notes}"
        );
        let (figures, notes) = names(
            json!([{ "read": made(10.0, &USUAL) }, { "read": untimed(5.0) }]),
            "[a]\n[b]\ndisable_clat=1",
        );
        assert_eq!(figures.len(), 6, "{figures:?}");
        assert!(notes.contains("some reads"), "{notes}");
    }

    #[test]
    fn mix_side_without_requests_is_dropped_with_note() {
        let (figures, notes) = names(
            json!([{ "read": made(0.0, &[]), "write": made(5.0, &USUAL) }]),
            "[t]\nrw=randrw\nrwmixread=0",
        );
        assert_eq!(
            figures,
            ["write operations", "write bandwidth", "write mean", "write p50", "write p99", "write p99.9"]
        );
        assert_eq!(notes, "fio made no reads, so they have no figures");
    }

    #[test]
    fn overridden_global_option_needs_no_note() {
        let job = "[global]\nrw=randread\n[only-writer]\nrw=randwrite\n";
        let (figures, notes) = names(json!([{ "read": made(0.0, &[]), "write": made(5.0, &USUAL) }]), job);
        assert!(figures[0] == "write operations" && notes.is_empty(), "{figures:?} {notes}");
    }

    #[test]
    fn job_percentiles_become_figures() {
        let job = "[t]\npercentile_list=75:99";
        let (figures, notes) =
            names(json!([{ "read": made(5.0, &[("75.000000", 1), ("99.000000", 2)]) }]), job);
        assert_eq!(figures, ["read operations", "read bandwidth", "read mean", "read p75", "read p99"]);
        assert!(notes.contains("no p50, p99.9 of reads"), "{notes}");
        let (figures, notes) = names(json!([{ "read": made(5.0, &[]) }]), "[t]\nclat_percentiles=0");
        assert!(figures.len() == 3 && notes.contains("clat_percentiles"), "{figures:?} {notes}");
        let mut both = made(5.0, &USUAL);
        both["lat_ns"] = json!({ "N": 5000, "percentile": { "99.000000": 7 } });
        both["slat_ns"] = json!({ "N": 5000, "percentile": { "99.000000": 8 } });
        let (figures, _) = taken(json!([{ "read": both }]), "[t]\nlat_percentiles=1\nslat_percentiles=1");
        assert_eq!(figures[6..], [("read lat p99".to_owned(), 7.0), ("read slat p99".to_owned(), 8.0)]);
    }

    #[test]
    fn unified_reporting_has_one_kind_of_request() {
        let (figures, notes) =
            names(json!([{ "mixed": made(5.0, &USUAL) }]), "[t]\nrw=randrw\nunified_rw_reporting=1");
        assert!(figures[0] == "mixed operations" && notes.is_empty(), "{figures:?} {notes}");
    }

    #[test]
    fn flushes_count_where_there_are_some() {
        let (figures, notes) = names(
            json!([{ "read": made(5.0, &USUAL), "sync": { "total_ios": 0, "lat_ns": { "N": 0 } } }]),
            "[t]\nfsync=1",
        );
        assert!(figures.len() == 6 && notes.is_empty(), "{figures:?} {notes}");
        let sync = json!({ "total_ios": 5000, "lat_ns": { "N": 5000, "mean": 9.0, "percentile": { "50.000000": 8, "99.000000": 9, "99.900000": 9 } } });
        let (figures, _) =
            names(json!([{ "write": made(5.0, &USUAL), "sync": sync }]), "[t]\nrw=write\nfsync=1");
        assert_eq!(figures[6..], ["sync mean", "sync p50", "sync p99"]);
    }

    #[test]
    fn several_jobs_add_up_with_slowest_percentile() {
        let slow = [("50.000000", 4000), ("99.000000", 1000)];
        let (figures, notes) =
            taken(json!([{ "read": made(5.0, &USUAL) }, { "read": made(7.0, &slow) }]), "[a]\n[b]");
        let value = |name: &str| figures.iter().find(|(figure_name, _)| figure_name == name).unwrap().1;
        assert_eq!((value("read operations"), value("read p50"), value("read p99")), (12.0, 4000.0, 2000.0));
        assert!(notes.len() == 1 && notes[0].contains("the slowest of 2 jobs"), "{notes:?}");
        let (_, notes) = taken(json!([{ "read": made(5.0, &USUAL) }]), "[a]");
        assert_eq!(notes, Vec::<String>::new(), "one job has nothing to choose from");
    }

    /// 717 reads a second one at a time take some 1.4 ms each, independent of 20 large ones beside them.
    #[test]
    fn mean_of_several_jobs_is_weighted_by_requests() {
        let job = |requests: u64, mean: f64| {
            let clat = json!({ "N": requests, "mean": mean });
            json!({ "total_ios": requests, "iops": requests, "bw_bytes": 4096, "clat_ns": clat })
        };
        let jobs = json!([
            { "read": job(300, 1000.0), "write": job(10, 70.0) },
            { "read": job(100, 5000.0) },
        ]);
        let (figures, _) = taken(jobs, "[a]\nrw=randrw\n[b]");
        let value = |name: &str| figures.iter().find(|(figure_name, _)| figure_name == name).unwrap().1;
        assert_eq!((value("read mean"), value("write mean")), (2000.0, 70.0));
        let sync = |requests: u64, mean: f64| json!({ "lat_ns": { "N": requests, "mean": mean } });
        let jobs = json!([
            { "write": job(300, 10.0), "sync": sync(30, 10.0) },
            { "write": job(300, 30.0), "sync": sync(10, 50.0) },
        ]);
        let (figures, _) = taken(jobs, "[a]\nrw=write\n[b]\nrw=write");
        let value = |name: &str| figures.iter().find(|(figure_name, _)| figure_name == name).unwrap().1;
        assert_eq!((value("write mean"), value("sync mean")), (20.0, 20.0));
    }

    #[test]
    fn rates_of_staggered_jobs_are_added_with_note() {
        let job = |runtime_ms: u64| {
            let mut job = made(5.0, &USUAL);
            job["runtime"] = json!(runtime_ms);
            json!({ "read": job })
        };
        let notes_of = |jobs: Value| taken(jobs, "[a]\n[b]").1.join("\n");
        let differing = notes_of(json!([job(1000), job(8000)]));
        assert!(differing.contains("made reads for 1.0 to 8.0 s"), "{differing}");
        let alike = notes_of(json!([job(7900), job(8000)]));
        assert!(!alike.contains("made reads for"), "{alike}");
    }

    #[test]
    fn percentiles_of_three_requests_are_dropped_with_note() {
        let percentiles = json!({ "50.000000": 1, "99.000000": 2, "99.900000": 3 });
        let few = json!({
            "total_ios": 3, "iops": 3.0, "bw_bytes": 12_288,
            "clat_ns": { "mean": 2.0, "N": 3, "percentile": percentiles },
        });
        let (figures, notes) = names(json!([{ "read": few }]), "[t]\nnumber_ios=3");
        assert_eq!(figures, ["read operations", "read bandwidth", "read mean"]);
        assert!(notes.contains("fewer than ten reads") && notes.contains("p50, p99, p99.9"), "{notes}");
        assert!(!notes.contains("percentile_list"), "fio did print them: {notes}");
    }

    #[test]
    fn job_errors_are_reported() {
        let failed = |jobs: Value| figures_of(&json!({ "jobs": jobs }).to_string(), "[t]").unwrap_err();
        let continued = failed(json!([
            { "jobname": "fine", "error": 0, "read": made(5.0, &USUAL) },
            { "jobname": "t", "error": 0, "total_err": 7, "first_error": 5, "read": made(5.0, &USUAL) },
        ]));
        assert!(
            continued.contains("[t] had 7 errors") && continued.contains("Input/output error"),
            "{continued}"
        );
        let trims = failure_in(&format!(
            "fio: pid=1, err=25/file:ioengines.c:399\n{}",
            json!({ "jobs": [{ "jobname": "t", "error": 25 }] })
        ));
        let trims = trims.unwrap();
        assert!(trims.contains("error 25, Inappropriate ioctl") && trims.contains("{device}"), "{trims}");
        assert!(trims.contains("ioengines.c"), "{trims}");
        assert_eq!(failure_in(&json!({ "jobs": [{ "error": 0 }] }).to_string()), None);
        assert!(failed(json!([])).contains("no jobs"));
        assert!(failed(json!([{ "read": made(0.0, &[]) }])).contains("no requests"));
        assert!(figures_of("fio: bad option\n", "[t]").unwrap_err().contains("bad option"));
        assert!(figures_of(r#"{"jobs":[{"read":{"total_ios":1,"iops":1e300}}]}"#, "[t]").is_err());
    }
}
