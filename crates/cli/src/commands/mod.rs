//! One file a command.

pub mod advise;
pub mod check;
pub mod clean;
pub mod doctor;
pub mod fault;
pub mod manual;
pub mod media;
pub mod mount;
pub mod new;
mod newest_run;
mod read_study;
pub mod report;
pub mod run;
pub mod schema;
pub mod volume;
pub mod worker;
pub mod ycsb;
