//! One file a command.

pub(crate) mod advise;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod console;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod explain_key;
pub(crate) mod fault;
pub(crate) mod gateway;
mod live_service;
mod load_run;
pub(crate) mod manual;
pub(crate) mod media;
pub(crate) mod mount;
pub(crate) mod new;
pub(crate) mod node;
pub(crate) mod predict;
mod predicting;
mod read_study;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod volume;
mod which_run;
pub(crate) mod worker;
pub(crate) mod ycsb;
