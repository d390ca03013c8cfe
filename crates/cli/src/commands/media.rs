//! `underlay media`

use std::path::Path;
use std::process::ExitCode;

use comfy_table::{Cell, CellAlignment, Table, presets};
use underlay_report::quantity;
use underlay_storage::catalogue::{self, Medium};

use crate::exit_codes::Failure;
use crate::output;

pub fn list(json: bool) -> Result<ExitCode, Failure> {
    let media = catalogue::builtin();
    if json {
        output::print(&serde_json::to_string_pretty(media).expect("media are plain data"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["medium", "what it is", "capacity", "price", "$/TB", "figures"]);
    for medium in media {
        let capacity_bytes = medium.capacity_bytes() as f64;
        table.add_row(vec![
            Cell::new(&medium.name),
            Cell::new(format!("{} ({})", medium.title, medium.year)),
            Cell::new(quantity::bytes(capacity_bytes)).set_alignment(CellAlignment::Right),
            Cell::new(quantity::dollars(medium.price_usd())).set_alignment(CellAlignment::Right),
            Cell::new(quantity::dollars(medium.price_usd() / (capacity_bytes / 1e12)))
                .set_alignment(CellAlignment::Right),
            Cell::new(medium.label.name()),
        ]);
    }
    output::print(&table.to_string());
    output::print("\n`underlay media show MEDIUM` prints every number with its source.");
    Ok(ExitCode::SUCCESS)
}

pub fn show(name: &str) -> Result<ExitCode, Failure> {
    let medium = catalogue::find(name).map_err(|unknown| Failure::Mistake(unknown.to_string()))?;
    output::print(&medium.describe().join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// Reads a medium's file, or says all its mistakes.
pub fn read(file: &Path) -> Result<Medium, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::Mistake(format!("cannot read {}: {error}", file.display())))?;
    Medium::parse(&file.display().to_string(), &text)
        .map_err(|mistakes| Failure::Mistake(format!("\n{mistakes}")))
}

pub fn check(file: &Path) -> Result<ExitCode, Failure> {
    let medium = read(file)?;
    output::print(&format!("{}: no mistakes ({})", file.display(), medium.summary()));
    Ok(ExitCode::SUCCESS)
}
