//! The die against one that goes through time tick by tick.

use proptest::prelude::*;

use super::*;

const RULES: SuspendRules = SuspendRules { program_ns: 60, erase_ns: 300, suspensions: 2 };

fn read(die: &mut OrderedDie, now_ns: u64) -> u64 {
    let mut plane_free_ns = die.read_free_ns;
    die.read(now_ns, 70, RULES, &mut plane_free_ns)
}

#[test]
fn read_of_programming_die_waits_until_it_is_suspended() {
    let mut die = OrderedDie::default();
    die.append(DieWork::Program, 0, 0, 700, RULES);
    assert_eq!(read(&mut die, 100), 230);
    assert_eq!(die.takes_program_ns(700), 70, "the program ends later by the read");
    assert_eq!(read(&mut die, 200), 300, "the next one finds it suspended");
    assert_eq!(read(&mut die, 400), 530, "it has gone on meanwhile");
}

#[test]
fn read_after_last_suspension_waits_for_the_end() {
    let mut die = OrderedDie::default();
    die.append(DieWork::Program, 0, 0, 700, RULES);
    die.append(DieWork::Erase, 0, 0, 5000, RULES);
    assert_eq!((read(&mut die, 100), read(&mut die, 300)), (230, 430));
    // Twice 70 later than without reads, and not suspended a third time; then the read goes before the erase.
    assert_eq!(read(&mut die, 500), 910);
    assert_eq!(read(&mut die, 1000), 1370, "the erase has suspensions of its own");
}

#[test]
fn read_of_copying_die_waits_for_the_whole_run() {
    let mut die = OrderedDie::default();
    die.append(DieWork::Copy, 0, 0, 400, RULES);
    die.append(DieWork::Program, 0, 0, 700, RULES);
    assert_eq!(read(&mut die, 10), 470);
    assert_eq!(die.takes_program_ns(0), 1170);
}

#[test]
fn planes_of_a_suspended_die_read_side_by_side() {
    let mut die = OrderedDie::default();
    die.append(DieWork::Program, 0, 0, 700, RULES);
    let (mut first, mut second) = (0, 0);
    assert_eq!(die.read(100, 70, RULES, &mut first), 230);
    assert_eq!(die.read(110, 70, RULES, &mut second), 230, "it waits for the same suspension");
    assert_eq!(die.read(120, 70, RULES, &mut second), 300);
    assert_eq!(die.takes_program_ns(0), 840, "the program waits for both");
}

#[derive(Clone, Copy, Debug)]
enum DieCall {
    Read(u64),
    Give(DieWork, u64),
}

/// A die in steps of a nanosecond.
#[derive(Default)]
struct TickDie {
    works: VecDeque<(DieWork, u64, u32)>,
    has_begun: bool,
    waiting: VecDeque<(usize, u64)>,
    reading: Option<(usize, u64)>,
    /// Until the read that waits first can begin.
    wait_ns: u64,
}

impl TickDie {
    fn call(&mut self, number: usize, call: DieCall, rules: SuspendRules) {
        match call {
            DieCall::Give(work, span_ns) => {
                let suspensions = if work == DieWork::Copy { 0 } else { rules.suspensions };
                self.works.push_back((work, span_ns, suspensions));
            }
            DieCall::Read(span_ns) => {
                let is_first = self.waiting.is_empty() && self.reading.is_none();
                self.waiting.push_back((number, span_ns));
                if is_first {
                    self.wait_ns = match self.works.front_mut().filter(|_| self.has_begun) {
                        Some((work, left_ns, suspensions)) => {
                            let limit_ns =
                                if *work == DieWork::Erase { rules.erase_ns } else { rules.program_ns };
                            if *suspensions > 0 && limit_ns < *left_ns {
                                *suspensions -= 1;
                                limit_ns
                            } else {
                                *left_ns
                            }
                        }
                        None => 0,
                    };
                }
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.works.front().is_some_and(|(_, left_ns, _)| *left_ns == 0) {
            self.works.pop_front();
            self.has_begun = false;
        }
        if self.reading.is_none() && self.wait_ns == 0 {
            self.reading = self.waiting.pop_front();
        }
        if self.reading.is_none() && self.waiting.is_empty() && !self.works.is_empty() {
            self.has_begun = true;
        }
    }

    /// One nanosecond; which read is over then.
    fn tick(&mut self) -> Option<usize> {
        let mut over = None;
        if let Some((number, left_ns)) = &mut self.reading {
            *left_ns -= 1;
            if *left_ns == 0 {
                over = Some(*number);
                self.reading = None;
            }
        } else if let Some((_, left_ns, _)) = self.works.front_mut() {
            *left_ns -= 1;
            self.wait_ns = self.wait_ns.saturating_sub(1);
        }
        self.settle();
        over
    }
}

fn calls() -> impl Strategy<Value = Vec<(u64, DieCall)>> {
    let work = prop_oneof![Just(DieWork::Program), Just(DieWork::Erase), Just(DieWork::Copy)];
    let call = prop_oneof![
        3 => (1..30u64).prop_map(DieCall::Read),
        2 => (work, 1..120u64).prop_map(|(work, span_ns)| DieCall::Give(work, span_ns)),
    ];
    prop::collection::vec((0..60u64, call), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn die_under_any_calls_answers_as_in_ticks(
        calls in calls(), program_ns in 0..20u64, erase_ns in 0..60u64, suspensions in 0..4u32
    ) {
        let rules = SuspendRules { program_ns, erase_ns, suspensions };
        let (mut die, mut ticking) = (OrderedDie::default(), TickDie::default());
        let (mut ends, mut expected) = (vec![0; calls.len()], vec![0; calls.len()]);
        let (mut now_ns, mut busy_ns, mut plane_free_ns) = (0, 0, 0);
        for (number, (gap_ns, call)) in calls.iter().copied().enumerate() {
            for _ in 0..gap_ns {
                now_ns += 1;
                if let Some(over) = ticking.tick() {
                    expected[over] = now_ns;
                }
            }
            ticking.call(number, call, rules);
            match call {
                DieCall::Read(span_ns) => {
                    ends[number] = die.read(now_ns, span_ns, rules, &mut plane_free_ns);
                    prop_assert!(ends[number] >= now_ns + span_ns, "a read takes its time");
                    busy_ns += span_ns;
                }
                DieCall::Give(work, span_ns) => {
                    die.append(work, now_ns, now_ns, span_ns, rules);
                    busy_ns += span_ns;
                }
            }
        }
        let last_call_ns = now_ns;
        while ticking.reading.is_some() || !ticking.waiting.is_empty() || !ticking.works.is_empty() {
            now_ns += 1;
            if let Some(over) = ticking.tick() {
                expected[over] = now_ns;
            }
        }
        prop_assert_eq!(&ends, &expected);
        // Nothing is lost, and the die rests only when it has nothing to do.
        let end_ns = ends.iter().copied().max().unwrap_or(0).max(die.takes_program_ns(0));
        prop_assert!(end_ns >= busy_ns);
        prop_assert_eq!(end_ns.max(last_call_ns), now_ns);
    }
}
