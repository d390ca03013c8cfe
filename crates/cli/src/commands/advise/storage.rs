//! `underlay advise storage`

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use schemars::JsonSchema;
use serde::Serialize;
use underlay_config::units;
use underlay_predict::CellPoint;
use underlay_predict::advice::storage::{self, StorageAdvice, StorageGoal, StorageOffer};
use underlay_predict::simulation::OperationArrivals;
use underlay_record::PriceSum;
use underlay_record::frontier::{Frontier, PricedStorage};
use underlay_report::{self as report, quantity};
use underlay_storage::catalogue;
use underlay_storage::stack::InitialState;

use super::about::{self, AdviceSubject};
use super::picture::{self, PictureMark};
use super::verify;
use crate::arguments::AdviseStorageArguments;
use crate::commands::new;
use crate::commands::predict::{RefusedCell, print_left_out};
use crate::commands::read_study::study_of_text;
use crate::commands::report::write as write_page;
use crate::exit_codes::{ExitFailure, INCOMPLETE};
use crate::output;

/// So many are listed and written to the study.
const VERIFIED: usize = 3;
const LISTED: usize = 12;
/// The same where nothing meets the bound.
const NEAREST: usize = 5;

/// The output for scripts.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct StorageAnswer<'a> {
    system: &'a str,
    mix: &'a str,
    distribution: &'a str,
    rate_per_s: f64,
    p99_bound_us: f64,
    data_bytes: f64,
    memory_bytes: f64,
    threads: u32,
    /// Measured cells that nothing can be learnt from.
    left_out: Vec<RefusedCell>,
    #[serde(flatten)]
    advice: &'a StorageAdvice,
}

pub(super) fn advise(arguments: &AdviseStorageArguments) -> Result<ExitCode, ExitFailure> {
    let bound = units::parse_duration(&arguments.p99)
        .map_err(|problem| ExitFailure::Mistake(format!("--p99 {}: {problem}", arguments.p99)))?;
    let p99_us = bound.as_secs_f64() * 1e6;
    if p99_us <= 0.0 {
        return Err(ExitFailure::Mistake(format!("--p99 {}: expected a time, as in 10ms", arguments.p99)));
    }
    if !(1..=64).contains(&arguments.most_devices) {
        return Err(ExitFailure::Mistake(format!(
            "--most-devices {}: expected from 1 to 64, as many as a storage may have",
            arguments.most_devices
        )));
    }
    let memory = arguments.memory.as_ref().map(|text| about::bytes("--memory", text)).transpose()?;
    let about = about::about(&arguments.about)?;
    let most_threads = about
        .calibration
        .cells()
        .iter()
        .filter(|cell| cell.point.system == about.point.system && cell.point.mix == about.point.mix)
        .map(|cell| cell.point.threads)
        .max();
    let threads = arguments.threads.or(most_threads).unwrap_or(about.point.threads);
    let rate_per_s = arguments.about.rate;
    let servers = f64::from(about.point.servers.max(1));
    // `--memory` is of one server of the modelled machine. A point has all servers' at the study's scale.
    let memory_bytes =
        memory.map_or(about.point.memory_bytes, |bytes| bytes as f64 / about.data_scale * servers);
    let point = CellPoint {
        threads,
        memory_bytes,
        arrivals: OperationArrivals::Even { per_s: rate_per_s },
        ..about.point.clone()
    };
    let wanted = StorageGoal {
        point,
        rate_per_s,
        p99_us,
        data_bytes: about.data_bytes,
        data_scale: about.data_scale,
        initial: InitialState::Steady,
        most_devices: arguments.most_devices,
    };
    let advice = storage::search(&about.calibration, &wanted, catalogue::judgeable(), catalogue::layouts())
        .map_err(|refusal| {
        ExitFailure::Mistake(format!("there is no answer from these runs: {refusal}"))
    })?;
    match arguments.about.json {
        true => {
            let answer = StorageAnswer {
                system: &about.system_name,
                mix: &about.point.mix,
                distribution: &about.point.distribution,
                rate_per_s,
                p99_bound_us: p99_us,
                data_bytes: about.data_bytes,
                memory_bytes: wanted.point.memory_bytes * about.data_scale,
                threads,
                left_out: RefusedCell::left_out(&about.sources),
                advice: &advice,
            };
            output::print(&serde_json::to_string_pretty(&answer).expect("an answer is plain data"));
        }
        false => {
            output::print(&text(&advice, &about, &wanted));
            print_left_out(&RefusedCell::left_out(&about.sources));
        }
    }
    if let Some(file) = &arguments.html {
        let page = report::html::frontier::render(&page(&advice, &about, &wanted));
        let file = write_page(file, &page)?;
        if !arguments.about.json {
            output::print(&format!("page     {}", file.display()));
        }
    }
    if let Some(file) = &arguments.out {
        let asked = verify::AdviceRequest {
            data: arguments.about.data.as_deref(),
            memory: arguments.memory.as_deref(),
            rate_per_s,
            p99_us,
            threads,
        };
        let best: Vec<&StorageOffer> = advice.offers.iter().take(VERIFIED).collect();
        if best.is_empty() {
            output::say(format_args!(
                "note: {} was not written, since nothing meets the bound",
                file.display()
            ));
        } else {
            let study = verify::study(&about, &asked, &best)?;
            // Read before it is written: a study that can't be run must not be left there.
            study_of_text(file, &study, underlay_study::spec::StudyForm::default())?;
            new::create(file, &study)?;
            if !arguments.about.json {
                output::print(&format!(
                    "study    {} (`underlay run {}` measures the first {})",
                    file.display(),
                    file.display(),
                    best.len()
                ));
            }
        }
    }
    // A script is to see that nothing keeps to the bound.
    Ok(if advice.offers.is_empty() { ExitCode::from(INCOMPLETE) } else { ExitCode::SUCCESS })
}

