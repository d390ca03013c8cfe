//! What coordinator and worker say to each other.

use serde::{Deserialize, Serialize};
use underlay_record::Measured;

use crate::job::Job;
use crate::particulars::SentParticulars;

/// A worker's first bytes, before any frame. Another number would be another way of speaking.
pub const PREFACE: [u8; 18] = *b"underlay-worker 1\n";

/// A worker's first message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: String,
    pub cores: u32,
    /// Another coordinator is there: nothing else will be answered.
    pub is_taken: bool,
}

/// What a coordinator asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// What does your clock say?
    Time,
    /// Connect to the system, and wait.
    Prepare(Box<Job>),
    /// Begin at this instant of your clock.
    Start {
        at_ns: u64,
    },
    Report,
    /// Hand over what was measured.
    Collect,
    Stop,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Time { now_ns: u64 },
    Done,
    Report(Report),
    Measured(Box<Part>),
    Failed(String),
}

impl Answer {
    pub(crate) fn in_words(&self) -> &'static str {
        match self {
            Answer::Time { .. } => "a time",
            Answer::Done => "that it is done",
            Answer::Report(_) => "a report",
            Answer::Measured(_) => "a measurement",
            Answer::Failed(_) => "that it failed",
        }
    }
}

/// How far a worker is, or all of them are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Answered since the run began, warm-up included.
    pub operations: u64,
    pub errors: u64,
    /// Over the last second.
    pub throughput_per_s: f64,
    /// Over the last second; of several workers, the highest.
    pub p99_us: f64,
    pub has_ended: bool,
}

impl Report {
    /// With those of another worker.
    pub fn add(&mut self, other: &Report) {
        self.operations = self.operations.saturating_add(other.operations);
        self.errors = self.errors.saturating_add(other.errors);
        self.throughput_per_s += other.throughput_per_s;
        self.p99_us = self.p99_us.max(other.p99_us);
        self.has_ended &= other.has_ended;
    }
}

/// What a worker brings back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub measured: Measured,
    pub particulars: SentParticulars,
    pub unstarted: u64,
    pub reconnections: u32,
    pub lost_threads: u32,
    /// How much later than it was told its threads were sent off, by its own clock.
    pub start_lateness_ns: u64,
}
