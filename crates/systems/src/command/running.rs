//! A started program: loaded, measured and stopped by its commands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use underlay_record::BenchmarkRecord;
use underlay_sync::Mutex;
use underlay_workload::client::Client;

use super::NAME;
use super::command_env::{BudgetOwner, CommandEnvironment, EndedCommand};
use super::config::CommandConfig;
use super::foreign_files::{LOGS, read_below, tail, texts_in};
use super::identity::write_file;
use super::placeholders::{PlaceholderValues, fill_plain};
use super::progress::ProgressFollower;
use crate::benchmark::{BenchmarkTexts, MetricSource, figures_of, fio, marks_of};
use crate::child::ChildProcess;
use crate::system::{
    BenchmarkRequest, BenchmarkWatch, CommandWatch, LoadRequest, RunningSystem, SystemError,
};

/// A program has so long to end once it has been asked.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// How long a program's processes may still be there after `stop` has ended well.
const FADE_LIMIT: Duration = Duration::from_secs(5);
/// The command that measures, in the names of logs.
const BENCHMARK: &str = "benchmark";
const MAX_FIGURES: usize = 1000;
const MAX_LOGS: usize = 50;
/// So much of the end of each log is kept.
const MAX_LOG_BYTES: u64 = 256 << 10;

/// Dropping it kills everything that its commands started.
pub(super) struct RunningProgram {
    pub config: CommandConfig,
    pub ground: CommandEnvironment,
    /// The process of `start`.
    pub main: Option<ChildProcess>,
    pub version: Option<String>,
    /// It was stopped or killed on purpose.
    pub is_over: Mutex<bool>,
}

impl RunningProgram {
    pub(super) fn run(
        &self,
        verb: &'static str,
        command: &str,
        belongs: BudgetOwner,
    ) -> Result<EndedCommand, SystemError> {
        self.ground.run(verb, command, &PlaceholderValues::new(), belongs, self.config.limit, &|| true)
    }

    /// Whether it needs to be stopped: a benchmark that opens its data itself has no program beside it.
    fn has_program(&self) -> bool {
        self.config.start.is_some()
    }

    fn kill(&self) {
        *self.is_over.lock() = true;
        if let Some(main) = &self.main {
            main.kill();
        }
        for belongs in [BudgetOwner::System, BudgetOwner::Client] {
            self.ground.crew(belongs).kill(&BTreeSet::new());
        }
    }

    /// Shuts it down in order.
    fn shut_down(&self) -> Result<(), SystemError> {
        if !self.has_program() {
            return Ok(());
        }
        let crew = self.ground.crew(BudgetOwner::System);
        // With `stop` that has waited already.
        let limit = if self.config.stop.is_some() { FADE_LIMIT } else { self.config.limit.min(STOP_LIMIT) };
        let begun = Instant::now();
        match &self.config.stop {
            Some(stop) => self
                .ground
                .run("stop", stop, &PlaceholderValues::new(), BudgetOwner::Client, self.config.limit, &|| {
                    true
                })
                .map(drop)?,
            None => {
                if let Some(main) = &self.main {
                    main.state().terminate();
                }
                if self.main.as_ref().is_none_or(|main| !main.state().wait(limit)) || !crew.lists.is_empty() {
                    crew.terminate();
                }
            }
        }
        let left = match self.config.stop {
            Some(_) => limit,
            // Those that got SIGTERM only now have a moment of their own.
            None => limit.saturating_sub(begun.elapsed()).max(FADE_LIMIT),
        };
        if !crew.wait_until_gone(&BTreeSet::new(), left) {
            let names = crew.names(&BTreeSet::new()).join(", ");
            let problem = match self.config.stop {
                Some(_) => format!(
                    "its command `stop` left processes behind, which were killed: {names}; let it wait until they are gone"
                ),
                None => format!(
                    "{:.0} s after SIGTERM there were still processes, which were killed: {names}; give the program a command `stop`",
                    begun.elapsed().as_secs_f64()
                ),
            };
            return Err(match &self.main {
                Some(main) => main.state().failed("stopping", problem),
                None => SystemError::failed(NAME, "stopping", problem),
            });
        }
        self.ended_as_asked()
    }

