//! Metrics in Prometheus' text format, version 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. A program has a table of [`MetricFamily`]s, and
//! [`MetricText`] writes their samples.

pub mod rules;

use std::fmt::{self, Write as _};

/// What Prometheus does with a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Summary,
}

impl fmt::Display for MetricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Summary => "summary",
        })
    }
}

/// A row of a program's table of metrics.
#[derive(Debug)]
pub struct MetricFamily {
    /// Its unit goes last, but for the `_total` of counters.
    pub name: &'static str,
    pub kind: MetricKind,
    /// The names of the labels that each sample has. Those of the format itself, `quantile` and `le`, are not among
    /// them.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl MetricFamily {
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricFamily {
        MetricFamily { name, kind: MetricKind::Counter, labels, help }
    }

    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricFamily {
        MetricFamily { name, kind: MetricKind::Gauge, labels, help }
    }

    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricFamily {
        MetricFamily { name, kind: MetricKind::Histogram, labels, help }
    }

    pub const fn summary(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> MetricFamily {
        MetricFamily { name, kind: MetricKind::Summary, labels, help }
    }

    /// The base unit that the name ends in; `None` for what is counted.
    pub fn unit(&self) -> Option<&'static str> {
        let stem = self.name.strip_suffix("_total").unwrap_or(self.name);
        ["seconds", "bytes"].into_iter().find(|unit| stem.ends_with(&format!("_{unit}")))
    }
}

/// The text of an answer. A family comes where it was first named, with all of its samples.
#[derive(Default)]
pub struct MetricText {
    families: Vec<(&'static MetricFamily, String)>,
}

impl MetricText {
    /// Has the text name a family, even if it gets no sample.
    pub fn declare(&mut self, family: &'static MetricFamily) {
        self.lines_of(family);
    }

    fn lines_of(&mut self, family: &'static MetricFamily) -> &mut String {
        let place = match self.families.iter().position(|(other, _)| other.name == family.name) {
            Some(place) => place,
            None => {
                self.families.push((family, String::new()));
                self.families.len() - 1
            }
        };
        &mut self.families[place].1
    }

    /// Adds a sample. `values` are those of the family's labels, in its order.
    pub fn add(&mut self, family: &'static MetricFamily, values: &[&str], value: f64) {
        self.write(family, "", values, None, value);
    }

    /// Adds a quantile to a summary: `0.99`.
    pub fn add_quantile(
        &mut self,
        family: &'static MetricFamily,
        values: &[&str],
        quantile: &str,
        value: f64,
    ) {
        self.write(family, "", values, Some(("quantile", quantile)), value);
    }

    /// Adds a histogram. `buckets` has the upper bounds, and how many values are no larger.
    pub fn add_histogram(
        &mut self,
        family: &'static MetricFamily,
        values: &[&str],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) {
        for (bound, within) in buckets {
            self.write(family, "_bucket", values, Some(("le", &bound.to_string())), within as f64);
        }
        self.write(family, "_bucket", values, Some(("le", "+Inf")), count as f64);
        self.write(family, "_sum", values, None, sum);
        self.write(family, "_count", values, None, count as f64);
    }

    fn write(
        &mut self,
        family: &'static MetricFamily,
        suffix: &str,
        values: &[&str],
        of_format: Option<(&str, &str)>,
        value: f64,
    ) {
        debug_assert_eq!(family.labels.len(), values.len(), "labels of {}", family.name);
        let labels = family.labels.iter().copied().zip(values.iter().copied()).chain(of_format);
        let labels: Vec<String> = labels.map(|(name, text)| format!("{name}=\"{}\"", escape(text))).collect();
        let lines = self.lines_of(family);
        // Writing to a string can't fail.
        let _ = match labels.is_empty() {
            true => writeln!(lines, "{}{suffix} {value}", family.name),
            false => writeln!(lines, "{}{suffix}{{{}}} {value}", family.name, labels.join(",")),
        };
    }
}

impl fmt::Display for MetricText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (MetricFamily { name, kind, help, .. }, lines) in &self.families {
            write!(f, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}")?;
        }
        Ok(())
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_declared_once_and_labels_escaped() {
        static OF_RUN: MetricFamily = MetricFamily::gauge("underlay_x", &["run"], "Help.");
        static PLAIN: MetricFamily = MetricFamily::counter("underlay_y_total", &[], "Other.");
        static EMPTY: MetricFamily = MetricFamily::gauge("underlay_z", &[], "None.");
        let mut metrics = MetricText::default();
        metrics.add(&OF_RUN, &["a\"b\\c\nd"], 1.0);
        metrics.declare(&EMPTY);
        metrics.add(&PLAIN, &[], 2.5);
        metrics.add(&OF_RUN, &["e"], 3.0);
        assert_eq!(
            metrics.to_string(),
            "# HELP underlay_x Help.\n# TYPE underlay_x gauge\n\
             underlay_x{run=\"a\\\"b\\\\c\\nd\"} 1\nunderlay_x{run=\"e\"} 3\n\
             # HELP underlay_z None.\n# TYPE underlay_z gauge\n\
             # HELP underlay_y_total Other.\n# TYPE underlay_y_total counter\nunderlay_y_total 2.5\n"
        );
    }

    #[test]
    fn histogram_and_summary_have_labels_of_the_format() {
        static TIMES: MetricFamily = MetricFamily::histogram("underlay_x_seconds", &["op"], "Help.");
        static SHARES: MetricFamily = MetricFamily::summary("underlay_y_seconds", &[], "Other.");
        let mut metrics = MetricText::default();
        metrics.add_histogram(&TIMES, &["Get"], [(0.001, 1), (30.0, 2)], 31.5, 3);
        metrics.add_quantile(&SHARES, &[], "0.99", 0.25);
        let text = metrics.to_string();
        assert_eq!(
            text,
            "# HELP underlay_x_seconds Help.\n# TYPE underlay_x_seconds histogram\n\
             underlay_x_seconds_bucket{op=\"Get\",le=\"0.001\"} 1\nunderlay_x_seconds_bucket{op=\"Get\",le=\"30\"} 2\n\
             underlay_x_seconds_bucket{op=\"Get\",le=\"+Inf\"} 3\nunderlay_x_seconds_sum{op=\"Get\"} 31.5\n\
             underlay_x_seconds_count{op=\"Get\"} 3\n\
             # HELP underlay_y_seconds Other.\n# TYPE underlay_y_seconds summary\n\
             underlay_y_seconds{quantile=\"0.99\"} 0.25\n"
        );
        assert_eq!(rules::broken(&text), Vec::<String>::new());
        assert_eq!((TIMES.unit(), SHARES.unit()), (Some("seconds"), Some("seconds")));
    }
}
