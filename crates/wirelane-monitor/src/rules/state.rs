//! Entries of maps of plug-ins and of the steering program as text.

use serde_json::Value;
use wirelane_screen::table::printable;

/// An entry of a map as text.
pub fn entry(entry: &Value) -> String {
    let value = entry.get("value").or_else(|| entry.get("values")).unwrap_or(&Value::Null);
    format!("{}: {}\n", fields(&entry["key"]), fields(value))
}

/// A value as text: fields by name.
fn fields(value: &Value) -> String {
    match value {
        Value::Object(fields_of) => {
            let all = fields_of.iter().map(|(name, value)| format!("{} {}", printable(name), fields(value)));
            all.collect::<Vec<String>>().join(", ")
        }
        Value::Array(all) => {
            format!("[{}]", all.iter().map(fields).collect::<Vec<String>>().join("; "))
        }
        Value::String(text) => printable(text).into_owned(),
        other => other.to_string(),
    }
}