/// `rocksdb, mix c, uniform: 20,000 ops/s within a p99 of 10 ms`
fn question(about: &AdviceSubject, wanted: &StorageGoal) -> String {
    format!(
        "{}: {} ops/s within a p99 of {}",
        about.describe(),
        quantity::rate(wanted.rate_per_s),
        quantity::latency(wanted.p99_us)
    )
}

/// Under which it was asked.
fn conditions(about: &AdviceSubject, wanted: &StorageGoal) -> Vec<String> {
    vec![
        format!("{} of data", quantity::bytes(wanted.data_bytes)),
        format!("{} of memory", quantity::memory(wanted.point.memory_bytes * wanted.data_scale)),
        format!("{} threads", wanted.point.threads),
        format!("predicted from {}", quantity::plural(about.sources.cells.len(), "measured cell")),
    ]
}

/// The drawing.
fn page(advice: &StorageAdvice, about: &AdviceSubject, wanted: &StorageGoal) -> Frontier {
    let storages = advice.all().enumerate().map(|(place, offer)| PricedStorage {
        name: offer.name.clone(),
        about: about_media(offer),
        price: price_of(offer),
        usd_per_1000_per_s: offer.usd_per_1000_per_s,
        usd_per_tb: offer.usd_per_tb,
        mean_us: offer.prediction.mean_us,
        p99_us: offer.prediction.p99_us,
        device_busy: offer.prediction.device_busy.value,
        is_saturated: offer.prediction.is_saturated,
        meets: offer.meets,
        is_sure: offer.is_sure,
        is_on_frontier: advice.frontier.contains(&place),
    });
    let answer = match advice.offers.first() {
        Some(first) => format!(
            "{} is the cheapest that keeps to it, for {}: a p99 of {}.",
            first.name,
            quantity::price(&price_of(first)),
            quantity::latency(first.prediction.p99_us.value)
        ),
        None => {
            format!("Nothing in the catalogue keeps to that with up to {} devices.", wanted.most_devices)
        }
    };
    Frontier {
        title: question(about, wanted),
        answer,
        facts: conditions(about, wanted),
        p99_bound_us: wanted.p99_us,
        storages: storages.collect(),
        turns: turns(advice, wanted),
        notes: notes(advice).into_iter().cloned().collect(),
        excluded: advice.excluded.iter().map(|one| (one.name.clone(), one.why.clone())).collect(),
    }
}

