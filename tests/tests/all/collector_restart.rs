//! A restarted collector: it decodes messages once templates have been sent again, and the sequence numbers show
//! exactly how much it has missed.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Lab, Signal, require_root};

/// Versions of the header, and the unit of their sequence number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Format {
    /// Records, options included (RFC 7011, section 3.1).
    Ipfix,
    /// Packets (RFC 3954, section 5.1).
    NetFlow9,
    /// Flows.
    NetFlow5,
}

/// State of one run of a collector.
#[derive(Debug, Default)]
struct Collector {
    /// Bytes of a record by template, and whether it is a flow record; `None` if its fields do not have a fixed length.
    templates: HashMap<u16, (usize, bool)>,
    flows: u64,
    /// Data records of options, which IPFIX numbers too.
    options: u64,
    /// Those of the exporter's counters: one in each batch of options.
    batches: u64,
    /// The template of the exporter's counters.
    counters: Option<u16>,
    messages: u64,
    /// Records of unknown templates: their message counts as missed.
    undecoded: u64,
    /// The expected sequence number of the next message.
    next: Option<u32>,
    /// Gaps in the sequence numbers.
    missed: u64,
    first: Option<u32>,
}

impl Collector {
    /// Reads until nothing has arrived for `quiet`.
    fn read(&mut self, socket: &UdpSocket, format: Format, quiet: Duration) {
        let mut buffer = [0; 65536];
        let mut last = Instant::now();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        while last.elapsed() < quiet {
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    self.message(&buffer[..length], format);
                    last = Instant::now();
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}")
                }
            }
        }
    }

    fn message(&mut self, message: &[u8], format: Format) {
        let half = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
        let (sequence, counted) = match format {
            Format::NetFlow5 => {
                self.flows += u64::from(half(2));
                (word(16), u32::from(half(2)))
            }
            Format::NetFlow9 => {
                self.sets(&message[20..], (0, 1));
                (word(12), 1)
            }
            Format::Ipfix => (word(8), self.sets(&message[16..], (2, 3)) as u32),
        };
        self.messages += 1;
        if let Some(next) = self.next {
            self.missed += u64::from(sequence.wrapping_sub(next));
        }
        self.first.get_or_insert(sequence);
        self.next = Some(sequence.wrapping_add(counted));
    }

    /// Reads the sets of a message; returns the number of its data records.
    fn sets(&mut self, mut rest: &[u8], (templates, options): (u16, u16)) -> u64 {
        let mut records = 0;
        while rest.len() >= 4 {
            let half = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
            let (set, length) = (half(0), usize::from(half(2)));
            let body = &rest[4..length];
            if set == templates || set == options {
                self.describe(body, set == options, options == 1);
            } else if let Some((size, of_flows)) = self.templates.get(&set) {
                let count = (body.len() / size) as u64;
                records += count;
                self.batches += if self.counters == Some(set) { count } else { 0 };
                *(if *of_flows { &mut self.flows } else { &mut self.options }) += count;
                self.batches += if self.counters == Some(set) { count } else { 0 };
            } else {
                self.undecoded += 1;
            }
            rest = &rest[length..];
        }
        records
    }

    fn describe(&mut self, mut body: &[u8], options: bool, netflow9: bool) {
        while body.len() >= 4 {
            let half = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
            let id = half(0);
            let (fields, mut at) = match (options, netflow9) {
                (false, _) => (usize::from(half(2)), 4),
                // NetFlow 9 has the lengths of its two lists in bytes.
                (true, true) => (usize::from(half(2) + half(4)) / 4, 6),
                (true, false) => (usize::from(half(2)), 6),
            };
            if id == 0 {
                return;
            }
            let mut size = 0;
            // observationDomainId is the scope of the exporter's counters.
            if options && !netflow9 && half(at) == 149 {
                self.counters = Some(id);
            }
            for _ in 0..fields {
                size += usize::from(half(at + 2));
                at += if !netflow9 && body[at] & 0x80 != 0 { 8 } else { 4 };
            }
            // Names have a variable length; only options records have them here.
            self.templates.insert(id, (size.min(60_000), !options));
            body = &body[at.min(body.len())..];
        }
    }
}

