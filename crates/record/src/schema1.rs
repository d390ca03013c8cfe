//! Records of schema 1, converted into today's types. It had contracts in text, and this is the only place that still
//! takes such a text apart.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use toml_edit::{DocumentMut, Item};

use crate::cell::{
    Cell, CellLabels, DeviceArrangement, JobWork, OfferedRate, RatePart, RecordedWork, RequestWork,
};
use crate::devices::DeviceId;
use crate::integrity::{WrongValue, WrongValueProblem};
use crate::run::ShortenedAmount;

pub(crate) const VERSION: u64 = 1;

/// A job had no threads and no records, and its name stood in `mix`.
#[derive(Deserialize)]
struct OldCell {
    id: String,
    system: String,
    storage: String,
    /// `a, zipfian, 256 GB`: what varies in the study.
    workload: String,
    mix: String,
    distribution: String,
    threads: u32,
    #[serde(default = "one")]
    servers: u32,
    rate_per_s: Option<f64>,
    #[serde(default)]
    rate_parts: Vec<RatePart>,
    #[serde(default)]
    find_rate: Option<String>,
    records: u64,
    data_bytes: u64,
    #[serde(default)]
    compacts_at: Option<f64>,
}

fn one() -> u32 {
    1
}

pub(crate) fn lift_run(run: &mut Value) -> Result<(), serde_json::Error> {
    let study = run["study_toml"].as_str().unwrap_or_default().to_owned();
    let is_short = run["short"].as_bool().unwrap_or_default();
    let (mut systems, mut storages) = (Vec::new(), Vec::new());
    for planned in each(run, "/plan").filter_map(|planned| planned.get_mut("cell")) {
        let cell = lift_cell(planned)?;
        systems.push(cell.system.clone());
        storages.push(cell.storage.clone());
        *planned = serde_json::to_value(cell)?;
    }
    run["systems"] = sort_as_in_study(systems, "system", &study).into();
    run["storages"] = sort_as_in_study(storages, "storage", &study).into();
    if is_short {
        run["shortened"] = serde_json::to_value(shortened(&study))?;
    }
    for figure in each(run, "/reference/figures") {
        if let Some(bytes) = figure["data"].as_str().and_then(size_bytes) {
            figure["data_bytes"] = bytes.into();
        }
    }
    Ok(())
}

pub(crate) fn lift_record(record: &mut Value) -> Result<(), serde_json::Error> {
    record["cell"] = serde_json::to_value(lift_cell(&record["cell"])?)?;
    if let Some(arrangement) = record["storage"]["layout"].as_str().and_then(arrangement) {
        record["storage"]["arrangement"] = serde_json::to_value(arrangement)?;
    }
    each(record, "/storage/devices").for_each(lift_description);
    each(record, "/devices").filter_map(|device| device.get_mut("description")).for_each(lift_description);
    for layer in each(record, "/layers") {
        if let Some((server, rest)) = layer["name"].as_str().and_then(parse_server) {
            let name = rest.to_owned();
            layer["server"] = server.into();
            layer["name"] = name.into();
        }
    }
    for directory in each(record, "/job/directories") {
        if let Some(name) = directory["device"].as_str() {
            directory["device"] = serde_json::to_value(device_id(name))?;
        }
    }
    for check in each(record, "/certificate/checks") {
        if let Some(share) = check["finding"].as_str().and_then(first_share) {
            check["extent"] = share.into();
        }
    }
    record.get_mut("measured").map_or(Ok(()), lift_samples)
}

/// The beginning of a storage's layout in words.
fn arrangement(layout: &str) -> Option<DeviceArrangement> {
    Some(match layout.split([',', ' ']).next()? {
        "single" => DeviceArrangement::Single,
        "stripe" => DeviceArrangement::Stripe,
        "mirror" => DeviceArrangement::Mirror,
        "jbod" => DeviceArrangement::Jbod,
        "split" => DeviceArrangement::Split,
        "paths" => DeviceArrangement::Paths,
        _ if layout.contains("in a pool") => DeviceArrangement::Pool,
        _ => return None,
    })
}

/// The first percentage that a finding states, without its sign: how bad it is, of the checks that have one.
fn first_share(finding: &str) -> Option<f64> {
    let (before, _) = finding.split_once('%')?;
    let percent: f64 = before.trim_end().rsplit(' ').next()?.parse().ok()?;
    Some(percent.abs() / 100.0)
}

