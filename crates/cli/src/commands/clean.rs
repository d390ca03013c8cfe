//! `underlay clean`

use std::process::ExitCode;

use underlay_attach::{ResourceRegistry, cleanup};

use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn clean() -> Result<ExitCode, ExitFailure> {
    let registry = ResourceRegistry::open()?;
    let mut line_count = 0;
    let result = cleanup::clean(&registry, &mut |line| {
        line_count += 1;
        output::print(line);
    });
    // No journal has a console's leftovers.
    let consoles = underlay_console::remove_leftovers(registry.directory());
    result?;
    for path in consoles.map_err(|error| ExitFailure::Failed(format!("leftovers of consoles: {error}")))? {
        line_count += 1;
        output::print(&format!("removed {}", path.display()));
    }
    if line_count == 0 {
        output::print("nothing was left behind");
    }
    Ok(ExitCode::SUCCESS)
}

/// Before something new begins: what a killed run left takes memory and disk.
pub(crate) fn mention_leftovers() {
    if let Ok(registry) = ResourceRegistry::open()
        && !registry.leftovers().is_empty()
    {
        output::say("note: a run that was killed left things behind; `underlay clean` removes them");
    }
}
