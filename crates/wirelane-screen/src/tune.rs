//! Plans of tuning and their results as text.

use std::fmt::Write;

use wirelane::tune::{Applied, By, Outcome, Plan, Restored, Setting, Status, Undoing};

use crate::table::wrap;

/// Indentation of a reason, below its line.
const INDENT: usize = 4;

/// A value, shortened for a line: keys and uneven tables are long.
fn short(value: &str) -> String {
    match value.len() {
        0 => "none".to_owned(),
        1..=32 => value.to_owned(),
        _ => format!("{}...", value.chars().take(29).collect::<String>()),
    }
}

/// A number of changes.
fn changes(count: usize) -> String {
    match count {
        0 => "no changes".to_owned(),
        1 => "1 change".to_owned(),
        many => format!("{many} changes"),
    }
}

fn line(text: &mut String, what: &str, reason: &str) {
    let _ = writeln!(text, "  {what}\n{:INDENT$}{}", "", wrap(reason, INDENT));
}

/// The whole plan.
pub fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    for device in &plan.devices {
        let _ = writeln!(text, "{}: {}", device.device, changes(device.changes.len()));
        for change in &device.changes {
            let what = match &change.now {
                Some(now) => format!("{}: {} -> {}", change.what, short(now), short(&change.new)),
                None => format!("{}: {}", change.what, short(&change.new)),
            };
            line(&mut text, &what, &change.reason);
        }
    }
    text + &places(plan)
}

/// The placement of queues and workers.
pub fn places(plan: &Plan) -> String {
    let mut text = String::from("queues\n");
    for queue in &plan.queues {
        let core = queue.core.map_or("any CPU".to_owned(), |core| format!("CPU {core}"));
        line(&mut text, &format!("{}@{}: {core}", queue.device, queue.queue), &queue.reason);
    }
    text += "workers\n";
    for worker in &plan.workers {
        line(&mut text, &format!("{}: CPU {}", worker.worker, worker.core), &worker.reason);
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {}", wrap(note, 6));
    }
    let cores: Vec<String> = plan.workers.iter().map(|worker| worker.core.to_string()).collect();
    let _ = writeln!(text, "capture with: --workers {} --cores {}", cores.len(), cores.join(","));
    text
}

/// The result of each change.
pub fn applied(device: &str, applied: &Applied) -> String {
    let mut text =
        format!("{device}: {}, journal {}\n", changes(applied.steps.len()), applied.journal.display());
    for step in &applied.steps {
        match &step.outcome {
            Outcome::Changed { old, now } => {
                let _ = writeln!(text, "  {}: {} -> {}", step.what, short(old), short(now));
            }
            Outcome::AsItWas => {
                let _ = writeln!(text, "  {}: {} already", step.what, short(&step.wanted));
            }
            Outcome::Refused { reason } => {
                line(&mut text, &format!("{}: not {}", step.what, short(&step.wanted)), reason);
            }
        }
    }
    text
}

/// The result of each undone change.
pub fn restored(device: &str, restored: &Restored) -> String {
    if restored.steps.is_empty() {
        return format!("{device}: nothing to restore\n");
    }
    let mut text = format!("{device}: {}\n", changes(restored.steps.len()));
    for step in &restored.steps {
        let wanted = short(&step.wanted);
        let fate = match &step.outcome {
            Undoing::Restored => format!("{wanted} again"),
            Undoing::AsItWas => format!("{wanted} already"),
            Undoing::Gone => "it has exited".to_owned(),
            Undoing::Foreign { now } => format!("changed to {} by another program: left alone", short(now)),
            Undoing::Held { pid } => format!("held by the capture of process {pid}"),
            Undoing::Refused { reason } => format!("not {wanted}: {reason}"),
        };
        let _ = writeln!(text, "  {}", wrap(&format!("{}: {fate}", step.what), INDENT));
    }
    text
}

/// The changes that are in effect.
pub fn status(device: &str, status: &Status) -> String {
    let Some(journal) = &status.journal else { return format!("{device}: nothing is changed\n") };
    let mut text = format!("{device}: {}, journal {}\n", changes(status.entries.len()), journal.display());
    for (entry, now) in &status.entries {
        let by = match entry.by {
            By::Apply => "tune apply",
            By::Capture => "a capture",
        };
        let now = match now {
            Some(now) if *now == entry.new => String::new(),
            Some(now) => format!(", but {} now", short(now)),
            None => ", but it has exited".to_owned(),
        };
        let what: &Setting = &entry.what;
        let _ = writeln!(text, "  {what}: {} -> {} by {by}{now}", short(&entry.old), short(&entry.new));
    }
    for (owner, lives) in &status.owners {
        let state = if *lives { "runs" } else { "has ended: 'wirelane tune restore' puts back what it left" };
        let _ = writeln!(
            text,
            "  {}",
            wrap(&format!("process {} ({}) {state}", owner.pid, owner.polling), INDENT)
        );
    }
    text
}

/// Changes of a plan that were not made, in words.
pub fn not_applied(device: &str, applied: &Applied) -> Vec<String> {
    let refused = applied.steps.iter().filter_map(|step| match &step.outcome {
        Outcome::Refused { reason } => Some(format!("{device}: {}: {reason}", step.what)),
        _ => None,
    });
    refused.collect()
}

/// Changes that were not undone, in words.
pub fn not_restored(device: &str, restored: &Restored) -> Vec<String> {
    let why = |outcome: &Undoing| match outcome {
        Undoing::Restored | Undoing::AsItWas | Undoing::Gone => None,
        Undoing::Foreign { now } => {
            Some(format!("it was changed to {now} by another program, and is left alone"))
        }
        Undoing::Held { pid } => Some(format!("the capture of process {pid} holds it")),
        Undoing::Refused { reason } => Some(reason.clone()),
    };
    let steps = restored.steps.iter();
    steps.filter_map(|step| Some(format!("{device}: {}: {}", step.what, why(&step.outcome)?))).collect()
}
