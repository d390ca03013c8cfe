//! Scripts from outside: what they ask for is bounded in memory and in time.

use std::ops::RangeInclusive;
use std::path::Path;

use underlay_campaign::problem::CommandProblem;

use crate::script::{FaultScript, ScriptSetup, ScriptStep};
use crate::tree::DeviceTree;

const MAX_SCRIPT_BYTES: u64 = 4 << 20;
/// Each crash leaves threads behind until the process ends.
const STEPS: RangeInclusive<u64> = 0..=2000;
const MEMBERS: RangeInclusive<u64> = 1..=8;
/// 256 MiB of each member.
const EXTENTS: RangeInclusive<u64> = 1..=1024;
const VOLUMES: RangeInclusive<u64> = 1..=8;
/// 64 MiB.
const BLOCKS: RangeInclusive<u64> = 1..=16_384;
const DISK_KIB: RangeInclusive<u64> = 512..=65_536;
/// What a layer takes for its journals, with something to spare.
const LAYER_KIB: u64 = 320;
const FILES: RangeInclusive<u64> = 1..=64;
const SNAPSHOT_MIB: RangeInclusive<u64> = 0..=128;
/// Any step may write the snapshot anew.
const SNAPSHOTS_MIB: RangeInclusive<u64> = 0..=16_384;
/// A request is a buffer, and dozens are in flight at once.
const REQUEST_BLOCKS: RangeInclusive<u64> = 0..=4096;
/// Of all steps: a disk keeps whatever was not flushed.
const CHANGED_BLOCKS: RangeInclusive<u64> = 0..=65_536;
const PAUSE_US: RangeInclusive<u64> = 0..=3_600_000_000;
const TREE_MEMBERS: RangeInclusive<u64> = 2..=8;
const TREE_DISKS: RangeInclusive<u64> = 1..=8;
const TREE_LAYERS: RangeInclusive<u64> = 0..=4;

/// Reads a script and holds it to what can be played.
///
/// # Errors
/// [`CommandProblem::Mistake`]: where it is wrong, and what may stand there.
pub fn read(path: &Path) -> Result<FaultScript, CommandProblem> {
    let name = path.display();
    let mistake = |words: String| CommandProblem::Mistake(format!("{name}: {words}"));
    let text = underlay_files::read(path, MAX_SCRIPT_BYTES)
        .map_err(|error| mistake(format!("cannot be read: {error}")))?;
    parse(&text).map_err(mistake)
}

/// A script that can be played.
///
/// # Errors
/// Where it is wrong, and what may stand there.
pub fn parse(text: &[u8]) -> Result<FaultScript, String> {
    let script: FaultScript = serde_json::from_slice(text)
        .map_err(|error| format!("it is not a script: {error} (`show` prints one)"))?;
    check(&script)?;
    Ok(script)
}

fn within(key: &str, number: impl Into<u64>, allowed: &RangeInclusive<u64>) -> Result<(), String> {
    let number = number.into();
    if allowed.contains(&number) {
        return Ok(());
    }
    Err(format!("{key} is {number}; expected {} to {}", allowed.start(), allowed.end()))
}

/// # Errors
/// Which key is out of its bounds.
pub fn check(script: &FaultScript) -> Result<(), String> {
    match &script.setup {
        ScriptSetup::Volumes(volumes) => {
            within("setup.members", volumes.members, &MEMBERS)?;
            within("setup.extents", volumes.extents, &EXTENTS)?;
            within("the number of setup.volumes", volumes.volumes.len() as u64, &VOLUMES)?;
            for (index, volume) in volumes.volumes.iter().enumerate() {
                within(&format!("setup.volumes[{index}].blocks"), volume.blocks, &BLOCKS)?;
                if volume.mirror && volumes.members < 2 {
                    return Err(format!("setup.volumes[{index}].mirror needs 2 setup.members"));
                }
            }
        }
        ScriptSetup::Layers(layers) => {
            within("setup.blocks", layers.blocks, &BLOCKS)?;
            let levels = check_tree(&layers.tree)?;
            let disk_kib = (levels * LAYER_KIB).max(*DISK_KIB.start())..=*DISK_KIB.end();
            within("setup.disk_kib (under such a tree)", layers.disk_kib, &disk_kib)?;
        }
        ScriptSetup::Directory(directory) => {
            within("setup.files", directory.files, &FILES)?;
            check_tree(&directory.tree).map(drop)?;
        }
        ScriptSetup::Journal(journal) => {
            within("setup.snapshot_mib", journal.snapshot_mib, &SNAPSHOT_MIB)?;
            let all_mib = journal.snapshot_mib * script.steps.len() as u64;
            within("setup.snapshot_mib times the number of steps", all_mib, &SNAPSHOTS_MIB)?;
        }
    }
    check_steps(&script.steps)
}

