//! The generator against YCSB's own: both are given the same properties, and what they ask a system for is compared.
//! Names and their order must be the same; draws must be from the same law. YCSB comes from its Maven artifact.

mod checked;
mod chi_square;
mod peer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chi_square::{assert_same, difference};
use peer::Asked;
use underlay_workload::client::{Client, ClientError, FieldSelection, FieldValues, OperationOutcome};
use underlay_workload::ycsb::{OutputOptions, RunFacts, SectionLatencies, entries, export};
use underlay_workload::{NullClient, OperationMix, RawLog, RunHandle, RunSpec, YcsbProperties, run};

const OPERATIONS: u64 = 150_000;

/// Notes what it is asked for.
struct Noting(Arc<Mutex<Vec<Asked>>>);

impl Noting {
    fn note(&mut self, kind: &'static str, key: &[u8], scan_length: u32, field: Option<u32>) {
        let key = String::from_utf8(key.to_vec()).expect("keys are text");
        let field = field.map(|field| format!("field{field}"));
        self.0.lock().unwrap().push(Asked { kind, key, scan_length, field });
    }
}

fn one(fields: FieldSelection) -> Option<u32> {
    match fields {
        FieldSelection::All => None,
        FieldSelection::One(field) => Some(field),
    }
}

impl Client for Noting {
    fn read(
        &mut self,
        key: &[u8],
        fields: FieldSelection,
        _: &mut FieldValues,
    ) -> Result<OperationOutcome, ClientError> {
        self.note("READ", key, 0, one(fields));
        Ok(OperationOutcome::Found)
    }
    fn scan(
        &mut self,
        key: &[u8],
        limit: u32,
        fields: FieldSelection,
    ) -> Result<(OperationOutcome, u32), ClientError> {
        self.note("SCAN", key, limit, one(fields));
        Ok((OperationOutcome::Found, limit))
    }
    fn update(&mut self, key: &[u8], values: &FieldValues) -> Result<OperationOutcome, ClientError> {
        let mut fields = values.iter().map(|(field, _)| field);
        let first = fields.next();
        self.note("UPDATE", key, 0, first.filter(|_| fields.next().is_none()));
        Ok(OperationOutcome::Found)
    }
    fn insert(&mut self, key: &[u8], _: &FieldValues) -> Result<OperationOutcome, ClientError> {
        self.note("INSERT", key, 0, None);
        Ok(OperationOutcome::Found)
    }
    fn delete(&mut self, _: &[u8]) -> Result<OperationOutcome, ClientError> {
        Ok(OperationOutcome::Found)
    }
}

fn asked_by_us(loads: bool, properties: &[String]) -> Vec<Asked> {
    asked_with_seed(1, loads, properties)
}

fn asked_with_seed(seed: u64, loads: bool, properties: &[String]) -> Vec<Asked> {
    let mut ycsb_properties = YcsbProperties::new();
    properties.iter().for_each(|property| ycsb_properties.add_argument(property).unwrap());
    let workload = Arc::new(ycsb_properties.workload().unwrap().with_core_defaults());
    let mix = if loads { OperationMix::parse("load").unwrap() } else { workload.mix() };
    let spec = RunSpec {
        duration: Duration::MAX,
        operation_limit: workload.operation_count.filter(|_| !loads),
        seed,
        ..RunSpec::new(workload, mix)
    };
    let asked = Arc::new(Mutex::new(Vec::new()));
    run(&spec, &|_| Ok(Box::new(Noting(Arc::clone(&asked)))), &RunHandle::new()).unwrap();
    std::mem::take(&mut *asked.lock().unwrap())
}

/// With as many operations as draws are compared of.
fn with_operations(properties: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = properties.iter().map(|&property| property.to_owned()).collect();
    // What is written is of no interest here, and short.
    all.extend(["fieldlength=1".to_owned(), format!("operationcount={OPERATIONS}")]);
    all
}

/// Ours and YCSB's, under CoreWorkload's properties.
fn both(properties: &[&str]) -> [Vec<Asked>; 2] {
    let all = with_operations(properties);
    [asked_by_us(false, &all), peer::asked("-t", &all)]
}

fn counts<K: Ord>(asked: &[Asked], value: impl Fn(&Asked) -> Option<K>) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    asked.iter().filter_map(value).for_each(|value| *counts.entry(value).or_default() += 1);
    counts
}

