//! `--storage hdd,nvme`: what each word stands for.

use std::path::Path;

use underlay_config::closest;
use underlay_storage::catalogue::{self, CatalogueMedium, LayoutPreset, PresetLayout};

use crate::commands::media;
use crate::exit_codes::ExitFailure;

/// The usual device of each kind, for users who know the kind and not the product.
const ALIASES: [(&str, &str); 8] = [
    ("hdd", "hdd-7200-sata"),
    ("ssd", "ssd-sata"),
    ("sata-ssd", "ssd-sata"),
    ("nvme", "samsung-pm9a3-960"),
    ("optane", "optane-p5800x"),
    ("pmem", "optane-pmem-100"),
    ("ebs", "ebs-gp3"),
    ("nvme-tcp", "nvme-tcp-9300"),
];
/// The kinds by which a storage may be named.
pub(in crate::commands) fn aliases() -> impl Iterator<Item = &'static str> {
    ALIASES.into_iter().map(|(alias, _)| alias)
}

/// As many as a storage may have.
const MAX_DEVICES: u32 = 64;
/// One storage of the study.
pub(super) struct NewStorage {
    /// Of its section.
    pub name: String,
    pub source: NewStorageSource,
}

pub(super) enum NewStorageSource {
    Devices {
        /// As the study names it: of the catalogue, or a file beside it.
        medium_name: String,
        medium: Box<CatalogueMedium>,
        count: u32,
    },
    Preset(LayoutPreset),
    Path(String),
}

/// Reads the words, each of which becomes a storage. Files of media lie in `folder`.
pub(super) fn read(words: &[String], folder: &Path) -> Result<Vec<NewStorage>, ExitFailure> {
    let mut storages: Vec<NewStorage> = Vec::new();
    for word in words.iter().map(|word| word.trim()) {
        if word.is_empty() {
            return Err(ExitFailure::Mistake(
                "--storage has an empty name: expected a list such as hdd,nvme".into(),
            ));
        }
        let storage = read_word(word, folder)?;
        if storages.iter().any(|other| other.name == storage.name) {
            return Err(ExitFailure::Mistake(format!("--storage names '{}' twice", storage.name)));
        }
        storages.push(storage);
    }
    Ok(storages)
}

fn read_word(word: &str, folder: &Path) -> Result<NewStorage, ExitFailure> {
    if word.starts_with('/') {
        return Ok(NewStorage { name: name_of(word), source: NewStorageSource::Path(word.to_owned()) });
    }
    if word.ends_with(".toml") {
        let medium = media::read(&folder.join(word))?;
        let source =
            NewStorageSource::Devices { medium_name: word.to_owned(), medium: Box::new(medium), count: 1 };
        let file = Path::new(word).file_stem().and_then(|stem| stem.to_str()).unwrap_or(word);
        return Ok(NewStorage { name: name_of(file), source });
    }
    if let Ok(preset) = catalogue::find_layout(word) {
        return Ok(NewStorage { name: word.to_owned(), source: NewStorageSource::Preset(preset) });
    }
    if let Some(medium) = find(word) {
        return Ok(devices(word, medium, 1));
    }
    // `hddx6`: six of them. Whole names come first, since some hold an x themselves: optane-p5800x.
    let several =
        word.rsplit_once('x').and_then(|(name, count)| Some((name, find(name)?, count.parse().ok()?)));
    match several {
        Some((name, medium, count)) if (1..=MAX_DEVICES).contains(&count) => Ok(devices(name, medium, count)),
        Some((name, ..)) => Err(ExitFailure::Mistake(format!(
            "--storage {word}: expected 1 to {MAX_DEVICES} devices, as in {name}x6"
        ))),
        None => Err(unknown(word)),
    }
}

fn find(word: &str) -> Option<CatalogueMedium> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == word).map_or(word, |&(_, medium)| medium);
    catalogue::find(name).ok()
}

fn devices(word: &str, medium: CatalogueMedium, count: u32) -> NewStorage {
    let name = match count {
        1 => word.to_owned(),
        many => format!("{word}-{many}"),
    };
    let medium_name = medium.name.clone();
    NewStorage { name, source: NewStorageSource::Devices { medium_name, medium: Box::new(medium), count } }
}

