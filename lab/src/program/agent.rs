//! The agent, and the identity of this machine for agents.

use crate::Suite;
use crate::remote::{Agent, Agents, Files, Manager, Options, run_front};
use crate::run::On;
use anyhow::Result;
use wirelane::escape::printable;

use super::manage::adapters;
use super::out;
use super::{AgentArgs, FrontArgs, Identity, wirelane_program};

/// `wirelane testbed agent`.
pub fn run(args: &AgentArgs) -> Result<()> {
    let options = Options {
        listen: args.listen,
        files: Files { cert: args.cert.clone(), key: args.key.clone(), ca: args.ca.clone() },
        device: args.device.clone(),
        cores: args.cores.clone(),
        arrange: args.arrange,
        busy_cores: args.busy_cores,
        sensors: adapters(&args.sensors)?,
        wirelane: wirelane_program()?,
    };
    let agent = Agent::listen(options, log)?;
    out::print(format!("listening on {}\n", agent.address()?))?;
    agent.serve(&["agent-front", "--"])
}

/// `wirelane-testbed agent-front`: the process of an agent that accepts connections.
pub fn front(args: &FrontArgs) -> Result<()> {
    run_front(&Files { cert: args.cert.clone(), key: args.key.clone(), ca: args.ca.clone() })
}

fn log(text: &str) {
    out::note(&printable(text));
}

/// Location of a run: this machine, or the agents of the suite, to which it connects.
pub fn place(suite: &Suite, identity: &Identity) -> Result<On> {
    if suite.agent_devices.is_none() {
        anyhow::ensure!(
            identity.cert.is_none(),
            "suite {} names no agents ([injector] and [sensor]): leave out --cert, --key and --ca",
            suite.name
        );
        return Ok(On::Local(wirelane_program()?));
    }
    let (Some(cert), Some(key), Some(ca)) = (&identity.cert, &identity.key, &identity.ca) else {
        anyhow::bail!(
            "suite {} names agents, who want to know who you are: give --cert, --key and --ca",
            suite.name
        );
    };
    let manager = Manager::new(&Files { cert: cert.clone(), key: key.clone(), ca: ca.clone() })?;
    Ok(On::Remote(Box::new(Agents::connect(manager, suite)?)))
}
