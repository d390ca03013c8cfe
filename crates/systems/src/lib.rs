//! Data systems, one folder each, all of one shape.

pub mod system;
