//! Published results, bundled with the program: the figures that a study prints beside its own.
//!
//! Each paper is one TOML file of facts under `studies/references/`. What this module reads of it:
//! `title` and `source`; every `[[table]]`, which becomes figures; every `[[claim]]`. Other sections
//! describe the paper's setup, for people.

use std::sync::LazyLock;

use serde::Deserialize;
use underlay_record::{Claim, ClaimCheck, Expectation, Figure, ReferenceTable};

const FILES: [(&str, &str); 5] = [
    ("accumulo-flash", include_str!("../../../studies/references/accumulo-flash.toml")),
    ("cassandra-nvme-tcp", include_str!("../../../studies/references/cassandra-nvme-tcp.toml")),
    ("mapreduce-ssd", include_str!("../../../studies/references/mapreduce-ssd.toml")),
    ("oracle-nosql-flash", include_str!("../../../studies/references/oracle-nosql-flash.toml")),
    ("spark-object-store", include_str!("../../../studies/references/spark-object-store.toml")),
];

/// One published study.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// As a study's `[reference]` names it.
    pub paper: String,
    pub title: String,
    /// Who published it, and as what.
    pub source: String,
    pub figures: Vec<Figure>,
    pub claims: Vec<Claim>,
}

/// Why a reference file could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("{paper}: {problem}")]
    Syntax { paper: String, problem: String },
    #[error("{paper}: claim '{claim}': {problem}")]
    Claim { paper: String, claim: String, problem: String },
    #[error("{paper}: table '{table}', row {row}: {problem}")]
    Row { paper: String, table: String, row: usize, problem: String },
}

/// The paper of this name, if it is one of the bundled ones.
pub fn find(paper: &str) -> Option<&'static Reference> {
    bundled().iter().find(|reference| reference.paper == paper)
}

/// The bundled papers' names, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    bundled().iter().map(|reference| reference.paper.as_str()).collect()
}

fn bundled() -> &'static [Reference] {
    static BUNDLED: LazyLock<Vec<Reference>> = LazyLock::new(|| {
        let read = FILES.iter().map(|(paper, text)| Reference::parse(paper, text));
        read.collect::<Result<_, _>>().expect("the files are part of the program, and a test reads them")
    });
    &BUNDLED
}

impl Reference {
    /// Reads a reference file.
    ///
    /// A `[[table]]` has `columns` and `rows`. The columns `mix`, `storage`, `distribution`, `data` and
    /// `threads` say what a row is about; a table in which one of them is the same throughout may have it
    /// as a key instead. Every other column holds figures, and `across` tells what its name is: a `metric`
    /// (the default), a `data` size or a `mix`.
    ///
    /// A `[[claim]]` says `what` is claimed to be of what `value`. Its `[[claim.check]]`s say how a run is held against it:
    /// the `metric` on `storage` `against` another storage shall be the `same`, `more` or `less`, at offered rates of a
    /// server of `rate_from` and more, or of less than `rate_below`, or where nothing holds back (`unthrottled = true`).
    ///
    /// # Errors
    /// The TOML's own error, or the table and row (from 1) that does not fit its columns.
    pub fn parse(paper: &str, text: &str) -> Result<Reference, ReferenceError> {
        let syntax = |error: toml_edit::de::Error| ReferenceError::Syntax {
            paper: paper.to_owned(),
            problem: error.to_string(),
        };
        let file: File = toml_edit::de::from_str(text).map_err(syntax)?;
        let mut figures = Vec::new();
        for table in &file.tables {
            for (index, row) in table.rows.iter().enumerate() {
                table.read_row(row, &mut figures).map_err(|problem| ReferenceError::Row {
                    paper: paper.to_owned(),
                    table: table.name.clone(),
                    row: index + 1,
                    problem,
                })?;
            }
        }
        let claims = file.claims.into_iter().map(|claim| {
            let name = claim.what.clone();
            claim.read().map_err(|problem| ReferenceError::Claim {
                paper: paper.to_owned(),
                claim: name,
                problem,
            })
        });
        Ok(Reference {
            paper: paper.to_owned(),
            title: file.title,
            source: file.source,
            figures,
            claims: claims.collect::<Result<_, _>>()?,
        })
    }

