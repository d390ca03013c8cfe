//! The study that measures what was advised: the run's own study on the advised storages.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};
use underlay_config::units;
use underlay_predict::advice::storage::StorageOffer;
use underlay_report::quantity;

use super::about::AdviceSubject;
use crate::exit_codes::ExitFailure;

/// The request for advice, as typed.
pub(super) struct AdviceRequest<'a> {
    pub data: Option<&'a str>,
    pub memory: Option<&'a str>,
    pub rate_per_s: f64,
    pub p99_us: f64,
    pub threads: u32,
}

/// Sections that are about the run's own storages and questions.
const DROPPED: [&str; 6] = ["storage", "pool", "reference", "short", "fault", "event"];
/// Keys of the workload that the advice's question replaces.
const REPLACED: [&str; 5] = ["records", "find_rate", "compact_at", "rate", "data"];

/// The text of the study.
///
/// # Errors
/// When the run's study can't be edited, which its having been run rules out.
pub(super) fn study(
    about: &AdviceSubject,
    asked: &AdviceRequest<'_>,
    offers: &[&StorageOffer],
) -> Result<String, ExitFailure> {
    let run = &about.source().loaded.run;
    let unedited = |problem: &str| {
        ExitFailure::Failed(format!("the run's study can't be made into one that verifies: {problem}"))
    };
    let mut document: DocumentMut =
        run.study_toml.parse().map_err(|error: toml_edit::TomlError| unedited(&error.to_string()))?;
    // First the study as it was run: its text alone is not what was measured.
    for text in &run.overrides {
        override_with(&mut document, text).ok_or_else(|| unedited(text))?;
    }
    if run.short {
        take_short(&mut document);
    }
    for name in DROPPED {
        document.remove(name);
    }
    let name: String = format!("verify-{}", run.name).chars().take(40).collect();
    document["name"] = value(name.trim_end_matches('-'));
    let title = format!(
        "Advice of `underlay advise storage`: {} at {} ops/s",
        about.describe(),
        quantity::rate(asked.rate_per_s)
    );
    document["title"] = value(title);
    keep_only(&mut document, "system", &about.system_name).ok_or_else(|| unedited("its system"))?;
    keep_only(&mut document, "workload", &about.workload_name).ok_or_else(|| unedited("its workload"))?;
    let workload = &mut document["workload"][about.workload_name.as_str()];
    let data = match asked.data {
        Some(text) => text.to_owned(),
        None => format!("{} GB", (about.data_bytes / 1e9).max(1e-3)),
    };
    if let Some(table) = workload.as_table_like_mut() {
        for key in REPLACED {
            table.remove(key);
        }
        table.insert("mixes", value(Array::from_iter([about.point.mix.as_str()])));
        // These visit every record in turn, so a distribution would have no use.
        if !matches!(about.point.mix.as_str(), "load" | "delete") {
            table.insert("distribution", value(about.point.distribution.as_str()));
        }
        table.insert("data", value(data));
        table.insert("threads", value(i64::from(asked.threads)));
        let rates: Array = [Value::from((asked.rate_per_s.round() as i64).max(1))].into_iter().collect();
        table.insert("rate", value(rates));
    }
    if let Some(memory) = asked.memory {
        document["system"][about.system_name.as_str()]["memory"] = value(memory);
    }
    let mut storages = Table::new();
    storages.set_implicit(true);
    let names: Vec<String> = names(offers);
    for (offer, name) in offers.iter().zip(&names) {
        let mut table = storage(offer);
        let p99 = &offer.prediction.p99_us;
        table.decor_mut().set_prefix(format!(
            "\n# {}, {}: a p99 of {} ({} to {}) is predicted.\n",
            offer.name,
            quantity::dollars(offer.usd),
            quantity::latency(p99.value),
            quantity::latency(p99.low),
            quantity::latency(p99.high)
        ));
        storages.insert(name, Item::Table(table));
    }
    document["baseline"] = value(names[0].as_str());
    // Before the storages are in: theirs are to stay, and the old ones speak of another study.
    without_comments(document.as_table_mut());
    document.insert("storage", Item::Table(storages));
    document.set_trailing("");
    let head = format!(
        "# Written by `underlay advise storage`, to measure what it predicted: the cheapest storages that keep to a p99 of {}\n\
         # at {} ops/s. From the study of {}.\n\n",
        quantity::latency(asked.p99_us),
        quantity::rate(asked.rate_per_s),
        run.name
    );
    Ok(head + document.to_string().trim_start())
}

