//! Layout of the live view. All external text is escaped.

use std::net::SocketAddr;
use std::ops::Range;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Paragraph, Sparkline};
use wirelane_analysis::voip::{CallRecord, Stream};
use wirelane_export::calendar::shown_clock;

use super::model::{Step, Told, TopModel};
use crate::table::{amount, printable};
use crate::terminal::{self, Page, cut};

/// The whole view.
type View = terminal::Shown<TopModel>;

/// Minimum rows of calls before the ladder gets more than its first row.
const LEAST_CALLS: usize = 5;
/// Maximum rows of streams.
const MOST_STREAMS: usize = 4;

/// Keys of this screen.
const KEYS: &[(&str, &str)] = &[
    ("j k, arrows", "choose a call, or a message of the opened call"),
    ("Enter", "open the call: its messages, and the text of one"),
    ("Page keys", "ten calls; in an opened call, the rest of the message"),
    ("Esc", "back to the calls"),
    ("s", "save the call's messages as pcapng (--save-selected DIR)"),
];

/// Minimum columns to show the ladder beside a message; below it is above the message.
const BESIDE: u16 = 130;

impl terminal::View for View {
    fn draw(&self, frame: &mut Frame<'_>) {
        let told = self.model.told();
        let record = told.selected();
        let mut page = Page::new(frame);
        page.title(&format!("wirelane voip  {}", printable(&self.title)), self.elapsed, "");
        match (record, told.opened) {
            (Some(record), Some(at)) => page.opened(self, &told, record, at),
            _ => page.list(self, &told, record),
        }
        page.bottom(&told.controls, self.message.as_ref(), KEYS);
    }
}

impl Page<'_, '_> {
    /// The list of calls, and the streams and the ladder of the selected one.
    fn list(&mut self, view: &View, told: &Told, record: Option<&CallRecord>) {
        self.counts(view, told);
        let steps = told.steps();
        let streams = record.map_or(0, |record| record.streams.len().min(MOST_STREAMS));
        // Rows for the headers of calls, streams and ladder.
        let free = self.left_but(3 + streams + told.controls.bottom_rows(view.message.as_ref()));
        let calls = told.calls().count();
        // The ladder has the rows that calls do not need, and calls those that the ladder does not need.
        let ladder = steps.len().max(1).min(free.saturating_sub(calls.min(LEAST_CALLS)).max(1));
        self.calls(told, told.looked_at(), calls.min(free.saturating_sub(ladder)));
        self.streams(record, streams);
        let hidden = steps.len().saturating_sub(ladder);
        self.ladder(record, steps, hidden..steps.len(), None);
    }

    /// The ladder of a call, and the text of one message.
    fn opened(&mut self, view: &View, told: &Told, record: &CallRecord, at: usize) {
        let steps = told.steps();
        let at = at.min(steps.len().saturating_sub(1));
        let rows = self.left_but(told.controls.bottom_rows(view.message.as_ref())) as u16;
        let whole = Rect { y: self.area.y + self.row, height: rows, ..self.area };
        let beside = whole.width >= BESIDE;
        let (mut left, mut right) = (whole, whole);
        if beside {
            left.width = 84;
            (right.x, right.width) = (whole.x + 85, whole.width - 85);
        } else {
            left.height = (steps.len() as u16 + 1).min(rows / 2);
            (right.y, right.height) = (whole.y + left.height, rows - left.height);
        }
        let shown = usize::from(left.height).saturating_sub(1);
        let first = (at + 1).saturating_sub(shown);
        let last = steps.len().min(first + shown);
        Page::within(self.frame, left).ladder(Some(record), steps, first..last, Some(at));
        if let Some(step) = steps.get(at) {
            Page::within(self.frame, right).message(step, (at, steps.len()), told.scrolled);
        }
    }

    /// The text of a message.
    fn message(&mut self, step: &Step, (at, of): (usize, usize), scrolled: usize) {
        let [from, to] = step.ends().map(SocketAddr::from);
        let transport = if step.way.tcp { "TCP" } else { "UDP" };
        let title = format!("message {} of {of}  {from} -> {to}  {transport}", at + 1);
        self.header(&title, &format!("{} bytes", amount(step.bytes.len() as u64)));
        let lines = wrapped(&step.bytes, self.width());
        let rows = self.left_but(0);
        let first = scrolled.min(lines.len().saturating_sub(rows));
        for line in lines.iter().skip(first).take(rows) {
            self.text(line, Style::new());
        }
    }

