//! A workload: the records, the choice of keys, and the fields that one operation accesses.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::draw::distribution::{KeyRange, RequestDistribution};
use crate::draw::keys::{InsertOrder, KeyNaming};
use crate::draw::length_histogram::LengthHistogram;
use crate::draw::values::{FieldLength, LengthChooser};
use crate::mix::{OperationKind, OperationMix, OperationProportions};
use crate::ycsb::properties::{PropertyError, PropertyErrors, YcsbProperties, known};

/// A record with more fields than this is not realistic.
pub(crate) const MAX_FIELD_COUNT: u32 = 10_000;
/// The longest field: 64 MiB.
pub(crate) const MAX_FIELD_BYTES: u32 = 64 << 20;
/// The longest record, all fields together: 1 GiB.
const MAX_RECORD_BYTES: u64 = 1 << 30;

/// CoreWorkload's default, regardless of the mix.
const CORE_MAX_SCAN_LENGTH: u32 = 1000;

/// The distribution of a scan's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanLengthDistribution {
    Uniform,
    /// Short scans most often.
    Zipfian,
}

/// All of CoreWorkload except the mix's name. Where a field is `None`, the mix decides.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreWorkload {
    /// Records that exist when a run begins, counted over all clients.
    pub record_count: u64,
    /// The number of the first record that this client loads and requests.
    pub insert_start: u64,
    /// How many records this client loads and requests.
    pub insert_count: u64,
    pub operation_count: Option<u64>,
    pub field_count: u32,
    pub field_length: FieldLength,
    pub field_name_prefix: String,
    pub read_all_fields: bool,
    pub write_all_fields: bool,
    /// CoreWorkload's proportions, used when no standard mix is named.
    pub proportions: OperationProportions,
    pub request_distribution: Option<RequestDistribution>,
    /// Hotspot: the share of the records that is hot, 0 to 1.
    pub hot_data_fraction: f64,
    /// Hotspot: the share of the operations on the hot records, 0 to 1.
    pub hot_operation_fraction: f64,
    /// Exponential: the percentage of operations on the newest part.
    pub exponential_percentile: f64,
    /// Exponential: the size of that part, as a share of the records.
    pub exponential_fraction: f64,
    pub min_scan_length: u32,
    pub max_scan_length: Option<u32>,
    pub scan_length_distribution: ScanLengthDistribution,
    pub key_naming: KeyNaming,
    pub data_integrity: bool,
    /// The share of a value that repeats, 0 to 1.
    pub compressibility: f64,
    /// How often a failed insert of a load is retried.
    pub insert_retries: u32,
    /// The wait before a retry, within a fifth, in modelled time.
    pub insert_retry_interval: Duration,
    /// `threadcount`.
    pub threads: u32,
    /// `target` in operations per second; `None` for as many as possible.
    pub target_rate_per_s: Option<f64>,
    pub max_execution_time: Option<Duration>,
    pub warmup_time: Duration,
}

impl CoreWorkload {
    /// CoreWorkload's defaults for `records` records of `fields` fields of `field_bytes` bytes.
    pub fn new(records: u64, fields: u32, field_bytes: u32) -> Self {
        let proportions =
            OperationProportions::new(&[(OperationKind::Read, 0.95), (OperationKind::Update, 0.05)])
                .expect("CoreWorkload's defaults are valid");
        CoreWorkload {
            record_count: records,
            insert_start: 0,
            insert_count: records,
            operation_count: None,
            field_count: fields,
            field_length: FieldLength::Constant(field_bytes),
            field_name_prefix: "field".to_owned(),
            read_all_fields: true,
            write_all_fields: false,
            proportions,
            request_distribution: None,
            hot_data_fraction: 0.2,
            hot_operation_fraction: 0.8,
            exponential_percentile: 95.0,
            exponential_fraction: 0.857_142_857_1,
            min_scan_length: 1,
            max_scan_length: None,
            scan_length_distribution: ScanLengthDistribution::Uniform,
            key_naming: KeyNaming { order: InsertOrder::Hashed, zero_padding: 1 },
            data_integrity: false,
            compressibility: 0.5,
            insert_retries: 0,
            insert_retry_interval: Duration::from_secs(3),
            threads: 1,
            target_rate_per_s: None,
            max_execution_time: None,
            warmup_time: Duration::ZERO,
        }
    }

    /// Uses CoreWorkload's own defaults where a standard mix would decide, as YCSB does with the same properties.
    pub fn with_core_defaults(mut self) -> Self {
        self.request_distribution.get_or_insert(RequestDistribution::Uniform);
        self.max_scan_length.get_or_insert(CORE_MAX_SCAN_LENGTH);
        self
    }

