//! Where on the platters a byte lies.

/// Tracks are filled surface by surface, cylinder by cylinder, from the outside in.
#[derive(Clone, Debug)]
pub struct DiskGeometry {
    heads: u64,
    cylinders: u64,
    rotation_ns: u64,
    /// The lag of a track's start behind the end of the one before on the same cylinder, and on the cylinder before: as
    /// long as the switch takes, so that a long transfer misses no turn.
    track_skew_ns: u64,
    cylinder_skew_ns: u64,
    zones: Vec<DiskZone>,
}

#[derive(Clone, Debug)]
struct DiskZone {
    first_byte: u64,
    first_cylinder: u64,
    track_bytes: u64,
}

/// The parameters of a geometry.
#[derive(Clone, Copy, Debug)]
pub struct GeometryLayout {
    pub capacity_bytes: u64,
    pub heads: u64,
    pub rotation_ns: u64,
    pub track_skew_ns: u64,
    pub cylinder_skew_ns: u64,
    pub zones: u64,
    pub outer_track_bytes: f64,
    pub inner_track_bytes: f64,
}

/// A byte's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPosition {
    pub cylinder: u64,
    pub head: u64,
    /// The first byte of the device on this track.
    pub track_first_byte: u64,
    pub track_bytes: u64,
    /// When the byte passes under the head, after the index mark, in nanoseconds below a rotation.
    pub angle_ns: u64,
}

/// Tracks hold whole blocks.
const BLOCK_BYTES: u64 = 4096;

impl DiskGeometry {
    pub fn new(layout: &GeometryLayout) -> DiskGeometry {
        let heads = layout.heads.max(1);
        let mean_track =
            ((layout.outer_track_bytes + layout.inner_track_bytes) / 2.0).max(BLOCK_BYTES as f64);
        let wanted = (layout.capacity_bytes as f64 / (heads as f64 * mean_track)).ceil().max(1.0) as u64;
        let zone_count = layout.zones.clamp(1, wanted);
        let mut zones: Vec<DiskZone> = Vec::with_capacity(zone_count as usize);
        let mut first_byte = 0u64;
        for index in 0..zone_count {
            let first_cylinder = (u128::from(wanted) * u128::from(index) / u128::from(zone_count)) as u64;
            if let Some(outer) = zones.last() {
                first_byte += (first_cylinder - outer.first_cylinder) * heads * outer.track_bytes;
            }
            // The rate in the middle of the zone.
            let inward = (index as f64 + 0.5) / zone_count as f64;
            let bytes =
                layout.outer_track_bytes + inward * (layout.inner_track_bytes - layout.outer_track_bytes);
            let track_bytes = ((bytes / BLOCK_BYTES as f64).round() as u64).max(1) * BLOCK_BYTES;
            if first_byte >= layout.capacity_bytes && index > 0 {
                break;
            }
            zones.push(DiskZone { first_byte, first_cylinder, track_bytes });
        }
        // Rounding may leave the last zone a little short or long.
        let inmost =
            zones.last().map_or((0, 0, BLOCK_BYTES), |z| (z.first_byte, z.first_cylinder, z.track_bytes));
        let rest = layout.capacity_bytes.saturating_sub(inmost.0);
        let cylinders = inmost.1 + rest.div_ceil(heads * inmost.2).max(1);
        DiskGeometry {
            heads,
            cylinders,
            rotation_ns: layout.rotation_ns.max(1),
            track_skew_ns: layout.track_skew_ns,
            cylinder_skew_ns: layout.cylinder_skew_ns,
            zones,
        }
    }

    pub fn rotation_ns(&self) -> u64 {
        self.rotation_ns
    }

    /// The way between two cylinders as a share of the full stroke.
    pub fn stroke_share(&self, from: u64, to: u64) -> f64 {
        from.abs_diff(to) as f64 / (self.cylinders - 1).max(1) as f64
    }

