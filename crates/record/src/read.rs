//! Reading what a run left behind, whichever version wrote it.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::SCHEMA_VERSION;
use crate::cell::{CellStatus, RunRecord};
use crate::certificate::{Check, EarlierMetrics};
use crate::cpu::GivenUp;
use crate::profile::RecordedProfile;
use crate::run::RunHeader;

/// Why a text is no record that this version reads.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{}", describe_schema(*found))]
    Schema { found: u64 },
    #[error("it is not a record: {0}")]
    Form(#[from] serde_json::Error),
}

fn describe_schema(found: u64) -> String {
    match found {
        1 => "it has schema 1, which underlay 0.1 wrote: release 0.2.0 of 2026-11-23 is the last that reads it; \
              use that one, or run the study again"
            .to_owned(),
        _ => format!(
            "it has schema {found}, and this version of underlay reads schema {SCHEMA_VERSION}: use the version that \
             wrote it, or run the study again"
        ),
    }
}

/// The schema's number alone, so that what another version wrote is refused by its number and not by its first unknown
/// field.
#[derive(Deserialize)]
struct SchemaOnly {
    schema: u64,
}

/// Reads a run's `run.json`.
///
/// # Errors
/// When the text is no run, or one of a schema that this version does not know.
pub fn run(text: &str) -> Result<RunHeader, ReadError> {
    let mut run: RunHeader = read(text)?;
    run.slow_motion.iter_mut().flat_map(|chosen| &mut chosen.given_up).for_each(GivenUp::identify);
    // Earlier runs had no profiles. One system kept nothing, and was known by its name.
    if run.profiles.is_empty() && run.systems.iter().any(|name| name == EARLIER_NULL) {
        let profile = RecordedProfile { title: EARLIER_NULL.to_owned(), keeps_nothing: true };
        run.profiles.insert(EARLIER_NULL.to_owned(), profile);
    }
    Ok(run)
}

/// Reads the record of a cell.
///
/// # Errors
/// When the text is no record, or one of a schema that this version does not know.
pub fn cell(text: &str) -> Result<RunRecord, ReadError> {
    let mut record: RunRecord = read(text)?;
    if let CellStatus::Failed { reason } = &record.status
        && serde_json::from_str::<EarlierSkip>(text)?.skipped
    {
        let failure = reason.split_once(EARLIER_FAILURE).map(|(_, message)| message.to_owned());
        record.status = CellStatus::Skipped { failure };
    }
    if let Some(certificate) = &mut record.certificate {
        certificate.checks.iter_mut().for_each(Check::identify);
        if certificate.metrics.is_empty() {
            certificate.metrics = serde_json::from_str::<EarlierCertificate>(text)?.certificate.rows();
        }
    }
    Ok(record)
}

/// A record before its certificate had rows of metrics.
#[derive(Deserialize)]
struct EarlierCertificate {
    certificate: EarlierMetrics,
}

/// Version 0.2 wrote a skipped cell as a failed one with a mark.
#[derive(Deserialize)]
struct EarlierSkip {
    #[serde(default)]
    skipped: bool,
}

/// Stood in the reason of such a cell before the failure that it had had by itself.
const EARLIER_FAILURE: &str = "it had ended by: ";
/// The kind that kept nothing in runs without profiles. Sections had their kind's name as a rule.
const EARLIER_NULL: &str = "null";

