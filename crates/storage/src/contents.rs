//! A device's contents before we overwrite it.
//!
//! File systems, RAID members, volume managers and partition tables write their signatures near the beginning or near
//! the end of a device. A device is blank when both ends are zeros. For other contents, `wipefs` gives the name: it
//! knows every signature of util-linux's libblkid. It reads a sparse copy of the two ends, so this works for a device
//! that only this process can read, such as a volume over NVMe/TCP.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use rustix::fs::MemfdFlags;
use serde::Deserialize;

use crate::device::{BlockDevice, DeviceError, DeviceRequest};

/// As much of either end as is looked at. VMFS keeps its signature behind the first MiB.
const END_BYTES: u64 = 2 << 20;
const PIECE_BYTES: u64 = 256 << 10;
/// On Debian these are outside the search path of users other than root.
const PROGRAMS: [&str; 3] = ["/usr/sbin/wipefs", "/sbin/wipefs", "wipefs"];
/// A message names at most this many.
const MAX_NAMES: usize = 6;

/// The contents at the ends of a device that is not blank.
pub struct DeviceContents {
    capacity_bytes: u64,
    /// Those that are not all zeros, each with its offset.
    pieces: Vec<(u64, Vec<u8>)>,
}

/// The device's contents; `None` if both its ends are zeros.
///
/// # Errors
/// When it can't be read.
pub fn inspect_device(device: &dyn BlockDevice) -> Result<Option<DeviceContents>, DeviceError> {
    look(device.geometry().capacity_bytes, |offset_bytes, length| {
        device.execute(DeviceRequest::Read { offset_bytes, buffer: vec![0; length] })
    })
}

/// As [`inspect_device`], of a file or a device's node of this length.
///
/// # Errors
/// When it can't be read.
pub fn inspect_file(file: &File, length_bytes: u64) -> io::Result<Option<DeviceContents>> {
    look(length_bytes, |offset_bytes, length| {
        let mut buffer = vec![0; length];
        file.read_exact_at(&mut buffer, offset_bytes)?;
        Ok(buffer)
    })
}

/// Both ends read as zeros afterwards, so that nobody finds signatures there of what was there before.
///
/// # Errors
/// When it can't be written.
pub fn erase(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    for end in ends(device.geometry().capacity_bytes) {
        let (offset_bytes, length_bytes) = (end.start, end.end - end.start);
        if length_bytes > 0 {
            device.execute(DeviceRequest::Discard { offset_bytes, length_bytes })?;
        }
    }
    device.execute(DeviceRequest::Flush).map(drop)
}

fn ends(capacity_bytes: u64) -> [Range<u64>; 2] {
    let head_bytes = END_BYTES.min(capacity_bytes);
    // In whole pieces, so that every request is aligned.
    let tail_bytes = capacity_bytes.saturating_sub(END_BYTES) / PIECE_BYTES * PIECE_BYTES;
    [0..head_bytes, tail_bytes.max(head_bytes)..capacity_bytes]
}

