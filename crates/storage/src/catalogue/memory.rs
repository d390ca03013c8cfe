//! The price of memory, for questions that weigh it against devices: a file of the catalogue like those of the media.

use std::sync::OnceLock;

use underlay_config::Diagnostics;

use super::quantity::SourcedQuantity;
use super::table::{NumberRange, TableReader, parse_with};
use super::{MediumPrice, files, read};

const GIB: f64 = 1_073_741_824.0;

/// A memory module and its price.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryModule {
    pub name: String,
    pub title: String,
    pub note: Option<String>,
    pub capacity: SourcedQuantity,
    /// Of one module.
    pub price: MediumPrice,
    /// The price's source, in words.
    source: String,
}

impl MemoryModule {
    /// Reads a file of memory.
    ///
    /// # Errors
    /// Lists every mistake with its line and column; `file_name` serves these messages only.
    pub fn parse(file_name: &str, text: &str) -> Result<MemoryModule, Diagnostics> {
        parse_with(file_name, "the memory", text, memory_of)
    }

    pub fn usd_per_gib(&self) -> f64 {
        self.price.usd / (self.capacity.value / GIB)
    }

    /// When and where the price was taken, in words.
    pub fn price_source(&self) -> String {
        let estimate = if self.price.estimate { ", an estimate" } else { "" };
        format!("{}{estimate}: {}", self.price.date, self.source)
    }
}

fn memory_of(mut root: TableReader<'_>) -> Option<MemoryModule> {
    let name = root.name();
    let title = root.text("title", "the product in words");
    root.number("year", 1950.0, 2100.0)?;
    let note = root.optional_text("note", "a text");
    let capacity = root.quantity(NumberRange::Whole, "capacity_bytes", 1e6, 1e18);
    let price = read::price(&mut root, false);
    let sources = root.finish_file();
    let price = price?;
    let source = sources.get(&price.source).cloned().unwrap_or_default();
    Some(MemoryModule { name: name?, title: title?.value, note, capacity: capacity?, price, source })
}

/// The memory that comes with Underlay.
pub fn memory() -> &'static MemoryModule {
    static MEMORY: OnceLock<MemoryModule> = OnceLock::new();
    MEMORY.get_or_init(|| {
        // A test reads it, so that what ships can't fail here.
        let (name, text) = files::MEMORY;
        MemoryModule::parse(name, text).unwrap_or_else(|error| panic!("{error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gib_price_has_source_and_date() {
        let memory = memory();
        assert_eq!(memory.usd_per_gib(), memory.price.usd / 32.0);
        assert!(
            memory.price_source().starts_with("2025-11: Samsung's contract price"),
            "{}",
            memory.price_source()
        );
    }

    #[test]
    fn price_without_source_is_refused() {
        let (name, text) = files::MEMORY;
        let wrong = text.replace("date = \"2025-11\"\nsource = \"contract\"", "date = \"2025-11\"");
        assert_ne!(wrong, text);
        assert!(MemoryModule::parse(name, &wrong).unwrap_err().to_string().contains("source"));
    }
}
