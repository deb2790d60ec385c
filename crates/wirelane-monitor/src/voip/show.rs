//! The thread that shows and exports calls.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::Result;
use wirelane_analysis::voip::{CallRecord, Ending, Finished, Stream};
use wirelane_export::calendar::{shown_clock, zone_word};
use wirelane_export::pipeline::voip::Outputs;
use wirelane_export::pipeline::{self, Sink};
use wirelane_export::voip::{
    CSV_HEADER, OutputCounts, SavedCalls, SavedCounts, call_csv, call_json, stream_json,
};
use wirelane_export::{Limiter, OnWire, OutputLimit, OutputState};

use crate::out;
use crate::shares::Printed;
use crate::status::BoardWriter;
use crate::store::{Store, Stored};
use wirelane_screen::table::{amount, counted};
use wirelane_screen::voip::TopModel;

/// How calls are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A row per call, and one for each of its streams.
    Table,
    /// A JSON object per call or stream.
    Json,
    /// A CSV line per call.
    Csv,
    /// No output.
    Nothing,
}

/// Prints calls.
pub struct Shown {
    show: Show,
    digits: bool,
    calls: u64,
    streams: u64,
    limiter: Limiter,
    /// Whether the header of a table or of CSV has been printed.
    headed: bool,
}

/// Results of the exporting thread.
pub struct Exported {
    /// Results at each output.
    pub counts: Vec<OutputCounts>,
    /// The first file that could not be written.
    pub failure: Option<wirelane_export::Error>,
    /// Results of the store, if there is one.
    pub stored: Option<Stored>,
    /// Results of capture files, if there are any.
    pub saved: Option<SavedCounts>,
    /// Results of standard output, if calls are printed.
    pub printed: Option<Printed>,
    /// Result of printing.
    pub result: Result<()>,
}

impl Shown {
    /// A printer in its initial state. `digits`: show the pressed keys.
    pub fn new(show: Show, digits: bool, limit: OutputLimit) -> Shown {
        Shown { show, digits, calls: 0, streams: 0, limiter: Limiter::new(limit), headed: false }
    }

    fn show(&mut self, finished: &[Finished]) -> Result<()> {
        let mut text = Vec::new();
        if !std::mem::replace(&mut self.headed, true) {
            match self.show {
                Show::Table => text.extend_from_slice(header().as_bytes()),
                Show::Csv => text.extend_from_slice(CSV_HEADER.as_bytes()),
                Show::Json | Show::Nothing => {}
            }
        }
        for one in finished {
            match one {
                Finished::Call(_) => self.calls += 1,
                Finished::Stream(..) => self.streams += 1,
                Finished::Signal(_) | Finished::Kept(_) => continue,
            }
            // The CSV table of calls cannot represent other streams.
            let has_place = self.show != Show::Csv || matches!(one, Finished::Call(_));
            if self.show == Show::Nothing || !has_place || !self.limiter.admits(one.wire_bytes()) {
                continue;
            }
            let before = text.len();
            match one {
                Finished::Call(record) => match self.show {
                    Show::Table => text.extend_from_slice(row(record).as_bytes()),
                    Show::Json => call_json(&mut text, self.calls, record, self.digits),
                    Show::Csv => call_csv(&mut text, record),
                    Show::Nothing => {}
                },
                Finished::Stream(stream, ending) => match self.show {
                    Show::Table => text.extend_from_slice(alone(stream, *ending).as_bytes()),
                    Show::Json => stream_json(&mut text, self.streams, stream, *ending, self.digits),
                    Show::Csv | Show::Nothing => {}
                },
                Finished::Signal(_) | Finished::Kept(_) => {}
            }
            self.limiter.spent(text.len() - before);
        }
        if text.is_empty() { Ok(()) } else { out::print(text) }
    }
}

/// Sinks of the calls besides the exports.
pub struct Beside {
    /// The store.
    pub store: Option<Store<Finished>>,
    /// The live view.
    pub model: Option<Arc<TopModel>>,
    /// Standard output.
    pub shown: Shown,
    /// Status for whoever asks.
    pub board: BoardWriter,
}

impl Sink<Finished> for Beside {
    type Error = anyhow::Error;

    fn take(&mut self, mut finished: Vec<Finished>) -> Result<()> {
        let result = self.shown.show(&finished);
        if let Some(model) = &self.model {
            model.take(&finished);
        }
        if let Some(store) = &mut self.store {
            finished.retain(|one| matches!(one, Finished::Call(_) | Finished::Stream(..)));
            store.take(finished);
        }
        result
    }

