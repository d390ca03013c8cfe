//! How a system spread what it wrote over its directories.
//!
//! Systems of several directories fill them in turn, on any device: one on a fast device then gets no more than one on
//! a slow device. The figures here show whether they did.

use underlay_record::{DeviceId, RunRecord};

use crate::cell::completed::job_of;

/// The bytes that a job wrote to one directory, as the mean of a repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryFigures {
    /// `hdfs`, `local`.
    pub role: String,
    /// Which of the storage's directories, from 0.
    pub directory: u32,
    /// The device below it and its kind, where there is one alone.
    pub device: Option<DeviceId>,
    pub kind: Option<String>,
    /// Blocks or map outputs.
    pub files: f64,
    pub write_bytes: f64,
    /// Over the whole job.
    pub write_bytes_per_s: f64,
}

/// Every directory that the completed repetitions name, by role and number.
pub fn directories(records: &[&RunRecord]) -> Vec<DirectoryFigures> {
    let mut all: Vec<DirectoryFigures> = Vec::new();
    let mut duration_s = 0.0;
    for record in records {
        let Some(job) = job_of(record) else { continue };
        duration_s += job.duration_s;
        for one in &job.directories {
            let existing = all
                .iter_mut()
                .find(|existing| existing.role == one.role && existing.directory == one.directory);
            match existing {
                Some(existing) => {
                    existing.files += one.files as f64;
                    existing.write_bytes += one.write_bytes as f64;
                }
                None => all.push(DirectoryFigures {
                    role: one.role.clone(),
                    directory: one.directory,
                    device: one.device.clone(),
                    kind: one.device.as_ref().map(|device| kind_of(record, device)),
                    files: one.files as f64,
                    write_bytes: one.write_bytes as f64,
                    write_bytes_per_s: 0.0,
                }),
            }
        }
    }
    let repetitions = records.iter().filter(|record| job_of(record).is_some()).count().max(1) as f64;
    for one in &mut all {
        one.write_bytes_per_s = if duration_s > 0.0 { one.write_bytes / duration_s } else { 0.0 };
        one.files /= repetitions;
        one.write_bytes /= repetitions;
    }
    all.sort_by(|a, b| (&a.role, a.directory).cmp(&(&b.role, b.directory)));
    all
}

/// The medium of a device of the record's storage; the device's own name where it has none.
fn kind_of(record: &RunRecord, device: &DeviceId) -> String {
    let described = record.storage.devices.iter().chain(record.devices.iter().map(|one| &one.description));
    described
        .into_iter()
        .find(|one| one.id == *device)
        .and_then(|one| one.medium.clone())
        .unwrap_or_else(|| device.name.clone())
}

/// The directories of one role on one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryGroup {
    pub role: String,
    /// Absent where several kinds of device are below.
    pub kind: Option<String>,
    pub directories: usize,
    /// Devices that they lie on; 0 where that isn't known.
    pub devices: usize,
    /// In all of them.
    pub files: f64,
    /// Files of the emptiest and of the fullest directory.
    pub files_low: f64,
    pub files_high: f64,
    /// Of the files and of the bytes of the role, 0 to 1.
    pub share_of_files: f64,
    pub share_of_bytes: f64,
    /// Into one directory, on average.
    pub write_bytes_per_s: f64,
}

