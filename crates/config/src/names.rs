//! Valid names of studies, systems, storages and workloads.

use std::ops::Range;

use crate::diagnostics::{Diagnostic, Diagnostics};

/// Names of studies, systems, storages and workloads end up in file names.
pub(crate) const MAX_NAME_CHARACTERS: usize = 40;
/// What [`check_name`] takes, as a JSON Schema has it.
pub(crate) const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9-]*$";

/// Says whether a name can be a part of file names, and reports it when not.
pub(crate) fn check_name(name: &str, span: Range<usize>, findings: &mut Diagnostics) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let problem = if name.is_empty() {
        "a name can't be empty".to_owned()
    } else if name.len() > MAX_NAME_CHARACTERS {
        format!("this name is longer than {MAX_NAME_CHARACTERS} characters")
    } else if name.chars().all(allowed) && !name.starts_with('-') {
        return true;
    } else {
        format!("`{}` is not a valid name", name.escape_debug())
    };
    let label = "expected lowercase letters, digits and hyphens, not starting with a hyphen";
    findings.push(Diagnostic::error(span, problem, label).with_help("names become parts of file names"));
    false
}
