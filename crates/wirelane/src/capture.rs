//! A capture: devices (or a file) on one side, workers on the other, the ledger between.

use std::path::Path;

use crate::Result;
use crate::device::Selected;
use crate::engine::choose::{self, Started};
use crate::file::FileCapture;
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::Ledger;
use crate::live::LiveCapture;
use crate::settings::Settings;
use crate::sockets::SocketCapture;
use crate::worker::Worker;

/// A running capture: ask it for its workers once, and for its ledger at any time.
///
/// There is an example at the [front page](crate#example).
#[derive(Debug)]
pub struct Capture(Kind);

#[derive(Debug)]
enum Kind {
    Live(Box<LiveCapture>),
    /// With the reason for this engine, where the choice was ours.
    Sockets(Box<SocketCapture>, Option<String>),
    File(Box<FileCapture>),
}

impl Capture {
    /// Starts a capture on devices.
    pub(crate) fn live(settings: &Settings, selected: Vec<Selected>) -> Result<Capture> {
        Ok(Capture(match choose::start(settings, selected)? {
            Started::Ring(live) => Kind::Live(Box::new(live)),
            Started::Sockets(sockets, reason) => Kind::Sockets(Box::new(sockets), reason),
        }))
    }

    /// Reads a pcap or pcapng file (`-` is standard input) by the `file` engine. Needs no privilege.
    ///
    /// # Errors
    /// [`crate::Error::Io`] where it cannot be opened, [`crate::Error::CaptureFile`] where it does not begin as one.
    pub fn open_file(path: &Path) -> Result<Capture> {
        FileCapture::open(path).map(|file| Capture(Kind::File(Box::new(file))))
    }

    /// `ring`, `xsk`, `packet` or `file`.
    pub fn engine(&self) -> &'static str {
        match &self.0 {
            Kind::Live(_) => "ring",
            Kind::Sockets(sockets, _) => sockets.engine(),
            Kind::File(_) => "file",
        }
    }

    /// Why this engine, where [`crate::Engine::Auto`] could not take the best one.
    pub fn engine_reason(&self) -> Option<&str> {
        match &self.0 {
            Kind::Sockets(_, reason) => reason.as_deref(),
            Kind::Live(_) | Kind::File(_) => None,
        }
    }

    /// The devices, in the order of [`crate::Record::device`]. Interfaces of a file appear as they are read.
    pub fn devices(&self) -> Vec<CaptureDevice> {
        match &self.0 {
            Kind::Live(live) => live.devices(),
            Kind::Sockets(sockets, _) => sockets.devices(),
            Kind::File(file) => file.devices(),
        }
    }

    /// What stands behind a record's device and RX queue.
    pub fn interfaces(&self) -> Interfaces {
        match &self.0 {
            Kind::Live(live) => Interfaces::live(live.devices(), live.snap_len()),
            Kind::Sockets(sockets, _) => Interfaces::live(sockets.devices(), sockets.snap_len()),
            Kind::File(file) => Interfaces::file(file.lines()),
        }
    }

    /// The workers, the first time; none after that.
    pub fn workers(&mut self) -> Vec<Worker> {
        match &mut self.0 {
            Kind::Live(live) => live.workers(),
            Kind::Sockets(sockets, _) => sockets.workers(),
            Kind::File(file) => file.workers(),
        }
    }

    /// The ledger now. While packets flow, `seen` is the sum of its columns; after [`Capture::stop`] it is the
    /// lanes' own count, and the sums hold exactly.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where a device's statistics cannot be read.
    pub fn ledger(&self) -> Result<Ledger> {
        match &self.0 {
            Kind::Live(live) => live.ledger(),
            Kind::Sockets(sockets, _) => sockets.ledger(),
            Kind::File(file) => Ok(file.ledger()),
        }
    }

    /// The devices that have disappeared since the capture began.
    pub fn gone(&self) -> Vec<String> {
        match &self.0 {
            Kind::Live(live) => live.gone(),
            Kind::Sockets(sockets, _) => sockets.gone(),
            Kind::File(_) => Vec::new(),
        }
    }

    /// No more packets: on return the lanes write nothing, and workers end once they have yielded what is in
    /// their rings.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`] where the kernel refuses to take the group out.
    pub fn stop(&self) -> Result<()> {
        match &self.0 {
            Kind::Live(live) => live.stop(),
            Kind::Sockets(sockets, _) => sockets.stop(),
            Kind::File(file) => {
                file.stop();
                Ok(())
            }
        }
    }

    /// Stops and returns the final ledger. Drop or finish the workers before: what they have not yielded by
    /// now is `in_flight`.
    ///
    /// # Errors
    /// As [`Capture::stop`] and [`Capture::ledger`].
    pub fn close(self) -> Result<Ledger> {
        self.stop()?;
        self.ledger()
    }
}
