//! What is printed of a measurement, and how: YCSB's properties for its output.

use std::path::PathBuf;
use std::time::Duration;

use crate::ycsb::properties::{PropertyError, PropertyErrors, YcsbProperties, known};

/// How latencies are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeasurementType {
    /// Percentiles of three digits.
    #[default]
    HdrHistogram,
    /// Buckets of one millisecond.
    Histogram,
    /// The first two after one another, as `HdrREAD` and `BucketREAD`.
    HdrHistogramAndHistogram,
    /// Percentiles, and every single latency, as `HdrREAD` and `RawREAD`.
    HdrHistogramAndRaw,
    /// Mean latencies over time.
    TimeSeries,
    /// Every single latency.
    Raw,
}

impl MeasurementType {
    /// Whether it needs every single operation: [`super::SectionLatencies`].
    pub fn needs_points(self) -> bool {
        use MeasurementType::{HdrHistogramAndRaw, Raw, TimeSeries};
        matches!(self, HdrHistogramAndRaw | Raw | TimeSeries)
    }

    /// Whether single latencies are printed.
    pub fn is_raw(self) -> bool {
        matches!(self, MeasurementType::HdrHistogramAndRaw | MeasurementType::Raw)
    }
}

/// Which latencies are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencyIntervals {
    /// `[READ]` from the actual start.
    Service,
    /// `[READ]` from the intended start.
    Intended,
    /// `[READ]` from the actual start, and `[Intended-READ]`.
    Both,
    /// Both where they differ, as they do in an open loop.
    #[default]
    BothWhereTheyDiffer,
}

/// The names for failed operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FailureNames {
    /// `READ-FAILED`, whatever the failure.
    #[default]
    Together,
    /// `READ-NOT_FOUND` and so on.
    ByStatus,
    /// By status if it is one of these, otherwise together.
    ByStatusOf(Vec<String>),
}

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExporterFormat {
    /// `[READ], Operations, 100`, one line each.
    #[default]
    Text,
    /// JSON objects one after the other.
    Json,
    /// The same objects in an array.
    JsonArray,
}

/// All of YCSB's properties for its output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputOptions {
    pub measurement: MeasurementType,
    pub intervals: LatencyIntervals,
    pub failures: FailureNames,
    /// In percent.
    pub percentiles: Vec<f64>,
    /// Print every bucket of a histogram.
    pub verbose: bool,
    /// The number of one-millisecond buckets in a plain histogram.
    pub buckets: u64,
    /// The length of time of each mean in a time series.
    pub granularity: Duration,
    /// Where single latencies are appended; standard output when absent.
    pub raw_file: Option<PathBuf>,
    /// Leave out the percentiles of single latencies.
    pub no_raw_summary: bool,
    pub exporter: ExporterFormat,
    /// Where to print; standard output when absent.
    pub export_file: Option<PathBuf>,
    /// Print a status line on standard error at intervals.
    pub status: bool,
    pub status_interval: Duration,
    /// The beginning of a status line.
    pub label: String,
    /// Write the latencies of each interval to `{path}{NAME}.hdr`, one file per operation.
    pub histogram_logs: Option<String>,
}

impl Default for OutputOptions {
    fn default() -> Self {
        OutputOptions {
            measurement: MeasurementType::default(),
            intervals: LatencyIntervals::default(),
            failures: FailureNames::default(),
            percentiles: vec![95.0, 99.0],
            verbose: false,
            buckets: 1000,
            granularity: Duration::from_secs(1),
            raw_file: None,
            no_raw_summary: false,
            exporter: ExporterFormat::default(),
            export_file: None,
            status: false,
            status_interval: Duration::from_secs(10),
            label: String::new(),
            histogram_logs: None,
        }
    }
}

/// Fewer are no histogram, and more than an hour's make no sense for latencies.
const BUCKETS: std::ops::RangeInclusive<u64> = 1..=3_600_000;
/// Every status with a name in YCSB.
const STATUSES: [&str; 9] = [
    "OK",
    "ERROR",
    "NOT_FOUND",
    "NOT_IMPLEMENTED",
    "UNEXPECTED_STATE",
    "BAD_REQUEST",
    "FORBIDDEN",
    "SERVICE_UNAVAILABLE",
    "BATCHED_OK",
];

