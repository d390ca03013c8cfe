//! Scripts of failures that were found, by name.

use super::Script;

/// One that is kept in this crate's tests, by the name of its file.
pub fn named(text: &str) -> Result<Script, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not a script: {error} (`show` prints one)"))
}
