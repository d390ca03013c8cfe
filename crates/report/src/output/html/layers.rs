//! The activity of caches, compression and mirrors, in words.

use maud::{Markup, html};
use underlay_record::LayerActivity;

use super::swatch;
use crate::comparison::ComparisonRow;
use crate::quantity;

/// A line for each layer of the first completed repetition, or nothing where there is none.
pub(super) fn table(rows: &[&ComparisonRow]) -> Markup {
    let mut lines = Vec::new();
    for row in rows {
        for (index, result) in row.cells.iter().enumerate() {
            let Some(result) = result else { continue };
            let record = result.completed().next();
            for layer in record.into_iter().flat_map(|record| &record.layers) {
                lines.push((row.name_in_mix(), index, result.cell.storage.as_str(), layer));
            }
        }
    }
    if lines.is_empty() {
        return html! {};
    }
    html! {
        p.lead { "Layers between the devices and the system, over the measured window." }
        div.scroll { table {
            thead { tr {
                @if rows.len() > 1 { th.l { "Workload" } }
                th.l { "Storage" } th.l { "layer" } th.l { "of" } th.l { "what it did" }
            } }
            tbody {
                @for (name, index, storage, layer) in &lines {
                    tr {
                        @if rows.len() > 1 { td.l { (name) } }
                        th.l scope="row" { (swatch(*index)) (storage) }
                        td.l { (layer.kind) }
                        td.l { (layer.title()) }
                        td.w { (describe_layer(layer)) }
                    }
                }
            }
        } }
    }
}

fn describe_layer(layer: &LayerActivity) -> String {
    let figure = |name: &str| layer.figures.get(name).copied().unwrap_or(0.0);
    let bytes = |name: &str| quantity::bytes(figure(name));
    match layer.kind.as_str() {
        "cache" => {
            let share = |hits: &str, misses: &str| {
                let all = figure(hits) + figure(misses);
                if all > 0.0 { quantity::percent(figure(hits) / all) } else { quantity::ABSENT.to_owned() }
            };
            format!(
                "{} of reads and {} of writes hit; {} cached, {} of it dirty, {} written back",
                share("read_hits", "read_misses"),
                share("write_hits", "write_misses"),
                bytes("cached_bytes"),
                bytes("dirty_bytes"),
                bytes("written_back_bytes"),
            )
        }
        "compress" => {
            let ratio = figure("logical_bytes") / figure("stored_bytes").max(1.0);
            format!(
                "{} stored as {} ({} to 1), using {} of {}",
                bytes("logical_bytes"),
                bytes("stored_bytes"),
                quantity::number(ratio, 3),
                bytes("used_bytes"),
                bytes("space_bytes"),
            )
        }
        "volume" => format!(
            "{} of {} written, stored as {}",
            bytes("used_bytes"),
            bytes("capacity_bytes"),
            bytes("stored_bytes"),
        ),
        "remote" => {
            let reconnects = match figure("reconnects") {
                0.0 => String::new(),
                times => format!("; connected anew {}", quantity::plural(times as usize, "time")),
            };
            format!(
                "{} over the network: {} read, {} written{reconnects}",
                quantity::plural(figure("requests") as usize, "request"),
                bytes("read_bytes"),
                bytes("written_bytes"),
            )
        }
        "mirror" => format!(
            "{} members in sync, {} out, {} coming back; {} brought back",
            figure("members_in_sync"),
            figure("members_out"),
            figure("members_resyncing"),
            bytes("resynced_bytes"),
        ),
        // A kind of a later version: its figures as they are.
        _ => {
            let each =
                layer.figures.iter().map(|(name, value)| format!("{name} {}", quantity::number(*value, 4)));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(kind: &str, figures: &[(&str, f64)]) -> LayerActivity {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        LayerActivity { server: None, name: "data.0".into(), kind: kind.into(), figures }
    }

    #[test]
    fn figures_become_sentences() {
        let cache = layer("cache", &[("read_hits", 3.0), ("read_misses", 1.0), ("cached_bytes", 4096.0)]);
        assert!(describe_layer(&cache).starts_with("75"), "{}", describe_layer(&cache));
        let compress = layer("compress", &[("logical_bytes", 3e6), ("stored_bytes", 1e6)]);
        assert!(describe_layer(&compress).contains("(3.00 to 1)"), "{}", describe_layer(&compress));
        let remote = layer("remote", &[("requests", 33_528.0), ("read_bytes", 5e8), ("reconnects", 1.0)]);
        assert_eq!(
            describe_layer(&remote),
            "33,528 requests over the network: 500 MB read, 0 B written; connected anew 1 time"
        );
        assert_eq!(describe_layer(&layer("later", &[("strength", 2.5)])), "strength 2.500");
    }
}