/// The products, and when their prices were taken.
fn about_media(offer: &StorageOffer) -> String {
    let mut names: Vec<&str> = offer.parts.iter().map(|part| part.medium.as_str()).collect();
    names.extend(offer.cache.iter().map(|cache| cache.medium.as_str()));
    names.dedup();
    let media: Vec<String> = names
        .iter()
        .filter_map(|name| catalogue::find(name).ok())
        .map(|medium| {
            let estimate = if medium.price.estimate { ", an estimate" } else { "" };
            format!("{} (price of {}{estimate})", medium.title, medium.price.date)
        })
        .collect();
    media.join("; ")
}

/// Assumptions about any of them.
fn notes(advice: &StorageAdvice) -> Vec<&String> {
    let offers = if advice.offers.is_empty() { &advice.too_slow } else { &advice.offers };
    let mut notes: Vec<&String> = offers.iter().flat_map(|offer| &offer.prediction.assumptions).collect();
    notes.sort();
    notes.dedup();
    notes
}

fn text(advice: &StorageAdvice, about: &AdviceSubject, wanted: &StorageGoal) -> String {
    let mut text =
        output::paragraph(&format!("{}, {}.", question(about, wanted), conditions(about, wanted).join(", ")));
    text += "\n\n";
    if advice.offers.is_empty() {
        text += &output::paragraph(&format!(
            "Nothing in the catalogue keeps to that with up to {} devices. The nearest{}:",
            wanted.most_devices,
            match advice.too_slow.len() > NEAREST {
                true => format!(" {NEAREST} of {}", advice.too_slow.len()),
                false => String::new(),
            }
        ));
        text += "\n";
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "",
        "storage",
        "USD",
        "per 1,000 ops/s",
        "per TB",
        "p99",
        "within the bound",
        "device",
    ]);
    let listed: Vec<&StorageOffer> = match advice.offers.is_empty() {
        false => advice.offers.iter().take(LISTED).collect(),
        true => {
            let mut nearest: Vec<&StorageOffer> = advice.too_slow.iter().collect();
            nearest.sort_by(|a, b| a.prediction.p99_us.value.total_cmp(&b.prediction.p99_us.value));
            nearest.into_iter().take(NEAREST).collect()
        }
    };
    for (index, offer) in listed.iter().enumerate() {
        let p99 = &offer.prediction.p99_us;
        let verdict = match (offer.meets, offer.is_sure) {
            (true, true) => "surely",
            (true, false) => "probably",
            _ => "no",
        };
        table.add_row([
            letter(index).to_string(),
            offer.name.clone(),
            quantity::price(&price_of(offer)),
            rent_or_not(offer.usd_per_1000_per_s, offer),
            rent_or_not(offer.usd_per_tb, offer),
            match offer.prediction.is_saturated {
                // With more work than it can do its queue has no end, and no p99.
                true => "grows".to_owned(),
                false => format!(
                    "{} ({} to {})",
                    quantity::latency(p99.value),
                    quantity::latency(p99.low),
                    quantity::latency(p99.high)
                ),
            },
            verdict.to_owned(),
            quantity::percent(offer.prediction.device_busy.value),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text += &output::table(&table);
    text += "\n";
    if advice.offers.len() > LISTED {
        text += &format!("... and {} more\n", advice.offers.len() - LISTED);
    }
    let marks = marks(advice, &listed);
    text += "\n";
    text += &picture::draw(&marks, wanted.p99_us, output::width());
    text += &output::paragraph(
        "o meets the bound, x does not; letters are those of the list, and the line is the bound.",
    );
    text += "\n";
    for sentence in turns(advice, wanted) {
        text += &format!("\n{}", output::wrap_after_head("- ", 2, &sentence));
    }
    for note in notes(advice) {
        text += &format!("\n{}", output::wrap_after_head("note: ", 6, note));
    }
    text += &format!("\n{}", output::wrap_after_head("note: ", 6, PRICES));
    for (reason, names) in excluded(advice) {
        let line = format!("not considered: {}: {reason}", quantity::list(&names, 4));
        text += &format!("\n{}", output::wrap_after_head("note: ", 6, &line));
    }
    text + "\n"
}

const PRICES: &str = "prices are those of the devices alone; `underlay media show NAME` has the date and source of each, and a cloud volume's is three years' rent";

fn price_of(offer: &StorageOffer) -> PriceSum {
    PriceSum { usd: offer.usd, rent_usd: offer.rent_usd }
}

/// Dollars that its price comes to for something.
fn rent_or_not(usd: f64, offer: &StorageOffer) -> String {
    let rent = if offer.rent_usd > 0.0 { " rent" } else { "" };
    format!("{}{rent}", quantity::dollars(usd))
}

/// Excluded storages, grouped by reason.
fn excluded(advice: &StorageAdvice) -> Vec<(&str, Vec<String>)> {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for one in &advice.excluded {
        match groups.iter_mut().find(|(reason, _)| *reason == one.why) {
            Some((_, names)) => names.push(one.name.clone()),
            None => groups.push((one.why.as_str(), vec![one.name.clone()])),
        }
    }
    groups
}

fn letter(index: usize) -> char {
    char::from(b'A' + (index % 26) as u8)
}

fn marks(advice: &StorageAdvice, listed: &[&StorageOffer]) -> Vec<PictureMark> {
    let of_list = listed.iter().enumerate().map(|(index, offer)| (letter(index), *offer));
    let others = advice
        .all()
        .filter(|offer| !listed.iter().any(|one| std::ptr::eq(*one, *offer)))
        .map(|offer| (if offer.meets { 'o' } else { 'x' }, offer));
    of_list
        .chain(others)
        .filter(|(_, offer)| !offer.prediction.is_saturated)
        .map(|(letter, offer)| PictureMark { usd: offer.usd, p99_us: offer.prediction.p99_us.value, letter })
        .collect()
}

/// Values found by halving have no more digits than this.
fn two_digits(value: f64) -> f64 {
    let unit = 10f64.powf(value.max(1.0).log10().floor() - 1.0).max(1.0);
    (value / unit).round() * unit
}

/// Where the answer becomes another one, a sentence each.
fn turns(advice: &StorageAdvice, wanted: &StorageGoal) -> Vec<String> {
    let turns = &advice.turns;
    let mut sentences = Vec::new();
    if let (Some(first), Some(usd), Some(then)) =
        (advice.offers.first(), turns.until_usd, &turns.then_by_price)
    {
        let dearer = usd / first.usd.max(0.01) - 1.0;
        sentences.push(format!(
            "Price: {} stays the cheapest until it costs {} ({} more), then it is {then}.",
            first.name,
            quantity::dollars(usd),
            quantity::percent(dearer)
        ));
    }
    if let (Some(first), Some(per_s)) = (advice.offers.first(), turns.until_per_s) {
        let then = match &turns.then_by_rate {
            Some(name) => format!("{name} is the cheapest that does beyond it"),
            None => "none of these does beyond it".to_owned(),
        };
        // The search for this rate ends at 64 times the wanted one.
        let words = if per_s > 60.0 * wanted.rate_per_s {
            format!("Rate: {} keeps to the bound at more than 60 times this rate.", first.name)
        } else {
            format!(
                "Rate: {} keeps to the bound up to about {} ops/s; {then}.",
                first.name,
                quantity::rate(two_digits(per_s))
            )
        };
        sentences.push(words);
    }
    if let (Some(first), Some(p99_us)) = (advice.offers.first(), turns.until_p99_us) {
        let then = match &turns.then_by_tighter {
            Some(name) => format!("{name} is the next that is faster"),
            None => "none of these is faster".to_owned(),
        };
        sentences.push(format!(
            "Bound: below {} {} no longer does; {then}.",
            quantity::latency(p99_us),
            first.name
        ));
    }
    if let (Some(p99_us), Some(then)) = (turns.from_p99_us, &turns.then_by_looser) {
        sentences.push(format!(
            "Bound: from {} on, {then} would do, which is cheaper.",
            quantity::latency(p99_us)
        ));
    }
    sentences
}
