//! `underlay advise memory`

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use underlay_predict::CellPoint;
use underlay_predict::advice::memory::{self, MemoryAdvice, MemoryGoal};
use underlay_record::PriceSum;
use underlay_report::quantity;
use underlay_storage::catalogue;

use super::about::{self, AdviceSubject};
use crate::arguments::AdviseMemoryArguments;
use crate::commands::predict::{RefusedCell, print_left_out};
use crate::exit_codes::ExitFailure;
use crate::output;

/// The output for scripts.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct MemoryAnswer<'a> {
    /// Measured cells that nothing can be learnt from.
    left_out: Vec<RefusedCell>,
    #[serde(flatten)]
    advice: &'a MemoryAdvice,
}

pub(super) fn advise(arguments: &AdviseMemoryArguments) -> Result<ExitCode, ExitFailure> {
    // Before the runs are read, which takes a while.
    if let Some(usd) = arguments.usd_per_gib
        && !(1e-6..=1e6).contains(&usd)
    {
        return Err(ExitFailure::Mistake(format!(
            "--usd-per-gib {usd}: expected a price in US dollars, as in 4"
        )));
    }
    let (usd_per_gib, price_source) = match arguments.usd_per_gib {
        Some(usd) => (usd, "as given".to_owned()),
        None => (catalogue::memory().usd_per_gib(), catalogue::memory().price_source()),
    };
    let about = about::about(&arguments.about)?;
    let study = &about.source().study;
    let name = arguments.storage.as_ref().unwrap_or(&study.baseline);
    let on_it = about.calibration.cells().iter().find(|cell| {
        cell.point.storage == *name
            && cell.point.system == about.point.system
            && cell.point.mix == about.point.mix
    });
    let Some(cell) = on_it else {
        let names: Vec<String> = study.storages.iter().map(|storage| storage.name.clone()).collect();
        return Err(ExitFailure::Mistake(format!(
            "no measured cell is on the storage {name}: the run has {}",
            names.join(", ")
        )));
    };
    let volumes = cell.point.volumes.clone();
    let medium = volumes
        .iter()
        .flat_map(|volume| volume.devices())
        .find_map(|device| device.medium.clone())
        .ok_or_else(|| ExitFailure::Mistake(format!("nothing is known of the devices of {name}")))?;
    let point = CellPoint { volumes, storage: name.clone(), ..about.point.clone() };
    let wanted = MemoryGoal {
        point,
        rate_per_s: arguments.about.rate,
        data_scale: about.data_scale,
        usd_per_gib,
        price_source,
        medium: &medium,
    };
    let advice = memory::advise(&about.calibration, &wanted, catalogue::judgeable())
        .map_err(|refusal| ExitFailure::Mistake(format!("there is no answer from these runs: {refusal}")))?;
    match arguments.about.json {
        true => {
            let answer = MemoryAnswer { left_out: RefusedCell::left_out(&about.sources), advice: &advice };
            output::print(&serde_json::to_string_pretty(&answer).expect("an answer is plain data"));
        }
        false => {
            output::print(&text(&advice, &about, &medium.name, arguments.usd_per_gib.is_none()));
            print_left_out(&RefusedCell::left_out(&about.sources));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(advice: &MemoryAdvice, about: &AdviceSubject, medium: &str, asks_for_offer: bool) -> String {
    let mut text = output::paragraph(&format!(
        "{}: {} of data at {} ops/s on {medium}; a block is asked for every {} on average.",
        about.describe(),
        quantity::bytes(advice.data_bytes),
        quantity::rate(advice.rate_per_s),
        quantity::short_duration(advice.block_interval_s),
    ));
    text += "\n\n";
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "memory",
        "answers",
        "reads/op",
        "ops/s, closed loop",
        "p99",
        "devices for it",
        "USD together",
    ]);
    let cheapest = advice.sizes.iter().map(|size| size.usd).fold(f64::INFINITY, f64::min);
    for size in &advice.sizes {
        let absent = || quantity::ABSENT.to_owned();
        // The very same number, so equality is safe.
        let mark = if size.usd == cheapest { " (least)" } else { "" };
        table.add_row([
            quantity::memory(size.memory_bytes),
            quantity::percent(size.hit_ratio),
            format!("{:.2}", size.reads_per_operation),
            size.throughput_per_s.map_or_else(absent, |one| {
                format!(
                    "{} ({} to {})",
                    quantity::rate(one.value),
                    quantity::rate(one.low),
                    quantity::rate(one.high)
                )
            }),
            size.p99_us.map_or_else(absent, |one| quantity::latency(one.value)),
            quantity::number(size.devices, 2),
            format!("{}{mark}", quantity::price(&PriceSum { usd: size.usd, rent_usd: size.rent_usd })),
        ]);
    }
    align(&mut table);
    text += &output::table(&table);
    text += "\n\n";
    let assumed = if advice.is_assumed {
        ", which is assumed, since one size was measured"
    } else {
        ", by the sizes that were measured"
    };
    let mut price =
        format!("${} a GiB of memory, {}.", quantity::number(advice.usd_per_gib, 2), advice.price_source);
    if asks_for_offer {
        price += " Its price moves fast: --usd-per-gib takes the one that you have.";
    }
    text += &output::paragraph(&price);
    text += "\n\n";
    text += &output::paragraph(&format!(
        "Of the memory, {} caches data{assumed}. Sizes without a throughput are outside the measured range.",
        quantity::percent(advice.useful_share)
    ));
    text += "\n\n";
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["medium", "USD for a read/s", "memory pays below", "keep blocks asked for within"]);
    let mut media: Vec<_> = advice.break_even.iter().collect();
    media.sort_by(|a, b| b.usd_per_read_per_s.total_cmp(&a.usd_per_read_per_s));
    for one in media {
        table.add_row([
            one.medium.clone(),
            format!(
                "${}{}",
                quantity::number(one.usd_per_read_per_s, 2),
                if one.is_rented { " rent" } else { "" }
            ),
            format!("${} a GiB", quantity::number(one.usd_per_gib_at_average, 2)),
            quantity::short_duration(one.interval_s),
        ]);
    }
    align(&mut table);
    text += &output::table(&table);
    text += "\n\n";
    text += &output::paragraph(
        "\"Memory pays below\": the price at which holding all of the data in memory costs as much as the devices' reads that it saves, by the \
         five-minute rule at the catalogue's prices; a rent is for three years.",
    );
    text + "\n"
}

fn align(table: &mut Table) {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
