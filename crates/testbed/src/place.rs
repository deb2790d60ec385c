//! Where a trial happens: in a bed on this machine, or on the machines of two agents.

use std::path::PathBuf;

use anyhow::Context;

use crate::away::Agents;
use crate::bed::Bed;
use crate::roles::receiver::Counting;
use crate::roles::sensor::{self, Running};
use crate::roles::{Ground, SendOrder, SensorOrder, Sent, Taken, Wrong, injector};
use crate::sensors::Adapter;

/// A place. A trial is `start`, `announce` where there are calls, `begin`, `send`, `sent`, `end`,
/// `received`, in this order; after an error it is over.
#[derive(Debug)]
pub enum Place {
    /// On this machine.
    Here(Box<Here>),
    /// On others.
    Away(Box<Agents>),
}

/// A bed, and what runs in it.
#[derive(Debug)]
pub struct Here {
    // Ended before the bed is.
    running: Option<Running>,
    receiving: Option<Counting>,
    bed: Bed,
    wirelane: PathBuf,
    number: u64,
}

impl Here {
    /// In this bed; `wirelane` is the program that sends, and that our sensors are.
    pub fn new(bed: Bed, wirelane: PathBuf) -> Here {
        Here { running: None, receiving: None, bed, wirelane, number: 0 }
    }

    /// The bed.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    fn running(&mut self) -> Result<(&mut Running, &Bed), Wrong> {
        let running = self.running.as_mut().context("no sensor runs").map_err(Wrong::Bed)?;
        Ok((running, &self.bed))
    }
}

impl Place {
    /// Whether it is on other machines.
    pub fn is_away(&self) -> bool {
        matches!(self, Place::Away(_))
    }

    /// Starts a sensor; when this returns, it captures.
    ///
    /// # Errors
    /// As [`Wrong`], here and below.
    pub fn start(&mut self, adapter: &Adapter, order: &SensorOrder) -> Result<(), Wrong> {
        match self {
            Place::Here(here) => {
                here.running = None;
                here.bed.check().map_err(Wrong::Bed)?;
                here.number += 1;
                let started = sensor::start(&mut here.bed, &here.wirelane, adapter, order, here.number)?;
                here.running = Some(started);
                Ok(())
            }
            Place::Away(agents) => agents.start(order),
        }
    }

    /// Sends what a sensor has to know before it is measured, and waits until it has taken that.
    pub fn announce(&mut self, order: &SendOrder) -> Result<Sent, Wrong> {
        let sent = self.send(order)?;
        match self {
            Place::Here(here) => here.running()?.0.rest()?,
            Place::Away(_) => return Err(Wrong::Bed(anyhow::anyhow!("agents place no calls"))),
        }
        Ok(sent)
    }

    /// Measures the sensor from now on, and counts at the receiver.
    pub fn begin(&mut self) -> Result<(), Wrong> {
        match self {
            Place::Here(here) => {
                here.receiving = here.bed.receives().map_err(Wrong::Bed)?;
                here.running().and_then(|(running, bed)| running.begin(bed))
            }
            Place::Away(agents) => agents.begin(),
        }
    }

    /// Sends; returns when everything is sent.
    pub fn send(&mut self, order: &SendOrder) -> Result<Sent, Wrong> {
        match self {
            Place::Here(here) => {
                let (bed, wirelane) = (&here.bed, &here.wirelane);
                injector::send(wirelane, &bed.sending(), order, bed.injector()).map_err(Wrong::Bed)
            }
            Place::Away(agents) => agents.send(order),
        }
    }

    /// Tells the sensor's side that everything is sent.
    pub fn sent(&mut self) -> Result<(), Wrong> {
        match self {
            Place::Here(here) => here.running().and_then(|(running, bed)| running.sent(bed)),
            Place::Away(agents) => agents.sent(),
        }
    }

    /// What has arrived at the receiver; none: there is none. To be called when the sensor is ended, which may pass packets on itself.
    pub fn received(&mut self) -> Result<Option<u64>, Wrong> {
        match self {
            Place::Here(here) => here.receiving.take().map(Counting::end).transpose().map_err(Wrong::Bed),
            Place::Away(agents) => agents.received(),
        }
    }

    /// Lets the sensor take what is there, and ends it.
    pub fn end(&mut self) -> Result<Taken, Wrong> {
        match self {
            Place::Here(here) => {
                let running = here.running.take().context("no sensor runs").map_err(Wrong::Bed)?;
                running.end(&here.bed as &dyn Ground)
            }
            Place::Away(agents) => agents.end(),
        }
    }
}
