//! The disk's read-ahead after a read, and its memory of earlier ones.

use std::collections::VecDeque;

use super::geometry::DiskGeometry;

/// The head reading on along the tracks.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    /// Where the remembered stretch begins.
    pub segment_first_byte: u64,
    /// This byte is under the head at `at_ns`: behind the last switch of tracks that is over.
    at_byte: u64,
    at_ns: u64,
    limit_byte: u64,
}

impl ReadAhead {
    /// From `from_byte`, which is under the head at `now_ns`, up to `limit_byte`.
    pub fn start(segment_first_byte: u64, from_byte: u64, now_ns: u64, limit_byte: u64) -> ReadAhead {
        ReadAhead {
            segment_first_byte,
            at_byte: from_byte,
            at_ns: now_ns,
            limit_byte: limit_byte.max(from_byte),
        }
    }

    /// Up to where it has read at `now_ns`.
    pub fn reached(&mut self, geometry: &DiskGeometry, now_ns: u64) -> u64 {
        while self.at_byte < self.limit_byte && now_ns > self.at_ns {
            let place = geometry.place(self.at_byte);
            let track_end = place.track_first_byte + place.track_bytes;
            let end = track_end.min(self.limit_byte);
            let passed_ns = self.at_ns + geometry.pass_ns(end - self.at_byte, place.track_bytes);
            if now_ns < passed_ns {
                let bytes = u128::from(now_ns - self.at_ns) * u128::from(place.track_bytes)
                    / u128::from(geometry.rotation_ns());
                return (self.at_byte + bytes as u64).min(end);
            }
            self.at_byte = end;
            self.at_ns = passed_ns;
            if end == track_end {
                self.at_ns += geometry.skew_after_ns(&place);
            }
        }
        self.at_byte
    }

    /// Whether what it has read or will read shares bytes with this range.
    pub fn touches(&self, first_byte: u64, end_byte: u64) -> bool {
        self.segment_first_byte < end_byte && first_byte < self.limit_byte
    }

    /// Whether it has come to its end by `now_ns`.
    pub fn is_over(&mut self, geometry: &DiskGeometry, now_ns: u64) -> bool {
        self.reached(geometry, now_ns) >= self.limit_byte
    }

    /// When everything before `byte` will have been read, if it may go on so far.
    pub fn reaches_at_ns(&self, geometry: &DiskGeometry, byte: u64) -> u64 {
        self.at_ns + geometry.run_ns(self.at_byte, byte)
    }

    /// Lets a running read-ahead go on to `limit_byte`.
    pub fn extend(&mut self, limit_byte: u64) {
        self.limit_byte = self.limit_byte.max(limit_byte);
    }

    /// Lets one that had come to its end go on: its next byte passes under the head at `at_ns`.
    pub fn resume(&mut self, at_ns: u64, limit_byte: u64) {
        self.at_ns = at_ns;
        self.extend(limit_byte);
    }
}

/// The stretches of earlier reads that the disk's memory still holds, oldest first.
#[derive(Clone, Debug)]
pub struct ReadSegments {
    held: VecDeque<(u64, u64)>,
    limit: usize,
    limit_bytes: u64,
}

impl ReadSegments {
    /// At most `limit` stretches of `limit_bytes` together.
    pub fn new(limit: usize, limit_bytes: u64) -> ReadSegments {
        ReadSegments { held: VecDeque::new(), limit: limit.max(1), limit_bytes }
    }

    pub fn holds(&self, first_byte: u64, end_byte: u64) -> bool {
        self.held.iter().any(|&(first, end)| first <= first_byte && end_byte <= end)
    }

    pub fn keep(&mut self, first_byte: u64, end_byte: u64) {
        // Its end is what the host has yet to come to.
        let first_byte = first_byte.max(end_byte.saturating_sub(self.limit_bytes));
        if first_byte >= end_byte {
            return;
        }
        self.held.retain(|&(first, end)| !(first_byte <= first && end <= end_byte));
        let mut held_bytes: u64 = self.held.iter().map(|(first, end)| end - first).sum();
        while self.held.len() == self.limit || held_bytes + (end_byte - first_byte) > self.limit_bytes {
            let Some((first, end)) = self.held.pop_front() else { break };
            held_bytes -= end - first;
        }
        self.held.push_back((first_byte, end_byte));
    }

    /// Written over: what was remembered of it is stale.
    pub fn forget(&mut self, first_byte: u64, end_byte: u64) {
        self.held.retain(|&(first, end)| end <= first_byte || end_byte <= first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_is_touched_by_shared_bytes() {
        let mut ahead = ReadAhead::start(100, 200, 0, 300);
        for (first, end, is_touched) in
            [(0, 100, false), (0, 101, true), (150, 160, true), (299, 400, true), (300, 400, false)]
        {
            assert_eq!(ahead.touches(first, end), is_touched, "{first} to {end}");
        }
        ahead.extend(400);
        assert!(ahead.touches(300, 301));
    }

    #[test]
    fn segments_keep_to_their_number_and_their_bytes() {
        let mut segments = ReadSegments::new(3, 100);
        for first in [0, 1000, 2000] {
            segments.keep(first, first + 40);
        }
        assert!(!segments.holds(0, 1), "three times 40 bytes are more than 100");
        assert!(segments.holds(1000, 1040) && segments.holds(2000, 2040));
        segments.keep(5000, 6000);
        assert!(segments.holds(5900, 6000), "the end of a long stretch stays");
        assert!(!segments.holds(5899, 6000) && !segments.holds(2000, 2001));
        for first in [0, 10, 20, 30] {
            segments.keep(first, first + 1);
        }
        assert!(!segments.holds(0, 1) && segments.holds(10, 11) && segments.holds(30, 31));
    }
}