fn look<E>(
    capacity_bytes: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Option<DeviceContents>, E> {
    let mut pieces = Vec::new();
    for end in ends(capacity_bytes) {
        let mut offset_bytes = end.start;
        while offset_bytes < end.end {
            let length_bytes = PIECE_BYTES.min(end.end - offset_bytes);
            let piece = read(offset_bytes, length_bytes as usize)?;
            if piece.iter().any(|byte| *byte != 0) {
                pieces.push((offset_bytes, piece));
            }
            offset_bytes += length_bytes;
        }
    }
    Ok((!pieces.is_empty()).then_some(DeviceContents { capacity_bytes, pieces }))
}

/// The output of `wipefs --json`.
#[derive(Deserialize)]
struct WipefsOutput {
    signatures: Vec<ContentSignature>,
}

#[derive(Deserialize)]
struct ContentSignature {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl DeviceContents {
    /// The signatures that were found, as `blkid` calls them (`xfs`, `linux_raid_member`, `gpt`), each once. There are
    /// none where the data begins with no known signature.
    ///
    /// # Errors
    /// When `wipefs` could not be asked: then nobody knows what is there.
    pub fn signatures(&self) -> io::Result<Vec<String>> {
        ask_wipefs(&self.sparse_copy()?)
    }

    /// For a message: `xfs`, `btrfs and gpt`, `data of an unknown kind`.
    pub fn describe(&self) -> String {
        let mut names = self.signatures().unwrap_or_default();
        names.truncate(MAX_NAMES);
        match names.split_last() {
            None => "data of an unknown kind".to_owned(),
            Some((only, [])) => only.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
        }
    }

    /// The bytes from this offset on, where the examined end has them.
    pub fn bytes_at(&self, offset_bytes: u64) -> Option<&[u8]> {
        let piece = self.pieces.iter().find(|(start_bytes, piece)| {
            (*start_bytes..*start_bytes + piece.len() as u64).contains(&offset_bytes)
        });
        piece.map(|(start_bytes, piece)| &piece[(offset_bytes - start_bytes) as usize..])
    }

    fn sparse_copy(&self) -> io::Result<File> {
        let file = File::from(rustix::fs::memfd_create("contents", MemfdFlags::CLOEXEC)?);
        // As long as the device: some signatures are looked for at a distance from its end.
        file.set_len(self.capacity_bytes)?;
        for (offset_bytes, piece) in &self.pieces {
            file.write_all_at(piece, *offset_bytes)?;
        }
        Ok(file)
    }
}

fn ask_wipefs(copy: &File) -> io::Result<Vec<String>> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for program in PROGRAMS {
        outcome = Command::new(program)
            .args(["--no-act", "--json", "/proc/self/fd/0"])
            .stdin(copy.try_clone()?)
            .stderr(Stdio::null())
            .env("LC_ALL", "C")
            .output();
        if outcome.is_ok() {
            break;
        }
    }
    let output = outcome?;
    if !output.status.success() {
        return Err(io::Error::other(format!("wipefs ended with {}", output.status)));
    }
    let printed: WipefsOutput = serde_json::from_slice(&output.stdout)?;
    let names: BTreeSet<String> = printed.signatures.into_iter().filter_map(|found| found.kind).collect();
    // Its names come from its own tables, but they end up on a terminal: nothing unprintable gets through.
    Ok(names.into_iter().filter(|name| name.chars().all(|letter| letter.is_ascii_graphic())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(capacity_bytes: u64, offset: u64, content: &[u8]) -> Option<DeviceContents> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(capacity_bytes).unwrap();
        file.write_all_at(content, offset).unwrap();
        inspect_file(&file, capacity_bytes).unwrap()
    }

    #[test]
    fn zeros_at_both_ends_are_blank() {
        for capacity_bytes in [0, 1, 4096, END_BYTES, END_BYTES + 4096, 3 * END_BYTES + 512, 1 << 33] {
            assert!(holding(capacity_bytes, 0, &[]).is_none(), "{capacity_bytes}");
        }
    }

    #[test]
    fn byte_at_either_end_is_data() {
        for capacity_bytes in [4096, END_BYTES + 4096, 3 * END_BYTES + 512, 1 << 33] {
            for offset in [0, capacity_bytes.min(END_BYTES) - 1, capacity_bytes - 1] {
                let found = holding(capacity_bytes, offset, &[1])
                    .unwrap_or_else(|| panic!("{offset} of {capacity_bytes}"));
                assert_eq!(found.describe(), "data of an unknown kind");
                assert_eq!(found.bytes_at(offset).unwrap()[0], 1);
            }
        }
    }

    #[test]
    fn signatures_are_named_wherever_they_are() {
        let capacity_bytes = 1 << 30;
        // https://btrfs.readthedocs.io: the first super block is at 64 KiB, and its magic number 64 bytes into it.
        let found = holding(capacity_bytes, (64 << 10) + 64, b"_BHRfS_M").unwrap();
        assert_eq!(found.describe(), "btrfs");
        // A super block of md 1.2 is 4 KiB from the beginning, one of 1.0 between 8 and 12 KiB from the end.
        let mut md = vec![0u8; 256];
        md[..4].copy_from_slice(&0xa92b_4efcu32.to_le_bytes());
        md[4..8].copy_from_slice(&1u32.to_le_bytes());
        for offset in [4096, capacity_bytes - (8 << 10)] {
            // Where it is, in sectors.
            md[144..152].copy_from_slice(&(offset / 512).to_le_bytes());
            let found = holding(capacity_bytes, offset, &md).unwrap();
            assert_eq!(found.describe(), "linux_raid_member", "{offset}");
        }
    }

    #[test]
    fn file_system_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let made = Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F"]).arg(file.path()).status().unwrap();
        assert!(made.success());
        let found = inspect_file(file.as_file(), 16 << 20).unwrap().unwrap();
        assert_eq!(found.describe(), "ext4");
    }
}
