//! Layout of the live view. All external text is escaped.

use std::net::SocketAddr;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane_analysis::voip::{CallRecord, Stream};
use wirelane_export::clock;

use super::model::{Step, Told, TopModel};
use crate::table::{amount, printable};
use crate::terminal::{self, Page, cut};

/// The whole view.
type View = terminal::Shown<TopModel>;

/// Minimum rows of calls before the ladder gets more than its first row.
const LEAST_CALLS: usize = 5;
/// Maximum rows of streams.
const MOST_STREAMS: usize = 4;

impl terminal::View for View {
    fn draw(&self, frame: &mut Frame<'_>) {
        let told = self.model.told();
        let area = frame.area();
        let looked_at = told.looked_at();
        let record = told.calls().nth(looked_at);
        let steps = record.map_or(&[][..], |record| told.ladder(&record.call.call_id));
        let streams = record.map_or(0, |record| record.streams.len().min(MOST_STREAMS));
        let message = usize::from(self.message.is_some());
        let mut page = Page::new(frame);
        page.title(&format!("wirelane voip  {}", printable(&self.title)), self.elapsed, "j k: calls  q ends");
        page.counts(self, &told);
        // Rows for the headers of calls, streams and ladder.
        let free = usize::from(area.height).saturating_sub(usize::from(page.row) + 3 + streams + message);
        let ladder = steps.len().max(1).min(free.saturating_sub(LEAST_CALLS).max(1));
        page.calls(&told, looked_at, free.saturating_sub(ladder));
        page.streams(record, streams);
        page.ladder(record, steps, ladder);
        if let Some(message) = &self.message {
            page.row = area.height.saturating_sub(1);
            page.text(&printable(message), Style::new().fg(Color::Yellow));
        }
    }
}

impl Page<'_, '_> {
    fn counts(&mut self, view: &View, told: &Told) {
        let (counts, ledger) = (&told.counts, &view.ledger);
        let text = format!(
            "calls   {} go on, {} ended; {} SIP messages, {} RTP packets",
            amount(told.active),
            amount(counts.calls),
            amount(counts.messages),
            amount(counts.rtp_packets),
        );
        self.text(&text, Style::new());
        let mut text = format!(
            "ledger  seen {}  shed {}  lost {}  analysed {}  missed {}",
            amount(ledger.seen),
            amount(ledger.shed),
            amount(ledger.lost),
            amount(ledger.analysed),
            ledger.nic_missed.map_or_else(|| "-".into(), amount),
        );
        if !view.balances {
            text += "  IT DOES NOT BALANCE";
        }
        self.text(&text, Style::new());
    }

    fn calls(&mut self, told: &Told, looked_at: usize, rows: usize) {
        // All columns except both parties, and the blanks between.
        const OTHERS: usize = 8 + 9 + 6 + 7 + 4 + 6;
        let party = (self.width().saturating_sub(OTHERS) / 2).clamp(6, 60);
        let title = format!(
            "{:<8} {:<party$} {:<party$} {:<9} {:>6} {:>7} {:>4}",
            "start", "from", "to", "state", "status", "seconds", "MOS"
        );
        self.header(&title, "");
        // The selected call is always visible.
        let first = (looked_at + 1).saturating_sub(rows.max(1));
        for (at, record) in told.calls().enumerate().skip(first).take(rows) {
            let call = &record.call;
            let end_ns = call.end_ns.unwrap_or(call.last_ns);
            let text = format!(
                "{:<8} {:<party$} {:<party$} {:<9} {:>6} {:>7.1} {:>4}",
                &clock(call.invite_ns)[..8],
                cut(&name(&call.from_uri), party),
                cut(&name(&call.to_uri), party),
                call.state.name(),
                if call.status == 0 { "-".into() } else { call.status.to_string() },
                end_ns.saturating_sub(call.invite_ns) as f64 / 1e9,
                record.mos().map_or_else(|| "-".into(), |mos| format!("{mos:.1}")),
            );
            let style = if at == looked_at {
                Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
            } else {
                Style::new()
            };
            self.text(&text, style);
        }
        // With few calls, the following sections keep their place.
        let shown = told.calls().skip(first).take(rows).count();
        self.row = self.row.saturating_add((rows - shown) as u16);
    }

    fn streams(&mut self, record: Option<&CallRecord>, most: usize) {
        let all = record.map_or(0, |record| record.streams.len());
        let more = if all > most { format!("{} more", all - most) } else { String::new() };
        self.header("stream                    codec    packets  lost    ms    R  MOS  history", &more);
        for stream in record.iter().flat_map(|record| &record.streams).take(most) {
            // The history is right of the numbers, and takes the rest of the row.
            const PAST: u16 = 66;
            if let Some(place) = self.place(PAST) {
                let past = past(stream);
                let from = past.len().saturating_sub(usize::from(place.width));
                let past = Sparkline::default().data(&past[from..]).max(35);
                self.frame.render_widget(past.style(Style::new().fg(Color::Cyan)), place);
            }
            if let Some(place) = self.place(0) {
                let place = Rect { width: place.width.min(PAST - 1), ..place };
                self.frame.render_widget(Paragraph::new(told(stream)), place);
            }
            self.row = self.row.saturating_add(1);
        }
    }

