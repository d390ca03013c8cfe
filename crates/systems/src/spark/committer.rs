//! The ways in which a job's output is committed, by the names of studies, and what chooses each in a session.

use std::collections::BTreeMap;

use crate::setting::{OneOf, SettingKind as _};

/// How what tasks have written becomes the output of their job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputCommitter {
    /// Hadoop's own: tasks rename into the job's directory, and the job into its place.
    FileV1,
    /// Tasks rename into the output's place themselves.
    FileV2,
    /// S3A's staging committer: files wait on the worker's disk and are uploaded when their task commits; the job
    /// completes the uploads.
    Directory,
    /// Tasks upload while they write, and the job completes the uploads.
    Magic,
    /// None: rows go to a table of Apache Iceberg, and its catalog has an entry changed.
    Iceberg,
}

pub(super) const COMMITTERS: OneOf<OutputCommitter> = OneOf(&[
    ("file-v1", OutputCommitter::FileV1),
    ("file-v2", OutputCommitter::FileV2),
    ("directory", OutputCommitter::Directory),
    ("magic", OutputCommitter::Magic),
    ("iceberg", OutputCommitter::Iceberg),
]);

impl OutputCommitter {
    /// As studies name it.
    pub fn name(self) -> String {
        COMMITTERS.show(&self)
    }

    /// As S3A names it in its settings.
    fn own_name(self) -> &'static str {
        match self {
            OutputCommitter::FileV1 | OutputCommitter::FileV2 | OutputCommitter::Iceberg => "file",
            OutputCommitter::Directory => "directory",
            OutputCommitter::Magic => "magic",
        }
    }

    /// The settings that choose it in a session.
    pub(super) fn settings(self) -> BTreeMap<&'static str, &'static str> {
        let version = if self == OutputCommitter::FileV2 { "2" } else { "1" };
        [
            ("fs.s3a.committer.name", self.own_name()),
            ("mapreduce.fileoutputcommitter.algorithm.version", version),
        ]
        .into()
    }
}