/// A collector receives, is away, and returns as another process without state.
fn restarted(format: Format, target: &str) {
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let port = 4800;
    let listen = || lab.enter(namespace, || UdpSocket::bind(("127.0.0.1", port)).unwrap()).unwrap();
    let export = format!("{target}://127.0.0.1:{port}");
    let words =
        ["flows", "-i", device, "--direction", "rx", "--json", "--quiet", "--inactive-timeout", "0.2"];
    let more = ["--export", &export, "--template-refresh", "2"];
    let socket = listen();
    let child = capture(&lab, &[&words[..], &more].concat()).unwrap();
    let flows = |number: u64| send(&lab, number, &["--flows", &number.to_string()]).unwrap();
    let wait = || std::thread::sleep(Duration::from_millis(1500));
    flows(300);
    wait();
    let mut first = Collector::default();
    first.read(&socket, format, Duration::from_millis(300));
    assert_eq!((first.missed, first.undecoded), (0, 0), "{format:?}: {first:?}");
    assert!(first.flows >= 300, "{format:?}: {first:?}");
    // Away: datagrams are refused by the host meanwhile, and lost.
    drop(socket);
    flows(500);
    wait();
    // Another process: no template, no sequence number. It cannot decode records before the next templates.
    let socket = listen();
    std::thread::sleep(Duration::from_millis(2500));
    flows(200);
    wait();
    let mut second = Collector { next: first.next, ..Collector::default() };
    second.read(&socket, format, Duration::from_millis(300));
    assert!(second.flows >= 200, "{format:?}: what came was not read: {second:?}");
    child.signal(Signal::Terminate).unwrap();
    // The last flows are exported at the end.
    second.read(&socket, format, Duration::from_millis(1000));
    let last = last_of(&child.finish(LIMIT).unwrap()).unwrap();
    let counts = &last["exports"][0];
    println!("{format:?}: {first:?}, {second:?}, {counts}");
    // Every number was received by one of the two, or missed between them.
    let all = column(&last, "flows");
    match format {
        Format::NetFlow5 => assert_eq!(first.flows + second.flows + second.missed, all, "{counts}"),
        Format::Ipfix => {
            let missed_flows = all - first.flows - second.flows;
            // Options records are numbered, too, and come in batches of one size.
            assert!(first.batches > 0 && first.options % first.batches == 0, "{first:?}");
            let batch = first.options / first.batches;
            assert_eq!(second.options, second.batches * batch, "{second:?}");
            let missed_options = second.missed.checked_sub(missed_flows);
            assert!(
                missed_options.is_some_and(|missed| missed % batch == 0 && missed / batch <= 10),
                "{missed_flows}, batches of {batch}: {second:?}"
            );
            assert!(missed_flows >= 500, "{missed_flows}");
        }
        Format::NetFlow9 => {
            assert!(second.missed > 0, "{second:?}");
            let end = u64::from(second.next.unwrap() - first.first.unwrap());
            assert_eq!(end, column(counts, "messages"), "{counts}");
            assert_eq!(first.messages + second.messages + second.missed, end, "{first:?}, {second:?}");
        }
    }
    assert!(first.flows + second.flows < all, "{format:?}: nothing was missed");
    assert_eq!(column(&last, "lost"), 0);
}

/// Battery: F6
#[test]
fn a_collector_that_is_started_anew_knows_what_it_has_missed() {
    if !require_root("a_collector_that_is_started_anew_knows_what_it_has_missed") {
        return;
    }
    restarted(Format::Ipfix, "ipfix");
    restarted(Format::NetFlow9, "netflow9");
    restarted(Format::NetFlow5, "netflow5");
}

/// A flood of new flows: a collector gets only the messages that its rate allows, and every flow is in one count.
/// Battery: S11
#[test]
fn a_flood_sends_a_collector_no_more_than_its_rate() {
    if !require_root("a_flood_sends_a_collector_no_more_than_its_rate") {
        return;
    }
    const RATE: u64 = 20;
    const FLOWS: u64 = 40_000;
    let lab = Lab::new(1).unwrap();
    let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
    let socket = lab.enter(namespace, || UdpSocket::bind(("127.0.0.1", 4801)).unwrap()).unwrap();
    let rate = RATE.to_string();
    let words =
        ["flows", "-i", device, "--direction", "rx", "--json", "--quiet", "--inactive-timeout", "0.2"];
    let more = ["--export", "ipfix://127.0.0.1:4801", "--export-rate", &rate, "--export-wait", "0.1"];
    let child = capture(&lab, &[&words[..], &more].concat()).unwrap();
    let begun = Instant::now();
    send(&lab, FLOWS, &["--flows", &FLOWS.to_string(), "--rate", "20k"]).unwrap();
    let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
    let most = RATE * (begun.elapsed().as_secs() + 3);
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut messages, mut buffer) = (0, [0; 65536]);
    while socket.recv(&mut buffer).is_ok() {
        messages += 1;
    }
    let counts = &last["exports"][0];
    println!("{messages} messages, {counts}");
    assert!(messages > 0 && messages <= most, "{messages} messages, {most} at most: {counts}");
    let suppressed = counts["suppressed_flows"].as_u64().unwrap_or(0);
    let all = column(counts, "flows") + column(counts, "unsent_flows") + suppressed;
    assert_eq!(all, column(&last, "flows"), "{counts}");
    assert!(column(counts, "flows") < FLOWS, "nothing was suppressed: {counts}");
    assert_eq!(column(&last, "lost"), 0);
}
