//! The kinds of media, and what each is described by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::files;
use super::parameters::{
    CloudParameters, Entry, FlashParameters, HddParameters, Inner, LinkParameters, MeasuredOrder,
    MeasuredParameters, NetworkParameters, PmemParameters, Tail,
};
use super::reader::{self, TableReader};
use crate::media::cloud::CloudModel;
use crate::media::flash::FlashModel;
use crate::media::hdd::HddModel;
use crate::media::measured::MeasuredModel;
use crate::media::network::NetworkModel;
use crate::media::pmem::PmemModel;
use crate::media::tail::TailModel;
use crate::medium::MediumModel;
use crate::stack::InitialState;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MediumKind {
    Hdd,
    /// Flash, and other solid-state memory behind a block interface.
    Flash,
    /// A volume that a cloud rents out.
    Cloud,
    /// Persistent memory on the memory bus.
    Pmem,
    /// A medium behind a link.
    Network,
    /// A real device as it was profiled.
    Measured,
}

impl MediumKind {
    pub const ALL: &'static [MediumKind] = &[
        MediumKind::Hdd,
        MediumKind::Flash,
        MediumKind::Cloud,
        MediumKind::Pmem,
        MediumKind::Network,
        MediumKind::Measured,
    ];

    /// As catalogue files write it.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Hdd => "hdd",
            MediumKind::Flash => "flash",
            MediumKind::Cloud => "cloud",
            MediumKind::Pmem => "pmem",
            MediumKind::Network => "network",
            MediumKind::Measured => "measured",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelParameters {
    Hdd(HddParameters),
    Flash(FlashParameters),
    Cloud(CloudParameters),
    Pmem(PmemParameters),
    Network(NetworkParameters),
    Measured(MeasuredParameters),
}

impl ModelParameters {
    pub fn kind(&self) -> MediumKind {
        match self {
            ModelParameters::Hdd(_) => MediumKind::Hdd,
            ModelParameters::Flash(_) => MediumKind::Flash,
            ModelParameters::Cloud(_) => MediumKind::Cloud,
            ModelParameters::Pmem(_) => MediumKind::Pmem,
            ModelParameters::Network(_) => MediumKind::Network,
            ModelParameters::Measured(_) => MediumKind::Measured,
        }
    }

    /// Everything that would make a model of these parameters meaningless; empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        match self {
            ModelParameters::Hdd(parameters) => parameters.problems(),
            ModelParameters::Flash(parameters) => parameters.problems(),
            ModelParameters::Cloud(parameters) => parameters.problems(),
            ModelParameters::Pmem(parameters) => parameters.problems(),
            ModelParameters::Network(parameters) => parameters.problems(),
            ModelParameters::Measured(parameters) => parameters.problems(),
        }
    }

    /// Every parameter, for listing.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        match self {
            ModelParameters::Hdd(parameters) => parameters.entries(),
            ModelParameters::Flash(parameters) => parameters.entries(),
            ModelParameters::Cloud(parameters) => parameters.entries(),
            ModelParameters::Pmem(parameters) => parameters.entries(),
            ModelParameters::Network(parameters) => parameters.entries(),
            ModelParameters::Measured(parameters) => parameters.entries(),
        }
    }

    /// Whether a seek is what costs: what an operating system calls rotational.
    pub fn is_rotational(&self) -> bool {
        match self {
            ModelParameters::Hdd(_) => true,
            ModelParameters::Network(parameters) => parameters.inner.model.is_rotational(),
            ModelParameters::Measured(parameters) => parameters.order.value == MeasuredOrder::Any,
            ModelParameters::Flash(_) | ModelParameters::Cloud(_) | ModelParameters::Pmem(_) => false,
        }
    }

    /// How much takes in writes before the medium shows: what must be full for a steady state.
    pub fn write_buffer_bytes(&self) -> f64 {
        match self {
            ModelParameters::Hdd(parameters) => parameters.write_cache_bytes.value,
            ModelParameters::Flash(parameters) => parameters.write_buffer_bytes.value,
            ModelParameters::Cloud(_) => 0.0,
            ModelParameters::Pmem(parameters) => parameters.write_queue_bytes.value,
            ModelParameters::Network(parameters) => parameters.inner.model.write_buffer_bytes(),
            ModelParameters::Measured(parameters) => parameters.device.write_buffer_bytes.value,
        }
    }
}

/// A device in virtual time. `scale` is the share of the medium's capacity that it has.
pub(super) fn model(
    parameters: &ModelParameters,
    tail: Option<&Tail>,
    capacity_bytes: u64,
    scale: f64,
    seed: u64,
    initial: InitialState,
) -> Box<dyn MediumModel> {
    let model: Box<dyn MediumModel> = match parameters {
        ModelParameters::Hdd(hdd) => Box::new(HddModel::new(hdd, capacity_bytes, scale, seed)),
        ModelParameters::Flash(flash) => {
            Box::new(FlashModel::new(flash, capacity_bytes, scale, seed, initial))
        }
        ModelParameters::Cloud(cloud) => Box::new(CloudModel::new(cloud, capacity_bytes, seed, initial)),
        ModelParameters::Pmem(pmem) => Box::new(PmemModel::new(pmem, capacity_bytes, seed)),
        ModelParameters::Network(network) => {
            let Inner { model: behind, tail, .. } = &*network.inner;
            let inner = self::model(behind, tail.as_ref(), capacity_bytes, scale, seed, initial);
            Box::new(NetworkModel::new(&network.link, inner, seed ^ LINK_SEED))
        }
        ModelParameters::Measured(measured) => {
            Box::new(MeasuredModel::new(measured, capacity_bytes, scale, seed))
        }
    };
    match tail {
        Some(tail) => Box::new(TailModel::new(tail, model, seed ^ TAIL_SEED)),
        None => model,
    }
}

