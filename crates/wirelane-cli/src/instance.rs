//! Selects the running capture that a command queries or changes.

use anyhow::{Result, bail};
use wirelane::control::{Client, Instance, Purpose, Status, instances};

use wirelane_screen::table::printable;

/// Selects a running capture.
#[derive(clap::Args, Debug)]
pub struct Which {
    /// The capture on this device. Needed where there are several
    #[arg(short, long = "interface", value_name = "DEV")]
    pub interface: Option<String>,

    /// The capture of this process
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,

    /// Print JSON: one object, or of a list one a line and a last one with "final": true
    #[arg(long)]
    pub json: bool,
}

impl Which {
    /// Connects to the capture; also returns its status.
    ///
    /// # Errors
    /// If there is no such capture, or several.
    pub fn connect(&self, purpose: Purpose) -> Result<(Status, Client)> {
        let all = instances(purpose)?;
        let fits = |instance: &&Instance| {
            self.pid.is_none_or(|pid| instance.status.pid == pid)
                && self.interface.as_ref().is_none_or(|device| instance.status.devices.contains(device))
        };
        let mut found: Vec<&Instance> = all.iter().filter(fits).collect();
        // Device names belong to this network namespace; process ids are valid everywhere.
        if self.pid.is_none() {
            found.retain(|instance| instance.here);
        }
        match found[..] {
            [one] => Ok((one.status.clone(), Client::connect(&one.path, purpose)?)),
            [] => bail!("{}", none(self, &all, purpose)),
            _ => {
                let shown: Vec<String> = found.iter().map(|one| shown(one)).collect();
                let what = match purpose {
                    Purpose::Rules => "captures",
                    Purpose::Probe => "probes",
                    Purpose::Monitor => "monitors",
                };
                bail!("several {what} could be meant; say which by -i or --pid: {}", shown.join("; "))
            }
        }
    }
}

fn shown(instance: &Instance) -> String {
    let status = &instance.status;
    format!("{} {} on {}", printable(&status.command), status.pid, printable(&status.devices.join(",")))
}

/// Error message for a missing capture, with advice.
fn none(which: &Which, all: &[Instance], purpose: Purpose) -> String {
    let asked = match (&which.interface, which.pid) {
        (_, Some(pid)) => format!(" of process {pid}"),
        (Some(device), None) => format!(" on {}", printable(device)),
        (None, None) => String::new(),
    };
    let root = rustix::process::geteuid().is_root();
    let sudo = if root { "" } else { " (those that root has started are found by root only: use sudo)" };
    let others = match all {
        [] => String::new(),
        _ => format!("; there are: {}", all.iter().map(shown).collect::<Vec<_>>().join("; ")),
    };
    match purpose {
        Purpose::Rules => format!(
            "no capture{asked} whose rules can be changed{sudo}; start one with --rules FILE, or with --rules-capacity{others}"
        ),
        Purpose::Probe => format!("no probe{asked} is running{sudo}{others}"),
        Purpose::Monitor => format!("no monitor{asked} is running{sudo}{others}"),
    }
}