    /// A server that broke while it shut down may have left half of its data: cells would begin with that.
    fn ended_as_asked(&self) -> Result<(), SystemError> {
        let Some(state) = self.main.as_ref().map(ChildProcess::state) else { return Ok(()) };
        if state.is_running() || state.ended_well() || state.ended_by_request() {
            return Ok(());
        }
        let remedy = match self.config.stop {
            Some(_) => "",
            None => "; if it ends this way whenever SIGTERM arrives, give it a command `stop` that ends well",
        };
        Err(state.failed("stopping", format!("{}{remedy}", state.describe())))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A benchmark's output, and the files that it wrote.
struct BenchmarkOutput<'a> {
    text: &'a str,
    scratch: &'a Path,
    places: &'a [PathBuf],
    values: &'a PlaceholderValues,
}

impl BenchmarkTexts for BenchmarkOutput<'_> {
    fn text(&self, file: Option<&str>) -> Result<String, String> {
        let Some(file) = file else { return Ok(self.text.to_owned()) };
        let path = fill_plain(file, self.values);
        read_below(self.places, &self.scratch.join(&path))
            .map_err(|error| format!("can't read its file {path}: {error}"))
    }
}

/// The commands' output, and the program's own logs, each up to a limit.
pub(super) fn logs_of(outputs: &Path, scratch: &Path) -> Vec<(String, String)> {
    let name = outputs.file_name().map(|name| name.to_string_lossy().into_owned());
    let printed =
        outputs.parent().zip(name).map(|(parent, name)| texts_in(parent, &name, MAX_LOGS, MAX_LOG_BYTES));
    let own = texts_in(scratch, LOGS, MAX_LOGS, MAX_LOG_BYTES);
    // Unreadable logs are not kept.
    let all = printed.into_iter().chain([own]).flat_map(Result::unwrap_or_default);
    all.map(|end| (end.name, end.text)).collect()
}

impl RunningSystem for RunningProgram {
    fn connect(&self) -> Result<Box<dyn Client>, SystemError> {
        Err(SystemError::failed(NAME, "running", "a program that commands start has no clients of ours"))
    }

    fn load_data(&self, load: &LoadRequest, watch: CommandWatch<'_>) -> Option<Result<(), SystemError>> {
        let Some(command) = &self.config.load else { return Some(Ok(())) };
        let values = vec![("data_bytes", load.data_bytes.to_string()), ("seed", load.seed.to_string())];
        let belongs = if self.has_program() { BudgetOwner::Client } else { BudgetOwner::System };
        let ended = self.ground.run("load", command, &values, belongs, self.config.limit, watch);
        Some(ended.map(drop))
    }

    fn run_benchmark(
        &self,
        benchmark: &BenchmarkRequest,
        watch: BenchmarkWatch<'_>,
    ) -> Option<Result<BenchmarkRecord, SystemError>> {
        Some(self.measure(benchmark, watch))
    }

    fn logs(&self) -> Vec<(String, String)> {
        logs_of(&self.ground.outputs, &self.ground.scratch)
    }

    fn processes(&self) -> Vec<u32> {
        self.ground.crew(BudgetOwner::System).members().into_iter().collect()
    }

    fn applied_settings(&self) -> BTreeMap<String, String> {
        let mut applied = self.config.applied();
        if let Some(version) = &self.version {
            applied.insert("program_version".to_owned(), version.clone());
        }
        let network = match self.ground.network {
            Some(_) => "a network namespace of its own",
            None => "the host's loopback, open to all local users: CAP_SYS_ADMIN is missing",
        };
        applied.insert("network".to_owned(), network.to_owned());
        applied
    }

    fn health(&self) -> Result<(), SystemError> {
        let Some(main) = self.main.as_ref().filter(|_| !*self.is_over.lock()) else { return Ok(()) };
        let state = main.state();
        if state.is_running() {
            return Ok(());
        }
        // One that has put itself into the background has other processes.
        match state.ended_well() && !self.ground.crew(BudgetOwner::System).members().is_empty() {
            true => Ok(()),
            false => Err(state.failed(
                "running",
                format!("{}{}{}", state.describe(), self.ground.full(), self.ground.last_words()),
            )),
        }
    }

    fn figures(&self) -> Result<BTreeMap<String, f64>, SystemError> {
        let Some(command) = &self.config.figures else { return Ok(BTreeMap::new()) };
        let text = self.ground.ask("figures", command, self.config.limit)?;
        Ok(text.lines().filter_map(figure_in).take(MAX_FIGURES).collect())
    }

    fn settle(&self, limit: Duration) -> Result<(), SystemError> {
        let Some(command) = &self.config.settle else { return Ok(()) };
        let limit = limit.min(self.config.limit);
        let belongs = if self.has_program() { BudgetOwner::Client } else { BudgetOwner::System };
        self.ground
            .run("settle", command, &PlaceholderValues::new(), belongs, limit, &|| !*self.is_over.lock())
            .map(drop)
    }

