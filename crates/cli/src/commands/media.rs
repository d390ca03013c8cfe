//! `underlay media`

mod check;
mod figures;
mod list;
mod measure;
mod serve;
mod show;
mod verify;

pub use check::{check, read};
pub use list::list;
pub use measure::measure;
pub use serve::serve;
pub use show::show;
pub use verify::verify;
