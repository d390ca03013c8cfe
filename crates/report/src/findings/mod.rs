//! What a comparison comes to: an answer, what it makes of published figures and claims, and what weakens it.

pub mod answer;
pub mod claims;
pub(crate) mod effect;
pub mod reference;
pub(crate) mod warnings;