    /// For a run's record, with the ways in which the study differs from the paper.
    pub fn table(&self, departures: Vec<String>) -> ReferenceTable {
        ReferenceTable {
            paper: self.paper.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            figures: self.figures.clone(),
            claims: self.claims.clone(),
            departures,
        }
    }
}

#[derive(Deserialize)]
struct File {
    title: String,
    source: String,
    #[serde(default, rename = "table")]
    tables: Vec<Table>,
    #[serde(default, rename = "claim")]
    claims: Vec<WrittenClaim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenClaim {
    what: String,
    value: String,
    #[serde(default, rename = "check")]
    checks: Vec<WrittenCheck>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCheck {
    metric: String,
    storage: String,
    against: String,
    mix: Option<String>,
    rate_from: Option<f64>,
    rate_below: Option<f64>,
    #[serde(default)]
    unthrottled: bool,
    expect: Expectation,
}

impl WrittenClaim {
    fn read(self) -> Result<Claim, String> {
        let checks = self.checks.into_iter().map(WrittenCheck::read).collect::<Result<_, _>>()?;
        Ok(Claim { what: self.what, value: self.value, checks })
    }
}

impl WrittenCheck {
    fn read(self) -> Result<ClaimCheck, String> {
        let is_latency =
            self.metric.split_once("_latency_").is_some_and(|(_, unit)| matches!(unit, "us" | "ms" | "s"));
        if self.metric != "throughput_per_s" && !is_latency {
            return Err(format!("'{}' is no metric", self.metric));
        }
        if !self.unthrottled && self.rate_from.is_none() && self.rate_below.is_none() {
            return Err(
                "a check is about no rate at all: give rate_from, rate_below or unthrottled".to_owned()
            );
        }
        Ok(ClaimCheck {
            metric: self.metric,
            storage: self.storage,
            against: self.against,
            mix: self.mix,
            rate_from_per_s: self.rate_from,
            rate_below_per_s: self.rate_below,
            unthrottled: self.unthrottled,
            expect: self.expect,
        })
    }
}

/// What the names of figure columns are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Across {
    #[default]
    Metric,
    Data,
    Mix,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    /// `table` or `prose`.
    from: String,
    #[serde(default)]
    across: Across,
    metric: Option<String>,
    mix: Option<String>,
    storage: Option<String>,
    distribution: Option<String>,
    data: Option<String>,
    threads: Option<u32>,
    columns: Vec<String>,
    rows: Vec<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Number(f64),
    Text(String),
}

impl Table {
    fn read_row(&self, row: &[Entry], figures: &mut Vec<Figure>) -> Result<(), String> {
        if row.len() != self.columns.len() {
            return Err(format!("{} entries for {} columns", row.len(), self.columns.len()));
        }
        let mut about = Figure {
            mix: self.mix.clone().unwrap_or_default(),
            distribution: self.distribution.clone(),
            storage: self.storage.clone().unwrap_or_default(),
            data: self.data.clone(),
            threads: self.threads,
            metric: self.metric.clone().unwrap_or_default(),
            value: 0.0,
            from: self.from.clone(),
        };
        let mut values = Vec::new();
        for (column, entry) in self.columns.iter().zip(row) {
            match (column.as_str(), entry) {
                ("mix", Entry::Text(text)) => about.mix.clone_from(text),
                ("storage", Entry::Text(text)) => about.storage.clone_from(text),
                ("distribution", Entry::Text(text)) => about.distribution = Some(text.clone()),
                ("data", Entry::Text(text)) => about.data = Some(text.clone()),
                ("threads", Entry::Number(number)) => about.threads = Some(*number as u32),
                (_, Entry::Number(number)) => values.push((column, *number)),
                (_, Entry::Text(text)) => return Err(format!("'{text}' in column '{column}' is no figure")),
            }
        }
        for (column, value) in values {
            let mut figure = Figure { value, ..about.clone() };
            match self.across {
                Across::Metric => figure.metric.clone_from(column),
                Across::Data => figure.data = Some(column.clone()),
                Across::Mix => figure.mix.clone_from(column),
            }
            for (part, text) in
                [("mix", &figure.mix), ("storage", &figure.storage), ("metric", &figure.metric)]
            {
                if text.is_empty() {
                    return Err(format!("the {part} is not given"));
                }
            }
            figures.push(figure);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bundled_paper_reads() {
        for (paper, text) in FILES {
            let reference = Reference::parse(paper, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!reference.figures.is_empty() || !reference.claims.is_empty(), "{paper} says nothing");
            for figure in &reference.figures {
                assert!(figure.value.is_finite() && figure.value > 0.0, "{paper}: {figure:?}");
                assert!(matches!(figure.from.as_str(), "table" | "prose"), "{paper}: {figure:?}");
            }
            assert_eq!(find(paper), Some(&reference));
        }
        assert!(names().is_sorted());
    }

    #[test]
    fn the_oracle_paper_has_every_printed_figure_once() {
        let figures = &find("oracle-nosql-flash").unwrap().figures;
        let count = |mix: &str, metric: &str| {
            figures.iter().filter(|figure| figure.mix == mix && figure.metric == metric).count()
        };
        for mix in ["a", "b", "c"] {
            // Two storages, two distributions, four sizes.
            assert_eq!((count(mix, "throughput_per_s"), count(mix, "mean_latency_ms")), (16, 16), "{mix}");
        }
        for mix in ["load", "delete"] {
            assert_eq!((count(mix, "throughput_per_s"), count(mix, "mean_latency_ms")), (2, 2), "{mix}");
        }
        let value = |mix: &str, storage: &str, distribution: &str, data: &str, metric: &str| {
            let found: Vec<f64> = figures
                .iter()
                .filter(|figure| {
                    (figure.mix.as_str(), figure.storage.as_str(), figure.metric.as_str())
                        == (mix, storage, metric)
                        && figure.distribution.as_deref() == Some(distribution)
                        && figure.data.as_deref() == Some(data)
                })
                .map(|figure| figure.value)
                .collect();
            assert_eq!(found.len(), 1, "{mix} {storage} {distribution} {data} {metric}");
            found[0]
        };
        assert_eq!(value("b", "flash", "zipfian", "512 GB", "throughput_per_s"), 275_292.0);
        assert_eq!(value("a", "hdd", "uniform", "1 TB", "mean_latency_ms"), 288.0);
    }

    #[test]
    fn a_row_that_does_not_fit_is_named() {
        let table = |rows: &str| {
            format!(
                "title = 't'\nsource = 's'\n[[table]]\nname = 'n'\nfrom = 'table'\nmix = 'a'\n\
                 columns = ['storage', 'throughput_per_s']\nrows = {rows}"
            )
        };
        let error = |rows: &str| Reference::parse("p", &table(rows)).unwrap_err().to_string();
        assert_eq!(error("[['hdd', 1], ['ssd']]"), "p: table 'n', row 2: 1 entries for 2 columns");
        assert_eq!(
            error("[['hdd', 'fast']]"),
            "p: table 'n', row 1: 'fast' in column 'throughput_per_s' is no figure"
        );
        assert_eq!(error("[['', 1]]"), "p: table 'n', row 1: the storage is not given");
    }

    #[test]
    fn a_check_is_about_a_metric_and_a_rate() {
        let claim = |check: &str| {
            let text = format!(
                "title = 't'\nsource = 's'\n[[claim]]\nwhat = 'w'\nvalue = 'v'\n[[claim.check]]\n\
                 storage = 'a'\nagainst = 'b'\nexpect = 'less'\n{check}"
            );
            Reference::parse("p", &text).map(|reference| reference.claims[0].checks[0].clone())
        };
        let check = claim("metric = 'read_mean_latency_ms'\nrate_from = 60_000\nunthrottled = true").unwrap();
        assert_eq!(
            (check.rate_from_per_s, check.unthrottled, check.expect),
            (Some(60e3), true, Expectation::Less)
        );
        let error = |check: &str| claim(check).unwrap_err().to_string();
        assert_eq!(error("metric = 'speed'\nunthrottled = true"), "p: claim 'w': 'speed' is no metric");
        assert!(error("metric = 'throughput_per_s'").contains("no rate at all"));
    }
}
