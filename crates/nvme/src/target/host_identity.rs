//! Who a host is.

use sha2::{Digest as _, Sha256};

/// A host, as it names itself when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    pub nqn: String,
    pub id: [u8; 16],
    /// Tells the initiators of one host from each other, where they say so; it stays the same when one of them
    /// reconnects.
    pub instance: Option<u64>,
}

impl HostIdentity {
    /// The same in every build: a host compares it with the one it got before a newer program replaced this one.
    pub(super) fn fingerprint(&self, nsid: u32) -> u32 {
        let mut hash = Sha256::new();
        hash.update(nsid.to_le_bytes());
        hash.update(self.id);
        // No instance, and one of each number, are different things.
        hash.update(self.instance.map_or(0u128, |instance| u128::from(instance) + 1).to_le_bytes());
        hash.update(self.nqn.as_bytes());
        let digest = hash.finalize();
        u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
    }

    pub(super) fn is_same_host(&self, other: &HostIdentity) -> bool {
        self.nqn == other.nqn && self.id == other.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_stable_over_builds() {
        let host = HostIdentity { nqn: "nqn.2014-08.org.example:a".into(), id: [5; 16], instance: Some(6) };
        assert_eq!(host.fingerprint(1), FINGERPRINT);
        let others = [
            HostIdentity { instance: None, ..host.clone() },
            HostIdentity { instance: Some(7), ..host.clone() },
            HostIdentity { id: [4; 16], ..host.clone() },
            HostIdentity { nqn: "nqn.2014-08.org.example:b".into(), ..host.clone() },
        ];
        assert!(others.iter().all(|other| other.fingerprint(1) != FINGERPRINT));
        assert_ne!(host.fingerprint(2), FINGERPRINT);
    }

    const FINGERPRINT: u32 = 0x5b65_a856;
}
