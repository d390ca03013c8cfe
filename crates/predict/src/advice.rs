//! Which storage to buy, and how much memory: the catalogue searched by predictions.

pub mod memory;
pub mod storage;
