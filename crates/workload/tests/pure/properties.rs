//! The `.properties` format and CoreWorkload's names: what is understood, and what a mistake looks like.

use std::time::Duration;

use proptest::prelude::*;
use underlay_workload::keys::{InsertOrder, KeyNaming, fnv1a_64};
use underlay_workload::properties::{KNOWN, known, suggestion};
use underlay_workload::values::FieldLength;
use underlay_workload::{CoreWorkload, OperationMix, PropertyOrigin, RequestDistribution, YcsbProperties};

fn parse(text: &str) -> YcsbProperties {
    let mut properties = YcsbProperties::new();
    properties.add_text("test.properties", text).unwrap();
    properties
}

fn pairs(text: &str) -> Vec<(String, String)> {
    parse(text).iter().map(|property| (property.name.clone(), property.value.clone())).collect()
}

fn mistakes(text: &str) -> String {
    let mut properties = YcsbProperties::new();
    match properties.add_text("w.properties", text) {
        Err(errors) => errors.to_string(),
        Ok(()) => properties.workload().expect_err("a mistake was expected").to_string(),
    }
}

#[test]
fn format_matches_java_properties() {
    let text = "# a comment\n\
        ! another\n\
        \n\
        plain=value\n\
        \x20  indented : colon\n\
        blank separated\n\
        continued = one, \\\n      two\n\
        spaced\\ name = a\\tb\\u0041\n\
        empty=\n\
        alone\n\
        a\\=b=c=d\n\
        path=C:\\\\dir\\\n\
        # not a comment\n\
        pair=\\ud83d\\ude00!\r\nafter=crlf \t\n\
        kept=blank\\ \x20\n\
        backslash=C:\\\\ ";
    let expected = [
        ("plain", "value"),
        ("indented", "colon"),
        ("blank", "separated"),
        ("continued", "one, two"),
        ("spaced name", "a\tbA"),
        ("empty", ""),
        ("alone", ""),
        ("a=b", "c=d"),
        ("path", "C:\\dir# not a comment"),
        ("pair", "😀!"),
        ("after", "crlf"),
        ("kept", "blank "),
        ("backslash", "C:\\"),
    ];
    let found = pairs(text);
    let found: Vec<(&str, &str)> =
        found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn last_value_wins_and_arguments_override_files() {
    let mut properties = parse("recordcount=1\nfieldcount=3\nrecordcount=2\n");
    properties.add_argument("recordcount = 7").unwrap();
    assert_eq!(properties.get("recordcount").unwrap().value, "7");
    assert_eq!(
        properties.get("fieldcount").unwrap().origin,
        PropertyOrigin::File { name: "test.properties".into(), line: 2 }
    );
    assert_eq!(properties.iter().count(), 2);
    assert_eq!(properties.workload().unwrap().record_count, 7);
}

#[test]
fn ycsbs_own_workload_files_are_understood() {
    let text = "recordcount=1000\noperationcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\
        readallfields=true\nreadproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\n\
        requestdistribution=zipfian\nmaxscanlength=100\nscanlengthdistribution=uniform\n";
    let properties = parse(text);
    let workload = properties.workload().unwrap();
    assert_eq!(workload.mix(), OperationMix::parse("e").unwrap());
    assert_eq!(workload.operation_count, Some(1000));
    assert_eq!(workload.max_scan_length_for(&workload.mix()), 100);
    assert_eq!(workload.distribution_for(&workload.mix()), RequestDistribution::Zipfian);
    assert!(properties.unknown().is_empty());
}

#[test]
fn without_a_named_mix_defaults_are_coreworkloads() {
    // The proportions of workloads A and E, whose files ask for other things.
    for text in [
        "readproportion=0.5\nupdateproportion=0.5\n",
        "readproportion=0\nupdateproportion=0\nscanproportion=0.95\ninsertproportion=0.05\n",
    ] {
        let workload = parse(text).workload().unwrap().with_core_defaults();
        let mix = workload.mix();
        assert_eq!(workload.distribution_for(&mix), RequestDistribution::Uniform);
        assert_eq!(workload.max_scan_length_for(&mix), 1000);
    }
    let parsed = parse("requestdistribution=latest\nmaxscanlength=7\n").workload().unwrap();
    assert_eq!(parsed.clone().with_core_defaults(), parsed);
}

#[test]
fn known_properties_are_all_read() {
    let text = "recordcount=5000\noperationcount=0\ninsertstart=1000\ninsertcount=2000\nfieldcount=3\n\
        fieldlength=200\nminfieldlength=50\nfieldlengthdistribution=uniform\nfieldnameprefix=f\n\
        readallfields=FALSE\nwriteallfields=true\nreadproportion=1\nupdateproportion=1\ninsertproportion=1\n\
        scanproportion=1\nreadmodifywriteproportion=2\ndeleteproportion=4\nrequestdistribution=hotspot\n\
        hotspotdatafraction=0.1\nhotspotopnfraction=0.9\nexponential.percentile=90\nexponential.frac=0.5\n\
        minscanlength=2\nmaxscanlength=9\nscanlengthdistribution=zipfian\ninsertorder=ordered\nzeropadding=12\n\
        compressibility=0.25\nthreadcount=8\ntarget=1500.5\nmaxexecutiontime=60\nwarmupexecutiontime=5\n\
        core_workload_insertion_retry_limit=3\ncore_workload_insertion_retry_interval=7\n";
    let workload = parse(text).workload().unwrap();
    let mix = workload.mix();
    assert_eq!((workload.record_count, workload.insert_start, workload.insert_count), (5000, 1000, 2000));
    assert_eq!((workload.field_count, &workload.field_length), (3, &FieldLength::Uniform(50, 200)));
    assert_eq!(workload.field_name_prefix, "f");
    assert_eq!((workload.read_all_fields, workload.write_all_fields), (false, true));
    assert_eq!((mix.name(), mix.share(underlay_workload::OperationKind::Delete)), ("custom", 0.4));
    assert_eq!(workload.distribution_for(&mix), RequestDistribution::Hotspot);
    assert_eq!((workload.hot_data_fraction, workload.hot_operation_fraction), (0.1, 0.9));
    assert_eq!((workload.exponential_percentile, workload.exponential_fraction), (90.0, 0.5));
    assert_eq!((workload.min_scan_length, workload.max_scan_length), (2, Some(9)));
    assert_eq!(workload.key_naming, KeyNaming { order: InsertOrder::Ordered, zero_padding: 12 });
    assert_eq!((workload.compressibility, workload.threads), (0.25, 8));
    assert_eq!((workload.target_rate_per_s, workload.operation_count), (Some(1500.5), None));
    assert_eq!(workload.max_execution_time, Some(Duration::from_secs(60)));
    assert_eq!((workload.warmup_time, workload.insert_retries), (Duration::from_secs(5), 3));
    assert_eq!(workload.insert_retry_interval, Duration::from_secs(7));
    assert_eq!(workload.data_bytes(), 2000 * (4 + 12 + 3 * 125));
    assert!(parse("dataintegrity=true").workload().unwrap().data_integrity);
}

#[test]
fn defaults_are_coreworkloads() {
    assert_eq!(parse("").workload().unwrap(), CoreWorkload::new(1000, 10, 100));
    let workload = CoreWorkload::new(1_000_000, 10, 100);
    assert_eq!(workload.mix().name(), "b");
    assert_eq!(workload.record_bytes(), 1023.0);
    for (mix, distribution) in
        [("d", "latest"), ("e", "zipfian"), ("load", "sequential"), ("delete", "sequential")]
    {
        assert_eq!(workload.distribution_for(&OperationMix::parse(mix).unwrap()).name(), distribution);
    }
}

#[test]
fn field_lengths_come_from_a_histogram_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hist.txt");
    std::fs::write(&path, "BlockSize\t100\n0\t1\n1\t0\n2\t8\n3\t1\n").unwrap();
    let text = format!("fieldlengthdistribution=histogram\nfieldlengthhistogram={}\n", path.display());
    let workload = parse(&text).workload().unwrap();
    // Of ten numbers two belong to the first bucket, none to the second, eight to the third, and none is left for the
    // last.
    assert_eq!((workload.field_length.max_bytes(), workload.field_length.mean_bytes()), (300, 260.0));
}

