//! The layers of a `[storage.NAME]`: a cache, compression, a link.

use std::ops::Range;

use serde_json::Value;
use underlay_config::keys::{
    BandwidthKind, BytesKind, DurationKind, KeyKind, KeyRow, KeySection, OwnSchema, WordKind,
};
use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics, Field, Section, Spanned};
use underlay_storage::layers::cache::CacheMode;
use underlay_storage::layers::compress::CompressionCodec;

use super::devices::MEDIUM;
use super::media_files::{DeviceKeys, MediaReader};
use crate::spec::model::{CacheSpec, LinkSpec, VolumeLayers};

/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;
/// A longer latency is no plausible network.
const LATENCY_MAX_US: f64 = 10e6;

pub(super) const CACHE: KeyRow<OwnSchema> = KeyRow::new(
    "cache",
    OwnSchema(|| CACHE_DEVICE.schema()),
    "{ medium = \"optane-p4800x\", capacity = \"375 GB\", mode = \"write-back\" }",
    "A cache on a device of its own before each volume.",
);
pub(super) const COMPRESS: KeyRow<WordKind<CompressionCodec>> = KeyRow::new(
    "compress",
    WordKind(&[("lz4", CompressionCodec::Lz4), ("zstd", CompressionCodec::Zstd(ZSTD_LEVEL))]),
    "\"lz4\"",
    "Each volume is stored compressed.",
);
pub(super) const LINK: KeyRow<NetworkLink> = KeyRow::new(
    "link",
    NetworkLink,
    "{ bandwidth = \"25 Gbit/s\", latency = \"20 us\" }",
    "A network before each volume.",
);

const CACHE_MEDIUM: KeyRow<OwnSchema> =
    KeyRow { meaning: "The cache's device.", example: "\"nvme-9300-max\"", ..MEDIUM };
const CACHE_CAPACITY: KeyRow<BytesKind> =
    KeyRow::new("capacity", BytesKind, "\"64 GB\"", "Capacity of the cache, on the modelled machine.")
        .required();
const CACHE_MODE: KeyRow<WordKind<CacheMode>> = KeyRow::new(
    "mode",
    WordKind(&[("read", CacheMode::Read), ("write-back", CacheMode::WriteBack)]),
    "\"read\"",
    "Whether it takes writes, too.",
)
.required();

/// `cache = { ... }`
pub(in crate::spec) const CACHE_DEVICE: KeySection = KeySection {
    path: "storage.NAME.cache",
    meaning: "A cache on a device of its own before each volume.",
    keys: &[&CACHE_MEDIUM, &CACHE_CAPACITY, &CACHE_MODE],
};

const LINK_BANDWIDTH: KeyRow<BandwidthKind> =
    KeyRow::new("bandwidth", BandwidthKind, "\"25 Gbit/s\"", "Bandwidth in each direction.").required();
const LINK_LATENCY: KeyRow<DurationKind> =
    KeyRow::new("latency", DurationKind { allows_zero: true }, "\"20 us\"", "One-way latency, at most 10 s.")
        .required();

/// `link = { ... }`
pub(in crate::spec) const NETWORK_LINK: KeySection = KeySection {
    path: "storage.NAME.link",
    meaning: "A network: before each volume, or of a machine.",
    keys: &[&LINK_BANDWIDTH, &LINK_LATENCY],
};

/// The keys of the layers as found, so that they can be refused where they don't belong.
pub(in crate::spec) struct LayerFields<'a> {
    cache: Option<Field<'a>>,
    compress: Option<Field<'a>>,
    link: Option<Field<'a>>,
}

impl<'a> LayerFields<'a> {
    pub(super) fn take(section: &mut Section<'a>) -> Self {
        let [cache, compress, link] = section.take_each([CACHE.name, COMPRESS.name, LINK.name]);
        LayerFields { cache, compress, link }
    }

