//! Layout of the live view.
//!
//! Numbers of packets and bytes are exact; rates have three digits. All external text is escaped.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane::ledger::Counters;
use wirelane_analysis::flows::{EndReason, FlowRecord, Totals};
use wirelane_export::flows::{OutputCounts, protocol, reason};

use super::{Busy, ends};
use crate::table::{amount, printable, rate};
use crate::terminal::{Page, cut, header};

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
#[derive(Debug, Default)]
pub struct View {
    pub title: String,
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
    pub busiest: Vec<Busy>,
    /// Results at the outputs, each with flows per second.
    pub outputs: Vec<(f64, OutputCounts)>,
    pub message: Option<String>,
}

impl crate::terminal::View for View {
    fn draw(&self, frame: &mut Frame<'_>) {
        draw(frame, self);
    }
}

/// Minimum rows of the busiest flows before devices and outputs get more than their first row.
const LEAST_FLOWS: usize = 4;

/// Draws the whole view.
fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let width = usize::from(area.width);
    let ledger = ledger(view, width);
    let outputs = outputs(view, width);
    let message = usize::from(view.message.is_some());
    // Rows that are always shown: the title, the headers, the ledger, the line of flows.
    let fixed = 1 + 1 + ledger.len() + 1 + 1 + message;
    let free = usize::from(area.height).saturating_sub(fixed + LEAST_FLOWS);
    let devices = view.lines.len().min(free.saturating_sub(outputs.len()).max(1));
    let outputs = clipped(outputs, free.saturating_sub(devices).max(1), "outputs");
    let mut page = Page::new(frame);
    page.title(&format!("wirelane flows  {}", printable(&view.title)), view.elapsed, "q ends");
    page.devices(&view.lines, devices);
    for line in &ledger {
        page.text(line, Style::new());
    }
    for line in &outputs {
        page.text(line, Style::new());
    }
    page.text(&flows(view), Style::new());
    let rest = usize::from(area.height).saturating_sub(usize::from(page.row) + message);
    page.busiest(&view.busiest, rest);
    if let Some(message) = &view.message {
        page.row = area.height.saturating_sub(1);
        page.text(&printable(message), Style::new().fg(Color::Yellow));
    }
}

impl Page<'_, '_> {
    fn devices(&mut self, lines: &[Line], most: usize) {
        // The history is right of the numbers, from column 52 on, and takes the rest of the row.
        const PAST: u16 = 54;
        self.text(
            &format!("{:<16} {:>8} {:>8} {:>8} {:>8}", "device", "packet/s", "bit/s", "lost", "shed"),
            header(),
        );
        let (shown, left) = match lines.len() > most {
            true => (most.saturating_sub(1), lines.len() - most.saturating_sub(1)),
            false => (lines.len(), 0),
        };
        for line in &lines[..shown] {
            let indent = if line.is_queue { "  " } else { "" };
            let name = cut(&format!("{indent}{}", printable(&line.name)), 16);
            let Rates { pps, bps } = line.rates;
            let (pps, bps) = (rate(pps), rate(bps));
            let (lost, shed) = (short(line.lost, 8), short(line.shed, 8));
            let text = format!("{name:<16} {pps:>8} {bps:>8} {lost:>8} {shed:>8}");
            if let Some(place) = self.place(PAST) {
                let from = line.history.len().saturating_sub(usize::from(place.width));
                let past = Sparkline::default().data(&line.history[from..]);
                self.frame.render_widget(past.style(Style::new().fg(Color::Cyan)), place);
            }
            if let Some(place) = self.place(0) {
                let place = Rect { width: place.width.min(PAST - 1), ..place };
                self.frame.render_widget(Paragraph::new(text), place);
            }
            self.row = self.row.saturating_add(1);
        }
        if left > 0 {
            self.text(&format!("  and {left} more"), Style::new());
        }
    }