/// The elements of a list within a value that may be anything.
fn each<'a>(value: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    value.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn lift_cell(cell: &Value) -> Result<Cell, serde_json::Error> {
    let old = OldCell::deserialize(cell)?;
    let is_job = old.threads == 0 && old.records == 0;
    let (named, data, wall_s) = if is_job {
        (CellLabels { workload: old.workload != old.mix, ..CellLabels::default() }, None, None)
    } else {
        read_label(&old)
    };
    let work = if is_job {
        RecordedWork::Job(JobWork { name: old.mix.clone() })
    } else {
        RecordedWork::Requests(RequestWork {
            mix: old.mix.clone(),
            distribution: old.distribution.clone(),
            threads: old.threads,
            records: old.records,
            rate: match (old.find_rate.clone(), old.rate_per_s) {
                (Some(latency_limit), _) => OfferedRate::Highest { within: latency_limit },
                (None, None) => OfferedRate::Unthrottled,
                (None, Some(mean_per_s)) if !old.rate_parts.is_empty() => {
                    OfferedRate::Changing { mean_per_s, parts: old.rate_parts.clone(), wall_s }
                }
                (None, Some(per_s)) => OfferedRate::Steady { per_s },
            },
            compacts_at: old.compacts_at,
        })
    };
    Ok(Cell {
        workload: workload(&old, is_job),
        id: old.id,
        system: old.system,
        storage: old.storage,
        servers: old.servers,
        data_bytes: old.data_bytes,
        data,
        work,
        named,
    })
}

/// The name of the workload, which only the cell's id had: `ycsb` of `rocksdb/hdd/ycsb-a-uniform-8t`.
fn workload(old: &OldCell, is_job: bool) -> String {
    let last = old.id.splitn(3, '/').nth(2).unwrap_or_default();
    let end = match is_job {
        true => format!("/{}", old.mix),
        false => format!("-{}-{}-{}t", old.mix, old.distribution, old.threads),
    };
    last.find(&end).map_or_else(String::new, |position| last[..position].to_owned())
}

/// Reads the label of requests, the data set as the study writes it, and the length of a changing rate.
fn read_label(old: &OldCell) -> (CellLabels, Option<String>, Option<f64>) {
    let mut named = CellLabels::default();
    let mut rest = old.workload.as_str();
    let mut wall_s = None;
    if let Some(remainder) = rest
        .strip_prefix(&workload(old, false))
        .and_then(|rest| rest.strip_prefix(' '))
        .filter(|_| !is_mix(rest, &old.mix))
    {
        (named.workload, rest) = (true, remainder);
    }
    // What is known is taken off both ends. What is left in the middle is the data set, which may be any text.
    rest = rest.strip_prefix(old.mix.as_str()).unwrap_or(rest);
    rest = rest.strip_suffix(", compacted midway").unwrap_or(rest);
    if old.find_rate.is_some() {
        rest = rest.find(", highest rate with ").map_or(rest, |position| &rest[..position]);
    } else if !old.rate_parts.is_empty() {
        if let Some(position) = [", ramp ", ", steps "].iter().find_map(|kind| rest.find(kind)) {
            let length =
                rest[position..].rsplit_once("/s over ").or_else(|| rest[position..].rsplit_once("/s of "));
            wall_s = length.and_then(|(_, length)| seconds(length.trim_end_matches(" each")));
            rest = &rest[..position];
        }
    } else if let Some((before, last)) = rest.rsplit_once(", ")
        && (last == "unthrottled" || last.ends_with("/s"))
    {
        (named.rate, rest) = (true, before);
    }
    if let Some(before) = rest.strip_suffix(&format!(", {} threads", old.threads)) {
        (named.threads, rest) = (true, before);
    }
    let distribution = format!(", {}", old.distribution);
    if let Some(after) =
        rest.strip_prefix(&distribution).filter(|after| after.is_empty() || after.starts_with(", "))
    {
        (named.distribution, rest) = (true, after);
    }
    let data = rest.strip_prefix(", ");
    named.data = data.is_some();
    let is_count = |data: &&str| *data == format!("{} records", old.records);
    (named, data.filter(|data| !is_count(data)).map(str::to_owned), wall_s)
}

/// Whether a label begins with the mix: `a`, `a, zipfian`.
fn is_mix(label: &str, mix: &str) -> bool {
    label.strip_prefix(mix).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
}

/// `10 s`, `2 min`, `250 ms`.
fn seconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let unit_us = match unit {
        "h" => 3600e6,
        "min" => 60e6,
        "s" => 1e6,
        "ms" => 1e3,
        "us" => 1.0,
        _ => return None,
    };
    // By way of a `Duration`, so that it is to the last bit what the same time in a study of today becomes.
    let us = (number.parse::<f64>().ok()? * unit_us).round();
    (0.0..1e15).contains(&us).then(|| Duration::from_micros(us as u64).as_secs_f64())
}