/// What is drawn for one part must not follow what is drawn for another.
const LINK_SEED: u64 = 0x9D5C_1F0E_77A3_21B5;
const TAIL_SEED: u64 = 0x3C6E_F372_FE94_F82B;

/// The kinds by the names that files use.
pub(super) fn choices() -> Vec<(&'static str, MediumKind)> {
    MediumKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect()
}

/// Reads the table `model`, of the file or of what lies behind a link.
pub(super) fn read_model(
    parent: &mut TableReader<'_>,
    name: &str,
    kind: Option<MediumKind>,
    may_be_network: bool,
) -> Option<ModelParameters> {
    let mut table = parent.inside("model", name, "the table of the model's parameters")?;
    let parameters = match kind? {
        MediumKind::Hdd => HddParameters::read(&mut table).map(ModelParameters::Hdd),
        MediumKind::Flash => FlashParameters::read(&mut table).map(ModelParameters::Flash),
        MediumKind::Cloud => CloudParameters::read(&mut table).map(ModelParameters::Cloud),
        MediumKind::Pmem => PmemParameters::read(&mut table).map(ModelParameters::Pmem),
        MediumKind::Network if may_be_network => read_network(&mut table).map(ModelParameters::Network),
        MediumKind::Network => {
            table.ledger.mistake(table.at, "a network volume lies behind another: state one link");
            return None;
        }
        MediumKind::Measured => MeasuredParameters::read(&mut table).map(ModelParameters::Measured),
    };
    table.reject_unknown();
    for problem in parameters.iter().flat_map(ModelParameters::problems) {
        table.ledger.mistake(table.at, problem);
    }
    parameters
}

/// The link, and the medium behind it: `medium = "name"`, or `[model.inner]` with `kind` and `model`.
fn read_network(table: &mut TableReader<'_>) -> Option<NetworkParameters> {
    let link = LinkParameters::read(table);
    let inner = if table.has("inner") {
        if let Some((_, at)) = table.entry("medium", None) {
            table.ledger.mistake(at, "state `medium` or [model.inner], not both");
        }
        inner_in_place(table)
    } else {
        inner_by_name(table)
    };
    Some(NetworkParameters { link: link?, inner: Box::new(inner?) })
}

fn inner_in_place(table: &mut TableReader<'_>) -> Option<Inner> {
    let mut inside = table.inside("inner", "[model.inner]", "the table of the medium behind the link")?;
    let capacity_bytes = inside.number("capacity_bytes", 1e6, 1e18);
    let kind = inside.choice("kind", &choices());
    let model = read_model(&mut inside, "[model.inner.model]", kind, false);
    let tail = read_tail(&mut inside);
    inside.reject_unknown();
    Some(Inner {
        name: None,
        capacity_bytes: capacity_bytes?,
        sources: BTreeMap::new(),
        model: model?,
        tail: tail?,
    })
}

fn inner_by_name(table: &mut TableReader<'_>) -> Option<Inner> {
    let expected = "the name of the medium behind the link, or describe it in [model.inner]";
    let (name, at) = table.text("medium", expected)?;
    // From the file itself: the list of all media may be what is being made right now.
    let path = format!("media/{name}.toml");
    let Some((path, text)) = files::MEDIA.iter().find(|(file, _)| *file == path) else {
        let names =
            files::MEDIA.iter().filter_map(|(file, _)| file.strip_prefix("media/")?.strip_suffix(".toml"));
        let hint = match super::nearest(&name, names).first() {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`underlay media list` names all".to_owned(),
        };
        table.ledger.mistake(at, format!("there is no medium \"{name}\" in the catalogue: {hint}"));
        return None;
    };
    match reader::parse_inner(path, text) {
        Ok(medium) => Some(Inner {
            capacity_bytes: medium.capacity.value,
            name: Some(name),
            sources: medium.sources,
            model: medium.model,
            tail: medium.tail,
        }),
        Err(error) => {
            let first = error.mistakes.first().map_or("", |mistake| mistake.message.as_str());
            table.ledger.mistake(at, format!("\"{name}\" can't lie behind a link: {first}"));
            None
        }
    }
}

/// The outer `None` is for a mistake, the inner one for no tail.
pub(super) fn read_tail(parent: &mut TableReader<'_>) -> Option<Option<Tail>> {
    if !parent.has("tail") {
        return Some(None);
    }
    let mut table = parent.inside("tail", "[tail]", "a table with `measure`, `read_us` and `write_us`")?;
    let tail = Tail::read(&mut table);
    table.reject_unknown();
    for problem in tail.iter().flat_map(Tail::problems) {
        table.ledger.mistake(table.at, problem);
    }
    tail.map(Some)
}
