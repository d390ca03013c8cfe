//! A request's charge.

use std::collections::VecDeque;

/// Streams that the model tells apart.
const STREAMS: usize = 16;

/// Turns requests into I/O operations and bytes, as the provider counts them.
#[derive(Clone, Debug)]
pub struct RequestAccounting {
    unit_bytes: u64,
    merge_window_ns: Option<u64>,
    random_charge_bytes: u64,
    /// Latest first.
    streams: VecDeque<SequentialStream>,
}

#[derive(Clone, Copy, Debug)]
struct SequentialStream {
    end_byte: u64,
    /// The bytes that still fit its last I/O operation.
    left_bytes: u64,
    last_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCharge {
    pub operations: u64,
    pub bytes: u64,
}

impl RequestAccounting {
    pub fn new(unit_bytes: u64, merge_window_ns: Option<u64>, random_charge_bytes: u64) -> RequestAccounting {
        RequestAccounting {
            unit_bytes: unit_bytes.max(1),
            merge_window_ns,
            random_charge_bytes,
            streams: VecDeque::with_capacity(STREAMS),
        }
    }

    pub fn charge(&mut self, first_byte: u64, length_bytes: u64, now_ns: u64) -> RequestCharge {
        let found = self.streams.iter().position(|stream| stream.end_byte == first_byte);
        let stream = found.and_then(|index| self.streams.remove(index));
        let room_bytes = match (stream, self.merge_window_ns) {
            (Some(stream), Some(window_ns)) if now_ns.saturating_sub(stream.last_ns) <= window_ns => {
                stream.left_bytes
            }
            _ => 0,
        };
        let beyond_bytes = length_bytes.saturating_sub(room_bytes);
        let operations = beyond_bytes.div_ceil(self.unit_bytes);
        let left_bytes = (operations * self.unit_bytes + room_bytes).saturating_sub(length_bytes);
        self.streams.truncate(STREAMS - 1);
        let end_byte = first_byte + length_bytes;
        self.streams.push_front(SequentialStream { end_byte, left_bytes, last_ns: now_ns });
        let least_bytes = if stream.is_some() { 0 } else { self.random_charge_bytes };
        RequestCharge { operations, bytes: length_bytes.max(least_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    #[test]
    fn counts_as_the_provider_does() {
        // Amazon's examples for gp3: 1,024 KiB are four operations of 256 KiB; eight sequential ones of 32 KiB are
        // one, eight random ones eight.
        let mut merging = RequestAccounting::new(256 * KIB, Some(1_000_000), 0);
        assert_eq!(merging.charge(0, 1024 * KIB, 0).operations, 4);
        let sequential: u64 =
            (0..8).map(|index| merging.charge((5000 + 32 * index) * KIB, 32 * KIB, 10).operations).sum();
        assert_eq!(sequential, 1);
        let random: u64 =
            (0..8).map(|index| merging.charge((9000 + 320 * index) * KIB, 32 * KIB, 10).operations).sum();
        assert_eq!(random, 8);
        // Too late to be merged.
        assert_eq!(merging.charge(1024 * KIB, 4 * KIB, 5_000_000).operations, 1);
        assert_eq!(merging.charge(1028 * KIB, 4 * KIB, 7_000_000).operations, 1);
    }

    #[test]
    fn isolated_read_of_disk_volume_costs_one_mebibyte() {
        let mut st1 = RequestAccounting::new(1024 * KIB, None, 1024 * KIB);
        assert_eq!(st1.charge(0, 16 * KIB, 0).bytes, 1024 * KIB);
        assert_eq!(st1.charge(16 * KIB, 16 * KIB, 0).bytes, 16 * KIB);
    }
}
