//! YCSB's supported properties, as data.

/// The subject of a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyScope {
    /// The records and the operations on them: [`crate::YcsbProperties::workload`] reads it.
    Workload,
    /// The output of a measurement: [`crate::ycsb::OutputOptions::of`] reads it.
    Output,
    /// An internal part of YCSB without a counterpart here: a valid value changes nothing, for this reason.
    Nothing(&'static str),
}

/// One property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProperty {
    pub name: &'static str,
    /// The requirement for a value, as printed in messages.
    pub expected: &'static str,
    /// CoreWorkload's default, or a description where it depends.
    pub default: &'static str,
    pub meaning: &'static str,
    pub scope: PropertyScope,
}

const COUNT: &str = "a whole number";
const SHARE: &str = "a number from 0 to 1";
const WEIGHT: &str = "a number of at least 0";
const BOOLEAN: &str = "true or false";

const fn property(
    name: &'static str,
    expected: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> KnownProperty {
    KnownProperty { name, expected, default, meaning, scope: PropertyScope::Workload }
}

const fn output(
    name: &'static str,
    expected: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> KnownProperty {
    KnownProperty { name, expected, default, meaning, scope: PropertyScope::Output }
}

const fn without_effect(
    name: &'static str,
    expected: &'static str,
    default: &'static str,
    reason: &'static str,
) -> KnownProperty {
    KnownProperty {
        name,
        expected,
        default,
        meaning: "has no effect here",
        scope: PropertyScope::Nothing(reason),
    }
}

/// All of them.
pub const KNOWN: &[KnownProperty] = &[
    property("recordcount", COUNT, "1000", "records that exist, or will after loading"),
    property("operationcount", COUNT, "unlimited", "operations of a run, in total"),
    property(
        "insertstart",
        COUNT,
        "0",
        "the number of the first record, where several clients share a data set",
    ),
    property("insertcount", COUNT, "recordcount - insertstart", "records that this client loads"),
    property("fieldcount", "a whole number of at least 1", "10", "fields in a record"),
    property("fieldlength", COUNT, "100", "bytes in a field, or the most where lengths are drawn"),
    property("minfieldlength", COUNT, "1", "the fewest bytes in a field, where lengths are drawn"),
    property(
        "fieldlengthdistribution",
        "constant, uniform, zipfian or histogram",
        "constant",
        "how field lengths are drawn",
    ),
    property(
        "fieldlengthhistogram",
        "a file's name",
        "hist.txt",
        "the histogram that field lengths are drawn from",
    ),
    property("fieldnameprefix", "a text", "field", "the prefix of fields' names, before their index"),
    without_effect("table", "a text", "usertable", "each system has one table, under a name of its own"),
    property("readallfields", BOOLEAN, "true", "read all fields of a record, or one"),
    without_effect("readallfieldsbyname", BOOLEAN, "false", "a read of all fields asks for every one anyway"),
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
        "uniform, or that of the mix that is named",
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
    property("minscanlength", "a whole number of at least 1", "1", "the fewest records in a scan"),
    property(
        "maxscanlength",
        "a whole number of at least 1",
        "1000, or that of the mix that is named",
        "the most records in a scan",
    ),
    property("scanlengthdistribution", "uniform or zipfian", "uniform", "how scan lengths are drawn"),
    property("insertorder", "hashed or ordered", "hashed", "whether names are hashes of record numbers"),
    property("zeropadding", "a whole number up to 1000", "1", "the fewest digits of a record's number"),
    property("dataintegrity", BOOLEAN, "false", "write values that can be checked, and check reads"),
    property("compressibility", SHARE, "0.5", "share of a value that repeats; an addition to CoreWorkload"),
    property("threadcount", "a whole number of at least 1", "1", "client threads"),
    property("target", "a number of at least 0", "0", "operations per second; 0 for as many as possible"),
    property("maxexecutiontime", COUNT, "0", "seconds after which a run ends; 0 for no limit"),
    property("warmupexecutiontime", COUNT, "0", "seconds of warm-up; an addition to CoreWorkload"),
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
        "seconds to wait before that, give or take a fifth",
    ),
    property(
        "workload",
        "a class name that ends in CoreWorkload",
        "site.ycsb.workloads.CoreWorkload",
        "the workload's class: there is only one",
    ),
    without_effect("db", "a text", "", "the system is named on the command line"),
    without_effect("dotransactions", BOOLEAN, "true", "the command says whether it loads or runs"),
    without_effect("spin.sleep", BOOLEAN, "false", "threads wait as precisely as they can in any case"),
    without_effect("measurement.trackjvm", BOOLEAN, "false", "there is no Java virtual machine"),
    output(
        "measurementtype",
        "hdrhistogram, histogram, hdrhistogram+histogram, hdrhistogram+raw, timeseries or raw",
        "hdrhistogram",
        "how latencies are printed; HdrHistograms are always kept",
    ),
    output(
        "measurement.interval",
        "op, intended or both",
        "both where they differ",
        "which latencies are printed; both are always kept",
    ),
    output("measurement.histogram.verbose", BOOLEAN, "false", "print every bucket of a histogram"),
    output(
        "histogram.buckets",
        "a whole number from 1 to 3600000",
        "1000",
        "how many buckets of a millisecond are printed",
    ),
    output(
        "timeseries.granularity",
        "a whole number of milliseconds from 1",
        "1000",
        "the interval of a time series, in milliseconds",
    ),
    output("measurement.raw.output_file", "a file's name", "", "where individual latencies go"),
    output(
        "measurement.raw.no_summary",
        BOOLEAN,
        "false",
        "print individual latencies without their percentiles",
    ),
    output(
        "hdrhistogram.percentiles",
        "numbers from 0 to 100, separated by commas",
        "95,99",
        "which percentiles are printed",
    ),
    output("hdrhistogram.fileoutput", BOOLEAN, "false", "write a log of the latencies of each interval"),
    output("hdrhistogram.output.path", "a text", "", "the prefix of such logs' names"),
    output(
        "reportlatencyforeacherror",
        BOOLEAN,
        "false",
        "print failed operations separately, by how they failed",
    ),
    output(
        "latencytrackederrors",
        "names of YCSB's statuses, separated by commas",
        "",
        "which kinds of failure are printed separately",
    ),
    output("status", BOOLEAN, "false", "report progress on standard error"),
    output("status.interval", "a whole number of seconds from 1", "10", "seconds between two such lines"),
    output("label", "a text", "", "the beginning of such a line"),
    output(
        "exporter",
        "TextMeasurementsExporter, JSONMeasurementsExporter or JSONArrayMeasurementsExporter",
        "TextMeasurementsExporter",
        "the form of the output",
    ),
    output("exportfile", "a file's name", "", "where the output goes"),
];

/// The property of this name, if it is supported.
pub fn known(name: &str) -> Option<&'static KnownProperty> {
    KNOWN.iter().find(|property| property.name == name)
}

/// The supported name that `name` is most likely a typing error for, if any is close.
pub fn suggestion(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    KNOWN
        .iter()
        .map(|property| (strsim::levenshtein(&lower, property.name), property.name))
        .filter(|&(distance, candidate)| distance <= 1 + candidate.len() / 6)
        .min()
        .map(|(_, candidate)| candidate)
}
