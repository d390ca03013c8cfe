//! Published results, bundled with the program: the figures that a study prints next to its own.
//!
//! Each paper is one TOML file of facts under `studies/references/`. This module reads `title` and `source`, every
//! `[[table]]`, which becomes figures, every `[[claim]]`, and `[prices]`. Other sections describe the paper's setup for
//! human readers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use serde::Deserialize;
use underlay_record::{
    ClaimCheck, ClaimExpectation, DevicePrice, PublishedClaim, PublishedFigure, PublishedMetric,
    ReferenceTable,
};
use underlay_storage::catalogue;

use underlay_config::units::parse_bytes;

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../studies/references");

/// One published study.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedStudy {
    /// The name in a study's `[reference]`.
    pub paper: String,
    pub title: String,
    /// Who published it, and where.
    pub source: String,
    pub figures: Vec<PublishedFigure>,
    pub claims: Vec<PublishedClaim>,
    pub prices: Vec<DevicePrice>,
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
    #[error("{paper}: [prices], row {row}: {problem}")]
    Price { paper: String, row: usize, problem: String },
}

/// The bundled paper of this name, if there is one.
pub fn find(paper: &str) -> Option<&'static PublishedStudy> {
    bundled().iter().find(|reference| reference.paper == paper)
}

/// The bundled papers' names, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    bundled().iter().map(|reference| reference.paper.as_str()).collect()
}

fn bundled() -> &'static [PublishedStudy] {
    static BUNDLED: LazyLock<Vec<PublishedStudy>> = LazyLock::new(|| {
        let read = files().map(|(paper, text)| PublishedStudy::parse(paper, text));
        let mut papers: Vec<PublishedStudy> =
            read.collect::<Result<_, _>>().expect("the files are part of the program, and a test reads them");
        papers.sort_by(|a, b| a.paper.cmp(&b.paper));
        papers
    });
    &BUNDLED
}

/// Each paper's name and the text of its file.
fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    FILES.files().filter_map(|file| {
        let name = file.path().file_name()?.to_str()?.strip_suffix(".toml")?;
        Some((name, file.contents_utf8()?))
    })
}

impl PublishedStudy {
    /// Reads a reference file.
    ///
    /// A `[[table]]` has `columns` and `rows`. The columns `mix`, `storage`, `distribution`, `data` and `threads` say
    /// what a row is about. If one of them is the same throughout a table, it may be a key instead. Every other column
    /// holds figures, and `across` says what its name is: a `metric` (the default), a `data` size or a `mix`. A table
    /// with `up_to = true` has the highest values that were observed.
    ///
    /// A `[[claim]]` says `what` should have what `value`. Its `[[claim.check]]`s compare a run with it: the `metric`
    /// on `storage` `against` another storage configuration must be the `same`, `more` or `less`. Checks may apply at
    /// offered rates per server of `rate_from` and more, of less than `rate_below`, or without a rate (`unthrottled =
    /// true`). A check may be about one `mix` or job, or about each of a list, and about one number of `threads`. Jobs
    /// have no rate. The ratio in the paper is `published`, with `up_to = true` if it is the highest one observed. With
    /// `than_mix`, the effect is compared with that under another mix.
    ///
    /// `[prices]` has `columns` and `rows` too: `medium`, `year`, `usd`, `tb` and `mb_s` of a device are read. `media`
    /// maps each medium to one of the catalogue, and `catalogue` says which one is bought in its place today.
    ///
    /// # Errors
    /// The TOML's own error, or the table and row (from 1) that do not match the columns.
    pub fn parse(paper: &str, text: &str) -> Result<PublishedStudy, ReferenceError> {
        let syntax = |error: toml_edit::de::Error| ReferenceError::Syntax {
            paper: paper.to_owned(),
            problem: error.to_string(),
        };
        let file: ReferenceFile = toml_edit::de::from_str(text).map_err(syntax)?;
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
        let prices = file
            .prices
            .map_or(Ok(Vec::new()), |prices| prices.read(&file.source))
            .map_err(|(row, problem)| ReferenceError::Price { paper: paper.to_owned(), row, problem })?;
        let claims = file.claims.into_iter().map(|claim| {
            let name = claim.what.clone();
            claim.read().map_err(|problem| ReferenceError::Claim {
                paper: paper.to_owned(),
                claim: name,
                problem,
            })
        });
        Ok(PublishedStudy {
            paper: paper.to_owned(),
            title: file.title,
            source: file.source,
            figures,
            claims: claims.collect::<Result<_, _>>()?,
            prices,
        })
    }

