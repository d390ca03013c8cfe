//! Which keys belong together, and which of several gateways is to have them.

use sha2::{Digest as _, Sha256};

/// All keys of all buckets fall into so many slots.
pub(crate) const SLOTS: u16 = 256;

/// The slot of a key.
pub(crate) fn slot_of(bucket: &str, key: &str, segments: usize) -> u16 {
    let beginning = match segments {
        0 => key,
        count => match key.match_indices('/').nth(count - 1) {
            Some((end, _)) => &key[..end],
            None => key,
        },
    };
    let mut hash = Sha256::new();
    hash.update(bucket.as_bytes());
    hash.update([0]);
    hash.update(beginning.as_bytes());
    let digest = hash.finalize();
    u16::from_be_bytes([digest[0], digest[1]]) % SLOTS
}

/// Which of these members a slot should be with: rendezvous hashing, so that a member that comes or goes moves only its
/// own share.
pub(crate) fn chosen<'a>(members: impl Iterator<Item = &'a str>, slot: u16) -> Option<&'a str> {
    let weight = |member: &str| {
        let mut hash = Sha256::new();
        hash.update(slot.to_be_bytes());
        hash.update(member.as_bytes());
        let digest = hash.finalize();
        <[u8; 8]>::try_from(&digest[..8]).map_or(0, u64::from_be_bytes)
    };
    members.max_by_key(|member| (weight(member), *member))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[test]
    fn keys_of_one_beginning_are_together() {
        let slot = |key: &str| slot_of("lake", key, 1);
        assert_eq!(slot("t/a"), slot("t/_temporary/0/b"));
        assert_eq!(slot("t"), slot("t/"));
        assert_ne!(slot_of("lake", "t/a", 0), slot_of("lake", "t/b", 0));
        assert_eq!(slot_of("lake", "t/u/a", 2), slot_of("lake", "t/u/b/c", 2));
        // They spread.
        let used: BTreeSet<u16> = (0..5000).map(|index| slot(&format!("dir{index}/x"))).collect();
        assert_eq!(used.len(), usize::from(SLOTS));
    }

    #[test]
    fn new_member_moves_only_its_share() {
        let three = ["a", "b", "c"];
        let two = ["a", "b"];
        let mut counts = HashMap::new();
        for slot in 0..SLOTS {
            let (before, after) =
                (chosen(two.into_iter(), slot).unwrap(), chosen(three.into_iter(), slot).unwrap());
            assert!(before == after || after == "c");
            *counts.entry(after).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (50..130).contains(count)), "{counts:?}");
        assert_eq!(chosen([].into_iter(), 1), None);
    }
}
