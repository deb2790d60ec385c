//! Connection of a manager to one agent: a thread sends the messages, so that the agent receives pings whatever the
//! manager does.

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

/// Reason why an order was not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// Failure of the sensor.
    Fault(String),
    /// Failure of the agent.
    Failed(String),
    /// Connection lost, or protocol violation.
    Gone(anyhow::Error),
}

/// A connection. Dropped, it is closed.
#[derive(Debug)]
pub struct Link {
    orders: Sender<Order>,
    answers: Receiver<Result<FromAgent>>,
}

impl Link {
    /// Connects and sends the request.
    pub fn connect(manager: &Manager, agent_device: &AgentDevice, hello: &Hello) -> Result<(Link, Welcome)> {
        let mut wire = manager.connect(&agent_device.host, reach(agent_device)?)?;
        let said = wire.say(&ToAgent::Hello(hello.clone()));
        // An agent that refuses the certificate reports this only now.
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
                // Delivered with the next request.
                let _ = give.send(Err(error));
            }
        });
        spawned.context("a thread for an agent")?;
        Ok((Link { orders, answers }, welcome))
    }

    /// Gives an order and returns its result. Waits as long as the agent sends pings.
    pub fn ask(&self, order: Order) -> Result<Answer, Refusal> {
        let gone = || Refusal::Gone(anyhow::anyhow!("the connection is closed"));
        // The reason of a failure is among the answers.
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

/// TCP connection to the address of an agent.
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

/// Relays orders and answers, until the orders end.
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
        // Short waits for the side that is expected to send.
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
