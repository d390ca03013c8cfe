//! Parses the output of `nodetool`, whose format Cassandra does not guarantee.

/// How many nodes are up and normal, according to `nodetool status`.
pub fn nodes_up(output: &str) -> usize {
    output.lines().filter(|line| line.split_whitespace().next() == Some("UN")).count()
}

/// Whether the node of this address is up and normal, according to `nodetool status`.
pub(super) fn is_up(output: &str, address: &str) -> bool {
    output.lines().any(|line| line.split_whitespace().take(2).eq(["UN", address]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_that_are_up_and_normal_count() {
        let output = "Datacenter: datacenter1\n=======================\nStatus=Up/Down\n|/ State=Normal/Leaving\n\
                      --  Address     Load  Tokens\nUN  127.0.0.1   1 KiB  16\nDN  127.0.0.2   ?  16\nUJ  127.0.0.3  ?  16\n";
        assert_eq!(nodes_up(output), 1);
        assert!(is_up(output, "127.0.0.1") && !is_up(output, "127.0.0.2") && !is_up(output, "127.0.0.4"));
    }
}