impl OutputOptions {
    /// Reads them, with YCSB's defaults for those not given.
    ///
    /// # Errors
    /// Every value that YCSB would not accept, or that has no counterpart here, each with its place.
    pub fn from_properties(properties: &YcsbProperties) -> Result<Self, PropertyErrors> {
        let mut reader = Reader { properties, errors: Vec::new() };
        let mut options = OutputOptions::default();
        options.read_latencies(&mut reader);
        options.read_places(&mut reader);
        if reader.errors.is_empty() { Ok(options) } else { Err(PropertyErrors(reader.errors)) }
    }

    fn read_latencies(&mut self, reader: &mut Reader<'_>) {
        reader.read("measurementtype", &mut self.measurement, |text| match text {
            "hdrhistogram" => Some(MeasurementType::HdrHistogram),
            "histogram" => Some(MeasurementType::Histogram),
            "hdrhistogram+histogram" => Some(MeasurementType::HdrHistogramAndHistogram),
            "hdrhistogram+raw" => Some(MeasurementType::HdrHistogramAndRaw),
            "timeseries" => Some(MeasurementType::TimeSeries),
            "raw" => Some(MeasurementType::Raw),
            _ => None,
        });
        reader.read("measurement.interval", &mut self.intervals, |text| match text {
            "op" => Some(LatencyIntervals::Service),
            "intended" => Some(LatencyIntervals::Intended),
            "both" => Some(LatencyIntervals::Both),
            _ => None,
        });
        reader.read("hdrhistogram.percentiles", &mut self.percentiles, |text| {
            let number =
                |part: &str| part.trim().parse::<f64>().ok().filter(|value| (0.0..=100.0).contains(value));
            text.split(',').map(number).collect()
        });
        reader.read("measurement.histogram.verbose", &mut self.verbose, boolean);
        reader.read("histogram.buckets", &mut self.buckets, |text| {
            text.parse::<u64>().ok().filter(|buckets| BUCKETS.contains(buckets))
        });
        reader.read("timeseries.granularity", &mut self.granularity, |text| {
            text.parse::<u64>().ok().filter(|&ms| ms > 0).map(Duration::from_millis)
        });
        reader.read("measurement.raw.no_summary", &mut self.no_raw_summary, boolean);
        reader.read("latencytrackederrors", &mut self.failures, |text| {
            let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
            let are_known = names.iter().all(|name| STATUSES.contains(&name.as_str()));
            are_known.then_some(FailureNames::ByStatusOf(names))
        });
        let mut by_status = false;
        reader.read("reportlatencyforeacherror", &mut by_status, boolean);
        // YCSB reads the list of statuses only without this.
        if by_status {
            self.failures = FailureNames::ByStatus;
        }
    }

    fn read_places(&mut self, reader: &mut Reader<'_>) {
        let file = |text: &str| (!text.is_empty()).then(|| Some(PathBuf::from(text)));
        reader.read("measurement.raw.output_file", &mut self.raw_file, file);
        reader.read("exporter", &mut self.exporter, |text| {
            // With or without the package name.
            match text.rsplit('.').next()? {
                "TextMeasurementsExporter" => Some(ExporterFormat::Text),
                "JSONMeasurementsExporter" => Some(ExporterFormat::Json),
                "JSONArrayMeasurementsExporter" => Some(ExporterFormat::JsonArray),
                _ => None,
            }
        });
        reader.read("exportfile", &mut self.export_file, file);
        reader.read("status", &mut self.status, boolean);
        reader.read("status.interval", &mut self.status_interval, |text| {
            text.parse::<u64>().ok().filter(|&seconds| seconds > 0).map(Duration::from_secs)
        });
        reader.read_untrimmed("label", &mut self.label, |text| Some(text.to_owned()));
        let mut writes_logs = false;
        reader.read("hdrhistogram.fileoutput", &mut writes_logs, boolean);
        let mut log_path = String::new();
        reader.read("hdrhistogram.output.path", &mut log_path, |text| Some(text.to_owned()));
        self.histogram_logs = writes_logs.then_some(log_path);
    }
}

fn boolean(text: &str) -> Option<bool> {
    // Java reads booleans in upper or lower case.
    text.to_ascii_lowercase().parse().ok()
}

struct Reader<'a> {
    properties: &'a YcsbProperties,
    errors: Vec<PropertyError>,
}