fn assert_same_by<K: Ord>(
    label: &str,
    [ours, theirs]: &[Vec<Asked>; 2],
    value: impl Fn(&Asked) -> Option<K>,
) {
    assert_same(label, &counts(ours, &value), &counts(theirs, &value));
}

fn assert_same_mix(label: &str, asked: &[Vec<Asked>; 2]) {
    assert_same_by(&format!("operations of {label}"), asked, |one| Some(one.kind));
}

/// Keys of everything but added records, each of which comes once.
fn assert_same_keys(label: &str, asked: &[Vec<Asked>; 2]) {
    let key = |one: &Asked| (one.kind != "INSERT").then(|| one.key.clone());
    assert_same_by(&format!("keys of {label}"), asked, key);
}

/// Where every record comes many times, one too many or too few shows best by its name.
fn assert_same_names(label: &str, [ours, theirs]: &[Vec<Asked>; 2]) {
    let names = |asked: &[Asked]| counts(asked, |one| Some(one.key.clone())).into_keys().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "names of {label}");
}

/// A mix, and the keys of a distribution by which every record comes many times.
fn assert_alike(workload: &str, distribution: &str, asked: &[Vec<Asked>; 2]) {
    assert_same_mix(&format!("workload {workload}"), asked);
    assert_same_keys(distribution, asked);
    assert_same_names(distribution, asked);
}

/// How far behind the newest record the records asked for are, where names are numbers.
fn ages(asked: &[Asked], records: u64) -> BTreeMap<u64, u64> {
    let number = |one: &Asked| one.key.strip_prefix("user").unwrap().parse::<u64>().unwrap();
    let (mut last, mut ages) = (records - 1, BTreeMap::new());
    for one in asked {
        if one.kind == "INSERT" {
            last = last.max(number(one));
        } else {
            *ages.entry(last - number(one)).or_default() += 1;
        }
    }
    ages
}

#[test]
fn loading_inserts_the_same_names_in_the_same_order() {
    let namings = [
        &["insertorder=hashed"][..],
        &["insertorder=hashed", "zeropadding=24"],
        &["insertorder=ordered", "zeropadding=12"],
    ];
    for naming in namings {
        let mut properties: Vec<String> = naming.iter().map(|&property| property.to_owned()).collect();
        // Without insertcount YCSB loads as many as recordcount says, from insertstart on: more than it then asks for.
        let part = ["recordcount=3000", "insertstart=500", "insertcount=2500", "fieldlength=1"];
        properties.extend(part.map(str::to_owned));
        let (ours, theirs) = (asked_by_us(true, &properties), peer::asked("-load", &properties));
        assert_eq!(ours.len(), 2500);
        assert_eq!(ours, theirs);
    }
}

#[test]
fn sequential_keys_come_in_ycsbs_order() {
    let properties = [
        "recordcount=900",
        "insertstart=200",
        "insertcount=700",
        "operationcount=1600",
        "readproportion=1",
        "updateproportion=0",
        "requestdistribution=sequential",
    ];
    let properties: Vec<String> = properties.iter().map(|&property| property.to_owned()).collect();
    let (ours, theirs) = (asked_by_us(false, &properties), peer::asked("-t", &properties));
    assert_eq!(ours.len(), 1600);
    assert_eq!(ours, theirs);
}

#[test]
fn workload_a_and_uniform_keys_are_ycsbs() {
    let asked = both(&[
        "recordcount=1000",
        "readproportion=0.5",
        "updateproportion=0.5",
        "requestdistribution=uniform",
        "readallfields=false",
    ]);
    assert_alike("A", "uniform", &asked);
    assert_same_by("fields", &asked, |one| one.field.clone());
}

#[test]
fn workload_b_and_zipfian_keys_are_ycsbs() {
    let asked = both(&[
        "recordcount=1000",
        "readproportion=0.95",
        "updateproportion=0.05",
        "requestdistribution=zipfian",
    ]);
    assert_alike("B", "zipfian", &asked);
}

#[test]
fn workload_c_and_hotspot_keys_are_ycsbs() {
    let asked = both(&[
        "recordcount=1000",
        "insertstart=100",
        "readproportion=1",
        "updateproportion=0",
        "requestdistribution=hotspot",
        "hotspotdatafraction=0.1",
        "hotspotopnfraction=0.7",
    ]);
    assert_alike("C", "hotspot", &asked);
}

