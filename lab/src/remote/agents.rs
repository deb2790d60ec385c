//! Agents of a suite, from the manager's side.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::link::{Link, Refusal};
use super::message::{Answer, Hello, Offer, Order, PROTOCOL, Role, VERSION, Welcome};
use super::tls::Manager;
use crate::duts::Duts;
use crate::machine::Machine;
use crate::roles::{DutOrder, Failure, SendOrder, Sent, Taken};
use crate::suite::{AgentDevice, Suite};

/// Time for an agent that disconnected to return, including the end of its current work.
const COMES_BACK: Duration = Duration::from_secs(15);

/// One agent.
#[derive(Debug)]
struct End {
    agent_device: AgentDevice,
    hello: Hello,
    welcome: Welcome,
    /// `None`: this agent disconnected, or another one did.
    link: Option<Link>,
}

/// Agents of a run.
#[derive(Debug)]
pub struct Agents {
    manager: Manager,
    injector: End,
    sensor: End,
    receiver: Option<End>,
}

impl Agents {
    /// Connects to the agents of this suite.
    ///
    /// # Errors
    /// The first agent that is missing or refuses this manager, and the reason.
    pub fn connect(manager: Manager, suite: &Suite) -> Result<Agents> {
        let agent_devices = suite.agent_devices.as_ref().context("this suite names no agents")?;
        let injector = End::connect(&manager, &agent_devices.injector, Role::Injector, suite)?;
        let sensor = End::connect(&manager, &agent_devices.sensor, Role::Sensor, suite)?;
        let receiver = agent_devices.receiver.as_ref();
        let receiver = receiver
            .map(|agent_device| End::connect(&manager, agent_device, Role::Receiver, suite))
            .transpose()?;
        Ok(Agents { manager, injector, sensor, receiver })
    }

    /// Machine of the sensor.
    pub fn sensor(&self) -> &Machine {
        &self.sensor.welcome.machine
    }

    /// Machines of the other roles, with the names of the roles.
    pub fn others(&self) -> Vec<(&'static str, &Machine)> {
        let others = [&self.injector].into_iter().chain(&self.receiver);
        others.map(|end| (end.hello.role.name(), &end.welcome.machine)).collect()
    }

    /// Cores that the agents offer: the injector's, and the sensor's.
    pub fn cores(&self) -> (&[usize], &[usize]) {
        (&self.injector.welcome.cores, &self.sensor.welcome.cores)
    }

    /// DUTs of a suite that the agent cannot start, and the reasons.
    pub fn skipped(&self, suite: &Suite, sensors: &Duts) -> BTreeMap<String, String> {
        let address = self.sensor.agent_device.address();
        let offers = &self.sensor.welcome.sensors;
        let why = |name: &String| {
            let why = lacking(offers.get(name), &sensors.get(name)?.text)?;
            Some((name.clone(), format!("the agent {address}: {why}")))
        };
        suite.sensors.iter().filter_map(why).collect()
    }

