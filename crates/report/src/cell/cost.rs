//! The price of storage, and of a result on it.

use underlay_record::{DeviceDescription, PriceSum, StorageRecord};

use crate::quantity;

/// The devices of a storage, without those of roles that have one of their own: these are the same beside every
/// storage.
pub(crate) fn under_test(storage: &StorageRecord) -> impl Iterator<Item = &DeviceDescription> {
    storage.devices.iter().filter(|device| device.id.role.is_none())
}

/// The list price of a storage's devices, without servers, power, redundancy or the devices of roles.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageCost {
    /// Sum over the devices.
    pub price: PriceSum,
    /// The capacity of the devices as sold, in bytes; absent when one has none on record.
    pub capacity_bytes: Option<f64>,
    /// Where and when the prices were taken, each once.
    pub sources: Vec<String>,
}

impl StorageCost {
    /// None unless every device has a price.
    pub fn from_storage(storage: &StorageRecord) -> Option<StorageCost> {
        under_test(storage).next()?;
        let price: Option<PriceSum> = under_test(storage).map(price_of).sum();
        let capacities: Option<Vec<f64>> =
            under_test(storage).map(|device| device.capacity_bytes.map(|bytes| bytes as f64)).collect();
        let summed = capacities.map(|each| each.iter().sum());
        let mut sources: Vec<String> =
            under_test(storage).filter_map(|device| device.price_source.clone()).collect();
        sources.sort();
        sources.dedup();
        Some(StorageCost {
            price: price?,
            capacity_bytes: storage.usable_bytes.map(|bytes| bytes as f64).or(summed),
            sources,
        })
    }

    /// Dollars for a terabyte (10¹² bytes) of the capacity as sold.
    pub fn usd_per_tb(&self) -> Option<f64> {
        self.capacity_bytes.filter(|bytes| *bytes > 0.0).map(|bytes| self.price.usd / (bytes / 1e12))
    }

    /// Dollars for each 1,000 operations per second that the cell reached.
    pub fn usd_per_kops(&self, throughput_per_s: f64) -> Option<f64> {
        (throughput_per_s > 0.0).then(|| self.price.usd / (throughput_per_s / 1e3))
    }
}

fn price_of(device: &DeviceDescription) -> Option<PriceSum> {
    Some(PriceSum::new(device.price_usd?, device.is_rented))
}

/// A storage's devices in words: `6 x hdd-7200-sata`, `/mnt/nvme0`; the study's own for those of a running cluster.
/// Devices of roles are not among them.
pub(crate) fn devices_in_words(storage: &StorageRecord) -> String {
    match describe_devices(under_test(storage)) {
        words if words.is_empty() => storage.layout.clone(),
        words => words,
    }
}

/// The devices of roles beside a storage, each with its list price: `metadata on nvme-p3700 ($2,400)`. None where no
/// role has its own device.
pub(crate) fn roles_in_words(storage: &StorageRecord) -> Option<String> {
    let mut roles: Vec<(&str, Vec<&DeviceDescription>)> = Vec::new();
    for device in &storage.devices {
        let Some(role) = device.id.role.as_deref() else { continue };
        match roles.iter_mut().find(|(name, _)| *name == role) {
            Some((_, devices)) => devices.push(device),
            None => roles.push((role, vec![device])),
        }
    }
    let words: Vec<String> = roles
        .into_iter()
        .map(|(role, devices)| {
            let price: Option<PriceSum> = devices.iter().map(|device| price_of(device)).sum();
            let price = price.map_or(String::new(), |price| {
                let remark =
                    price.remark(quantity::dollars).map_or(String::new(), |remark| format!(", {remark}"));
                format!(" ({}{remark})", quantity::dollars(price.usd))
            });
            format!("{role} on {}{price}", describe_devices(devices.into_iter()))
        })
        .collect();
    (!words.is_empty()).then(|| quantity::list(&words, usize::MAX))
}

fn describe_devices<'a>(devices: impl Iterator<Item = &'a DeviceDescription>) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for device in devices {
        let kind = device.medium.clone().unwrap_or_else(|| device.id.name.clone());
        match kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let words: Vec<String> = kinds
        .into_iter()
        .map(|(kind, count)| if count == 1 { kind } else { format!("{count} x {kind}") })
        .collect();
    words.join(" + ")
}
