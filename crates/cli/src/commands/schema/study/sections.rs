//! The sections that stand for themselves: `[run]`, `[scale]`, `[fault.NAME]`, `[event.NAME]`, `[short]`,
//! `[reference]`.

use serde_json::{Value, json};
use underlay_attach::choice;
use underlay_study::reference;

use super::storage::link;
use super::values::{duration, key, number, one_or_many, size, table, text, whole, words, yes, yes_or_no};
use super::workload::{distributions, job_data, jobs, mixes, rates, records, threads};

pub(super) fn run() -> Value {
    let attachments = words(choice::ATTACHMENTS.iter().map(|way| way.name));
    table(
        &[],
        vec![
            key(
                "warmup",
                duration(),
                "Of each cell, on your clock, or modelled time where this host chooses [scale] time; \"20 s\" when left out.",
            ),
            key(
                "duration",
                duration(),
                "Of each cell, on your clock, or modelled time where this host chooses [scale] time; \"60 s\" when left out.",
            ),
            key("repetitions", whole(1, Some(1000)), "3 when left out."),
            key("seed", whole(0, None), "1 when left out."),
            key(
                "cache",
                words(["cold", "warm"]),
                "What the caches hold when a cell begins; \"warm\" when left out.",
            ),
            key(
                "attachment",
                attachments,
                "How modelled storage is attached; the best that works here when left out.",
            ),
            key(
                "raw",
                yes_or_no(),
                "Writes every operation that is measured to a file beside the cell's record.",
            ),
            key(
                "dirty_limit",
                size(),
                "Written data that may wait in memory, of all devices of one storage; as this machine has it when left out.",
            ),
        ],
    )
}

pub(super) fn machine() -> Value {
    table(
        &["cores"],
        vec![
            key("cores", whole(1, Some(4096)), "Of each node; its servers are held to as much CPU time."),
            key("network", link(), "To volumes that name no `link` of their own."),
        ],
    )
}

pub(super) fn scale() -> Value {
    table(
        &[],
        vec![
            key(
                "time",
                time(),
                "Slow motion: makes every modelled time this many times longer. When left out, what this host needs for [machine], or 1 without it.",
            ),
            key("data", data(), "Makes every size this many times smaller; 1 when left out."),
        ],
    )
}

fn time() -> Value {
    number(1.0, 1e4)
}

fn data() -> Value {
    number(1.0, 1e6)
}

pub(super) fn fault() -> Value {
    let rate = || key("rate", number(0.0, 1.0), "The share of the requests.");
    let operations = || {
        let kinds = one_or_many(words(["read", "write", "flush", "discard"]));
        key("operations", kinds, "All when left out.")
    };
    let extent = || key("extent", text(), "A part of the device, as \"0..1 GiB\"; all of it when left out.");
    let errors = table(&["rate"], vec![rate(), operations(), extent()]);
    let corrupt = table(&["rate"], vec![rate(), extent()]);
    let latency = key("latency", duration(), "How much longer such a request takes.");
    let spikes = table(&["rate", "latency"], vec![rate(), operations(), latency]);
    let power_cut = table(
        &[],
        vec![
            key("torn", yes_or_no(), "A write of several blocks may be partly there."),
            key("reordered", yes_or_no(), "Not only the writes that completed last may be lost."),
        ],
    );
    let acts = vec![
        key("slow", json!({ "type": "number" }), "How many times slower the device goes."),
        key("errors", errors, "Requests fail."),
        key("corrupt", corrupt, "Reads return wrong bits."),
        key("spikes", spikes, "Requests take longer."),
        key("vanish", yes(), "Every request fails."),
        key("full", yes(), "Writes to blocks that hold nothing fail for lack of space."),
        key("ignore_flushes", yes(), "Flushes are acknowledged and not carried out."),
        key("power_cut", json!({ "anyOf": [yes(), power_cut] }), "Writes that were not flushed may be lost."),
    ];
    let names = ["slow", "errors", "corrupt", "spikes", "vanish", "full", "ignore_flushes", "power_cut"];
    let mut keys = vec![
        key("at", duration(), "From the beginning of what is measured, in modelled time."),
        key("for", duration(), "To the end when left out."),
        key("storage", text(), "Every modelled one when left out."),
        key("device", whole(0, Some(63)), "As `devices` lists them; all when left out."),
    ];
    keys.extend(acts);
    let mut fault = table(&["at"], keys);
    fault["oneOf"] = names.iter().map(|name| json!({ "required": [name] })).collect();
    fault
}

pub(super) fn event() -> Value {
    table(
        &["at", "node"],
        vec![
            key("at", duration(), "From the beginning of what is measured, in modelled time."),
            key("for", duration(), "How long the node is away; it stays away when left out."),
            key(
                "node",
                text(),
                "Its name as `underlay node list` prints it, or \"any node\", \"any replica\", \"master of shard 1\".",
            ),
            key("how", words(["stop", "kill"]), "Shut down in order, or killed (the default)."),
            key("system", text(), "Every one of several nodes when left out."),
        ],
    )
}

pub(super) fn short() -> Value {
    table(
        &[],
        vec![
            key("warmup", duration(), "In place of that of [run]."),
            key("duration", duration(), "In place of that of [run]."),
            key("repetitions", whole(1, Some(1000)), "In place of those of [run]."),
            key("dirty_limit", size(), "In place of that of [run]."),
            key("workloads", one_or_many(text()), "Which workloads are kept."),
            key("storages", one_or_many(text()), "Which storages are kept: the baseline, and others."),
            key("mixes", mixes(), "Which mixes are kept."),
            key("jobs", jobs(), "Which jobs are kept."),
            key("distribution", distributions(), "In place of those of every workload but jobs."),
            key("threads", threads(), "In place of those of every workload but jobs."),
            key("rate", rates(), "In place of those of every workload but jobs."),
            key("records", records(), "In place of the amount of every workload but jobs."),
            key("data", one_or_many(size()), "In place of the amount of every workload but jobs."),
            key("job_data", job_data(), "In place of the `data` of jobs."),
            key("servers", whole(1, Some(64)), "Of every system that has `servers`."),
            key("pool_devices", whole(1, Some(64)), "How many each entry of a pool's `devices` has."),
            key("time", time(), "In place of that of [scale]."),
            key("data_scale", data(), "In place of `data` of [scale]."),
        ],
    )
}

pub(super) fn reference() -> Value {
    table(
        &["paper"],
        vec![
            key("paper", words(reference::names()), "Whose published figures."),
            key("departures", one_or_many(text()), "Where the study departs from how they came about."),
            key(
                "one_of",
                whole(1, Some(100_000)),
                "How many equal machines the paper had: the study is one of them.",
            ),
        ],
    )
}