/// Directories in groups of one role and kind, in order, without roles that nothing was written for.
pub fn groups<'a>(directories: impl IntoIterator<Item = &'a DirectoryFigures>) -> Vec<DirectoryGroup> {
    let mut directories: Vec<&DirectoryFigures> = directories.into_iter().collect();
    let used: Vec<String> = directories
        .iter()
        .filter(|one| one.files > 0.0 || one.write_bytes > 0.0)
        .map(|one| one.role.clone())
        .collect();
    directories.retain(|one| used.contains(&one.role));
    let mut keys: Vec<(&str, Option<&str>)> = Vec::new();
    for one in &directories {
        let key = (one.role.as_str(), one.kind.as_deref());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // In order of the role; kinds of device as the directories name them.
    keys.sort_by_key(|key| key.0);
    keys.into_iter()
        .map(|(role, kind)| {
            let of_role = || directories.iter().filter(|one| one.role == role);
            let members: Vec<&&DirectoryFigures> =
                of_role().filter(|one| one.kind.as_deref() == kind).collect();
            let share = |pick: fn(&DirectoryFigures) -> f64| {
                let all: f64 = of_role().map(|one| pick(one)).sum();
                let ours: f64 = members.iter().map(|one| pick(one)).sum();
                if all > 0.0 { ours / all } else { 0.0 }
            };
            let mut devices: Vec<&DeviceId> = members.iter().filter_map(|one| one.device.as_ref()).collect();
            devices.sort_unstable();
            devices.dedup();
            DirectoryGroup {
                role: role.to_owned(),
                kind: kind.map(str::to_owned),
                directories: members.len(),
                devices: devices.len(),
                files: members.iter().map(|one| one.files).sum(),
                files_low: members.iter().map(|one| one.files).fold(f64::INFINITY, f64::min),
                files_high: members.iter().map(|one| one.files).fold(0.0, f64::max),
                share_of_files: share(|one| one.files),
                share_of_bytes: share(|one| one.write_bytes),
                write_bytes_per_s: members.iter().map(|one| one.write_bytes_per_s).sum::<f64>()
                    / members.len().max(1) as f64,
            }
        })
        .collect()
}

/// The directories of several jobs on one storage as one: files and bytes added up, rates over the whole time.
///
/// Each job comes with its duration in seconds.
pub fn added(jobs: &[(&[DirectoryFigures], f64)]) -> Vec<DirectoryFigures> {
    let mut all: Vec<DirectoryFigures> = Vec::new();
    let duration_s: f64 = jobs.iter().map(|(_, duration_s)| duration_s).sum();
    for one in jobs.iter().flat_map(|(directories, _)| directories.iter()) {
        match all.iter_mut().find(|existing| existing.role == one.role && existing.directory == one.directory)
        {
            Some(existing) => {
                existing.files += one.files;
                existing.write_bytes += one.write_bytes;
            }
            None => all.push(one.clone()),
        }
    }
    for one in &mut all {
        one.write_bytes_per_s = if duration_s > 0.0 { one.write_bytes / duration_s } else { 0.0 };
    }
    all.sort_by(|a, b| (&a.role, a.directory).cmp(&(&b.role, b.directory)));
    all
}

/// How a role's files lie over directories on several kinds of device, in words: nothing where the role has one kind.
///
/// Directories that got within a quarter as many files each as the others were filled in turn or by chance, on any
/// device; so were those that differ by no more than chance makes likely. Few files tell nothing.
pub fn describe(groups: &[DirectoryGroup], role: &str) -> Option<String> {
    const ALIKE: f64 = 1.25;
    /// Twice the standard deviation of a count, to the count: from here on a difference of half could be chance.
    const TOO_FEW: f64 = 0.5;
    let of_role: Vec<&DirectoryGroup> =
        groups.iter().filter(|one| one.role == role && one.kind.is_some()).collect();
    let directories: usize = of_role.iter().map(|one| one.directories).sum();
    let files: f64 = of_role.iter().map(|one| one.files).sum();
    if of_role.len() < 2 || files <= 0.0 {
        return None;
    }
    // Each kind's share over its share if every directory got as much, and how far chance alone moves that.
    let factors: Vec<(f64, f64)> = of_role
        .iter()
        .map(|one| {
            let share = one.directories as f64 / directories as f64;
            let expected = share * files;
            // Twice the standard deviation of a binomial count over its mean: √((1 − p) / np).
            (one.files / expected, 2.0 * ((1.0 - share) / expected).sqrt())
        })
        .collect();
    let is_alike = factors
        .iter()
        .all(|(factor, chance)| (1.0 / ALIKE..=ALIKE).contains(factor) || (factor - 1.0).abs() <= *chance);
    let shares: Vec<String> = of_role
        .iter()
        .map(|one| {
            let kind = one.kind.as_deref().unwrap_or_default();
            let directories = match one.directories {
                1 => "1 directory".to_owned(),
                count => format!("{count} directories"),
            };
            format!("{directories} on {kind} got {}", crate::quantity::percent(one.files / files))
        })
        .collect();
    let shares = crate::quantity::list(&shares, usize::MAX);
    Some(if is_alike && factors.iter().any(|(_, chance)| *chance > TOO_FEW) {
        format!("too few files to tell how they are filled: {shares} of the files")
    } else if is_alike {
        format!("filled alike on every kind of device: {shares} of the files")
    } else {
        format!("filled unevenly: {shares} of the files")
    })
}
