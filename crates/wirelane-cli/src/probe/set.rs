//! `wirelane probe set` and `wirelane probe show`: the probe of another process.

use anyhow::Result;
use serde::Serialize;
use wirelane::Error;
use wirelane::control::Purpose;
use wirelane::escape::to_json;
use wirelane_probe::Changes;

use crate::instance::Which;
use wirelane_monitor::out;
use wirelane_monitor::probe::change::{Question, Standing};
use wirelane_screen::table::{counted, printable};

/// Operation on a running probe.
#[derive(clap::Subcommand, Debug)]
pub enum Running {
    Set(SetArgs),
    Show(ShowArgs),
}

/// Change a running probe, all at once or not at all
///
/// Changes take effect between two packets, with none lost or counted twice, until other values are set or the
/// configuration is read again (SIGHUP). Everything that is not named stays unchanged: sums, also of the current
/// interval, and raised alarms. A new interval prints and restarts all sums, and is refused with analysis = "kernel".
#[derive(clap::Args, Debug)]
#[command(after_long_help = SET_HELP)]
pub struct SetArgs {
    /// interval=TIME, measurement.NAME.active=true|false, alarm.NAME.KEY=VALUE, schedule.NAME.KEY=VALUE, or flush, which
    /// shows totals at the end of the interval and begins them anew
    #[arg(value_name = "CHANGE", required = true)]
    changes: Vec<String>,

    #[command(flatten)]
    which: Which,
}

/// Text after the options of `set` in the long help.
pub const SET_HELP: &str = "\
Keys and values are those of the configuration, without quotes; KEY= without
a value removes a key:
  alarm:     active, above, below, rises, falls, clear, least, over,
             raise-after, clear-after
  schedule:  every, at, days (mon,tue)
Setting one of above, below, rises and falls replaces the others; so do every
and at.

Examples:
  sudo wirelane probe set measurement.dns.active=false
  sudo wirelane probe set -i eth1 alarm.flood.above=5000 alarm.flood.clear=2500
  sudo wirelane probe set schedule.night.at=23:30 interval=5s flush

Exit status: 0 done, 1 refused (nothing has changed), 2 wrong usage.";

/// Show the measurements, raised alarms and next schedules of a running probe
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    #[command(flatten)]
    which: Which,
}

/// Runs `set` or `show`.
///
/// # Errors
/// If there is no such probe, or it refuses the request.
pub fn run(running: &Running) -> Result<()> {
    let (which, question) = match running {
        Running::Set(SetArgs { changes, which }) => {
            if let Err(reason) = Changes::parse(changes) {
                return Err(Error::BadOption { option: "CHANGE", reason }.into());
            }
            (which, Question::Set(changes.clone()))
        }
        Running::Show(ShowArgs { which }) => (which, Question::Show),
    };
    let (status, mut client) = which.connect(Purpose::Probe)?;
    let standing: Standing = serde_json::from_value(client.program(serde_json::to_value(&question)?)?)?;
    if which.json {
        #[derive(Serialize)]
        struct Line {
            pid: u32,
            engine: String,
            devices: Vec<String>,
            #[serde(flatten)]
            standing: Standing,
        }
        let line = Line { pid: status.pid, engine: status.engine, devices: status.devices, standing };
        return out::print(to_json(&line)? + "\n");
    }
    if let Question::Set(words) = question {
        return out::print(format!("{} in force\n", counted(words.len() as u64, "change")));
    }
    let devices = printable(&status.devices.join(",")).into_owned();
    out::print(format!("probe {} on {devices}: {}", status.pid, standing.text()))
}
