//! Site of a trial: a topology on this machine, or the machines of two agents.

use anyhow::anyhow;

use crate::duts::Adapter;
use crate::remote::Agents;
use crate::roles::station::Station;
use crate::roles::{DutOrder, Failure, Host as _, SendOrder, Sent, Taken};
use crate::topology::Topology;

/// A site. A trial is `start`, `announce` for calls, `begin`, `send`, `sent`, `end`, `received`, in this order; an
/// error ends it.
#[derive(Debug)]
pub enum Site {
    /// This machine.
    Local(Box<Station<Topology>>),
    /// Other machines.
    Remote(Box<Agents>),
}

impl Site {
    /// Whether it is on other machines.
    pub fn is_remote(&self) -> bool {
        matches!(self, Site::Remote(_))
    }

    /// Starts a sensor, and returns when it captures.
    pub fn start(&mut self, adapter: &Adapter, order: &DutOrder) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.start(adapter, order),
            Site::Remote(agents) => agents.start(order),
        }
    }

    /// Sends packets that introduce calls to a sensor before the measurement, and waits until it has processed them.
    pub fn announce(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        let Site::Local(here) = self else { return Err(anyhow!("agents place no calls").into()) };
        let sent = here.send(order)?;
        here.rest()?;
        Ok(sent)
    }

    /// Starts the measurement of the sensor, and the count at the receiver.
    pub fn begin(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.count().and_then(|()| here.begin()),
            Site::Remote(agents) => agents.begin(),
        }
    }

    /// Sends all packets, and returns afterwards.
    pub fn send(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        match self {
            Site::Local(here) => here.send(order),
            Site::Remote(agents) => agents.send(order),
        }
    }

    /// Notifies the sensor's side of the end of the sending.
    pub fn sent(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.sent(),
            Site::Remote(agents) => agents.sent(),
        }
    }

    /// Sends packets after all others, for a sensor that delays the last ones. Not supported by agents.
    pub fn flush(&mut self, options: &str, cores: &[usize]) -> Result<(), Failure> {
        let Site::Local(here) = self else { return Ok(()) };
        here.flush(options, cores)
    }

    /// Captured and lost packets so far; `None`: the sensor does not report while it runs. Not supported by agents.
    pub fn told(&mut self) -> Result<Option<(u64, u64)>, Failure> {
        let Site::Local(here) = self else { return Ok(None) };
        here.told()
    }

    /// Sets the priority of NAPI threads from now on. Not supported by agents.
    pub fn settle(&mut self, order: &DutOrder) -> Result<(), Failure> {
        let Site::Local(here) = self else { return Ok(()) };
        Ok(here.host.settle(order)?)
    }

    /// Number of packets at the receiver; `None`: there is no receiver. Call after the end of the sensor, which may
    /// pass packets on, too.
    pub fn received(&mut self) -> Result<Option<u64>, Failure> {
        match self {
            Site::Local(here) => here.received(),
            Site::Remote(agents) => agents.received(),
        }
    }

    /// Waits until the sensor has processed all packets, and ends it.
    pub fn end(&mut self) -> Result<Taken, Failure> {
        match self {
            Site::Local(here) => here.end(),
            Site::Remote(agents) => agents.end(),
        }
    }
}
