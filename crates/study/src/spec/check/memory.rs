//! Whether each system starts with the memory that it gets on this machine, and how much that leaves for the page
//! cache.

use underlay_config::units::rounded_bytes;
use underlay_config::{Diagnostic, Diagnostics};
use underlay_systems::memory_plan::{ClientLoad, MemoryPlan};

use crate::spec::read::{SectionSites, StorageSite, SystemSite, WorkloadSite};

/// If less than this share of the modelled machine's cache memory remains after scaling, it is a different system.
const PAGE_CACHE_KEPT: f64 = 0.5;

pub(super) fn check(system: &SystemSite, sites: &SectionSites, findings: &mut Diagnostics) {
    let load = system.spec.heaviest(sites.workloads.iter().map(load_of));
    let here_bytes = system.spec.budget_here(sites.scale.value.data);
    // Too little for any system, and refused as such.
    if here_bytes < super::MIN_MEMORY_BYTES {
        return;
    }
    let mut reported: Vec<String> = Vec::new();
    for storage in compared(sites) {
        let Some(plan) = system.spec.memory_on(&storage.spec, here_bytes, load) else { continue };
        let plan = match plan {
            Ok(plan) => plan,
            Err(problem) => {
                // With several storage configurations, the reason is usually the same.
                if !reported.contains(&problem) {
                    findings.push(refusal(system, here_bytes, &problem, sites));
                    reported.push(problem);
                }
                continue;
            }
        };
        // Jobs read and write in sequence more than any cache holds.
        let has_requests = sites.workloads.iter().any(|workload| !workload.is_batch);
        if has_requests
            && let Some(note) = smaller_page_cache(system, storage, &plan, load, sites)
            && reported.is_empty()
        {
            findings.push(note);
            reported.push(String::new());
        }
    }
}

/// How much data one server of the system can hold in memory on this machine, counted as on the modelled machine: its
/// caches and page cache. All of its memory where its kind gives no details.
pub(super) fn cache_bytes(system: &SystemSite, sites: &SectionSites) -> u64 {
    let data = sites.scale.value.data;
    let load = system.spec.heaviest(sites.workloads.iter().map(load_of));
    let first = compared(sites).next();
    match first.and_then(|one| system.spec.memory_on(&one.spec, system.spec.budget_here(data), load)) {
        // The rest of the programs' part here is not memory of the modelled machine.
        Some(Ok(plan)) => ((plan.cache_bytes() as f64 * data) as u64).min(system.spec.memory_bytes),
        Some(Err(_)) | None => system.spec.memory_bytes,
    }
}

fn compared(sites: &SectionSites) -> impl Iterator<Item = &StorageSite> {
    sites.storages.iter().filter(|storage| !sites.is_for_a_role(storage))
}

fn load_of(workload: &WorkloadSite) -> ClientLoad {
    let background = workload.beside.as_ref().map_or(0, |background| background.value.threads);
    let threads = workload.threads.iter().map(|threads| threads.value).max().unwrap_or(0);
    ClientLoad { threads: threads + background, record_bytes: workload.record_bytes() }
}

fn refusal(system: &SystemSite, here_bytes: u64, problem: &str, sites: &SectionSites) -> Diagnostic {
    let data = sites.scale.value.data;
    let message = format!(
        "[system.{}] would not run in {} on this machine",
        system.spec.name,
        rounded_bytes(here_bytes)
    );
    let finding = Diagnostic::error(system.memory_span.clone(), message, problem);
    if data > 1.0 {
        finding.with_context(sites.scale.span.clone(), format!("`memory` is divided by {data} here")).with_help(
            "a program's own memory does not shrink with the data: set it as `fixed_memory`, which is not divided, \
             or lower `data` in [scale]",
        )
    } else {
        finding.with_help("raise `memory`")
    }
}

/// A fixed heap takes the page cache that the data scale leaves.
fn smaller_page_cache(
    system: &SystemSite,
    storage: &StorageSite,
    here: &MemoryPlan,
    load: ClientLoad,
    sites: &SectionSites,
) -> Option<Diagnostic> {
    let data = sites.scale.value.data;
    if data <= 1.0 {
        return None;
    }
    let modelled = system.spec.memory_on(&storage.spec, system.spec.memory_bytes, load)?.ok()?;
    let wanted = modelled.cache_bytes() as f64 / data;
    let found = here.cache_bytes() as f64;
    if found >= PAGE_CACHE_KEPT * wanted {
        return None;
    }
    let message = format!(
        "[system.{}] has {} to cache records in on this machine, and the modelled one {} of its own size",
        system.spec.name,
        rounded_bytes(found as u64),
        rounded_bytes(wanted as u64)
    );
    let lacking = (wanted - found) as u64;
    let label = format!(
        "its processes take {} of {} here",
        rounded_bytes(here.process_bytes()),
        rounded_bytes(here.budget_bytes)
    );
    let fixed = system.spec.fixed_memory_bytes.saturating_add(lacking);
    Some(
        Diagnostic::note(system.memory_span.clone(), message, label)
            .with_context(sites.scale.span.clone(), format!("`memory` is divided by {data} here"))
            .with_help(format!(
                "with `fixed_memory = \"{}\"` it would have about as much",
                rounded_bytes(fixed)
            )),
    )
}
