//! A study's short form: the values that replace its own.

use underlay_record::ShortenedAmount;

use crate::spec::{Study, StudyForm, WorkloadSpec};
use underlay_config::units::parse_bytes;

/// None where the study is not a short form, and unless a single amount of all workloads is replaced. With several
/// amounts, it is unclear which replaces which.
pub(crate) fn find_amount(study: &Study) -> Option<ShortenedAmount> {
    if !study.short {
        return None;
    }
    let stored = |name: &str| study.media_files.get(name).cloned().ok_or_else(|| "it was not kept".into());
    let form = StudyForm { short: false, overrides: &study.overrides };
    let full = Study::parse_with_media("the study", &study.source_toml, form, &stored).ok()?;
    let is_kept = |workload: &&WorkloadSpec| study.workloads.iter().any(|one| one.name == workload.name);
    let short_bytes = one_amount(study.workloads.iter())?;
    let full_bytes = one_amount(full.workloads.iter().filter(is_kept))?;
    (short_bytes != full_bytes).then_some(ShortenedAmount { full_bytes, short_bytes })
}

/// The only data size of all workloads of requests, where the study gives it as a size.
fn one_amount<'a>(workloads: impl Iterator<Item = &'a WorkloadSpec>) -> Option<f64> {
    let mut sizes = workloads.flat_map(|workload| &workload.sizes);
    let first = sizes.next()?.label.as_deref()?;
    sizes
        .all(|size| size.label.as_deref() == Some(first))
        .then(|| parse_bytes(first).ok())?
        .map(|bytes| bytes as f64)
}
