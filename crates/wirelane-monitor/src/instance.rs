//! The running capture that a command queries or changes.

use anyhow::{Result, bail};
use wirelane::control::{Client, Instance, Purpose, Status, instances};
use wirelane_screen::table::printable;

/// Connects to the capture on this device, or of this process; also returns its status.
///
/// # Errors
/// If no capture, or more than one, matches.
pub fn connect(device: Option<&str>, pid: Option<u32>, purpose: Purpose) -> Result<(Status, Client)> {
    let all = instances(purpose)?;
    let fits = |instance: &&Instance| {
        pid.is_none_or(|pid| instance.status.pid == pid)
            && device.is_none_or(|device| instance.status.devices.iter().any(|one| one == device))
    };
    let mut found: Vec<&Instance> = all.iter().filter(fits).collect();
    // Device names belong to this network namespace; process ids are valid everywhere.
    if pid.is_none() {
        found.retain(|instance| instance.here);
    }
    match found[..] {
        [one] => Ok((one.status.clone(), Client::connect(&one.path, purpose)?)),
        [] => bail!("{}", none(device, pid, &all, purpose)),
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

fn shown(instance: &Instance) -> String {
    let status = &instance.status;
    format!("{} {} on {}", printable(&status.command), status.pid, printable(&status.devices.join(",")))
}

/// Error message for a missing capture, with advice.
fn none(device: Option<&str>, pid: Option<u32>, all: &[Instance], purpose: Purpose) -> String {
    let asked = match (device, pid) {
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
