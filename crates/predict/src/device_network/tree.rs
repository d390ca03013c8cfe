//! The arrangement of a volume's devices, and the requests to each that follow from one to the volume.

use underlay_storage::medium::ModelOperation;
use underlay_storage::stack::{DeviceSpec, StackNode};

use super::device::SimulatedDevice;
use super::{BLOCK_BYTES, MAX_DEVICES};
use crate::refusal::PredictionRefusal;

pub(super) enum NetworkTree {
    /// Its place among all devices.
    Device(usize),
    Stripe {
        chunk_bytes: u64,
        members: Vec<NetworkTree>,
    },
    Mirror {
        members: Vec<NetworkTree>,
    },
}

/// One device's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct DevicePart {
    pub device: usize,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// All devices of a bank, as they are found.
pub(super) struct FoundDevices {
    pub devices: Vec<SimulatedDevice>,
    names: Vec<String>,
    pub writes: bool,
    pub speed: f64,
    pub seed: u64,
    /// Devices with the same name are one device.
    pub shares_devices: bool,
}

impl FoundDevices {
    pub(super) fn new(writes: bool, speed: f64, seed: u64, shares_devices: bool) -> FoundDevices {
        FoundDevices { devices: Vec::new(), names: Vec::new(), writes, speed, seed, shares_devices }
    }

    pub(super) fn device(&mut self, spec: &DeviceSpec) -> Result<usize, PredictionRefusal> {
        let existing = self.names.iter().position(|name| *name == spec.name);
        if let (true, Some(place)) = (self.shares_devices, existing) {
            return Ok(place);
        }
        if self.devices.len() >= MAX_DEVICES {
            return Err(PredictionRefusal::Layer {
                what: format!("a storage of more than {MAX_DEVICES} devices"),
            });
        }
        let seed = self.seed.wrapping_add(self.devices.len() as u64);
        self.devices.push(SimulatedDevice::new(spec, self.writes, self.speed, seed)?);
        self.names.push(spec.name.clone());
        Ok(self.devices.len() - 1)
    }
}

impl NetworkTree {
    pub(super) fn from_node(
        node: &StackNode,
        found: &mut FoundDevices,
    ) -> Result<NetworkTree, PredictionRefusal> {
        match node {
            StackNode::Device(device) => Ok(NetworkTree::Device(found.device(device)?)),
            StackNode::Stripe { chunk_bytes, members } => {
                if *chunk_bytes < BLOCK_BYTES || !chunk_bytes.is_multiple_of(BLOCK_BYTES) {
                    return Err(PredictionRefusal::Layer {
                        what: format!("a stripe by {chunk_bytes} bytes"),
                    });
                }
                Ok(NetworkTree::Stripe {
                    chunk_bytes: *chunk_bytes,
                    members: NetworkTree::all(members, found)?,
                })
            }
            StackNode::Mirror { members } => {
                Ok(NetworkTree::Mirror { members: NetworkTree::all(members, found)? })
            }
            StackNode::Compress { .. } => Err(PredictionRefusal::Layer {
                what: "compression (no measured cell says how far the data shrinks)".to_owned(),
            }),
            StackNode::Remote(_) => Err(PredictionRefusal::Layer {
                what: "a volume that another program serves over a real network".to_owned(),
            }),
            StackNode::Cache { .. } => {
                Err(PredictionRefusal::Layer { what: "a cache below another layer".to_owned() })
            }
            StackNode::Link { .. } => {
                Err(PredictionRefusal::Layer { what: "a link below another layer".to_owned() })
            }
        }
    }

    fn all(members: &[StackNode], found: &mut FoundDevices) -> Result<Vec<NetworkTree>, PredictionRefusal> {
        if members.is_empty() {
            return Err(PredictionRefusal::Layer { what: "a layer over nothing".to_owned() });
        }
        members.iter().map(|member| NetworkTree::from_node(member, found)).collect()
    }

    pub(super) fn capacity_bytes(&self, devices: &[SimulatedDevice]) -> u64 {
        let smallest = |members: &[NetworkTree]| {
            members.iter().map(|member| member.capacity_bytes(devices)).min().unwrap_or(0)
        };
        match self {
            NetworkTree::Device(place) => devices[*place].model.capacity_bytes(),
            NetworkTree::Stripe { chunk_bytes, members } => {
                (smallest(members) / chunk_bytes * chunk_bytes).saturating_mul(members.len() as u64)
            }
            NetworkTree::Mirror { members } => smallest(members),
        }
    }

    /// Splits a request into those to the devices below. A flush goes to each of them once.
    pub(super) fn split(
        &self,
        operation: ModelOperation,
        offset_bytes: u64,
        length_bytes: u64,
        devices: &[SimulatedDevice],
        parts: &mut Vec<DevicePart>,
    ) {
        match self {
            NetworkTree::Device(device) => {
                // A device may occur more than once, and one flush of it is enough.
                if operation == ModelOperation::Flush && parts.iter().any(|part| part.device == *device) {
                    return;
                }
                parts.push(DevicePart { device: *device, offset_bytes, length_bytes });
            }
            // Like the mirror's choice: the member with the fewest requests in flight.
            NetworkTree::Mirror { members } if operation == ModelOperation::Read => {
                let idlest = members.iter().min_by_key(|member| member.under_way(devices));
                if let Some(member) = idlest {
                    member.split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
            NetworkTree::Mirror { members } => {
                for member in members {
                    member.split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
            NetworkTree::Stripe { members, .. } if operation == ModelOperation::Flush => {
                for member in members {
                    member.split(operation, 0, 0, devices, parts);
                }
            }
            NetworkTree::Stripe { chunk_bytes, members } => {
                for (member, offset_bytes, length_bytes) in
                    striped(members.len(), *chunk_bytes, offset_bytes, length_bytes)
                {
                    members[member].split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
        }
    }

    fn under_way(&self, devices: &[SimulatedDevice]) -> u32 {
        match self {
            NetworkTree::Device(place) => devices[*place].under_way,
            NetworkTree::Stripe { members, .. } | NetworkTree::Mirror { members } => {
                members.iter().map(|member| member.under_way(devices)).sum()
            }
        }
    }
}

/// At most one request per member, as in the layer: its chunks are contiguous on each member.
fn striped(members: usize, chunk_bytes: u64, offset_bytes: u64, length_bytes: u64) -> Vec<(usize, u64, u64)> {
    let count = members as u64;
    if count == 1 {
        return vec![(0, offset_bytes, length_bytes)];
    }
    let mut parts: Vec<(usize, u64, u64)> = Vec::new();
    let mut done = 0;
    while done < length_bytes {
        let position = offset_bytes + done;
        let (chunk, inside) = (position / chunk_bytes, position % chunk_bytes);
        let length = (chunk_bytes - inside).min(length_bytes - done);
        let member = (chunk % count) as usize;
        let on_member = chunk / count * chunk_bytes + inside;
        match parts.iter_mut().find(|part| part.0 == member) {
            Some(part) => part.2 += length,
            None => parts.push((member, on_member, length)),
        }
        done += length;
    }
    parts
}
