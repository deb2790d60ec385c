//! Layout of the live view.
//!
//! Numbers of packets and bytes are exact; rates have three digits. All external text is escaped.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane::ledger::Counters;
use wirelane_analysis::flows::{BusyFlow, EndReason, Flow, Totals};
use wirelane_export::flows::{OutputCounts, protocol, reason};

use super::ends;
use super::model::{COLUMNS, Told};
use super::names::Names;
use super::sums::{GROUPING, GROUPINGS, Key, Row, WINDOWS, record};
use crate::table::{amount, counted, printable, rate};
use crate::terminal::{Page, cut, ledger_rows};

/// Packets and bits per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub pps: f64,
    pub bps: f64,
}

/// A device, or one of its RX queues.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub name: String,
    pub is_queue: bool,
    pub rates: Rates,
    pub lost: u64,
    pub shed: u64,
    /// Packets per second, for each interval.
    pub history: Vec<u64>,
}

/// The whole view.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub elapsed: Duration,
    pub lines: Vec<Line>,
    pub ledger: Counters,
    pub balances: bool,
    /// Active flows, and the capacity.
    pub live: usize,
    pub room: usize,
    pub ended: Totals,
    pub ended_per_s: f64,
    pub unsampled: u64,
    /// Traffic in each grouping.
    pub rows: [Vec<Row>; GROUPINGS],
    /// Results at the outputs, each with flows per second.
    pub outputs: Vec<(f64, OutputCounts)>,
}

/// Keys of this screen.
const KEYS: &[(&str, &str)] = &[
    ("f h c a", "sum by flow, host, conversation, application"),
    ("g", "sum by the next of these"),
    ("s", "sort by the next column: 2 s, 10 s, 40 s, packets, bytes"),
    ("p", "pause, and go on"),
    ("j k, arrows", "scroll; page keys, Home and End, too"),
];

/// Minimum rows of traffic before devices and outputs get more than their first row.
const LEAST_FLOWS: usize = 6;

/// Draws the whole view. `title`: names of the devices and the engine.
pub fn draw(frame: &mut Frame<'_>, told: &Told, title: &str, message: Option<&String>) {
    let view = told.view();
    let area = frame.area();
    let width = usize::from(area.width);
    let mut ledger = ledger_rows(&view.ledger, view.balances, width);
    if view.unsampled > 0 {
        ledger.push(format!("        unsampled {}", amount(view.unsampled)));
    }
    let outputs = outputs(view, width);
    let bottom = told.controls.bottom_rows(message);
    // Rows that are always shown: the title, the headers, the ledger, the line of flows.
    let fixed = 1 + 1 + ledger.len() + 1 + 1 + bottom;
    let free = usize::from(area.height).saturating_sub(fixed + LEAST_FLOWS);
    let devices = view.lines.len().min(free.saturating_sub(outputs.len()).max(1));
    let outputs = clipped(outputs, free.saturating_sub(devices).max(1), "outputs");
    let mut page = Page::new(frame);
    let paused = if told.stands_still() { "PAUSED  " } else { "" };
    page.title(&format!("wirelane flows  {}", printable(title)), view.elapsed, paused);
    page.devices(&view.lines, devices);
    for line in &ledger {
        page.text(line, Style::new());
    }
    for line in &outputs {
        page.text(line, Style::new());
    }
    page.text(&flows(view), Style::new());
    let rest = page.left_but(bottom);
    page.traffic(told, rest);
    page.bottom(&told.controls, message, KEYS);
}

/// The texts of a row: both ends of a flow or conversation; a host or application, and nothing.
pub fn ends_of(row: &Row, names: Option<&Names>) -> [String; 2] {
    let host = |address| names.map_or_else(|| format!("{address}"), |names| names.host(address));
    match &row.key {
        Key::Flow(key) => {
            let record = record(&BusyFlow { key: *key, flow: Flow::default(), packets: 0, wire_bytes: 0 });
            let named = match (names, record.source(), record.destination(), record.icmp()) {
                (Some(names), Some(source), Some(destination), None) if record.source_port() != 0 => {
                    let end = |address, port| names.end(address, port, record.key.proto);
                    Some([end(source, record.source_port()), end(destination, record.destination_port())])
                }
                _ => None,
            };
            named.unwrap_or_else(|| ends(&record).into())
        }
        Key::Host(address) => [host(*address), String::new()],
        Key::Pair(one, other) => [host(*one), host(*other)],
        Key::Application(name) => [name.clone(), String::new()],
        Key::Other(kind) => [format!("EtherType 0x{kind:04x}"), String::new()],
        Key::Rest => ["others".into(), String::new()],
    }
}