    /// The mix that the properties describe.
    pub fn mix(&self) -> OperationMix {
        OperationMix::from_proportions(self.proportions)
    }

    /// The distribution that a run of `mix` follows.
    pub fn distribution_for(&self, mix: &OperationMix) -> RequestDistribution {
        match self.request_distribution {
            _ if mix.visits_every_record() => RequestDistribution::Sequential,
            Some(distribution) => distribution,
            None => mix.default_distribution(),
        }
    }

    /// The longest scan in a run of `mix`, in records.
    pub fn max_scan_length_for(&self, mix: &OperationMix) -> u32 {
        self.max_scan_length.unwrap_or_else(|| mix.default_max_scan_length())
    }

    /// Why scans of a mix have no valid length: the mix's own maximum is below the requested minimum.
    pub fn scan_problem(&self, mix: &OperationMix) -> Option<String> {
        let (min, max) = (self.min_scan_length, self.max_scan_length_for(mix));
        let is_default = self.max_scan_length.is_none();
        (is_default && mix.share(OperationKind::Scan) > 0.0 && min > max).then(|| {
            format!("minscanlength is {min}: expected at most {max}, the default of maxscanlength; set maxscanlength too")
        })
    }

    pub(crate) fn scan_lengths_for(&self, mix: &OperationMix) -> LengthChooser {
        let max = self.max_scan_length_for(mix).max(self.min_scan_length);
        match self.scan_length_distribution {
            ScanLengthDistribution::Uniform => LengthChooser::Uniform(self.min_scan_length, max),
            ScanLengthDistribution::Zipfian => LengthChooser::zipfian(self.min_scan_length, max),
        }
    }

    /// The record numbers of this client.
    ///
    /// # Errors
    /// When there are none, or more than 63 bits can number.
    pub fn key_range(&self) -> Result<KeyRange, String> {
        KeyRange::new(self.insert_start, self.insert_count).ok_or_else(|| {
            format!(
                "insertcount is {} and insertstart {}: expected at least one record (recordcount), numbered below 2^63",
                self.insert_count, self.insert_start
            )
        })
    }

    /// Bytes of one record, its name included, on average.
    pub fn record_bytes(&self) -> f64 {
        self.key_naming.typical_bytes(self.record_count) as f64
            + f64::from(self.field_count) * self.field_length.mean_bytes()
    }

    /// Bytes of all records of this client, names included.
    pub fn data_bytes(&self) -> u64 {
        (self.insert_count as f64 * self.record_bytes()) as u64
    }

    /// Contradictions, in words; empty when it can be run.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(self.key_range().err());
        if self.insert_start.checked_add(self.insert_count).is_none_or(|end| end > self.record_count) {
            problems.push(format!(
                "insertstart + insertcount is {}: expected at most recordcount, {}",
                // Their sum may need more than 64 bits.
                u128::from(self.insert_start) + u128::from(self.insert_count),
                self.record_count
            ));
        }
        if !(1..=MAX_FIELD_COUNT).contains(&self.field_count) {
            problems.push(format!("fieldcount is {}: expected 1 to {MAX_FIELD_COUNT}", self.field_count));
        }
        let field_bytes = self.field_length.max_bytes();
        if field_bytes > MAX_FIELD_BYTES {
            problems.push(format!("fieldlength is {field_bytes} bytes: expected at most {MAX_FIELD_BYTES}"));
        } else if u64::from(field_bytes) * u64::from(self.field_count) > MAX_RECORD_BYTES {
            // Only here: if fields are too long by themselves, the product adds nothing new.
            problems.push(format!(
                "fieldcount x fieldlength is {} x {field_bytes} bytes: expected at most {MAX_RECORD_BYTES} in all",
                self.field_count
            ));
        }
        if let FieldLength::Uniform(min, max) | FieldLength::Zipfian(min, max) = self.field_length
            && min > max
        {
            problems.push(format!("minfieldlength is {min}: expected at most fieldlength, {max}"));
        }
        if let Some(max) = self.max_scan_length
            && max < self.min_scan_length
        {
            problems.push(format!(
                "minscanlength is {}: expected at most maxscanlength, {max}",
                self.min_scan_length
            ));
        }
        if self.data_integrity && !matches!(self.field_length, FieldLength::Constant(_)) {
            problems.push(
                "dataintegrity needs fields of one length: set fieldlengthdistribution=constant".to_owned(),
            );
        }
        if !(0.0..=1.0).contains(&self.compressibility) {
            problems.push(format!("compressibility is {}: expected 0 to 1", self.compressibility));
        }
        // In this form, so that NaN never fits.
        let percentile_fits = self.exponential_percentile > 0.0 && self.exponential_percentile < 100.0;
        let fraction_fits = self.exponential_fraction > 0.0 && self.exponential_fraction <= 1.0;
        if !(percentile_fits && fraction_fits) {
            problems.push(format!(
                "exponential.percentile is {} and exponential.frac {}: expected between 0 and 100, and above 0 up to 1",
                self.exponential_percentile, self.exponential_fraction
            ));
        }
        problems
    }
}

