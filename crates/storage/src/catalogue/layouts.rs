//! Layouts: devices of the catalogue put together as a published set-up had them, so that a study may name
//! one instead of spelling it out. One TOML file each in `media/layouts/`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use underlay_config::{Diagnostics, nearest};

use super::table::{TableReader, parse_with};
use super::{CatalogueMedium, files};

/// As many as a study takes in one storage.
const MAX_DEVICES: f64 = 64.0;
const MAX_DIRECTORIES: f64 = 64.0;
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=16 << 20;

/// How the devices of a preset are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PresetLayout {
    Stripe {
        chunk_bytes: u64,
    },
    /// A directory for each device.
    Jbod,
    /// Each device holds everything.
    Mirror,
    /// One stripe, shown as several directories.
    Split {
        chunk_bytes: u64,
        directories: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresetDevice {
    /// The name of a medium in the catalogue.
    pub medium: String,
    pub count: u32,
    /// A key of the layout's `sources`.
    pub source: String,
    /// The source names no product: the medium or the number of devices is ours.
    #[serde(default)]
    pub estimate: bool,
}

/// A set-up of devices that someone published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPreset {
    /// Its name in studies: `accumulo-hdd`.
    pub name: String,
    pub title: String,
    pub note: Option<String>,
    /// Document and what it states, by key.
    pub sources: BTreeMap<String, String>,
    pub devices: Vec<PresetDevice>,
    pub layout: PresetLayout,
    /// Where the layout is known from, a key of `sources`.
    pub source: String,
    /// The source doesn't state the layout.
    #[serde(default)]
    pub estimate: bool,
}

/// A name that no layout has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout \"{name}\" in the catalogue; {}", super::advice(.suggestions, .known))]
pub struct UnknownLayout {
    pub name: String,
    /// The names nearest to it, best first; empty when none is near.
    pub suggestions: Vec<String>,
    pub known: Vec<String>,
}

impl LayoutPreset {
    /// Reads a layout's file.
    ///
    /// # Errors
    /// Lists every mistake with its line and column; `file_name` serves these messages only.
    pub fn parse(file_name: &str, text: &str) -> Result<LayoutPreset, Diagnostics> {
        parse_with(file_name, "the layout", text, read)
    }

    /// Its devices with their media.
    pub fn media(&self) -> impl Iterator<Item = (CatalogueMedium, u32)> + '_ {
        // Media that parse let through are in the catalogue; those from JSON may not be.
        self.devices.iter().filter_map(|device| Some((super::find(&device.medium).ok()?, device.count)))
    }

    /// The bytes that a system can store on it.
    pub fn capacity_bytes(&self) -> u64 {
        let each = self.media().map(|(medium, count)| (medium.capacity_bytes(), u64::from(count)));
        match self.layout {
            PresetLayout::Mirror => each.map(|(bytes, _)| bytes).min().unwrap_or(0),
            _ => each.fold(0, |sum, (bytes, count)| sum + bytes * count),
        }
    }

    /// Of all devices, each at the date that its medium states.
    pub fn price_usd(&self) -> f64 {
        self.media().map(|(medium, count)| medium.price_usd() * f64::from(count)).sum()
    }

    /// The same, and what of it is rent.
    pub fn price(&self) -> underlay_record::PriceSum {
        self.media().map(|(medium, count)| medium.price() * f64::from(count)).sum()
    }

    /// `12 x hdd-7200-2tb, a directory each`.
    pub fn summary(&self) -> String {
        let devices: Vec<String> =
            self.devices.iter().map(|device| format!("{} x {}", device.count, device.medium)).collect();
        let kib = |bytes: u64| bytes >> 10;
        let one = self.devices.iter().map(|device| device.count).sum::<u32>() == 1;
        let layout = match self.layout {
            PresetLayout::Stripe { .. } | PresetLayout::Jbod if one => String::new(),
            PresetLayout::Stripe { chunk_bytes } => format!(", striped by {} KiB", kib(chunk_bytes)),
            PresetLayout::Jbod => ", a directory each".into(),
            PresetLayout::Mirror => ", mirrored".into(),
            PresetLayout::Split { directories, .. } if one => {
                format!(", split into {directories} directories")
            }
            PresetLayout::Split { chunk_bytes, directories } => {
                format!(", striped by {} KiB and split into {directories} directories", kib(chunk_bytes))
            }
        };
        format!("{}{layout}", devices.join(" + "))
    }
}

/// The layouts that come with Underlay.
pub fn layouts() -> &'static [LayoutPreset] {
    static LAYOUTS: OnceLock<Vec<LayoutPreset>> = OnceLock::new();
    LAYOUTS.get_or_init(|| {
        // A test reads every file, so that none that ships can fail here.
        files::LAYOUTS
            .iter()
            .map(|file| LayoutPreset::parse(&file.path, file.text).unwrap_or_else(|error| panic!("{error}")))
            .collect()
    })
}