    fn counts(&mut self, view: &View, told: &Told) {
        let (counts, ledger) = (&told.counts, &view.ledger);
        let text = format!(
            "calls   {} go on, {} ended; {} SIP messages, {} RTP packets",
            amount(told.active),
            amount(told.over),
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
        let all = told.live.len() + told.ended.len();
        let shown = told.calls().count();
        let number = if told.controls.filters() { format!("{shown} of {all}") } else { String::new() };
        self.header(&title, &number);
        // The selected call is always visible.
        let first = (looked_at + 1).saturating_sub(rows.max(1));
        for (at, record) in told.calls().enumerate().skip(first).take(rows) {
            let call = &record.call;
            let text = format!(
                "{:<8} {:<party$} {:<party$} {:<9} {:>6} {:>7.1} {:>4}",
                &shown_clock(call.invite_ns)[..8],
                cut(&name(&call.from_uri), party),
                cut(&name(&call.to_uri), party),
                call.state.name(),
                if call.status == 0 { "-".into() } else { call.status.to_string() },
                told.end_ns(record).saturating_sub(call.invite_ns) as f64 / 1e9,
                record.mos().map_or_else(|| "-".into(), |mos| format!("{mos:.1}")),
            );
            let style = if at == looked_at {
                Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED)
            } else {
                Style::new()
            };
            self.text(&text, style);
        }
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

    /// Messages of a call in the order of time. `chosen`: index of the message whose text is shown.
    fn ladder(
        &mut self,
        record: Option<&CallRecord>,
        steps: &[Step],
        shown: Range<usize>,
        chosen: Option<usize>,
    ) {
        let Some(record) = record else {
            self.header("no call yet", "");
            return;
        };
        let call = &record.call;
        let ends = [call.caller, call.callee];
        // Width of the time before the two lines.
        const BEFORE: usize = 11;
        let [left, right] = ends.map(|end| SocketAddr::from(end).to_string());
        let between = self.width().saturating_sub(BEFORE + 2).min(110);
        let gap = between.saturating_sub(left.len() + right.len()) + 2;
        let more = match (shown.start, steps.len() - shown.end) {
            (0, 0) => String::new(),
            (before, 0) => format!("{before} before"),
            (0, behind) => format!("{behind} more"),
            (before, behind) => format!("{before} before, {behind} more"),
        };
        self.header(&format!("{:BEFORE$}{left}{:gap$}{right}", "", ""), &more);
        for (at, step) in steps.iter().enumerate().take(shown.end).skip(shown.start) {
            let seconds = (step.way.ts_ns as f64 - call.invite_ns as f64) / 1e9;
            let what = printable(&step.what);
            let arrow = match step.ends() {
                [from, to] if [from, to] == ends => arrow(&what, between, true),
                [from, to] if [to, from] == ends => arrow(&what, between, false),
                other => {
                    let [from, to] = other.map(SocketAddr::from);
                    format!("  {what}  {from} -> {to}")
                }
            };
            let style = match chosen == Some(at) {
                true => Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED),
                false => Style::new(),
            };
            self.text(&format!("{seconds:>+9.3}  {arrow}"), style);
        }
    }
}

