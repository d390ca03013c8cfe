//! One statement of a catalogue file with the source that it comes from.

use serde::{Deserialize, Serialize};

/// A number of the catalogue and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcedQuantity {
    pub value: f64,
    /// A key of the medium's `sources`.
    pub source: String,
    /// The source gives no such figure: the value is reckoned or calibrated, as the source's text says.
    #[serde(default)]
    pub estimate: bool,
}

/// The key of the source of what a study set in place of the medium's own.
pub(super) const SET_BY_STUDY: &str = "set-by-the-study";

/// A property that a medium has or has not, and where that is known from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourcedProperty {
    pub value: bool,
    pub source: String,
    #[serde(default)]
    pub estimate: bool,
}

/// One line of a medium's parameters, for listing.
pub struct ParameterEntry<'a> {
    pub name: &'static str,
    pub value: String,
    pub source: &'a str,
    pub estimate: bool,
}
