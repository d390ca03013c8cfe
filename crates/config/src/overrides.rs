//! Values that the command line gives instead of the text: `--set scale.data=100`. A mistake in one is shown in the
//! option itself, so their text follows that of the file, and everything keeps its own place.

use toml_edit::{Document, InlineTable, Item, Key, Table, Value};

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::text;

/// The option, as findings name the place.
const OPTION: &str = "--set";
const EXPECTED: &str = "expected `key.path=value`, as in `scale.data=100`";

/// Puts values in the place of those of a document, or beside them; each is `key.path=value`. Anything but a TOML value
/// is taken for a string. `None` after a mistake, which then stands in `findings`.
pub fn overridden(document: &Table, overrides: &[String], findings: &mut Diagnostics) -> Option<Table> {
    let mut table = document.clone();
    let mut paths: Vec<String> = Vec::new();
    for option in overrides {
        let (keys, value) = read(option, findings)?;
        let path = path_of(&keys);
        let span = keys.first().and_then(Key::span).unwrap_or(0..0);
        if paths.contains(&path) {
            findings.push(Diagnostic::error(span, format!("`{path}` is set twice"), "leave one of them out"));
            return None;
        }
        if let Err(depth) = put(&mut table, &keys, value) {
            let message = format!("`{path}` leads through `{}`, which is no table", path_of(&keys[..=depth]));
            findings.push(Diagnostic::error(span, message, "expected the whole value of a key"));
            return None;
        }
        paths.push(path);
    }
    Some(table)
}

fn path_of(keys: &[Key]) -> String {
    keys.iter().map(Key::get).collect::<Vec<_>>().join(".")
}

/// The path and the value of an option.
fn read(option: &str, findings: &mut Diagnostics) -> Option<(Vec<Key>, Value)> {
    let refuse = |findings: &mut Diagnostics, message: &str| {
        // Lines and escapes would be drawn as such.
        let shown: String = option.chars().filter(|character| !character.is_control()).collect();
        let begin = findings.add_option(OPTION, &shown);
        findings.push(Diagnostic::error(begin..begin + shown.len(), message, EXPECTED));
        None
    };
    let Some((key, value)) = option.split_once('=') else {
        return refuse(findings, "an option without a value");
    };
    if option.contains(char::is_control) {
        return refuse(findings, "control character in an option");
    }
    let is_toml = option.parse::<Document<String>>().is_ok();
    // Of what begins like TOML, the mistake is shown.
    let meant_as_toml = value.trim_start().starts_with(['[', '{', '"', '\'']);
    let line = match is_toml || meant_as_toml {
        true => option.to_owned(),
        false => format!("{key}={}", Value::from(value.trim()).to_string().trim()),
    };
    let begin = findings.add_option(OPTION, &line);
    // Blanks move it to where its text stands among the findings' texts.
    let moved = format!("{}{line}", " ".repeat(begin));
    let document = text::parse(&moved, findings)?;
    let mut keys = Vec::new();
    let mut table: &Table = document.as_table();
    loop {
        let mut entries = table.iter();
        let (Some((name, item)), None) = (entries.next(), entries.next()) else { break };
        keys.push(table.key(name)?.clone());
        match item {
            Item::Table(inner) if inner.is_dotted() => table = inner,
            Item::Value(value) => return Some((keys, value.clone())),
            _ => break,
        }
    }
    findings.push(Diagnostic::error(begin..begin + line.len(), "an option that sets no key", EXPECTED));
    None
}

/// `Err` with the number of the key that holds no table.
fn put(table: &mut Table, keys: &[Key], value: Value) -> Result<(), usize> {
    match keys {
        [] => Ok(()),
        // With the key itself, whose place is now the option.
        [last] => {
            table.insert_formatted(last, Item::Value(value));
            Ok(())
        }
        [first, rest @ ..] => {
            if !table.contains_key(first.get()) {
                let mut fresh = Table::new();
                fresh.set_implicit(true);
                table.insert_formatted(first, Item::Table(fresh));
            }
            let inner = match table.get_mut(first.get()) {
                Some(Item::Table(inner)) => put(inner, rest, value),
                Some(Item::Value(Value::InlineTable(inner))) => put_inline(inner, rest, value),
                _ => return Err(0),
            };
            inner.map_err(|depth| depth + 1)
        }
    }
}