    /// Where the cache is described.
    pub(super) fn cache_span(&self) -> Option<Range<usize>> {
        self.cache.as_ref().map(|field| field.span.clone())
    }

    pub(super) fn into_fields(self) -> impl Iterator<Item = Field<'a>> {
        [self.cache, self.compress, self.link].into_iter().flatten()
    }

    /// `None` when one of them is invalid.
    pub(super) fn read(&self, media: &MediaReader<'_>, findings: &mut Diagnostics) -> Option<VolumeLayers> {
        let cache = self.cache.as_ref().map(|field| read_cache(field, media, findings));
        let compress = self.compress.as_ref().map(|field| read_codec(field, findings));
        let link = self.link.as_ref().map(|field| NetworkLink.read(field, findings).map(|link| link.value));
        Some(VolumeLayers {
            cache: sound(cache)?.map(Box::new),
            compress: sound(compress)?,
            link: sound(link)?,
        })
    }

    /// For a volume of a pool: the codec of the volume server, and the link. `None` when one is invalid.
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
        let link = self.link.as_ref().map(|field| NetworkLink.read(field, findings).map(|link| link.value));
        let (compress, link) = (sound(compress)?, sound(link)?);
        self.cache.is_none().then_some((compress, link))
    }
}

fn read_codec(field: &Field<'_>, findings: &mut Diagnostics) -> Option<CompressionCodec> {
    COMPRESS.kind.read(field, findings).map(|codec| codec.value)
}

/// Absent is fine, invalid is not.
fn sound<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(value) => value.map(Some),
    }
}

fn read_cache(field: &Field<'_>, media: &MediaReader<'_>, findings: &mut Diagnostics) -> Option<CacheSpec> {
    let mut section = field.section(field.place.clone(), findings)?;
    let medium = section.take_key(&CACHE_MEDIUM, findings);
    let capacity = section.read(&CACHE_CAPACITY, findings);
    let mode = section.read(&CACHE_MODE, findings);
    section.finish(findings);
    let keys = DeviceKeys {
        capacity: capacity.clone(),
        beyond: false,
        changes: &[],
        title: &field.place,
        own_keys: &CACHE_DEVICE.names(),
    };
    let medium = medium.and_then(|field| media.find_device(&field, &keys, findings));
    let (medium, capacity) = (medium?, capacity?);
    if capacity.value > medium.capacity_bytes() {
        let message = format!("{} is larger than its medium", field.place);
        let label = format!("\"{}\" has {}", medium.name, rounded_bytes(medium.capacity_bytes()));
        findings.push(Diagnostic::error(capacity.span, message, label));
        return None;
    }
    Some(CacheSpec { medium, capacity_bytes: capacity.value, mode: mode?.value })
}

/// A network between a volume and its users.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkLink;

impl KeyKind for NetworkLink {
    type Value = LinkSpec;

    fn read(&self, field: &Field<'_>, findings: &mut Diagnostics) -> Option<Spanned<LinkSpec>> {
        let mut section = field.section(field.place.clone(), findings)?;
        let bandwidth = section.take_key(&LINK_BANDWIDTH, findings);
        let latency = section.take_key(&LINK_LATENCY, findings);
        section.finish(findings);
        let bandwidth = bandwidth.and_then(|field| LINK_BANDWIDTH.kind.read(&field, findings));
        let latency = latency.and_then(|field| {
            let latency = LINK_LATENCY.kind.read(&field, findings)?;
            let latency_us = latency.value.as_secs_f64() * 1e6;
            if latency_us > LATENCY_MAX_US {
                field.invalid("expected at most \"10 s\"", findings);
                return None;
            }
            Some(latency_us)
        });
        let link = LinkSpec { bandwidth_mb_s: bandwidth?.value, latency_us: latency? };
        Some(Spanned::new(link, field.span.clone()))
    }

    fn describe(&self) -> String {
        "a table of `bandwidth` and `latency`".to_owned()
    }

    fn schema(&self) -> Value {
        NETWORK_LINK.schema()
    }
}