/// Comments above the keys and sections of the run's study are about its own matrix.
fn without_comments(table: &mut Table) {
    for (mut key, item) in table.iter_mut() {
        key.leaf_decor_mut().clear();
        if let Item::Table(inner) = item {
            inner.decor_mut().set_prefix("\n");
            without_comments(inner);
        }
    }
}

/// Names of storages, each its own: those that begin alike for too long get a number.
fn names(offers: &[&StorageOffer]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for offer in offers {
        let name = name_of(offer);
        let used_count = names.iter().filter(|one| one.starts_with(&name[..name.len().min(36)])).count();
        let is_new = !names.contains(&name);
        names.push(if is_new { name } else { format!("{}-{}", &name[..name.len().min(36)], used_count + 1) });
    }
    names
}

fn storage(offer: &StorageOffer) -> Table {
    let mut table = Table::new();
    if let Some(preset) = &offer.preset {
        table.insert("preset", value(preset.as_str()));
        return table;
    }
    let mut devices = Array::new();
    for part in &offer.parts {
        let mut device = InlineTable::new();
        device.insert("medium", part.medium.as_str().into());
        if let Some(bytes) = part.capacity_bytes {
            device.insert("capacity", units::format_bytes(bytes as u64).into());
        }
        if part.devices > 1 {
            device.insert("count", i64::from(part.devices).into());
        }
        if part.directories > 1 {
            device.insert("directories", i64::from(part.directories).into());
        }
        devices.push(device);
    }
    table.insert("devices", value(devices));
    if offer.layout != "single" {
        table.insert("layout", value(offer.layout));
    }
    if let Some(cache) = &offer.cache {
        let mut front = InlineTable::new();
        front.insert("medium", cache.medium.as_str().into());
        front.insert("capacity", format!("{:.0} MB", (cache.capacity_bytes / 1e6).floor()).into());
        front.insert("mode", cache.mode.into());
        table.insert("cache", value(front));
    }
    table
}

/// `4 x ssd-sata` is `ssd-sata-x4`, as a storage is named; with a cache `hdd-24tb-x2-nvme-990-pro-read`.
fn name_of(offer: &StorageOffer) -> String {
    let mut words = Vec::new();
    match &offer.preset {
        Some(preset) => words.push(preset.clone()),
        None => words.extend(offer.parts.iter().map(|part| match part.devices {
            1 => part.medium.clone(),
            count => format!("{}-x{count}", part.medium),
        })),
    }
    words.extend(offer.cache.iter().map(|cache| format!("{}-{}", cache.medium, cache.mode)));
    let name: String = words
        .join("-")
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(40)
        .collect();
    name.trim_end_matches('-').to_owned()
}

/// `key.path=value`, as the command line had it.
fn override_with(document: &mut DocumentMut, text: &str) -> Option<()> {
    let (path, written) = text.split_once('=')?;
    let parsed: Value = written.trim().parse().unwrap_or_else(|_| Value::from(written.trim()));
    let keys: Vec<&str> = path.split('.').map(str::trim).collect();
    let (last, tables) = keys.split_last()?;
    let mut item = document.as_item_mut();
    for key in tables {
        let table = item.as_table_like_mut()?;
        if !table.contains_key(key) {
            table.insert(key, Item::Table(Table::new()));
        }
        item = table.get_mut(key)?;
    }
    item.as_table_like_mut()?.insert(last, value(parsed));
    Some(())
}

/// The run was of the short form, whose times become the study's.
fn take_short(document: &mut DocumentMut) {
    let Some(short) = document.get("short").and_then(Item::as_table_like) else { return };
    let names = [
        ("warmup", "run", "warmup"),
        ("duration", "run", "duration"),
        ("repetitions", "run", "repetitions"),
        ("dirty_limit", "run", "dirty_limit"),
        ("time", "scale", "time"),
        ("data_scale", "scale", "data"),
    ];
    let entries: Vec<(&str, &str, Item)> = names
        .into_iter()
        .filter_map(|(key, section, name)| Some((section, name, short.get(key)?.clone())))
        .collect();
    for (section, name, item) in entries {
        document[section][name] = item;
    }
}

/// Of sections with names, this one alone.
fn keep_only(document: &mut DocumentMut, section: &str, name: &str) -> Option<()> {
    let table = document.get_mut(section)?.as_table_like_mut()?;
    let others: Vec<String> = table.iter().map(|(key, _)| key.to_owned()).filter(|key| key != name).collect();
    others.iter().for_each(|key| {
        table.remove(key);
    });
    table.contains_key(name).then_some(())
}