/// Every value that cannot be read, in one go, each with its place and what was expected.
#[test]
fn malformed_values_are_all_reported_with_places() {
    let text = "recordcount=ten\n\nfieldcount=0\nfieldlengthdistribution=bimodal\nreadallfields=maybe\n\
        readproportion=-1\nrequestdistribution=zipf\nhotspotdatafraction=1.5\nexponential.percentile=100\n\
        maxscanlength=0\nscanlengthdistribution=constant\ninsertorder=random\nzeropadding=5000\n\
        threadcount=0\ntarget=fast\nworkload=site.ycsb.workloads.RestWorkload\n";
    let mut properties = YcsbProperties::new();
    properties.add_text("w.properties", text).unwrap();
    properties.add_argument("dataintegrity=yes").unwrap();
    let expected = "\
w.properties:1: recordcount is 'ten': expected a whole number
w.properties:3: fieldcount is '0': expected a whole number of at least 1
w.properties:4: fieldlengthdistribution is 'bimodal': expected constant, uniform, zipfian or histogram
w.properties:5: readallfields is 'maybe': expected true or false
w.properties:6: readproportion is '-1': expected a number of at least 0
w.properties:7: requestdistribution is 'zipf': expected uniform, zipfian, latest, hotspot, exponential or sequential
w.properties:8: hotspotdatafraction is '1.5': expected a number from 0 to 1
w.properties:9: exponential.percentile is '100': expected a number between 0 and 100
w.properties:10: maxscanlength is '0': expected a whole number of at least 1
w.properties:11: scanlengthdistribution is 'constant': expected uniform or zipfian
w.properties:12: insertorder is 'random': expected hashed or ordered
w.properties:13: zeropadding is '5000': expected a whole number up to 1000
w.properties:14: threadcount is '0': expected a whole number of at least 1
w.properties:15: target is 'fast': expected a number of at least 0
w.properties:16: workload is 'site.ycsb.workloads.RestWorkload': expected a class name that ends in CoreWorkload
-p dataintegrity=yes: dataintegrity is 'yes': expected true or false";
    assert_eq!(properties.workload().unwrap_err().to_string(), expected);
}

