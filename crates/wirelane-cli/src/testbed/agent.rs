//! An agent, and who this machine is for agents.

use anyhow::{Context, Result};
use wirelane_testbed::Battery;
use wirelane_testbed::away::{Agent, Agents, Files, Manager, Options};
use wirelane_testbed::run::On;

use super::manage::adapters;
use super::{AgentArgs, Identity};
use crate::out;
use crate::table::printable;

/// `wirelane testbed agent`.
pub fn run(args: &AgentArgs) -> Result<()> {
    let options = Options {
        listen: args.listen,
        files: Files { cert: args.cert.clone(), key: args.key.clone(), ca: args.ca.clone() },
        device: args.device.clone(),
        cores: args.cores.clone(),
        sensors: adapters(&args.sensors)?,
        wirelane: std::env::current_exe().context("where this program is")?,
    };
    let agent = Agent::listen(options, log)?;
    out::print(format!("listening on {}\n", agent.address()?))?;
    agent.serve();
    Ok(())
}

fn log(text: &str) {
    // Whoever reads standard error may have gone; the agent does not depend on it.
    let _ = out::print_aside(&(printable(text).into_owned() + "\n"));
}

/// Where a battery is run: here, or where it names agents, which this connects to.
///
/// # Errors
/// Which file or agent is missing, and why.
pub fn place(battery: &Battery, identity: &Identity) -> Result<On> {
    if battery.seats.is_none() {
        anyhow::ensure!(
            identity.cert.is_none(),
            "battery {} names no agents ([injector] and [sensor]): leave out --cert, --key and --ca",
            battery.name
        );
        return Ok(On::Here(std::env::current_exe().context("where this program is")?));
    }
    let (Some(cert), Some(key), Some(ca)) = (&identity.cert, &identity.key, &identity.ca) else {
        anyhow::bail!(
            "battery {} names agents, who want to know who you are: give --cert, --key and --ca",
            battery.name
        );
    };
    let manager = Manager::new(&Files { cert: cert.clone(), key: key.clone(), ca: ca.clone() })?;
    Ok(On::Away(Box::new(Agents::connect(manager, battery)?)))
}