    fn ladder(&mut self, record: Option<&CallRecord>, steps: &[Step], rows: usize) {
        let Some(record) = record else {
            self.header("no call yet", "");
            return;
        };
        let call = &record.call;
        let ends = [SocketAddr::from(call.caller), SocketAddr::from(call.callee)];
        // Width of the time before the two lines.
        const BEFORE: usize = 11;
        let [left, right] = ends.map(|end| end.to_string());
        let between = self.width().saturating_sub(BEFORE + 2).min(70);
        let gap = between.saturating_sub(left.len() + right.len()) + 2;
        let hidden = steps.len().saturating_sub(rows);
        let more = if hidden > 0 { format!("{hidden} before") } else { String::new() };
        self.header(&format!("{:BEFORE$}{left}{:gap$}{right}", "", ""), &more);
        for step in &steps[hidden..] {
            let seconds = (step.ts_ns as f64 - call.invite_ns as f64) / 1e9;
            let what = printable(&step.what);
            let arrow = match (step.from, step.to) {
                (from, to) if [from, to] == ends => arrow(&what, between, true),
                (from, to) if [to, from] == ends => arrow(&what, between, false),
                (from, to) => format!("  {what}  {from} -> {to}"),
            };
            self.text(&format!("{seconds:>+9.3}  {arrow}"), Style::new());
        }
    }
}

/// An address without its scheme, escaped.
fn name(uri: &str) -> String {
    let name = uri.strip_prefix("sip:").or(uri.strip_prefix("sips:")).unwrap_or(uri);
    printable(name).into_owned()
}

/// An arrow between two lines at this distance in columns.
fn arrow(what: &str, columns: usize, to_right: bool) -> String {
    let what = cut(what, columns.saturating_sub(6));
    let filled = columns.saturating_sub(what.chars().count() + 3);
    let (before, behind) = (filled / 2, filled - filled / 2);
    let (before, behind) = ("─".repeat(before), "─".repeat(behind));
    match to_right {
        true => format!("│{before} {what} {behind}▶│"),
        false => format!("│◀{before} {what} {behind}│"),
    }
}

/// Summary line of a stream.
fn told(stream: &Stream) -> String {
    let rtp = &stream.rtp;
    let toward = stream.toward.map_or("", |party| party.name());
    let quality = stream.quality();
    let (r, mos) = quality.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |quality| (format!("{:.0}", quality.r), format!("{:.2}", quality.mos)),
    );
    let jitter = rtp
        .jitter_sum_ns
        .checked_div(rtp.jitters)
        .map_or_else(|| "-".into(), |ns| format!("{:.1}", ns as f64 / 1e6));
    // The final loss of an active stream is computed later; this is the loss so far.
    let lost = rtp.expected().saturating_sub(rtp.received());
    let ssrc = format!("to {toward} 0x{:08x}", rtp.ssrc);
    let codec = printable(if stream.codec().is_empty() { "-" } else { stream.codec() }).into_owned();
    format!(
        "{ssrc:<24}  {:<8} {:>7} {:>5} {jitter:>5} {r:>4} {mos:>4}",
        cut(&codec, 8),
        amount(rtp.packets),
        amount(lost)
    )
}

