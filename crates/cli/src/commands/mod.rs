//! One file a command.

pub(crate) mod advise;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod doctor;
pub(crate) mod fault;
pub(crate) mod manual;
pub(crate) mod media;
pub(crate) mod mount;
pub(crate) mod new;
pub(crate) mod node;
mod read_study;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod volume;
mod which_run;
pub(crate) mod worker;
pub(crate) mod ycsb;
