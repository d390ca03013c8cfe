//! The catalogue: media as data, one TOML file each, every number with its source.

mod basis;
mod changed;
pub(crate) mod contradictions;
mod curves;
mod factory;
mod files;
mod layouts;
mod measurements;
mod memory;
pub mod parameters;
mod quantity;
mod read;
mod table;
mod volume;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use underlay_config::{Diagnostics, nearest, units};

pub use basis::MediumBasis;
pub use changed::{ChangedMedium, MediumRefusal, ParameterChange, RefusalCause, changed, sized, text_of};
pub use contradictions::{ContradictionSubject, KnownContradiction};
pub use curves::{SourcedCurve, SourcedDistribution};
pub use layouts::{LayoutPreset, PresetDevice, PresetLayout, UnknownLayout, find_layout, layouts};
pub use measurements::LoadMeasurement;
pub use memory::{MemoryModule, memory};
pub use parameters::{
    CloudParameters, FlashParameters, HddParameters, LinkParameters, MeasuredDevice, MeasuredLoad,
    MeasuredOrder, MeasuredParameters, MeasuredService, MediumKind, ModelParameters, NetworkParameters,
    OrderProperty, ParameterForm, PmemParameters, RemoteMedium, TailDistributions, TailMeasure,
    TailParameters,
};
pub use quantity::{ParameterEntry, SourcedProperty, SourcedQuantity};
pub use volume::{BurstRule, RENT_MONTHS, RateRule, SizeUnit, VolumeRent, VolumeRules};

use crate::layers::sectors::SECTOR_BYTES;
use crate::medium::MediumModel;
use crate::stack::InitialState;

/// How far a medium's published figures can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CalibrationLabel {
    /// The maker's own, or an independent measurement of this very product, or derived from these.
    Datasheet,
    /// Reckoned by us from what is known of such devices.
    Estimate,
    /// Some figures are those of a sibling product; the note says which.
    Proxy,
    /// A device as it was measured by someone who had it.
    Measured,
}

impl CalibrationLabel {
    pub fn name(self) -> &'static str {
        match self {
            CalibrationLabel::Datasheet => "datasheet",
            CalibrationLabel::Estimate => "estimate",
            CalibrationLabel::Proxy => "proxy",
            CalibrationLabel::Measured => "measured",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MediumPrice {
    /// For one device; [`RENT_YEARS`](underlay_record::RENT_YEARS) years' rent where it is rented.
    pub usd: f64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rented: bool,
    /// Year or day.
    pub date: String,
    /// A key of the medium's `sources`.
    pub source: String,
    #[serde(default)]
    pub estimate: bool,
    /// Where it is the rent of three years: what a volume costs a month, by its size and rates. `usd` is that of the
    /// medium's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rent: Option<VolumeRent>,
}

/// The quantity that a published figure measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    RandomReadIops,
    /// In the steady state: the write buffer is full.
    RandomWriteIops,
    /// From the device's start, where a disk is fastest.
    SequentialReadMbS,
    SequentialWriteMbS,
    /// Mean, of random reads.
    ReadLatencyUs,
    /// Mean, of random writes that find room in the write buffer.
    WriteLatencyUs,
    /// Of a sync after one random write.
    FlushLatencyUs,
    /// With full credits, before they are spent.
    BurstReadIops,
    BurstWriteIops,
    BurstReadMbS,
    BurstWriteMbS,
    /// How long full credits last under random reads, at the stated queue depth.
    BurstDurationS,
    /// Mean over random cylinders, without command overhead.
    SeekAverageReadMs,
    SeekAverageWriteMs,
    /// Mean of seek and half a rotation over random reads, without command overhead.
    PositioningReadMs,
}

impl FigureKind {
    pub const ALL: &'static [FigureKind] = &[
        FigureKind::RandomReadIops,
        FigureKind::RandomWriteIops,
        FigureKind::SequentialReadMbS,
        FigureKind::SequentialWriteMbS,
        FigureKind::ReadLatencyUs,
        FigureKind::WriteLatencyUs,
        FigureKind::FlushLatencyUs,
        FigureKind::BurstReadIops,
        FigureKind::BurstWriteIops,
        FigureKind::BurstReadMbS,
        FigureKind::BurstWriteMbS,
        FigureKind::BurstDurationS,
        FigureKind::SeekAverageReadMs,
        FigureKind::SeekAverageWriteMs,
        FigureKind::PositioningReadMs,
    ];

