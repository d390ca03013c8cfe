//! A user's benchmarks: whether the systems are programs that commands start, and whether they use the storage under
//! test.

use underlay_config::{Diagnostic, Diagnostics};
use underlay_systems::benchmark::fio;
use underlay_systems::benchmark::shell_text::ShellScript;
use underlay_systems::command::placeholders;

use crate::spec::model::{StorageSource, VolumeFilesystem};
use crate::spec::read::{SectionSites, StorageSite, SystemSite, WorkloadSite, fio_finding};

/// The blocks of devices that have no smaller sectors.
const BLOCK_BYTES: u64 = underlay_storage::paced::BLOCK_BYTES as u64;
/// Placeholders that need a file system.
const IN_FILES: [&str; 3] = ["data", "wal", "temp"];

/// Whether a system accepts a workload of commands, and has one if it accepts nothing else.
pub(super) fn check(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let Some(capabilities) = system.capabilities else { return };
    if capabilities.by_command
        && let Some(benchmark) = &workload.benchmark
        && placeholders::has(&benchmark.spec.plan.run, "script")
        && !system.spec.settings.contains_key("script")
    {
        let message = format!(
            "[workload.{}] uses {{script}}, and [system.{}] has none",
            workload.name, system.spec.name
        );
        findings.push(
            Diagnostic::error(
                workload.key_span.clone(),
                message,
                "expected a command without {script} here, or a `script` there",
            )
            .with_context(system.key_span.clone(), "the system"),
        );
    }
    let kind = &system.spec.kind;
    let (message, label) = match (capabilities.by_command, workload.is_benchmark) {
        (true, false) => (
            format!(
                "[system.{}] is run by commands, but [workload.{}] is not",
                system.spec.name, workload.name
            ),
            "expected `kind = \"command\"` or `kind = \"fio\"` here",
        ),
        (false, true) => (
            format!("[workload.{}] is a command, but {kind} has clients of its own", workload.name),
            "expected a system of `kind = \"command\"`",
        ),
        _ => return,
    };
    findings.push(
        Diagnostic::error(workload.key_span.clone(), message, label)
            .with_context(system.key_span.clone(), "the system"),
    );
}

/// Placeholders for the storage under test in a command.
const ON_STORAGE: [&str; 4] = ["data", "device", "wal", "temp"];

/// Whether any command of a system or of its workload names the storage: a command that runs elsewhere says nothing
/// about it.
pub(super) fn note_elsewhere(system: &SystemSite, workload: &WorkloadSite, findings: &mut Diagnostics) {
    let Some(benchmark) = workload.benchmark.as_ref().filter(|benchmark| benchmark.spec.fio_job().is_none())
    else {
        return;
    };
    if !system.capabilities.is_some_and(|capabilities| capabilities.by_command) {
        return;
    }
    let plan = &benchmark.spec.plan;
    // `prepare` and `load` create data that nothing reads by itself.
    let [start, script] = ["start", "script"].map(|key| system.spec.settings.get(key).map(String::as_str));
    let mut shell_texts = [Some(plan.run.as_str()), start].into_iter().flatten().map(ShellScript::read);
    // A job and a script may be in any language; most have comments like a shell's.
    let mut other_texts = [plan.job.as_deref(), script].into_iter().flatten().map(without_comments);
    if shell_texts.any(|script| script.texts().any(names_storage))
        || other_texts.any(|text| names_storage(&text))
    {
        return;
    }
    let message = format!(
        "neither `run` of [workload.{}] nor `start` of [system.{}] names {{data}} or {{device}}",
        workload.name, system.spec.name
    );
    findings.push(
        Diagnostic::note(benchmark.text_span.clone(), message, "its requests may go to this host's own disk")
            .with_help("a cell whose devices were asked for nothing says nothing of its storage"),
    );
}

fn names_storage(text: &str) -> bool {
    has_all_variables(text)
        || ON_STORAGE.iter().any(|word| placeholders::has(text, word) || has_variable(text, word))
}