impl Reader<'_> {
    fn read<T>(&mut self, name: &str, target: &mut T, parse: impl FnOnce(&str) -> Option<T>) {
        self.read_untrimmed(name, target, |text| parse(text.trim()));
    }

    /// Blanks around the value belong to it.
    fn read_untrimmed<T>(&mut self, name: &str, target: &mut T, parse: impl FnOnce(&str) -> Option<T>) {
        let Some(property) = self.properties.get(name) else { return };
        match parse(&property.value) {
            Some(value) => *target = value,
            None => {
                let expected = known(name).map_or("another value", |known_property| known_property.expected);
                let problem = format!("{name} is '{}': expected {expected}", property.value);
                self.errors.push(PropertyError { origin: property.origin.clone(), problem });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ycsb::properties::{KNOWN, PropertyScope};

    fn options(text: &str) -> Result<OutputOptions, PropertyErrors> {
        let mut properties = YcsbProperties::new();
        properties.add_text("w.properties", text).unwrap();
        OutputOptions::from_properties(&properties)
    }

    #[test]
    fn defaults_are_ycsbs_with_both_latencies() {
        assert_eq!(options("recordcount=5"), Ok(OutputOptions::default()));
    }

    #[test]
    fn properties_are_all_read() {
        let text = "measurementtype=hdrhistogram+raw\n\
            measurement.interval=op\n\
            hdrhistogram.percentiles=50,99.9\n\
            measurement.histogram.verbose=TRUE\n\
            histogram.buckets=200\n\
            timeseries.granularity=250\n\
            measurement.raw.output_file=raw.txt\n\
            measurement.raw.no_summary=true\n\
            latencytrackederrors=NOT_FOUND, ERROR\n\
            exporter=site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter\n\
            exportfile=out.json\n\
            status=true\n\
            status.interval=3\n\
            label=first\n\
            hdrhistogram.fileoutput=true\n\
            hdrhistogram.output.path=logs/a-\n";
        let expected = OutputOptions {
            measurement: MeasurementType::HdrHistogramAndRaw,
            intervals: LatencyIntervals::Service,
            failures: FailureNames::ByStatusOf(vec!["NOT_FOUND".to_owned(), "ERROR".to_owned()]),
            percentiles: vec![50.0, 99.9],
            verbose: true,
            buckets: 200,
            granularity: Duration::from_millis(250),
            raw_file: Some(PathBuf::from("raw.txt")),
            no_raw_summary: true,
            exporter: ExporterFormat::JsonArray,
            export_file: Some(PathBuf::from("out.json")),
            status: true,
            status_interval: Duration::from_secs(3),
            label: "first".to_owned(),
            histogram_logs: Some("logs/a-".to_owned()),
        };
        assert_eq!(options(text), Ok(expected));
        assert_eq!(options("hdrhistogram.output.path=logs/").unwrap().histogram_logs, None);
        // YCSB puts nothing between a label and the time.
        assert_eq!(options("label=first:\\ ").unwrap().label, "first: ");
        assert_eq!(options("reportlatencyforeacherror=true").unwrap().failures, FailureNames::ByStatus);
    }

    /// All options for the output are read: nonsense is refused.
    #[test]
    fn nonsense_output_properties_are_refused() {
        // These accept any text.
        let texts = ["measurement.raw.output_file", "exportfile", "label", "hdrhistogram.output.path"];
        for property in KNOWN.iter().filter(|property| property.scope == PropertyScope::Output) {
            let read = options(&format!("{}=\u{2603}", property.name));
            assert_eq!(read.is_ok(), texts.contains(&property.name), "{}", property.name);
        }
    }

    #[test]
    fn mistakes_are_named_with_places() {
        let text = "measurementtype=fast\nhistogram.buckets=0\nexporter=com.example.Mine\nstatus.interval=soon\n\
            latencytrackederrors=LOST\ntimeseries.granularity=0";
        let expected = "\
w.properties:1: measurementtype is 'fast': expected hdrhistogram, histogram, hdrhistogram+histogram, hdrhistogram+raw, \
timeseries or raw
w.properties:2: histogram.buckets is '0': expected a whole number from 1 to 3600000
w.properties:6: timeseries.granularity is '0': expected a whole number of milliseconds from 1
w.properties:5: latencytrackederrors is 'LOST': expected names of YCSB's statuses, separated by commas
w.properties:3: exporter is 'com.example.Mine': expected TextMeasurementsExporter, JSONMeasurementsExporter or \
JSONArrayMeasurementsExporter
w.properties:4: status.interval is 'soon': expected a whole number of seconds from 1";
        assert_eq!(options(text).unwrap_err().to_string(), expected);
    }
}