    fn busiest(&mut self, busiest: &[Busy], rows: usize) {
        let width = usize::from(self.area.width);
        // All columns except both ends: protocol, application, two rates, packets, and the blanks between.
        let others = 5 + 1 + 1 + 1 + 7 + 1 + 5 + 1 + 5 + 1 + 9;
        let bytes = width >= others + 2 * 26 + 15;
        let end = width.saturating_sub(others + if bytes { 15 } else { 0 }) / 2;
        let end = end.clamp(8, 47);
        let mut title = format!(
            "{:<5} {:<end$} {:<end$} {:<7} {:>5} {:>5} {:>9}",
            "prot", "source", "destination", "applic.", "pkt/s", "bit/s", "packets"
        );
        if bytes {
            title += &format!(" {:>14}", "bytes");
        }
        self.text(&title, header());
        for busy in busiest.iter().take(rows.saturating_sub(1)) {
            let record = FlowRecord {
                key: busy.flow.key,
                flow: busy.flow.flow,
                reverse: None,
                reason: EndReason::Active,
            };
            let (source, destination) = ends(&record);
            let application = record.application().map_or("", |known| known.name);
            let mut row = format!(
                "{:<5} {:<end$} {:<end$} {:<7} {:>5} {:>5} {:>9}",
                protocol(&record),
                cut(&source, end),
                cut(&destination, end),
                cut(application, 7),
                rate(busy.flow.packets as f64 / busy.seconds),
                rate(busy.flow.wire_bytes as f64 * 8.0 / busy.seconds),
                short(busy.flow.flow.packets, 9),
            );
            if bytes {
                row += &format!(" {:>14}", short(busy.flow.flow.bytes, 14));
            }
            self.text(&row, Style::new());
        }
    }
}