fn read<T: DeserializeOwned>(text: &str) -> Result<T, ReadError> {
    let SchemaOnly { schema } = serde_json::from_str(text)?;
    match schema == u64::from(SCHEMA_VERSION) {
        true => Ok(serde_json::from_str(text)?),
        false => Err(ReadError::Schema { found: schema }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::certificate::CheckId;

    #[test]
    fn cell_skipped_by_earlier_version_has_not_failed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-2/cells");
        let text =
            std::fs::read_to_string(format!("{folder}/rocksdb.local.ycsb-a-uniform-4t.r1.json")).unwrap();
        let record = cell(&text).unwrap();
        let status_of = |reason: &str, skipped: bool| {
            let mut earlier = serde_json::to_value(&record).unwrap();
            earlier["status"] = json!({ "state": "failed", "reason": reason });
            if skipped {
                earlier["skipped"] = true.into();
            }
            cell(&earlier.to_string()).unwrap().status
        };
        let note = "skipped on command; `underlay run --resume` measures it";
        assert_eq!(status_of(note, true), CellStatus::Skipped { failure: None });
        let failed = format!("{note}\nit had ended by: no space left");
        let failure = Some("no space left".to_owned());
        assert_eq!(status_of(&failed, true), CellStatus::Skipped { failure });
        assert_eq!(status_of("no space", false), CellStatus::Failed { reason: "no space".to_owned() });
        // As it is written now, it reads back.
        let skipped = RunRecord { status: CellStatus::Skipped { failure: None }, ..record };
        assert_eq!(cell(&serde_json::to_string(&skipped).unwrap()).unwrap(), skipped);
    }

    #[test]
    fn null_system_of_earlier_run_keeps_nothing() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-2");
        let text = std::fs::read_to_string(format!("{folder}/run.json")).unwrap();
        let mut written: Value = serde_json::from_str(&text).unwrap();
        assert!(!run(&text).unwrap().keeps_nothing("rocksdb"));
        written["systems"] = json!(["null", "rocksdb"]);
        let read = run(&written.to_string()).unwrap();
        assert!(read.keeps_nothing("null") && !read.keeps_nothing("rocksdb"));
    }

    #[test]
    fn earlier_records_are_read_with_check_ids() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-2");
        let file = format!("{folder}/cells/rocksdb.remote.ycsb-a-uniform-4t-500ps.r1.json");
        let text = std::fs::read_to_string(file).unwrap();
        let mut written: Value = serde_json::from_str(&text).unwrap();
        let checks = written["certificate"]["checks"].as_array_mut().unwrap();
        assert!(checks.iter().all(|check| check["id"].is_null()));
        let mut searched = checks[0].clone();
        searched["name"] = json!("search: system CPU");
        let mut unknown = checks[0].clone();
        unknown["name"] = json!("search: moon phase");
        checks.extend([searched, unknown]);
        let record = cell(&written.to_string()).unwrap();
        let checks = &record.certificate.as_ref().unwrap().checks;
        let found: Vec<_> = checks.iter().map(|check| (check.id, check.in_search)).collect();
        let of_window = [
            CheckId::DeviceLatencyMean,
            CheckId::DeviceLatencyP50,
            CheckId::DeviceLatencyP99,
            CheckId::PathOverhead,
            CheckId::OperationsAnswered,
            CheckId::OfferedRate,
            CheckId::GeneratorHeadroom,
            CheckId::ScheduleLateness,
            CheckId::MemoryBudget,
            CheckId::StolenTime,
        ];
        let mut expected: Vec<_> = of_window.into_iter().map(|id| (Some(id), false)).collect();
        expected.extend([(Some(CheckId::SystemCpu), true), (None, true)]);
        assert_eq!(found, expected);
        // As it is written now, it reads back.
        assert_eq!(cell(&serde_json::to_string(&record).unwrap()).unwrap(), record);
    }

    #[test]
    fn earlier_certificates_are_read_with_metric_rows() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-2");
        let file = format!("{folder}/cells/rocksdb.remote.ycsb-a-uniform-4t-500ps.r1.json");
        let mut written: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        written["certificate"]["steal_share"] = json!(0.25);
        written["certificate"]["floor_us"] = Value::Null;
        let record = cell(&written.to_string()).unwrap();
        let rows: Vec<_> = record
            .certificate
            .as_ref()
            .unwrap()
            .metrics
            .iter()
            .map(|row| (row.id.as_ref(), row.unit.as_ref(), row.value))
            .collect();
        let expected = [
            ("modelled_p50_us", "us", 152.703),
            ("modelled_p99_us", "us", 171.519),
            ("delivered_p50_us", "us", 154.495),
            ("delivered_p99_us", "us", 174.463),
            ("cpu_steal_percent", "%", 25.0),
        ];
        assert_eq!(rows, expected);
        assert_eq!(cell(&serde_json::to_string(&record).unwrap()).unwrap(), record);
    }

    #[test]
    fn earlier_given_up_factors_are_read_with_check_ids() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schema-2/run.json");
        let mut written: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let given_up =
            |check: Option<&str>| json!({"time": 4.0, "cell": "a", "finding": "late", "check": check});
        written["slow_motion"] = json!({
            "chosen_by": "host",
            "given_up": [given_up(Some("emulation CPU")), given_up(Some("moon phase")), given_up(None)],
        });
        let read = run(&written.to_string()).unwrap();
        let ids: Vec<_> =
            read.slow_motion.unwrap().given_up.iter().map(|given_up| given_up.check_id).collect();
        assert_eq!(ids, [Some(CheckId::EmulationCpu), None, None]);
    }

    #[test]
    fn other_schemas_are_refused_with_a_remedy() {
        let message = |schema: u32| {
            let text = format!("{{\"schema\":{schema},\"plan\":[]}}");
            assert_eq!(cell(&text).unwrap_err().to_string(), run(&text).unwrap_err().to_string());
            run(&text).unwrap_err().to_string()
        };
        assert!(
            message(1).contains("underlay 0.1 wrote") && message(1).contains("release 0.2.0"),
            "{}",
            message(1)
        );
        assert!(message(3).contains("reads schema 2: use the version that wrote it"), "{}", message(3));
    }

    #[test]
    fn invalid_record_is_an_error_without_panic() {
        for text in [
            "[1]",
            "{\"schema\":2}",
            "{\"schema\":2,\"cell\":\"x\"}",
            "{\"schema\":2,\"plan\":[3,{\"cell\":4}],\"reference\":[],\"short\":true}",
        ] {
            assert!(cell(text).is_err() && run(text).is_err(), "{text}");
        }
    }
}
