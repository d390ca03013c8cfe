//! The way from one operation to the next allocates nothing: a generator that does measures its allocator too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use underlay_workload::{NullClient, OperationMix, RunHandle, RunSpec, YcsbProperties, run};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn operations_allocate_nothing() {
    let mut properties = YcsbProperties::new();
    for argument in [
        "recordcount=100000",
        "readproportion=1",
        "updateproportion=1",
        "insertproportion=1",
        "scanproportion=1",
        "readmodifywriteproportion=1",
        "deleteproportion=1",
        "fieldlengthdistribution=uniform",
    ] {
        properties.add_argument(argument).unwrap();
    }
    let workload = Arc::new(properties.workload().unwrap());
    for distribution in underlay_workload::RequestDistribution::ALL {
        let mut workload = underlay_workload::CoreWorkload::clone(&workload);
        workload.request_distribution = Some(distribution);
        let workload = Arc::new(workload);
        let spent = |mix: OperationMix, rate_per_s, operations| {
            let spec = RunSpec {
                threads: 2,
                rate_per_s,
                duration: Duration::MAX,
                operation_limit: Some(operations),
                // Few intervals, however long this takes: each has its own tables.
                series_intervals: 1,
                ..RunSpec::new(Arc::clone(&workload), mix)
            };
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            run(&spec, &|_| Ok(Box::new(NullClient)), &RunHandle::new()).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        // Threads, tables and intervals cost several hundred, regardless of the number of operations. Of each kind
        // there are more than 3,000.
        for (mix, rate) in [
            (workload.mix(), None),
            (workload.mix(), Some(1e9)),
            (OperationMix::parse("load").unwrap(), None),
        ] {
            let allocations = spent(mix.clone(), rate, 20_000);
            assert!(
                allocations < 3_000,
                "{mix} {distribution}: {allocations} allocations for 20,000 operations"
            );
        }
    }
}
