//! `underlay explain`

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use underlay_record::{CellExplanation, CellLimit, NotExplained, TimeAccount, WhatIf};
use underlay_report::quantity;
use underlay_study::selection::CellSelection;

use super::predicting;
use super::which_run::newest_run;
use crate::arguments::ExplainArguments;
use crate::exit_codes::{ExitFailure, INCOMPLETE};
use crate::output;

pub(crate) fn explain(arguments: &ExplainArguments) -> Result<ExitCode, ExitFailure> {
    let directory = arguments.run.clone().map_or_else(newest_run, Ok)?;
    let sources = predicting::read(std::slice::from_ref(&directory))?;
    let study = &sources.runs[0].study;
    let limit = CellLimit { only: arguments.only.clone(), repetitions: None };
    let selection = CellSelection::new(study, &limit).map_err(ExitFailure::Mistake)?;
    let wanted: Vec<String> = predicting::questions(study)
        .into_iter()
        .filter(|(cell, _)| selection.has(cell))
        .map(|(cell, _)| cell.id)
        .collect();
    let answers = sources.explained(|cell| wanted.iter().any(|id| id == cell));
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&answers).expect("an answer is plain data"));
    } else {
        for explanation in &answers.cells {
            output::print(&text(explanation));
        }
        for NotExplained { cell, why: reason, .. } in &answers.refused {
            output::say(format_args!("note: {cell} is not explained: {reason}"));
        }
    }
    Ok(if answers.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn text(explanation: &CellExplanation) -> String {
    let mut text = format!("{}: {} ops/s\n", explanation.cell, quantity::rate(explanation.throughput_per_s));
    text += &output::wrap_after_head("  bottleneck: ", 14, &explanation.bottleneck);
    text += "\n";
    let mut table = Table::new();
    table.load_style(NOTHING);
    let with_clients = explanation.p99.shares.client_waiting_us > 0.0;
    let with_network = explanation.p99.shares.network_us > 0.0;
    let mut head = vec!["", "measured", "device", "its queue"];
    if with_network {
        head.push("network");
    }
    head.extend(["CPU", "waiting for CPU"]);
    if with_clients {
        head.push("waiting for a client");
    }
    head.push("unexplained");
    table.set_header(head);
    for (name, account) in
        [("  mean", &explanation.mean), ("  p50", &explanation.p50), ("  p99", &explanation.p99)]
    {
        table.add_row(row(name, account, with_network, with_clients));
    }
    align(&mut table);
    text += &output::table(&table);
    text += "\n";
    let accounts = [("mean", &explanation.mean), ("p50", &explanation.p50), ("p99", &explanation.p99)];
    let overruns: Vec<String> = accounts
        .iter()
        // Without parts it is not known where the time went, and the bottleneck says that already.
        .filter(|(_, account)| account.has_parts())
        .filter_map(|(name, account)| Some(format!("{:.2} times for the {name}", account.overrun()?)))
        .collect();
    if !overruns.is_empty() {
        let line = format!(
            "operations take longer in the simulation than they did ({}); shares are of simulated time",
            overruns.join(", ")
        );
        text += &output::wrap_after_head("  ", 2, &line);
        text += "\n";
    }
    let answered: Vec<&WhatIf> = explanation.what_if.iter().filter(|one| one.refused.is_none()).collect();
    if !answered.is_empty() {
        let mut table = Table::new();
        table.load_style(NOTHING);
        answered.iter().for_each(|one| {
            table.add_row(format_row(one));
        });
        align(&mut table);
        text += &output::table(&table);
        text += "\n";
    }
    text + &refused(&explanation.what_if)
}

/// Changes that are not answered, those with one reason together.
fn refused(all: &[WhatIf]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in all {
        let Some(reason) = one.refused.as_deref() else { continue };
        match groups.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, changes)) => changes.push(one.change.as_str()),
            None => groups.push((reason, vec![one.change.as_str()])),
        }
    }
    groups
        .iter()
        .map(|(reason, changes)| {
            let changes = changes.join(", ");
            output::wrap_after_head("  ", 2, &format!("{changes}: not answered, since {reason}")) + "\n"
        })
        .collect()
}

fn row(name: &str, account: &TimeAccount, with_network: bool, with_clients: bool) -> Vec<String> {
    let share = |us: f64| match account.has_parts() {
        true => quantity::percent(account.share(us)),
        false => quantity::ABSENT.to_owned(),
    };
    let shares = &account.shares;
    let mut row = vec![
        name.to_owned(),
        quantity::latency(account.measured_us),
        share(shares.device_service_us),
        share(shares.device_queueing_us),
    ];
    if with_network {
        row.push(share(shares.network_us));
    }
    row.extend([share(shares.cpu_us), share(shares.cpu_waiting_us)]);
    if with_clients {
        row.push(share(shares.client_waiting_us));
    }
    row.push(if account.has_parts() { share(account.unexplained_us) } else { "not explained".to_owned() });
    row
}

fn format_row(one: &WhatIf) -> Vec<String> {
    let name = format!("  {}", one.change);
    let (Some(throughput), Some(gain)) = (one.throughput_per_s, one.gain) else {
        return vec![name];
    };
    vec![
        name,
        format!(
            "{} ops/s ({} to {})",
            quantity::rate(throughput.value),
            quantity::rate(throughput.low),
            quantity::rate(throughput.high)
        ),
        format!("x{:.2} ({:.2} to {:.2})", gain.value, gain.low, gain.high),
        one.p99_us.map_or("p99 not answered".to_owned(), |p99| {
            format!(
                "p99 {} ({} to {})",
                quantity::latency(p99.value),
                quantity::latency(p99.low),
                quantity::latency(p99.high)
            )
        }),
    ]
}

fn align(table: &mut Table) {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
