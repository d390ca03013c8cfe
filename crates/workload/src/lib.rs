//! What is asked of a data system, and how the answers are timed.

pub mod client;
