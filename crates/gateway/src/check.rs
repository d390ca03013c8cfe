//! Offline: whether the local directory is in order, and putting it right. It trusts the lists of extents of objects
//! and parts, and compares everything else with them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use underlay_files::Access;

use crate::at_rest::AtRest;
use crate::config::{GatewayConfig, PrefixRule, StoreConsistency, StorePlace};
use crate::disk_room::DiskRoom;
use crate::engine::{JOURNAL, check_seal, lock_directory, open_metadata, sealed_by};
use crate::journal::frame::ContentFraming;
use crate::journal::{Journal, KnownRange};
use crate::meta::{MetadataCommitter, MetadataStore, ObjectName};
use crate::model::{ContentExtent, ContentId, ContentPlace};
use crate::store::{DirectoryWriters, look_through};

/// Bytes of the journal that are read at once.
const STEP_BYTES: u64 = 4 << 20;
const METADATA_CACHE_BYTES: usize = 64 << 20;
/// Where others, or other gateways, write to a store as well, what was changed within this time may be a write that is
/// in flight.
const OTHERS_TAKE: Duration = Duration::from_secs(3600);

/// The findings, and the repairs.
#[derive(Debug, Default)]
pub(crate) struct CheckReport {
    objects: u64,
    contents: u64,
    journal_bytes: u64,
    pending: usize,
    /// Objects and parts whose bytes are damaged or missing.
    damaged: Vec<(String, String)>,
    /// Contents whose number of references is wrong.
    miscounted: u64,
    /// The repairs.
    repaired: Vec<String>,
    /// Files of writes that were broken off, in the stores' directories, and their bytes.
    leftovers: u64,
    leftover_bytes: u64,
    /// Directories where others write as well, and how many files there look like those.
    doubtful: Vec<(PathBuf, u64)>,
    /// Directories of stores that could not be looked through, and why.
    not_looked_at: Vec<(PathBuf, String)>,
}

impl CheckReport {
    pub(crate) fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.miscounted == 0
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} objects, {} contents, {} bytes in the journal, {} names that are not in their store yet",
            self.objects, self.contents, self.journal_bytes, self.pending
        )?;
        for (item, reason) in &self.damaged {
            writeln!(f, "damaged: {item}: {reason}")?;
        }
        if self.miscounted > 0 {
            writeln!(
                f,
                "{} contents have a wrong number of references: `underlay-gateway repair` counts anew",
                self.miscounted
            )?;
        }
        if self.leftovers > 0 {
            writeln!(
                f,
                "{} files of writes that were broken off take {} bytes in the stores' directories: `underlay-gateway repair` removes them",
                self.leftovers, self.leftover_bytes
            )?;
        }
        // Others write there too, so `repair` leaves these files: only their owners can tell.
        for (directory, count) in &self.doubtful {
            writeln!(
                f,
                "{count} files in {} may be left by interrupted writes, or belong to other programs: remove those whose names end in `#` and a number and that nobody needs",
                directory.display()
            )?;
        }
        for (directory, reason) in &self.not_looked_at {
            writeln!(f, "not looked at for writes that were broken off: {}: {reason}", directory.display())?;
        }
        for line in &self.repaired {
            writeln!(f, "repaired: {line}")?;
        }
        if !self.damaged.is_empty() {
            writeln!(
                f,
                "what to do: bring the files back from a copy, or give these up by `underlay-gateway repair --drop-damaged`"
            )?;
        }
        // Leftovers only take room, and names that are pending reach the store later: neither is damage.
        if self.is_sound() {
            writeln!(f, "everything is in order")?;
        }
        Ok(())
    }
}

/// The damage, in detail.
struct CheckFindings {
    report: CheckReport,
    damaged_objects: Vec<ObjectName>,
    /// By upload, with its name.
    damaged_uploads: Vec<(ObjectName, String)>,
    /// The right number of references of those that have another.
    references: Vec<(ContentId, u64)>,
}

/// # Errors
/// When the directory is in use or can't be read at all.
pub(crate) fn check(config: &GatewayConfig, at_rest: Option<Arc<AtRest>>) -> Result<CheckReport, String> {
    let (folder, _lock) = existing(&config.local.directory)?;
    let locked = SystemTime::now();
    let metadata = open(&folder, at_rest.as_deref())?;
    let mut report = look(&metadata, &folder, &ContentFraming::new(at_rest))?.report;
    look_for_leftovers(config, &metadata, locked, false, &mut report)?;
    Ok(report)
}

