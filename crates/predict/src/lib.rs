//! Predicts unmeasured cells from measured ones, in virtual time, with the same models that pace devices.
//!
//! Its inputs are records and media. It starts nothing and reads no files and no clock, and the same question always
//! has the same answer.

#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod advice;
pub mod attribution;
pub mod cache;
pub mod calibration;
pub mod cell;
mod cpu;
pub mod demand;
pub mod device_network;
mod layers;
pub mod outcome;
pub mod refusal;
pub mod simulation;
pub mod validation;

pub use calibration::{Calibration, CellPrediction, LeftOut, PredictedMetric, QuestionChange};
pub use cell::{CellPoint, DeviceJob, MeasuredCell, PAST_MEMORY};
pub use cpu::divide_cpu_time;
pub use refusal::PredictionRefusal;
pub use underlay_record::EstimatedValue;
