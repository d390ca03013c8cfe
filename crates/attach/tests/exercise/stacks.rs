//! The storages that are exercised: every layer, alone and in company. A new layer is a line here.

use underlay_storage::catalogue;
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;
use underlay_storage::stack::{BackingSpec, DeviceSpec, StackNode, StackSpec, VolumeSpec};

pub(crate) struct Named {
    pub name: &'static str,
    pub root: StackNode,
}

/// So fast a clock that a disk's milliseconds don't hold the exercise up, while requests still wait and reorder.
const FAST_CLOCK: f64 = 0.002;
const CHUNK_BYTES: u64 = 64 << 10;
const COMPRESSED_CHUNK_BYTES: u32 = 16 << 10;

/// Each with room for `bytes` at least.
pub(crate) fn all(bytes: u64) -> Vec<Named> {
    let half = (bytes / 2).next_multiple_of(CHUNK_BYTES);
    let stripe = |members: Vec<StackNode>| StackNode::Stripe { chunk_bytes: CHUNK_BYTES, members };
    let mirror = |members: Vec<StackNode>| StackNode::Mirror { members };
    // With room for what does not compress.
    let compress = |codec, member: fn(&str, u64) -> StackNode| {
        let member = Box::new(member("a", bytes * 2));
        StackNode::Compress {
            codec,
            chunk_bytes: COMPRESSED_CHUNK_BYTES,
            capacity_bytes: Some(bytes),
            member,
        }
    };
    let link =
        |member| StackNode::Link { bandwidth_mb_s: 100.0, latency_us: 100.0, member: Box::new(member) };
    // So small that what is cached must give way, and a write-back cache write back.
    let cache = |mode, fast, slow| {
        let (fast, slow) = (Box::new(fast), Box::new(slow));
        StackNode::Cache { mode, fast, slow, bypass_bytes: 64 << 10, dirty_percent: 50 }
    };
    let fast_bytes = (bytes / 8).max(2 << 20);
    vec![
        Named { name: "device", root: plain("a", bytes) },
        Named { name: "hdd", root: modelled("a", "hdd-7200-sata", bytes) },
        Named { name: "flash", root: modelled("a", "nvme-9300-max", bytes) },
        Named {
            name: "stripe",
            root: stripe(vec![modelled("a", "ssd-sata", half), modelled("b", "ssd-sata", half)]),
        },
        Named {
            name: "stripe of stripes",
            root: stripe(vec![
                stripe(vec![plain("a", half / 2), plain("b", half / 2)]),
                stripe(vec![plain("c", half / 2), plain("d", half / 2)]),
            ]),
        },
        Named {
            name: "mirror",
            root: mirror(vec![modelled("a", "ssd-sata", bytes), modelled("b", "hdd-7200-sata", bytes)]),
        },
        Named { name: "compress lz4", root: compress(CompressionCodec::Lz4, plain) },
        Named {
            name: "compress zstd",
            root: compress(CompressionCodec::Zstd(1), |name, bytes| modelled(name, "ssd-sata", bytes)),
        },
        Named { name: "link", root: link(modelled("a", "nvme-9300-max", bytes)) },
        Named {
            name: "read cache",
            root: cache(CacheMode::Read, plain("a", fast_bytes), modelled("b", "hdd-7200-sata", bytes)),
        },
        Named {
            name: "write-back cache",
            root: cache(
                CacheMode::WriteBack,
                modelled("a", "ssd-sata", fast_bytes),
                modelled("b", "hdd-7200-sata", bytes),
            ),
        },
        Named {
            name: "cache over compress",
            root: cache(CacheMode::WriteBack, plain("b", fast_bytes), compress(CompressionCodec::Lz4, plain)),
        },
        Named {
            name: "mirror of stripe and link",
            root: mirror(vec![stripe(vec![plain("a", half), plain("b", half)]), link(plain("c", bytes))]),
        },
    ]
}

pub(crate) fn stack(root: StackNode) -> StackSpec {
    StackSpec { volumes: vec![VolumeSpec::new("data", root)], dilation: FAST_CLOCK, seed: 1 }
}

fn plain(name: &str, bytes: u64) -> StackNode {
    StackNode::Device(DeviceSpec::new(name, None, bytes, BackingSpec::Memory))
}

fn modelled(name: &str, medium: &str, bytes: u64) -> StackNode {
    let medium = catalogue::find(medium).unwrap();
    StackNode::Device(DeviceSpec::new(name, Some(medium), bytes, BackingSpec::Memory))
}
