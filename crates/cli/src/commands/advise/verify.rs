//! The study that measures what was advised: the run's own study on the advised storages.

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};
use underlay_predict::advice::storage::Offer;

use super::about::About;
use crate::exit_codes::Failure;

/// What the advice was asked for, as it was typed.
pub(super) struct Asked<'a> {
    pub data: Option<&'a str>,
    pub memory: Option<&'a str>,
    pub rate_per_s: f64,
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
pub(super) fn study(about: &About, asked: &Asked<'_>, offers: &[&Offer]) -> Result<String, Failure> {
    let run = &about.source().loaded.run;
    let unedited = |problem: &str| {
        Failure::Failed(format!("the run's study can't be made into one that verifies: {problem}"))
    };
    let mut document: DocumentMut =
        run.study_toml.parse().map_err(|error: toml_edit::TomlError| unedited(&error.to_string()))?;
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
        "What `underlay advise storage` advises: {} at {} ops/s",
        about.in_words(),
        underlay_report::quantity::rate(asked.rate_per_s)
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
        if !matches!(about.point.mix.as_str(), "load" | "delete") {
            table.insert("distribution", value(about.point.distribution.as_str()));
        }
        table.insert("data", value(data));
        table.insert("threads", value(i64::from(asked.threads)));
        let rates: Array = [Value::from(asked.rate_per_s.round() as i64)].into_iter().collect();
        table.insert("rate", value(rates));
    }
    if let Some(memory) = asked.memory {
        document["system"][about.system_name.as_str()]["memory"] = value(memory);
    }
    let mut storages = Table::new();
    storages.set_implicit(true);
    let names: Vec<String> = offers.iter().map(|offer| name_of(&offer.name)).collect();
    for (offer, name) in offers.iter().zip(&names) {
        storages.insert(name, Item::Table(storage(offer)));
    }
    document["baseline"] = value(names[0].as_str());
    document.insert("storage", Item::Table(storages));
    Ok(document.to_string())
}

fn storage(offer: &Offer) -> Table {
    let mut table = Table::new();
    match &offer.preset {
        Some(preset) => {
            table.insert("preset", value(preset.as_str()));
        }
        None => {
            let mut device = InlineTable::new();
            device.insert("medium", offer.medium.as_str().into());
            if offer.devices > 1 {
                device.insert("count", i64::from(offer.devices).into());
            }
            let devices: Array = [Value::from(device)].into_iter().collect();
            table.insert("devices", value(devices));
            if offer.devices > 1 {
                table.insert("layout", value("stripe"));
            }
        }
    }
    table
}

/// `4 x ssd-sata` is `ssd-sata-x4`, as a storage is named.
fn name_of(offer: &str) -> String {
    let name = match offer.split_once(" x ") {
        Some(("1", medium)) => medium.to_owned(),
        Some((count, medium)) => format!("{medium}-x{count}"),
        None => offer.to_owned(),
    };
    name.chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(40)
        .collect()
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
    let taken: Vec<(&str, &str, Item)> = names
        .into_iter()
        .filter_map(|(key, section, name)| Some((section, name, short.get(key)?.clone())))
        .collect();
    for (section, name, item) in taken {
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
