//! `[machine]`: the modelled machine, of which the system has one for each of its nodes.

use underlay_config::{Diagnostics, Section, Spanned};

use crate::spec::model::MachineSpec;

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
    section.finish(findings);
    Some(Spanned::new(MachineSpec { cores: cores?.value }, span))
}
