//! The thread that shows and exports flows.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::Result;
use wirelane_analysis::flows::FlowRecord;
use wirelane_export::calendar::{shown_clock, zone_word};
use wirelane_export::flows::{
    CSV_HEADER, Exporters, Naming, OutputCounts, csv_line, json_line, protocol, reason, tcp_flags,
};
use wirelane_export::pipeline::{self, Sink};
use wirelane_export::{Limiter, OutputLimit, OutputState};

use crate::out;
use crate::shares::Printed;
use crate::status::{Board, BoardWriter};
use crate::store::{Store, Stored};
use wirelane_screen::flows::{Shared, ends};
use wirelane_screen::table::amount;

/// How flows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A row per flow.
    Table,
    /// A JSON object per flow.
    Json,
    /// A CSV line per flow.
    Csv,
    /// No output.
    Nothing,
}

/// Prints flows.
pub struct Shown {
    show: Show,
    naming: Naming,
    number: u64,
    limiter: Limiter,
    /// Whether the header of a table or of CSV has been printed.
    headed: bool,
}

/// Results of the exporting thread.
pub struct Exported {
    /// Results at the outputs.
    pub counts: Exports,
    /// Result of printing.
    pub result: Result<()>,
}

/// Results of the flows at the outputs.
pub struct Exports {
    /// Results at each output.
    pub counts: Vec<OutputCounts>,
    /// The first file that could not be written.
    pub failure: Option<wirelane_export::Error>,
    /// Results of the store, if there is one.
    pub stored: Option<Stored>,
    /// Results of standard output, if flows are printed.
    pub printed: Option<Printed>,
}

impl Shown {
    /// A printer in its initial state.
    pub fn new(show: Show, naming: Naming, limit: OutputLimit) -> Shown {
        Shown { show, naming, number: 0, limiter: Limiter::new(limit), headed: false }
    }

    fn flows(&mut self, flows: &[FlowRecord]) -> Result<()> {
        if self.show == Show::Nothing {
            self.number += flows.len() as u64;
            return Ok(());
        }
        let mut text = Vec::new();
        if !self.headed {
            self.headed = true;
            match self.show {
                Show::Table => text.extend_from_slice(header().as_bytes()),
                Show::Csv => text.extend_from_slice(CSV_HEADER.as_bytes()),
                Show::Json | Show::Nothing => {}
            }
        }
        for flow in flows {
            self.number += 1;
            if !self.limiter.admits(flow.wire_bytes()) {
                continue;
            }
            let before = text.len();
            match self.show {
                Show::Table => text.extend_from_slice(row(flow).as_bytes()),
                Show::Json => json_line(&mut text, self.number, flow, &self.naming),
                Show::Csv => csv_line(&mut text, flow, &self.naming),
                Show::Nothing => {}
            }
            self.limiter.spent(text.len() - before);
        }
        out::print(text)
    }
}

/// Interval at which the live view receives the results at outputs.
const REST: Duration = Duration::from_millis(100);

/// Sinks of the flows besides the exports.
struct Beside {
    shown: Shown,
    store: Option<Store<FlowRecord>>,
    screen: Option<Arc<Shared>>,
    told: Option<Instant>,
    board: BoardWriter,
}

impl Sink<FlowRecord> for Beside {
    type Error = anyhow::Error;

    fn take(&mut self, flows: Vec<FlowRecord>) -> Result<()> {
        let result = self.shown.flows(&flows);
        if let Some(store) = &mut self.store {
            store.take(flows);
        }
        result
    }

    fn look(&mut self, outputs: &dyn Fn() -> Vec<OutputCounts>) {
        if let Some(screen) = &self.screen
            && self.told.is_none_or(|told| told.elapsed() >= REST)
        {
            screen.outputs(outputs());
            self.told = Some(Instant::now());
        }
    }

    fn told(&mut self, states: &dyn Fn() -> Vec<OutputState>) {
        let Beside { board, shown, store, .. } = self;
        board.update([("flows", shown.number)], || {
            states().into_iter().chain(store.as_ref().map(Store::state)).collect()
        });
    }

    fn finish(&mut self) -> Result<()> {
        // Prints the header, even without flows.
        if self.shown.show == Show::Csv { self.shown.flows(&[]) } else { Ok(()) }
    }
}

/// Shows and exports flows until the channel ends. The live view `screen`, if there is one, receives the results, and
/// `board` the status.
pub fn export(
    mut exporters: Exporters,
    store: Option<Store<FlowRecord>>,
    shown: Shown,
    inbox: &Receiver<Vec<FlowRecord>>,
    screen: Option<Arc<Shared>>,
    board: Board,
) -> Exported {
    let board = BoardWriter::new(board);
    let mut beside = Beside { shown, store, screen, told: None, board };
    let result = pipeline::flows::export(&mut exporters, &mut beside, inbox);
    let stored = beside.store.map(Store::finish);
    let Shown { show, number, limiter, .. } = &beside.shown;
    let printed = (*show != Show::Nothing).then(|| Printed::of(*number, limiter));
    let (counts, failure) = (exporters.counts(), exporters.failure());
    Exported { counts: Exports { counts, failure, stored, printed }, result }
}

/// Width of an address with port: an IPv6 address may be longer, and shifts the following columns to the right.
const END: usize = 21;

fn header() -> String {
    format!(
        "{:<15} {:>8} {:<5} {:<END$}    {:<END$} {:<8} {:>9} {:>12} reason\n",
        format!("end ({})", zone_word()),
        "seconds",
        "prot",
        "source",
        "destination",
        "flags",
        "packets",
        "bytes"
    )
}

/// A flow as a row. The reverse direction of a bidirectional flow is a row of its own below it.
fn row(record: &FlowRecord) -> String {
    let flow = &record.flow;
    let seconds = (record.last_ns() - record.first_ns()) as f64 / 1e9;
    let (source, destination) = ends(record);
    let flags = |flags: u8| if record.key.proto == 6 { tcp_flags(flags) } else { String::new() };
    let time = shown_clock(record.last_ns());
    let prot = protocol(record);
    let reason = reason(record.reason);
    let mut text = format!(
        "{time:<15} {seconds:>8.3} {prot:<5} {source:<END$} -> {destination:<END$} {:<8} {:>9} {:>12} {reason}\n",
        flags(flow.tcp_flags),
        amount(flow.packets),
        amount(flow.bytes),
    );
    if let Some(back) = &record.reverse {
        text += &format!(
            "{:<15} {:>8} {:<5} {:<END$} <- {:<END$} {:<8} {:>9} {:>12}\n",
            "",
            "",
            "",
            "",
            "",
            flags(back.tcp_flags),
            amount(back.packets),
            amount(back.bytes),
        );
    }
    text
}
