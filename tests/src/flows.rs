//! Parser of the output of `wirelane flows --json`, for comparison.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Finished;

/// The flows of a successful capture, sorted, and its last object. Flow numbers are removed, and durations replace
/// times of day, as two processes measure different times.
///
/// # Errors
/// If the command has failed, or a line is not JSON.
pub fn flows_of(finished: &Finished) -> Result<(Vec<String>, Value)> {
    ensure!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let mut flows = Vec::new();
    for line in finished.json()? {
        if line.get("flow").is_some() {
            flows.push(timeless(line)?);
        }
    }
    flows.sort();
    Ok((flows, finished.last_json()?))
}

/// Names of the applications that were detected by the first bytes of a payload in such flows.
///
/// # Errors
/// If one is not JSON.
pub fn named_by_payload(flows: &[String]) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for flow in flows {
        let flow: Value = serde_json::from_str(flow)?;
        if flow["application_by"] == "payload" {
            names.insert(flow["application"].as_str().context("a name is text")?.to_owned());
        }
    }
    Ok(names)
}

/// A flow without its number, and with a duration instead of times of day.
///
/// # Errors
/// If a time is missing.
pub fn timeless(mut flow: Value) -> Result<String> {
    let fields = flow.as_object_mut().context("an object")?;
    fields.remove("flow");
    let mut ns = |name: &str| -> Result<u64> {
        let text = fields.remove(name).with_context(|| format!("no {name}"))?;
        Ok(text.as_str().context("a time is text")?.replace('.', "").parse()?)
    };
    let lasted = ns("end")? - ns("start")?;
    fields.insert("lasted_ns".into(), lasted.into());
    Ok(flow.to_string())
}

/// The first flow that only one of the two has, as text; `None` if they are equal.
pub fn difference(one: &[String], other: &[String]) -> Option<String> {
    if one == other {
        return None;
    }
    let only =
        |of: &[String], not: &[String]| of.iter().find(|flow| not.binary_search(flow).is_err()).cloned();
    let (first, second) = (only(one, other), only(other, one));
    Some(format!(
        "{} and {} flows; only the first has {first:?}, only the second {second:?}",
        one.len(),
        other.len()
    ))
}