#[test]
fn workload_d_and_latest_keys_are_ycsbs() {
    let asked = both(&[
        "recordcount=1000",
        "readproportion=0.95",
        "updateproportion=0",
        "insertproportion=0.05",
        "requestdistribution=latest",
        "insertorder=ordered",
    ]);
    assert_same_mix("workload D", &asked);
    assert_same("ages of latest", &ages(&asked[0], 1000), &ages(&asked[1], 1000));
    // Without inserts every record has its own frequency, down to the first, which is never asked for.
    let still = both(&[
        "recordcount=300",
        "readproportion=1",
        "updateproportion=0",
        "requestdistribution=latest",
        "insertorder=ordered",
    ]);
    assert_same_keys("latest", &still);
    assert_same_names("latest", &still);
    assert!(still.iter().flatten().all(|one| one.key != "user0"));
}

#[test]
fn workload_e_and_scan_lengths_are_ycsbs() {
    let mix = ["readproportion=0", "updateproportion=0", "scanproportion=0.95", "insertproportion=0.05"];
    let length = |one: &Asked| (one.kind == "SCAN").then_some(one.scan_length);
    let properties =
        [&mix[..], &["recordcount=20000", "requestdistribution=zipfian", "maxscanlength=100"]].concat();
    let asked = both(&properties);
    assert_same_mix("workload E", &asked);
    assert_same_keys("zipfian with inserts", &asked);
    assert_same_by("uniform scan lengths", &asked, length);
    let properties = [
        &mix[..],
        &[
            "recordcount=1000",
            "requestdistribution=uniform",
            "scanlengthdistribution=zipfian",
            "minscanlength=3",
        ],
    ]
    .concat();
    assert_same_by("zipfian scan lengths", &both(&properties), length);
}

#[test]
fn workload_f_and_exponential_keys_are_ycsbs() {
    let asked = both(&[
        "recordcount=1000",
        "readproportion=0.5",
        "updateproportion=0",
        "readmodifywriteproportion=0.5",
        "requestdistribution=exponential",
        "exponential.percentile=90",
        "exponential.frac=0.3",
        "insertorder=ordered",
    ]);
    // A read-modify-write shows as a read and an update of the same record.
    assert_same_mix("workload F", &asked);
    for one in &asked {
        let pairs = one.windows(2).filter(|pair| pair[1].kind == "UPDATE");
        assert!(pairs.into_iter().all(|pair| pair[0].kind == "READ" && pair[0].key == pair[1].key));
    }
    // Keys of reads: those of updates are the same over again.
    assert_same_by("keys of exponential", &asked, |one| (one.kind == "READ").then(|| one.key.clone()));
}

/// How finely the comparison sees: ours against ours with another number in one property, and against ours with the
/// same.
#[test]
fn slightly_wrong_law_is_detected() {
    let reads = ["readproportion=1", "updateproportion=0", "insertorder=ordered"];
    let scans = ["readproportion=0", "updateproportion=0", "scanproportion=1", "recordcount=1000"];
    let cases: [(&[&str], &str, &str); 8] = [
        (&["readproportion=0.5", "recordcount=1000"], "updateproportion=0.5", "updateproportion=0.54"),
        (&reads, "recordcount=1000", "recordcount=1005"),
        (
            &[&reads[..], &["recordcount=1000", "requestdistribution=hotspot", "hotspotdatafraction=0.1"]]
                .concat(),
            "hotspotopnfraction=0.7",
            "hotspotopnfraction=0.68",
        ),
        (
            &[&reads[..], &["recordcount=1000", "requestdistribution=exponential", "exponential.frac=0.3"]]
                .concat(),
            "exponential.percentile=90",
            "exponential.percentile=91",
        ),
        (&[&reads[..], &["requestdistribution=latest"]].concat(), "recordcount=300", "recordcount=310"),
        (
            &[&reads[..], &["recordcount=1000"]].concat(),
            "requestdistribution=zipfian",
            "requestdistribution=latest",
        ),
        (&scans, "maxscanlength=100", "maxscanlength=101"),
        (
            &[&scans[..], &["scanlengthdistribution=zipfian"]].concat(),
            "maxscanlength=100",
            "maxscanlength=110",
        ),
    ];
    for (common, right, wrong) in cases {
        let drawn = |seed, property| {
            let asked = asked_with_seed(seed, false, &with_operations(&[common, &[property]].concat()));
            // Filled up, numbers are in the order of their size.
            let texts: [fn(&Asked) -> String; 3] = [
                |one| one.kind.to_owned(),
                |one| format!("{:>12}", one.key),
                |one| format!("{:>12}", one.scan_length),
            ];
            texts.map(|text| counts(&asked, |one| Some(text(one))))
        };
        let differ = |one: &[BTreeMap<String, u64>; 3], other: &[BTreeMap<String, u64>; 3]| {
            one.iter().zip(other).find_map(|(one, other)| difference(one, other))
        };
        let ours = drawn(1, right);
        assert_eq!(differ(&ours, &drawn(2, right)), None, "{right}");
        assert!(differ(&ours, &drawn(3, wrong)).is_some(), "{wrong} was taken for {right}");
    }
}

