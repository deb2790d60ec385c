//! `wirelane probe --top`: measurements with their past, the rows of one, and what is raised, on a terminal's screen.
//!
//! ```text
//! Controller (results, alarms) -> TopModel -> terminal::Top
//! keys   -> TopModel (which measurement, by what its rows are sorted, whether time stands still)
//! ```

mod model;
mod view;

use serde_json::Value;

pub use model::TopModel;

use crate::table::{amount, rate};

/// A value in a column; `None` of those that take more.
pub fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) => Some(n.as_u64().map_or_else(|| rate(n.as_f64().unwrap_or(0.0)), amount)),
        _ => None,
    }
}

/// A value of several: `64-127 12, 128-255 3`, or keys with what they have.
pub fn list(value: &Value) -> String {
    let pair = |(name, value): (&String, &Value)| format!("{name} {}", cell(value).unwrap_or_default());
    match value {
        Value::Object(classes) => {
            let first = |name: &str| name.split('-').next().and_then(|number| number.parse::<u64>().ok());
            let mut classes: Vec<_> = classes.iter().collect();
            classes.sort_by_key(|(name, _)| first(name));
            classes.into_iter().map(pair).collect::<Vec<_>>().join(", ")
        }
        Value::Array(rows) => {
            let row = |row: &Value| {
                let error = row["error"].as_u64().unwrap_or(0);
                let error =
                    if error > 0 { format!(" (up to {} too many)", amount(error)) } else { String::new() };
                let key = row["key"].as_str().unwrap_or_default();
                format!("{key} {}{error}", amount(row["packets"].as_u64().unwrap_or(0)))
            };
            rows.iter().map(row).collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    }
}
