//! `[workload.NAME]`: YCSB mixes, batch jobs, or commands of the user's.

use serde_json::{Map, Value, json};
use underlay_record::{BetterDirection, MetricDilation};
use underlay_systems::benchmark::ValueChoice;
use underlay_workload::properties::{KNOWN, PropertyScope};
use underlay_workload::{ArrivalProcess, OperationMix, RequestDistribution};

use super::values::{duration, key, list, number, one_or_many, size, table, text, whole, words, yes_or_no};

/// Properties that have a key of their own.
const HAVE_A_KEY: [&str; 18] = [
    "recordcount",
    "insertcount",
    "insertstart",
    "fieldcount",
    "fieldlength",
    "requestdistribution",
    "threadcount",
    "target",
    "operationcount",
    "maxexecutiontime",
    "warmupexecutiontime",
    "db",
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
    "deleteproportion",
];

pub(super) fn workload() -> Value {
    json!({ "anyOf": [requests(), batch(), command(), fio()] })
}

fn requests() -> Value {
    let mut requests = table(
        &["mixes", "threads"],
        vec![
            key("kind", words(["ycsb"]), "May be left out."),
            key(
                "mixes",
                mixes(),
                "YCSB's a to f, load, delete, or shares as in { read = 0.8, update = 0.2 }; each is a cell.",
            ),
            key("data", one_or_many(size()), "How much there is, on the modelled machine; or `records`."),
            key("records", records(), "How many records there are; or `data`."),
            key("record", record(), "Ten fields of 100 bytes when left out."),
            key(
                "distribution",
                distributions(),
                "Which records are asked for; YCSB's own for each mix when left out.",
            ),
            key("threads", threads(), "Clients."),
            key("rate", rates(), "Operations a second; \"max\", when left out, is as many as it takes."),
            key(
                "arrivals",
                words(ArrivalProcess::ALL.map(ArrivalProcess::name)),
                "How the operations of a rate follow one another.",
            ),
            key(
                "find_rate",
                find_rate(),
                "In place of `rate`: the highest rate that keeps to these latencies is looked for.",
            ),
            key(
                "beside",
                describe_background(),
                "What goes on beside the measured operations: a writer of a fixed rate beside readers.",
            ),
            key("properties", properties(), "Other properties of YCSB's core workload."),
            key(
                "visibility",
                text(),
                "What every field is marked with, for a system that hides cells from readers.",
            ),
            key("authorizations", one_or_many(text()), "What readers are authorised for."),
            key("unauthorized_share", share(), "The share of clients that read without any authorisation."),
            key(
                "scan_filter",
                text(),
                "A regular expression: scans leave out, on the servers, what does not match.",
            ),
            key("compact_at", share(), "The share of the measured time after which everything is compacted."),
        ],
    );
    requests["oneOf"] = json!([{ "required": ["data"] }, { "required": ["records"] }]);
    requests
}

fn batch() -> Value {
    table(
        &["jobs", "data"],
        vec![
            key("kind", words(["jobs"]), "May be left out where there are `jobs`."),
            key("jobs", jobs(), "Batch jobs of the system, each a cell."),
            key("data", job_data(), "What each job makes, moves or reads."),
            key("maps", whole(1, Some(100_000)), "Map tasks; the system's choice when left out."),
            key("reduces", whole(1, Some(100_000)), "Reduce tasks; the system's choice when left out."),
            key("compressibility", share(), "The share of generated values that repeats; 0.5 when left out."),
            key("limit", duration(), "A job that takes longer on your clock has failed; 1 h when left out."),
        ],
    )
}

fn command() -> Value {
    table(
        &["kind", "run", "figures"],
        vec![
            key("kind", words(["command"]), "A benchmark of yours."),
            key("run", text(), "For the shell, with placeholders: docs/any-system.md has them."),
            key("job", text(), "The text of the file that {job} names."),
            key(
                "budget",
                words(["client", "system"]),
                "Whose memory and CPU time it uses; \"client\" when left out.",
            ),
            key("data", size(), "What the system's `load` puts there, on the modelled machine."),
            key(
                "limit",
                duration(),
                "A command that takes longer on your clock has failed; 1 h when left out.",
            ),
            key(
                "figures",
                figures(),
                "What it measures, and where that is found; storages are compared by the first.",
            ),
            key(
                "marks",
                marks(),
                "What goes on meanwhile, by the program's own account: checkpoints, compactions.",
            ),
        ],
    )
}

fn fio() -> Value {
    table(
        &["kind", "job"],
        vec![
            key("kind", words(["fio"]), "A job of fio."),
            key("job", text(), "The text of a job file, with placeholders."),
            key("data", size(), "What the system's `load` puts there, on the modelled machine."),
            key("limit", duration(), "A job that takes longer on your clock has failed; 1 h when left out."),
        ],
    )
}

