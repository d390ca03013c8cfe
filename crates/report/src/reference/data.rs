//! Which amounts of data a published figure may be held against.
//!
//! A study that stands for one of several machines has that part of the paper's data; its short form has less yet, and what is less
//! is marked wherever it is shown.

use toml_edit::{DocumentMut, Item};
use underlay_record::{Cell, ReferenceTable, Run};

use crate::quantity;

/// Sizes within this share of each other are the same data set: `1 TB` may be 10⁹ records of 1,024 bytes and keys.
const SIZE_TOLERANCE: f64 = 0.15;

/// The amount of data that `--short` put in the place of the study's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shortened {
    pub full_bytes: f64,
    pub short_bytes: f64,
}

impl Shortened {
    /// None where the run is no short form, and unless one amount, that of all workloads, gives way to another: of several, nothing
    /// tells which stands for which.
    pub fn of(run: &Run) -> Option<Shortened> {
        if !run.short {
            return None;
        }
        let study: DocumentMut = run.study_toml.parse().ok()?;
        let short = study.get("short")?;
        let short_bytes = one_size(short.get("data")?)?;
        let kept: Option<Vec<&str>> = short
            .get("workloads")
            .and_then(Item::as_array)
            .map(|names| names.iter().filter_map(|name| name.as_str()).collect());
        let workloads = study.get("workload")?.as_table_like()?;
        let mut full_bytes = None;
        for (name, workload) in workloads.iter() {
            let is_of_jobs = workload.get("kind").and_then(Item::as_str) == Some("jobs");
            if is_of_jobs || kept.as_ref().is_some_and(|kept| !kept.contains(&name)) {
                continue;
            }
            let size = one_size(workload.get("data")?)?;
            if full_bytes.is_some_and(|known| known != size) {
                return None;
            }
            full_bytes = Some(size);
        }
        Some(Shortened { full_bytes: full_bytes?, short_bytes })
    }
}

/// The one size that a key of a study gives, as text or as a list of one.
fn one_size(item: &Item) -> Option<f64> {
    let text = match item.as_array() {
        Some(list) if list.len() == 1 => list.get(0)?.as_str()?,
        Some(_) => return None,
        None => item.as_str()?,
    };
    size_bytes(text)
}

/// What a cell has where it has less than what is published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LessData {
    pub bytes: f64,
    /// What the study has in full, which is what is published, or a machine's part of it.
    pub full_bytes: f64,
}

/// How a cell's amount of data fits a published one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fit {
    Same,
    Less(LessData),
}

/// How many machines' data the paper has for that of a study's one.
fn machines(table: &ReferenceTable) -> u32 {
    table.figures.iter().filter_map(|figure| figure.one_of).max().unwrap_or(1).max(1)
}

/// Whether a cell may be held against figures of so much data: it has that amount, or a machine's part of it, or what the short form
/// has in that place.
pub(super) fn fit(
    label: &str,
    cell: &Cell,
    table: &ReferenceTable,
    shortened: Option<Shortened>,
) -> Option<Fit> {
    let machines = machines(table);
    let is_named = || cell.workload.split(',').any(|part| part.trim().eq_ignore_ascii_case(label.trim()));
    if machines == 1 && is_named() {
        return Some(Fit::Same);
    }
    let published = size_bytes(label)? / f64::from(machines);
    let bytes = cell.data_bytes as f64;
    if is_close(bytes, published) {
        return Some(Fit::Same);
    }
    let Shortened { full_bytes, short_bytes } = shortened?;
    (is_close(full_bytes, published) && is_close(bytes, short_bytes))
        .then_some(Fit::Less(LessData { bytes: short_bytes, full_bytes }))
}

fn is_close(ours: f64, published: f64) -> bool {
    (1.0 - SIZE_TOLERANCE..=1.0 + SIZE_TOLERANCE).contains(&(ours / published))
}

/// `256 GB` in bytes; none when it is no size.
fn size_bytes(label: &str) -> Option<f64> {
    let label = label.trim();
    let split = label.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = label[..split].parse().ok()?;
    let factor = match label[split..].trim().to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return None,
    };
    Some(number * factor)
}

/// What to know of figures that are held against ones of more data; none where there are none.
pub fn note<'a>(
    table: &ReferenceTable,
    figures: impl IntoIterator<Item = &'a super::Beside<'a>>,
) -> Option<String> {
    let (less, label) =
        figures.into_iter().find_map(|one| Some((one.less_data?, one.figure.data.as_ref()?)))?;
    let part = match machines(table) {
        1 => String::new(),
        machines => format!("{} of ", part_of(machines)),
    };
    Some(format!(
        "Ours, in the short form, has {} of data where the study in full has {}, {part}the paper's {label}",
        quantity::without_last_zeros(&quantity::bytes(less.bytes)),
        quantity::without_last_zeros(&quantity::bytes(less.full_bytes)),
    ))
}

