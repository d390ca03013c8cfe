//! The CoreWorkload properties that are understood, as data.

/// One property that [`crate::Properties::workload`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProperty {
    pub name: &'static str,
    /// What a value must be, as messages print it.
    pub expected: &'static str,
    /// As CoreWorkload has it, or a description where it depends.
    pub default: &'static str,
    pub meaning: &'static str,
}

const COUNT: &str = "a whole number";
const SHARE: &str = "a number from 0 to 1";
const WEIGHT: &str = "a number from 0 up";
const BOOLEAN: &str = "true or false";

const fn property(
    name: &'static str,
    expected: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> KnownProperty {
    KnownProperty { name, expected, default, meaning }
}

/// All of them. `accepted and ignored` marks what speaks of YCSB's own machinery.
pub const KNOWN: &[KnownProperty] = &[
    property("recordcount", COUNT, "1000", "records that are there, or shall be after loading"),
    property("operationcount", COUNT, "unlimited", "operations of a run in all"),
    property(
        "insertstart",
        COUNT,
        "0",
        "the number of the first record, where several clients share a data set",
    ),
    property("insertcount", COUNT, "recordcount - insertstart", "records that this client loads"),
    property("fieldcount", "a whole number from 1", "10", "fields in a record"),
    property("fieldlength", COUNT, "100", "bytes in a field, or the most there are"),
    property("minfieldlength", COUNT, "1", "the fewest bytes in a field, where lengths are drawn"),
    property(
        "fieldlengthdistribution",
        "constant, uniform or zipfian",
        "constant",
        "how field lengths are drawn",
    ),
    property("fieldnameprefix", "a text", "field", "fields are called by it and their index"),
    property("table", "a text", "usertable", "the table's name"),
    property("readallfields", BOOLEAN, "true", "read all fields of a record, or one"),
    property("readallfieldsbyname", BOOLEAN, "false", "accepted and ignored: fields are always named"),
    property("writeallfields", BOOLEAN, "false", "update all fields of a record, or one"),
    property("readproportion", WEIGHT, "0.95", "share of reads"),
    property("updateproportion", WEIGHT, "0.05", "share of updates"),
    property("insertproportion", WEIGHT, "0", "share of inserts"),
    property("scanproportion", WEIGHT, "0", "share of scans"),
    property(
        "readmodifywriteproportion",
        WEIGHT,
        "0",
        "share of reads followed by an update of the same record",
    ),
    property("deleteproportion", WEIGHT, "0", "share of deletes; an addition to CoreWorkload"),
    property(
        "requestdistribution",
        "uniform, zipfian, latest, hotspot, exponential or sequential",
        "that of the mix",
        "which records are asked for",
    ),
    property("hotspotdatafraction", SHARE, "0.2", "share of the records that is hot"),
    property("hotspotopnfraction", SHARE, "0.8", "share of the operations that the hot records get"),
    property(
        "exponential.percentile",
        "a number between 0 and 100",
        "95",
        "percent of the operations in the newest part of the records",
    ),
    property(
        "exponential.frac",
        "a number above 0, up to 1",
        "0.8571428571",
        "how large that newest part is",
    ),
    property("minscanlength", "a whole number from 1", "1", "the fewest records in a scan"),
    property("maxscanlength", "a whole number from 1", "that of the mix", "the most records in a scan"),
    property("scanlengthdistribution", "uniform or zipfian", "uniform", "how scan lengths are drawn"),
    property("insertorder", "hashed or ordered", "hashed", "whether names are hashes of record numbers"),
    property("zeropadding", "a whole number up to 1000", "1", "digits that a record's number has at least"),
    property("dataintegrity", BOOLEAN, "false", "write values that can be checked, and check what is read"),
    property("compressibility", SHARE, "0.5", "share of a value that repeats; an addition to CoreWorkload"),
    property("threadcount", "a whole number from 1", "1", "client threads"),
    property("target", "a number from 0 up", "0", "operations per second; 0 for as many as possible"),
    property("maxexecutiontime", COUNT, "0", "seconds after which a run ends; 0 for no limit"),
    property("warmupexecutiontime", COUNT, "0", "seconds of warm-up; an addition to CoreWorkload"),
    property(
        "workload",
        "a class name that ends in CoreWorkload",
        "site.ycsb.workloads.CoreWorkload",
        "accepted and ignored: there is no other",
    ),
    property("db", "a text", "", "accepted and ignored: the system is named on the command line"),
    property(
        "measurementtype",
        "a text",
        "hdrhistogram",
        "accepted and ignored: HdrHistograms are always kept",
    ),
    property(
        "measurement.interval",
        "op, intended or both",
        "both",
        "accepted and ignored: both are always kept",
    ),
    property(
        "hdrhistogram.percentiles",
        "numbers with commas between",
        "50,95,99",
        "printed in YCSB's output format",
    ),
    property("status.interval", COUNT, "10", "accepted and ignored: progress is always live"),
    property("exporter", "a text", "", "accepted and ignored"),
    property("exportfile", "a text", "", "accepted and ignored"),
    property(
        "core_workload_insertion_retry_limit",
        COUNT,
        "0",
        "how often a failed insert of a load is repeated",
    ),
    property(
        "core_workload_insertion_retry_interval",
        COUNT,
        "3",
        "accepted and ignored: repeats follow at once",
    ),
];

/// The property of this name, when it is understood.
pub fn known(name: &str) -> Option<&'static KnownProperty> {
    KNOWN.iter().find(|property| property.name == name)
}

/// The understood name that `name` is most likely a slip for, if any is near.
pub fn suggestion(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    KNOWN
        .iter()
        .map(|property| (edit_distance(&lower, property.name), property.name))
        .filter(|&(distance, known)| distance <= 1 + known.len() / 6)
        .min()
        .map(|(_, known)| known)
}

/// Levenshtein's distance in characters.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, from) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
