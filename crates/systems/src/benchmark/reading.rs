//! The figures of a benchmark, taken from its texts. A missing or incomplete figure is an error that shows the text.

use std::ops::Range;

use regex::{Captures, Match, Regex};
use serde_json::Value;
use underlay_record::{BenchmarkFigure, BenchmarkMark, FigureSample, Histogram};

use super::number::number_at;
use super::{FigurePlan, MarkPlan, MetricReading, path};

/// So much of a text goes into a message.
const SEEN_BYTES: usize = 1500;
/// Progress of more moments than these is no progress.
const MAX_SAMPLES: usize = 100_000;
/// Nothing that is measured is larger, and what slow motion makes of it can be recorded.
const MAX_VALUE: f64 = 1e24;
/// Nobody could tell more of them apart.
const MAX_MARKS: usize = 10_000;
/// The share of each percentile of an HdrHistogram that becomes a figure.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Where figures are looked for: the text of a file, or without a name what the command printed.
pub trait BenchmarkTexts {
    /// # Errors
    /// When the file can't be read.
    fn text(&self, file: Option<&str>) -> Result<String, String>;
}

/// Checks a plan. An error has the key, and the expected value.
///
/// # Errors
/// The first mistake.
pub fn check(plan: &FigurePlan) -> Result<(), (&'static str, String)> {
    let pattern = |key: &'static str, text: &str, groups: &[&str]| {
        let regex = Regex::new(text).map_err(|error| (key, format!("no regular expression: {error}")))?;
        let has_group = |name: &str| regex.capture_names().flatten().any(|group| group == name);
        if groups.iter().all(|name| has_group(name)) || (groups == ["value"] && regex.captures_len() == 2) {
            Ok(())
        } else if groups == ["value"] {
            Err((
                key,
                "expected one group around the number, or one that is called value: (?<value>...)".to_owned(),
            ))
        } else {
            let names: Vec<String> = groups.iter().map(|name| format!("(?<{name}>...)")).collect();
            Err((key, format!("expected the groups {}", names.join(" and "))))
        }
    };
    match &plan.reading {
        MetricReading::Pattern(text) => pattern("pattern", text, &["value"])?,
        MetricReading::Percentiles(text) => pattern("percentiles", text, &["percentile", "value"])?,
        MetricReading::Json(text) => path::check(text).map_err(|problem| ("json", problem))?,
        MetricReading::Csv(_) | MetricReading::Hdr | MetricReading::Progress => {}
    }
    plan.progress.as_deref().map_or(Ok(()), |text| pattern("progress", text, &["value"]))
}

/// The figures of a plan: several where it asks for percentiles.
///
/// # Errors
/// Why there is none, with the text that was seen.
pub fn figures_of(plan: &FigurePlan, texts: &dyn BenchmarkTexts) -> Result<Vec<BenchmarkFigure>, String> {
    let explained = |problem: String| format!("its figure `{}`: {problem}", plan.name);
    let text = texts.text(plan.file.as_deref()).map_err(explained)?;
    let text = match plan.reading {
        // JSON that ends too soon is noticed.
        MetricReading::Json(_) => text,
        _ => whole_lines(text, plan.file.as_deref()),
    };
    let seen = || match (text.trim(), &plan.file) {
        ("", None) => "it printed nothing".to_owned(),
        ("", Some(file)) => format!("{file} is empty"),
        (text, None) => format!("it printed:\n{}", end_of(text)),
        (text, Some(file)) => format!("{file} has:\n{}", end_of(text)),
    };
    let series = plan.progress.as_deref().map_or(Ok(Vec::new()), |pattern| {
        // Progress may be printed where the figure itself is in a file.
        let printed = texts.text(None)?;
        progress(pattern, &printed)
    });
    let series = series.map_err(|problem| explained(format!("{problem}; {}", seen())))?;
    let figure = |suffix: &str, value: f64| BenchmarkFigure {
        name: if suffix.is_empty() { plan.name.clone() } else { format!("{} {suffix}", plan.name) },
        value,
        unit: plan.unit.clone(),
        better: plan.better,
        slow_motion: plan.slow_motion,
        wall_value: value,
        series: Vec::new(),
    };
    let one = |values: Vec<f64>, source: &str| match plan.take.choose(&values) {
        Some(value) => Ok(vec![figure("", value)]),
        None => Err(format!("{source} matches nothing")),
    };
    let found = match &plan.reading {
        MetricReading::Pattern(pattern) => {
            matches(pattern, &text).and_then(|values| one(values, &format!("the pattern `{pattern}`")))
        }
        MetricReading::Json(path) => {
            json(path, &text).and_then(|values| one(values, &format!("the path `{path}`")))
        }
        MetricReading::Csv(column) => {
            csv(column, &text).and_then(|values| one(values, &format!("the column `{column}`")))
        }
        MetricReading::Percentiles(pattern) => percentiles(pattern, &text)
            .map(|all| all.into_iter().map(|(name, value)| figure(&name, value)).collect()),
        MetricReading::Hdr => {
            histogram(&text).map(|all| all.into_iter().map(|(name, value)| figure(name, value)).collect())
        }
        MetricReading::Progress => {
            let values: Vec<f64> = series.iter().map(|sample| sample.value).collect();
            plan.take
                .choose(&values)
                .map(|value| vec![figure("", value)])
                .ok_or_else(|| "no progress".to_owned())
        }
    };
    let mut found = found.map_err(|problem| explained(format!("{problem}; {}", seen())))?;
    let all_values = found.iter().map(|figure| figure.value).chain(series.iter().map(|sample| sample.value));
    if let Some(value) = all_values.into_iter().find(|value| !is_measurement(*value)) {
        return Err(explained(format!(
            "{value:e} is no measurement: expected at most {MAX_VALUE:e}; {}",
            seen()
        )));
    }
    if let Some(first) = found.first_mut() {
        first.series = series;
    }
    Ok(found)
}