    /// As catalogue files write it, unit last.
    pub fn name(self) -> &'static str {
        match self {
            FigureKind::RandomReadIops => "random-read-iops",
            FigureKind::RandomWriteIops => "random-write-iops",
            FigureKind::SequentialReadMbS => "sequential-read-mb-s",
            FigureKind::SequentialWriteMbS => "sequential-write-mb-s",
            FigureKind::ReadLatencyUs => "read-latency-us",
            FigureKind::WriteLatencyUs => "write-latency-us",
            FigureKind::FlushLatencyUs => "flush-latency-us",
            FigureKind::BurstReadIops => "burst-read-iops",
            FigureKind::BurstWriteIops => "burst-write-iops",
            FigureKind::BurstReadMbS => "burst-read-mb-s",
            FigureKind::BurstWriteMbS => "burst-write-mb-s",
            FigureKind::BurstDurationS => "burst-duration-s",
            FigureKind::SeekAverageReadMs => "seek-average-read-ms",
            FigureKind::SeekAverageWriteMs => "seek-average-write-ms",
            FigureKind::PositioningReadMs => "positioning-read-ms",
        }
    }

    /// Whether a `percentile` of it may be published; without one it is the mean.
    pub fn has_percentiles(self) -> bool {
        matches!(self, FigureKind::ReadLatencyUs | FigureKind::WriteLatencyUs | FigureKind::FlushLatencyUs)
    }
}

/// A figure that someone published of the medium, and that its model is checked against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedPerformance {
    pub figure: FigureKind,
    pub value: f64,
    pub queue_depth: u32,
    pub block_bytes: u32,
    /// Of a latency: 99.9 for the one that a thousandth exceeds; the mean when absent.
    #[serde(default)]
    pub percentile: Option<f64>,
    /// A key of the medium's `sources`.
    pub source: String,
    /// Derived from other figures of the file, or published of something near (a sibling, the best of
    /// several capacities): the note says which.
    #[serde(default)]
    pub estimate: bool,
    /// Conditions that the source states or leaves open.
    #[serde(default)]
    pub note: Option<String>,
    /// Of a volume at its instance, whose limits count; without it the figure is the volume's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_instance: bool,
    /// What else the file has that can't be of the same device, and why it has both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradicts: Vec<KnownContradiction>,
}

impl PublishedPerformance {
    /// The file's remarks on the figure: its conditions and contradictions.
    pub fn remarks(&self) -> Vec<String> {
        let contradictions =
            self.contradicts.iter().map(|one| format!("contradicts {}: {}", one.with.name(), one.why));
        self.note.iter().cloned().chain(contradictions).collect()
    }
}

/// One medium of the catalogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CatalogueMedium {
    /// Its name in studies: `hdd-7200-sata`.
    pub name: String,
    pub title: String,
    pub kind: MediumKind,
    /// In which it came on the market.
    pub year: u16,
    pub label: CalibrationLabel,
    pub note: Option<String>,
    /// In bytes, as sold.
    pub capacity: SourcedQuantity,
    /// The unit in which it is addressed: 512, or 4,096 where nothing is said. Inside it has blocks of 4,096 bytes in
    /// any case.
    #[serde(default)]
    pub logical_sector: Option<SourcedQuantity>,
    pub price: MediumPrice,
    /// Document, revision and date of each source by its key.
    pub sources: BTreeMap<String, String>,
    /// Keys of the sources that are measurements, by someone who had the device; all others were published.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub measurements: BTreeSet<String>,
    pub model: ModelParameters,
    /// How the provider sells volumes of this kind, where their rates and price follow the size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeRules>,
    /// Stragglers as measured, beside the model.
    #[serde(default)]
    pub tail: Option<TailParameters>,
    pub published: Vec<PublishedPerformance>,
    /// What its requests were measured to take under mixed loads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<LoadMeasurement>,
}

/// A name that the catalogue doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no medium \"{name}\" in the catalogue; {}", advice(.suggestions, .known))]
pub struct UnknownMedium {
    pub name: String,
    /// The names nearest to it, best first; empty when none is near.
    pub suggestions: Vec<String>,
    pub known: Vec<String>,
}

fn advice(suggestions: &[String], names: &[String]) -> String {
    if suggestions.is_empty() {
        format!("it has {}", names.join(", "))
    } else {
        format!("did you mean {}?", suggestions.join(" or "))
    }
}

impl CatalogueMedium {
    /// Whether it is addressed in sectors of 512 bytes.
    pub fn has_small_sectors(&self) -> bool {
        self.logical_sector.as_ref().is_some_and(|sector| sector.value == f64::from(SECTOR_BYTES))
    }