fn lift_description(device: &mut Value) {
    let Some(id) = device["name"].as_str().map(device_id) else { return };
    if let Some(server) = id.server {
        device["server"] = server.into();
    }
    if let Some(role) = id.role {
        device["role"] = role.into();
    }
    device["name"] = id.name.into();
}

/// `server 2: wal: ssd.0`
fn device_id(text: &str) -> DeviceId {
    let (server, rest) = match parse_server(text) {
        Some((server, rest)) => (Some(server), rest),
        None => (None, text),
    };
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    match rest.split_once(": ").filter(|(role, _)| is_word(role)) {
        Some((role, name)) => DeviceId { server, role: Some(role.to_owned()), name: name.to_owned() },
        None => DeviceId { server, role: None, name: rest.to_owned() },
    }
}

fn parse_server(name: &str) -> Option<(u32, &str)> {
    let (number, rest) = name.strip_prefix("server ")?.split_once(": ")?;
    Some((number.parse().ok()?, rest))
}

/// Wrong values stood among the errors.
fn lift_samples(measured: &mut Value) -> Result<(), serde_json::Error> {
    let Some(samples) = measured.get_mut("error_samples").and_then(Value::as_array_mut) else {
        return Ok(());
    };
    let mut wrong_values = Vec::new();
    samples.retain(|sample| {
        let message = sample.as_str().and_then(|text| text.strip_prefix("data integrity: record "));
        let Some(message) = message else { return true };
        let (record, words) = message.split_once(' ').unwrap_or((message, ""));
        let problem = WrongValueProblem::InWords { words: words.to_owned() };
        wrong_values.push(WrongValue { record: record.to_owned(), problem });
        false
    });
    if measured["integrity"].is_object() {
        measured["integrity"]["wrong_values"] = serde_json::to_value(wrong_values)?;
    }
    Ok(())
}

/// Names without repeats, in the order in which the study's text declares their tables.
///
/// A plan's order is random; a name whose table is not found (written inline, say) keeps to the end, by name.
fn sort_as_in_study(mut names: Vec<String>, table: &str, study: &str) -> Vec<String> {
    names.sort_unstable();
    names.dedup();
    let place = |name: &str| {
        [format!("[{table}.{name}]"), format!("[{table}.\"{name}\"]"), format!("[{table}.{name}.")]
            .iter()
            .filter_map(|header| study.find(header.as_str()))
            .min()
            .unwrap_or(usize::MAX)
    };
    names.sort_by_key(|name| place(name));
    names
}