#[test]
fn values_that_do_not_fit_together_are_reported() {
    assert_eq!(
        mistakes("recordcount=10\ninsertstart=5\ninsertcount=6"),
        "w.properties:3: insertstart + insertcount is 11: expected at most recordcount, 10"
    );
    assert_eq!(
        mistakes("recordcount=0"),
        "w.properties:1: insertcount is 0 and insertstart 0: expected at least one record (recordcount), \
         numbered below 2^63"
    );
    assert_eq!(
        mistakes("readproportion=0\nupdateproportion=0"),
        "w.properties:2: the proportions of all operations add up to 0: expected more than 0"
    );
    assert_eq!(
        mistakes("fieldlengthdistribution=uniform\nminfieldlength=200"),
        "w.properties:2: minfieldlength is 200: expected at most fieldlength, 100"
    );
    assert_eq!(
        mistakes("dataintegrity=true\nfieldlengthdistribution=zipfian"),
        "w.properties:2: dataintegrity needs fields of one length: set fieldlengthdistribution=constant"
    );
    assert_eq!(
        mistakes("fieldlengthhistogram=hist.txt"),
        "w.properties:1: fieldlengthhistogram needs fieldlengthdistribution=histogram"
    );
    assert!(
        mistakes("fieldlengthdistribution=histogram\nfieldlengthhistogram=/no/such/file")
            .starts_with("w.properties:2: fieldlengthhistogram /no/such/file: cannot be read: ")
    );
    assert_eq!(
        mistakes("minscanlength=20\nmaxscanlength=10"),
        "w.properties:2: minscanlength is 20: expected at most maxscanlength, 10"
    );
    assert_eq!(
        mistakes("fieldlength=60000000\nfieldcount=1000"),
        "w.properties:2: fieldcount x fieldlength is 1000 x 60000000 bytes: expected at most 1073741824 in all"
    );
}

#[test]
fn malformed_files_and_arguments_are_reported() {
    assert_eq!(
        mistakes("good=1\nbad=\\u12x4\n=nameless"),
        "w.properties:2: '\\u12x4' is no character: expected \\u and four hexadecimal digits\n\
         w.properties:3: '=nameless' has no name: expected name=value"
    );
    let mut properties = YcsbProperties::new();
    for argument in ["recordcount", "=5", ""] {
        let error = properties.add_argument(argument).unwrap_err().to_string();
        assert_eq!(error, format!("-p {argument}: expected name=value, as in -p recordcount=1000"));
    }
    let missing = tempfile::tempdir().unwrap().path().join("none.properties");
    let error = properties.read_file(&missing).unwrap_err().to_string();
    assert!(error.contains("none.properties: cannot be read: "), "{error}");
    assert_eq!(properties, YcsbProperties::new());
}

#[test]
fn files_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("workloada");
    std::fs::write(&path, b"table=caf\xe9\nrecordcount=12").unwrap();
    let mut properties = YcsbProperties::new();
    properties.read_file(&path).unwrap();
    assert_eq!(properties.workload().unwrap().record_count, 12);
    // Java reads Latin-1; the reader tells UTF-8 from it, with the mark that some editors put before it.
    assert_eq!(properties.get("table").unwrap().value, "café");
    std::fs::write(&path, "\u{feff}table=naïf").unwrap();
    properties.read_file(&path).unwrap();
    assert_eq!(properties.get("table").unwrap().value, "naïf");
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(properties.read_file(&path).unwrap_err().to_string().contains("longer than 1 MiB"));
}