    fn told(&mut self, states: &dyn Fn() -> Vec<OutputState>) {
        let Beside { board, shown, store, .. } = self;
        board.update([("calls", shown.calls), ("streams", shown.streams)], || {
            states().into_iter().chain(store.as_ref().map(Store::state)).collect()
        });
    }

    fn finish(&mut self) -> Result<()> {
        // Prints the header, even without calls.
        if self.shown.show == Show::Csv { self.shown.show(&[]) } else { Ok(()) }
    }
}

/// Shows and exports calls until the channel ends.
pub fn export(mut outputs: Outputs, mut beside: Beside, inbox: &Receiver<Vec<Finished>>) -> Exported {
    let result = pipeline::voip::export(&mut outputs, &mut beside, inbox);
    let Outputs { exporters, mut saved, .. } = outputs;
    let stored = beside.store.map(Store::finish);
    let counts = saved.as_mut().map(SavedCalls::finish);
    let unsaved = || saved.as_ref().and_then(SavedCalls::failure);
    let failure = exporters.failure().or_else(unsaved);
    let shown = &beside.shown;
    let number = shown.calls + if shown.show == Show::Csv { 0 } else { shown.streams };
    let printed = (shown.show != Show::Nothing).then(|| Printed::of(number, &shown.limiter));
    Exported { counts: exporters.counts(), failure, stored, saved: counts, printed, result }
}

/// Width of a party: a longer one shifts the following columns to the right.
const PARTY: usize = 30;

fn header() -> String {
    format!(
        "{:<13} {:>8} {:<PARTY$}    {:<PARTY$} {:<9} {:>6} {:>8} {:>5} reason\n",
        format!("start ({})", zone_word()),
        "seconds",
        "from",
        "to",
        "state",
        "status",
        "delay ms",
        "MOS"
    )
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.decimals$}"))
}

/// A call as a row, with its streams below. Its texts contain no control characters.
fn row(record: &CallRecord) -> String {
    let call = &record.call;
    let end = call.end_ns.unwrap_or(call.last_ns);
    let mut text = format!(
        "{:<13} {:>8.3} {:<PARTY$} -> {:<PARTY$} {:<9} {:>6} {:>8} {:>5} {}\n",
        shown_clock(call.invite_ns),
        end.saturating_sub(call.invite_ns) as f64 / 1e9,
        call.from_uri,
        call.to_uri,
        call.state.name(),
        if call.status == 0 { "-".into() } else { call.status.to_string() },
        number(call.post_dial_delay_ns().map(|ns| ns as f64 / 1e6), 1),
        number(record.mos(), 2),
        record.ending.name(),
    );
    for stream in &record.streams {
        let toward = stream.toward.map_or("", |party| party.name());
        text += &format!("{:>22} {}\n", format!("to {toward}"), told(stream));
    }
    text
}

/// A stream that does not belong to a call.
fn alone(stream: &Stream, ending: Ending) -> String {
    let seconds = stream.rtp.last_ns.saturating_sub(stream.rtp.first_ns) as f64 / 1e9;
    format!("{:<13} {seconds:>8.3} {} {}\n", shown_clock(stream.rtp.first_ns), told(stream), ending.name())
}

fn told(stream: &Stream) -> String {
    let rtp = &stream.rtp;
    let end = |place| std::net::SocketAddr::from(place).to_string();
    let mut text = format!(
        "{} -> {} {}: {}, {} lost",
        end(stream.from),
        end(stream.to),
        if stream.codec().is_empty() { "codec unknown" } else { stream.codec() },
        counted(rtp.packets, "packet"),
        amount(rtp.lost),
    );
    for (what, number) in [
        ("duplicate", rtp.duplicate),
        ("out of order", rtp.out_of_order),
        ("stray", rtp.stray),
        ("malformed", rtp.malformed),
    ] {
        if number > 0 {
            text += &format!(", {} {what}", amount(number));
        }
    }
    if rtp.jitters > 0 {
        let mean = rtp.jitter_sum_ns as f64 / rtp.jitters as f64 / 1e6;
        text += &format!(", jitter {mean:.3} ms (at most {:.3})", rtp.max_jitter_ns as f64 / 1e6);
    }
    if let Some(quality) = stream.quality() {
        text += &format!(", R {:.1}, MOS {:.2}", quality.r, quality.mos);
    }
    if stream.capture_lost > 0 {
        text += &format!("; THE CAPTURE lost {} meanwhile", counted(stream.capture_lost, "packet"));
    }
    text
}
