//! What a system says that it consists of, held against the one that runs.

use underlay_systems::parts::SystemPart;
use underlay_systems::system::RunningSystem;

/// Every node is a part, every part is a process or more, a part's services are parts too, and stored data has a
/// directory.
pub(crate) fn hold(parts: &[SystemPart], running: &dyn RunningSystem) {
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    assert!(!names.is_empty(), "it tells of no parts");
    let mut different = names.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), names.len(), "{names:?}");
    let nodes = running.nodes().map_or_else(Vec::new, |nodes| nodes.list().unwrap());
    for node in nodes {
        assert!(names.contains(&node.name.as_str()), "{} is none of {names:?}", node.name);
    }
    for part in parts {
        assert!(part.uses.iter().all(|used| names.contains(&used.as_str())), "{part:?}");
        assert!(part.keeps.iter().all(|(_, directory)| directory.is_dir()), "{part:?}");
    }
    let processes = running.processes().len();
    assert!(processes >= parts.len(), "{processes} processes are {names:?}");
}
