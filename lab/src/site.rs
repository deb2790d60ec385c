//! Where a trial happens: in a topology on this machine, or on the machines of two agents.

use std::path::PathBuf;

use anyhow::Context;

use crate::duts::Adapter;
use crate::remote::Agents;
use crate::roles::dut::{self, Running};
use crate::roles::receiver::Counting;
use crate::roles::{DutOrder, Failure, Host, SendOrder, Sent, Taken, injector};
use crate::topology::Topology;

/// A site. A trial is `start`, `announce` where there are calls, `begin`, `send`, `sent`, `end`,
/// `received`, in this order; after an error it is over.
#[derive(Debug)]
pub enum Site {
    /// On this machine.
    Local(Box<Local>),
    /// On others.
    Remote(Box<Agents>),
}

/// A topology, and what runs in it.
#[derive(Debug)]
pub struct Local {
    // Ended before the topology is.
    running: Option<Running>,
    receiving: Option<Counting>,
    topology: Topology,
    wirelane: PathBuf,
    number: u64,
}

impl Local {
    /// In this topology; `wirelane` is the program that sends, and that our sensors are.
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

    /// Starts a sensor; when this returns, it captures.
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

    /// Sends what a sensor has to know before it is measured, and waits until it has taken that.
    pub fn announce(&mut self, order: &SendOrder) -> Result<Sent, Failure> {
        let sent = self.send(order)?;
        match self {
            Site::Local(here) => here.running()?.0.rest()?,
            Site::Remote(_) => return Err(Failure::Testbed(anyhow::anyhow!("agents place no calls"))),
        }
        Ok(sent)
    }

    /// Measures the sensor from now on, and counts at the receiver.
    pub fn begin(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => {
                here.receiving = here.topology.receives().map_err(Failure::Testbed)?;
                here.running().and_then(|(running, topology)| running.begin(topology))
            }
            Site::Remote(agents) => agents.begin(),
        }
    }

    /// Sends; returns when everything is sent.
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

    /// Tells the sensor's side that everything is sent.
    pub fn sent(&mut self) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.running().and_then(|(running, topology)| running.sent(topology)),
            Site::Remote(agents) => agents.sent(),
        }
    }

    /// Packets behind all others, for a sensor that keeps the last ones back. Not by agents.
    pub fn flush(&mut self, options: &str, cores: &[usize]) -> Result<(), Failure> {
        let Site::Local(here) = self else { return Ok(()) };
        let (topology, device) = (&here.topology, here.topology.sending()[0].to_owned());
        injector::flush(&here.wirelane, &device, cores, options, topology.injector())
            .map_err(Failure::Testbed)
    }

    /// What the sensor has told so far, of packets captured and lost; none: it does not while it runs. Not by agents.
    pub fn told(&mut self) -> Result<Option<(u64, u64)>, Failure> {
        match self {
            Site::Local(here) => Ok(here.running()?.0.told()),
            Site::Remote(_) => Ok(None),
        }
    }

    /// Has NAPI's threads come before all else, or not, from now on. Not by agents.
    pub fn settle(&mut self, order: &DutOrder) -> Result<(), Failure> {
        match self {
            Site::Local(here) => here.topology.settle(order).map_err(Failure::Testbed),
            Site::Remote(_) => Ok(()),
        }
    }

    /// What has arrived at the receiver; none: there is none. To be called when the sensor is ended, which may pass packets on itself.
    pub fn received(&mut self) -> Result<Option<u64>, Failure> {
        match self {
            Site::Local(here) => {
                here.receiving.take().map(Counting::end).transpose().map_err(Failure::Testbed)
            }
            Site::Remote(agents) => agents.received(),
        }
    }

    /// Lets the sensor take what is there, and ends it.
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
