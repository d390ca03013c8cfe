//! The findings of a comparison: an answer, verdicts on published figures and claims, and warnings.

pub mod answer;
pub mod claims;
pub(crate) mod effect;
pub mod reference;
pub(crate) mod warnings;
