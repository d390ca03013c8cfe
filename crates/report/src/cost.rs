//! What storage costs, and what a result costs on it.

use underlay_record::StorageRecord;

/// The list price of a storage's devices, without servers, power or redundancy.
#[derive(Clone, Debug, PartialEq)]
pub struct StorageCost {
    /// Sum over the devices.
    pub price_usd: f64,
    /// What can be stored on the devices as sold, in bytes; absent when one has no capacity on record.
    pub capacity_bytes: Option<f64>,
    /// Where and when the prices were taken, each once.
    pub sources: Vec<String>,
}

impl StorageCost {
    /// None unless every device has a price.
    pub fn of(storage: &StorageRecord) -> Option<StorageCost> {
        if storage.devices.is_empty() {
            return None;
        }
        let prices: Option<Vec<f64>> = storage.devices.iter().map(|device| device.price_usd).collect();
        let capacities: Option<Vec<f64>> =
            storage.devices.iter().map(|device| device.capacity_bytes.map(|bytes| bytes as f64)).collect();
        let summed = capacities.map(|each| each.iter().sum());
        let mut sources: Vec<String> =
            storage.devices.iter().filter_map(|device| device.price_source.clone()).collect();
        sources.sort();
        sources.dedup();
        Some(StorageCost {
            price_usd: prices?.iter().sum(),
            capacity_bytes: storage.usable_bytes.map(|bytes| bytes as f64).or(summed),
            sources,
        })
    }

    /// Dollars for a terabyte (10¹² bytes) of the capacity as sold.
    pub fn usd_per_tb(&self) -> Option<f64> {
        self.capacity_bytes.filter(|bytes| *bytes > 0.0).map(|bytes| self.price_usd / (bytes / 1e12))
    }

    /// Dollars for each 1,000 operations per second that the cell reached.
    pub fn usd_per_kops(&self, throughput_per_s: f64) -> Option<f64> {
        (throughput_per_s > 0.0).then(|| self.price_usd / (throughput_per_s / 1e3))
    }
}

/// A storage's devices in words: `6 x hdd-7200-sata`, `/mnt/nvme0`; the study's own for those of a running cluster.
pub fn devices_in_words(storage: &StorageRecord) -> String {
    if storage.devices.is_empty() {
        return storage.layout.clone();
    }
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for device in &storage.devices {
        let kind = device.medium.clone().unwrap_or_else(|| device.name.clone());
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
