//! The layers of a `[storage.NAME]`: a cache, compression, a link.

use std::ops::Range;

use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics, Field, Section};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;

use super::media_files::{DeviceKeys, MediaReader};
use crate::spec::model::{CacheSpec, LinkSpec, VolumeLayers};

/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;
/// The longest way through a network that is still one.
const LATENCY_MAX_US: f64 = 10e6;

/// The keys of the layers as they were found, so that they can be refused where they don't belong.
pub(in crate::spec) struct LayerFields<'a> {
    cache: Option<Field<'a>>,
    compress: Option<Field<'a>>,
    link: Option<Field<'a>>,
}

impl<'a> LayerFields<'a> {
    pub(super) fn take(section: &mut Section<'a>) -> Self {
        let [cache, compress, link] = section.take_each(["cache", "compress", "link"]);
        LayerFields { cache, compress, link }
    }

    /// Where the cache is described.
    pub(super) fn cache_span(&self) -> Option<Range<usize>> {
        self.cache.as_ref().map(|field| field.span.clone())
    }

    pub(super) fn into_fields(self) -> impl Iterator<Item = Field<'a>> {
        [self.cache, self.compress, self.link].into_iter().flatten()
    }

    /// `None` when one of them is wrong.
    pub(super) fn read(&self, media: &MediaReader<'_>, findings: &mut Diagnostics) -> Option<VolumeLayers> {
        let cache = self.cache.as_ref().map(|field| read_cache(field, media, findings));
        let compress = self.compress.as_ref().map(|field| read_codec(field, findings));
        let link = self.link.as_ref().map(|field| read_link(field, findings));
        Some(VolumeLayers {
            cache: sound(cache)?.map(Box::new),
            compress: sound(compress)?,
            link: sound(link)?,
        })
    }

    /// Of a volume of a pool: the codec that the volume server compresses by, and the link. `None` when one is wrong.
    pub(super) fn read_of_volume(
        self,
        findings: &mut Diagnostics,
    ) -> Option<(Option<CompressionCodec>, Option<LinkSpec>)> {
        if let Some(cache) = &self.cache {
            let message = format!("{} does not go with `pool`", cache.place);
            let label = "a volume server has no cache device";
            findings.push(Diagnostic::error(cache.key_span.clone(), message, label));
        }
        let compress = self.compress.as_ref().map(|field| read_codec(field, findings));
        let link = self.link.as_ref().map(|field| read_link(field, findings));
        let (compress, link) = (sound(compress)?, sound(link)?);
        self.cache.is_none().then_some((compress, link))
    }
}

fn read_codec(field: &Field<'_>, findings: &mut Diagnostics) -> Option<CompressionCodec> {
    field.word(&["lz4", "zstd"], findings).map(|word| match word.value {
        "zstd" => CompressionCodec::Zstd(ZSTD_LEVEL),
        _ => CompressionCodec::Lz4,
    })
}

/// Absent is fine, wrong is not.
fn sound<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(value) => value.map(Some),
    }
}

fn read_cache(field: &Field<'_>, media: &MediaReader<'_>, findings: &mut Diagnostics) -> Option<CacheSpec> {
    let mut section = field.section(field.place.clone(), findings)?;
    let medium = section.require("medium", "medium = \"nvme-9300-max\"", findings);
    let capacity = section.require("capacity", "capacity = \"64 GB\"", findings);
    let mode = section.require("mode", "mode = \"read\" or \"write-back\"", findings);
    section.finish(findings);
    let capacity = capacity.and_then(|field| field.bytes(findings));
    let keys = DeviceKeys {
        capacity: capacity.clone(),
        beyond: false,
        changes: &[],
        title: &field.place,
        own_keys: &["medium", "capacity", "mode"],
    };
    let medium = medium.and_then(|field| media.find_device(&field, &keys, findings));
    let mode = mode.and_then(|field| field.word(&["read", "write-back"], findings));
    let (medium, capacity) = (medium?, capacity?);
    if capacity.value > medium.capacity_bytes() {
        let message = format!("{} is larger than its medium", field.place);
        let label = format!("\"{}\" has {}", medium.name, rounded_bytes(medium.capacity_bytes()));
        findings.push(Diagnostic::error(capacity.span, message, label));
        return None;
    }
    let mode = if mode?.value == "read" { CacheMode::Read } else { CacheMode::WriteBack };
    Some(CacheSpec { medium, capacity_bytes: capacity.value, mode })
}

pub(super) fn read_link(field: &Field<'_>, findings: &mut Diagnostics) -> Option<LinkSpec> {
    let mut section = field.section(field.place.clone(), findings)?;
    let bandwidth = section.require("bandwidth", "bandwidth = \"25 Gbit/s\"", findings);
    let latency = section.require("latency", "latency = \"20 us\"", findings);
    section.finish(findings);
    let bandwidth = bandwidth.and_then(|field| field.bandwidth_mb_s(findings));
    let latency = latency.and_then(|field| {
        let latency = field.duration(true, findings)?;
        let latency_us = latency.value.as_secs_f64() * 1e6;
        if latency_us > LATENCY_MAX_US {
            field.invalid("expected at most \"10 s\"", findings);
            return None;
        }
        Some(latency_us)
    });
    Some(LinkSpec { bandwidth_mb_s: bandwidth?.value, latency_us: latency? })
}
