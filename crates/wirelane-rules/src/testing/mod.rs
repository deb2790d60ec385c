//! Generated rule sets and packets, for tests of this crate and of crates that evaluate its tables.

pub mod generator;
pub mod packets;

use crate::RuleSet;

/// Parses a valid rule set.
///
/// # Panics
/// If the text is invalid.
pub fn set(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|error| panic!("{error}\nin {text}"))
}