/// A text without the lines and line ends that a `#` or a `;` turns into comments.
fn without_comments(text: &str) -> String {
    let code = |line: &str| {
        let is_comment = line.trim_start().starts_with(['#', ';']);
        let end = [" #", "\t#"].into_iter().filter_map(|mark| line.find(mark)).min();
        if is_comment { String::new() } else { line[..end.unwrap_or(line.len())].to_owned() }
    };
    text.lines().map(code).collect::<Vec<String>>().join("\n")
}

/// Whether fio's own clock may be slower than the modelled machine's.
fn is_slow(sites: &SectionSites) -> bool {
    sites.leaves_time_open() || sites.scale.value.time > 1.0
}

/// Notes on fio options that slow motion does not change in a system's script, or in its `start`.
pub(super) fn note_system_clocks(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    if !system.capabilities.is_some_and(|capabilities| capabilities.by_command) || !is_slow(sites) {
        return;
    }
    for key in ["start", "script"] {
        let Some(text) = system.spec.settings.get(key) else { continue };
        for doubt in fio::doubts(text).into_iter().filter(|doubt| doubt.is_of_time) {
            let message = format!("in `{key}` of [system.{}], {}", system.spec.name, doubt.message);
            findings.push(Diagnostic::note(system.key_span.clone(), message, doubt.advice));
        }
    }
}

/// Notes on fio options that slow motion does not change in a command and its job, and on files outside the storage
/// that they name.
pub(super) fn note_clocks(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let is_slow = is_slow(sites);
    let Some(benchmark) = workload.benchmark.as_ref().filter(|benchmark| benchmark.spec.fio_job().is_none())
    else {
        return;
    };
    let plan = &benchmark.spec.plan;
    let counts = |doubt: &fio::FioDoubt| is_slow || !doubt.is_of_time;
    for doubt in fio::doubts(&plan.run).into_iter().filter(counts) {
        findings.push(Diagnostic::note(benchmark.text_span.clone(), doubt.message, doubt.advice));
    }
    let (Some(job), Some(job_span)) = (plan.job.as_deref(), benchmark.job_span.as_ref()) else { return };
    if fio::runs_fio(&plan.run) {
        for (part, doubt) in fio::doubts_of_job(job).into_iter().filter(|(_, doubt)| counts(doubt)) {
            let place = findings.part_of(job_span, job, &part).unwrap_or_else(|| job_span.clone());
            findings.push(Diagnostic::note(place, doubt.message, doubt.advice));
        }
    } else {
        // Perhaps a script.
        for doubt in fio::doubts(job).into_iter().filter(counts) {
            findings.push(Diagnostic::note(job_span.clone(), doubt.message, doubt.advice));
        }
    }
}

/// Whether a fio job supports the factor that the study gives.
pub(super) fn check_factor(workload: &WorkloadSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let Some(benchmark) = &workload.benchmark else { return };
    let Some(job) = benchmark.spec.fio_job().filter(|_| !sites.leaves_time_open()) else { return };
    for mistake in fio::mistakes(job, Some(sites.scale.value.time)) {
        let finding = fio_finding(&mistake, &benchmark.text_span, job, findings);
        findings.push(finding);
    }
}

fn is_bare(storage: &StorageSite) -> bool {
    let filesystem = match &storage.spec.source {
        StorageSource::Modelled { filesystem, .. } => *filesystem,
        StorageSource::Volume(volume) => volume.filesystem,
        StorageSource::Paths(_) | StorageSource::Elsewhere(_) => return false,
    };
    filesystem == VolumeFilesystem::None
}

/// Whether a script uses the variable of a placeholder, and not just one with the same beginning.
fn has_variable(script: &str, placeholder: &str) -> bool {
    let variable = format!("UNDERLAY_{}", placeholder.to_ascii_uppercase());
    names_whole(script, &variable)
}

/// Whether a script goes through all placeholder variables by their common prefix.
fn has_all_variables(script: &str) -> bool {
    names_whole(script, "UNDERLAY_")
}

/// Whether a word occurs in a text, and not only as part of a longer one.
fn names_whole(text: &str, word: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    text.match_indices(word).any(|(place, found)| ends(&text[place + found.len()..]))
}

