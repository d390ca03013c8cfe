//! The report as one HTML file that needs nothing else: no network, no script to read it.

pub mod ab;
mod attribution;
mod background;
mod background_load;
mod benchmarks;
mod caches;
mod changing;
mod charts;
mod copies;
mod cost;
pub mod curves;
mod devices;
mod directories;
mod drawing;
pub mod frontier;
mod gauges;
mod jobs;
mod latency;
mod layers;
mod method;
mod network;
mod node_events;
mod prices;
mod published;
mod rates;
mod search;
mod stages;
mod summary;
mod svg;
mod throughput;
pub mod time_chart;
mod time_series;
mod wear;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use underlay_record::RunExplanation;

use crate::comparison::{ComparisonRow, RunComparison, group_by_mix, mix_title, work_title};
use crate::findings::answer;
use crate::findings::warnings::{self, ReportWarning};
use crate::load::LoadedRun;
use crate::quantity;

/// Workloads up to which every chart is open; beyond, all but the first mix are folded.
const OPEN_ROWS: usize = 6;

/// An answer of more letters is written smaller, so that the cards below it stay on the first screen.
const LONG_ANSWER: usize = 240;

/// Printing shows what is folded on the screen; browsers differ in whether a style sheet alone can do that.
const OPEN_FOR_PRINT: &str = "addEventListener('beforeprint',()=>document.querySelectorAll('details')\
.forEach(d=>{d.dataset.was=d.open;d.open=true}));addEventListener('afterprint',()=>document\
.querySelectorAll('details').forEach(d=>{d.open=d.dataset.was==='true'}));";

/// A page without its script: for a place where none may run, such as the console's frame, in which even the attempt is
/// an error.
pub fn without_script(page: &str) -> String {
    page.replace(&html! { script { (PreEscaped(OPEN_FOR_PRINT)) } }.into_string(), "")
}

/// The source of every section.
struct ReportPage<'a> {
    loaded: &'a LoadedRun,
    comparison: RunComparison<'a>,
    warnings: Vec<ReportWarning>,
    explained: &'a RunExplanation,
}

impl ReportPage<'_> {
    /// How the workload is called where several systems need telling apart.
    fn row_label(&self, row: &ComparisonRow) -> String {
        if self.comparison.systems.len() > 1 {
            format!("{}, {}", self.comparison.system_title(row.system), row.label())
        } else {
            row.label().to_owned()
        }
    }

    /// The row's name as the start of a caption under its mix' heading: nothing where the heading says it all.
    fn caption(row: &ComparisonRow, subject: &str) -> String {
        let label = row.label_in_mix();
        if label.is_empty() { subject.to_owned() } else { format!("{label}: {subject}") }
    }

    fn mix_heading(&self, system: &str, mix: &str) -> String {
        if self.comparison.systems.len() > 1 {
            format!("{}, {}", self.comparison.system_title(system), mix_title(mix))
        } else {
            mix_title(mix)
        }
    }

    /// The same for rows of any kind.
    fn heading(&self, system: &str, mix: &str, rows: &[&ComparisonRow]) -> String {
        match rows.first().filter(|row| row.is_benchmark()) {
            Some(row) if self.comparison.systems.len() > 1 => {
                format!("{}, {}", self.comparison.system_title(system), work_title(row.cell))
            }
            Some(row) => work_title(row.cell),
            None => self.mix_heading(system, mix),
        }
    }

    /// One part of a section for each mix: open side by side when they are few, folded when they are many.
    fn for_each_mix(&self, content: impl Fn(&[&ComparisonRow]) -> Markup) -> Markup {
        self.for_each_mix_of(group_by_mix(self.comparison.operations()), content)
    }

    fn for_each_mix_of(
        &self,
        groups: Vec<(&str, &str, Vec<&ComparisonRow>)>,
        content: impl Fn(&[&ComparisonRow]) -> Markup,
    ) -> Markup {
        let is_long = self.comparison.rows.len() > OPEN_ROWS;
        html! {
            @for (index, (system, mix, rows)) in groups.into_iter().enumerate() {
                @if is_long {
                    details open[index == 0] {
                        summary {
                            (self.heading(system, mix, &rows))
                            @if rows.iter().any(|row| row.is_operations()) || rows.len() > 1 { ", " (quantity::plural(rows.len(), "workload")) }
                        }
                        (content(&rows))
                    }
                } @else {
                    h3 { (self.heading(system, mix, &rows)) }
                    (content(&rows))
                }
            }
        }
    }

    fn legend(&self) -> Markup {
        html! {
            ul.legend {
                @for (index, storage) in self.comparison.storages.iter().enumerate() {
                    li { (swatch(index)) (storage) @if *storage == self.comparison.baseline { " (baseline)" } }
                }
            }
        }
    }
}

