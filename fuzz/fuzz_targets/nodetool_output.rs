//! The output of `nodetool`: any text is read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_systems::cassandra::nodetool::nodes_up;

fuzz_target!(|text: &str| {
    assert!(nodes_up(text) <= text.lines().count());
});
