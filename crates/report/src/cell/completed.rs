//! The results of repetitions, from their records alone.

use underlay_record::{BenchmarkRecord, CellStatus, CertificateVerdict, JobRecord, RunRecord};

/// The job of a record that completed, if it took time.
pub(crate) fn job_of(record: &RunRecord) -> Option<&JobRecord> {
    let job = record.job.as_ref().filter(|_| record.status == CellStatus::Completed)?;
    (job.duration_s.is_finite() && job.duration_s > 0.0).then_some(job)
}

/// The benchmark of a record that completed, if it has a figure.
pub(crate) fn benchmark_of(record: &RunRecord) -> Option<&BenchmarkRecord> {
    let benchmark = record.benchmark.as_ref().filter(|_| record.status == CellStatus::Completed)?;
    (!benchmark.figures.is_empty()).then_some(benchmark)
}

/// The worst verdict on a cell's repetitions; none when none carries a certificate.
pub(crate) fn worst_verdict(records: &[&RunRecord]) -> Option<CertificateVerdict> {
    let verdicts: Vec<CertificateVerdict> = records.iter().filter_map(|record| record.verdict()).collect();
    [
        CertificateVerdict::Disturbed,
        CertificateVerdict::Doubtful,
        CertificateVerdict::RealStorage,
        CertificateVerdict::Faithful,
    ]
    .into_iter()
    .find(|verdict| verdicts.contains(verdict))
}
