//! Running captures whose rules can be changed, and requests to them.

use anyhow::Result;
use serde::Serialize;
use wirelane::control::{self, Client, Position, Purpose};
use wirelane::escape::to_json;
use wirelane::rules::RuleSet;
use wirelane::{Changed, ExactLine};
use wirelane_screen::table::{Table, printable};

/// Number of exact-match rules that are sent together.
const AT_ONCE: usize = 4096;

/// All exact-match rules of a capture, by id and device.
///
/// # Errors
/// The error of the capture.
pub fn all_exact(client: &mut Client) -> Result<Vec<ExactLine>> {
    let mut all = Vec::new();
    let mut from = Some(Position::default());
    while let Some(position) = from {
        let (lines, next) = client.exact(position)?;
        all.extend(lines);
        from = next;
    }
    all.sort_by_key(|line| (line.rule.id, line.device));
    Ok(all)
}

/// Adds the rules of a set to a capture. Exact-match rules go in parts, of which those before an error stay.
///
/// # Errors
/// The error of the capture.
pub fn add_all(client: &mut Client, set: RuleSet) -> Result<Changed> {
    let mut sum: Option<Changed> = None;
    let mut rules = Some(set.rules);
    let mut exact = set.exact.into_iter().peekable();
    while rules.is_some() || exact.peek().is_some() {
        let some = exact.by_ref().take(AT_ONCE).collect();
        let change = client.add(rules.take().unwrap_or_default(), some)?;
        sum = Some(Changed { added: change.added + sum.map_or(0, |sum| sum.added), ..change });
    }
    Ok(sum.unwrap_or_default())
}

/// A capture in `--json`.
#[derive(Serialize)]
struct InstanceLine {
    #[serde(flatten)]
    status: control::Status,
    here: bool,
    socket: std::path::PathBuf,
}

/// The captures whose rules can be changed, as text or as JSON.
///
/// # Errors
/// If the captures cannot be listed.
pub fn instances(json: bool) -> Result<String> {
    #[derive(Serialize)]
    struct Last {
        r#final: bool,
        instances: usize,
    }
    let all = control::instances(Purpose::Rules)?;
    if json {
        let last = Last { r#final: true, instances: all.len() };
        let mut text = String::new();
        for instance in all {
            let line = InstanceLine { status: instance.status, here: instance.here, socket: instance.path };
            text += &(to_json(&line)? + "\n");
        }
        return Ok(text + &to_json(&last)? + "\n");
    }
    if all.is_empty() {
        return Ok("no capture is running whose rules you can change\n".to_owned());
    }
    let mut table = Table::new(["CAPTURE", "engine", "devices", "network namespace"]).words_from(1);
    for instance in all {
        let status = &instance.status;
        table.row([
            format!("{} {}", printable(&status.command), status.pid),
            status.engine.clone(),
            printable(&status.devices.join(",")).into_owned(),
            if instance.here { "this one".into() } else { format!("another ({})", status.namespace) },
        ]);
    }
    Ok(table.to_string())
}
