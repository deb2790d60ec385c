//! `wirelane http --top`: transactions as they come, and sums by host, URL, client and status.

mod view;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wirelane_analysis::http::{Transaction, fields};

use crate::terminal::{self, Controls, Effect, Key};

/// Remembered transactions.
const LATEST: usize = 500;
/// Rows of each grouping that are remembered; the others become one row.
const ROWS: usize = 4096;
/// Groupings of sums.
pub const GROUPING: [&str; 4] = ["host", "URL", "client", "status"];
/// Columns by which sums are sorted.
pub const COLUMNS: [&str; 4] = ["requests", "errors", "bytes", "mean ms"];
/// Name of the row of rows that are not remembered.
pub const REST: &str = "others";

/// A transaction.
#[derive(Clone, Debug)]
pub struct Line {
    /// Start in UTC nanoseconds.
    pub start_ns: u64,
    /// Client, with its port.
    pub client: String,
    /// Method (unescaped).
    pub method: String,
    /// Status; `None`: no response.
    pub status: Option<u16>,
    /// Bytes of the response's body.
    pub bytes: u64,
    /// Duration in milliseconds.
    pub ms: f64,
    /// Host and path (unescaped).
    pub url: String,
}

/// Sums of a row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Transactions.
    pub requests: u64,
    /// Transactions without response, or with a status from 400 on.
    pub errors: u64,
    /// Bytes of responses' bodies.
    pub bytes: u64,
    /// Sum of durations in milliseconds.
    pub ms: f64,
}

impl Sum {
    /// Mean duration in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.ms / self.requests as f64 }
    }

    fn add(&mut self, other: &Sum) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.ms += other.ms;
    }
}

/// Results so far.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// The latest transactions, the last one first.
    pub latest: VecDeque<Line>,
    /// Sums by name in each grouping.
    pub sums: [HashMap<String, Sum>; GROUPING.len()],
    /// Sum of all transactions.
    pub all: Sum,
}

/// State of the view.
#[derive(Debug, Default)]
pub struct Told {
    live: Now,
    still: Option<Now>,
    /// Index of the grouping; `None`: single transactions.
    pub grouping: Option<usize>,
    /// Index of the column by which sums are sorted.
    pub sort: usize,
    /// Number of rows above the first one on the screen.
    pub scrolled: usize,
    /// Help and filter.
    pub controls: Controls,
}

/// The shared state.
#[derive(Debug, Default)]
pub struct TopModel(Mutex<Told>);

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Line {
    fn of(transaction: &Transaction) -> (Line, String) {
        let end =
            |(address, port): (std::net::IpAddr, u16)| std::net::SocketAddr::new(address, port).to_string();
        let request = transaction.request.as_ref();
        let named = request.and_then(|request| request.field(fields::HOST)).map(text);
        let host = named.unwrap_or_else(|| end(transaction.server));
        let path = request.map_or_else(String::new, |request| text(&request.target));
        let url = if path.starts_with('/') { format!("{host}{path}") } else { path };
        let response = transaction.response.as_ref();
        let line = Line {
            start_ns: transaction.start_ns(),
            client: end(transaction.client),
            method: request.map_or_else(|| "-".to_owned(), |request| text(&request.method)),
            status: response.map(|response| response.status),
            bytes: response.map_or(0, |response| response.body),
            ms: transaction.end_ns().saturating_sub(transaction.start_ns()) as f64 / 1e6,
            url,
        };
        (line, host)
    }
}

impl TopModel {
    /// Locks the state.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds transactions.
    pub fn take(&self, transactions: &[Transaction]) {
        let mut told = self.told();
        for transaction in transactions {
            let (line, host) = Line::of(transaction);
            // Of a URL, the part before its query.
            let url = line.url.split('?').next().unwrap_or_default().to_owned();
            let status = line.status.map_or_else(|| "none".to_owned(), |status| status.to_string());
            told.live.add(line, [host, url, transaction.client.0.to_string(), status]);
        }
    }
}

impl Now {
    fn add(&mut self, line: Line, names: [String; GROUPING.len()]) {
        let failed = line.status.is_none_or(|status| status >= 400);
        let one = Sum { requests: 1, errors: u64::from(failed), bytes: line.bytes, ms: line.ms };
        self.all.add(&one);
        for (rows, name) in self.sums.iter_mut().zip(names) {
            let name = if rows.len() < ROWS || rows.contains_key(&name) { name } else { REST.to_owned() };
            rows.entry(name).or_default().add(&one);
        }
        self.latest.push_front(line);
        self.latest.truncate(LATEST);
    }
}

impl Told {
    /// The results that are shown.
    pub fn now(&self) -> &Now {
        self.still.as_ref().unwrap_or(&self.live)
    }

    /// Whether the view is paused.
    pub fn stands_still(&self) -> bool {
        self.still.is_some()
    }

    /// The transactions with the filter's text.
    pub fn lines(&self) -> Vec<&Line> {
        let admitted = |line: &&Line| {
            let status = line.status.map_or_else(String::new, |status| status.to_string());
            self.controls.admits([&*line.client, &*line.method, &*line.url, &*status])
        };
        self.now().latest.iter().filter(admitted).collect()
    }

    /// The sums of the grouping, with the filter's text, in their order.
    pub fn sums(&self) -> Vec<(&str, &Sum)> {
        let all = self.grouping.map(|at| &self.now().sums[at]).into_iter().flatten();
        let mut rows: Vec<(&str, &Sum)> = all
            .map(|(name, sum)| (name.as_str(), sum))
            .filter(|(name, _)| self.controls.admits([*name]))
            .collect();
        let number = |sum: &Sum| match self.sort {
            1 => sum.errors as f64,
            2 => sum.bytes as f64,
            3 => sum.mean_ms(),
            _ => sum.requests as f64,
        };
        rows.sort_by(|a, b| number(b.1).total_cmp(&number(a.1)).then_with(|| a.0.cmp(b.0)));
        rows
    }
}

impl terminal::TopModel for TopModel {
    fn typed(&self, key: Key) -> Effect {
        let mut told = self.told();
        if let Some(effect) = told.controls.typed(key) {
            return effect;
        }
        let rows = key.rows();
        let grouping = match key {
            Key::Letter('t') => Some(None),
            Key::Letter('h') => Some(Some(0)),
            Key::Letter('u') => Some(Some(1)),
            Key::Letter('c') => Some(Some(2)),
            Key::Letter('r') => Some(Some(3)),
            _ => None,
        };
        match key {
            _ if grouping.is_some() => (told.grouping, told.scrolled) = (grouping.flatten(), 0),
            Key::Letter('s') => told.sort = (told.sort + 1) % COLUMNS.len(),
            Key::Letter('p') => {
                told.still = if told.still.is_some() { None } else { Some(told.live.clone()) }
            }
            _ if rows != 0 => {
                let all = if told.grouping.is_some() { told.sums().len() } else { told.lines().len() };
                told.scrolled = told.scrolled.saturating_add_signed(rows).min(all.saturating_sub(1));
            }
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }
}