/// `a fifth`, `1/12`: the study stands for one of so many machines.
pub fn part_of(machines: u32) -> String {
    match machines {
        2 => "half".to_owned(),
        3 => "a third".to_owned(),
        4 => "a quarter".to_owned(),
        5 => "a fifth".to_owned(),
        6 => "a sixth".to_owned(),
        8 => "an eighth".to_owned(),
        10 => "a tenth".to_owned(),
        more => format!("1/{more}"),
    }
}

#[cfg(test)]
mod tests {
    use underlay_record::Figure;

    use super::*;

    #[test]
    fn labels_are_read_as_sizes() {
        assert_eq!(size_bytes("256 GB"), Some(256e9));
        assert_eq!(size_bytes(" 1TB "), Some(1e12));
        assert_eq!(size_bytes("1.5 GiB"), Some(1_610_612_736.0));
        for odd in ["", "GB", "12", "12 parsecs", "1.2.3 GB"] {
            assert_eq!(size_bytes(odd), None, "{odd}");
        }
    }

    fn run(short: bool, study_toml: &str) -> Run {
        Run {
            schema: 1,
            name: String::new(),
            title: None,
            started_at: String::new(),
            study_toml: study_toml.to_owned(),
            media_files: Default::default(),
            baseline: String::new(),
            scale: Default::default(),
            seed: 0,
            short,
            repetitions: 1,
            warmup_wall_s: 0.0,
            duration_wall_s: 0.0,
            machine: Default::default(),
            versions: Default::default(),
            plan: Vec::new(),
            reference: None,
        }
    }

    #[test]
    fn one_amount_gives_way_to_another() {
        let found =
            |study: &str| Shortened::of(&run(true, study)).map(|one| (one.full_bytes, one.short_bytes));
        let two = "[workload.x]\ndata = \"400 GB\"\n[workload.y]\ndata = [\"400 GB\"]\n[workload.z]\ndata = \"1 TB\"\n";
        let short = "[short]\ndata = \"48 GB\"\n";
        assert_eq!(found(&format!("{two}{short}workloads = [\"x\", \"y\"]")), Some((400e9, 48e9)));
        assert_eq!(found(&format!("{two}{short}")), None, "400 GB and 1 TB: of which?");
        assert_eq!(found(&format!("{two}[short]\nrepetitions = 1")), None, "the data are the study's");
        assert_eq!(found(&format!("[workload.x]\ndata = [\"1 TB\", \"2 TB\"]\n{short}")), None);
        assert_eq!(found(&format!("[workload.x]\nrecords = 7\n{short}")), None);
        let jobs = "[workload.j]\nkind = \"jobs\"\ndata = { others = \"1 GB\" }\n";
        assert_eq!(found(&format!("{jobs}[workload.x]\ndata = \"400 GB\"\n{short}")), Some((400e9, 48e9)));
        assert_eq!(found("nonsense ["), None);
        assert_eq!(Shortened::of(&run(false, &format!("{two}{short}workloads = [\"x\"]"))), None);
    }

    #[test]
    fn a_cell_fits_its_own_amount_and_what_stands_in_its_place() {
        let table = |one_of| ReferenceTable {
            figures: vec![Figure { one_of, ..Figure::default() }],
            ..ReferenceTable::default()
        };
        let cell = |bytes: f64| Cell {
            id: String::new(),
            system: String::new(),
            storage: String::new(),
            workload: "a".to_owned(),
            mix: "a".to_owned(),
            distribution: String::new(),
            threads: 1,
            servers: 1,
            rate_per_s: None,
            rate_parts: Vec::new(),
            find_rate: None,
            records: 1,
            data_bytes: bytes as u64,
            compacts_at: None,
        };
        let shortened = Some(Shortened { full_bytes: 400e9, short_bytes: 48e9 });
        let less = Some(Fit::Less(LessData { bytes: 48e9, full_bytes: 400e9 }));
        assert_eq!(fit("2 TB", &cell(2e12), &table(None), None), Some(Fit::Same));
        assert_eq!(fit("2 TB", &cell(400e9), &table(Some(5)), None), Some(Fit::Same));
        assert_eq!(fit("2 TB", &cell(2e12), &table(Some(5)), None), None, "five times a machine's part");
        assert_eq!(fit("2 TB", &cell(48e9), &table(Some(5)), shortened), less);
        assert_eq!(fit("400 GB", &cell(48e9), &table(None), shortened), less);
        // Neither what the short form does not replace, nor another amount in its place.
        assert_eq!(fit("1 TB", &cell(48e9), &table(Some(5)), shortened), None);
        assert_eq!(fit("2 TB", &cell(96e9), &table(Some(5)), shortened), None);
        assert_eq!(fit("2 TB", &cell(48e9), &table(Some(5)), None), None);
    }
}
