//! A medium with a size and some parameters of its user's: the file is changed, and read like any other.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, InlineTable, Item, Table, Value};
use underlay_config::units;

use super::quantity::SET_BY_STUDY;
use super::volume::RULED;
use super::{CatalogueMedium, ModelParameters, SourcedQuantity, files, plain_number};

/// A parameter of `[model]` and the number or property that it is to have.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterChange {
    Number(f64),
    Property(bool),
}

/// A medium that is one of the catalogue or of a file but for some parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedMedium {
    pub medium: CatalogueMedium,
    /// The changed file.
    pub text: String,
}

/// The text of a medium of the catalogue.
pub fn text_of(name: &str) -> Option<&'static str> {
    files::find_medium(name).map(|file| file.text)
}

/// The part of a user's change that is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// The change of this number.
    Change(usize),
    Capacity,
    /// The values contradict each other, or the rest of the file.
    Whole,
}

/// Why a medium can't be as its user wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumRefusal {
    pub blame: RefusalCause,
    pub reason: String,
}

/// A medium's file with other values for some keys of `[model]`; one that the file leaves out is added. The medium has
/// the changes in its name and title, and says that they are no estimates of the catalogue's.
///
/// # Errors
/// The problem, in a line: a key that its kind does not have, a value out of bounds.
pub fn changed(text: &str, changes: &[(&str, ParameterChange)]) -> Result<ChangedMedium, String> {
    sized(text, None, false, changes)
        .map_err(|refused| refused.into_iter().next().map_or_else(String::new, |first| first.reason))
}

/// The same for a device of this capacity. If the provider's rules give rates and price by size, the result has those
/// of that size. It is then a medium like any other, without rules: a smaller device of it is a part of it. Other media
/// keep their capacity. All changes are made before anything is judged. `allows_larger`: the volume may be larger
/// than any on sale.
///
/// # Errors
/// Each reason why there is no such medium.
pub fn sized(
    text: &str,
    capacity_bytes: Option<u64>,
    allows_larger: bool,
    changes: &[(&str, ParameterChange)],
) -> Result<ChangedMedium, Vec<MediumRefusal>> {
    let whole = |reason: String| vec![MediumRefusal { blame: RefusalCause::Whole, reason }];
    let mut document: DocumentMut = text.parse().map_err(|error| whole(format!("{error}")))?;
    let name = document.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
    let title = document.get("title").and_then(Item::as_str).unwrap_or_default().to_owned();
    let has_rules = document.contains_table("volume");
    let own_bytes = document.get("capacity_bytes").and_then(|entry| entry.get("value")?.as_integer());
    let other_bytes = capacity_bytes.filter(|bytes| has_rules && own_bytes != i64::try_from(*bytes).ok());
    let (mut called, mut descriptions) = (name.clone(), Vec::new());
    if let Some(bytes) = other_bytes {
        let size = units::format_bytes(bytes);
        document.insert("capacity_bytes", entry(Value::from(bytes as i64)));
        if allows_larger {
            let largest = units_of(&document, bytes);
            let rules = table(&mut document, "volume").map_err(whole)?;
            let sold = rules.get("largest").and_then(number).unwrap_or(0.0);
            rules.insert("largest", Item::Value(Value::from(largest.max(sold))));
        }
        called += &format!("-{size}");
        descriptions.push(size);
    }
    for (key, change) in changes {
        let (value, words) = match change {
            ParameterChange::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                (Value::from(*number as i64), plain_number(*number))
            }
            ParameterChange::Number(number) => (Value::from(*number), plain_number(*number)),
            ParameterChange::Property(is_so) => (Value::from(*is_so), is_so.to_string()),
        };
        table(&mut document, "model").map_err(whole)?.insert(key, entry(value));
        called += &format!("-{key}-{words}");
        descriptions.push(format!("{key} {words}"));
    }
    if !descriptions.is_empty() {
        let descriptions = descriptions.join(", ");
        let source = format!("Set by the study, in place of what {name} has: {descriptions}");
        table(&mut document, "sources")
            .map_err(whole)?
            .insert(SET_BY_STUDY, Item::Value(Value::from(source)));
        document.insert("name", Item::Value(Value::from(plain_name(&called))));
        document.insert("title", Item::Value(Value::from(format!("{title}, with {descriptions}"))));
    }
    // A source that nothing refers to any more is no mistake of the study's.
    drop_unused_sources(&mut document).map_err(whole)?;
    let text = document.to_string();
    let medium = CatalogueMedium::parse(&name, &text).map_err(|mistakes| {
        let blamed = ChangeLocations::new(&text, changes);
        let refused = mistakes.findings().iter().filter_map(|finding| {
            let blame = blamed.blame(finding.span.start)?;
            Some(MediumRefusal { blame, reason: finding.to_one_line() })
        });
        refused.collect::<Vec<_>>()
    })?;
    if medium.volume.is_none() {
        return Ok(ChangedMedium { medium, text });
    }
    settle(&mut document, &medium).map_err(whole)?;
    let text = document.to_string();
    match CatalogueMedium::parse(&name, &text) {
        Ok(medium) => Ok(ChangedMedium { medium, text }),
        Err(mistakes) => Err(whole(mistakes.to_string())),
    }
}