/// Where a store's directory is, and who writes there.
fn directories(
    config: &GatewayConfig,
    metadata: &MetadataStore,
) -> Result<Vec<(PathBuf, DirectoryWriters)>, String> {
    let writers =
        |rules: &[PrefixRule]| match rules.iter().all(|rule| rule.consistency == StoreConsistency::Exclusive)
        {
            true => DirectoryWriters::Gateways,
            false => DirectoryWriters::Others,
        };
    let mut places: Vec<(StorePlace, DirectoryWriters)> = Vec::new();
    for bucket in &config.buckets {
        places.push((bucket.store.clone(), writers(&bucket.rules)));
    }
    let created = metadata.view().and_then(|view| view.all_buckets()).map_err(|error| error.to_string())?;
    for (_, record) in created.iter().filter(|(_, record)| record.is_created) {
        let new = config.new_buckets.as_ref();
        let writers = new.map_or(DirectoryWriters::Others, |new| writers(std::slice::from_ref(&new.rule)));
        places.extend(StorePlace::parse(&record.store).map(|place| (place, writers)));
    }
    let directory = |(place, writers)| match place {
        StorePlace::Directory(directory) => Some((directory, writers)),
        StorePlace::S3 { .. } => None,
    };
    Ok(places.into_iter().filter_map(directory).collect())
}

/// Nobody of this gateway was writing when the local directory was locked. Others may be, where there are any.
fn look_for_leftovers(
    config: &GatewayConfig,
    metadata: &MetadataStore,
    locked: SystemTime,
    removes: bool,
    report: &mut CheckReport,
) -> Result<(), String> {
    for (directory, writers) in directories(config, metadata)? {
        let is_alone = config.cluster.is_none() && writers == DirectoryWriters::Gateways;
        let before = if is_alone { locked } else { locked - OTHERS_TAKE };
        let found = look_through(&directory, writers, before, removes);
        if let Ok(found) = &found
            && found.doubtful > 0
        {
            report.doubtful.push((directory.clone(), found.doubtful));
        }
        match found {
            Ok(found) if removes && found.count > 0 => {
                let examples: Vec<String> =
                    found.examples.iter().map(|path| path.display().to_string()).collect();
                let more = if found.count > found.examples.len() as u64 { ", ..." } else { "" };
                report.repaired.push(format!(
                    "removed {} files of writes that were broken off, of {} bytes: {}{more}",
                    found.count,
                    found.bytes,
                    examples.join(", ")
                ));
            }
            Ok(found) => {
                report.leftovers += found.count;
                report.leftover_bytes += found.bytes;
            }
            Err(error) => report.not_looked_at.push((directory, error.to_string())),
        }
    }
    Ok(())
}

/// # Errors
/// As [`check`], and when it can't be put right.
pub(crate) fn repair(
    config: &GatewayConfig,
    at_rest: Option<Arc<AtRest>>,
    drop_damaged: bool,
) -> Result<CheckReport, String> {
    let (folder, _lock) = existing(&config.local.directory)?;
    let locked = SystemTime::now();
    let metadata = open(&folder, at_rest.as_deref())?;
    let framing = ContentFraming::new(at_rest);
    let found = look(&metadata, &folder, &framing)?;
    let mut repaired = Vec::new();
    let committer =
        MetadataCommitter::start(metadata.database(), |_| {}).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
    if drop_damaged {
        for name in found.damaged_objects {
            let target = name.clone();
            let dropped = committer.commit(Vec::new(), move |change| change.drop_damaged(&target));
            runtime.block_on(dropped).map_err(|error| error.to_string())?;
            repaired.push(format!("gave up object {name}"));
        }
        for (name, upload) in found.damaged_uploads {
            let target = (name.clone(), upload.clone());
            let dropped = committer
                .commit(Vec::new(), move |change| change.remove_upload(&target.0, &target.1).map(drop));
            runtime.block_on(dropped).map_err(|error| error.to_string())?;
            repaired.push(format!("gave up upload {upload} of {name}"));
        }
    }
    // Counted anew, since giving things up has changed it.
    let found = look(&metadata, &folder, &framing)?;
    if !found.references.is_empty() {
        let (count, references) = (found.references.len(), found.references);
        let counted = committer.commit(Vec::new(), move |change| {
            references.into_iter().try_for_each(|(content, count)| change.set_references(content, count))
        });
        runtime.block_on(counted).map_err(|error| error.to_string())?;
        repaired.push(format!("counted the references of {count} contents anew"));
    }
    let mut report = look(&metadata, &folder, &framing)?.report;
    report.repaired = repaired;
    look_for_leftovers(config, &metadata, locked, true, &mut report)?;
    Ok(report)
}

fn existing(directory: &Path) -> Result<(underlay_files::Folder, std::fs::File), String> {
    require_metadata(directory)?;
    lock_directory(directory)
}

/// # Errors
/// When the directory has no gateway's metadata. A new one there would answer in place of the right one, as after a
/// typing error in the configuration.
pub(crate) fn require_metadata(directory: &Path) -> Result<(), String> {
    match directory.join(crate::meta::FILE).exists() {
        true => Ok(()),
        false => Err(format!(
            "{} has no metadata of a gateway\n  what to do: check that `directory` of [local] is the one that the gateway used, and that it is mounted",
            directory.display()
        )),
    }
}