    fn abort(&self) {
        self.kill();
    }

    fn stop(self: Box<Self>) -> Result<(), SystemError> {
        let stopped = self.shut_down();
        *self.is_over.lock() = true;
        stopped
    }
}

impl RunningProgram {
    fn measure(
        &self,
        benchmark: &BenchmarkRequest,
        watch: BenchmarkWatch<'_>,
    ) -> Result<BenchmarkRecord, SystemError> {
        let failed = |problem: String| SystemError::failed(NAME, "running its benchmark", problem);
        let plan = &benchmark.plan;
        let mut values: PlaceholderValues = vec![
            ("data_bytes", benchmark.data_bytes.to_string()),
            ("seed", benchmark.seed.to_string()),
            ("duration_s", whole_seconds(benchmark.duration)),
            ("warmup_s", whole_seconds(benchmark.warmup)),
        ];
        let job = self.ground.scratch.join("job");
        if let Some(text) = &plan.job {
            values.push(("job", job.display().to_string()));
            let all: PlaceholderValues = values.iter().chain(&self.ground.values).cloned().collect();
            write_file(&job, &fill_plain(text, &all), 0o400, self.ground.user.as_ref())
                .map_err(|error| failed(format!("can't write {}: {error}", job.display())))?;
        }
        let in_budget = plan.in_budget.unwrap_or(!self.has_program());
        let belongs = if in_budget { BudgetOwner::System } else { BudgetOwner::Client };
        let follower = ProgressFollower::new(plan.figures.planned(), &self.ground.outputs, BENCHMARK);
        let followed = || watch(follower.latest());
        let ended = self.ground.run(BENCHMARK, &plan.run, &values, belongs, plan.limit, &followed);
        let all: PlaceholderValues = values.iter().chain(&self.ground.values).cloned().collect();
        let printed = |text| BenchmarkOutput {
            text,
            scratch: &self.ground.scratch,
            places: &self.ground.places,
            values: &all,
        };
        let ended = ended.map_err(|error| match plan.figures {
            MetricSource::Planned(_) => error,
            // fio may tell its errors there alone.
            MetricSource::OfFio => {
                match printed("").text(Some(fio::OUTPUT)).ok().and_then(|text| fio::failure_in(&text)) {
                    Some(words) => error.with_words(&words),
                    None => error,
                }
            }
        })?;
        let text = ended.text().map_err(|error| failed(format!("can't read its output: {error}")))?;
        let printed = printed(&text);
        let mut figures = Vec::new();
        let mut notes = Vec::new();
        match &plan.figures {
            MetricSource::Planned(plans) => {
                for figure in plans {
                    figures.extend(figures_of(figure, &printed).map_err(failed)?);
                }
            }
            MetricSource::OfFio => {
                let json = printed.text(Some(fio::OUTPUT)).map_err(failed)?;
                let metrics =
                    fio::figures_of(&json, plan.job.as_deref().unwrap_or_default()).map_err(failed)?;
                (figures, notes) = (metrics.figures, metrics.notes);
            }
        }
        let mut marks = Vec::new();
        for mark in &plan.marks {
            marks.extend(marks_of(mark, &printed).map_err(failed)?);
        }
        let duration_s = ended.took.as_secs_f64();
        Ok(BenchmarkRecord {
            name: benchmark.name.clone(),
            duration_s,
            wall_s: duration_s,
            figures,
            output_tail: tail(&text),
            marks,
            notes,
        })
    }
}

/// Most programs take whole seconds.
fn whole_seconds(duration: Duration) -> String {
    duration.as_secs_f64().ceil().max(1.0).to_string()
}

/// A line `name value` of running totals; others are somebody else's.
fn figure_in(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.trim().rsplit_once(|c: char| c.is_whitespace() || c == '|' || c == '=')?;
    let value = value.trim().parse::<f64>().ok().filter(|value| value.is_finite())?;
    let name: String = name.trim().trim_end_matches(['=', '|', ' ']).chars().take(80).collect();
    (!name.is_empty()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_a_name_and_a_number_a_line() {
        assert_eq!(figure_in("checkpoints_timed 12"), Some(("checkpoints_timed".to_owned(), 12.0)));
        assert_eq!(figure_in(" wal_sync|3.5"), Some(("wal_sync".to_owned(), 3.5)));
        assert_eq!(figure_in("a = 1"), Some(("a".to_owned(), 1.0)));
        for other in ["", "12", "name", "name nan", "ERROR: no such table"] {
            assert_eq!(figure_in(other), None, "{other}");
        }
    }
}
