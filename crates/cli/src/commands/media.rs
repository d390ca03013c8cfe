//! `underlay media`

mod check;
mod compare;
mod figures;
mod list;
mod measure;
mod serve;
mod show;
mod verify;

pub(crate) use check::{check, read};
pub(crate) use compare::compare;
pub(crate) use list::list;
pub(crate) use measure::measure;
pub(crate) use serve::serve;
pub(crate) use show::show;
pub(crate) use verify::verify;
