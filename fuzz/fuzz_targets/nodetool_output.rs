//! What `nodetool` prints: whatever text comes is read, and every figure is a number.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_systems::cassandra::nodetool::{compaction_figures, nodes_up};

fuzz_target!(|text: &str| {
    assert!(compaction_figures(text).values().all(|figure| figure.is_finite()));
    assert!(nodes_up(text) <= text.lines().count());
});