/// The short form's data in place of the study's. None unless one amount, that of all workloads, gives way to another.
fn shortened(study: &str) -> Option<ShortenedAmount> {
    let study: DocumentMut = study.parse().ok()?;
    let short = study.get("short")?;
    let short_bytes = one_size(short.get("data")?)?;
    let selected: Option<Vec<&str>> = short
        .get("workloads")
        .and_then(Item::as_array)
        .map(|names| names.iter().filter_map(|name| name.as_str()).collect());
    let workloads = study.get("workload")?.as_table_like()?;
    let mut full_bytes = None;
    for (name, workload) in workloads.iter() {
        let is_of_jobs = workload.get("kind").and_then(Item::as_str) == Some("jobs");
        if is_of_jobs || selected.as_ref().is_some_and(|selected| !selected.contains(&name)) {
            continue;
        }
        let size = one_size(workload.get("data")?)?;
        if full_bytes.is_some_and(|expected_size| expected_size != size) {
            return None;
        }
        full_bytes = Some(size);
    }
    Some(ShortenedAmount { full_bytes: full_bytes?, short_bytes })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    #[test]
    fn shortened_study_needs_unambiguous_amounts() {
        let found = |study: &str| shortened(study).map(|one| (one.full_bytes, one.short_bytes));
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
    }

    #[test]
    fn device_layout_is_parsed_from_first_words() {
        for (layout, expected) in [
            ("single, lz4", Some(DeviceArrangement::Single)),
            ("stripe, chunks of 64 KiB", Some(DeviceArrangement::Stripe)),
            ("mirror", Some(DeviceArrangement::Mirror)),
            ("jbod, ssd-mapreduce as 10 directories", Some(DeviceArrangement::Jbod)),
            ("split into 10 directories", Some(DeviceArrangement::Split)),
            ("2 volumes of 537 MB in a pool, lz4, over nvme-tcp", Some(DeviceArrangement::Pool)),
            ("paths", Some(DeviceArrangement::Paths)),
            ("disks of the cluster", None),
        ] {
            assert_eq!(arrangement(layout), expected, "{layout}");
        }
    }

    #[test]
    fn how_bad_a_finding_is_was_its_first_percentage() {
        let finding = "modelled 36 us, delivered 30 us: -16.7 % (allowed: 10 %)";
        assert!((first_share(finding).unwrap() - 0.167).abs() < 1e-9);
        for text in ["", "%", "nothing held the page cache to the budget", "a hundred % of it"] {
            assert_eq!(first_share(text), None, "{text}");
        }
    }

    #[test]
    fn roles_and_servers_are_told_by_a_devices_name() {
        for (name, role) in [("wal: ssd.0", "wal"), ("server 2: commitlog: ssd.0", "commitlog")] {
            assert_eq!(device_id(name).role.as_deref(), Some(role), "{name}");
        }
        for name in ["hdd.0", "server 2: hdd.0", "/mnt/a: b", "hdd-7200-sata.11", ": x", "", "server x: y z"]
        {
            let id = device_id(name);
            assert_eq!(id.server.is_some(), name == "server 2: hdd.0", "{name}");
            assert_eq!((id.role.as_deref(), id.to_string()), (None, name.to_owned()));
        }
    }

    fn old(label: &str) -> serde_json::Value {
        json!({
            "id": "rocksdb/hdd/ycsb-a-zipfian-8t", "system": "rocksdb", "storage": "hdd", "workload": label, "mix": "a",
            "distribution": "zipfian", "threads": 8, "servers": 1, "rate_per_s": null, "records": 7, "data_bytes": 7000
        })
    }

    #[test]
    fn parsed_label_is_rebuilt() {
        for label in [
            "a",
            "a, zipfian",
            "a, 256 GB",
            "a, zipfian, 256 GB, 8 threads, unthrottled",
            "a, 7 records",
            "ycsb a, 8 threads",
        ] {
            let cell = lift_cell(&old(label)).unwrap();
            assert_eq!((cell.label().as_str(), cell.workload.as_str()), (label, "ycsb"));
            assert_eq!(cell.named.data, label.contains("GB") || label.contains("records"));
        }
        let cell_with = |label: &str, key: &str, value: serde_json::Value| {
            let mut cell = old(label);
            cell[key] = value;
            cell
        };
        let sought =
            cell_with("a, highest rate with p99 within 10 ms", "find_rate", json!("p99 within 10 ms"));
        let parts = json!([{ "from_per_s": 1000.0, "to_per_s": 9000.0, "length_s": 5.0 }]);
        let mut ramp = cell_with("a, 256 GB, ramp 1,000/s to 9,000/s over 20 s", "rate_parts", parts);
        ramp["rate_per_s"] = 5000.0.into();
        let steady = cell_with("a, 20,000/s", "rate_per_s", json!(20_000.0));
        let compacted = cell_with("a, zipfian, unthrottled, compacted midway", "compacts_at", json!(0.5));
        for cell in [sought, ramp, steady, compacted] {
            assert_eq!(lift_cell(&cell).unwrap().label(), cell["workload"].as_str().unwrap());
        }
    }

    #[test]
    fn invalid_record_is_an_error_without_panic() {
        for text in [
            "[1]",
            "{\"schema\":1}",
            "{\"schema\":1,\"cell\":\"x\"}",
            "{\"schema\":1,\"storage\":\"x\",\"devices\":[1],\"layers\":{},\"job\":null,\"measured\":7}",
            "{\"schema\":1,\"plan\":[3,{\"cell\":4}],\"reference\":[],\"short\":true}",
            "{\"schema\":1,\"plan\":[],\"reference\":{\"figures\":[2]}}",
        ] {
            assert!(crate::read::cell(text).is_err() && crate::read::run(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cell_without_threads_is_a_job() {
        let mut job = old("terasort");
        for (key, value) in [("threads", json!(0)), ("records", json!(0)), ("mix", json!("terasort"))] {
            job[key] = value;
        }
        job["id"] = "hadoop/hdd/mapreduce/terasort".into();
        let cell = lift_cell(&job).unwrap();
        assert_eq!(cell.work, RecordedWork::Job(JobWork { name: "terasort".to_owned() }));
        assert_eq!((cell.workload.as_str(), cell.label().as_str()), ("mapreduce", "terasort"));
    }

    #[test]
    fn wrong_values_no_longer_stand_among_the_errors() {
        let mut measured = json!({
            "integrity": { "checked": 9, "mismatches": 1 },
            "error_samples": ["read: gone", "data integrity: record user7 field 2 has 9 bytes, expected 10"]
        });
        lift_samples(&mut measured).unwrap();
        assert_eq!(measured["error_samples"], json!(["read: gone"]));
        let lifted = crate::IntegrityRecord::deserialize(&measured["integrity"]).unwrap();
        assert_eq!(lifted.wrong_values[0].to_string(), "record user7 field 2 has 9 bytes, expected 10");
    }
}