/// A role keeps files on its storage.
pub(super) fn check_role(storage: &StorageSite, findings: &mut Diagnostics) {
    if is_bare(storage) {
        let message = format!("[storage.{}] has no file system, and it is for a role", storage.spec.name);
        let label = "expected `filesystem = \"xfs\"` or \"ext4\"";
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
}

/// Whether commands use what a storage configuration has: directories of a file system, or a block device without one.
pub(super) fn check_storage(
    system: &SystemSite,
    storage: &StorageSite,
    workloads: &[WorkloadSite],
    findings: &mut Diagnostics,
) {
    let Some(capabilities) = system.capabilities else { return };
    let is_bare = is_bare(storage);
    let (name, of_system) = (&storage.spec.name, &system.spec.name);
    if is_bare && !capabilities.by_command {
        let message = format!("[storage.{name}] has no file system, and {} needs one", system.spec.kind);
        let label = "expected `filesystem = \"xfs\"` or \"ext4\", or a system of `kind = \"command\"`";
        findings.push(
            Diagnostic::error(storage.source_span.clone(), message, label)
                .with_context(system.key_span.clone(), "the system"),
        );
    }
    if !capabilities.by_command {
        return;
    }
    let settings = storage.spec.settings_of(&system.spec);
    // A script gets all of them as variables, and which ones it uses is unknown.
    let of_the_system = settings.iter().filter(|(key, _)| *key != "script").map(|(_, text)| text.as_str());
    let benchmarks = workloads.iter().filter_map(|workload| workload.benchmark.as_ref());
    let of_workloads = benchmarks.flat_map(|benchmark| {
        let plan = &benchmark.spec.plan;
        [Some(plan.run.as_str()), plan.job.as_deref()].into_iter().flatten()
    });
    for benchmark in workloads.iter().filter_map(|workload| workload.benchmark.as_ref()) {
        let Some(job) = benchmark.spec.fio_job().filter(|_| storage.spec.has_small_sectors() == Some(false))
        else {
            continue;
        };
        let Some(bytes) = fio::smallest_direct_request(job, BLOCK_BYTES) else { continue };
        let message = format!(
            "fio's job has direct requests of {bytes} bytes, and [storage.{name}] is addressed in blocks of {BLOCK_BYTES}"
        );
        let label =
            "expected multiples of 4k, or media with `logical_sector_bytes = 512` without compression";
        findings.push(
            Diagnostic::error(benchmark.text_span.clone(), message, label)
                .with_context(storage.source_span.clone(), "the storage"),
        );
    }
    let commands: Vec<&str> = of_the_system.chain(of_workloads).collect();
    if is_bare && settings.contains_key("prepare") {
        let message = format!(
            "[storage.{name}] has no file system, so [system.{of_system}] can't tell whether `prepare` has run"
        );
        let label = "expected `load` to do it, or a `filesystem` here";
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
    let script = settings.get("script").map_or("", String::as_str);
    if is_bare && let Some(word) = IN_FILES.iter().find(|word| has_variable(script, word)) {
        let variable = format!("UNDERLAY_{}", word.to_ascii_uppercase());
        let message = format!(
            "[storage.{name}] has no file system, and the script of [system.{of_system}] uses {variable}, which would be empty"
        );
        let label = "expected UNDERLAY_DEVICE in the script, or a `filesystem` here";
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
    let asks_for = |name: &&&str| commands.iter().any(|command| placeholders::has(command, name));
    if is_bare && let Some(word) = IN_FILES.iter().find(asks_for) {
        let message = format!(
            "[storage.{name}] has no file system, and a command of [system.{of_system}] uses {{{word}}}"
        );
        let label = "expected {device} in the commands, or a `filesystem` here";
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
    if !is_bare && ["device"].iter().any(|name| asks_for(&name)) {
        let message =
            format!("[storage.{name}] is directories, and a command of [system.{of_system}] uses {{device}}");
        let label = "expected `filesystem = \"none\"` here, or {data} in the commands";
        findings.push(Diagnostic::error(storage.source_span.clone(), message, label));
    }
}
