//! Qualified names of served volumes.

/// `.internal` is reserved for private use, so it is nobody's domain.
const PREFIX: &str = "nqn.2025-11.internal.underlay";

/// The subsystem of a volume.
pub fn volume_nqn(pool: &str, volume: &str) -> String {
    format!("{PREFIX}:{pool}:{volume}")
}

/// Whether a subsystem is a volume of this name, of any pool.
pub fn is_volume(nqn: &str, volume: &str) -> bool {
    nqn.strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once(':')).is_some_and(|(_, name)| name == volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_recognised_by_end_of_name() {
        let nqn = volume_nqn("tank", "data");
        assert_eq!(nqn, "nqn.2025-11.internal.underlay:tank:data");
        assert!(is_volume(&nqn, "data") && !is_volume(&nqn, "ata") && !is_volume(&nqn, "tank"));
        assert!(!is_volume("nqn.2014-08.org.example:tank:data", "data"));
        assert!(crate::pool_file::check_nqn(&volume_nqn(&"p".repeat(40), &"v".repeat(40))).is_ok());
    }
}
