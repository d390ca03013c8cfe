//! The logs of Spark and the S3 gateway: any lines are read.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use underlay_systems::ceph::LoggedRequest;
use underlay_systems::spark::JobEvents;

fuzz_target!(|log: &[u8]| {
    let mut events = JobEvents::default();
    let mut requests = BTreeMap::new();
    let lines = log.split(|&byte| byte == b'\n');
    for line in lines.clone() {
        events.take(line);
        for logged in LoggedRequest::parse_line(line) {
            if let LoggedRequest::Request(request) = logged {
                request.count(&mut requests);
            }
        }
    }
    assert!(
        events.stages().iter().all(|stage| stage.tasks + stage.lost_tasks <= lines.clone().count() as u64)
    );
});