/// The MOS of each part, in tenths above 1.
fn past(stream: &Stream) -> Vec<u64> {
    let tenths = |mos: f64| ((mos - 1.0) * 10.0).round().max(0.0) as u64;
    stream
        .intervals
        .iter()
        .filter_map(|part| stream.quality_of(part))
        .map(|quality| tenths(quality.mos))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use wirelane::LinkType;
    use wirelane::ledger::Counters;
    use wirelane_analysis::voip::{Monitor, Settings};

    use super::*;
    use crate::terminal::drawn;

    /// A datagram over IPv4, without a link layer.
    fn datagram(from: (u8, u16), to: (u8, u16), payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, from.0, 192, 0, 2, to.0];
        let length = payload.len() as u16 + 8;
        packet[2..4].copy_from_slice(&(length + 20).to_be_bytes());
        packet.extend([from.1, to.1, length, 0].map(u16::to_be_bytes).concat());
        packet.extend(payload);
        packet
    }

    fn message(start: &str, id: &str, cseq: &str, body: &str) -> Vec<u8> {
        let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
        format!(
            "{start}\r\nFrom: <sip:a\u{9b}31m@example.com>;tag=a\r\nTo: <sip:bob@example.org>\r\nCall-ID: {id}\r\n\
             CSeq: 1 {cseq}\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    /// A call with a stream of 40 s of which the second quarter loses every tenth packet, and one that only rings.
    fn view() -> View {
        let mut monitor = Monitor::new(Settings { signals: true, ..Settings::default() });
        let model = TopModel::new(Duration::ZERO);
        let at = |monitor: &mut Monitor, ms: u64, from: (u8, u16), to: (u8, u16), payload: &[u8]| {
            monitor.packet(LinkType::Raw, &datagram(from, to, payload), 1_000_000_000 + ms * 1_000_000);
        };
        let (alice, bob) = ((1, 5060), (2, 5060));
        let sdp = |port| format!("v=0\r\nc=IN IP4 192.0.2.2\r\nm=audio {port} RTP/AVP 0\r\n");
        at(&mut monitor, 0, alice, bob, &message("INVITE sip:bob SIP/2.0", "x", "INVITE", &sdp(6000)));
        at(&mut monitor, 90, bob, alice, &message("SIP/2.0 180 Ring\x1b[2Jing", "x", "INVITE", ""));
        at(&mut monitor, 900, bob, alice, &message("SIP/2.0 200 OK", "x", "INVITE", &sdp(7000)));
        at(&mut monitor, 950, alice, (3, 5060), &message("ACK sip:bob SIP/2.0", "x", "ACK", ""));
        for number in 0..2000u16 {
            if (500..1000).contains(&number) && number % 10 == 0 {
                continue;
            }
            let mut rtp = vec![0x80, 0];
            rtp.extend(number.to_be_bytes());
            rtp.extend((u32::from(number) * 160).to_be_bytes());
            rtp.extend([0, 0, 0, 9]);
            rtp.extend([0; 160]);
            at(&mut monitor, 1000 + u64::from(number) * 20, (1, 6000), (2, 7000), &rtp);
        }
        at(&mut monitor, 42_000, alice, bob, &message("INVITE sip:bob SIP/2.0", "y", "INVITE", ""));
        model.take(&monitor.finished().drain().collect::<Vec<_>>());
        model.look(&monitor);
        let ledger = Counters { seen: 1955, analysed: 1955, ..Counters::default() };
        let title = "eth1  engine ring".into();
        View {
            title,
            elapsed: Duration::from_secs(3723),
            ledger,
            balances: true,
            model: Arc::new(model),
            message: None,
        }
    }

    #[test]
    fn calls_ladder_and_streams_are_on_a_small_terminal() {
        let view = view();
        view.model.told().step_by(1);
        let rows = drawn(&view, 80, 24);
        let has = |text: &str| assert!(rows.iter().any(|row| row.contains(text)), "no {text:?} in {rows:#?}");
        assert!(
            rows[0].starts_with("wirelane voip  eth1  engine ring")
                && rows[0].ends_with("01:02:03  j k: calls  q ends")
        );
        has("calls   2 go on, 0 ended; 5 SIP messages, 1,950 RTP packets");
        has("ledger  seen 1,955  shed 0  lost 0  analysed 1,955  missed -");
        assert!(rows[4].starts_with("00:00:43 ") && rows[4].contains(" trying "), "{rows:#?}");
        assert!(
            rows[5].starts_with("00:00:01 ") && rows[5].contains(" answered ") && rows[5].contains(" 200 "),
            "{rows:#?}"
        );
        has("to callee 0x00000009      PCMU       1,950    50   0.0");
        // The history: good, bad, good again.
        let stream = rows.iter().find(|row| row.starts_with("to callee")).unwrap();
        let past: Vec<char> = stream.chars().skip(66).collect();
        assert!(past.len() >= 3 && past[1] < past[0] && past[2] == past[0], "{past:?} {rows:#?}");
        has("192.0.2.1:5060");
        has("   +0.000  │");
        has(" INVITE (SDP) ");
        has("▶│");
        has("   +0.090  │◀");
        has("   +0.950    ACK  192.0.2.1:5060 -> 192.0.2.3:5060");
        // The other call has its own ladder.
        view.model.told().step_by(-1);
        let rows = drawn(&view, 80, 24).join("\n");
        assert!(!rows.contains("+0.950") && rows.contains("+0.000"), "{rows}");
    }

    /// Battery: S6
    #[test]
    fn nothing_panics_at_any_size_and_nothing_steers_the_terminal() {
        let mut view = view();
        view.title = "e\u{1b}[2J".into();
        view.message = Some("\u{9b}31m".into());
        view.model.told().step_by(1);
        for columns in (1..140).step_by(9) {
            for rows in (1..40).step_by(4) {
                let text = drawn(&view, columns, rows).join("\n");
                assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
            }
        }
        view.model = Arc::new(TopModel::new(Duration::ZERO));
        view.model.told().step_by(1);
        assert!(drawn(&view, 80, 24).join("\n").contains("no call yet"));
    }
}