fn figures() -> Value {
    let figure = table(
        &["unit", "better"],
        vec![
            key("unit", text(), "Such as \"ms\" or \"tps\"."),
            key("better", words(BetterDirection::NAMES.map(|(name, _)| name)), "Which values are good ones."),
            key("pattern", text(), "A regular expression with one group, or one called value."),
            key("json", text(), "A path into JSON, as in jobs[0].read.iops."),
            key("csv", text(), "A column by its heading."),
            key("percentiles", text(), "A regular expression with the groups percentile and value."),
            key("hdr", yes_or_no(), "An HdrHistogram log."),
            key(
                "progress",
                text(),
                "A regular expression with the group value, and t where the time is printed.",
            ),
            key(
                "take",
                words(ValueChoice::NAMES.map(|(name, _)| name)),
                "Of several matches; \"last\" when left out.",
            ),
            key("file", text(), "Where to look, if not in what the command printed."),
            key(
                "slow_motion",
                words(MetricDilation::NAMES.map(|(name, _)| name)),
                "What slow motion does to it, where the unit does not say it.",
            ),
        ],
    );
    json!({ "type": "object", "minProperties": 1, "additionalProperties": figure })
}

fn marks() -> Value {
    let mark = table(
        &["pattern"],
        vec![
            key(
                "pattern",
                text(),
                "A regular expression with the group from, and to where it has an end: seconds since the benchmark began.",
            ),
            key("file", text(), "Where to look, if not in what the command printed."),
        ],
    );
    json!({ "type": "object", "additionalProperties": mark })
}

pub(super) fn mixes() -> Value {
    one_or_many(mix())
}

fn mix() -> Value {
    let shares = ["read", "update", "insert", "scan", "rmw", "delete"]
        .map(|kind| key(kind, number(0.0, 100.0), "Its share of the operations: of 1, or percent."));
    let mut of_ones_own = table(&[], Vec::from(shares));
    of_ones_own["minProperties"] = json!(1);
    let spelt_out = json!({ "type": "string", "pattern": "^[a-z]+[0-9.]+(-[a-z]+[0-9.]+)*$" });
    json!({ "anyOf": [words(OperationMix::NAMES), of_ones_own, spelt_out] })
}

pub(super) fn distributions() -> Value {
    one_or_many(words(RequestDistribution::ALL.map(RequestDistribution::name)))
}

pub(super) fn threads() -> Value {
    one_or_many(whole(1, Some(1024)))
}

pub(super) fn records() -> Value {
    one_or_many(whole(1, None))
}

pub(super) fn jobs() -> Value {
    let systems = underlay_systems::names().into_iter().filter_map(underlay_systems::find);
    let mut names: Vec<&'static str> = Vec::new();
    // Several systems have jobs of one name.
    for &(name, _) in systems.flat_map(|system| system.capabilities().jobs) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    one_or_many(words(names))
}

/// One size, or one by job.
pub(super) fn job_data() -> Value {
    json!({ "anyOf": [size(), { "type": "object", "additionalProperties": size() }] })
}

pub(super) fn rates() -> Value {
    let steady = rate();
    let ramp = table(
        &["ramp"],
        vec![
            key(
                "ramp",
                json!({ "type": "array", "items": rate(), "minItems": 2, "maxItems": 2 }),
                "From one rate to another.",
            ),
            key("over", duration(), "The whole measured time when left out."),
        ],
    );
    let steps = table(
        &["steps"],
        vec![
            key("steps", list(rate()), "Rates that follow one another."),
            key("each", duration(), "Equal parts of the measured time when left out."),
        ],
    );
    one_or_many(json!({ "anyOf": [{ "const": "max" }, steady, ramp, steps] }))
}

fn rate() -> Value {
    number(0.001, 1e9)
}

fn record() -> Value {
    table(
        &["fields", "bytes"],
        vec![
            key("fields", whole(1, Some(1000)), "Fields of a record."),
            key("bytes", whole(1, Some(1 << 20)), "Of each field."),
        ],
    )
}

fn find_rate() -> Value {
    let mut wanted = table(
        &[],
        vec![
            key("from", rate(), "The first rate that is tried."),
            key("to", rate(), "The highest rate that is tried."),
            key("within", number(0.01, 0.5), "How near the rate is to be known; 0.05 when left out."),
            key(
                "step",
                duration(),
                "How long each step is on your clock; a fourth of `duration` when left out.",
            ),
        ],
    );
    let mut percentile = duration();
    percentile["description"] = json!("A percentile, as p99 or p999, and the latency that it keeps to.");
    wanted["patternProperties"] = json!({ "^p[0-9]{2,6}$": percentile });
    wanted
}

fn describe_background() -> Value {
    table(
        &["mix"],
        vec![
            key("mix", mix(), "Its operations, as in { update = 1.0 }."),
            key("threads", whole(1, Some(1024)), "Its clients; 1 when left out."),
            key(
                "rate",
                json!({ "anyOf": [{ "const": "max" }, rate()] }),
                "Of all its clients together; as many operations as the system answers when left out.",
            ),
        ],
    )
}

fn properties() -> Value {
    let of_a_study = KNOWN
        .iter()
        .filter(|property| property.scope == PropertyScope::Workload && !HAVE_A_KEY.contains(&property.name));
    let properties: Map<String, Value> = of_a_study
        .map(|property| {
            let value = json!({ "type": ["string", "number", "boolean"], "description": property.meaning });
            (property.name.to_owned(), value)
        })
        .collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn share() -> Value {
    number(0.0, 1.0)
}
