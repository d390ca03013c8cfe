//! What the pool alone costs: 4 KiB requests on volumes over members that keep nothing and answer at once.
//!
//! `cargo run --release -p underlay-volume --example pool_iops [SECONDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use underlay_storage::backing::NullBacking;
use underlay_storage::clock::RealClock;
use underlay_storage::device::{
    BlockDevice, CompletionCallback, DeviceCompletion, DeviceError, DeviceGeometry, DeviceRequest,
};
use underlay_storage::paced::Paced;
use underlay_volume::VolumePool;
use underlay_volume::pool::{PoolSettings, VolumeSpec};

const CAPACITY_BYTES: u64 = 1 << 30;
const JOURNAL_BYTES: u64 = 64 << 20;

/// Keeps what the pool needs for itself, and nothing else.
struct Null {
    journal: Paced,
    rest: Paced,
}

impl BlockDevice for Null {
    fn geometry(&self) -> DeviceGeometry {
        self.rest.geometry()
    }

    fn submit(&self, request: DeviceRequest, done: CompletionCallback) {
        let (offset_bytes, length_bytes) = request.extent();
        if offset_bytes + length_bytes <= JOURNAL_BYTES {
            self.journal.submit(request, done);
        } else {
            self.rest.submit(request, done);
        }
    }
}

fn null() -> Arc<dyn BlockDevice> {
    let clock = || Arc::new(RealClock::new(1.0));
    let backing = Arc::new(underlay_storage::backing::MemoryBacking::new());
    let journal = Paced::new(CAPACITY_BYTES, backing, None, clock());
    let rest = Paced::new(CAPACITY_BYTES, Arc::new(NullBacking), None, clock());
    Arc::new(Null { journal, rest })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(2.0), |text| text.parse())?;
    let pool = VolumePool::open((0..4).map(|_| null()).collect(), PoolSettings::default())?;
    for (name, mirror) in [("plain", false), ("mirrored", true)] {
        let spec = VolumeSpec { mirror, ..VolumeSpec::new(CAPACITY_BYTES) };
        let volume = pool.create(name, &spec)?;
        for offset_bytes in (0..CAPACITY_BYTES).step_by(1 << 20) {
            volume.execute(DeviceRequest::Write { offset_bytes, data: vec![1; 1 << 20], fua: false })?;
        }
        volume.execute(DeviceRequest::Flush)?;
        for writes in [false, true] {
            let (begun, span) = (Instant::now(), Duration::from_secs_f64(seconds));
            let (mut count, mut place) = (0u64, 1u64);
            while begun.elapsed() < span {
                for _ in 0..1000 {
                    place = place.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let offset_bytes = (place >> 33) % (CAPACITY_BYTES / 4096) * 4096;
                    let request = if writes {
                        DeviceRequest::Write { offset_bytes, data: vec![1; 4096], fua: false }
                    } else {
                        DeviceRequest::Read { offset_bytes, buffer: vec![0; 4096] }
                    };
                    volume.submit(request, Box::new(expect));
                }
                count += 1000;
            }
            let rate = count as f64 / begun.elapsed().as_secs_f64();
            println!("{name} 4 KiB {}: {rate:.0} a second", if writes { "writes" } else { "reads" });
        }
    }
    Ok(())
}

fn expect(completion: DeviceCompletion) {
    if let Err(error) = completion {
        let error: DeviceError = error;
        panic!("a request failed: {error}");
    }
}