/// The protocol of a flow's row.
fn protocol_of(row: &Row) -> String {
    match &row.key {
        Key::Flow(key) => {
            let flow = BusyFlow { key: *key, flow: Flow::default(), packets: 0, wire_bytes: 0 };
            protocol(&record(&flow)).to_string()
        }
        _ => String::new(),
    }
}

impl Page<'_, '_> {
    fn devices(&mut self, lines: &[Line], most: usize) {
        // A name is never cut if the numbers have room beside it.
        let indented =
            |line: &Line| printable(&line.name).chars().count() + if line.is_queue { 2 } else { 0 };
        let longest = lines.iter().map(indented).max().unwrap_or(0);
        let name_columns = longest.clamp(16, self.width().saturating_sub(36).max(16));
        // The history is right of the numbers, and takes the rest of the row.
        let past_column = name_columns as u16 + 38;
        let title = format!(
            "{:<name_columns$} {:>8} {:>8} {:>8} {:>8}",
            "device", "packet/s", "bit/s", "lost", "shed"
        );
        self.header(&title, if self.width() > 75 { "packet/s before" } else { "" });
        let (shown, left) = match lines.len() > most {
            true => (most.saturating_sub(1), lines.len() - most.saturating_sub(1)),
            false => (lines.len(), 0),
        };
        for line in &lines[..shown] {
            let indent = if line.is_queue { "  " } else { "" };
            let name = cut(&format!("{indent}{}", printable(&line.name)), name_columns);
            let Rates { pps, bps } = line.rates;
            let (pps, bps) = (rate(pps), rate(bps));
            let (lost, shed) = (short(line.lost, 8), short(line.shed, 8));
            let text = format!("{name:<name_columns$} {pps:>8} {bps:>8} {lost:>8} {shed:>8}");
            if let Some(place) = self.place(past_column) {
                let from = line.history.len().saturating_sub(usize::from(place.width));
                let past = Sparkline::default().data(&line.history[from..]);
                self.frame.render_widget(past.style(Style::new().fg(Color::Cyan)), place);
            }
            if let Some(place) = self.place(0) {
                let place = Rect { width: place.width.min(past_column - 1), ..place };
                self.frame.render_widget(Paragraph::new(text), place);
            }
            self.row = self.row.saturating_add(1);
        }
        if left > 0 {
            self.text(&format!("  and {left} more"), Style::new());
        }
    }