    pub(crate) fn start(&mut self, order: &DutOrder) -> Result<(), Failure> {
        self.mend()?;
        self.ask(Order::Start(order.clone())).and_then(done)
    }

    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if self.receiver.is_some() {
            self.ask(Order::Count).and_then(done)?;
        }
        self.ask(Order::Begin).and_then(done)
    }

    pub(crate) fn received(&mut self) -> Result<Option<u64>, Failure> {
        if self.receiver.is_none() {
            return Ok(None);
        }
        match self.ask(Order::Counted)? {
            Answer::Received(packets) => Ok(Some(packets)),
            _ => Err(other_answer()),
        }
    }

    pub(crate) fn send(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        match self.ask(Order::Send(order.clone()))? {
            Answer::Sent(sent) => Ok(sent),
            _ => Err(other_answer()),
        }
    }

    pub(crate) fn sent(&mut self) -> Result<(), Failure> {
        self.ask(Order::Sent).and_then(done)
    }

    pub(crate) fn end(&mut self) -> Result<Taken, Failure> {
        match self.ask(Order::End)? {
            Answer::Taken(taken) => Ok(taken),
            _ => Err(other_answer()),
        }
    }

    fn ask(&mut self, order: Order) -> Result<Answer, Failure> {
        let end = match (order.role(), &self.receiver) {
            (Role::Injector, _) => &self.injector,
            (Role::Receiver, Some(receiver)) => receiver,
            (Role::Sensor | Role::Receiver, _) => &self.sensor,
        };
        let named = end.name();
        let told = match &end.link {
            Some(link) => link.ask(order),
            None => Err(Refusal::Gone(anyhow!("the connection is closed"))),
        };
        told.map_err(|failure| match failure {
            Refusal::Fault(reason) => Failure::Trial(anyhow!(reason)),
            Refusal::Failed(reason) => Failure::Testbed(anyhow!("{named}: {reason}")),
            Refusal::Gone(error) => {
                // The other agents end their current work.
                self.all().for_each(|end| end.link = None);
                Failure::Trial(error.context(format!("{named} went away")))
            }
        })
    }

    fn all(&mut self) -> impl Iterator<Item = &mut End> {
        [&mut self.injector, &mut self.sensor].into_iter().chain(&mut self.receiver)
    }

    /// Reconnects to the agents that disconnected.
    fn mend(&mut self) -> Result<()> {
        let end = Instant::now() + COMES_BACK;
        let manager = self.manager.clone();
        for agent in self.all() {
            while agent.link.is_none() {
                match Link::connect(&manager, &agent.agent_device, &agent.hello) {
                    Ok((link, welcome)) => {
                        agent.link = Some(link);
                        agent.welcome = welcome;
                    }
                    Err(error) if Instant::now() >= end => {
                        return Err(error.context(format!(
                            "{} did not come back; when it is there, go on with --resume",
                            agent.name()
                        )));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(500)),
                }
            }
        }
        Ok(())
    }
}

impl End {
    fn connect(manager: &Manager, agent_device: &AgentDevice, role: Role, suite: &Suite) -> Result<End> {
        let hello = Hello {
            protocol: PROTOCOL,
            version: VERSION.to_owned(),
            role,
            device: agent_device.device.clone(),
            mtu: suite.mtu(),
            merges: suite.traffic.merges(),
            arranges: role == Role::Sensor && suite.arranges(),
            sensors: if role == Role::Sensor { suite.sensors.clone() } else { Vec::new() },
        };
        let connected = Link::connect(manager, agent_device, &hello);
        let (link, welcome) =
            connected.with_context(|| format!("the {}'s agent {}", role.name(), agent_device.address()))?;
        Ok(End { agent_device: agent_device.clone(), hello, welcome, link: Some(link) })
    }

    fn name(&self) -> String {
        format!("the {}'s agent {}", self.hello.role.name(), self.agent_device.address())
    }
}

/// Reason why an agent cannot run the sensor with this adapter text; `None`: it can.
fn lacking(offer: Option<&Offer>, text: &str) -> Option<String> {
    match offer {
        None => Some("it has no adapter of this name; give it one by its --sensors".to_owned()),
        Some(offer) if offer.text != text => Some("its adapter is another one than here".to_owned()),
        Some(offer) => offer.missing.clone(),
    }
}

fn done(answer: Answer) -> Result<(), Failure> {
    if matches!(answer, Answer::Done) { Ok(()) } else { Err(other_answer()) }
}

fn other_answer() -> Failure {
    anyhow!("an agent answers something else than it was asked").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_lacks_of_a_sensor_is_named() {
        let offer =
            |text: &str, missing: Option<&str>| Offer { text: text.into(), missing: missing.map(Into::into) };
        assert_eq!(lacking(Some(&offer("a", None)), "a"), None);
        assert!(lacking(None, "a").unwrap().contains("--sensors"));
        assert!(lacking(Some(&offer("b", None)), "a").unwrap().contains("another one"));
        assert_eq!(lacking(Some(&offer("a", Some("not installed"))), "a").unwrap(), "not installed");
    }
}