/// Checks the pattern of a mark.
///
/// # Errors
/// The expected pattern.
pub fn check_mark(pattern: &str) -> Result<(), String> {
    let has_from = regex(pattern)?.capture_names().flatten().any(|name| name == "from");
    match has_from {
        true => Ok(()),
        false => Err("expected a group (?<from>...) around the second in which it began, and (?<to>...) around that in which it ended".to_owned()),
    }
}

/// The marks of a plan, in the order of the text: none where nothing of the kind went on.
///
/// # Errors
/// When the text can't be read, or a time is none.
pub fn marks_of(plan: &MarkPlan, texts: &dyn BenchmarkTexts) -> Result<Vec<BenchmarkMark>, String> {
    let explained = |problem: String| format!("its mark `{}`: {problem}", plan.name);
    let text = whole_lines(texts.text(plan.file.as_deref()).map_err(explained)?, plan.file.as_deref());
    let mut marks = Vec::new();
    for found in regex(&plan.pattern).map_err(explained)?.captures_iter(&text) {
        if marks.len() == MAX_MARKS {
            return Err(explained(format!(
                "it matches more than {MAX_MARKS} times: mark only events that last"
            )));
        }
        let number = |second: Match<'_>| number_at(&text, second.range(), whole(&found));
        let second = |group: &str| found.name(group).map(number).transpose();
        let Some(from_s) = second("from").map_err(explained)? else { continue };
        let to_s = second("to").map_err(explained)?;
        if from_s < 0.0 || to_s.is_some_and(|to_s| to_s < from_s) {
            let line: String = found[0].chars().take(200).collect();
            return Err(explained(format!(
                "expected times from 0 on, the first before the second, and it is: {line}"
            )));
        }
        marks.push(BenchmarkMark { name: plan.name.clone(), from_s, to_s });
    }
    Ok(marks)
}

/// A file may still be written while it is read: its last line counts once it has its end. A single line without an end
/// is taken as it is.
fn whole_lines(mut text: String, file: Option<&str>) -> String {
    if file.is_some()
        && let Some(end) = text.rfind('\n')
    {
        text.truncate(end + 1);
    }
    text
}