fn put_inline(table: &mut InlineTable, keys: &[Key], value: Value) -> Result<(), usize> {
    match keys {
        [] => Ok(()),
        [last] => {
            table.insert_formatted(last, value);
            Ok(())
        }
        [first, rest @ ..] => {
            if !table.contains_key(first.get()) {
                table.insert_formatted(first, Value::InlineTable(InlineTable::new()));
            }
            match table.get_mut(first.get()) {
                Some(Value::InlineTable(inner)) => put_inline(inner, rest, value).map_err(|depth| depth + 1),
                _ => Err(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "name = \"x\"\n[scale]\ndata = 10\n[storage]\nnvme = { medium = \"m\" }\nmany = [{ a = 1 }]\n";

    fn set(options: &[&str]) -> Result<Table, String> {
        let mut findings = Diagnostics::new("study.toml", TEXT);
        let document = text::parse(TEXT, &mut findings).unwrap();
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        overridden(document.as_table(), &options, &mut findings).ok_or_else(|| findings.to_string())
    }

    fn found(table: &Table, path: &[&str]) -> String {
        let item = path[1..].iter().fold(&table[path[0]], |item, key| &item[key]);
        match item.as_value().unwrap() {
            Value::String(text) => format!("text {}", text.value()),
            Value::Integer(number) => format!("integer {}", number.value()),
            Value::Float(number) => format!("float {}", number.value()),
            Value::Array(values) => format!("array of {}", values.len()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_are_replaced_or_added_wherever_they_stand() {
        for (option, path, expected) in [
            ("scale.data=100", &["scale", "data"][..], "integer 100"),
            ("scale.time = 2.5", &["scale", "time"], "float 2.5"),
            ("run.duration=20 s", &["run", "duration"], "text 20 s"),
            ("title=a # b", &["title"], "text a # b"),
            ("storage.nvme.medium=hdd", &["storage", "nvme", "medium"], "text hdd"),
            ("storage.nvme.count=2", &["storage", "nvme", "count"], "integer 2"),
            ("workload.w.threads=[1, 2]", &["workload", "w", "threads"], "array of 2"),
            ("\"odd=key\".x=1", &["odd=key", "x"], "integer 1"),
        ] {
            let table = set(&[option]).unwrap();
            assert_eq!(found(&table, path), expected, "{option}");
            // Everything else stays.
            assert_eq!(found(&table, &["name"]), "text x", "{option}");
        }
    }

    #[test]
    fn override_mistake_points_into_option() {
        for (options, message) in [
            (&["scale.data"][..], "without a value"),
            (&["scale.data=[1, 2"], "not valid TOML"),
            (&["=1"], "not valid TOML"),
            (&["[run]#=1"], "sets no key"),
            (&["a=1\nb=2"], "control character"),
            (&["scale.data=1", "scale.data=2"], "`scale.data` is set twice"),
            (&["name.x=1"], "leads through `name`"),
            (&["storage.nvme.medium.x=1"], "leads through `storage.nvme.medium`"),
            (&["storage.many.a=1"], "leads through `storage.many`"),
        ] {
            let problem = set(options).unwrap_err();
            assert!(problem.contains(message) && problem.contains("--set:1:"), "{options:?}:\n{problem}");
        }
    }

    #[test]
    fn findings_about_a_value_point_into_its_option() {
        let mut findings = Diagnostics::new("study.toml", TEXT);
        let document = text::parse(TEXT, &mut findings).unwrap();
        let options = ["title=t".to_owned(), "scale.data=many".to_owned(), "scale.dat=1".to_owned()];
        let table = overridden(document.as_table(), &options, &mut findings).unwrap();
        let mut root = crate::Section::root("the study", &table);
        let scale = root.take("scale").unwrap();
        let mut scale = scale.section("[scale]", &mut findings).unwrap();
        scale.take("data").unwrap().whole(1..=9, &mut findings);
        scale.finish(&mut findings);
        let places: Vec<_> =
            findings.findings().iter().map(|finding| findings.place(finding.span.start)).collect();
        assert_eq!(places, [("--set", 1, 12), ("--set", 1, 7)]);
        let problem = findings.to_string();
        assert!(
            problem.contains("scale.data=\"many\"") && problem.contains("did you mean `data`?"),
            "{problem}"
        );
    }
}
