//! What `promtool check metrics` holds metrics to, and what our own names are held to: for the tests of every program
//! that has metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::{MetricFamily, MetricKind};

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
pub fn name_problems(name: &str) -> Vec<String> {
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

/// Every rule that a table of metrics breaks.
pub fn table_problems<'a>(table: impl IntoIterator<Item = &'a MetricFamily>) -> Vec<String> {
    let (mut found, mut names) = (Vec::new(), BTreeSet::new());
    for MetricFamily { name, kind, labels, help } in table {
        found.extend(name_problems(name));
        if !is_our_name(name) {
            found.push(format!("{name}: not a name of ours"));
        }
        if !names.insert(*name) {
            found.push(format!("{name}: two rows"));
        }
        if (*kind == MetricKind::Counter) != name.ends_with("_total") {
            found.push(format!("{name}: counters end with _total, and nothing else does"));
        }
        if !help.ends_with('.') {
            found.push(format!("{name}: its help is no sentence"));
        }
        if labels.iter().any(|label| ["le", "quantile", ""].contains(label) || !is_word(label)) {
            found.push(format!("{name}: its labels are not words of its own"));
        }
    }
    found
}

fn is_word(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

fn is_our_name(name: &str) -> bool {
    name.starts_with("underlay_") && is_word(name)
}

/// Every rule that a text breaks.
pub fn broken(text: &str) -> Vec<String> {
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
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|suffix| sample.name.strip_suffix(suffix))
            .find(|stem| kinds.get(*stem).is_some_and(|kind| kind == "histogram"));
        let name = of_histogram.unwrap_or(&sample.name);
        found.extend(name_problems(name));
        if !is_our_name(name) {
            found.push(format!("{name}: not a name of ours"));
        }
        let has_bound = sample.labels.contains_key("le");
        if has_bound != (of_histogram.is_some() && sample.name.ends_with("_bucket")) {
            found.push(format!("{line}: bounds are of the buckets of histograms"));
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
        if sample.labels.get("state").is_some_and(|state| !is_word(state)) {
            found.push(format!("{line}: a state is one word"));
        }
        if !series.insert((sample.name.clone(), sample.labels)) {
            found.push(format!("{line}: told twice"));
        }
    }
    found
}

/// `name number` or `name{label="value",…} number`, with `\\`, `\"` and `\n` in values.
fn sample(line: &str) -> Option<MetricSample> {
    let mut labels = BTreeMap::new();
    let Some((name, rest)) = line.split_once('{') else {
        let (name, number) = line.split_once(' ')?;
        number.parse::<f64>().ok()?;
        return Some(MetricSample { name: name.to_owned(), labels });
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_match_promtool() {
        assert_eq!(name_problems("underlay_cell_gauge").len(), 1);
        assert_eq!(name_problems("underlay_cell_latency_us").len(), 1);
        let quantile = "# HELP underlay_x_seconds H.\n# TYPE underlay_x_seconds gauge\n\
                        underlay_x_seconds{quantile=\"0.5\"} 1\n";
        assert_eq!(broken(quantile).len(), 1, "{:?}", broken(quantile));
        let mean = "# HELP underlay_x_seconds H.\n# TYPE underlay_x_seconds summary\n\
                    underlay_x_seconds{quantile=\"mean\"} 1\n";
        assert_eq!(broken(mean).len(), 1, "{:?}", broken(mean));
        let counter = "# HELP underlay_x H.\n# TYPE underlay_x counter\nunderlay_x{} 1\n";
        assert_eq!(broken(counter).len(), 1, "{:?}", broken(counter));
        assert_eq!(broken("underlay_x{} 1\n").len(), 1);
        let twice =
            "# HELP underlay_x H.\n# TYPE underlay_x gauge\nunderlay_x{a=\"b\"} 1\nunderlay_x{a=\"b\"} 2\n";
        assert_eq!(broken(twice).len(), 1, "{:?}", broken(twice));
        let bound = "# HELP underlay_x H.\n# TYPE underlay_x gauge\nunderlay_x{le=\"1\"} 1\n";
        assert_eq!(broken(bound).len(), 1, "{:?}", broken(bound));
    }

    #[test]
    fn broken_row_is_named() {
        let good = MetricFamily::gauge("underlay_x_seconds", &["run"], "Help.");
        assert_eq!(table_problems([&good]), Vec::<String>::new());
        assert_eq!(table_problems([&good, &good]).len(), 1);
        for bad in [
            MetricFamily::counter("underlay_x", &[], "Help."),
            MetricFamily::gauge("underlay_x_total", &[], "Help."),
            MetricFamily::gauge("x", &[], "Help."),
            MetricFamily::gauge("underlay_x", &[], "Help"),
            MetricFamily::gauge("underlay_x", &["le"], "Help."),
            MetricFamily::summary("underlay_x_ms", &[], "Help."),
        ] {
            assert_eq!(table_problems([&bad]).len(), 1, "{bad:?}");
        }
    }
}
