//! Jobs of fio: any text ends in a job that runs in slow motion, or in mistakes at their lines; and what fio printed in figures or in words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use underlay_study::fio_job::FioJob;
use underlay_systems::benchmark::fio::{
    doubts, doubts_of_job, failure_in, figures_of, mistakes, passes_the_page_cache, runs_fio, slowed,
};

fuzz_target!(|input: &str| {
    // The job, and behind a line of its own what fio printed.
    let (job, printed) = input.split_once("\n---\n").unwrap_or((input, input));
    for factor in [None, Some(1.0), Some(4.0), Some(48.0), Some(1.5)] {
        let found = mistakes(job, factor);
        assert!(
            found
                .iter()
                .all(|mistake| job.get(mistake.span.clone()).is_some() && !mistake.message.is_empty())
        );
        if let Some(factor) = factor.filter(|_| found.is_empty()) {
            let slow = slowed(job, factor).expect("no mistake was found");
            // Names and files are as they were.
            assert!(mistakes(&slow, None).is_empty(), "{slow}");
            assert_eq!(slowed(job, 1.0).as_deref(), Ok(job));
        }
    }
    let _ = FioJob::parse(job);
    let _ = passes_the_page_cache(job);
    assert!(doubts(job).iter().all(|doubt| !doubt.message.is_empty() && !doubt.advice.is_empty()));
    let _ = runs_fio(job);
    for (span, doubt) in doubts_of_job(job) {
        assert!(job.get(span).is_some() && !doubt.message.is_empty());
    }
    let _ = failure_in(printed);
    if let Ok(taken) = figures_of(printed, job) {
        assert!(!taken.figures.is_empty());
        assert!(taken.figures.iter().all(|figure| figure.value.is_finite()));
    }
});