    /// Reads a catalogue file.
    ///
    /// # Errors
    /// Lists every mistake with its line and column; `file_name` serves these messages only.
    pub fn parse(file_name: &str, text: &str) -> Result<CatalogueMedium, Diagnostics> {
        read::parse(file_name, text)
    }

    /// As sold.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity.value as u64
    }

    /// `2 TiB`, as a study has it.
    pub fn size_text(&self) -> String {
        units::format_bytes(self.capacity_bytes())
    }

    /// The same volume in another size, where its rates and price follow the size; any other medium as it is.
    ///
    /// # Errors
    /// Why the provider sells no such volume, in words.
    pub fn with_size(&self, capacity_bytes: u64) -> Result<CatalogueMedium, String> {
        let mut medium = self.clone();
        if let Some(rules) = &self.volume {
            rules.resize(&mut medium, capacity_bytes)?;
        }
        Ok(medium)
    }

    /// For one device, at the date that the catalogue states; three years of rent of what is rented.
    pub fn price_usd(&self) -> f64 {
        self.price.usd
    }

    /// The same, and whether it is rent.
    pub fn price(&self) -> underlay_record::PriceSum {
        underlay_record::PriceSum::new(self.price_usd(), self.price.rented)
    }

    /// When and where the price was taken, in words.
    pub fn price_source(&self) -> String {
        let estimate = if self.price.estimate { ", an estimate" } else { "" };
        format!("{}{estimate}: {}", self.price.date, self.source_text(&self.price.source))
    }

    /// The text of a source by its key.
    pub fn source_text(&self, key: &str) -> &str {
        self.sources.get(key).map_or("source not stated", String::as_str)
    }

    /// Problems that keep its parameters from being a model; empty for every medium that `parse` made. A medium that
    /// came over another road (JSON) may have any.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.model.problems();
        problems.extend(self.tail.iter().flat_map(TailParameters::problems));
        if self.model.kind() != self.kind {
            problems.push(format!("a model of {} for a {}", self.model.kind().name(), self.kind.name()));
        }
        if !(1e6..=1e18).contains(&self.capacity.value) {
            problems.push(format!("a capacity of {} bytes", self.capacity.value));
        }
        problems
    }

    /// A device of this medium in virtual time.
    ///
    /// `capacity_bytes` may be less than the sold capacity (a study's data scale). The model then keeps all times,
    /// rates and the full stroke. Parts that hold *data* shrink with it: a hundredth of a disk has a hundredth of the
    /// write cache, but never less than 1 MiB, nor more than the real one. A disk's memory of reads shrinks likewise,
    /// but never below four times its read-ahead. The read-ahead keeps its length: it is a stream's lead in time over
    /// the host. The `seed` sets the differences between two devices of a kind: a disk's initial angle, a flash
    /// device's slow pages, all draws from distributions. `initial` matters to flash and to cloud volumes. In the
    /// steady state their credits are spent, and all their blocks are there.
    ///
    /// # Panics
    /// When `problems` is not empty or the capacity is zero.
    pub fn model(&self, capacity_bytes: u64, seed: u64, initial: InitialState) -> Box<dyn MediumModel> {
        assert!(capacity_bytes > 0, "a device of no bytes");
        let scale = (capacity_bytes as f64 / self.capacity.value).min(1.0);
        factory::model(&self.model, self.tail.as_ref(), capacity_bytes, scale, seed, initial)
    }

    /// `200 USD`, `2880 USD (3 years' rent)`
    fn price_text(&self) -> String {
        let price = self.price();
        let remark = price.remark(|usd| format!("{} USD", plain_number(usd)));
        let remark = remark.map_or(String::new(), |remark| format!(" ({remark})"));
        format!("{} USD{remark}", plain_number(price.usd))
    }

    /// One line for a list: title, capacity, price.
    pub fn summary(&self) -> String {
        format!(
            "{}, {} ({}), {} in {}, {}",
            self.title,
            capacity_text(self.capacity.value),
            self.year,
            self.price_text(),
            self.price.date,
            self.label.name()
        )
    }

    /// `of 31 values 42 % measured, 6 % published, 52 % estimated; 7 figures to judge it by`
    fn basis_text(&self) -> String {
        let basis = self.basis();
        let values = basis.measured_values + basis.published_values + basis.estimated_values;
        let [measured, published, estimated] = basis.shares_percent();
        let figures = match basis.figures {
            0 => "no figure of the device itself to judge it by".to_owned(),
            1 => "1 figure to judge it by".to_owned(),
            figures => format!("{figures} figures to judge it by"),
        };
        format!(
            "rests on: of {values} values {measured} % measured, {published} % published, {estimated} % estimated; \
             {figures}"
        )
    }

    /// Every value of its model and its tail.
    fn entries(&self) -> impl Iterator<Item = ParameterEntry<'_>> {
        self.model.entries().into_iter().chain(self.tail.iter().flat_map(TailParameters::entries))
    }

    /// Everything that is known of it, line by line, each number with its source.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![
            format!("{}: {}", self.name, self.title),
            format!("year {}, label {}", self.year, self.label.name()),
            self.basis_text(),
        ];
        if let Some(note) = &self.note {
            lines.push(note.clone());
        }
        let mark = |estimate: bool| if estimate { ", estimate" } else { "" };
        lines.push(format!("capacity {} [{}]", capacity_text(self.capacity.value), self.capacity.source));
        lines.push(format!(
            "price {}, {} [{}{}]",
            self.price_text(),
            self.price.date,
            self.price.source,
            mark(self.price.estimate)
        ));
        if let Some(rules) = &self.volume {
            lines.push("by its size:".into());
            lines.extend(rules.describe());
        }
        lines.push("published:".into());
        for published in &self.published {
            let remarks: String = published.remarks().iter().map(|remark| format!(" ({remark})")).collect();
            let instance = if published.of_instance { " at its instance" } else { "" };
            let percentile =
                published.percentile.map_or_else(String::new, |p| format!(" p{}", plain_number(p)));
            lines.push(format!(
                "  {}{percentile} {} at queue depth {}, {} bytes{instance} [{}{}]{remarks}",
                published.figure.name(),
                plain_number(published.value),
                published.queue_depth,
                published.block_bytes,
                published.source,
                mark(published.estimate)
            ));
        }
        if !self.measured.is_empty() {
            lines.push("measured under mixed loads:".into());
            lines.extend(self.measured.iter().map(LoadMeasurement::describe));
        }
        lines.push("model:".into());
        if let ModelParameters::Network(parameters) = &self.model
            && let Some(inner) = &parameters.inner.name
        {
            lines.push(format!("  a link, with {inner} behind it (`underlay media show {inner}`)"));
        }
        for entry in self.entries() {
            lines.push(format!(
                "  {} {} [{}{}]",
                entry.name,
                entry.value,
                entry.source,
                mark(entry.estimate)
            ));
        }
        // Last: they explain the keys in brackets of all the lines before.
        lines.push("sources:".into());
        lines.extend(self.sources.iter().map(|(key, text)| format!("  {key}: {text}")));
        lines
    }
}