/// Reads properties into a workload, and collects every mistake.
struct WorkloadReader<'a> {
    properties: &'a YcsbProperties,
    errors: Vec<PropertyError>,
}

impl WorkloadReader<'_> {
    /// The value of `name` if it was given and `parse` accepts it; a mistake is recorded.
    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let property = self.properties.get(name)?;
        let value = parse(property.value.trim());
        if value.is_none() {
            let expected = known(name).map_or("another value", |property| property.expected);
            let problem = format!("{name} is '{}': expected {expected}", property.value);
            self.errors.push(PropertyError { origin: property.origin.clone(), problem });
        }
        value
    }

    fn set<T>(&mut self, target: &mut T, name: &str, parse: impl FnOnce(&str) -> Option<T>) {
        if let Some(value) = self.read(name, parse) {
            *target = value;
        }
    }

    fn problem(&mut self, names: &[&str], problem: String) {
        let origin =
            names.iter().rev().find_map(|name| self.properties.get(name)).map(|found| found.origin.clone());
        if let Some(origin) = origin {
            self.errors.push(PropertyError { origin, problem });
        }
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn positive(text: &str) -> Option<u32> {
    number(text).filter(|&value| value > 0)
}

fn boolean(text: &str) -> Option<bool> {
    // Java reads booleans in upper or lower case.
    text.to_ascii_lowercase().parse().ok()
}

fn share(text: &str) -> Option<f64> {
    number(text).filter(|value| (0.0..=1.0).contains(value))
}

fn weight(text: &str) -> Option<f64> {
    number(text).filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

impl YcsbProperties {
    /// The workload that these properties describe, with CoreWorkload's defaults for those not given.
    ///
    /// # Errors
    /// Every value that is malformed or does not fit the others, each with its place.
    pub fn workload(&self) -> Result<CoreWorkload, PropertyErrors> {
        let mut reader = WorkloadReader { properties: self, errors: Vec::new() };
        let mut workload = CoreWorkload::new(1000, 10, 100);
        read_records(&mut reader, &mut workload);
        read_requests(&mut reader, &mut workload);
        read_execution(&mut reader, &mut workload);
        if reader.errors.is_empty() {
            for problem in workload.problems() {
                // A problem names its properties: the last one given is its place.
                let named: Vec<&str> = self
                    .iter()
                    .map(|property| property.name.as_str())
                    .filter(|name| known(name).is_some() && problem.contains(name))
                    .collect();
                reader.problem(&named, problem);
            }
        }
        if reader.errors.is_empty() {
            return Ok(workload);
        }
        // In the order of their places, not in reading order.
        let mut errors = reader.errors;
        errors.sort_by_key(|error| self.iter().position(|property| property.origin == error.origin));
        Err(PropertyErrors(errors))
    }
}

fn read_records(reader: &mut WorkloadReader, workload: &mut CoreWorkload) {
    reader.set(&mut workload.record_count, "recordcount", number);
    reader.set(&mut workload.insert_start, "insertstart", number);
    workload.insert_count = reader
        .read("insertcount", number)
        .unwrap_or_else(|| workload.record_count.saturating_sub(workload.insert_start));
    reader.set(&mut workload.field_count, "fieldcount", positive);
    let max_bytes = reader.read("fieldlength", number).unwrap_or(100);
    let min_bytes = reader.read("minfieldlength", number).unwrap_or(1);
    let length = |name: &str| match name {
        "constant" => Some(FieldLength::Constant(max_bytes)),
        "uniform" => Some(FieldLength::Uniform(min_bytes, max_bytes)),
        "zipfian" => Some(FieldLength::Zipfian(min_bytes, max_bytes)),
        // Read from its file below.
        "histogram" => Some(FieldLength::Constant(0)),
        _ => None,
    };
    workload.field_length =
        reader.read("fieldlengthdistribution", length).unwrap_or(FieldLength::Constant(max_bytes));
    let value_of = |name: &str| reader.properties.get(name).map(|property| property.value.trim());
    if value_of("fieldlengthdistribution") == Some("histogram") {
        match LengthHistogram::read(Path::new(value_of("fieldlengthhistogram").unwrap_or("hist.txt"))) {
            Ok(histogram) => workload.field_length = FieldLength::Histogram(Arc::new(histogram)),
            Err(problem) => reader.problem(
                &["fieldlengthdistribution", "fieldlengthhistogram"],
                format!("fieldlengthhistogram {problem}"),
            ),
        }
    } else if reader.properties.get("fieldlengthhistogram").is_some() {
        reader.problem(
            &["fieldlengthhistogram"],
            "fieldlengthhistogram needs fieldlengthdistribution=histogram".to_owned(),
        );
    }
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    reader.set(&mut workload.field_name_prefix, "fieldnameprefix", text);
    let order = |name: &str| match name {
        "hashed" => Some(InsertOrder::Hashed),
        "ordered" => Some(InsertOrder::Ordered),
        _ => None,
    };
    reader.set(&mut workload.key_naming.order, "insertorder", order);
    let padding = |text: &str| number(text).filter(|&padding| padding <= KeyNaming::MAX_ZERO_PADDING);
    reader.set(&mut workload.key_naming.zero_padding, "zeropadding", padding);
    reader.set(&mut workload.data_integrity, "dataintegrity", boolean);
    reader.set(&mut workload.compressibility, "compressibility", share);
}

fn read_requests(reader: &mut WorkloadReader, workload: &mut CoreWorkload) {
    reader.set(&mut workload.read_all_fields, "readallfields", boolean);
    reader.set(&mut workload.write_all_fields, "writeallfields", boolean);
    let names = [
        ("readproportion", OperationKind::Read),
        ("updateproportion", OperationKind::Update),
        ("insertproportion", OperationKind::Insert),
        ("scanproportion", OperationKind::Scan),
        ("readmodifywriteproportion", OperationKind::ReadModifyWrite),
        ("deleteproportion", OperationKind::Delete),
    ];
    let defaults = workload.proportions;
    let weights =
        names.map(|(name, kind)| (kind, reader.read(name, weight).unwrap_or_else(|| defaults.share(kind))));
    match OperationProportions::new(&weights) {
        Ok(proportions) => workload.proportions = proportions,
        Err(problem) => reader.problem(&names.map(|(name, _)| name), problem),
    }
    if let Some(distribution) = reader.read("requestdistribution", RequestDistribution::parse) {
        workload.request_distribution = Some(distribution);
    }
    reader.set(&mut workload.hot_data_fraction, "hotspotdatafraction", share);
    reader.set(&mut workload.hot_operation_fraction, "hotspotopnfraction", share);
    let percentile = |text: &str| number(text).filter(|&value: &f64| value > 0.0 && value < 100.0);
    reader.set(&mut workload.exponential_percentile, "exponential.percentile", percentile);
    let fraction = |text: &str| share(text).filter(|&value| value > 0.0);
    reader.set(&mut workload.exponential_fraction, "exponential.frac", fraction);
    reader.set(&mut workload.min_scan_length, "minscanlength", positive);
    workload.max_scan_length = reader.read("maxscanlength", positive);
    let scan = |name: &str| match name {
        "uniform" => Some(ScanLengthDistribution::Uniform),
        "zipfian" => Some(ScanLengthDistribution::Zipfian),
        _ => None,
    };
    reader.set(&mut workload.scan_length_distribution, "scanlengthdistribution", scan);
}

fn read_execution(reader: &mut WorkloadReader, workload: &mut CoreWorkload) {
    // Zero stands for "no limit" in all of these, as in YCSB.
    workload.operation_count = reader.read("operationcount", number).filter(|&count| count > 0);
    reader.set(&mut workload.threads, "threadcount", positive);
    workload.target_rate_per_s = reader.read("target", weight).filter(|&rate| rate > 0.0);
    workload.max_execution_time =
        reader.read("maxexecutiontime", number).filter(|&limit_s| limit_s > 0).map(Duration::from_secs);
    workload.warmup_time = Duration::from_secs(reader.read("warmupexecutiontime", number).unwrap_or(0));
    reader.set(&mut workload.insert_retries, "core_workload_insertion_retry_limit", number);
    let interval = |text: &str| number(text).map(|seconds: u32| Duration::from_secs(u64::from(seconds)));
    reader.set(&mut workload.insert_retry_interval, "core_workload_insertion_retry_interval", interval);
    let core = |name: &str| name.ends_with("CoreWorkload").then_some(());
    reader.read("workload", core);
    for name in ["readallfieldsbyname", "dotransactions", "spin.sleep", "measurement.trackjvm"] {
        reader.read(name, boolean);
    }
}