/// Writes what the rules gave into the file, and takes the rules out.
fn settle(document: &mut DocumentMut, medium: &CatalogueMedium) -> Result<(), String> {
    document.remove("volume");
    if let ModelParameters::Cloud(volume) = &medium.model {
        let quantities: [Option<&SourcedQuantity>; 6] = [
            Some(&volume.baseline_iops),
            Some(&volume.baseline_mb_s),
            volume.burst_iops.as_ref(),
            volume.io_credits.as_ref(),
            volume.burst_mb_s.as_ref(),
            volume.throughput_credits_mb.as_ref(),
        ];
        let model = table(document, "model")?;
        for (key, quantity) in RULED.into_iter().zip(quantities) {
            let Some(quantity) = quantity.filter(|_| !model.contains_key(key)) else { continue };
            let mut entry = InlineTable::new();
            entry.insert("value", Value::from(quantity.value));
            entry.insert("source", Value::from(quantity.source.as_str()));
            model.insert(key, Item::Value(Value::InlineTable(entry)));
        }
    }
    if medium.price.rent.is_some() {
        let price = table(document, "price")?;
        for key in ["usd_per_unit_month", "usd_month_by_size", "usd_per_iops_month", "usd_per_mib_s_month"] {
            price.remove(key);
        }
        price.insert("usd", Item::Value(Value::from(medium.price.usd)));
        // Without the rules, nothing else says so.
        price.insert("rented", Item::Value(Value::from(true)));
    }
    drop_unused_sources(document)
}

fn entry(value: Value) -> Item {
    let mut entry = InlineTable::new();
    entry.insert("value", value);
    entry.insert("source", Value::from(SET_BY_STUDY));
    Item::Value(Value::InlineTable(entry))
}

fn number(item: &Item) -> Option<f64> {
    item.as_float().or_else(|| item.as_integer().map(|whole| whole as f64))
}

/// The units of `[volume]` in a capacity.
fn units_of(document: &DocumentMut, bytes: u64) -> f64 {
    let is_decimal =
        document.get("volume").and_then(|rules| rules.get("unit")?.as_str()).is_some_and(|unit| unit == "GB");
    (bytes as f64 / if is_decimal { 1e9 } else { (1u64 << 30) as f64 }).ceil()
}

/// As media are called: lower-case letters, digits and dashes.
fn plain_name(text: &str) -> String {
    let letter = |letter: char| match letter.to_ascii_lowercase() {
        plain if plain.is_ascii_lowercase() || plain.is_ascii_digit() => plain,
        _ => '-',
    };
    text.chars().map(letter).collect()
}

/// Where in a changed file its changes stand.
struct ChangeLocations {
    changes: Vec<Range<usize>>,
    capacity: Range<usize>,
    sources: Range<usize>,
}

impl ChangeLocations {
    fn new(text: &str, changes: &[(&str, ParameterChange)]) -> ChangeLocations {
        let document = Document::parse(text).ok();
        let place = |table: Option<&Table>, key: &str| {
            let (key, item) = table?.get_key_value(key)?;
            let first = key.span().map(|span| span.start);
            let last = item.span().map(|span| span.end);
            Some(first?..last?)
        };
        let root = document.as_ref().map(|document| document.as_table());
        let inside = |name: &str| root.and_then(|root| root.get(name)?.as_table());
        let model = inside("model");
        ChangeLocations {
            changes: changes.iter().map(|(key, _)| place(model, key).unwrap_or_default()).collect(),
            capacity: place(root, "capacity_bytes").unwrap_or_default(),
            sources: inside("sources")
                .and_then(|sources| place(Some(sources), SET_BY_STUDY))
                .unwrap_or_default(),
        }
    }

