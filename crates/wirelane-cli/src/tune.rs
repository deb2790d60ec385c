//! `wirelane tune`: tunes queues, interrupts, threads and workers for capture.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::tune::{self, Plan, Wishes};
use wirelane::{Device, Error, Selector};
use wirelane_screen::tune as text;

use crate::source::PollingArg;

/// Plan, apply and undo device settings and core placement for captures
///
/// Without WHAT it prints the plan, with the reason for each line, and changes nothing. It considers cores,
/// hyper-threads, caches, NUMA nodes, other load, and the card: its node, RX queues, interrupts, ring, RSS, offloads.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Action; without one, the plan is shown
    #[arg(value_enum, default_value_t = What::Plan)]
    what: What,

    /// Device to tune; several with commas or by repeating the option
    #[arg(short, long = "interface", value_name = "DEV", required = true)]
    interface: Vec<String>,

    /// Workers to plan for, 1 to 64. Default: one for each RX queue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,

    /// How RX queues are polled
    #[arg(long, value_enum, default_value_t = PollingArg::Threaded)]
    polling: PollingArg,

    /// Keep the journal in this file, for one device. Default: a file in /run/wirelane
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Print one JSON object a line: one for each device, and the last one with "final": true
    #[arg(long)]
    json: bool,
}

/// Values of WHAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Show the plan, change nothing
    Plan,
    /// Apply the plan
    Apply,
    /// Undo what was applied, and what a killed capture left
    Restore,
    /// Show what is applied
    Status,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Examples:
  wirelane tune -i eth1                         print the plan with its reasons
  sudo wirelane tune apply -i eth1 --workers 4  apply it
  sudo wirelane tune status -i eth1             print what is changed
  sudo wirelane tune restore -i eth1            undo it
  sudo wirelane count -i eth1 --workers 4 --cores auto --polling threaded
                                                for one capture only

Before each change the old value is written to a journal, so that 'restore'
works after a crash too. A setting that another program has changed since is
left alone. Settings that cannot be changed are named, and the rest is changed.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done in part.";

/// Partial success: some changes were made, and some were not.
#[derive(Debug)]
pub struct Partial(String);

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Partial {}

/// The last line of the JSON output.
#[derive(Serialize)]
struct Last<'a> {
    r#final: bool,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    plan: Option<&'a Plan>,
    not_done: &'a [String],
}

/// Runs the command.
///
/// # Errors
/// If a device does not exist or the journal cannot be written; [`Partial`] if some changes were not made.
pub fn run(args: &Args) -> Result<()> {
    let mut selectors = Vec::new();
    for list in &args.interface {
        selectors.extend(Selector::parse_list(list)?);
    }
    let selected = Selector::resolve_all(&selectors)?;
    if let Some(part) = selected.iter().find(|one| !one.is_whole_device()) {
        let reason = format!("tuning is for a whole device: write {}", part.device.name);
        return Err(Error::BadOption { option: "-i", reason }.into());
    }
    if args.journal.is_some() && selected.len() > 1 {
        let reason = "one file is for one device: leave the option out, or name one device".into();
        return Err(Error::BadOption { option: "--journal", reason }.into());
    }
    let names: Vec<String> = selected.into_iter().map(|one| one.device.name).collect();
    let mut output = Output { json: args.json, text: String::new() };
    let mut not_done = Vec::new();
    let mut plan = None;
    let journal = args.journal.as_deref();
    let wishes = Wishes {
        workers: args.workers.map(usize::from),
        polling: Some(args.polling.polling()),
        ..Wishes::default()
    };
    match args.what {
        What::Plan => {
            let made = tune::plan_devices(&names, &wishes)?;
            made.devices.iter().try_for_each(|one| output.object(&one.device, one))?;
            output.words(|| text::plan(&made));
            plan = Some(made);
        }
        What::Apply => {
            let (made, done) = tune::apply_to_devices(&names, &wishes, journal)?;
            for (name, applied) in names.iter().zip(&done) {
                not_done.extend(text::not_applied(name, applied));
                output.object(name, applied)?;
                output.words(|| text::applied(name, applied));
            }
            output.words(|| text::places(&made));
            plan = Some(made);
        }
        What::Restore => {
            for name in &names {
                let done = tune::restore(&Device::open(name)?, journal)?;
                not_done.extend(text::not_restored(name, &done));
                if done.left > 0 && not_done.is_empty() {
                    not_done.push(format!("{name}: {} changes stay in the journal", done.left));
                }
                output.object(name, &done)?;
                output.words(|| text::restored(name, &done));
            }
        }
        What::Status => {
            for name in &names {
                let status = tune::status(&Device::open(name)?, journal)?;
                output.object(name, &status)?;
                output.words(|| text::status(name, &status));
            }
        }
    }
    output.last(&Last { r#final: true, plan: plan.as_ref(), not_done: &not_done })?;
    if not_done.is_empty() {
        Ok(())
    } else {
        Err(Partial(format!("done in part: {}", not_done.join("; "))).into())
    }
}

/// Standard output.
struct Output {
    json: bool,
    text: String,
}

impl Output {
    /// Adds an object about a device, with --json.
    fn object(&mut self, device: &str, content: &impl Serialize) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut value = serde_json::to_value(content)?;
        if let Some(object) = value.as_object_mut() {
            object.insert("device".into(), device.into());
        }
        self.text += &value.to_string();
        self.text.push('\n');
        Ok(())
    }

    /// Adds text, without --json.
    fn words(&mut self, text: impl FnOnce() -> String) {
        if !self.json {
            self.text += &text();
        }
    }

    fn last(mut self, last: &Last<'_>) -> Result<()> {
        if self.json {
            self.text += &to_json(last)?;
            self.text.push('\n');
        }
        match io::stdout().lock().write_all(self.text.as_bytes()) {
            // `wirelane tune | head` is not a failure.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}
