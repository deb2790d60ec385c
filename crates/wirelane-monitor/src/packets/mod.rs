//! `wirelane packets`: prints each packet of a capture.

mod application;
mod line;
mod plugin_records;

use std::time::Duration;

use anyhow::Result;
use wirelane::escape::to_json;
use wirelane::{Capture, Interfaces, Ledger, Record, Timebase, Worker};
use wirelane_export::metrics::Endpoint;
use wirelane_screen::packet::{self, Clock, Dump};

use crate::metrics::Metered;
use crate::out;
use crate::report::{Report, Stream};
use crate::run_loop::{self, Handler, Limits, Reporter};
use line::{Line, marks};

/// Parts of packets that are printed, and their format.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// JSON lines instead of text.
    pub json: bool,
    /// Fields of the headers; from 2 on also those of IP.
    pub verbose: u8,
    /// Fields of the Ethernet header.
    pub link: bool,
    /// Fields of HTTP, SIP and RTP.
    pub application: bool,
    /// The bytes, and whether they begin with the link header.
    pub dump: Option<(Dump, bool)>,
}

/// Prints the packets of a capture until its end. `plugins`: names of the capture's plug-ins; `endpoint`: metrics are served
/// there.
///
/// # Errors
/// The capture or standard output fails, or the ledger does not balance.
pub fn run(
    capture: Capture,
    limits: &Limits,
    style: Style,
    clock: &Clock,
    plugins: &[String],
    endpoint: Option<Endpoint>,
) -> Result<()> {
    let json = style.json;
    let (interfaces, devices) = (capture.interfaces(), capture.devices());
    let stream = if json { Stream::Stdout } else { Stream::Stderr };
    let mut reporter = Around { report: Report::new(json, capture.engine(), stream), json };
    let shower = |worker: &Worker| {
        Ok(Shower {
            style,
            clock: clock.clone(),
            time: worker.timebase(),
            interfaces: interfaces.clone(),
            plugins: plugins.to_vec(),
            names: devices.iter().map(|device| device.name.clone()).collect(),
            shown: String::new(),
        })
    };
    let mut metered = Metered::new(endpoint, &mut reporter)?;
    let outcome = run_loop::run(capture, limits, shower, &mut metered)?;
    drop(metered);
    let mut report = reporter.report;
    report.ruled(outcome.rules);
    let shown = report.last(&outcome.ledger, outcome.elapsed);
    outcome.failure.map_or(shown, Err)
}

/// Output besides the packets: for people only the beginning and the end.
struct Around {
    report: Report,
    json: bool,
}

impl Reporter for Around {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if self.json { self.report.interval(ledger, elapsed) } else { Ok(()) }
    }
}

/// Shows the records of one worker, a batch at a time.
struct Shower {
    style: Style,
    clock: Clock,
    time: Timebase,
    interfaces: Interfaces,
    /// Names of the capture's plug-ins.
    plugins: Vec<String>,
    /// Names by device; those of a file's interfaces are added when they appear.
    names: Vec<String>,
    shown: String,
}

/// Maximum bytes of text that are buffered before they are written: batches may be long.
const KEPT: usize = 64 << 10;

impl Shower {
    /// Adds the names up to this device.
    fn learn(&mut self, device: usize) {
        while device >= self.names.len() {
            let interface = self.interfaces.get(self.names.len(), 0);
            let name = interface.map(|interface| interface.device().to_owned());
            self.names.push(name.unwrap_or_default());
        }
    }
}

impl Handler for Shower {
    type Error = anyhow::Error;

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let utc_ns = self.time.utc_ns(record);
        self.learn(record.device());
        if record.plugin().is_some() {
            self.plugin_record(record, utc_ns)?;
            return if self.shown.len() < KEPT { Ok(()) } else { self.pause(false) };
        }
        let marks = marks(record);
        let line = Line::new(record, utc_ns, &self.names[record.device()], &marks, self.style);
        if self.style.json {
            self.shown += &to_json(&line)?;
        } else {
            self.clock.write(&mut self.shown, utc_ns);
            line.text(&mut self.shown);
            if let Some((style, from_link)) = self.style.dump {
                self.shown += &packet::dump(record, style, from_link);
            }
        }
        self.shown.push('\n');
        if self.shown.len() < KEPT { Ok(()) } else { self.pause(false) }
    }

    fn pause(&mut self, _: bool) -> Result<()> {
        if self.shown.is_empty() {
            return Ok(());
        }
        out::print(&self.shown)?;
        self.shown.clear();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.pause(false)
    }
}
