//! The simulator in small: every script that once failed, a fixed number of seeds, and whether it repeats itself and finds
//! what is planted. `make simulate` takes an hour.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use underlay_simulate::Report;
use underlay_simulate::campaign::{Plan, Summary, run};
use underlay_simulate::child::Player;
use underlay_simulate::problem::Problem;
use underlay_simulate::script::{Script, Subject, generate};
use underlay_sync::planted::Bug;

/// Of each subject.
const SEEDS: &[(Subject, u64)] = &[
    (Subject::Pool, 150),
    (Subject::Remote, 60),
    (Subject::Layers, 400),
    (Subject::Directory, 600),
    (Subject::Journal, 40),
];

fn player(bug: Option<&str>) -> Result<Player, Problem> {
    let program = Path::new(env!("CARGO_BIN_EXE_underlay-simulate"));
    Player::start_program(program, bug, Stdio::null())
}

fn campaign(subject: Subject, seeds: u64, bug: Option<Bug>) -> Summary {
    let plan = Plan {
        first_seed: 1,
        seeds,
        time: Duration::from_secs(600),
        jobs: 2,
        subject: Some(subject),
        bug: bug.map(Bug::name),
        stop_at_failure: true,
    };
    run(&plan, player, |_, _, _| Ok(())).expect("processes can be had")
}

fn scripts() -> BTreeMap<PathBuf, Script> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let read = |path: PathBuf| {
        let text = std::fs::read(&path).expect("a script can be read");
        let script = serde_json::from_slice(&text);
        let script = script.unwrap_or_else(|error| panic!("{} is no script: {error}", path.display()));
        (path, script)
    };
    let entries = std::fs::read_dir(folder).expect("there are scripts");
    entries.map(|entry| read(entry.expect("an entry").path())).collect()
}

/// Each was shortened from a seed that found a fault, and bears its name.
#[test]
fn what_once_failed_fails_no_more() {
    let mut player = player(None).unwrap();
    let scripts = scripts();
    assert!(!scripts.is_empty());
    for (path, script) in scripts {
        let report = player.play(&script).unwrap();
        assert_eq!(report.failure, None, "{}", path.display());
    }
}

#[test]
fn a_fixed_number_of_seeds_passes() {
    for (subject, seeds) in SEEDS {
        let summary = campaign(*subject, *seeds, None);
        let failures: Vec<(u64, Option<String>)> =
            summary.failures.into_iter().map(|(script, report)| (script.seed, report.failure)).collect();
        assert_eq!(failures, [], "{subject:?}");
        assert!(summary.seeds == *seeds && summary.crashes > 0 && summary.acknowledged > 0);
    }
}

#[test]
fn a_seed_repeats_itself_to_the_last_turn() {
    for subject in [Subject::Pool, Subject::Remote, Subject::Layers, Subject::Directory, Subject::Journal] {
        for seed in [3, 4, 5] {
            let script = generate(seed, Some(subject));
            let play = || -> Report { player(None).unwrap().play(&script).unwrap() };
            let (first, second) = (play(), play());
            assert_eq!(first, second, "{subject:?}, seed {seed}");
        }
    }
}

/// `make simulate-proof` plants all of them.
#[test]
fn what_is_planted_is_found() {
    let some = [
        (Bug::StaleCopyServed, Subject::Pool),
        (Bug::CommitNotForced, Subject::Journal),
        (Bug::OneMemberFlushed, Subject::Layers),
        (Bug::ReplacedUsedEarly, Subject::Layers),
        (Bug::NamesBeforeData, Subject::Directory),
        (Bug::CommitOutcomeDropped, Subject::Directory),
        (Bug::NothingRepeated, Subject::Remote),
    ];
    for (bug, subject) in some {
        let summary = campaign(subject, 400, Some(bug));
        assert!(!summary.failures.is_empty(), "{bug:?} was not found in {} seeds", summary.seeds);
    }
}
