//! How it was measured: what another needs to judge the figures, or to get them again.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use underlay_record::{ChosenBy, DirtyLimitRecord, RunRecord, SlowMotion, cpus_in_words};

use super::summary::{inputs_badge, verdict_badge};
use super::{ReportPage, copies, swatch};
use crate::cell::cost::{devices_in_words, roles_in_words};
use crate::comparison::{inputs, storage_records};
use crate::findings::warnings::cell_name;
use crate::load::origins::RunOrigins;
use crate::quantity::{self, ABSENT};

pub(super) fn section(page: &ReportPage) -> Option<Markup> {
    Some(html! {
        (run_facts(page))
        h3 { "Scale" }
        (scale(page))
        h3 { "Storage" }
        (storages(page))
        h3 { "Memory" }
        (memory(page))
        h3 { "Certificates" }
        (certificates(page))
        @if let Some(settings) = settings(page) { h3 { "Settings" } (settings) }
        @if let Some(copies) = copies::section(page) { h3 { "Copies of the data" } (copies) }
        (system_figures(page))
        details { summary { "The study" } pre { (page.loaded.run.study_toml) } }
    })
}

fn run_facts(page: &ReportPage) -> Markup {
    let run = &page.loaded.run;
    let machine = &run.machine;
    let versions: Vec<String> = RunOrigins::from_loaded(page.loaded)
        .versions
        .iter()
        // The operating system is among them as well, and has a line of its own.
        .filter(|(program, _)| run.versions.contains_key(**program))
        .map(|(program, found)| {
            let found: Vec<String> = found.iter().map(|(version, _)| (*version).to_owned()).collect();
            format!("{program} {}", quantity::list(&found, usize::MAX))
        })
        .collect();
    html! {
        dl.facts-list {
            dt { "Machine" }
            dd {
                (machine.cores) " cores (" (machine.cpu) "), " (quantity::memory(machine.memory_bytes as f64))
                @if let Some(kind) = &machine.virtualisation { ", virtualisation: " (kind) }
                @if let Some(us) = machine.wake_up_limit_us {
                    @if us == 0 { ", idle CPUs kept from sleep" } @else { ", idle CPUs kept from deep sleep" }
                }
            }
            dt { "System software" } dd { (machine.distribution) ", kernel " (machine.kernel) }
            @if !versions.is_empty() { dt { "Versions" } dd { (versions.join(", ")) } }
            dt { "Each cell" }
            dd {
                (quantity::plural(run.repetitions as usize, "repetition"))
                @if page.comparison.benchmarks().next().is_some() {
                    ": the program started on a copy of its data, and its benchmark run once, in random order"
                } @else if page.comparison.operations().next().is_none() {
                    ": the jobs of a storage one after another, on a system that was started for them, storages in random order"
                } @else { ", each with a warm-up of "
                (quantity::duration(run.warmup_wall_s)) " and a measured window of " (quantity::duration(run.duration_wall_s))
                " on this machine's clock, in random order" }
            }
            dt { "Seed" } dd { (run.seed) }
            dt { "Recorded" } dd { (page.loaded.finished()) " of " (page.loaded.planned()) " repetitions" @if run.short { ", short form" } }
            dt { "Intervals" }
            dd {
                "95 %. "
                @if page.comparison.jobs().next().is_some() { "Durations of jobs: the spread of repetitions, with Student's t; a job that ran once has none. " }
                @if page.comparison.operations().next().is_some() {
                "Throughput and mean latency: the larger of the error from the time series, corrected for autocorrelation "
                "(Geyer's initial positive sequence), and the one from the spread of repetitions, with Student's t. "
                "Quantiles: order statistics of the merged histogram, widened by the same correlation, or the spread of repetitions. "
                }
                "Ratios: on the logarithm's scale, after Welch."
            }
        }
    }
}

fn scale(page: &ReportPage) -> Markup {
    let scale = page.loaded.run.scale;
    html! {
        @if scale.time == 1.0 && scale.data == 1.0 {
            p { "None: storage was modelled, and data sized, as the study names them." }
        }
        @if scale.time != 1.0 {
            @let factor = quantity::number(scale.time, 1);
            p {
                "Slow motion x" (factor) " was divided out: each modelled latency took " (factor) " times as long on this machine, "
                "bandwidths and offered rates were " (factor) " times lower, and every duration and rate in this report is converted back. "
                (cores(page))
            }
            @if let Some(slow_motion) = &page.loaded.run.slow_motion {
                p { (chosen(slow_motion)) }
                @if !slow_motion.given_up.is_empty() {
                    ul {
                        @for given_up in &slow_motion.given_up {
                            li {
                                "x" (quantity::number(given_up.time, 1)) " was too fast for this host, so that the run began again: in "
                                (given_up.cell) ", " (given_up.finding) "."
                            }
                        }
                    }
                }
            }
        }
        @if scale.data != 1.0 {
            @let factor = quantity::number(scale.data, 1);
            p {
                "Sizes 1 : " (factor) ": data and memory were both " (factor) " times smaller than the study names them, "
                "so that their ratio, which decides how often a device is asked, stayed the same."
            }
        }
    }
}