#[test]
fn unknown_names_are_kept_with_what_was_probably_meant() {
    let properties = parse("cassandra.keyspace=ycsb\nrecordcnt=5\nRecordCount=6\nhosts=a,b\n");
    let found: Vec<_> =
        properties.unknown().into_iter().map(|unknown| (unknown.property.name, unknown.suggestion)).collect();
    let expected = [
        ("cassandra.keyspace", None),
        ("recordcnt", Some("recordcount")),
        ("RecordCount", Some("recordcount")),
        ("hosts", None),
    ];
    assert_eq!(found, expected.map(|(name, suggestion)| (name.to_owned(), suggestion)));
    for property in KNOWN {
        assert_eq!(known(property.name), Some(property));
        assert_eq!(suggestion(property.name), Some(property.name));
    }
}

/// YCSB's hash and names, whose values are published in every YCSB data set.
#[test]
fn names_are_ycsbs() {
    let hashed = KeyNaming { order: InsertOrder::Hashed, zero_padding: 1 };
    let names: Vec<String> = (0..3).map(|number| String::from_utf8(hashed.name(number)).unwrap()).collect();
    assert_eq!(names, ["user6284781860667377211", "user8517097267634966620", "user1820151046732198393"]);
    let ordered = KeyNaming { order: InsertOrder::Ordered, zero_padding: 8 };
    assert_eq!(ordered.name(5), b"user00000005");
    assert_eq!(KeyNaming { zero_padding: 1, ..ordered }.name(0), b"user0");
    assert_eq!(KeyNaming { zero_padding: 0, ..ordered }.name(u64::MAX), b"user18446744073709551615");
    let mut lengths = [0u32; 32];
    for number in 0..10_000 {
        lengths[hashed.name(number).len()] += 1;
    }
    assert!(lengths[hashed.typical_bytes(10_000) as usize] > 8_500);
}

proptest! {
    #[test]
    fn names_are_the_numbers_in_text(number in any::<u64>(), padding in 0u32..30, hashed in any::<bool>()) {
        let order = if hashed { InsertOrder::Hashed } else { InsertOrder::Ordered };
        let value = if hashed { fnv1a_64(number) } else { number };
        let expected = format!("user{value:0width$}", width = padding as usize);
        prop_assert_eq!(KeyNaming { order, zero_padding: padding }.name(number), expected.into_bytes());
    }

    /// Written with escapes, any names and values come back, with anything in between.
    #[test]
    fn written_properties_reread_unchanged(
        entries in proptest::collection::btree_map("\\PC{1,12}", "[^\r\n]{0,20}", 0..8),
        separator in prop_oneof![Just("="), Just(":"), Just(" = "), Just("\t")],
    ) {
        let escape = |text: &str| -> String {
            text.chars()
                .map(|character| match character {
                    ' ' | '=' | ':' | '#' | '!' | '\\' => format!("\\{character}"),
                    '\t' => "\\t".to_owned(),
                    '\u{c}' => "\\f".to_owned(),
                    // Blanks of other scripts and control characters.
                    other if other.is_whitespace() || other.is_control() => {
                        let mut units = [0; 2];
                        other.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
                    }
                    other => other.to_string(),
                })
                .collect()
        };
        let mut text = String::from("# written by a test\n");
        for (name, value) in &entries {
            let trimmed = value.trim_end_matches([' ', '\t', '\u{c}']);
            text.push_str(&format!("  {}{separator}\\\n   {}\n\n", escape(name), escape(trimmed)));
        }
        let expected: Vec<(String, String)> = entries
            .iter()
            .map(|(name, value)| (name.clone(), value.trim_end_matches([' ', '\t', '\u{c}']).to_owned()))
            .collect();
        prop_assert_eq!(pairs(&text), expected);
    }

    #[test]
    fn arbitrary_text_never_panics_parser(text in "(\\PC|[\\\\=:# \t\r\n]|u[0-9a-f]{0,4}){0,60}") {
        let mut properties = YcsbProperties::new();
        if properties.add_text("any", &text).is_ok() {
            prop_assert!(properties.iter().all(|property| !property.name.contains('\n') || text.contains("\\n") || text.contains("\\u")));
        }
    }

    /// Any values of the known names give a workload without problems, or errors that name their place.
    #[test]
    fn parsed_workload_can_run(
        values in proptest::collection::vec(
            (0..KNOWN.len(), prop_oneof!["[0-9]{1,20}", "-?[0-9]\\.[0-9]{1,3}", "true|false", "uniform|zipfian|latest|hashed", "nan|inf|1e400"]),
            1..8,
        ),
    ) {
        let mut properties = YcsbProperties::new();
        for (index, value) in &values {
            properties.add_argument(&format!("{}={value}", KNOWN[*index].name)).unwrap();
        }
        match properties.workload() {
            Ok(workload) => prop_assert_eq!(workload.problems(), Vec::<String>::new()),
            Err(errors) => {
                prop_assert!(!errors.0.is_empty());
                for error in errors.0 {
                    prop_assert!(error.problem.contains("expected") || error.problem.contains("needs"), "{error}");
                }
            }
        }
    }
}