/// How many layers there are on top of each other.
fn check_tree(tree: &DeviceTree) -> Result<u64, String> {
    let levels = layers(tree)?;
    within("the number of layers of setup.tree", levels, &TREE_LAYERS)?;
    within("the number of disks of setup.tree", tree.disks() as u64, &TREE_DISKS)?;
    Ok(levels)
}

fn layers(tree: &DeviceTree) -> Result<u64, String> {
    let (name, members) = match tree {
        DeviceTree::Disk => return Ok(0),
        DeviceTree::Stripe(members) => ("stripe", &members[..]),
        DeviceTree::Mirror(members) => ("mirror", &members[..]),
        DeviceTree::Compress(member) => return Ok(1 + layers(member)?),
        DeviceTree::ReadCache(members) | DeviceTree::WriteBack(members) => ("cache", &members[..]),
    };
    within(&format!("the number of members of a {name} in setup.tree"), members.len() as u64, &TREE_MEMBERS)?;
    members.iter().try_fold(1, |most, member| Ok(most.max(1 + layers(member)?)))
}

fn check_steps(steps: &[ScriptStep]) -> Result<(), String> {
    within("the number of steps", steps.len() as u64, &STEPS)?;
    let mut changed: u64 = 0;
    for (index, step) in steps.iter().enumerate() {
        let step_within = |key: &str, number: u64, allowed: &RangeInclusive<u64>| {
            within(&format!("steps[{index}].{key}"), number, allowed)
        };
        match *step {
            ScriptStep::Write { count, .. }
            | ScriptStep::Discard { count, .. }
            | ScriptStep::WriteFile { count, .. } => {
                step_within("count", count.into(), &REQUEST_BLOCKS)?;
                changed += u64::from(count);
            }
            ScriptStep::Read { count, .. } => step_within("count", count.into(), &REQUEST_BLOCKS)?,
            ScriptStep::Resize { blocks, .. } => step_within("blocks", blocks.into(), &BLOCKS)?,
            ScriptStep::Pause { us } => step_within("us", us, &PAUSE_US)?,
            // Their numbers are taken modulo what there is, or are cut to what makes sense.
            _ => {}
        }
    }
    within("the sum of the counts of what the steps change", changed, &CHANGED_BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{SimulationSubject, generate};

    const SUBJECTS: [SimulationSubject; 5] = [
        SimulationSubject::Pool,
        SimulationSubject::Remote,
        SimulationSubject::Layers,
        SimulationSubject::Directory,
        SimulationSubject::Journal,
    ];

    #[test]
    fn drawn_script_can_be_played() {
        for subject in SUBJECTS {
            for seed in 1..500 {
                let script = generate(seed, Some(subject));
                assert_eq!(check(&script), Ok(()), "{subject:?}, seed {seed}");
                let text = serde_json::to_string(&script).unwrap();
                assert_eq!(serde_json::from_str::<FaultScript>(&text).unwrap(), script);
            }
        }
    }

    #[test]
    fn test_scripts_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
        for entry in folder.read_dir().unwrap() {
            read(&entry.unwrap().path()).unwrap();
        }
    }

    fn said(setup: &str, steps: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        std::fs::write(&path, format!(r#"{{"seed": 1, "setup": {setup}, "steps": {steps}}}"#)).unwrap();
        read(&path).map_or_else(|problem| problem.to_string(), |_| "it is fine".into())
    }

    fn said_of_volumes(members: &str, blocks: &str, steps: &str) -> String {
        let volume = format!(r#"{{"blocks": {blocks}, "mirror": true, "compress": false}}"#);
        let setup = format!(
            r#"{{"subject": "volumes", "members": {members}, "extents": 6, "volumes": [{volume}], "is_remote": false,
            "has_host_memory": true, "forgets_failed_flush": false, "yield_every": 0}}"#
        );
        said(&setup, steps)
    }

    fn said_of_tree(tree: &str) -> String {
        let setup = format!(
            r#"{{"subject": "layers", "tree": {tree}, "blocks": 96, "disk_kib": 704, "yield_every": 0}}"#
        );
        said(&setup, "[]")
    }

    #[track_caller]
    fn assert_says(message: &str, words: &str) {
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn volumes_have_bounds() {
        assert_says(&said_of_volumes("2", "64", "[]"), "it is fine");
        for members in ["0", "9", "1000000000"] {
            let words = format!("setup.members is {members}; expected 1 to 8");
            assert_says(&said_of_volumes(members, "64", "[]"), &words);
        }
        for blocks in ["0", "4294967295"] {
            assert_says(&said_of_volumes("2", blocks, "[]"), "setup.volumes[0].blocks is ");
        }
        assert_says(&said_of_volumes("1", "64", "[]"), "setup.volumes[0].mirror needs 2 setup.members");
    }

    #[test]
    fn steps_have_bounds() {
        let message_of = |steps: &str| said_of_volumes("2", "64", steps);
        let resize = r#"["settle", {"resize": {"volume": 0, "blocks": 4294967295}}]"#;
        assert_says(&message_of(resize), "steps[1].blocks is 4294967295; expected 1 to 16384");
        let pause = r#"[{"pause": {"us": 18446744073709551615}}]"#;
        assert_says(&message_of(pause), "steps[0].us is 18446744073709551615; expected 0 to 3600000000");
        let write = r#"{"write": {"volume": 0, "block": 0, "count": 4096, "fua": false}}"#;
        assert_says(&message_of(&format!("[{write}]")), "it is fine");
        let many = vec![write; 17].join(",");
        assert_says(
            &message_of(&format!("[{many}]")),
            "the sum of the counts of what the steps change is 69632",
        );
        let many = vec![r#""settle""#; 2001].join(",");
        assert_says(&message_of(&format!("[{many}]")), "the number of steps is 2001");
    }

    #[test]
    fn trees_have_bounds() {
        assert_says(&said_of_tree(r#"{"stripe": ["disk", {"mirror": ["disk", "disk"]}]}"#), "it is fine");
        let words = "the number of members of a stripe in setup.tree is 0";
        assert_says(&said_of_tree(r#"{"stripe": []}"#), words);
        assert_says(&said_of_tree(r#"{"mirror": []}"#), "of a mirror in setup.tree is 0");
        assert_says(&said_of_tree(r#"{"mirror": ["disk"]}"#), "of a mirror in setup.tree is 1");
        let deep = format!(r#"{}"disk"{}"#, r#"{"compress": "#.repeat(40), "}".repeat(40));
        assert_says(&said_of_tree(&deep), "the number of layers of setup.tree is 40; expected 0 to 4");
        let eight = format!(r#"{{"mirror": [{}]}}"#, [r#""disk""#; 8].join(","));
        assert_says(
            &said_of_tree(&format!(r#"{{"stripe": [{eight}, "disk"]}}"#)),
            "disks of setup.tree is 9",
        );
    }

    #[test]
    fn other_subjects_have_bounds() {
        for files in ["0", "4294967295"] {
            let setup = format!(
                r#"{{"subject": "directory", "tree": "disk", "files": {files}, "forgets_failed_flush": false,
                "yield_every": 0}}"#
            );
            assert_says(&said(&setup, "[]"), "setup.files is ");
        }
        let setup =
            r#"{"subject": "journal", "snapshot_mib": 1000000, "answers_at_once": false, "yield_every": 0}"#;
        assert_says(&said(setup, "[]"), "setup.snapshot_mib is 1000000; expected 0 to 128");
        let setup = setup.replace("1000000", "128");
        let many = format!("[{}]", vec![r#""settle""#; 129].join(","));
        assert_says(&said(&setup, &many), "setup.snapshot_mib times the number of steps is 16512");
    }

    #[test]
    fn unknown_key_is_named() {
        let setup = r#"{"subject": "journal", "snapshot_mib": 1, "answers_at_once": false, "yield_every": 0, "x": 1}"#;
        assert_says(&said(setup, "[]"), "unknown field `x`");
        assert_says(&said_of_volumes("2", "64", r#"[{"pause": {"us": 1, "ms": 1}}]"#), "unknown field `ms`");
    }

    #[test]
    fn irregular_or_oversized_file_is_refused() {
        for path in ["/dev/zero", "/"] {
            assert_says(&read(Path::new(path)).unwrap_err().to_string(), "expected a regular file");
        }
        let long = tempfile::NamedTempFile::new().unwrap();
        long.as_file().set_len(MAX_SCRIPT_BYTES + 1).unwrap();
        assert_says(&read(long.path()).unwrap_err().to_string(), "longer than 4 MiB");
    }
}