/// The CPUs that stood for the modelled machine's cores.
fn cores(page: &ReportPage) -> String {
    let run = &page.loaded.run;
    let cpu_record = page.loaded.records.iter().find_map(|record| record.cpu.as_ref());
    match cpu_record {
        Some(cpu) => {
            let others = match cpu.system_cpus == cpu.emulation_cpus {
                true => ", which the load generator and the devices shared".to_owned(),
                false => {
                    format!("; the load generator and the devices had {}", cpus_in_words(&cpu.emulation_cpus))
                }
            };
            format!(
                "Each server, of {} a node, was held to {:.2} CPUs' worth of time on this machine's {}{others}.",
                quantity::plural(cpu.modelled_cores as usize, "core"),
                cpu.held_to_cpus,
                cpus_in_words(&cpu.system_cpus),
            )
        }
        None => format!(
            "So {} cores stood for {}.",
            run.machine.cores,
            quantity::number(f64::from(run.machine.cores) * run.scale.time, 1)
        ),
    }
}

fn chosen(slow_motion: &SlowMotion) -> String {
    let SlowMotion { chosen_by, cores_need, cpus_here, devices_need, .. } = slow_motion;
    let mut text = match chosen_by {
        ChosenBy::Study => "The factor is the study's.".to_owned(),
        ChosenBy::CommandLine => "The factor was given on the command line.".to_owned(),
        ChosenBy::Host if slow_motion.given_up.is_empty() => {
            "The factor is the smallest that this machine kept up with before the first cell.".to_owned()
        }
        ChosenBy::Host => {
            "The factor was raised until this machine kept up with it, or had been raised often enough."
                .to_owned()
        }
    };
    if let (Some(needed), Some(cpus)) = (cores_need, cpus_here) {
        text.push_str(&format!(
            " Before the first cell it had {cpus:.2} idle CPUs for the modelled cores, which takes x{needed:.1}."
        ));
    }
    if let Some(needed) = devices_need {
        text.push_str(&format!(" The fastest device kept its latencies at x{needed}."));
    }
    text
}

fn storages(page: &ReportPage) -> Markup {
    let records = storage_records(&page.comparison);
    html! {
        div.scroll { table {
            thead { tr { th.l { "Storage" } th.l { "Devices" } th.l { "Layout" } th.l { "Attached as" } th.l { "File system" } } }
            tbody {
                @for (index, name) in page.comparison.storages.iter().enumerate() {
                    @if let Some(storage) = records.get(name) {
                        tr {
                            th.l scope="row" { (swatch(index)) (name) }
                            td.l {
                                (devices_in_words(storage))
                                @if let Some(roles) = roles_in_words(storage) { small { "beside it " (roles) } }
                            }
                            td.l { (storage.layout) }
                            td.l { (storage.attachment) }
                            td.l { (storage.filesystem.as_deref().unwrap_or(ABSENT)) }
                        }
                    }
                }
            }
        } }
    }
}

fn memory(page: &ReportPage) -> Markup {
    // Cells of one data size share their budget: one line for each that differs.
    let mut lines: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    for record in page.comparison.cells().flat_map(|result| &result.records) {
        let memory = &record.memory;
        let key = vec![
            quantity::bytes(record.cell.data_bytes as f64),
            quantity::memory(memory.data_bytes as f64),
            quantity::memory(memory.budget_bytes as f64),
            format!("{} : 1", quantity::number(memory.data_to_memory, 2)),
            memory.enforced_by.clone(),
        ];
        let peak = lines.entry(key).or_insert(0.0);
        *peak = peak.max(memory.peak_bytes.unwrap_or(0) as f64);
    }
    html! {
        p.muted { "The budget holds the system's own memory and the page cache together." }
        @for line in dirty_limits(page) { p.muted { (line) } }
        div.scroll { table {
            thead { tr {
                th { "Data, as studied" } th { "Data here" } th { "Memory budget here" } th { "Data : memory" } th.l { "Kept by" } th { "Highest use" }
            } }
            tbody {
                @for (line, peak) in &lines {
                    tr {
                        @for field in &line[..4] { td { (field) } }
                        td.l { (line[4]) }
                        td { (if *peak > 0.0 { quantity::memory(*peak) } else { ABSENT.to_owned() }) }
                    }
                }
            }
        } }
    }
}