fn swatch(index: usize) -> Markup {
    html! { span class={ "swatch b" (index % drawing::SERIES.len()) } aria-hidden="true" {} }
}

/// Plain text whose words between backticks are code.
fn prose(text: &str) -> Markup {
    let parts: Vec<&str> = text.split('`').collect();
    // An odd backtick is no pair: the text is then left as it is.
    if parts.len().is_multiple_of(2) {
        return html! { (text) };
    }
    html! {
        @for (index, part) in parts.iter().enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn figure(caption: &str, svg: String) -> Markup {
    html! { figure { figcaption { (caption) } (PreEscaped(svg)) } }
}

/// The head of every page: its title, its description and its style.
fn head(title: &str, description: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="description" content=(description);
            title { (title) }
            style { (PreEscaped(include_str!("report.css"))) }
        }
    }
}

/// A run's report without the section on where the time went.
pub fn render(loaded: &LoadedRun) -> String {
    render_explained(loaded, &RunExplanation::default())
}

/// The report of a run, with where the time of its operations went.
pub fn render_explained(loaded: &LoadedRun, explained: &RunExplanation) -> String {
    let comparison = RunComparison::from_loaded(loaded);
    let warnings = warnings::collect(loaded, &comparison);
    let page = ReportPage { loaded, comparison, warnings, explained };
    let run = &loaded.run;
    let title = run.title.as_deref().unwrap_or(&run.name);
    let sections: Vec<(&str, &str, Markup)> = [
        ("jobs", "Jobs", jobs::section(&page)),
        ("benchmarks", "Benchmarks", benchmarks::section(&page)),
        ("figures", "Figures", summary::table(&page)),
        ("throughput", "Throughput", throughput::section(&page)),
        ("latency", "Latency", latency::section(&page)),
        ("attribution", "Where the time goes", attribution::section(&page)),
        ("search", "Highest rates", search::section(&page)),
        ("rates", "Over offered rates", rates::section(&page)),
        ("changing", "While the rate changes", changing::section(&page)),
        ("time", "Over time", time_series::section(&page)),
        ("nodes", "Nodes that went away", node_events::section(&page)),
        ("beside", "What went on beside", background_load::section(&page)),
        ("compactions", "Compactions", background::section(&page)),
        ("devices", "Devices", devices::section(&page)),
        ("directories", "Directories", directories::section(&page)),
        ("network", "What the network added", network::section(&page)),
        ("cost", "Cost", cost::section(&page)),
        ("prices", "Price of performance", prices::section(&page)),
        ("published", "Published figures", published::section(&page)),
        ("method", "How it was measured", method::section(&page)),
    ]
    .into_iter()
    // A section without content is in neither the page nor its navigation.
    .filter_map(|(id, name, content)| content.map(|content| (id, name, content)))
    .collect();
    let answer = answer::summarize(loaded, &page.comparison);
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title, &answer))
            body {
                header.top {
                    h1 { (title) }
                    @if let Some(accuracy) = published::accuracy(&page) { p.accuracy { (accuracy.describe()) } }
                    @let words = answer::summarize_changes(&page.comparison);
                    p.answer.long[words.chars().count() > LONG_ANSWER] { (words) }
                    @let caveat = answer::caveat(loaded, &page.comparison);
                    @if !caveat.is_empty() { p.caveat { "⚠ " (caveat) } }
                }
                main {
                    (summary::cards(&page))
                    (summary::facts(&page))
                    nav aria-label="Sections" {
                        @for (id, name, _) in &sections { a href={ "#" (id) } { (name) } }
                    }
                    (summary::warnings_box(&page))
                    @for (id, name, content) in &sections {
                        section id=(id) { h2 { (name) } (content) }
                    }
                }
                footer {
                    p {
                        "Made by underlay " (env!("CARGO_PKG_VERSION")) " from the records of the run "
                        code { (run.name) } ", started " (run.started_at)
                        ". Intervals are of 95 % confidence. Durations and rates are in modelled time."
                    }
                }
                script { (PreEscaped(OPEN_FOR_PRINT)) }
            }
        }
    }
    .into_string()
}
