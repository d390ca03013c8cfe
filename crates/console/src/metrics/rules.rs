//! The rules of `promtool check metrics`, and those of our own names.

use std::collections::{BTreeMap, BTreeSet};

/// Types and suffixes of the format: `promtool` refuses them within a name.
const RESERVED_WORDS: [&str; 9] =
    ["gauge", "counter", "histogram", "summary", "untyped", "bucket", "count", "sum", "info"];
/// Units that are abbreviated or not the base unit of what they measure, and that unit.
const OTHER_UNITS: [(&[&str], &str); 2] = [
    (
        &[
            "s",
            "sec",
            "ms",
            "us",
            "ns",
            "m",
            "min",
            "h",
            "hr",
            "d",
            "milliseconds",
            "microseconds",
            "nanoseconds",
            "minutes",
            "hours",
            "days",
            "weeks",
        ],
        "seconds",
    ),
    (
        &["b", "kb", "mb", "gb", "tb", "pb", "kilobytes", "megabytes", "gigabytes", "kibibytes", "mebibytes"],
        "bytes",
    ),
];

struct MetricSample {
    name: String,
    labels: BTreeMap<String, String>,
}

/// Every rule that a name breaks.
pub(crate) fn name_problems(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in name.split('_') {
        if RESERVED_WORDS.contains(&word) {
            found.push(format!("{name}: `{word}` is a word of the format's own"));
        }
        if let Some((_, base)) = OTHER_UNITS.iter().find(|(units, _)| units.contains(&word)) {
            found.push(format!("{name}: `{word}` is no base unit: expected {base}"));
        }
    }
    found
}

/// Every rule that a text breaks.
pub(crate) fn broken(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut kinds, mut helps) = (BTreeMap::new(), BTreeSet::new());
    let mut series = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            if help.is_empty() || !helps.insert(name.to_owned()) {
                found.push(format!("{name}: no help, or two"));
            }
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            if kinds.insert(name.to_owned(), kind.to_owned()).is_some() {
                found.push(format!("{name}: told twice"));
            }
            // OpenMetrics asks for it, and here it goes both ways.
            if (kind == "counter") != name.ends_with("_total") {
                found.push(format!("{name}: counters end with _total, and nothing else does"));
            }
            continue;
        }
        let Some(sample) = sample(line) else {
            found.push(format!("no sample: {line}"));
            continue;
        };
        let name = &sample.name;
        found.extend(name_problems(name));
        if !name.starts_with("underlay_") || name.contains(|c: char| !c.is_ascii_lowercase() && c != '_') {
            found.push(format!("{name}: not a name of ours"));
        }
        match kinds.get(name).map(String::as_str) {
            // The type stands before its samples, so it would be known by now.
            None => found.push(format!("{name}: no type, or not listed with its family")),
            Some(kind) => {
                let quantile = sample.labels.get("quantile").map(|text| text.parse::<f64>());
                let is_right = match (kind, quantile) {
                    ("summary", Some(Ok(share))) => (0.0..=1.0).contains(&share),
                    ("summary", _) => false,
                    (_, quantile) => quantile.is_none(),
                };
                if !is_right {
                    found.push(format!("{line}: quantiles are numbers, of summaries"));
                }
            }
        }
        if sample
            .labels
            .get("state")
            .is_some_and(|state| state.contains(|c: char| !c.is_ascii_lowercase() && c != '_'))
        {
            found.push(format!("{line}: a state is one word"));
        }
        if !series.insert((name.clone(), sample.labels)) {
            found.push(format!("{line}: told twice"));
        }
    }
    found
}

/// `name{label="value",…} number`, with `\\`, `\"` and `\n` in values.
fn sample(line: &str) -> Option<MetricSample> {
    let (name, rest) = line.split_once('{')?;
    let mut labels = BTreeMap::new();
    let mut letters = rest.chars();
    loop {
        let key: String = letters.by_ref().take_while(|c| !"=}".contains(*c)).collect();
        if key.is_empty() {
            break;
        }
        (letters.next()? == '"').then_some(())?;
        let mut value = String::new();
        loop {
            match letters.next()? {
                '"' => break,
                '\\' => value.push(match letters.next()? {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
        if labels.insert(key, value).is_some() {
            return None;
        }
        if letters.next()? == '}' {
            break;
        }
    }
    let number: String = letters.collect();
    number.strip_prefix(' ')?.parse::<f64>().ok()?;
    Some(MetricSample { name: name.to_owned(), labels })
}
