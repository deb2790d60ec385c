//! Figures of a trial as a cell of `trials.csv`: text like `flows whole=0.95; moves=3`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serializer};

type Figures = BTreeMap<String, f64>;

/// The text.
pub fn text(figures: &Figures) -> String {
    figures.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
}

pub(crate) fn serialize<S: Serializer>(figures: &Figures, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text(figures))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Figures, D::Error> {
    let one = |one: &str| {
        one.rsplit_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
    };
    Ok(String::deserialize(from)?.split("; ").filter_map(one).collect())
}
