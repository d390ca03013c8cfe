//! Whether a device holds something: what file systems, volume managers and partition tables write at its start.

/// As much of a device's start as is looked at.
pub const HEAD_BYTES: usize = 128 << 10;

/// What the start of a device says that it holds; `None` when nothing is recognised.
pub fn recognise(head: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let found = [
        ("an XFS file system", has(0, b"XFSB")),
        ("an ext file system", has(0x438, &[0x53, 0xEF])),
        ("a Btrfs file system", has(0x1_0040, b"_BHRfS_M")),
        ("an F2FS file system", has(0x400, &[0x10, 0x20, 0xF5, 0xF2])),
        ("a bcachefs file system", has(0x1018, &BCACHE)),
        ("an NTFS file system", has(3, b"NTFS    ")),
        ("an exFAT file system", has(3, b"EXFAT   ")),
        ("a FAT file system", has(82, b"FAT32   ") || has(54, b"FAT16   ") || has(54, b"FAT12   ")),
        ("an ISO 9660 file system", has(0x8001, b"CD001")),
        ("a LUKS volume", has(0, b"LUKS\xba\xbe")),
        ("a member of an LVM volume group", (0..4).any(|sector| has(sector * 512, b"LABELONE"))),
        ("a member of a RAID", has(4096, &RAID) || has(0, &RAID)),
        ("a ZFS pool", zfs(head)),
        ("swap space", has(4086, b"SWAPSPACE2") || has(4086, b"SWAP-SPACE")),
        ("a partition table", has(512, b"EFI PART") || has(4096, b"EFI PART") || has(510, &[0x55, 0xAA])),
    ];
    found.into_iter().find(|(_, is)| *is).map(|(what, _)| what)
}

const RAID: [u8; 4] = 0xA92B_4EFCu32.to_le_bytes();
const BCACHE: [u8; 16] =
    [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];

/// ZFS writes its label in the first quarter mebibyte: its uberblocks begin at 128 KiB, its name-value pairs at 16 KiB.
fn zfs(head: &[u8]) -> bool {
    // An XDR name-value list with the word that every label has.
    head.get(0x4000..0x4400).is_some_and(|list| list.windows(9).any(|word| word == b"pool_guid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_device_holds_nothing() {
        assert_eq!(recognise(&[]), None);
        assert_eq!(recognise(&[0; HEAD_BYTES]), None);
        assert_eq!(recognise(b"XFS"), None);
    }

    #[test]
    fn each_is_recognised_at_its_place() {
        for (at, magic, what) in [
            (0usize, &b"XFSB"[..], "XFS"),
            (0x438, &[0x53, 0xEF], "ext"),
            (0x1_0040, b"_BHRfS_M", "Btrfs"),
            (512, b"LABELONE", "LVM"),
            (510, &[0x55, 0xAA], "partition table"),
            (4086, b"SWAPSPACE2", "swap"),
            (4096, &RAID, "RAID"),
        ] {
            let mut head = vec![0; HEAD_BYTES];
            head[at..at + magic.len()].copy_from_slice(magic);
            assert!(recognise(&head).is_some_and(|found| found.contains(what)), "{what}");
            // Cut in the middle of it, it is not read beyond the end.
            assert_eq!(recognise(&head[..at + magic.len() - 1]), None, "{what}");
        }
    }
}
