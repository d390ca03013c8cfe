//! Why there is no answer.

use schemars::JsonSchema;
use serde::Serialize;
use underlay_record::UnsoundReason;

/// A question that the measured cells can't answer. Each case names the missing measurement.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema, thiserror::Error)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum PredictionRefusal {
    #[error("no measured cell is of the system {system}: measure it on one storage first")]
    System { system: String },
    #[error("{system} was measured with other settings ({difference}): measure it with these first")]
    Settings { system: String, difference: String },
    #[error(
        "no measured cell of {system} has the mix {mix} with the distribution {distribution}: measure it on one storage first"
    )]
    Mix { system: String, mix: String, distribution: String },
    #[error(
        "data : memory is {ratio:.2}, and {from:.2} to {to:.2} was measured: give it the memory (or the data) that was measured, or \
         measure a cell of this size first"
    )]
    Size { ratio: f64, from: f64, to: f64 },
    #[error(
        "how a cache does under the distribution {distribution} is not modelled: only the size that was measured can be answered"
    )]
    Distribution { distribution: String },
    #[error("{threads} threads, and {from} to {to} were measured: measure a cell with as many first")]
    Threads { threads: u32, from: u32, to: u32 },
    #[error("{what} is not modelled here: run the study for it")]
    Layer { what: String },
    #[error("{what}: run the study for it")]
    Work { what: String },
    #[error("the system was measured with {measured} nodes or servers, and the question has {asked}")]
    Nodes { measured: u32, asked: u32 },
    #[error(
        "the system was measured with {measured} cores, and the question has {asked}: nothing says how it uses others"
    )]
    Cores { measured: String, asked: String },
    #[error("records of {asked} bytes, and those measured have {measured}")]
    Records { asked: u64, measured: u64 },
    #[error("{what}")]
    Record { what: String },
    #[error("{unsound}")]
    Unsound {
        #[serde(flatten)]
        unsound: UnsoundReason,
    },
    #[error(
        "no cell of {system} could be checked against cells on another storage, so nothing shows how wrong an answer would be: measure a second storage first"
    )]
    OneStorage { system: String },
    #[error("the data does not fit: {data_bytes} bytes on {capacity_bytes}")]
    Capacity { data_bytes: u64, capacity_bytes: u64 },
}
