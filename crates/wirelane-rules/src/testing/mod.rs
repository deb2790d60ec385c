//! Generated rule sets and packets, for tests of this crate and of those that evaluate its tables.

pub mod generator;
pub mod packets;

use crate::RuleSet;

/// A set that is right.
///
/// # Panics
/// Where it is not.
pub fn set(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|error| panic!("{error}\nin {text}"))
}
