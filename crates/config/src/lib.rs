//! Reads the TOML files that people write: studies, media, pools. It finds all mistakes in one go and shows them at
//! their lines. Units are part of a value. For an unknown word it suggests the nearest known one.
//!
//! ```
//! use underlay_config::{Diagnostics, Section, parse};
//!
//! let text = "duration = \"20 sec\"";
//! let mut findings = Diagnostics::new("study.toml", text);
//! let document = parse(text, &mut findings).expect("TOML");
//! let mut root = Section::root("the study", document.as_table());
//! let duration = root.take("duration").and_then(|field| field.duration(false, &mut findings));
//! root.finish(&mut findings);
//! assert!(duration.is_none() && findings.to_string().contains("unknown unit 'sec'"));
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

mod diagnostics;
mod field;
pub mod keys;
mod names;
mod overrides;
mod section;
mod suggest;
mod syntax;
mod text;
pub mod units;

pub use diagnostics::{Diagnostic, DiagnosticSeverity, Diagnostics, UnknownName};
pub use field::{Field, Spanned};
pub use overrides::overridden;
pub use section::{Section, named_sections, sections_of};
pub use suggest::{closest, nearest};
pub use text::parse;