fn open(folder: &underlay_files::Folder, at_rest: Option<&AtRest>) -> Result<MetadataStore, String> {
    let journal = folder.make_inner(JOURNAL, Access::Private).map_err(|error| error.to_string())?;
    let disk = Arc::new(DiskRoom::open(folder.path()).map_err(|error| error.to_string())?);
    let metadata = open_metadata(folder, &journal, &disk, METADATA_CACHE_BYTES)?;
    // By another key, all of it would look damaged.
    check_seal(&metadata, sealed_by(at_rest)?, folder.path())?;
    Ok(metadata)
}

/// Removes and changes nothing.
fn look(
    metadata: &MetadataStore,
    folder: &underlay_files::Folder,
    framing: &ContentFraming,
) -> Result<CheckFindings, String> {
    let failed = |error: crate::errors::GatewayError| error.to_string();
    let view = metadata.view().map_err(failed)?;
    let mut report =
        CheckReport { pending: view.all_pending().map_err(failed)?.len(), ..CheckReport::default() };
    let mut contents = BTreeMap::new();
    view.each_content(|id, record| {
        contents.insert(id, record);
        Ok(())
    })
    .map_err(failed)?;
    report.contents = contents.len() as u64;

    let ranges: Vec<KnownRange> = contents
        .values()
        .filter_map(|record| match record.place {
            ContentPlace::Local { segment, offset_bytes } => {
                let (size_bytes, is_beyond) = (record.size_bytes, record.was_fetched());
                Some(KnownRange { segment, offset_bytes, size_bytes, is_beyond })
            }
            ContentPlace::Remote { .. } => None,
        })
        .collect();
    let journal_folder = folder.make_inner(JOURNAL, Access::Private).map_err(|error| error.to_string())?;
    let journal =
        // To open the journal would cut off what the metadata do not list. A check changes nothing.
        Journal::look(journal_folder, &ranges, framing.clone()).map_err(|error| error.to_string())?;
    let journal = Arc::new(journal);
    let mut bad: HashMap<ContentId, String> = HashMap::new();
    for (id, record) in &contents {
        let ContentPlace::Local { segment, offset_bytes } = record.place else { continue };
        report.journal_bytes += record.size_bytes;
        // In steps: a content may be larger than memory.
        let mut offset = 0;
        while offset < record.size_bytes {
            let end = (offset + STEP_BYTES).min(record.size_bytes);
            if let Err(error) = journal.read(*id, record.size_bytes, (segment, offset_bytes), offset..end) {
                let text = error.to_string();
                bad.insert(*id, text.lines().next().unwrap_or_default().to_owned());
                break;
            }
            offset = end;
        }
    }
    let mut counted: HashMap<ContentId, u64> = HashMap::new();
    let problem = |extents: &[ContentExtent]| {
        extents.iter().find_map(|extent| match (contents.get(&extent.content), bad.get(&extent.content)) {
            (None, _) => Some(format!("content {} is missing", extent.content.0)),
            (_, Some(reason)) => Some(reason.clone()),
            (Some(record), None) if extent.offset_bytes + extent.length_bytes > record.size_bytes => {
                Some(format!("content {} is too short", extent.content.0))
            }
            _ => None,
        })
    };
    let (mut damaged_objects, mut damaged_uploads) = (Vec::new(), Vec::new());
    view.each_object(|name, record| {
        report.objects += 1;
        for extent in &record.extents {
            *counted.entry(extent.content).or_default() += 1;
        }
        if let Some(reason) = problem(&record.extents) {
            report.damaged.push((format!("object {name}"), reason));
            damaged_objects.push(name);
        }
        Ok(())
    })
    .map_err(failed)?;
    for ((name, upload), _) in view.all_uploads().map_err(failed)? {
        // An upload is given up as a whole, however many of its parts are damaged.
        let mut seen = HashSet::new();
        for (number, part) in view.parts(&upload, 0, usize::from(u16::MAX)).map_err(failed)? {
            for extent in &part.extents {
                *counted.entry(extent.content).or_default() += 1;
            }
            if let Some(reason) = problem(&part.extents) {
                report.damaged.push((format!("part {number} of upload {upload} of {name}"), reason));
                if seen.insert(upload.clone()) {
                    damaged_uploads.push((name.clone(), upload.clone()));
                }
            }
        }
    }
    let mut references = Vec::new();
    for (id, record) in &contents {
        let right = counted.get(id).copied().unwrap_or(0);
        // What nothing refers to has a right number of 0 here, so `repair` frees it.
        if record.references != right {
            references.push((*id, right));
        }
    }
    report.miscounted = references.len() as u64;
    Ok(CheckFindings { report, damaged_objects, damaged_uploads, references })
}
