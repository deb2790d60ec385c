//! Site of a trial: a topology on this machine, or the machines of two agents.

use std::path::PathBuf;

use anyhow::Context;

use crate::duts::Adapter;
use crate::remote::Agents;
use crate::roles::dut::{self, Running};
use crate::roles::receiver::Counting;
use crate::roles::{DutOrder, Failure, Host, SendOrder, Sent, Taken, injector};
use crate::topology::Topology;

/// A site. A trial is `start`, `announce` for calls, `begin`, `send`, `sent`, `end`, `received`, in this order; an
/// error ends it.
#[derive(Debug)]
pub enum Site {
    /// This machine.
    Local(Box<Local>),
    /// Other machines.
    Remote(Box<Agents>),
}

/// A topology, and the processes in it.
#[derive(Debug)]
pub struct Local {
    // Dropped before the topology.
    running: Option<Running>,
    receiving: Option<Counting>,
    topology: Topology,
    wirelane: PathBuf,
    number: u64,
}

impl Local {
    /// A site in this topology; `wirelane` is the program that sends, and that our sensors are.
    pub fn new(topology: Topology, wirelane: PathBuf) -> Local {
        Local { running: None, receiving: None, topology, wirelane, number: 0 }
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    fn running(&mut self) -> Result<(&mut Running, &Topology), Failure> {
        let running = self.running.as_mut().context("no sensor runs").map_err(Failure::Testbed)?;
        Ok((running, &self.topology))
    }
}

impl Site {
    /// Whether it is on other machines.
    pub fn is_remote(&self) -> bool {
        matches!(self, Site::Remote(_))
    }

    /// Starts a sensor, and returns when it captures.
    ///
    /// # Errors
    /// As [`Failure`], here and below.
    pub fn start(&mut self, adapter: &Adapter, order: &DutOrder) -> Result<(), Failure> {
        match self {
            Site::Local(here) => {
                here.running = None;
                here.topology.check().map_err(Failure::Testbed)?;
                here.number += 1;
                let started = dut::start(&mut here.topology, &here.wirelane, adapter, order, here.number)?;
                here.running = Some(started);
                Ok(())
            }
            Site::Remote(agents) => agents.start(order),
        }
    }

    /// Sends packets that introduce calls to a sensor before the measurement, and waits until it has processed them.
    pub fn announce(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        let sent = self.send(order)?;
        match self {
            Site::Local(here) => here.running()?.0.rest()?,
            Site::Remote(_) => return Err(Failure::Testbed(anyhow::anyhow!("agents place no calls"))),
        }
        Ok(sent)
    }

    /// Starts the measurement of the sensor, and the count at the receiver.
    pub fn begin(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => {
                here.receiving = here.topology.receives().map_err(Failure::Testbed)?;
                here.running().and_then(|(running, topology)| running.begin(topology))
            }
            Site::Remote(agents) => agents.begin(),
        }
    }

    /// Sends all packets, and returns afterwards.
    pub fn send(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        match self {
            Site::Local(here) => {
                let (topology, wirelane) = (&here.topology, &here.wirelane);
                injector::send(wirelane, &topology.sending(), order, topology.injector())
                    .map_err(Failure::Testbed)
            }
            Site::Remote(agents) => agents.send(order),
        }
    }

    /// Notifies the sensor's side of the end of the sending.
    pub fn sent(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.running().and_then(|(running, topology)| running.sent(topology)),
            Site::Remote(agents) => agents.sent(),
        }
    }

    /// Sends packets after all others, for a sensor that delays the last ones. Not supported by agents.
    pub fn flush(&mut self, options: &str, cores: &[usize]) -> Result<(), Failure> {
        let Site::Local(here) = self else { return Ok(()) };
        let (topology, device) = (&here.topology, here.topology.sending()[0].to_owned());
        injector::flush(&here.wirelane, &device, cores, options, topology.injector())
            .map_err(Failure::Testbed)
    }

    /// Captured and lost packets so far; `None`: the sensor does not report while it runs. Not supported by agents.
    pub fn told(&mut self) -> Result<Option<(u64, u64)>, Failure> {
        match self {
            Site::Local(here) => Ok(here.running()?.0.told()),
            Site::Remote(_) => Ok(None),
        }
    }

    /// Sets the priority of NAPI threads from now on. Not supported by agents.
    pub fn settle(&mut self, order: &DutOrder) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.topology.settle(order).map_err(Failure::Testbed),
            Site::Remote(_) => Ok(()),
        }
    }

    /// Number of packets at the receiver; `None`: there is no receiver. Call after the end of the sensor, which may
    /// pass packets on, too.
    pub fn received(&mut self) -> Result<Option<u64>, Failure> {
        match self {
            Site::Local(here) => {
                here.receiving.take().map(Counting::end).transpose().map_err(Failure::Testbed)
            }
            Site::Remote(agents) => agents.received(),
        }
    }

    /// Waits until the sensor has processed all packets, and ends it.
    pub fn end(&mut self) -> Result<Taken, Failure> {
        match self {
            Site::Local(here) => {
                let running = here.running.take().context("no sensor runs").map_err(Failure::Testbed)?;
                running.end(&here.topology as &dyn Host)
            }
            Site::Remote(agents) => agents.end(),
        }
    }
}