    /// The rows of the grouping, and their sum.
    fn traffic(&mut self, told: &Told, rows: usize) {
        let all = told.rows();
        let wide = self.width() >= 110;
        let grouping = GROUPING[told.grouping];
        // Without a flow's protocol and application there is more room for names.
        let before = if told.grouping == 0 { 6 } else { 0 };
        let application = if told.grouping == 0 && wide { 12 } else { 0 };
        let (packets, bytes) = if wide { (12, 16) } else { (10, 8) };
        let numbers = 3 * 6 + packets + if wide || told.grouping != 0 { bytes } else { 0 };
        let room = self.width().saturating_sub(before + application + numbers);
        let two = matches!(told.grouping, 0 | 2);
        let end = if two { room.saturating_sub(1) / 2 } else { room }.max(8);
        let mark = |column: usize| {
            if told.sort == column { format!("{}v", COLUMNS[column]) } else { COLUMNS[column].to_owned() }
        };
        let cells = |texts: [String; 5]| {
            let [a, b, c, d, e] = texts;
            let mut cells = format!("{a:>6}{b:>6}{c:>6}{d:>packets$}");
            if numbers > 3 * 6 + packets {
                cells += &format!("{e:>bytes$}");
            }
            cells
        };
        let names = |protocol: &str, one: &str, other: &str, application_name: &str| {
            let mut text = if before > 0 { format!("{protocol:<5} ") } else { String::new() };
            text += &format!("{:<end$}", cut(&printable(one), end));
            if two {
                text += &format!(" {:<end$}", cut(&printable(other), end));
            }
            if application > 0 {
                text += &format!(" {:<11}", cut(application_name, 11));
            }
            text
        };
        let (one, other) = match told.grouping {
            0 => ("source", "destination"),
            2 => ("host", "and host"),
            _ => (grouping, ""),
        };
        let title = names("prot", one, other, "application") + &cells([0, 1, 2, 3, 4].map(mark));
        self.header(&title, "");
        // The last row has the sum, and says which rows these are.
        let shown = rows.saturating_sub(2);
        let first = told.scrolled.min(all.len().saturating_sub(shown.min(all.len())));
        for row in all.iter().skip(first).take(shown) {
            let [one, other] = ends_of(row, told.names.as_deref());
            let text = names(&protocol_of(row), &one, &other, row.application);
            let rates = row.rates.map(rate);
            let [a, b, c] = rates;
            self.text(
                &(text + &cells([a, b, c, short(row.packets, packets - 1), short(row.bytes, bytes - 1)])),
                Style::new(),
            );
        }
        let last = all.len().min(first + shown);
        let sum = |number: &dyn Fn(&Row) -> f64| all.iter().map(|row| number(row)).sum::<f64>();
        let whole = |number: &dyn Fn(&Row) -> u64| all.iter().map(|row| number(row)).sum::<u64>();
        let [a, b, c] =
            [0, 1, 2].map(|window: usize| rate(sum(&|row| row.rates[window.min(WINDOWS.len() - 1)])));
        let where_ = match (first, last == all.len()) {
            (0, true) => counted(all.len() as u64, grouping),
            _ => format!("{} to {} of {}", first + 1, last, counted(all.len() as u64, grouping)),
        };
        let columns = before + application + if two { 2 * end + 1 } else { end };
        let (all_packets, all_bytes) = (whole(&|row| row.packets), whole(&|row| row.bytes));
        // A packet belongs to two hosts, so their sum would count it twice.
        let counts_once = told.grouping != 1;
        let sums = [a, b, c, short(all_packets, packets - 1), short(all_bytes, bytes - 1)];
        // The unit of the rates above, beside their sums.
        let (unit, cells) = if counts_once { (" bit/s", cells(sums)) } else { ("", String::new()) };
        let place = columns - unit.len();
        let text = format!("{:<place$}{unit}", cut(&where_, place));
        if rows > 1 {
            self.header(&(text + &cells), "");
        }
    }
}

fn flows(view: &View) -> String {
    let reasons = [EndReason::Idle, EndReason::Active, EndReason::Ended, EndReason::Resources];
    let ended = view.ended.by_reason;
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|why| ended[**why as usize] > 0)
        .map(|why| format!("{} {}", amount(ended[*why as usize]), reason(*why)))
        .collect();
    format!(
        "flows   {} now (of {}), {} ended ({}/s){}{}",
        amount(view.live as u64),
        rate(view.room as f64),
        amount(view.ended.flows),
        rate(view.ended_per_s),
        if reasons.is_empty() { "" } else { ": " },
        reasons.join(", ")
    )
}

/// Results of flows, one output per row: collectors, files, and other outputs.
fn outputs(view: &View, width: usize) -> Vec<String> {
    let row = |(per_s, counts): &(f64, OutputCounts)| {
        let mut text =
            format!("to {}: {} flows ({}/s)", printable(&counts.target), amount(counts.flows), rate(*per_s));
        for (what, number) in [
            ("unsent", counts.unsent_flows),
            ("not exportable", counts.not_exportable),
            ("times refused", counts.refused),
            ("bytes wait", counts.waiting),
        ] {
            if number > 0 {
                text += &format!(", {} {what}", amount(number));
            }
        }
        if let Some(error) = &counts.error {
            text += &format!("; {}", printable(error));
        }
        cut(&text, width)
    };
    view.outputs.iter().map(row).collect()
}

/// The first of these rows, and the number of omitted ones.
fn clipped(mut rows: Vec<String>, most: usize, what: &str) -> Vec<String> {
    if rows.len() > most {
        let left = rows.len() - (most - 1);
        rows.truncate(most - 1);
        rows.push(format!("and {left} more {what}"));
    }
    rows
}

/// A number in this many columns: exact if it fits.
fn short(number: u64, columns: usize) -> String {
    let text = amount(number);
    if text.len() <= columns { text } else { rate(number as f64) }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