    /// `None` for our own source: it is without a use where the entry that refers to it could not be read, which is a
    /// consequence.
    fn blame(&self, offset: usize) -> Option<RefusalCause> {
        if self.sources.contains(&offset) {
            return None;
        }
        if let Some(change) = self.changes.iter().position(|place| place.contains(&offset)) {
            return Some(RefusalCause::Change(change));
        }
        Some(if self.capacity.contains(&offset) { RefusalCause::Capacity } else { RefusalCause::Whole })
    }
}

fn table<'a>(document: &'a mut DocumentMut, key: &str) -> Result<&'a mut Table, String> {
    document.get_mut(key).and_then(Item::as_table_mut).ok_or_else(|| format!("the medium has no [{key}]"))
}

/// Removes sources whose last use was changed.
fn drop_unused_sources(document: &mut DocumentMut) -> Result<(), String> {
    let keys: Vec<String> = table(document, "sources")?.iter().map(|(key, _)| key.to_owned()).collect();
    for key in keys {
        let is_used =
            document.iter().filter(|(name, _)| *name != "sources").any(|(_, item)| uses(item, &key));
        if !is_used {
            table(document, "sources")?.remove(&key);
        }
    }
    Ok(())
}

/// Whether a `source` somewhere below is this one.
fn uses(item: &Item, key: &str) -> bool {
    match item {
        Item::Value(value) => value_uses(value, key),
        Item::Table(table) => table
            .iter()
            .any(|(name, item)| (name == "source" && item.as_str() == Some(key)) || uses(item, key)),
        Item::ArrayOfTables(tables) => tables.iter().any(|table| {
            table
                .iter()
                .any(|(name, item)| (name == "source" && item.as_str() == Some(key)) || uses(item, key))
        }),
        Item::None => false,
    }
}

fn value_uses(value: &Value, key: &str) -> bool {
    match value {
        Value::InlineTable(table) => table
            .iter()
            .any(|(name, value)| (name == "source" && value.as_str() == Some(key)) || value_uses(value, key)),
        Value::Array(values) => values.iter().any(|value| value_uses(value, key)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::ModelParameters;

    #[test]
    fn changed_field_leaves_others_alone() {
        let text = text_of("ebs-io2").unwrap();
        let of_catalogue = CatalogueMedium::parse("ebs-io2", text).unwrap();
        // The one is left out of the file, the other is in it.
        let changes = [
            ("instance_iops", ParameterChange::Number(18_750.0)),
            ("request_mb_s", ParameterChange::Number(812.5)),
        ];
        let ChangedMedium { medium, text } = changed(text, &changes).unwrap();
        assert_eq!(medium.name, "ebs-io2-instance-iops-18750-request-mb-s-812-5");
        assert!(medium.title.ends_with("with instance_iops 18750, request_mb_s 812.5"), "{}", medium.title);
        let (ModelParameters::Cloud(new), ModelParameters::Cloud(old)) = (&medium.model, &of_catalogue.model)
        else {
            panic!("cloud volumes")
        };
        assert_eq!(new.instance_iops.as_ref().unwrap().value, 18_750.0);
        assert_eq!((new.request_mb_s.value, new.request_mb_s.estimate), (812.5, false));
        assert_eq!((&new.read_latency_us, medium.price.usd), (&old.read_latency_us, of_catalogue.price.usd));
        assert!(medium.source_text(&new.request_mb_s.source).contains("ebs-io2 has"));
        assert_eq!(CatalogueMedium::parse("again", &text).unwrap(), medium);
    }

    #[test]
    fn wrong_changes_of_catalogue_media_are_named() {
        for file in files::MEDIA.iter() {
            let error = changed(file.text, &[("no_such_key", ParameterChange::Number(1.0))]).unwrap_err();
            assert!(error.contains("no_such_key"), "{}: {error}", file.path);
        }
        let error = changed(text_of("ebs-io2").unwrap(), &[("instance_iops", ParameterChange::Number(-1.0))])
            .unwrap_err();
        assert!(error.contains("instance_iops"), "{error}");
        let error =
            changed(text_of("ebs-io2").unwrap(), &[("read_latency_us", ParameterChange::Number(-1.0))])
                .unwrap_err();
        assert!(error.contains("read_latency_us"), "{error}");
    }
}