/// The ledger, on as many rows as necessary.
fn ledger(view: &View, width: usize) -> Vec<String> {
    let c = &view.ledger;
    let mut words: Vec<String> = [
        ("seen", c.seen),
        ("filtered", c.filtered),
        ("absorbed", c.absorbed),
        ("shed", c.shed),
        ("lost", c.lost),
        ("delivered", c.delivered),
        ("analysed", c.analysed),
        ("in flight", c.in_flight),
        ("bytes", c.bytes),
    ]
    .iter()
    .map(|(name, number)| format!("{name} {}", amount(*number)))
    .collect();
    words.push(format!("missed {}", c.nic_missed.map_or_else(|| "-".into(), amount)));
    if view.unsampled > 0 {
        words.push(format!("unsampled {}", amount(view.unsampled)));
    }
    if !view.balances {
        words.push("IT DOES NOT BALANCE".into());
    }
    let mut rows = vec!["ledger".to_owned()];
    for word in words {
        let row = rows.last_mut().map(|row| (row.chars().count(), row));
        match row {
            Some((used, row)) if used + 2 + word.chars().count() <= width => *row += &format!("  {word}"),
            _ => rows.push(format!("        {word}")),
        }
    }
    rows
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
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use wirelane_analysis::flows::{BusyFlow, Flow, FlowKey};

    use super::*;

    fn drawn(view: &View, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..rows).map(row).collect()
    }

    fn view() -> View {
        let line = |name: &str, is_queue, pps| Line {
            name: name.into(),
            is_queue,
            rates: Rates { pps, bps: pps * 512.0 },
            lost: 7,
            shed: 0,
            history: vec![0, 1000, pps as u64],
        };
        let mut key = FlowKey { l3: 4, proto: 6, ..FlowKey::default() };
        key.src[..4].copy_from_slice(&[192, 168, 100, 200]);
        key.dst[..4].copy_from_slice(&[203, 100, 113, 254]);
        (key.src_port, key.dst_port) = (54321u16.to_be(), 65535u16.to_be());
        let flow = Flow { packets: 123_456, bytes: 99_999_999, application: 13, ..Flow::default() };
        let busy = BusyFlow { key, flow, packets: 1500, wire_bytes: 96_000 };
        let mut counts = OutputCounts::default();
        counts.target = "ipfix://192.0.2.1:4739".into();
        (counts.flows, counts.unsent_flows) = (1234, 5);
        View {
            title: "eth1  engine ring".into(),
            elapsed: Duration::from_secs(3723),
            lines: vec![
                line("eth1", false, 3000.0),
                line("eth1@0", true, 1000.0),
                line("eth1@1", true, 2000.0),
            ],
            ledger: Counters { seen: 12_345_678, lost: 21, nic_missed: Some(3), ..Counters::default() },
            balances: true,
            live: 42,
            room: 1_000_000,
            ended: Totals { flows: 9, by_reason: [0, 4, 5, 0, 0, 0], ..Totals::default() },
            ended_per_s: 2.0,
            unsampled: 0,
            busiest: vec![Busy { flow: busy, seconds: 2.0 }; 30],
            outputs: vec![(10.0, counts)],
            message: Some("WARN a collector is away".into()),
        }
    }

    #[test]
    fn all_of_it_is_on_a_small_terminal() {
        let rows = drawn(&view(), 80, 24);
        let expected = [
            "wirelane flows  eth1  engine ring                               01:02:03  q ends",
            "device           packet/s    bit/s     lost     shed",
            "eth1                3.00k    1.54M        7        0   ▂█",
            "  eth1@0            1.00k     512k        7        0   ██",
            "  eth1@1            2.00k    1.02M        7        0   ▄█",
            "ledger  seen 12,345,678  filtered 0  absorbed 0  shed 0  lost 21  delivered 0",
            "        analysed 0  in flight 0  bytes 0  missed 3",
            "to ipfix://192.0.2.1:4739: 1,234 flows (10/s), 5 unsent",
            "flows   42 now (of 1.00M), 9 ended (2/s): 4 idle, 5 active",
            "prot  source                destination           applic. pkt/s bit/s   packets",
            // Long text is cut visibly.
            "TCP   192.168.100.200:54321 203.100.113.254:65535 BitTor…   750  384k   123,456",
        ];
        for (row, text) in rows.iter().zip(expected) {
            assert_eq!(row.trim_end(), text, "{rows:#?}");
        }
        assert_eq!(rows[22], rows[10], "as many as there is room for");
        assert_eq!(rows[23].trim_end(), "WARN a collector is away");
    }

    #[test]
    fn a_wide_terminal_has_whole_addresses_and_bytes() {
        let rows = drawn(&view(), 132, 40);
        let row = rows.iter().find(|row| row.starts_with("TCP")).unwrap();
        assert!(row.contains(" 192.168.100.200:54321 ") && row.contains(" 203.100.113.254:65535 "), "{row}");
        assert!(row.trim_end().ends_with("99,999,999"), "{row}");
    }

    #[test]
    fn more_than_fits_is_said_and_nothing_panics_at_any_size() {
        let mut view = view();
        view.lines = (0..40).map(|queue| Line { name: format!("eth1@{queue}"), ..Line::default() }).collect();
        view.outputs = vec![view.outputs[0].clone(); 9];
        view.balances = false;
        let rows = drawn(&view, 80, 24);
        assert!(rows.iter().any(|row| row.contains("and ") && row.contains(" more")), "{rows:#?}");
        assert!(rows.iter().any(|row| row.contains("IT DOES NOT BALANCE")), "{rows:#?}");
        assert!(rows.iter().any(|row| row.starts_with("TCP")), "flows keep their place: {rows:#?}");
        for columns in (1..90).step_by(8) {
            for rows in (1..30).step_by(3) {
                drawn(&view, columns, rows);
            }
        }
    }

    /// Names of devices, files and collectors may contain anything.
    #[test]
    fn names_cannot_steer_the_terminal() {
        let mut view = view();
        let hostile = "e\u{1b}[2J\u{7}\r\n\u{9b}31m";
        view.title = hostile.into();
        view.lines[0].name = hostile.into();
        view.outputs[0].1.target = hostile.into();
        view.outputs[0].1.error = Some(hostile.into());
        view.message = Some(hostile.into());
        let text = drawn(&view, 100, 24).join("\n");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        assert!(text.contains("e\\u{1b}[2J\\u{7}"), "{text}");
    }
}
