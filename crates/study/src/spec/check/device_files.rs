//! The files behind devices on this machine: whether its file system supports their size.

use underlay_config::{Diagnostic, Diagnostics, units};

use crate::spec::model::scaled_down;
use crate::spec::read::{SectionSites, StorageSite};

/// The largest file of ext4 with its usual blocks of 4 KiB: 2^32 blocks minus one (Linux kernel documentation, ext4,
/// "Blocks").
const MAX_EXT4_FILE_BYTES: u64 = (1 << 44) - 4096;

/// The location of the images is not known yet, so this is a note. The run refuses files that are too large for its
/// file system.
pub(super) fn note_large(storage: &StorageSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let largest_bytes = storage.spec.device_capacities().max().unwrap_or(0);
    let here_bytes = scaled_down(largest_bytes, sites.scale.value.data);
    if here_bytes <= MAX_EXT4_FILE_BYTES {
        return;
    }
    let message = format!(
        "a device of [storage.{}] is a file of {} on this machine",
        storage.spec.name,
        units::rounded_bytes(here_bytes)
    );
    let span = storage.pool_span.clone().unwrap_or(storage.source_span.clone());
    findings.push(Diagnostic::note(span, message, "ext4 has no file above 16 TiB").with_help(
        "keep the images on XFS with `underlay run --work DIR`, use smaller devices, or raise `data` in [scale]",
    ));
}
