//! `wirelane status` and `wirelane reload`: the monitor of another process.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use wirelane::control::{Client, Purpose, Status as About};
use wirelane::escape::to_json;
use wirelane_monitor::control::Question;
use wirelane_monitor::out;
use wirelane_monitor::status::{Status, text};
use wirelane_screen::table::printable;

use crate::instance::Which;

/// Show what a running monitor does, and whether its outputs work
///
/// The ledger so far, the load of each worker, the results of each analysis, and for each output whether it works, since
/// when it does not, and what was lost.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct StatusArgs {
    #[command(flatten)]
    whose: Whose,
}

/// Have a running monitor read its file again
///
/// As SIGHUP does, and the exit status says whether the file was accepted. All changes become active, or none: mistakes and
/// changes that need a restart are printed, with line and column.
#[derive(clap::Args, Debug)]
#[command(after_long_help = RELOAD_HELP)]
pub struct ReloadArgs {
    #[command(flatten)]
    whose: Whose,
}

/// The monitor that is meant.
#[derive(clap::Args, Debug)]
struct Whose {
    /// The monitor on this device, or the path of its socket. Needed where there are several
    #[arg(value_name = "DEV|SOCKET")]
    which: Option<String>,

    /// The monitor of this process
    #[arg(long, value_name = "PID", conflicts_with = "which")]
    pid: Option<u32>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Text after the options of `status` in the long help.
pub const HELP: &str = "\
Columns:
  busy      part of the last interval in which the worker handled packets
  state     'works', or since when the last attempts have failed. A collector
            over UDP works again when messages have been sent for 5 s without
            a refusal
  written   records: packets of a recording, flows, transactions, calls; a
            store's are rows in complete files
  lost      records that were given up
  waiting   bytes that wait to be written or sent

Sockets are in /run/wirelane, those of other users than root in
$XDG_RUNTIME_DIR/wirelane. Only root and the monitor's user can connect.

Examples:
  sudo wirelane status
  sudo wirelane status eth1
  sudo wirelane status eth1 --json | jq '.analyses[].outputs[]'

Exit status: 0 done, also if an output does not work, 1 no such monitor.";

/// Text after the options of `reload` in the long help.
pub const RELOAD_HELP: &str = "\
Examples:
  sudo wirelane reload
  sudo wirelane reload eth1

Exit status: 0 done, 1 refused (nothing has changed), or no such monitor.";

impl Whose {
    fn connect(&self) -> Result<(About, Client)> {
        if let Some(path) = self.which.as_ref().filter(|which| which.contains('/')) {
            let mut client = Client::connect(Path::new(path), Purpose::Monitor)?;
            return Ok((client.status()?, client));
        }
        let which = Which { interface: self.which.clone(), pid: self.pid, json: self.json };
        which.connect(Purpose::Monitor)
    }

    fn ask<T: for<'de> Deserialize<'de>>(&self, question: Question) -> Result<(About, T)> {
        let (about, mut client) = self.connect()?;
        let answer = client.program(serde_json::to_value(question)?)?;
        Ok((about, serde_json::from_value(answer)?))
    }
}

/// Runs `wirelane status`.
///
/// # Errors
/// If no such monitor runs, or it does not answer.
pub fn status(args: &StatusArgs) -> Result<()> {
    let (about, status): (About, Status) = args.whose.ask(Question::Status)?;
    if args.whose.json {
        #[derive(Serialize)]
        struct Line {
            pid: u32,
            devices: Vec<String>,
            #[serde(flatten)]
            status: Status,
        }
        return out::print(to_json(&Line { pid: about.pid, devices: about.devices, status })? + "\n");
    }
    out::print(text(&about, &status))
}

/// Runs `wirelane reload`.
///
/// # Errors
/// If no such monitor runs, or it refuses the file.
pub fn reload(args: &ReloadArgs) -> Result<()> {
    let (about, changed): (About, Vec<String>) = args.whose.ask(Question::Reload)?;
    if args.whose.json {
        #[derive(Serialize)]
        struct Line {
            pid: u32,
            changed: Vec<String>,
        }
        return out::print(to_json(&Line { pid: about.pid, changed })? + "\n");
    }
    let changed = if changed.is_empty() { "nothing".to_owned() } else { changed.join(", ") };
    out::print(format!("changed: {}\n", printable(&changed)))
}
