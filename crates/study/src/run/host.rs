//! What runs cells: this machine, its programs, and what its path to a device takes by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use underlay_attach::{AttachError, overhead};
use underlay_record::Machine;

use super::{CellError, Observer};

/// How long the path's own cost is measured, once a run.
const OVERHEAD_PROBE: Duration = Duration::from_millis(500);

/// The machine that cells run on, and the programs that they run by.
pub(super) struct HostInfo {
    pub machine: Machine,
    pub versions: BTreeMap<String, String>,
}

/// What the path to a modelled device takes by itself.
pub(super) enum Floor {
    Unmeasured,
    /// Its p50, of this machine's clock.
    WallUs(f64),
    /// It can't be measured here, and why.
    Unknown(String),
}

impl Floor {
    /// Measures it, where the host has what that takes.
    pub(super) fn measure(observer: &dyn Observer) -> Result<Floor, CellError> {
        observer.preparing("measuring this machine's own overhead");
        match overhead::measure(OVERHEAD_PROBE) {
            Ok(found) => Ok(Floor::WallUs(found.path_p50_us)),
            // It is measured on a block device, which a directory that needs no root can do without.
            Err(AttachError::Missing(missing)) => {
                let why = format!("this machine's own overhead is not known: {}", missing.what);
                observer.preparing(&why);
                Ok(Floor::Unknown(why))
            }
            Err(other) => Err(other.into()),
        }
    }
}

/// RFC 3339 in UTC, of the moment `ago`.
pub(super) fn timestamp(ago: Duration) -> String {
    let then = jiff::Timestamp::now() - ago;
    then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
