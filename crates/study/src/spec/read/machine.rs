//! `[machine]`: the modelled machine; the system has one for each of its nodes.

use underlay_config::{Diagnostic, Diagnostics, Section, Spanned};

use super::layers::read_link;
use super::storage_site::StorageSite;
use crate::spec::model::{MachineSpec, StorageSource};

/// More than any server that is sold.
const MAX_CORES: u32 = 4096;

/// `None` without the section, and after a mistake in it.
pub(in crate::spec) fn read(
    root: &mut Section<'_>,
    findings: &mut Diagnostics,
) -> Option<Spanned<MachineSpec>> {
    let field = root.take("machine")?;
    let span = field.key_span.clone();
    let mut section = field.section("[machine]", findings)?;
    let cores = section
        .require("cores", "cores = 16", findings)
        .and_then(|field| field.count(1..=MAX_CORES, findings));
    let network = section.take("network").map(|field| read_link(&field, findings));
    section.finish(findings);
    let network = match network {
        Some(read) => Some(read?),
        None => None,
    };
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

/// Volumes that name no link have the machine's network between them and their server.
pub(super) fn connect(storages: &mut [StorageSite], machine: &MachineSpec) {
    for storage in storages {
        if let StorageSource::Volume(volume) = &mut storage.spec.source {
            volume.link = volume.link.or(machine.network);
        }
    }
}