/// The layout of this name.
///
/// # Errors
/// When there is none: with the nearest names.
pub fn find_layout(name: &str) -> Result<LayoutPreset, UnknownLayout> {
    if let Some(layout) = layouts().iter().find(|layout| layout.name == name) {
        return Ok(layout.clone());
    }
    let names: Vec<String> = layouts().iter().map(|layout| layout.name.clone()).collect();
    let suggestions =
        nearest(name, names.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
    Err(UnknownLayout { name: name.to_owned(), suggestions, known: names })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LayoutKeyword {
    Stripe,
    Jbod,
    Mirror,
    Split,
}

const WORDS: &[(&str, LayoutKeyword)] = &[
    ("stripe", LayoutKeyword::Stripe),
    ("jbod", LayoutKeyword::Jbod),
    ("mirror", LayoutKeyword::Mirror),
    ("split", LayoutKeyword::Split),
];

fn read(mut root: TableReader<'_>) -> Option<LayoutPreset> {
    let name = root.name();
    let title = root.text("title", "the set-up in words");
    let note = root.optional_text("note", "a text");
    let word = root.choice("layout", WORDS);
    let layout = word.and_then(|word| read_layout(&mut root, word));
    let devices = read_devices(&mut root, word);
    let source = root.source();
    let estimate = root.flag("estimate");
    let sources = root.finish_file();
    Some(LayoutPreset {
        name: name?,
        title: title?.value,
        note,
        sources,
        devices: devices?,
        layout: layout?,
        source: source?,
        estimate,
    })
}

fn read_layout(root: &mut TableReader<'_>, word: LayoutKeyword) -> Option<PresetLayout> {
    let striped = matches!(word, LayoutKeyword::Stripe | LayoutKeyword::Split);
    let chunk_bytes = match root.optional("chunk") {
        Some(field) if !striped => {
            root.mistake_at(field.span, "`chunk` goes with layout \"stripe\" or \"split\" only");
            return None;
        }
        Some(_) => read_chunk(root)?,
        None => 512 << 10,
    };
    let directories = match (root.optional("directories"), word) {
        (Some(field), LayoutKeyword::Stripe | LayoutKeyword::Jbod | LayoutKeyword::Mirror) => {
            root.mistake_at(field.span, "`directories` goes with layout \"split\" only");
            return None;
        }
        (_, LayoutKeyword::Split) => root.whole("directories", 1.0, MAX_DIRECTORIES)?,
        (None, _) => 0,
    };
    Some(match word {
        LayoutKeyword::Stripe => PresetLayout::Stripe { chunk_bytes },
        LayoutKeyword::Jbod => PresetLayout::Jbod,
        LayoutKeyword::Mirror => PresetLayout::Mirror,
        LayoutKeyword::Split => PresetLayout::Split { chunk_bytes, directories },
    })
}

fn read_chunk(root: &mut TableReader<'_>) -> Option<u64> {
    const EXPECTED: &str = "a power of two from \"4 KiB\" to \"16 MiB\"";
    let field = root.required("chunk", EXPECTED)?;
    let text = root.read(|findings| field.text(EXPECTED, findings))?;
    let bytes = underlay_config::units::parse_bytes(&text.value).ok();
    let sound = bytes.filter(|bytes| bytes.is_power_of_two() && CHUNK_BYTES.contains(bytes));
    if sound.is_none() {
        root.read(|findings| {
            field.invalid(format!("expected {EXPECTED}"), findings);
            None::<()>
        });
    }
    sound
}

fn read_devices(root: &mut TableReader<'_>, word: Option<LayoutKeyword>) -> Option<Vec<PresetDevice>> {
    const EXPECTED: &str = "`devices = [{ medium = \"..\", count = 1, source = \"..\" }]`";
    let tables = root.tables("devices", "an element of `devices`", EXPECTED)?;
    let written = tables.len();
    let mut devices: Vec<PresetDevice> = Vec::new();
    for mut table in tables {
        let medium = table.text("medium", "the name of a medium in the catalogue").and_then(|name| {
            super::find(&name.value).map_err(|unknown| table.mistake_at(name.span, unknown.to_string())).ok()
        });
        let count = table.whole("count", 1.0, MAX_DEVICES);
        let source = table.source();
        let estimate = table.flag("estimate");
        table.reject_unknown();
        let (Some(medium), Some(count), Some(source)) = (medium, count, source) else { continue };
        let alike = devices.first().is_none_or(|first| first.medium == medium.name);
        if !alike && word.is_some_and(|word| word != LayoutKeyword::Jbod) {
            table.mistake("only a \"jbod\" may have devices of several media");
        }
        devices.push(PresetDevice { medium: medium.name, count, source, estimate });
    }
    let total: u32 = devices.iter().fold(0, |sum, device| sum.saturating_add(device.count));
    if written == 0 || f64::from(total) > MAX_DEVICES {
        root.mistake(format!("`devices` must be 1 to {MAX_DEVICES} in all"));
    }
    (devices.len() == written && written > 0).then_some(devices)
}
