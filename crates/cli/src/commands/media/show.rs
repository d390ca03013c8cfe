//! `underlay media show`

use std::process::ExitCode;

use underlay_report::quantity;
use underlay_storage::catalogue::{self, CatalogueMedium, LayoutPreset};

use super::figures;
use crate::exit_codes::ExitFailure;
use crate::output;

pub(crate) fn show(name: &str) -> Result<ExitCode, ExitFailure> {
    let unknown = match catalogue::find(name) {
        Ok(medium) => {
            output::print(&wrapped(&medium_text(&medium), output::width()));
            return Ok(ExitCode::SUCCESS);
        }
        Err(unknown) => unknown,
    };
    match catalogue::find_layout(name) {
        Ok(layout) => {
            output::print(&wrapped(&layout_text(&layout), output::width()));
            Ok(ExitCode::SUCCESS)
        }
        // Whichever has something near it is what was meant.
        Err(layout) if unknown.suggestions.is_empty() && !layout.suggestions.is_empty() => {
            Err(ExitFailure::Mistake(layout.to_string()))
        }
        Err(_) => Err(ExitFailure::Mistake(unknown.to_string())),
    }
}

fn medium_text(medium: &CatalogueMedium) -> String {
    let mut text = String::new();
    let mut lines = medium.describe().into_iter().peekable();
    // The published figures stand in a table beside the model's.
    while let Some(line) = lines.next_if(|line| line != "published:") {
        text.push_str(&line);
        text.push('\n');
    }
    lines.next();
    while lines.next_if(|line| line.starts_with("  ")).is_some() {}
    if !medium.published.is_empty() {
        text.push('\n');
        text.push_str(&figures::table(&figures::compare(medium)));
        for published in &medium.published {
            for remark in published.remarks() {
                text.push_str(&format!("  {}: {remark}\n", figures::label(published)));
            }
        }
    }
    for line in lines {
        if !line.starts_with(' ') {
            text.push('\n');
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn layout_text(layout: &LayoutPreset) -> String {
    let mut lines = vec![format!("{}: {}", layout.name, layout.title)];
    lines.extend(layout.note.clone());
    let mark = |estimate: bool| if estimate { ", estimate" } else { "" };
    lines.push(format!("{} [{}{}]", layout.summary(), layout.source, mark(layout.estimate)));
    lines.push(format!(
        "capacity {}, price {}",
        quantity::bytes(layout.capacity_bytes() as f64),
        quantity::price(&layout.price())
    ));
    lines.push("\ndevices:".into());
    for (device, (medium, count)) in layout.devices.iter().zip(layout.media()) {
        lines.push(format!("  {count} x {} [{}{}]", medium.summary(), device.source, mark(device.estimate)));
    }
    lines.push("\nsources:".into());
    lines.extend(layout.sources.iter().map(|(key, text)| format!("  {key}: {text}")));
    lines.join("\n")
}

/// Breaks lines between words; what goes on stands two columns further in.
fn wrapped(text: &str, width: usize) -> String {
    let mut all = String::new();
    for line in text.lines() {
        // A table that is too wide is no better when broken.
        if line.chars().count() <= width || line.contains("   ") {
            all.push_str(line);
            all.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let mut used = indent;
        all.push_str(&line[..indent]);
        for (index, word) in line.split_whitespace().enumerate() {
            let length = word.chars().count();
            if index > 0 && used + 1 + length > width {
                all.push('\n');
                all.push_str(&" ".repeat(indent + 2));
                used = indent + 2;
            } else if index > 0 {
                all.push(' ');
                used += 1;
            }
            all.push_str(word);
            used += length;
        }
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_medium_fits_terminal() {
        for medium in catalogue::builtin().iter().filter(|medium| medium.published.len() < 4) {
            for line in wrapped(&medium_text(medium), 100).lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
        for layout in catalogue::layouts() {
            let text = wrapped(&layout_text(layout), 100);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert!(text.contains("sources:") && text.contains(&layout.devices[0].medium));
        }
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three\n");
        assert_eq!(wrapped("short", 9), "short\n");
    }
}