    pub fn place(&self, byte: u64) -> DiskPosition {
        let zone = &self.zones[self.zones.partition_point(|zone| zone.first_byte <= byte).max(1) - 1];
        let inside = byte - zone.first_byte;
        let track = inside / zone.track_bytes;
        let (cylinder, head) = (zone.first_cylinder + track / self.heads, track % self.heads);
        let offset = inside % zone.track_bytes;
        let skew_ns = u128::from(cylinder)
            * (u128::from(self.heads - 1) * u128::from(self.track_skew_ns)
                + u128::from(self.cylinder_skew_ns))
            + u128::from(head) * u128::from(self.track_skew_ns);
        let angle_ns =
            (skew_ns + u128::from(self.pass_ns(offset, zone.track_bytes))) % u128::from(self.rotation_ns);
        DiskPosition {
            cylinder,
            head,
            track_first_byte: byte - offset,
            track_bytes: zone.track_bytes,
            angle_ns: angle_ns as u64,
        }
    }

    /// How long `bytes` of a track take to pass under the head.
    pub fn pass_ns(&self, bytes: u64, track_bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.rotation_ns) / u128::from(track_bytes)) as u64
    }

    /// The pause between the end of the track that `place` is on and the start of the next.
    pub fn skew_after_ns(&self, place: &DiskPosition) -> u64 {
        if place.head + 1 == self.heads { self.cylinder_skew_ns } else { self.track_skew_ns }
    }

    /// From the moment `from` is under the head until everything before `to` has passed, switches included.
    pub fn run_ns(&self, from: u64, to: u64) -> u64 {
        let (mut position, mut ns) = (from, 0u64);
        while position < to {
            let place = self.place(position);
            let track_end = place.track_first_byte + place.track_bytes;
            let end = to.min(track_end);
            ns += self.pass_ns(end - position, place.track_bytes);
            if end < to {
                ns += self.skew_after_ns(&place);
            }
            position = end;
        }
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(capacity_bytes: u64) -> DiskGeometry {
        DiskGeometry::new(&GeometryLayout {
            capacity_bytes,
            heads: 4,
            rotation_ns: 8_333_333,
            track_skew_ns: 1_000_000,
            cylinder_skew_ns: 1_500_000,
            zones: 16,
            outer_track_bytes: 2e6,
            inner_track_bytes: 1e6,
        })
    }

    #[test]
    fn track_follows_previous_track() {
        let geometry = geometry(2_000_000_000);
        let (mut byte, mut before) = (0, None::<DiskPosition>);
        while byte < 2_000_000_000 {
            let place = geometry.place(byte);
            assert_eq!(place.track_first_byte, byte);
            if let Some(before) = before {
                let next_head = (before.head + 1) % 4;
                assert_eq!(place.head, next_head);
                assert_eq!(place.cylinder, before.cylinder + u64::from(next_head == 0));
                assert!(place.track_bytes <= before.track_bytes);
                let lag = (place.angle_ns + 8_333_333 - before.angle_ns) % 8_333_333;
                assert_eq!(lag, geometry.skew_after_ns(&before));
            }
            byte += place.track_bytes;
            before = Some(place);
        }
    }

    #[test]
    fn smallest_disk_places_its_block() {
        let geometry = geometry(4096);
        assert_eq!(geometry.place(0).cylinder, 0);
        assert_eq!(geometry.stroke_share(0, 0), 0.0);
    }

    #[test]
    fn run_takes_its_tracks_and_switches() {
        let geometry = geometry(2_000_000_000);
        let track = geometry.place(0).track_bytes;
        assert_eq!(geometry.run_ns(0, track), 8_333_333);
        assert_eq!(geometry.run_ns(0, 4 * track), 4 * 8_333_333 + 3 * 1_000_000);
        assert_eq!(geometry.run_ns(0, 5 * track), 5 * 8_333_333 + 3 * 1_000_000 + 1_500_000);
    }
}