fn unknown(word: &str) -> ExitFailure {
    let media = catalogue::builtin().iter().map(|medium| medium.name.as_str());
    let layouts = catalogue::layouts().iter().map(|layout| layout.name.as_str());
    let aliases = ALIASES.map(|(alias, _)| alias);
    let meant = closest(word, aliases.into_iter().chain(media).chain(layouts));
    let meant = meant.map(|meant| format!("did you mean '{meant}'? ")).unwrap_or_default();
    ExitFailure::Mistake(format!(
        "unknown storage '{word}': {meant}expected {}, a name from `underlay media list`, several devices as in hddx6, \
         a medium's file (.toml), or a directory of a disk that you have (/mnt/disk)",
        aliases.join(", ")
    ))
}

/// A path or a file as the name of a section.
fn name_of(text: &str) -> String {
    let small = text.to_ascii_lowercase();
    let words = small.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = words.collect::<Vec<_>>().join("-").chars().take(40).collect();
    match name.trim_end_matches('-') {
        "" => "disk".to_owned(),
        name => name.to_owned(),
    }
}

impl NewStorage {
    pub(super) fn is_modelled(&self) -> bool {
        !matches!(self.source, NewStorageSource::Path(_))
    }

    /// Whether a seek is what costs, so that a measurement has few requests.
    pub(super) fn is_rotational(&self) -> bool {
        match &self.source {
            NewStorageSource::Devices { medium, .. } => medium.model.is_rotational(),
            NewStorageSource::Preset(preset) => {
                preset.media().any(|(medium, _)| medium.model.is_rotational())
            }
            NewStorageSource::Path(_) => false,
        }
    }

    /// Its name in a study's heading.
    pub(super) fn title(&self) -> String {
        let title = match &self.source {
            NewStorageSource::Devices { medium, count: 1, .. } => medium.title.clone(),
            NewStorageSource::Devices { medium, count, .. } => format!("{count} x {}", medium.title),
            NewStorageSource::Preset(preset) => preset.title.clone(),
            NewStorageSource::Path(path) => format!("The storage under {path}"),
        };
        // It becomes a comment: what a title of several lines has in its second would be read as a part of the study.
        title.replace('\n', " ")
    }

    /// Directories that a system gets of it. `apart`: several devices are not striped.
    pub(super) fn directories(&self, apart: bool) -> u32 {
        match &self.source {
            NewStorageSource::Devices { count, .. } if apart => *count,
            NewStorageSource::Preset(preset) => match &preset.layout {
                PresetLayout::Jbod => preset.devices.iter().map(|device| device.count).sum(),
                PresetLayout::Split { directories, .. } => *directories,
                PresetLayout::Stripe { .. } | PresetLayout::Mirror => 1,
            },
            NewStorageSource::Devices { .. } | NewStorageSource::Path(_) => 1,
        }
    }

    /// Bytes of its smallest volume, and of all of them.
    pub(super) fn room_bytes(&self, apart: bool) -> Option<(u64, u64)> {
        match &self.source {
            NewStorageSource::Devices { medium, count, .. } => {
                let (one, all) = (medium.capacity_bytes(), medium.capacity_bytes() * u64::from(*count));
                Some((if apart { one } else { all }, all))
            }
            NewStorageSource::Preset(preset) => {
                let smallest = preset.media().map(|(medium, _)| medium.capacity_bytes()).min()?;
                match &preset.layout {
                    PresetLayout::Jbod => Some((smallest, preset.capacity_bytes())),
                    PresetLayout::Mirror => Some((smallest, smallest)),
                    PresetLayout::Stripe { .. } | PresetLayout::Split { .. } => {
                        Some((preset.capacity_bytes(), preset.capacity_bytes()))
                    }
                }
            }
            NewStorageSource::Path(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_in_catalogue() {
        for (alias, medium) in ALIASES {
            assert_eq!(find(alias).map(|found| found.name).as_deref(), Some(medium));
        }
    }

    #[test]
    fn path_becomes_a_name() {
        assert_eq!(name_of("/mnt/My_Disk.1/"), "mnt-my-disk-1");
        assert_eq!(name_of("/"), "disk");
    }
}
