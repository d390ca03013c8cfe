//! Reports of runs that never ran: one program, so that the crate is linked once.

mod ab;
mod attribution;
mod benchmarks;
mod disturbed;
mod fixture;
mod jobs;
mod load;
mod readable;
mod report;
mod statistics;
mod warnings;
