//! The thread that shows and logs transactions.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::SystemTime;

use anyhow::Result;
use wirelane_analysis::http::{Transaction, fields};
use wirelane_export::calendar::{shown_clock, zone_word};
use wirelane_export::flows::OutputCounts;
use wirelane_export::http::{LogCounts, LogFormat, escape_apache};
use wirelane_export::pipeline::http::Outputs;
use wirelane_export::pipeline::{self, Sink};
use wirelane_export::{Limiter, OnWire, OutputLimit, OutputState};

use crate::out;
use crate::shares::Printed;
use crate::status::{Board, BoardWriter};
use crate::store::{Store, Stored};
use wirelane_screen::http::TopModel;
use wirelane_screen::table::amount;

/// How transactions are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// A row per transaction.
    Table,
    /// A log line per transaction.
    Log(LogFormat),
    /// No output.
    Nothing,
}

/// Prints transactions.
pub struct Shown {
    show: Show,
    extra: Vec<Box<str>>,
    number: u64,
    limiter: Limiter,
    /// Whether the header has been printed.
    headed: bool,
}

/// Results of the exporting thread.
pub struct Logged {
    /// Results in each log.
    pub counts: Vec<LogCounts>,
    /// Results at each collector.
    pub exported: Vec<OutputCounts>,
    /// The first log that could not be written.
    pub failure: Option<wirelane_export::Error>,
    /// Number of transactions.
    pub number: u64,
    /// Results of the store, if there is one.
    pub stored: Option<Stored>,
    /// Results of standard output, if transactions are printed.
    pub printed: Option<Printed>,
    /// Result of printing.
    pub result: Result<()>,
}

impl Shown {
    /// A printer in its initial state.
    pub fn new(show: Show, extra: Vec<Box<str>>, limit: OutputLimit) -> Shown {
        Shown { show, extra, number: 0, limiter: Limiter::new(limit), headed: false }
    }

    fn transactions(&mut self, transactions: &[Transaction]) -> Result<()> {
        let mut text = Vec::new();
        if !std::mem::replace(&mut self.headed, true) {
            match self.show {
                Show::Table => text.extend_from_slice(header().as_bytes()),
                Show::Log(format) => {
                    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                    let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
                    text.extend_from_slice(format.header(now_ns).as_bytes());
                }
                Show::Nothing => {}
            }
        }
        for transaction in transactions {
            self.number += 1;
            if self.show == Show::Nothing || !self.limiter.admits(transaction.wire_bytes()) {
                continue;
            }
            let before = text.len();
            match self.show {
                Show::Table => row(&mut text, transaction),
                Show::Log(format) => format.line(&mut text, self.number, transaction, &self.extra),
                Show::Nothing => {}
            }
            self.limiter.spent(text.len() - before);
        }
        if text.is_empty() { Ok(()) } else { out::print(text) }
    }
}

/// Sinks of the transactions besides the logs and exports.
struct Beside {
    shown: Shown,
    store: Option<Store<Transaction>>,
    model: Option<Arc<TopModel>>,
    board: BoardWriter,
}

impl Sink<Transaction> for Beside {
    type Error = anyhow::Error;

    fn take(&mut self, transactions: Vec<Transaction>) -> Result<()> {
        let result = self.shown.transactions(&transactions);
        if let Some(model) = &self.model {
            model.take(&transactions);
        }
        if let Some(store) = &mut self.store {
            store.take(transactions);
        }
        result
    }

    fn told(&mut self, states: &dyn Fn() -> Vec<OutputState>) {
        let Beside { board, shown, store, .. } = self;
        board.update([("transactions", shown.number)], || {
            states().into_iter().chain(store.as_ref().map(Store::state)).collect()
        });
    }

    fn finish(&mut self) -> Result<()> {
        // Prints the header, even without transactions.
        if matches!(self.shown.show, Show::Log(_)) { self.shown.transactions(&[]) } else { Ok(()) }
    }
}

/// Shows and logs transactions until the channel ends; `board` receives the status, `model` what the live view shows.
pub fn log(
    mut outputs: Outputs,
    store: Option<Store<Transaction>>,
    shown: Shown,
    inbox: &Receiver<Vec<Transaction>>,
    (board, model): (Board, Option<Arc<TopModel>>),
) -> Logged {
    let mut beside = Beside { shown, store, model, board: BoardWriter::new(board) };
    let result = pipeline::http::export(&mut outputs, &mut beside, inbox);
    let Outputs { logs, exporters, .. } = outputs;
    let failure = logs.failure().or_else(|| exporters.failure());
    let stored = beside.store.map(Store::finish);
    let (counts, exported) = (logs.counts(), exporters.counts());
    let Shown { show, number, limiter, .. } = &beside.shown;
    let (number, printed) = (*number, (*show != Show::Nothing).then(|| Printed::of(*number, limiter)));
    Logged { counts, exported, failure, number, stored, printed, result }
}

fn header() -> String {
    format!(
        "{:<12} {:<21} {:<7} {:>3} {:>11} {:>9} URL\n",
        format!("time ({})", zone_word()),
        "client",
        "method",
        "",
        "bytes",
        "ms"
    )
}

/// A transaction as a row, without characters that control the terminal.
fn row(out: &mut Vec<u8>, transaction: &Transaction) {
    let text = |bytes: &[u8]| {
        let mut text = Vec::new();
        escape_apache(&mut text, bytes);
        String::from_utf8_lossy(&text).into_owned()
    };
    let (client, server) = (transaction.client, transaction.server);
    let end = |(address, port): (std::net::IpAddr, u16)| std::net::SocketAddr::new(address, port).to_string();
    let (method, url) = match &transaction.request {
        Some(request) => {
            let host = request.field(fields::HOST).map_or_else(|| end(server), text);
            let host = if request.target.starts_with(b"/") { host } else { String::new() };
            (text(&request.method), format!("{host}{}", text(&request.target)))
        }
        None => ("-".to_owned(), end(server)),
    };
    let (status, bytes) = match &transaction.response {
        Some(response) => (response.status.to_string(), amount(response.body)),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let ms = transaction.end_ns().saturating_sub(transaction.start_ns()) as f64 / 1e6;
    let marks: Vec<&str> = transaction.marks.names().collect();
    let marks = if marks.is_empty() { String::new() } else { format!(" [{}]", marks.join(" ")) };
    let (time, client) = (shown_clock(transaction.start_ns()), end(client));
    let row = format!("{time} {client:<21} {method:<7} {status:>3} {bytes:>11} {ms:>9.3} {url}{marks}\n");
    out.extend_from_slice(row.as_bytes());
}
