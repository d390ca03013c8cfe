//! `underlay advise`

mod about;
pub(super) mod memory;
mod picture;
pub(super) mod storage;
mod verify;

use std::process::ExitCode;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use underlay_report::quantity;
use underlay_study::advice::{self, DeviceCount, DeviceSplit};

use crate::arguments::{AdviseArguments, AdviseCommand, SplitArguments};
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn advise(arguments: &AdviseArguments) -> Result<ExitCode, ExitFailure> {
    match &arguments.command {
        AdviseCommand::Split(arguments) => split(arguments),
        AdviseCommand::Storage(arguments) => storage::advise(arguments),
        AdviseCommand::Memory(arguments) => memory::advise(arguments),
    }
}

fn split(arguments: &SplitArguments) -> Result<ExitCode, ExitFailure> {
    let mistake = |error: advice::AdviceError| ExitFailure::Mistake(error.to_string());
    let devices: Vec<DeviceCount> = arguments
        .devices
        .iter()
        .map(|text| DeviceCount::parse(text))
        .collect::<Result<_, _>>()
        .map_err(mistake)?;
    let root = &arguments.root;
    // Hadoop separates directories by commas and takes brackets for storage types.
    let is_usable = |c: char| !(c.is_control() || c.is_whitespace() || matches!(c, ',' | '[' | ']'));
    if !root.starts_with('/') || !root.chars().all(is_usable) {
        return Err(ExitFailure::Mistake(format!(
            "--root {root}: expected an absolute path without spaces, commas or brackets"
        )));
    }
    let split = advice::split(&devices).map_err(mistake)?;
    output::print(&if arguments.json { json(&split, root) } else { text(&split, root) });
    Ok(ExitCode::SUCCESS)
}

fn json(split: &DeviceSplit, root: &str) -> String {
    let devices: Vec<serde_json::Value> = split
        .parts
        .iter()
        .map(|part| {
            serde_json::json!({
                "name": part.devices.name,
                "count": part.devices.count,
                "bandwidth_bytes_per_s": part.devices.bandwidth_bytes_per_s,
                "directories": part.directories,
                "directory_bytes_per_s": part.directory_bytes_per_s,
                "share_before": part.share_before,
                "share_after": part.share_after,
            })
        })
        .collect();
    let properties: serde_json::Map<String, serde_json::Value> = split
        .hadoop_properties(root)
        .into_iter()
        .map(|(_, name, value)| (name.to_owned(), value.into()))
        .collect();
    let value = serde_json::json!({
        "devices": devices,
        "directories": split.directories,
        "bandwidth_bytes_per_s": split.bandwidth_bytes_per_s,
        "before_bytes_per_s": split.before_bytes_per_s,
        "after_bytes_per_s": split.after_bytes_per_s,
        "properties": properties,
    });
    serde_json::to_string_pretty(&value).expect("plain data becomes JSON")
}

fn text(split: &DeviceSplit, root: &str) -> String {
    let mut out = table(split);
    let rate = |bytes_per_s: f64| format!("{}/s", quantity::bytes(bytes_per_s));
    let of_all = |bytes_per_s: f64| quantity::percent(bytes_per_s / split.bandwidth_bytes_per_s);
    let devices: u32 = split.parts.iter().map(|part| part.devices.count).sum();
    let together = format!(
        "The devices have {} together. Filled in turn, they are expected to give",
        rate(split.bandwidth_bytes_per_s)
    );
    out += &format!("\n{}\n", output::paragraph(&together));
    let line = |name: &str, directories: u32, reached: f64| {
        let directories = match directories {
            1 => "1 directory".to_owned(),
            count => format!("{count} directories"),
        };
        let text = format!("{}, {} of it, with {directories}", rate(reached), of_all(reached));
        output::wrap_after_head(&format!("  {name} "), 10, &text) + "\n"
    };
    // Before the split each device has one directory.
    out += &line("before:", devices, split.before_bytes_per_s);
    out += &line("after: ", split.directories, split.after_bytes_per_s);
    if split.parts.iter().all(|part| part.directories == 1) {
        let text = "There is nothing to split: one directory per device is right for these.";
        out += &format!("\n{}\n", output::paragraph(text));
    }
    for (file, name, value) in split.hadoop_properties(root) {
        out += &format!(
            "\n{file}\n<property>\n  <name>{name}</name>\n  <value>{}</value>\n</property>\n",
            escaped(&value)
        );
    }
    if let Some(part) =
        split.parts.iter().filter(|part| part.directories > 1).max_by_key(|part| part.directories)
    {
        let name = &part.devices.name;
        let paragraphs = [
            format!(
                "Each {name} gets {} of all bytes: when one is full, they go elsewhere, and its bandwidth is lost.",
                quantity::percent(part.share_after)
            ),
            "HDFS counts the space of a file system once for each directory on it: make each part a volume of its own (LVM, a \
             partition, an XFS project quota), or the space that HDFS reports is too large."
                .to_owned(),
        ];
        out += &format!("\n{}\n", paragraphs.map(|text| output::paragraph(&text)).join("\n"));
    }
    out
}

fn table(split: &DeviceSplit) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["devices", "directories each", "bandwidth of each", "of all bytes, before", "after"]);
    for part in &split.parts {
        let each = |share: f64| match part.devices.count {
            1 => quantity::percent(share),
            _ => format!("{} each", quantity::percent(share)),
        };
        table.add_row(vec![
            format!("{} x {}", part.devices.count, part.devices.name),
            part.directories.to_string(),
            format!("{}/s", quantity::bytes(part.directory_bytes_per_s)),
            each(part.share_before),
            each(part.share_after),
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    output::table(&table) + "\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