/// The dirty pages of each storage before writers were held back, where the study limits them.
fn dirty_limits(page: &ReportPage) -> BTreeSet<String> {
    let records = page.comparison.cells().flat_map(|result| &result.records);
    let in_words = |limit: &DirtyLimitRecord| match limit.device_bytes {
        Some(bytes) => {
            let devices = match limit.devices {
                1 => "its device".to_owned(),
                many => format!("each of its {many} devices"),
            };
            let bytes = quantity::memory(bytes as f64);
            format!(
                "Writers to {} wait while {bytes} of the page cache are still to be written to {devices}.",
                limit.storage
            )
        }
        None => format!("Writers to {} wait by the rules of this machine's kernel alone.", limit.storage),
    };
    records.flat_map(|record| &record.memory.dirty_limits).map(in_words).collect()
}

fn certificates(page: &ReportPage) -> Markup {
    html! {
        p.muted {
            "Latencies are the devices', in modelled time: as the models asked for them, as the program got them, and the "
            "smallest that this machine can model. Each repetition has its own certificate."
        }
        @let results: Vec<_> = page.comparison.cells().filter(|result| result.certificates().next().is_some()).collect();
        @if results.is_empty() { p { "No record carries a certificate." } }
        @for result in &results {
            @let is_doubtful = result.is_doubtful();
            // What failed is what a reader comes for.
            details open[is_doubtful] {
                summary {
                    (cell_name(&page.comparison, result)) " " (verdict_badge(result))
                    (inputs_badge(result))
                }
                @if let Some(input_certificate) = inputs::find_certificate(result) { p.muted { "Inputs: " (inputs::describe(input_certificate)) "." } }
                div.scroll { table {
                    thead { tr { th { "Repetition" } th.l { "Check" } th.l { "Result" } th.l { "Finding" } th.l { "What to try" } } }
                    tbody {
                        @for record in &result.records {
                            @if let Some(certificate) = &record.certificate {
                                tr.group { th colspan="5" {
                                    "Repetition " (record.repetition)
                                    @for (index, row) in certificate.metrics.iter().enumerate() {
                                        @if index == 0 { ": " } @else { "; " }
                                        (row.title) " " (quantity::metric(row))
                                    }
                                } }
                                @for check in &certificate.checks {
                                    tr {
                                        td { (record.repetition) }
                                        td.l { (check.name) }
                                        td.l { @if check.passed { "✓ passed" } @else { span.badge.doubtful { "⚠ failed" } } }
                                        td.w { (check.finding) }
                                        td.w { (check.remedy.as_deref().filter(|_| !check.passed).unwrap_or(ABSENT)) }
                                    }
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}

/// Settings that all cells of a system share, and those that differ between cells.
fn settings(page: &ReportPage) -> Option<Markup> {
    let mut by_system: BTreeMap<&str, Vec<&RunRecord>> = BTreeMap::new();
    for result in page.comparison.cells() {
        by_system.entry(&result.cell.system).or_default().extend(&result.records);
    }
    by_system.retain(|_, records| records.iter().any(|record| !record.settings.is_empty()));
    if by_system.is_empty() {
        return None;
    }
    Some(html! {
        @for (system, records) in &by_system {
            details {
                summary { (system) }
                dl.facts-list {
                    @for (name, values) in distinct_settings(records) {
                        dt { code { (name) } }
                        dd { (quantity::list(&values, 4)) }
                    }
                }
            }
        }
    })
}

fn distinct_settings(records: &[&RunRecord]) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in records.iter().flat_map(|record| &record.settings) {
        let values = settings.entry(name.clone()).or_default();
        if !values.contains(value) {
            values.push(value.clone());
        }
    }
    settings
}

/// The system's own counters, of each cell's first completed repetition.
fn system_figures(page: &ReportPage) -> Markup {
    let with_figures: Vec<_> = page
        .comparison
        .cells()
        .filter_map(|result| {
            let record = result.records.iter().find(|record| !record.system_figures.is_empty())?;
            Some((result, &record.system_figures))
        })
        .collect();
    html! {
        @if !with_figures.is_empty() {
            details {
                summary { "The system's own counters, first repetition" }
                div.scroll { table {
                    thead { tr { th.l { "Cell" } th.l { "Counters" } } }
                    tbody {
                        @for (result, figures) in &with_figures {
                            tr {
                                th.l scope="row" { (cell_name(&page.comparison, result)) }
                                td.w {
                                    @for (index, (name, value)) in figures.iter().enumerate() {
                                        @if index > 0 { ", " } code { (name) } " " (quantity::number(*value, 3))
                                    }
                                }
                            }
                        }
                    }
                } }
            }
        }
    }
}
