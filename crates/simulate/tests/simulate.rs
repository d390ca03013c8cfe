//! The simulator in small: every script that once failed, a fixed number of seeds, and whether it repeats itself and
//! finds what is planted. `make simulate` takes an hour.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underlay_campaign::ScriptReport;
use underlay_campaign::campaign::{CampaignPlan, CampaignSummary, run};
use underlay_campaign::player::{PlayerOptions, ScriptPlayer};
use underlay_campaign::problem::CommandProblem;
use underlay_simulate::script::{FaultScript, SimulationSubject, generate};
use underlay_sync::planted::PlantedBug;

/// Of each subject.
const SEEDS: &[(SimulationSubject, u64)] = &[
    (SimulationSubject::Pool, 150),
    (SimulationSubject::Remote, 60),
    (SimulationSubject::Layers, 400),
    (SimulationSubject::Directory, 600),
    (SimulationSubject::Journal, 40),
];

fn player(bug: Option<PlantedBug>) -> Result<ScriptPlayer<FaultScript>, CommandProblem> {
    let program = Path::new(env!("CARGO_BIN_EXE_underlay-simulate"));
    ScriptPlayer::start_program(
        program,
        &PlayerOptions { bug: bug.map(PlantedBug::name), ..PlayerOptions::default() },
    )
}

fn campaign(subject: SimulationSubject, seeds: u64, bug: Option<PlantedBug>) -> CampaignSummary<FaultScript> {
    let plan =
        CampaignPlan { first_seed: 1, seeds, time: Duration::from_secs(600), jobs: 2, stop_at_failure: true };
    let generate = |seed| generate(seed, Some(subject));
    run(&plan, || player(bug), generate, |_, _, _| Ok(())).expect("processes can be had")
}

fn scripts() -> BTreeMap<PathBuf, FaultScript> {
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
fn recorded_failures_no_longer_fail() {
    let mut player = player(None).unwrap();
    let scripts = scripts();
    assert!(!scripts.is_empty());
    for (path, script) in scripts {
        let report = player.play(&script).unwrap();
        assert_eq!(report.failure, None, "{}", path.display());
    }
}

#[test]
fn fixed_seeds_pass() {
    for (subject, seeds) in SEEDS {
        let summary = campaign(*subject, *seeds, None);
        let failures: Vec<(u64, Option<String>)> =
            summary.failures.into_iter().map(|(script, report)| (script.seed, report.failure)).collect();
        assert_eq!(failures, [], "{subject:?}");
        assert!(summary.seeds == *seeds && summary.crashes > 0 && summary.acknowledged > 0);
    }
}

#[test]
fn seed_repeats_to_last_step() {
    for subject in [
        SimulationSubject::Pool,
        SimulationSubject::Remote,
        SimulationSubject::Layers,
        SimulationSubject::Directory,
        SimulationSubject::Journal,
    ] {
        for seed in [3, 4, 5] {
            let script = generate(seed, Some(subject));
            let play = || -> ScriptReport { player(None).unwrap().play(&script).unwrap() };
            let (first, second) = (play(), play());
            assert_eq!(first, second, "{subject:?}, seed {seed}");
        }
    }
}

/// `make simulate-proof` plants all of them.
#[test]
fn planted_bug_is_found() {
    let some = [
        (PlantedBug::StaleCopyServed, SimulationSubject::Pool),
        (PlantedBug::CommitNotForced, SimulationSubject::Journal),
        (PlantedBug::OneMemberFlushed, SimulationSubject::Layers),
        (PlantedBug::ReplacedUsedEarly, SimulationSubject::Layers),
        (PlantedBug::NamesBeforeData, SimulationSubject::Directory),
        (PlantedBug::CommitOutcomeDropped, SimulationSubject::Directory),
        (PlantedBug::NothingRepeated, SimulationSubject::Remote),
    ];
    for (bug, subject) in some {
        let summary = campaign(subject, 400, Some(bug));
        assert!(!summary.failures.is_empty(), "{bug:?} was not found in {} seeds", summary.seeds);
    }
}
