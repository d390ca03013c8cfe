//! A comparison as people and scripts read it.

pub mod export;
pub mod html;
pub mod terminal;