    /// For a run's record, with the differences between the study and the paper. If a study stands for one of `one_of`
    /// equal machines, it has that share of their throughput.
    pub fn table(&self, departures: Vec<String>, one_of: Option<u32>) -> ReferenceTable {
        let mut figures = self.figures.clone();
        if let Some(machines) = one_of.filter(|machines| *machines > 1) {
            for figure in figures.iter_mut().filter(|figure| figure.metric == PublishedMetric::Throughput) {
                figure.value /= f64::from(machines);
                figure.one_of = Some(machines);
            }
        }
        ReferenceTable {
            paper: self.paper.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            figures,
            claims: self.claims.clone(),
            prices: self.prices.clone(),
            departures,
        }
    }
}

#[derive(Deserialize)]
struct ReferenceFile {
    title: String,
    source: String,
    #[serde(default, rename = "table")]
    tables: Vec<ReferenceFileTable>,
    #[serde(default, rename = "claim")]
    claims: Vec<WrittenClaim>,
    prices: Option<ReferencePrices>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferencePrices {
    /// The medium's name in the rows and in the catalogue.
    #[serde(default)]
    media: BTreeMap<String, String>,
    /// The medium's name in the rows, and its replacement in today's catalogue.
    #[serde(default)]
    catalogue: BTreeMap<String, String>,
    columns: Vec<String>,
    rows: Vec<Vec<ReferenceEntry>>,
}

impl ReferencePrices {
    /// The rows, then the catalogue's. An error has the number of its row, or 0 for the catalogue.
    fn read(&self, source: &str) -> Result<Vec<DevicePrice>, (usize, String)> {
        let rows = self.rows.iter().enumerate();
        let mut prices = rows
            .map(|(index, row)| self.read_row(row, source).map_err(|problem| (index + 1, problem)))
            .collect::<Result<Vec<_>, _>>()?;
        for (medium, today) in &self.catalogue {
            prices.push(self.price_today(medium, today).map_err(|problem| (0, problem))?);
        }
        Ok(prices)
    }

    fn medium(&self, name: &str) -> String {
        self.media.get(name).map_or(name, String::as_str).to_owned()
    }

    fn read_row(&self, row: &[ReferenceEntry], source: &str) -> Result<DevicePrice, String> {
        let entry = |column: &str| {
            let index = self.columns.iter().position(|name| name == column);
            index.and_then(|index| row.get(index)).ok_or_else(|| format!("no '{column}'"))
        };
        let number = |column: &str| match entry(column)? {
            ReferenceEntry::Number(number) if *number > 0.0 => Ok(*number),
            _ => Err(format!("'{column}' is not a number above zero")),
        };
        let ReferenceEntry::Text(medium) = entry("medium")? else {
            return Err("'medium' is not a name".to_owned());
        };
        Ok(DevicePrice {
            medium: self.medium(medium),
            when: number("year")?.to_string(),
            usd: number("usd")?,
            is_rented: false,
            capacity_bytes: (number("tb")? * 1e12) as u64,
            bandwidth_bytes_per_s: number("mb_s")? * 1e6,
            source: source.to_owned(),
        })
    }

