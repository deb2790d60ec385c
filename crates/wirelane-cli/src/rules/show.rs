//! Shows the rules of a running capture, and their counters.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use wirelane::control::{self, Client, Position, Purpose};
use wirelane::escape::to_json;
use wirelane::{ExactLine, Hits};
use wirelane_monitor::out;
use wirelane_monitor::rules::{lines, summary, table};

use super::running::connect;
use crate::instance::Which;
use wirelane_screen::table::{Table, amount, printable};

/// List the active rules with their counters
#[derive(clap::Args, Debug)]
pub struct List {
    /// Show them again at every interval, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Time from one report to the next
    #[arg(long, value_name = "TIME", value_parser = super::interval, default_value = "1", requires = "watch")]
    interval: Duration,

    /// Show exact-match rules too, each on every device that has it
    #[arg(long, alias = "precise")]
    exact: bool,

    #[command(flatten)]
    which: Which,
}

/// Runs `list`.
///
/// # Errors
/// The error of the capture.
pub fn list(args: &List) -> Result<()> {
    let mut client = connect(&args.which)?;
    loop {
        let stats = client.stats()?;
        let exact = if args.exact { all_exact(&mut client)? } else { Vec::new() };
        out::print(if args.which.json {
            lines(&stats, &exact)?
        } else {
            table(&stats, &exact) + &summary(&stats)
        })?;
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(args.interval);
        if !args.which.json {
            out::print("\n")?;
        }
    }
}

fn all_exact(client: &mut Client) -> Result<Vec<ExactLine>> {
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

/// Runs `stats`.
///
/// # Errors
/// The error of the capture.
pub fn stats(which: &Which) -> Result<()> {
    let stats = connect(which)?.stats()?;
    if which.json {
        return out::print(to_json(&stats)? + "\n");
    }
    let hits = stats.rules.iter().map(|line| line.hits).fold(Hits::default(), Hits::and);
    out::print(format!(
        "{}wildcard rules were hit {} times ({} bytes)\n",
        summary(&stats),
        amount(hits.packets),
        amount(hits.bytes)
    ))
}

/// A capture in `--json`.
#[derive(Serialize)]
struct InstanceLine {
    #[serde(flatten)]
    status: control::Status,
    here: bool,
    socket: std::path::PathBuf,
}

/// Runs `instances`.
///
/// # Errors
/// If the captures cannot be listed.
pub fn instances(json: bool) -> Result<()> {
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
        return out::print(text + &to_json(&last)? + "\n");
    }
    if all.is_empty() {
        return out::print("no capture is running whose rules you can change\n");
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
    out::print(table.to_string())
}
