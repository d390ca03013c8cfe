//! From parameters to a model that answers in virtual time.

use super::parameters::{ModelParameters, RemoteMedium, TailParameters};
use crate::media::cloud::CloudModel;
use crate::media::flash::FlashModel;
use crate::media::hdd::HddModel;
use crate::media::measured::MeasuredModel;
use crate::media::network::NetworkModel;
use crate::media::pmem::PmemModel;
use crate::media::tail::TailModel;
use crate::medium::MediumModel;
use crate::stack::InitialState;

/// One part's draws must not follow another's.
const LINK_SEED: u64 = 0x9D5C_1F0E_77A3_21B5;
const TAIL_SEED: u64 = 0x3C6E_F372_FE94_F82B;

/// A device in virtual time. `scale` is the share of the medium's capacity that it has.
pub(super) fn model(
    parameters: &ModelParameters,
    tail: Option<&TailParameters>,
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
            let RemoteMedium { model: inner_model, tail, .. } = &*network.inner;
            let inner = self::model(inner_model, tail.as_ref(), capacity_bytes, scale, seed, initial);
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
