//! What a benchmark printed, in every way of taking figures from it: figures are whole numbers that are there, or a message says why not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_record::{BetterDirection, MetricDilation};
use underlay_systems::benchmark::{
    BenchmarkTexts, FigurePlan, LatestValue, MarkPlan, MetricReading, ValueChoice, check, check_mark,
    figures_of, marks_of,
};

struct Printed<'a>(&'a str);

impl BenchmarkTexts for Printed<'_> {
    fn text(&self, _file: Option<&str>) -> Result<String, String> {
        Ok(self.0.to_owned())
    }
}

fuzz_target!(|input: &str| {
    // The first line is what the study says.
    let (said, text) = input.split_once('\n').unwrap_or((input, ""));
    let readings = [
        MetricReading::Pattern(said.to_owned()),
        MetricReading::Pattern("([-+0-9.eE]+)".to_owned()),
        MetricReading::Json(said.to_owned()),
        MetricReading::Csv(said.to_owned()),
        MetricReading::Percentiles("p(?<percentile>[0-9.]+) (?<value>[0-9.]+)".to_owned()),
        MetricReading::Hdr,
        MetricReading::Progress,
    ];
    for pattern in [said, "from (?<from>[-+0-9.eE]+) s(?: to (?<to>[-+0-9.eE]+) s)?"] {
        let plan = MarkPlan { name: "fuzz".to_owned(), file: None, pattern: pattern.to_owned() };
        if check_mark(pattern).is_err() {
            continue;
        }
        match marks_of(&plan, &Printed(text)) {
            Ok(marks) => assert!(
                marks.iter().all(|one| one.from_s >= 0.0 && one.to_s.is_none_or(|to_s| to_s >= one.from_s))
            ),
            Err(problem) => assert!(problem.starts_with("its mark `fuzz`: ")),
        }
    }
    for pattern in [said, "(?<value>[-+0-9.eE]+) tps"] {
        let latest = LatestValue::parse(pattern).and_then(|latest| latest.find_in(text));
        assert!(latest.is_none_or(f64::is_finite));
    }
    for reading in readings {
        let plan = FigurePlan {
            name: "fuzz".to_owned(),
            unit: "ms".to_owned(),
            better: BetterDirection::Lower,
            slow_motion: MetricDilation::Time,
            file: None,
            progress: matches!(reading, MetricReading::Progress)
                .then(|| "(?<t>[0-9.]+) s (?<value>[0-9.]+)".to_owned()),
            reading,
            take: ValueChoice::Mean,
        };
        if check(&plan).is_err() {
            continue;
        }
        match figures_of(&plan, &Printed(text)) {
            Ok(figures) => assert!(!figures.is_empty() && figures.iter().all(|one| !one.value.is_nan())),
            Err(problem) => assert!(problem.starts_with("its figure `fuzz`: ")),
        }
    }
});
