//! A medium with some parameters set by its user: the file is changed, and read like any other.

use toml_edit::{DocumentMut, InlineTable, Item, Table, Value};

use super::{Medium, files, plain_number};

/// A parameter of `[model]` and the number or property that it is to have.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Number(f64),
    Property(bool),
}

/// A medium that is one of the catalogue or of a file but for some parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    pub medium: Medium,
    /// The changed file.
    pub text: String,
}

/// The key of the source of what was changed.
pub(super) const SOURCE: &str = "set-by-the-study";

/// The text of a medium of the catalogue.
pub fn text_of(name: &str) -> Option<&'static str> {
    let path = format!("media/{name}.toml");
    files::MEDIA.iter().find(|(file, _)| *file == path).map(|(_, text)| *text)
}

/// A medium's file with other values for some keys of `[model]`; one that the file leaves out is added. The medium has the changes in
/// its name and title, and says that they are no estimates of the catalogue's.
///
/// # Errors
/// What keeps it from being a medium, in a line: a key that its kind does not have, a value out of bounds.
pub fn changed(text: &str, changes: &[(&str, Change)]) -> Result<Changed, String> {
    let mut document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let name = document.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
    let title = document.get("title").and_then(Item::as_str).unwrap_or_default().to_owned();
    let (mut called, mut told) = (name.clone(), Vec::new());
    for (key, change) in changes {
        let (value, words) = match change {
            Change::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
                (Value::from(*number as i64), plain_number(*number))
            }
            Change::Number(number) => (Value::from(*number), plain_number(*number)),
            Change::Property(is_so) => (Value::from(*is_so), is_so.to_string()),
        };
        let mut entry = InlineTable::new();
        entry.insert("value", value);
        entry.insert("source", Value::from(SOURCE));
        table(&mut document, "model")?.insert(key, Item::Value(Value::InlineTable(entry)));
        called += &format!("-{key}-{words}");
        told.push(format!("{key} {words}"));
    }
    let told = told.join(", ");
    let source = format!("Set by the study, in place of what {name} has: {told}");
    table(&mut document, "sources")?.insert(SOURCE, Item::Value(Value::from(source)));
    let called: String = called
        .chars()
        .map(|letter| match letter.to_ascii_lowercase() {
            plain if plain.is_ascii_lowercase() || plain.is_ascii_digit() => plain,
            _ => '-',
        })
        .collect();
    document.insert("name", Item::Value(Value::from(called)));
    document.insert("title", Item::Value(Value::from(format!("{title}, with {told}"))));
    // A source that nothing refers to any more is no mistake of the study's.
    drop_unused_sources(&mut document)?;
    let text = document.to_string();
    match Medium::parse(&format!("{name} with {told}"), &text) {
        Ok(medium) => Ok(Changed { medium, text }),
        Err(mistakes) => {
            // An entry that is not read leaves our own source without a use, which is a consequence.
            let mut findings = mistakes.findings().iter();
            let cause = findings.find(|finding| !finding.message.contains(SOURCE));
            Err(cause.map_or_else(String::new, |finding| finding.in_one_line()))
        }
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
    fn one_field_is_changed_and_the_rest_stays() {
        let text = text_of("ebs-io2").unwrap();
        let of_catalogue = Medium::parse("ebs-io2", text).unwrap();
        // The one is left out of the file, the other is in it.
        let changes = [("instance_iops", Change::Number(18_750.0)), ("request_mb_s", Change::Number(812.5))];
        let Changed { medium, text } = changed(text, &changes).unwrap();
        assert_eq!(medium.name, "ebs-io2-instance-iops-18750-request-mb-s-812-5");
        assert!(medium.title.ends_with("with instance_iops 18750, request_mb_s 812.5"), "{}", medium.title);
        let (ModelParameters::Cloud(new), ModelParameters::Cloud(old)) = (&medium.model, &of_catalogue.model)
        else {
            panic!("cloud volumes")
        };
        assert_eq!(new.instance_iops.as_ref().unwrap().value, 18_750.0);
        assert_eq!((new.request_mb_s.value, new.request_mb_s.estimate), (812.5, false));
        assert_eq!((&new.read_latency_us, &medium.price), (&old.read_latency_us, &of_catalogue.price));
        assert!(medium.source_text(&new.request_mb_s.source).contains("ebs-io2 has"));
        assert_eq!(Medium::parse("again", &text).unwrap(), medium);
    }

    #[test]
    fn every_medium_of_the_catalogue_can_be_changed_and_says_what_is_wrong() {
        for (path, text) in files::MEDIA.iter().filter(|(path, _)| !path.contains("layouts")) {
            let error = changed(text, &[("no_such_key", Change::Number(1.0))]).unwrap_err();
            assert!(error.contains("no_such_key"), "{path}: {error}");
        }
        let error =
            changed(text_of("ebs-io2").unwrap(), &[("instance_iops", Change::Number(-1.0))]).unwrap_err();
        assert!(error.contains("instance_iops"), "{error}");
        let error =
            changed(text_of("ebs-io2").unwrap(), &[("read_latency_us", Change::Number(-1.0))]).unwrap_err();
        assert!(error.contains("read_latency_us"), "{error}");
    }
}
