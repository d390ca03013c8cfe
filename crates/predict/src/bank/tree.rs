//! How the devices of a volume are put together, and what a request to the volume asks of each.

use underlay_storage::medium::Operation;
use underlay_storage::stack::{DeviceSpec, Node};

use super::device::Device;
use super::{BLOCK_BYTES, MAX_DEVICES};
use crate::refusal::Refusal;

pub(super) enum Tree {
    /// Its place among all devices.
    Device(usize),
    Stripe {
        chunk_bytes: u64,
        members: Vec<Tree>,
    },
    Mirror {
        members: Vec<Tree>,
    },
}

/// What one device is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub device: usize,
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// All devices of a bank, as they are found.
pub(super) struct Found {
    pub devices: Vec<Device>,
    names: Vec<String>,
    pub writes: bool,
    pub speed: f64,
    pub seed: u64,
    /// Devices of one name are one device.
    pub shares_devices: bool,
}

impl Found {
    pub(super) fn new(writes: bool, speed: f64, seed: u64, shares_devices: bool) -> Found {
        Found { devices: Vec::new(), names: Vec::new(), writes, speed, seed, shares_devices }
    }

    pub(super) fn device(&mut self, spec: &DeviceSpec) -> Result<usize, Refusal> {
        let known = self.names.iter().position(|name| *name == spec.name);
        if let (true, Some(place)) = (self.shares_devices, known) {
            return Ok(place);
        }
        if self.devices.len() >= MAX_DEVICES {
            return Err(Refusal::Layer { what: format!("a storage of more than {MAX_DEVICES} devices") });
        }
        let seed = self.seed.wrapping_add(self.devices.len() as u64);
        self.devices.push(Device::new(spec, self.writes, self.speed, seed)?);
        self.names.push(spec.name.clone());
        Ok(self.devices.len() - 1)
    }
}

impl Tree {
    pub(super) fn of(node: &Node, found: &mut Found) -> Result<Tree, Refusal> {
        match node {
            Node::Device(device) => Ok(Tree::Device(found.device(device)?)),
            Node::Stripe { chunk_bytes, members } => {
                if *chunk_bytes < BLOCK_BYTES || !chunk_bytes.is_multiple_of(BLOCK_BYTES) {
                    return Err(Refusal::Layer { what: format!("a stripe by {chunk_bytes} bytes") });
                }
                Ok(Tree::Stripe { chunk_bytes: *chunk_bytes, members: Tree::all(members, found)? })
            }
            Node::Mirror { members } => Ok(Tree::Mirror { members: Tree::all(members, found)? }),
            Node::Compress { .. } => Err(Refusal::Layer {
                what: "compression (no measured cell says how far the data shrinks)".to_owned(),
            }),
            Node::Remote(_) => Err(Refusal::Layer {
                what: "a volume that another program serves over a real network".to_owned(),
            }),
            Node::Cache { .. } => Err(Refusal::Layer { what: "a cache below another layer".to_owned() }),
            Node::Link { .. } => Err(Refusal::Layer { what: "a link below another layer".to_owned() }),
        }
    }

    fn all(members: &[Node], found: &mut Found) -> Result<Vec<Tree>, Refusal> {
        if members.is_empty() {
            return Err(Refusal::Layer { what: "a layer over nothing".to_owned() });
        }
        members.iter().map(|member| Tree::of(member, found)).collect()
    }

    pub(super) fn capacity_bytes(&self, devices: &[Device]) -> u64 {
        let smallest =
            |members: &[Tree]| members.iter().map(|member| member.capacity_bytes(devices)).min().unwrap_or(0);
        match self {
            Tree::Device(place) => devices[*place].model.capacity_bytes(),
            Tree::Stripe { chunk_bytes, members } => {
                (smallest(members) / chunk_bytes * chunk_bytes).saturating_mul(members.len() as u64)
            }
            Tree::Mirror { members } => smallest(members),
        }
    }

    /// What a request asks of the devices below. A flush goes to each of them once.
    pub(super) fn split(
        &self,
        operation: Operation,
        offset_bytes: u64,
        length_bytes: u64,
        devices: &[Device],
        parts: &mut Vec<Part>,
    ) {
        match self {
            Tree::Device(device) => {
                if operation == Operation::Flush && parts.iter().any(|part| part.device == *device) {
                    return;
                }
                parts.push(Part { device: *device, offset_bytes, length_bytes });
            }
            Tree::Mirror { members } if operation == Operation::Read => {
                let idlest = members.iter().min_by_key(|member| member.under_way(devices));
                if let Some(member) = idlest {
                    member.split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
            Tree::Mirror { members } => {
                for member in members {
                    member.split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
            Tree::Stripe { members, .. } if operation == Operation::Flush => {
                for member in members {
                    member.split(operation, 0, 0, devices, parts);
                }
            }
            Tree::Stripe { chunk_bytes, members } => {
                for (member, offset_bytes, length_bytes) in
                    striped(members.len(), *chunk_bytes, offset_bytes, length_bytes)
                {
                    members[member].split(operation, offset_bytes, length_bytes, devices, parts);
                }
            }
        }
    }

    fn under_way(&self, devices: &[Device]) -> u32 {
        match self {
            Tree::Device(place) => devices[*place].under_way,
            Tree::Stripe { members, .. } | Tree::Mirror { members } => {
                members.iter().map(|member| member.under_way(devices)).sum()
            }
        }
    }
}

/// At most one request a member, as the layer makes them: the chunks that it takes of one lie side by side there.
fn striped(members: usize, chunk_bytes: u64, offset_bytes: u64, length_bytes: u64) -> Vec<(usize, u64, u64)> {
    let count = members as u64;
    if count == 1 {
        return vec![(0, offset_bytes, length_bytes)];
    }
    let mut parts: Vec<(usize, u64, u64)> = Vec::new();
    let mut done = 0;
    while done < length_bytes {
        let at = offset_bytes + done;
        let (chunk, inside) = (at / chunk_bytes, at % chunk_bytes);
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