    fn price_today(&self, medium: &str, today: &str) -> Result<DevicePrice, String> {
        let found = catalogue::find(today).map_err(|unknown| unknown.to_string())?;
        let sequential =
            [catalogue::FigureKind::SequentialReadMbS, catalogue::FigureKind::SequentialWriteMbS];
        let both = found.published.iter().filter(|published| sequential.contains(&published.figure));
        // Jobs read and write, so the slower one counts.
        let bandwidth_mb_s = both.map(|published| published.value).reduce(f64::min);
        Ok(DevicePrice {
            medium: self.medium(medium),
            when: "catalogue".to_owned(),
            usd: found.price_usd(),
            is_rented: found.price.rented,
            capacity_bytes: found.capacity_bytes(),
            bandwidth_bytes_per_s: bandwidth_mb_s.ok_or_else(|| format!("'{today}' has no bandwidth"))? * 1e6,
            source: format!("{}; {}", found.title, found.price_source()),
        })
    }
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
    mix: Option<OneOrMany>,
    threads: Option<u32>,
    rate_from: Option<f64>,
    rate_below: Option<f64>,
    #[serde(default)]
    unthrottled: bool,
    expect: ClaimExpectation,
    published: Option<f64>,
    #[serde(default)]
    up_to: bool,
    than_mix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl WrittenClaim {
    fn read(self) -> Result<PublishedClaim, String> {
        let checks = self.checks.into_iter().map(WrittenCheck::read).collect::<Result<Vec<_>, _>>()?;
        Ok(PublishedClaim { what: self.what, value: self.value, checks: checks.concat() })
    }
}

impl WrittenCheck {
    /// One check for each of its mixes.
    fn read(self) -> Result<Vec<ClaimCheck>, String> {
        let metric = PublishedMetric::from(self.metric);
        let is_other = match &metric {
            PublishedMetric::Throughput | PublishedMetric::Latency { .. } => false,
            // The metric is already a ratio, which can't be compared with another storage configuration.
            PublishedMetric::Other(_) | PublishedMetric::RelativePerformance => {
                return Err(format!("'{metric}' is not a metric"));
            }
            _ => true,
        };
        let unthrottled = self.unthrottled || is_other;
        if !unthrottled && self.rate_from.is_none() && self.rate_below.is_none() {
            return Err("a check has no rate: give rate_from, rate_below or unthrottled".to_owned());
        }
        let mixes = match self.mix {
            None => vec![None],
            Some(OneOrMany::One(mix)) => vec![Some(mix)],
            Some(OneOrMany::Many(mixes)) => mixes.into_iter().map(Some).collect(),
        };
        let about = |mix| ClaimCheck {
            metric: metric.clone(),
            storage: self.storage.clone(),
            against: self.against.clone(),
            mix,
            threads: self.threads,
            rate_from_per_s: self.rate_from,
            rate_below_per_s: self.rate_below,
            unthrottled,
            expect: self.expect,
            published: self.published,
            up_to: self.up_to,
            than_mix: self.than_mix.clone(),
        };
        Ok(mixes.into_iter().map(about).collect())
    }
}

/// The names of figure columns.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum FigureColumns {
    #[default]
    Metric,
    Data,
    Mix,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferenceFileTable {
    name: String,
    /// `table` or `prose`.
    from: String,
    #[serde(default)]
    across: FigureColumns,
    metric: Option<String>,
    mix: Option<String>,
    storage: Option<String>,
    distribution: Option<String>,
    data: Option<String>,
    threads: Option<u32>,
    #[serde(default)]
    up_to: bool,
    columns: Vec<String>,
    rows: Vec<Vec<ReferenceEntry>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ReferenceEntry {
    Number(f64),
    Text(String),
}

impl ReferenceFileTable {
    fn read_row(&self, row: &[ReferenceEntry], figures: &mut Vec<PublishedFigure>) -> Result<(), String> {
        if row.len() != self.columns.len() {
            return Err(format!("{} entries for {} columns", row.len(), self.columns.len()));
        }
        let mut about = PublishedFigure {
            mix: self.mix.clone().unwrap_or_default(),
            distribution: self.distribution.clone(),
            storage: self.storage.clone().unwrap_or_default(),
            data: self.data.clone(),
            threads: self.threads,
            metric: PublishedMetric::Other(String::new()),
            value: 0.0,
            from: self.from.clone(),
            up_to: self.up_to,
            one_of: None,
            data_bytes: None,
        };
        let mut metric = self.metric.clone().unwrap_or_default();
        let mut values = Vec::new();
        for (column, entry) in self.columns.iter().zip(row) {
            match (column.as_str(), entry) {
                ("mix", ReferenceEntry::Text(text)) => about.mix.clone_from(text),
                ("storage", ReferenceEntry::Text(text)) => about.storage.clone_from(text),
                ("distribution", ReferenceEntry::Text(text)) => about.distribution = Some(text.clone()),
                ("data", ReferenceEntry::Text(text)) => about.data = Some(text.clone()),
                ("threads", ReferenceEntry::Number(number)) => about.threads = Some(*number as u32),
                // Kept for later: a text that describes them may follow in another column.
                (_, ReferenceEntry::Number(number)) => values.push((column, *number)),
                (_, ReferenceEntry::Text(text)) => {
                    return Err(format!("'{text}' in column '{column}' is not a figure"));
                }
            }
        }
        for (column, value) in values {
            let mut figure = PublishedFigure { value, ..about.clone() };
            match self.across {
                FigureColumns::Metric => metric.clone_from(column),
                FigureColumns::Data => figure.data = Some(column.clone()),
                FigureColumns::Mix => figure.mix.clone_from(column),
            }
            for (part, text) in [("mix", &figure.mix), ("storage", &figure.storage), ("metric", &metric)] {
                if text.is_empty() {
                    return Err(format!("the {part} is not given"));
                }
            }
            figure.metric = PublishedMetric::from(metric.as_str());
            // The size is for comparisons. A text without a size is no mistake and is shown as it is.
            let size = figure.data.as_deref().and_then(|data| parse_bytes(data).ok());
            figure.data_bytes = size.map(|bytes| bytes as f64);
            figures.push(figure);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_papers_can_be_read() {
        for (paper, text) in files() {
            let reference = PublishedStudy::parse(paper, text).unwrap_or_else(|error| panic!("{error}"));
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
    fn oracle_paper_lists_every_printed_figure_once() {
        let figures = &find("oracle-nosql-flash").unwrap().figures;
        let count = |mix: &str, metric: &str| {
            figures.iter().filter(|figure| figure.mix == mix && figure.metric.to_string() == metric).count()
        };
        for mix in ["a", "b", "c"] {
            // Two storage configurations, two distributions, four sizes.
            assert_eq!((count(mix, "throughput_per_s"), count(mix, "mean_latency_ms")), (16, 16), "{mix}");
        }
        for mix in ["load", "delete"] {
            assert_eq!((count(mix, "throughput_per_s"), count(mix, "mean_latency_ms")), (2, 2), "{mix}");
        }
        let value = |mix: &str, storage: &str, distribution: &str, data: &str, metric: &str| {
            let found: Vec<f64> = figures
                .iter()
                .filter(|figure| {
                    (figure.mix.as_str(), figure.storage.as_str(), figure.metric.to_string().as_str())
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
    fn unfit_row_is_named() {
        let table = |rows: &str| {
            format!(
                "title = 't'\nsource = 's'\n[[table]]\nname = 'n'\nfrom = 'table'\nmix = 'a'\n\
                 columns = ['storage', 'throughput_per_s']\nrows = {rows}"
            )
        };
        let error = |rows: &str| PublishedStudy::parse("p", &table(rows)).unwrap_err().to_string();
        assert_eq!(error("[['hdd', 1], ['ssd']]"), "p: table 'n', row 2: 1 entries for 2 columns");
        assert_eq!(
            error("[['hdd', 'fast']]"),
            "p: table 'n', row 1: 'fast' in column 'throughput_per_s' is not a figure"
        );
        assert_eq!(error("[['', 1]]"), "p: table 'n', row 1: the storage is not given");
    }

    #[test]
    fn check_needs_metric_and_rate() {
        let claim = |check: &str| {
            let text = format!(
                "title = 't'\nsource = 's'\n[[claim]]\nwhat = 'w'\nvalue = 'v'\n[[claim.check]]\n\
                 storage = 'a'\nagainst = 'b'\nexpect = 'less'\n{check}"
            );
            PublishedStudy::parse("p", &text).map(|reference| reference.claims[0].checks[0].clone())
        };
        let check = claim("metric = 'read_mean_latency_ms'\nrate_from = 60_000\nunthrottled = true").unwrap();
        assert_eq!(
            (check.rate_from_per_s, check.unthrottled, check.expect),
            (Some(60e3), true, ClaimExpectation::Less)
        );
        let error = |check: &str| claim(check).unwrap_err().to_string();
        assert_eq!(error("metric = 'speed'\nunthrottled = true"), "p: claim 'w': 'speed' is not a metric");
        assert!(error("metric = 'throughput_per_s'").contains("a check has no rate"));
        let of_jobs = claim("metric = 'duration_s'\nmix = ['terasort', 'shuffle']").unwrap();
        assert_eq!((of_jobs.mix.as_deref(), of_jobs.unthrottled), (Some("terasort"), true));
    }

    #[test]
    fn prices_are_read_by_their_columns_and_media() {
        let prices = |rows: &str| {
            let text = format!(
                "title = 't'\nsource = 's'\n[prices]\nmedia = {{ hdd = 'hdd-mapreduce' }}\n\
                 columns = ['mb_s', 'medium', 'year', 'usd', 'tb', 'usd_per_tb']\nrows = {rows}"
            );
            PublishedStudy::parse("p", &text).map(|reference| reference.prices)
        };
        let read = prices("[[120, 'hdd', 2013, 400, 2.0, 200], [1300, 'ssd', 2013, 14000, 1.3, 0]]").unwrap();
        assert_eq!((read[0].medium.as_str(), read[1].medium.as_str()), ("hdd-mapreduce", "ssd"));
        assert_eq!(
            (read[0].usd, read[0].capacity_bytes, read[0].when.as_str()),
            (400.0, 2_000_000_000_000, "2013")
        );
        let today =
            find("mapreduce-ssd").unwrap().prices.iter().filter(|price| price.when == "catalogue").count();
        assert_eq!(today, 2);
        let error = prices("[[120, 'hdd', 2013]]").unwrap_err().to_string();
        assert_eq!(error, "p: [prices], row 1: no 'usd'");
        assert!(prices("[[0, 'hdd', 2013, 400, 2.0]]").unwrap_err().to_string().contains("'mb_s'"));
    }

    #[test]
    fn fraction_of_machines_has_fraction_of_throughput() {
        let table = find("accumulo-flash").unwrap().table(Vec::new(), Some(5));
        let value_of = |metric: &str, storage: &str| {
            let found =
                table.figures.iter().find(|one| one.metric.to_string() == metric && one.storage == storage);
            found.map(|figure| (figure.value, figure.one_of)).unwrap()
        };
        assert_eq!(value_of("throughput_per_s", "flash"), (9600.0, Some(5)));
        assert_eq!(value_of("mean_latency_ms", "hdd"), (16.0, None));
    }
}