fn capacity_text(bytes: f64) -> String {
    if bytes >= 1e12 {
        format!("{} TB", plain_number(bytes / 1e12))
    } else {
        format!("{} GB", plain_number(bytes / 1e9))
    }
}

/// A number without needless digits: `4`, `0.23`, `94000`.
pub(crate) fn plain_number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Those of the media that come with Underlay whose models some measured or published figure can judge: what a search
/// may propose without having been asked for it.
pub fn judgeable() -> &'static [CatalogueMedium] {
    static MEDIA: OnceLock<Vec<CatalogueMedium>> = OnceLock::new();
    MEDIA.get_or_init(|| builtin().iter().filter(|medium| !medium.basis().is_guess()).cloned().collect())
}

/// The media that come with Underlay.
pub fn builtin() -> &'static [CatalogueMedium] {
    static MEDIA: OnceLock<Vec<CatalogueMedium>> = OnceLock::new();
    MEDIA.get_or_init(|| {
        // A test reads every file, so that none that ships can fail here.
        files::MEDIA
            .iter()
            .map(|file| {
                CatalogueMedium::parse(&file.path, file.text).unwrap_or_else(|error| panic!("{error}"))
            })
            .collect()
    })
}

/// The medium of this name.
///
/// # Errors
/// When there is none: with the nearest names.
pub fn find(name: &str) -> Result<CatalogueMedium, UnknownMedium> {
    if let Some(medium) = builtin().iter().find(|medium| medium.name == name) {
        return Ok(medium.clone());
    }
    let names: Vec<String> = builtin().iter().map(|medium| medium.name.clone()).collect();
    let suggestions =
        nearest(name, names.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
    Err(UnknownMedium { name: name.to_owned(), suggestions, known: names })
}
