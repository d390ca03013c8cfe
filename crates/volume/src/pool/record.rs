//! What the journal of a pool keeps: records, and the tables that they add up to.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::description::{SnapshotAccess, VolumeSpec};
use super::extent::{MappedExtent, take_u32};
use super::extents::ExtentTable;

/// What is kept of a volume beside its map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeHeader {
    pub name: String,
    pub spec: VolumeSpec,
    pub access: SnapshotAccess,
    /// The number of the volume that it is a snapshot of.
    pub origin: Option<u32>,
}

/// A change of the tables.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolRecord {
    /// The header of a volume: a new one, or another header for it.
    Volume {
        volume: u32,
        header: Box<VolumeHeader>,
    },
    /// An extent, or that it is no longer mapped.
    Extent {
        volume: u32,
        index: u32,
        extent: Option<MappedExtent>,
    },
    /// A new volume with the map of another one.
    Snapshot {
        source: u32,
        volume: u32,
        header: Box<VolumeHeader>,
    },
    Delete {
        volume: u32,
    },
    /// The member's copies of mirrored data are old, or no longer.
    Member {
        member: u8,
        out: bool,
    },
    /// The two copies of a region of a mirrored volume may differ, or no longer.
    Intent {
        volume: u32,
        region: u32,
        set: bool,
    },
    /// The number of the next volume that is made.
    Next {
        volume: u32,
    },
    /// The pool was opened; what was noted beside the journal in an older session is in the journal or void.
    Session {
        number: u64,
    },
}

// On disk, in journals and in notes: a number keeps its meaning.
const VOLUME: u8 = 1;
const EXTENT: u8 = 2;
const NO_EXTENT: u8 = 3;
const SNAPSHOT: u8 = 4;
const DELETE: u8 = 5;
const MEMBER: u8 = 6;
const INTENT: u8 = 7;
const NEXT: u8 = 8;
const SESSION: u8 = 9;

impl PoolRecord {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let mut fields = |tag: u8, fields: &[u32]| {
            bytes.push(tag);
            fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        };
        match self {
            PoolRecord::Volume { volume, header } => {
                fields(VOLUME, &[*volume]);
                put_header(header, bytes);
            }
            PoolRecord::Extent { volume, index, extent: Some(extent) } => {
                fields(EXTENT, &[*volume, *index]);
                extent.encode(bytes);
            }
            PoolRecord::Extent { volume, index, extent: None } => fields(NO_EXTENT, &[*volume, *index]),
            PoolRecord::Snapshot { source, volume, header } => {
                fields(SNAPSHOT, &[*source, *volume]);
                put_header(header, bytes);
            }
            PoolRecord::Delete { volume } => fields(DELETE, &[*volume]),
            PoolRecord::Member { member, out } => fields(MEMBER, &[u32::from(*member), u32::from(*out)]),
            PoolRecord::Intent { volume, region, set } => {
                fields(INTENT, &[*volume, *region, u32::from(*set)])
            }
            PoolRecord::Next { volume } => fields(NEXT, &[*volume]),
            PoolRecord::Session { number } => fields(SESSION, &[*number as u32, (*number >> 32) as u32]),
        }
    }

    /// A record at the beginning of `bytes`, and what follows it.
    pub fn decode(bytes: &[u8]) -> Option<(PoolRecord, &[u8])> {
        let (tag, mut rest) = bytes.split_first()?;
        let first = take_u32(&mut rest)?;
        let record = match *tag {
            VOLUME => PoolRecord::Volume { volume: first, header: take_header(&mut rest)? },
            EXTENT => {
                let index = take_u32(&mut rest)?;
                let (extent, after) = MappedExtent::decode(rest)?;
                rest = after;
                PoolRecord::Extent { volume: first, index, extent: Some(extent) }
            }
            NO_EXTENT => PoolRecord::Extent { volume: first, index: take_u32(&mut rest)?, extent: None },
            SNAPSHOT => {
                let volume = take_u32(&mut rest)?;
                PoolRecord::Snapshot { source: first, volume, header: take_header(&mut rest)? }
            }
            DELETE => PoolRecord::Delete { volume: first },
            MEMBER => {
                PoolRecord::Member { member: u8::try_from(first).ok()?, out: take_u32(&mut rest)? != 0 }
            }
            INTENT => {
                let region = take_u32(&mut rest)?;
                PoolRecord::Intent { volume: first, region, set: take_u32(&mut rest)? != 0 }
            }
            NEXT => PoolRecord::Next { volume: first },
            SESSION => {
                PoolRecord::Session { number: u64::from(take_u32(&mut rest)?) << 32 | u64::from(first) }
            }
            _ => return None,
        };
        Some((record, rest))
    }
}