/// What we print under CoreWorkload's properties.
fn printed_by_us(properties: &[String]) -> String {
    let mut ycsb_properties = YcsbProperties::new();
    properties.iter().for_each(|property| ycsb_properties.add_argument(property).unwrap());
    let options = OutputOptions::from_properties(&ycsb_properties).unwrap();
    let workload = Arc::new(ycsb_properties.workload().unwrap().with_core_defaults());
    let mix = workload.mix();
    let operation_limit = workload.operation_count;
    let spec = RunSpec { duration: Duration::MAX, operation_limit, ..RunSpec::new(workload, mix) };
    let mut control = RunHandle::new();
    control.keeps_particulars = true;
    let (log, operations) = RawLog::new();
    control.log_operations(log);
    let (measured, points) = std::thread::scope(|scope| {
        let points = scope.spawn(|| SectionLatencies::from_operations(operations, &options, Duration::MAX));
        let measured = run(&spec, &|_| Ok(Box::new(NullClient)), &control).unwrap();
        (measured, points.join().unwrap())
    });
    let particulars = control.particulars();
    let facts = RunFacts { particulars: Some(&particulars), points: Some(&points) };
    export(&entries(&measured, facts, &options), options.exporter)
}

/// The names of the measurements of each section, in their order, with the numbers of operations. Left out are the
/// times of a series, and garbage collectors one by one.
fn shape(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut shape: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with('[')) {
        let parts: Vec<&str> = line.splitn(3, ", ").collect();
        let [section, name, value] = parts[..] else { panic!("{line}") };
        let is_of_a_collector = section.starts_with("[TOTAL_GCS_")
            || (section.starts_with("[TOTAL_GC_TIME_") && section != "[TOTAL_GC_TIME_%]");
        if is_of_a_collector || name.parse::<u64>().is_ok() {
            continue;
        }
        let is_exact = name.contains("Operations") || name.starts_with("Return=");
        let shown = if is_exact { format!("{name} {value}") } else { name.to_owned() };
        shape.entry(section.to_owned()).or_default().push(shown);
    }
    shape
}

#[test]
fn output_has_ycsbs_sections_and_measurements() {
    for measurement in
        ["hdrhistogram", "histogram", "hdrhistogram+histogram", "hdrhistogram+raw", "timeseries", "raw"]
    {
        let properties = [
            "recordcount=1000",
            "operationcount=2000",
            "readproportion=1",
            "updateproportion=0",
            "readmodifywriteproportion=0",
            "requestdistribution=uniform",
            "hdrhistogram.percentiles=50,95,99.9",
            "measurement.interval=both",
            "basicdb.verbose=false",
            &format!("measurementtype={measurement}"),
        ];
        let properties: Vec<String> = properties.iter().map(|&property| property.to_owned()).collect();
        assert_eq!(
            shape(&printed_by_us(&properties)),
            shape(&peer::printed("-t", &properties)),
            "{measurement}"
        );
        // Of parts and wholes there are as many as are drawn.
        let sections = |text: &str| shape(text).into_keys().collect::<Vec<_>>();
        let modifying = properties.iter().map(|property| match property.as_str() {
            "readmodifywriteproportion=0" => "readmodifywriteproportion=1".to_owned(),
            _ => property.clone(),
        });
        let modifying: Vec<String> = modifying.collect();
        assert_eq!(
            sections(&printed_by_us(&modifying)),
            sections(&peer::printed("-t", &modifying)),
            "{measurement}"
        );
    }
}