/// The end of a text, from the beginning of a line.
fn end_of(text: &str) -> &str {
    let mut from = text.len().saturating_sub(SEEN_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let tail = &text[from..];
    match tail.find('\n').filter(|_| from > 0) {
        Some(line) => &tail[line + 1..],
        None => tail,
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| format!("no regular expression: {error}"))
}

/// Everything that a pattern matched.
fn whole(found: &Captures<'_>) -> Range<usize> {
    found.get(0).map_or(0..0, |all| all.range())
}

/// The numbers in a pattern's group `value`, or in its first one.
fn matches(pattern: &str, text: &str) -> Result<Vec<f64>, String> {
    regex(pattern)?
        .captures_iter(text)
        .filter_map(|found| found.name("value").or_else(|| found.get(1)).map(|value| (value, whole(&found))))
        .map(|(value, whole)| number_at(text, value.range(), whole))
        .collect()
}

fn progress(pattern: &str, text: &str) -> Result<Vec<FigureSample>, String> {
    let mut samples = Vec::new();
    for found in regex(pattern)?.captures_iter(text) {
        if samples.len() == MAX_SAMPLES {
            return Err(format!("the progress `{pattern}` matches more than {MAX_SAMPLES} times"));
        }
        let Some(value) = found.name("value").or_else(|| found.get(1)) else { continue };
        let t_s = match found.name("t") {
            Some(t) => number_at(text, t.range(), whole(&found))?,
            // A line a second is what most programs print.
            None => (samples.len() + 1) as f64,
        };
        samples.push(FigureSample { t_s, value: number_at(text, value.range(), whole(&found))? });
    }
    match samples.is_empty() {
        true => Err(format!("the progress `{pattern}` matches nothing")),
        false => Ok(samples),
    }
}

/// The value that a pattern of progress matched last.
pub struct LatestValue(Regex);

impl LatestValue {
    /// Nothing for what is no pattern.
    pub fn parse(pattern: &str) -> Option<LatestValue> {
        regex(pattern).ok().map(LatestValue)
    }

    /// In the whole lines of a text that still grows.
    pub fn find_in(&self, text: &str) -> Option<f64> {
        let text = &text[..text.rfind('\n')? + 1];
        let found = self.0.captures_iter(text).last()?;
        let value = found.name("value").or_else(|| found.get(1))?;
        number_at(text, value.range(), whole(&found)).ok().filter(|value| value.abs() <= MAX_VALUE)
    }
}

fn percentiles(pattern: &str, text: &str) -> Result<Vec<(String, f64)>, String> {
    let mut all: Vec<(String, f64)> = Vec::new();
    for found in regex(pattern)?.captures_iter(text) {
        let (Some(percentile), Some(value)) = (found.name("percentile"), found.name("value")) else {
            continue;
        };
        let percentile = number_at(text, percentile.range(), whole(&found))?;
        if !(0.0..=100.0).contains(&percentile) {
            return Err(format!("{percentile} is no percentile"));
        }
        let (name, value) = (format!("p{percentile}"), number_at(text, value.range(), whole(&found))?);
        match all.iter_mut().find(|(existing, _)| *existing == name) {
            Some((_, old_value)) => *old_value = value,
            None => all.push((name, value)),
        }
    }
    match all.is_empty() {
        true => Err(format!("the percentiles `{pattern}` match nothing")),
        false => Ok(all),
    }
}

/// The numbers at a path of the first JSON in a text.
fn json(path: &str, text: &str) -> Result<Vec<f64>, String> {
    let root = first_json(text)?;
    let number = |value: &Value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|value: &f64| value.is_finite()),
        _ => None,
    };
    let no_number = |value: &Value| {
        let text: String = value.to_string().chars().take(100).collect();
        format!("the value at `{path}` is not a number: {text}")
    };
    let values = path::values_at(&root, path)?;
    values.into_iter().map(|value| number(value).ok_or_else(|| no_number(value))).collect()
}

/// The first JSON in a text, which begins a line.
pub(super) fn first_json(text: &str) -> Result<Value, String> {
    let begins = |line: &str| line.starts_with('{') || line.starts_with('[');
    let mut start = 0;
    let mut problem = "there is no JSON".to_owned();
    for line in text.split_inclusive('\n') {
        if begins(line) {
            match serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>().next() {
                Some(Ok(root)) => return Ok(root),
                Some(Err(error)) => problem = format!("its JSON ends too soon, or is broken: {error}"),
                None => {}
            }
        }
        start += line.len();
    }
    Err(problem)
}

/// Whether a value can be one.
pub(super) fn is_measurement(value: f64) -> bool {
    value.abs() <= MAX_VALUE
}

/// The numbers of a column. Fields in quotes may hold commas.
fn csv(column: &str, text: &str) -> Result<Vec<f64>, String> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    // Programs' output before the table is skipped.
    let index = lines
        .by_ref()
        .find_map(|line| fields(line).iter().position(|name| name.trim() == column))
        .ok_or_else(|| format!("no line has a column `{column}`"))?;
    lines
        .map(|line| {
            let all = fields(line);
            let field = all.get(index).ok_or_else(|| format!("a line has no column `{column}`: {line}"))?;
            let value = field.trim().parse::<f64>().ok().filter(|value| value.is_finite());
            value.ok_or_else(|| format!("`{}` in the column `{column}` is no number", field.escape_debug()))
        })
        .collect()
}

fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                letters.next();
                field.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => all.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    all.push(field);
    all
}

/// Mean and percentiles of all intervals of an HdrHistogram log, in the unit of its values.
fn histogram(text: &str) -> Result<Vec<(&'static str, f64)>, String> {
    let mut all = Histogram::default();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line.starts_with('"') {
            continue;
        }
        let encoded = line.rsplit(',').next().unwrap_or_default();
        let interval = Histogram::decode(encoded)
            .map_err(|error| format!("a line of the HdrHistogram log can't be read: {error}"))?;
        all.merge(&interval);
    }
    if all.count() == 0 {
        return Err("the HdrHistogram log has no value".to_owned());
    }
    // The type takes the values for nanoseconds in any unit.
    let raw = |us: f64| us * 1e3;
    let mut figures = vec![("mean", raw(all.mean_us()))];
    figures.extend(QUANTILES.map(|(name, quantile)| (name, raw(all.quantile_us(quantile)))));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use underlay_record::{BetterDirection, MetricDilation};

    use super::super::ValueChoice;
    use super::*;

    struct Printed(&'static str);

    impl BenchmarkTexts for Printed {
        fn text(&self, file: Option<&str>) -> Result<String, String> {
            match file {
                None => Ok(self.0.to_owned()),
                Some(file) => Err(format!("can't read {file}: it does not exist")),
            }
        }
    }

    fn plan(reading: MetricReading) -> FigurePlan {
        FigurePlan {
            name: "f".to_owned(),
            unit: "ms".to_owned(),
            better: BetterDirection::Lower,
            slow_motion: MetricDilation::Time,
            file: None,
            reading,
            progress: None,
            take: ValueChoice::Last,
        }
    }

    #[test]
    fn last_line_counts_once_complete() {
        let file = Some("server.log");
        assert_eq!(whole_lines("took 7 s\ntook 12".to_owned(), file), "took 7 s\n");
        assert_eq!(whole_lines("12".to_owned(), file), "12");
        assert_eq!(whole_lines("took 7 s\ntook 12".to_owned(), None), "took 7 s\ntook 12");
    }

    fn read(reading: MetricReading, text: &'static str) -> Result<Vec<(String, f64)>, String> {
        let found = figures_of(&plan(reading), &Printed(text))?;
        Ok(found.into_iter().map(|figure| (figure.name, figure.value)).collect())
    }

    #[test]
    fn pattern_takes_only_last_number() {
        let pattern = |text: &str| MetricReading::Pattern(text.to_owned());
        assert_eq!(read(pattern("x=([0-9.]+)"), "x=1\nx=2.5\n"), Ok(vec![("f".to_owned(), 2.5)]));
        let message = read(pattern("y=([0-9.]+)"), "x=1\n").unwrap_err();
        assert!(message.contains("matches nothing") && message.contains("x=1"), "{message}");
        let half = read(pattern("x=([0-9]+)"), "x=12.7\n").unwrap_err();
        assert!(half.contains("only a part of a number") && half.contains("x=12.7"), "{half}");
        assert!(read(pattern("x=(.*)"), "x=\n").unwrap_err().contains("no number"));
        assert!(read(pattern("x=(.*)"), "").unwrap_err().contains("it printed nothing"));
        assert!(read(pattern("x=(.*)"), "x=1e308").unwrap_err().contains("no measurement"));
    }

    #[test]
    fn json_and_csv_are_read_between_other_lines() {
        let json = |text: &str| MetricReading::Json(text.to_owned());
        let text = "fio: a note\n{\n \"a\": [{\"b\": 1}, {\"b\": \"2.5\"}]\n}\nbye\n";
        assert_eq!(read(json("a[1].b"), text), Ok(vec![("f".to_owned(), 2.5)]));
        assert!(read(json("a[2].b"), text).unwrap_err().contains("matches nothing"));
        assert!(read(json("a"), text).unwrap_err().contains("is not a number"));
        assert!(read(json("a"), "{\"a\": 1").unwrap_err().contains("ends too soon"));
        assert!(read(json("a"), "a = 1").unwrap_err().contains("no JSON"));
        let csv = |text: &str| MetricReading::Csv(text.to_owned());
        let text = "# made today\ntime,\"ops, all\",p99\n1,10,0.5\n2,\"30\",0.75\n";
        assert_eq!(read(csv("ops, all"), text), Ok(vec![("f".to_owned(), 30.0)]));
        assert!(read(csv("ops"), text).unwrap_err().contains("no line has a column"));
        assert!(read(csv("p99"), "p99\n1\n\n2x\n").unwrap_err().contains("no number"));
        assert!(read(csv("b"), "a,b\n1\n").unwrap_err().contains("has no column"));
    }

    #[test]
    fn percentiles_and_histograms_become_a_figure_each() {
        let lines = MetricReading::Percentiles(r"(?<percentile>[0-9.]+)th: (?<value>[0-9.]+) ms".to_owned());
        let found = read(lines.clone(), "50th: 1.5 ms\n99.9th: 8 ms\n").unwrap();
        assert_eq!(found, [("f p50".to_owned(), 1.5), ("f p99.9".to_owned(), 8.0)]);
        assert!(read(lines, "none\n").unwrap_err().contains("match nothing"));
        let mut one = Histogram::default();
        (1..=1000).for_each(|value| one.record_ns(value));
        let log = format!(
            "#[StartTime: 1]\n\"StartTimestamp\",\"x\"\n0.0,1.0,9,{0}\nTag=A,1.0,1.0,9,{0}\n",
            one.encode()
        );
        let found = read(MetricReading::Hdr, log.leak()).unwrap();
        let value_of = |name: &str| found.iter().find(|(figure_name, _)| figure_name == name).unwrap().1;
        assert!(
            (value_of("f p50") - 500.0).abs() <= 1.0 && (value_of("f max") - 1000.0).abs() <= 1.0,
            "{found:?}"
        );
        assert!(read(MetricReading::Hdr, "0.0,1.0,9,HISTgarbage\n").unwrap_err().contains("can't be read"));
        assert!(read(MetricReading::Hdr, "# nothing\n").unwrap_err().contains("no value"));
    }

    #[test]
    fn marks_are_what_went_on_meanwhile() {
        let pattern = r"(?m)^checkpoint from (?<from>[0-9.]+) s(?: to (?<to>[0-9.]+) s)?$";
        let plan = MarkPlan { name: "checkpoint".into(), file: None, pattern: pattern.into() };
        assert_eq!(check_mark(pattern), Ok(()));
        let found =
            marks_of(&plan, &Printed("checkpoint from 1.5 s to 3 s\nelse\ncheckpoint from 9 s\n")).unwrap();
        let times: Vec<(f64, Option<f64>)> = found.iter().map(|mark| (mark.from_s, mark.to_s)).collect();
        assert_eq!(times, [(1.5, Some(3.0)), (9.0, None)]);
        assert!(marks_of(&plan, &Printed("no checkpoint")).unwrap().is_empty());
        let problem = marks_of(&plan, &Printed("checkpoint from 3 s to 1 s")).unwrap_err();
        assert!(problem.contains("mark `checkpoint`") && problem.contains("from 3 s to 1 s"), "{problem}");
        for wrong in ["(", "checkpoint (?<to>[0-9]+)", "checkpoint ([0-9]+)"] {
            assert!(check_mark(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn progress_becomes_a_series() {
        let progress = Some(r"progress: (?<t>[0-9.]+) s, (?<value>[0-9.]+) tps".to_owned());
        let plan = FigurePlan { progress, take: ValueChoice::Mean, ..plan(MetricReading::Progress) };
        let printed = Printed("progress: 1.0 s, 10 tps\nprogress: 2.0 s, 30.5 tps\n");
        let found = figures_of(&plan, &printed).unwrap().remove(0);
        assert_eq!((found.value, found.series[1]), (20.25, FigureSample { t_s: 2.0, value: 30.5 }));
        assert!(figures_of(&plan, &Printed("done\n")).unwrap_err().contains("matches nothing"));
        let from_file = FigurePlan { file: Some("out.json".to_owned()), ..plan };
        assert!(figures_of(&from_file, &printed).unwrap_err().contains("can't read out.json"));
    }

    #[test]
    fn wrong_plan_is_found_before_running() {
        let wrong = |reading| check(&plan(reading)).unwrap_err();
        assert_eq!(wrong(MetricReading::Pattern("(".to_owned())).0, "pattern");
        assert!(wrong(MetricReading::Pattern("x".to_owned())).1.contains("one group"));
        assert!(wrong(MetricReading::Percentiles("(?<value>x)".to_owned())).1.contains("(?<percentile>...)"));
        assert_eq!(wrong(MetricReading::Json("a..b".to_owned())).0, "json");
        assert_eq!(check(&plan(MetricReading::Pattern("a (?<value>.) (b)".to_owned()))), Ok(()));
    }
}
