//! Jobs of fio: what their text asks for, what slow motion makes of it, and the figures that fio prints.
//!
//! [`options`] has a row for each option of fio. The other modules follow it: [`mistakes`] finds what a job must not
//! have, [`slowed`] writes the job for slow motion, [`figures_of`] reads its results.

mod block_sizes;
mod check;
mod command_line;
mod directions;
mod figures;
mod job_file;
mod job_names;
mod mistake;
pub mod options;
mod page_cache;
mod percentiles;
mod places;
mod slow_motion;
mod value;

pub use block_sizes::smallest_direct_request;
pub use check::mistakes;
pub use command_line::{FioDoubt, doubts, doubts_of_job, runs_fio};
pub use figures::{FioMetrics, failure_in, figures_of};
pub use job_file::{FioJobSection, JobFile, JobOption, JobSection, StrayLine};
pub use mistake::JobMistake;
pub use page_cache::passes_the_page_cache;
pub use slow_motion::slowed;
pub use value::KiloBase;

/// Where fio writes its figures.
pub const OUTPUT: &str = "{scratch}/fio.json";

/// The command that runs a job.
pub fn command() -> String {
    format!("fio --output-format=json --output={OUTPUT} {{job}} && cat {OUTPUT}")
}
