//! Random steps and faults, held against what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::fake::Fate;
use super::gateway::{Gateway, Site};
use crate::placement::SLOTS;

const NAMES: [&str; 3] = ["a", "b", "c"];
const KEYS: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(usize),
    Put(usize, usize),
    Get(usize, usize),
    Flush(usize),
    /// The fate of the next transactions about slots.
    Faults(Fate, usize),
    CarryOutLate,
    Lapse(usize),
    Kill(usize),
    /// Starts it, or gets it another lease.
    Start(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let gateway = 0..NAMES.len();
    let fate = prop_oneof![3 => Just(Fate::Late), 1 => Just(Fate::Lost), 1 => Just(Fate::Done)];
    let step = prop_oneof![
        8 => gateway.clone().prop_map(Step::Pass),
        6 => (gateway.clone(), 0..KEYS).prop_map(|(gateway, key)| Step::Put(gateway, key)),
        3 => (gateway.clone(), 0..KEYS).prop_map(|(gateway, key)| Step::Get(gateway, key)),
        3 => gateway.clone().prop_map(Step::Flush),
        4 => (fate, 1..3_usize).prop_map(|(fate, count)| Step::Faults(fate, count)),
        3 => Just(Step::CarryOutLate),
        1 => gateway.clone().prop_map(Step::Lapse),
        1 => gateway.clone().prop_map(Step::Kill),
        3 => gateway.prop_map(Step::Start),
    ];
    prop::collection::vec(step, 10..50)
}

fn key(index: usize) -> String {
    format!("t{index}/x")
}

/// A key's possible states: the last acknowledged one, and later ones with an unknown outcome.
type Possible = BTreeMap<usize, BTreeSet<Option<String>>>;

async fn compare(gateway: &Gateway, index: usize, possible: &Possible) {
    if let Ok(found) = gateway.get(&key(index)).await {
        assert!(possible[&index].contains(&found), "{}: {found:?} of {:?}", key(index), possible[&index]);
    }
}

async fn run(steps: &[Step]) {
    let site = Site::new();
    let mut gateways: [Option<Gateway>; 3] = [None, None, None];
    let mut possible: Possible = (0..KEYS).map(|index| (index, BTreeSet::from([None]))).collect();
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Pass(index) => {
                if let Some(gateway) = &mut gateways[index] {
                    let _ = gateway.control.pass().await;
                }
            }
            Step::Put(index, key_at) => {
                if let Some(gateway) = &mut gateways[index] {
                    let value = Some(format!("value {number}"));
                    let of_key = possible.get_mut(&key_at).unwrap();
                    match gateway.put(&key(key_at), value.as_deref().unwrap()).await {
                        true => *of_key = BTreeSet::from([value]),
                        false => drop(of_key.insert(value)),
                    }
                }
            }
            Step::Get(index, key_at) => {
                if let Some(gateway) = &gateways[index] {
                    compare(gateway, key_at, &possible).await;
                }
            }
            Step::Flush(index) => {
                if let Some(gateway) = &gateways[index] {
                    gateway.hasten();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            Step::Faults(fate, count) => site.etcd.will(&vec![fate; count]),
            Step::CarryOutLate => site.etcd.carry_out_late(),
            Step::Lapse(index) => {
                if let Some(gateway) = &gateways[index] {
                    site.lapse(gateway);
                }
            }
            Step::Kill(index) => {
                if let Some(gateway) = gateways[index].take() {
                    site.kill(gateway);
                }
            }
            Step::Start(index) => start(&site, &mut gateways[index], NAMES[index]).await,
        }
        let running: Vec<&Gateway> = gateways.iter().flatten().collect();
        site.check(&running);
    }
    // No faults any more, and everybody comes back: everything is there, once.
    site.etcd.will(&[]);
    for (gateway, name) in gateways.iter_mut().zip(NAMES) {
        start(&site, gateway, name).await;
    }
    site.etcd.carry_out_late();
    let mut all: Vec<&mut Gateway> = gateways.iter_mut().flatten().collect();
    Site::settle(&mut all).await;
    let served: usize = all.iter().map(|gateway| gateway.served()).sum();
    assert_eq!(served, SLOTS as usize);
    for index in 0..KEYS {
        let mut answers = 0;
        for gateway in &all {
            compare(gateway, index, &possible).await;
            answers += usize::from(gateway.get(&key(index)).await.is_ok());
        }
        assert_eq!(answers, 1, "{}", key(index));
    }
}

async fn start(site: &Site, gateway: &mut Option<Gateway>, name: &str) {
    match gateway {
        Some(gateway) if gateway.is_registered() => {}
        Some(gateway) => gateway.register().await.unwrap(),
        None => *gateway = Some(site.start(name).await.unwrap()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_lose_nothing_and_share_no_slot(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(run(&steps));
    }
}
