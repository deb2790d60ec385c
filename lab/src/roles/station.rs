//! A host with the processes of a trial: the same for a topology on this machine and for the machine of an agent.

use std::path::PathBuf;

use anyhow::Context;

use super::dut::{self, Running};
use super::receiver::Counting;
use super::{DutOrder, Failure, Host, SendOrder, Sent, Taken, injector};
use crate::duts::Adapter;

/// A host, and the processes on it.
#[derive(Debug)]
pub struct Station<H> {
    // Dropped before the host.
    running: Option<Running>,
    receiving: Option<Counting>,
    /// The host.
    pub host: H,
    wirelane: PathBuf,
    number: u64,
}

impl<H: Host> Station<H> {
    /// A station on this host; `wirelane` is the program that sends, and that our sensors are.
    pub fn new(host: H, wirelane: PathBuf) -> Station<H> {
        Station { running: None, receiving: None, host, wirelane, number: 0 }
    }

    fn running(&mut self) -> Result<(&mut Running, &H), Failure> {
        Ok((self.running.as_mut().context("no sensor runs")?, &self.host))
    }

    /// Starts a sensor, and returns when it captures. An earlier one is killed.
    pub fn start(&mut self, adapter: &Adapter, order: &DutOrder) -> Result<(), Failure> {
        self.running = None;
        self.host.check()?;
        self.number += 1;
        self.running = Some(dut::start(&mut self.host, &self.wirelane, adapter, order, self.number)?);
        Ok(())
    }

    /// Kills the sensor.
    pub fn abandon(&mut self) {
        self.running = None;
    }

    /// Waits until the sensor has processed all packets from before the measurement.
    pub fn rest(&mut self) -> Result<(), Failure> {
        self.running()?.0.rest()
    }

    /// Starts the measurement of the sensor.
    pub fn begin(&mut self) -> Result<(), Failure> {
        let (running, host) = self.running()?;
        running.begin(host)
    }

    /// Starts to count packets at the receiver, if there is one.
    pub fn count(&mut self) -> Result<(), Failure> {
        self.receiving = self.host.receives()?;
        Ok(())
    }

    /// Sends all packets, and returns afterwards.
    pub fn send(&self, order: &SendOrder) -> Result<Sent, Failure> {
        Ok(injector::send(&self.wirelane, &self.host.sending(), order, self.host.sender())?)
    }

    /// Sends packets after all others, for a sensor that delays the last ones.
    pub fn flush(&self, options: &str, cores: &[usize]) -> Result<(), Failure> {
        Ok(injector::flush(&self.wirelane, self.host.sending()[0], cores, options, self.host.sender())?)
    }

    /// Notes the end of the sending: work of the sensor from now on counts as late.
    pub fn sent(&mut self) -> Result<(), Failure> {
        let (running, host) = self.running()?;
        running.sent(host)
    }

    /// Captured and lost packets so far; `None`: the sensor does not report while it runs.
    pub fn told(&mut self) -> Result<Option<(u64, u64)>, Failure> {
        Ok(self.running()?.0.told())
    }

    /// Waits until the sensor has processed all packets, and ends it.
    pub fn end(&mut self) -> Result<Taken, Failure> {
        self.running.take().context("no sensor runs")?.end(&self.host)
    }

    /// Number of packets at the receiver; `None`: none are counted.
    pub fn received(&mut self) -> Result<Option<u64>, Failure> {
        Ok(self.receiving.take().map(Counting::end).transpose()?)
    }
}
