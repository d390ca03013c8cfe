//! `underlay schema`

use std::process::ExitCode;

use crate::exit_codes::Failure;
use crate::output;

pub fn schema() -> Result<ExitCode, Failure> {
    output::print(&underlay_record::schema());
    Ok(ExitCode::SUCCESS)
}
