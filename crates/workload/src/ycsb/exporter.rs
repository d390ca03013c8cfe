//! The printed form of a measurement, in its three formats.

use std::fmt::Write as _;

use super::number::double;
use super::options::ExporterFormat;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OutputValue {
    Whole(u64),
    Signed(i64),
    Real(f64),
}

/// One line of the output: `[metric], measurement, value`.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputEntry {
    pub metric: String,
    pub measurement: String,
    pub value: OutputValue,
}

/// The entries in the requested format.
pub fn export(entries: &[OutputEntry], exporter: ExporterFormat) -> String {
    match exporter {
        ExporterFormat::Text => text(entries),
        // Java's pretty printer puts objects of an array on one line with their brackets.
        ExporterFormat::Json => entries.iter().map(object).collect::<Vec<_>>().join(" "),
        ExporterFormat::JsonArray => {
            let objects: Vec<String> = entries.iter().map(object).collect();
            if objects.is_empty() { "[ ]".to_owned() } else { format!("[ {} ]", objects.join(", ")) }
        }
    }
}

fn text(entries: &[OutputEntry]) -> String {
    let mut text = String::new();
    for OutputEntry { metric, measurement, value } in entries {
        writeln!(text, "[{metric}], {measurement}, {}", number(*value)).expect("memory can be written to");
    }
    text
}

fn number(value: OutputValue) -> String {
    match value {
        OutputValue::Whole(whole) => whole.to_string(),
        OutputValue::Signed(whole) => whole.to_string(),
        OutputValue::Real(real) => double(real),
    }
}

fn object(entry: &OutputEntry) -> String {
    // Numbers that JSON can't express become texts, as in Jackson.
    let value = match entry.value {
        OutputValue::Real(real) if !real.is_finite() => quoted(&double(real)),
        value => number(value),
    };
    format!(
        "{{\n  \"metric\" : {},\n  \"measurement\" : {},\n  \"value\" : {value}\n}}",
        quoted(&entry.metric),
        quoted(&entry.measurement)
    )
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            control if control < ' ' => {
                write!(quoted, "\\u{:04x}", u32::from(control)).expect("memory can be written to");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<OutputEntry> {
        let entry = |metric: &str, measurement: &str, value| OutputEntry {
            metric: metric.to_owned(),
            measurement: measurement.to_owned(),
            value,
        };
        vec![
            entry("OVERALL", "RunTime(ms)", OutputValue::Whole(2500)),
            entry("READ", "AverageLatency(us)", OutputValue::Real(12_345_678.9)),
            entry("A \"name\"", "back\\slash\u{1}", OutputValue::Real(f64::NAN)),
        ]
    }

    #[test]
    fn text_is_a_line_an_entry() {
        let expected = "[OVERALL], RunTime(ms), 2500\n\
            [READ], AverageLatency(us), 1.23456789E7\n\
            [A \"name\"], back\\slash\u{1}, NaN\n";
        assert_eq!(export(&entries(), ExporterFormat::Text), expected);
    }

    #[test]
    fn json_has_the_same_figures() {
        let array: serde_json::Value =
            serde_json::from_str(&export(&entries(), ExporterFormat::JsonArray)).unwrap();
        let expected = serde_json::json!([
            { "metric": "OVERALL", "measurement": "RunTime(ms)", "value": 2500 },
            { "metric": "READ", "measurement": "AverageLatency(us)", "value": 12_345_678.9 },
            { "metric": "A \"name\"", "measurement": "back\\slash\u{1}", "value": "NaN" },
        ]);
        assert_eq!(array, expected);
        let text = export(&entries(), ExporterFormat::Json);
        let objects: Vec<serde_json::Value> =
            serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(serde_json::Value::Array(objects), expected);
        assert_eq!(export(&[], ExporterFormat::JsonArray), "[ ]");
    }
}
