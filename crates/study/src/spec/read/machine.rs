//! `[machine]`: the modelled machine; each node of the system has one.

use underlay_config::keys::{CountKind, KeyRow, KeySection};
use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};

use super::layers::NetworkLink;
use super::storage_site::StorageSite;
use crate::spec::model::{MachineSpec, StorageSource};

/// More than any server on the market.
const MAX_CORES: u32 = 4096;

const CORES: KeyRow<CountKind> = KeyRow::new(
    "cores",
    CountKind { min: 1, max: MAX_CORES },
    "16",
    "Cores of each node; its servers are held to as much CPU time.",
)
.required();
const NETWORK: KeyRow<NetworkLink> = KeyRow::new(
    "network",
    NetworkLink,
    "{ bandwidth = \"25 Gbit/s\", latency = \"20 us\" }",
    "The network to volumes that name no `link` of their own.",
);

/// `[machine]`
pub(in crate::spec) const MACHINE: KeySection =
    KeySection { path: "machine", meaning: "What each node of a system runs on.", keys: &[&CORES, &NETWORK] };

/// `None` without the section, and after a mistake in it.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<MachineSpec>> {
    let field = root.take(MACHINE.path)?;
    let span = field.key_span.clone();
    let mut section = field.section("[machine]", findings)?;
    let cores = section.read(&CORES, findings);
    let network = section.read_optional(&NETWORK, findings);
    section.finish(findings);
    let network = network?.map(|link| link.value);
    Some(Spanned::new(MachineSpec { cores: cores?.value, network }, span))
}

/// External systems have their own cores.
pub(super) fn note_elsewhere(
    storages: &[StorageSite],
    machine: &Spanned<MachineSpec>,
    findings: &mut Diagnostics,
) {
    for storage in storages.iter().filter(|storage| storage.spec.is_elsewhere()) {
        let message = format!(
            "`cores` does not limit the system of [storage.{}], which runs already",
            storage.spec.name
        );
        findings.push(
            Diagnostic::note(machine.span.clone(), message, "its servers use the CPUs that they have")
                .with_context(storage.layout_span.clone(), "the storage")
                .with_help("limit its servers yourself, or compare it with a system that has as many cores"),
        );
    }
}

/// Volumes without a link of their own get the machine's network between them and their server.
pub(super) fn connect(storages: &mut [StorageSite], machine: &MachineSpec) {
    for storage in storages {
        if let StorageSource::Volume(volume) = &mut storage.spec.source {
            volume.link = volume.link.or(machine.network);
        }
    }
}
