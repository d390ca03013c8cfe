//! Predictions beside simulated runs: one program, so that the crate is linked once.

mod advice;
mod calibration;
mod jobs;
mod layers;
mod simulation;
mod support;
