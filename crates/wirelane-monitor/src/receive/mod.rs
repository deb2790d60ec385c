//! Streams of numbered packets: the worker's handler, and the report.
//!
//! The worker owns the streams. It hands a report of them over a few times a second, between two batches, and the last one at
//! the end.

mod report;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use wirelane::{Capture, Ledger, Record, Timebase};
use wirelane_analysis::numbered::Streams;
use wirelane_send::Stamp;

pub use report::ReceiveReport;

use crate::report::Report;
use crate::run_loop::{Handler, Reporter};

/// Time between two reports that are handed over.
const HAND_OVER: Duration = Duration::from_millis(100);

/// Number of packets that were sent: in each stream, or in this one.
pub type Expected = BTreeMap<Option<u16>, u64>;

/// The latest report of a worker.
#[derive(Clone, Debug, Default)]
pub struct Latest(Arc<Mutex<ReceiveReport>>);

impl Latest {
    /// A copy of the latest report.
    pub fn get(&self) -> ReceiveReport {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, report: ReceiveReport) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// Reads the numbers of a worker's packets.
pub struct Receiver {
    streams: Streams,
    other: u64,
    time: Timebase,
    expected: Expected,
    latest: Latest,
    handed_over: Instant,
}

impl Receiver {
    /// A receiver that hands its reports over to `latest`.
    pub fn new(time: Timebase, expected: Expected, latest: Latest) -> Receiver {
        let (streams, handed_over) = (Streams::default(), Instant::now());
        Receiver { streams, other: 0, time, expected, latest, handed_over }
    }

    fn hand_over(&mut self) {
        self.handed_over = Instant::now();
        self.latest.set(ReceiveReport::new(&self.streams, self.other, &self.expected));
    }
}

impl Handler for Receiver {
    type Error = anyhow::Error;

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        // Of an aggregate only the first packet has its headers.
        let packets = u64::from(record.segments());
        match record.payload().and_then(Stamp::read) {
            Some(Stamp { number, stream, sent_ns }) => {
                self.other += packets - 1;
                let arrived_ns = self.time.utc_ns(record);
                self.streams.add(stream, number, sent_ns, arrived_ns, record.wire_len());
            }
            None => self.other += packets,
        }
        Ok(())
    }

    fn pause(&mut self, _: bool) -> Result<()> {
        if self.handed_over.elapsed() >= HAND_OVER {
            self.hand_over();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.hand_over();
        Ok(())
    }
}

/// Adds the streams to the report of the capture.
pub struct StreamsReporter {
    report: Report,
    latest: Latest,
}

impl StreamsReporter {
    /// A reporter that shows the latest streams.
    pub fn new(report: Report, latest: Latest) -> StreamsReporter {
        StreamsReporter { report, latest }
    }

    /// The report, with the final streams.
    pub fn into_report(mut self) -> Report {
        self.report.receive(self.latest.get());
        self.report
    }
}

impl Reporter for StreamsReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.report.receive(self.latest.get());
        self.report.interval(ledger, elapsed)
    }
}