/// The lines of a message, escaped, in at most this many columns: a longer line continues in the next row.
fn wrapped(bytes: &[u8], columns: usize) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut rows = Vec::new();
    for line in text.lines() {
        let letters: Vec<char> = printable(line).chars().collect();
        if letters.is_empty() {
            rows.push(String::new());
        }
        rows.extend(letters.chunks(columns.max(1)).map(|part| part.iter().collect()));
    }
    rows
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
    use crate::terminal::{Key, TopModel as _, drawn};

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

    /// A call with a stream of 40 s of which the second quarter loses every tenth packet, and one that rings after 42 s.
    fn view() -> View {
        let mut monitor = Monitor::new(Settings { signals: true, ..Settings::default() });
        let model = TopModel::new(Duration::ZERO, None);
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
                && rows[0].ends_with("01:02:03  ?: keys  q ends")
        );
        has("calls   2 go on, 0 ended; 5 SIP messages, 1,950 RTP packets");
        has("ledger  seen 1,955  shed 0  lost 0  analysed 1,955  missed -");
        assert!(rows[4].starts_with("00:00:43 ") && rows[4].contains(" trying "), "{rows:#?}");
        assert!(rows[5].starts_with("00:00:01 "), "{rows:#?}");
        has(" answered     200    42.0 ");
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
        // A call is opened: its ladder, and the text of a message, which is escaped.
        view.model.typed(Key::Enter);
        view.model.typed(Key::Down);
        for (columns, height) in [(80, 24), (160, 50)] {
            let rows = drawn(&view, columns, height);
            let text = rows.join("\n");
            println!("{text}");
            assert!(text.contains("message 2 of 4  192.0.2.2:5060 -> 192.0.2.1:5060  UDP"), "{text}");
            assert!(
                text.contains("SIP/2.0 180 Ring\\u{1b}[2Jing") && text.contains("CSeq: 1 INVITE"),
                "{text}"
            );
            assert!(text.contains("+0.950"), "{text}");
        }
        view.model.typed(Key::Escape);
        // Without a folder, the key says how to give one.
        view.model.typed(Key::Letter('s'));
        let rows = drawn(&view, 80, 24);
        assert_eq!(rows[23], "to save calls, start with --save-selected DIR");
        view.model.typed(Key::Letter('?'));
        let text = drawn(&view, 80, 24).join("\n");
        assert!(text.contains("save the call's messages") && text.contains("end the capture"), "{text}");
        view.model.typed(Key::Escape);
        // The filter leaves the calls that contain its text.
        for key in [Key::Letter('/'), Key::Letter('q'), Key::Backspace, Key::Letter('a'), Key::Letter('n')] {
            view.model.typed(key);
        }
        assert_eq!(view.model.told().calls().count(), 1, "only one call is answered");
        view.model.typed(Key::Letter('z'));
        let rows = drawn(&view, 80, 24);
        assert!(rows[3].ends_with("0 of 2") && rows[23].starts_with("/anz_"), "{rows:#?}");
        view.model.typed(Key::Escape);
        assert_eq!(view.model.told().calls().count(), 2);
        view.model.told().step_by(1);
        // The other call has its own ladder.
        view.model.told().step_by(-1);
        let rows = drawn(&view, 80, 24).join("\n");
        assert!(!rows.contains("+0.950") && rows.contains("+0.000"), "{rows}");
    }

    /// Records of another direction may be delivered later.
    #[test]
    fn the_ladder_is_in_the_order_of_time_also_if_a_message_is_delivered_late() {
        let call_id: Box<str> = "z".into();
        let end = |last, port| {
            wirelane_analysis::voip::MediaAddress::from((std::net::IpAddr::from([192, 0, 2, last]), port))
        };
        let signal = |ts_ns, start: &str| {
            let way =
                wirelane_analysis::voip::Way { from: end(1, 5060), to: end(2, 5060), tcp: false, ts_ns };
            let bytes = message(start, "z", "INVITE", "");
            wirelane_analysis::voip::Finished::Signal(wirelane_analysis::voip::Signal {
                way,
                bytes,
                call_id: call_id.clone(),
            })
        };
        let model = TopModel::new(Duration::ZERO, None);
        let (invite, ack, ok) = ("INVITE sip:bob SIP/2.0", "ACK sip:bob SIP/2.0", "SIP/2.0 200 OK");
        model.take(&[signal(1, invite), signal(3, ack), signal(2, ok)]);
        let told = model.told();
        let times: Vec<u64> = told.ladder("z").iter().map(|step| step.way.ts_ns).collect();
        assert_eq!(times, [1, 2, 3]);
    }

    /// Battery: S6
    #[test]
    fn nothing_panics_at_any_size_and_nothing_steers_the_terminal() {
        let mut view = view();
        view.title = "e\u{1b}[2J".into();
        view.message = Some("\u{9b}31m".into());
        view.model.told().step_by(1);
        for key in [Key::Home, Key::Enter, Key::End, Key::PageDown, Key::Letter('?')] {
            view.model.typed(key);
            for columns in (1..140).step_by(9) {
                for rows in (1..40).step_by(4) {
                    let text = drawn(&view, columns, rows).join("\n");
                    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
                }
            }
        }
        view.model = Arc::new(TopModel::new(Duration::ZERO, None));
        view.model.told().step_by(1);
        assert!(drawn(&view, 80, 24).join("\n").contains("no call yet"));
    }

    /// A call is handed out some seconds after its end, when no repetition is expected any more.
    #[test]
    fn a_call_that_is_over_stays_on_the_screen() {
        let (mut monitor, view) = (Monitor::new(Settings::default()), view());
        for (ms, from, start, cseq) in [
            (0, 1, "INVITE sip:bob SIP/2.0", "INVITE"),
            (500, 2, "SIP/2.0 200 OK", "INVITE"),
            (2_500, 1, "BYE sip:bob SIP/2.0", "BYE"),
        ] {
            let packet = datagram((from, 5060), (3 - from, 5060), &message(start, "z", cseq, ""));
            monitor.packet(LinkType::Raw, &packet, 1_000_000_000 + ms * 1_000_000);
        }
        view.model.look(&monitor);
        let rows = drawn(&view, 80, 24);
        assert!(rows[1].starts_with("calls   0 go on, 1 ended; 3 SIP messages"), "{rows:#?}");
        assert!(rows[4].contains(" completed    200     2.5 "), "{rows:#?}");
    }
}
