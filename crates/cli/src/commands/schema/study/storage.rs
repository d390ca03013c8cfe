//! `[storage.NAME]` and `[pool.NAME]`.

use serde_json::{Value, json};
use underlay_storage::catalogue;

use super::values::{
    bandwidth, duration, key, list, one_or_many, settings, size, table, text, whole, words, yes_or_no,
};

pub(super) fn storage() -> Value {
    let presets = words(catalogue::layouts().iter().map(|layout| layout.name.as_str()));
    let mut storage = table(
        &[],
        vec![
            key("devices", list(device()), "Modelled devices."),
            key("preset", presets, "A layout of the catalogue: its devices and how they are put together."),
            key("pool", text(), "A volume of this [pool.NAME] for each server, over a network."),
            key("paths", one_or_many(text()), "Directories on storage that you have, used as they are."),
            key("elsewhere", text(), "The storage of a cluster that runs already, in words."),
            key(
                "layout",
                words(["stripe", "jbod", "mirror", "split"]),
                "How several devices become what a system sees: one striped volume (the default), a directory each, \
                 everything on every device, or one volume shown as several directories.",
            ),
            key("chunk", size(), "Of a stripe or split; 512 KiB when left out. Not scaled."),
            key("directories", whole(1, Some(64)), "Of a split."),
            key(
                "per",
                words(["server", "node"]),
                "Whether all nodes of a server share these devices (the default), or each node of a system has them to itself.",
            ),
            key(
                "read_ahead",
                json!({ "anyOf": [size(), { "const": "none" }] }),
                "How far the kernel reads ahead on the block devices; as far as this host has it when left out. Not scaled.",
            ),
            key("cache", cache(), "A cache on a device of its own before each volume."),
            key("compress", words(["lz4", "zstd"]), "Each volume is stored compressed."),
            key("link", link(), "A network before each volume."),
            key("transport", words(["nvme-tcp"]), "Of a volume of a pool."),
            key("capacity", size(), "Of each server's volume of a pool."),
            key("mirror", yes_or_no(), "Of a volume of a pool: two copies, on two of its devices."),
            key("initial", initial(), "What the devices went through before; \"steady\" when left out."),
            key(
                "filesystem",
                words(["xfs", "ext4", "none"]),
                "\"xfs\" when left out; \"none\" gives a system that commands run the block devices.",
            ),
            key("system", settings(), "Settings of the system that hold on this storage alone."),
        ],
    );
    let sources = ["devices", "preset", "pool", "paths", "elsewhere"];
    storage["oneOf"] = sources.iter().map(|source| json!({ "required": [source] })).collect();
    storage
}

pub(super) fn pool() -> Value {
    table(
        &["devices"],
        vec![
            key("devices", list(device()), "Modelled devices, which need not be equal."),
            key("initial", initial(), "What the devices went through before; \"steady\" when left out."),
            key(
                "power_cut",
                yes_or_no(),
                "The power of a device can be cut on command; false when left out.",
            ),
        ],
    )
}

fn device() -> Value {
    let mut device = table(
        &["medium"],
        vec![
            key(
                "medium",
                medium(),
                "One of the catalogue (`underlay media list`), or a file that ends in .toml.",
            ),
            key("count", whole(1, Some(64)), "So many equal devices; 1 when left out."),
            key("capacity", size(), "Of each; the medium's own when left out, and no larger than that."),
            key("larger_than_medium", yes_or_no(), "Allows a device that no shop has."),
            key(
                "directories",
                whole(1, Some(64)),
                "Under layout \"jbod\": shows each of them as this many directories.",
            ),
        ],
    );
    device["additionalProperties"] = json!({
        "type": ["number", "boolean"],
        "description": "A number or property of the medium's [model], in the place of its own (`underlay media show`).",
    });
    device
}

fn medium() -> Value {
    let names = words(catalogue::builtin().iter().map(|medium| medium.name.as_str()));
    json!({ "anyOf": [names, { "type": "string", "pattern": "\\.toml$" }] })
}

fn cache() -> Value {
    table(
        &["medium", "capacity", "mode"],
        vec![
            key("medium", medium(), "The cache's device."),
            key("capacity", size(), "Of the cache, on the modelled machine."),
            key("mode", words(["read", "write-back"]), "Whether it takes writes too."),
        ],
    )
}

pub(super) fn link() -> Value {
    table(
        &["bandwidth", "latency"],
        vec![key("bandwidth", bandwidth(), "Each way."), key("latency", duration(), "One way.")],
    )
}

fn initial() -> Value {
    words(["fresh", "steady"])
}
