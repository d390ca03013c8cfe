//! The record of a cell.

use maud::{Markup, html};
use underlay_record::{CellStatus, CertificateVerdict, RunRecord};
use underlay_report::quantity::{self, count};

use super::PageFrame;
use super::frame::NavigationTarget;
use super::words::{date_and_time, escaped, prose};

pub(crate) fn cell(run: &str, file: &str, record: &RunRecord) -> Markup {
    let address = format!("/runs/{}", escaped(run));
    let title = format!("{}, repetition {}", record.cell.id, record.repetition);
    let content = html! {
        div.head {
            h1 { (title) }
            p.muted { a href=(address) { (run) } ", " (date_and_time(&record.started_at)) @if record.wall_s > 0.0 { ", " (quantity::duration(record.wall_s)) " here" } }
        }
        nav.sections aria-label="Cell" {
            a href={ (address) "/report" } { "Report of the run" }
            a href={ "/api/runs/" (escaped(run)) "/cells/" (escaped(file)) } { "The record as JSON" }
        }
        section {
            h2 { "Outcome" }
            @match &record.status {
                CellStatus::Completed => { p { "Completed." } }
                CellStatus::Failed { reason } => { p.strong { "Failed" } pre tabindex="0" { (reason) } }
                CellStatus::Unavailable { missing, remedy } => { p { strong { "It cannot run here: " } (prose(missing)) ". " (prose(remedy)) } }
                CellStatus::Skipped { failure } => {
                    p { strong { "Skipped on command. " } code { "underlay run --resume" } " measures it." }
                    @if let Some(earlier) = failure { p { "It had failed before:" } pre tabindex="0" { (earlier) } }
                }
            }
            @if let Some(measured) = &record.measured {
                dl.now {
                    div { dt { "throughput" } dd { (quantity::rate(measured.throughput_per_s)) " ops/s" } }
                    div { dt { "mean" } dd { (quantity::latency(measured.latency.us.mean)) } }
                    div { dt { "p50" } dd { (quantity::latency(measured.latency.us.p50)) } }
                    div { dt { "p99" } dd { (quantity::latency(measured.latency.us.p99)) } }
                    div.bad[measured.errors > 0] { dt { "errors" } dd { (measured.errors) } }
                }
            }
            @if let Some(job) = &record.job { p { "The job took " (quantity::duration(job.duration_s)) " (" (quantity::duration(job.wall_s)) " here)." } }
            @if let Some(benchmark) = &record.benchmark {
                dl.now { @for figure in &benchmark.figures { div { dt { (figure.name) } dd { (quantity::number(figure.value, 3)) " " (figure.unit) } } } }
            }
        }
        @if let Some(certificate) = &record.certificate {
            section {
                h2 { "Certificate" }
                p {
                    // What was done to the cell goes before what its certificate says.
                    @match record.verdict().unwrap_or(certificate.verdict) {
                        CertificateVerdict::Faithful => { span.badge.faithful { "faithful" } }
                        CertificateVerdict::Doubtful => { span.badge.doubtful { "doubtful" } }
                        CertificateVerdict::RealStorage => { span.badge.plain { "real storage" } }
                        CertificateVerdict::Disturbed => { span.badge.doubtful {
                            "disturbed " (record.disturbed_by().unwrap_or_default().describe()) } " " (record.disturbances_in_words()) "." }
                    }
                }
                dl.now { @for row in &certificate.metrics { div { dt { (row.title) } dd { (quantity::metric(row)) } } } }
                div.scroll tabindex="0" role="region" aria-label="Checks of the certificate" { table {
                    thead { tr { th.l scope="col" { "Check" } th.l scope="col" { "Passed" } th.l scope="col" { "Finding" } th.l scope="col" { "What to try" } } }
                    tbody { @for check in &certificate.checks { tr.bad[!check.passed] {
                        th.l scope="row" { (check.name) } td.l { @if check.passed { "✓ yes" } @else { "✗ no" } } td.w { (prose(&check.finding)) } td.w { (prose(check.remedy.as_deref().unwrap_or(""))) }
                    } } }
                } }
            }
        }
        @if !record.devices.is_empty() {
            section {
                h2 { "Devices" }
                div.scroll tabindex="0" role="region" aria-label="What the devices did" { table {
                    thead { tr { th.l scope="col" { "Device" } th scope="col" { "Reads" } th scope="col" { "Writes" } th scope="col" { "Flushes" } th scope="col" { "Read" } th scope="col" { "Written" } th scope="col" { "Busy" } th scope="col" { "Modelled p99" } th scope="col" { "Delivered p99" } } }
                    tbody { @for device in &record.devices {
                        @let totals = &device.totals;
                        // A histogram without requests has no p99.
                        @let p99 = |histogram: &Option<underlay_record::Histogram>| histogram.as_ref().filter(|found| found.count() > 0).map_or_else(|| "-".to_owned(), |found| quantity::latency(found.quantile_us(0.99)));
                        tr {
                            th.l scope="row" { (device.description.id) }
                            td { (count(totals.reads)) } td { (count(totals.writes)) } td { (count(totals.flushes)) }
                            td { (quantity::bytes(totals.read_bytes as f64)) } td { (quantity::bytes(totals.write_bytes as f64)) }
                            td { (quantity::percent((totals.busy_us / 1e6 / device.duration_s.max(1e-9)).min(1.0))) }
                            td { (p99(&device.modelled)) } td { (p99(&device.delivered)) }
                        }
                        @for fault in &device.faults { tr.bad { td.w colspan="9" { "from " (quantity::number(fault.t_s, 3)) " s" @if let Some(end_s) = fault.until_s { " to " (quantity::number(end_s, 3)) " s" } ": " (fault.what) } } }
                    } }
                } }
            }
        }
        @if !record.node_events.is_empty() {
            section { h2 { "Nodes that went away" } ul { @for event in &record.node_events { li { (underlay_report::node_event_in_words(event)) } } } }
        }
        @if !record.warnings.is_empty() {
            section { h2 { "Worth knowing" } ul { @for warning in &record.warnings { li { (prose(warning)) } } } }
        }
        section {
            h2 { "Settings" }
            dl.facts-list { @for (name, value) in record.settings.iter().chain(&record.versions) { dt { (name) } dd { (value) } } }
        }
    };
    PageFrame { place: Some(NavigationTarget::Runs), ..PageFrame::new(&title, content) }.draw()
}