fn put_header(header: &VolumeHeader, bytes: &mut Vec<u8>) {
    // A header is plain data: it always has a JSON text.
    let text = serde_json::to_vec(header).unwrap_or_default();
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text);
}

fn take_header(bytes: &mut &[u8]) -> Option<Box<VolumeHeader>> {
    let length = take_u32(bytes)? as usize;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    serde_json::from_slice(text).ok().map(Box::new)
}

/// A volume as the journal has it.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeTable {
    pub header: VolumeHeader,
    pub extents: ExtentTable,
    /// Regions whose two copies may differ.
    pub intents: BTreeSet<u32>,
}

/// Everything that the journal has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolTables {
    pub volumes: BTreeMap<u32, VolumeTable>,
    pub next_volume: u32,
    /// In which the pool was opened last.
    pub session: u64,
    pub out: BTreeSet<u8>,
}

impl PoolTables {
    /// Takes in a journal's record or snapshot: any number of records.
    ///
    /// # Errors
    /// What about them can't be.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let Some((record, rest)) = PoolRecord::decode(bytes) else {
                return Err(format!("a record of kind {} can't be read", bytes[0]));
            };
            self.apply(record)?;
            bytes = rest;
        }
        Ok(())
    }

    /// # Errors
    /// When the record does not fit what was there before.
    pub fn apply(&mut self, record: PoolRecord) -> Result<(), String> {
        let missing = |volume: u32| format!("there is no volume {volume} to change");
        match record {
            PoolRecord::Volume { volume, header } => match self.volumes.get_mut(&volume) {
                Some(table) => {
                    table.header = *header;
                    let end = table.header.extents();
                    table.extents.retain(|index, _| *index < end);
                }
                None => self.insert(volume, *header, ExtentTable::default()),
            },
            PoolRecord::Extent { volume, index, extent } => {
                let table = self.volumes.get_mut(&volume).ok_or_else(|| missing(volume))?;
                if index >= table.header.extents() {
                    return Err(format!("extent {index} lies past the end of volume {volume}"));
                }
                match extent {
                    Some(extent) => table.extents.insert(index, extent),
                    None => table.extents.remove(&index),
                };
            }
            PoolRecord::Snapshot { source, volume, header } => {
                if self.volumes.contains_key(&volume) {
                    return Err(format!("volume {volume} is created twice"));
                }
                let table = self.volumes.get(&source).ok_or_else(|| missing(source))?;
                let extents = table.extents.clone();
                self.insert(volume, *header, extents);
            }
            PoolRecord::Delete { volume } => {
                self.volumes.remove(&volume).ok_or_else(|| missing(volume))?;
            }
            PoolRecord::Member { member, out: true } => {
                self.out.insert(member);
            }
            PoolRecord::Member { member, out: false } => {
                self.out.remove(&member);
            }
            PoolRecord::Intent { volume, region, set } => {
                // The volume may have been deleted while a write waited for this.
                if let Some(table) = self.volumes.get_mut(&volume) {
                    if set {
                        table.intents.insert(region);
                    } else {
                        table.intents.remove(&region);
                    }
                }
            }
            PoolRecord::Next { volume } => self.next_volume = self.next_volume.max(volume),
            PoolRecord::Session { number } => self.session = number,
        }
        Ok(())
    }

    fn insert(&mut self, volume: u32, header: VolumeHeader, extents: ExtentTable) {
        self.volumes.insert(volume, VolumeTable { header, extents, intents: BTreeSet::new() });
        self.next_volume = self.next_volume.max(volume.saturating_add(1));
    }

    /// Records that add up to these tables.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        PoolRecord::Next { volume: self.next_volume }.encode(&mut bytes);
        PoolRecord::Session { number: self.session }.encode(&mut bytes);
        self.out
            .iter()
            .for_each(|member| PoolRecord::Member { member: *member, out: true }.encode(&mut bytes));
        for (&volume, table) in &self.volumes {
            PoolRecord::Volume { volume, header: Box::new(table.header.clone()) }.encode(&mut bytes);
            for (index, extent) in &table.extents {
                bytes.push(EXTENT);
                bytes.extend(volume.to_le_bytes());
                bytes.extend(index.to_le_bytes());
                extent.encode(&mut bytes);
            }
            for region in &table.intents {
                PoolRecord::Intent { volume, region: *region, set: true }.encode(&mut bytes);
            }
        }
        bytes
    }
}

impl VolumeHeader {
    /// How many extents the volume has.
    pub fn extents(&self) -> u32 {
        let extents = self.spec.capacity_bytes.div_ceil(super::extent::EXTENT_BYTES);
        u32::try_from(extents).unwrap_or(u32::MAX)
    }
}
