//! A manager's connection to one agent: a thread speaks, so that the agent hears something whatever the manager is at.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::message::{Answer, FromAgent, Hello, Order, ToAgent, Welcome, plain, read, read_welcome};
use super::tls::{Manager, refused};
use super::wire::Wire;
use super::{HANDSHAKE, PING, SILENCE, SOON};
use crate::suite::AgentDevice;

/// Why an order was not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// The sensor did something wrong.
    Fault(String),
    /// The agent could not do what it should.
    Failed(String),
    /// The agent is gone, or does not speak as it should.
    Gone(anyhow::Error),
}

/// A connection. Dropped, it is closed.
#[derive(Debug)]
pub struct Link {
    orders: Sender<Order>,
    answers: Receiver<Result<FromAgent>>,
}

impl Link {
    /// Connects, and says what is wanted.
    ///
    /// # Errors
    /// Why there is no such agent, or none for this manager.
    pub fn connect(manager: &Manager, agent_device: &AgentDevice, hello: &Hello) -> Result<(Link, Welcome)> {
        let mut wire = manager.connect(&agent_device.host, reach(agent_device)?)?;
        let said = wire.say(&ToAgent::Hello(hello.clone()));
        // An agent that refuses the certificate says so only now.
        let welcome = wire.receive(HANDSHAKE).or_else(|error| said.and(Err(error)));
        let welcome = welcome.map_err(|error| match refused(&error) {
            Some(alert) => error.context(format!(
                "it refuses the certificate of --cert ({alert}): is that signed by the authority of its --ca?"
            )),
            None => error,
        });
        let welcome = read_welcome(&welcome?)?;
        let (orders, taken) = channel();
        let (give, answers) = channel();
        let spawned = thread::Builder::new().name("agent".into()).spawn(move || {
            if let Err(error) = speak(&mut wire, &taken, &give) {
                // Whoever asks next hears it.
                let _ = give.send(Err(error));
            }
        });
        spawned.context("a thread for an agent")?;
        Ok((Link { orders, answers }, welcome))
    }

    /// Gives an order; what it has come to. This takes as long as the agent says that it is there.
    ///
    /// # Errors
    /// As [`Refusal`].
    pub fn ask(&self, order: Order) -> Result<Answer, Refusal> {
        let gone = || Refusal::Gone(anyhow::anyhow!("the connection is closed"));
        // Why it could not be sent is among the answers.
        let _ = self.orders.send(order);
        match self.answers.recv().map_err(|_| gone())? {
            Ok(FromAgent::Done(answer)) => Ok(answer),
            Ok(FromAgent::Fault(reason)) => Err(Refusal::Fault(plain(&reason))),
            Ok(FromAgent::Failed(reason)) => Err(Refusal::Failed(plain(&reason))),
            Ok(FromAgent::Welcome(_) | FromAgent::Refused(_) | FromAgent::Pong) => {
                Err(Refusal::Gone(anyhow::anyhow!("its answer is none")))
            }
            Err(error) => Err(Refusal::Gone(error)),
        }
    }
}

/// A connection to where an agent should be.
fn reach(agent_device: &AgentDevice) -> Result<TcpStream> {
    let addresses = (agent_device.host.as_str(), agent_device.port)
        .to_socket_addrs()
        .context("nobody knows this name")?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, HANDSHAKE) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).context("it is not there; start it: wirelane testbed agent"),
        None => bail!("this name has no address"),
    }
}

/// Passes orders and answers on, until nobody gives orders any more.
fn speak(wire: &mut Wire, orders: &Receiver<Order>, answers: &Sender<Result<FromAgent>>) -> Result<()> {
    let (mut heard, mut said) = (Instant::now(), Instant::now());
    let mut asked = false;
    loop {
        let order = match asked {
            true => orders.try_recv().map_err(|none| none == TryRecvError::Disconnected),
            false => orders.recv_timeout(SOON).map_err(|none| none == RecvTimeoutError::Disconnected),
        };
        match order {
            Ok(order) => {
                ensure!(!asked, "an order came before the answer to the last one");
                wire.say(&ToAgent::Order(order))?;
                asked = true;
            }
            Err(true) => return Ok(()),
            Err(false) => {}
        }
        // Whichever of the two is waited for comes at once.
        let wait = if asked { SOON } else { super::AT_ONCE };
        if let Some(frame) = wire.poll(wait)? {
            heard = Instant::now();
            match read(&frame)? {
                FromAgent::Pong => {}
                answer => {
                    ensure!(asked, "it answers what nobody asked");
                    asked = false;
                    let _ = answers.send(Ok(answer));
                }
            }
        }
        if said.elapsed() >= PING {
            wire.say(&ToAgent::Ping)?;
            said = Instant::now();
        }
        ensure!(heard.elapsed() < SILENCE, "it has said nothing for {SILENCE:?}");
    }
}
