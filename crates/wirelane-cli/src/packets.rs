//! `wirelane packets`: a line for each packet, with its parsed headers and the results of rules.

mod application;
mod plugin_records;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use clap::ArgAction;
use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::{Capture, Error, Interfaces, Ledger, Record, Timebase, Worker, flags, l3};

use crate::metrics::MetricsArgs;
use crate::outputs::TimesArgs;
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};
use wirelane_monitor::metrics::Metered;
use wirelane_monitor::out;
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::{self, Handler, Reporter};
use wirelane_screen::packet::{self, Clock, Dump, Times};
use wirelane_screen::table::printable;

/// Print each packet: headers, matching rule, tag, patterns
///
/// The line shows the results of the kernel's parser and rules; nothing is parsed again. Packets of several workers are
/// not in order. A terminal is slow: packets that it does not keep up with are lost, and counted in the ledger, which
/// goes to standard error at the end; with --json everything goes to standard output.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Worker threads, which read the rings, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Moving load between workers
    #[arg(long, value_enum, default_value_t = BalanceArg::Static, help_heading = source::CAPTURE)]
    balance: BalanceArg,

    /// Show fields of TCP, UDP, ICMP, ARP and DNS: flags, sequence numbers, options, types, names; -vv: also those of IP
    #[arg(short, long, action = ArgAction::Count, help_heading = source::OUTPUT)]
    verbose: u8,

    /// Show the Ethernet header: addresses, EtherType, all VLAN tags
    #[arg(short = 'e', long, help_heading = source::OUTPUT)]
    link_header: bool,

    /// Show fields of HTTP, SIP and RTP: method or status, RTP header, and where header fields and bodies are, in bytes
    /// from the packet's first byte
    #[arg(long, help_heading = source::OUTPUT)]
    application: bool,

    /// Show the bytes in hexadecimal digits; -x: from the network header on, -xx: from the link header on
    #[arg(short = 'x', long, action = ArgAction::Count, conflicts_with = "json", help_heading = source::OUTPUT)]
    hex: u8,

    /// As -x, with the characters beside the digits; -XX: from the link header on
    #[arg(short = 'X', long, action = ArgAction::Count, conflicts_with_all = ["json", "hex"], help_heading = source::OUTPUT)]
    hex_and_text: u8,

    /// Show the characters of the packet; -AA: from the link header on
    #[arg(short = 'A', long, action = ArgAction::Count, conflicts_with_all = ["json", "hex", "hex_and_text"], help_heading = source::OUTPUT)]
    text: u8,

    /// Print no time; -tt: seconds since 1970, -ttt since the packet before of the same worker, -tttt date and time
    /// (the default), -ttttt since the first packet
    #[arg(short = 't', action = ArgAction::Count, conflicts_with_all = ["json", "local_time"], help_heading = source::OUTPUT)]
    times: u8,

    #[command(flatten)]
    zone: TimesArgs,

    /// Accepted for the sake of tcpdump's users: sequence numbers are always absolute
    #[arg(short = 'S', hide = true, action = ArgAction::Count)]
    _absolute: u8,

    #[command(flatten)]
    metrics: MetricsArgs,
}

impl Args {
    fn clock(&self) -> Result<Clock> {
        let times = Times::of_letters(self.times).ok_or_else(|| Error::BadOption {
            option: "-t",
            reason: "give it one to five times, as in -ttt".to_owned(),
        })?;
        Ok(Clock::new(times))
    }

    fn style(&self) -> Style {
        let dump = [(self.hex, Dump::Hex), (self.hex_and_text, Dump::HexAndText), (self.text, Dump::Text)];
        let dump = dump.into_iter().find(|(times, _)| *times > 0).map(|(times, style)| (style, times > 1));
        Style {
            json: self.source.json,
            verbose: self.verbose,
            link: self.link_header,
            application: self.application,
            dump,
        }
    }
}

/// Parts of a packet that are printed, and their format.
#[derive(Clone, Copy, Debug)]
struct Style {
    json: bool,
    verbose: u8,
    link: bool,
    application: bool,
    /// The bytes, and whether they begin with the link header.
    dump: Option<(Dump, bool)>,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
A line has the time in UTC (or with --local-time), the RX queue, '>' for a
transmitted packet, the protocols, the addresses, the length on the wire, and
the result of rules. With -v the fields of the headers follow, in tcpdump's
words, with absolute sequence numbers. Names of hosts and ports are never looked
up.

Examples:
  wirelane packets -i eth1 -c 10             ten packets
  wirelane packets -i eth1 udp port 53       with a tcpdump filter expression
  wirelane packets -i eth1 --rules rules.toml --json | jq 'select(.rule == 7)'
  wirelane packets -r capture.pcapng --rules rules.toml
  wirelane packets -r capture.pcapng -v      TCP flags, ICMP types, DNS names
  wirelane packets -r capture.pcapng --application
                                             HTTP, SIP, RTP and their fields
  wirelane packets -r capture.pcapng -e -X   Ethernet header, and the bytes

With --json each packet is an object with \"record\": \"packet\" (or \"digest\",
if a rule delivers only the headers); fields that do not apply are left out.

Exit status: 0 done (also after Ctrl-C), 1 failed, 2 wrong usage.";

/// One record of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    record: &'static str,
    /// RFC 3339, UTC, with nanoseconds.
    time: String,
    utc_ns: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    device: &'a str,
    queue: u16,
    direction: &'static str,
    wire_len: u32,
    cap_len: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    l3: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<std::net::IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<std::net::IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    /// Symmetric flow hash.
    hash: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    marks: &'a [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<u32>,
    /// All rules that the packet hit, if several, in the order of their evaluation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patterns: Vec<u32>,
    /// The note of a plug-in, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Fields of the Ethernet header, with -e.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    /// Fields of HTTP, SIP or RTP, with --application.
    #[serde(skip_serializing_if = "Option::is_none")]
    application: Option<application::Fields<'a>>,
    /// Fields of the headers, with -v.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// Marks of a record, by the bits of its flags.
const MARKS: [(u16, &str); 10] = [
    (flags::CUT, "cut"),
    (flags::MALFORMED, "malformed"),
    (flags::DEEP, "deep"),
    (flags::TUNNEL, "tunnel"),
    (flags::INNER, "inner"),
    (flags::MPLS, "mpls"),
    (flags::FRAGMENT, "fragment"),
    (flags::SNAPPED, "snapped"),
    (flags::GSO, "gso"),
    (flags::HALF_SEARCHED, "half-searched"),
];

/// Mark for more matching patterns than a record has ids for.
const MORE_PATTERNS: &str = "more-patterns";
/// The same for rules.
const MORE_RULES: &str = "more-rules";

impl<'a> Line<'a> {
    fn new(
        record: &Record<'a>,
        utc_ns: u64,
        device: &'a str,
        marks: &'a [&'static str],
        style: Style,
    ) -> Line<'a> {
        let (header, headers) = (record.header(), record.headers());
        let port = |which: fn((u16, u16)) -> u16| headers.and_then(|headers| headers.ports).map(which);
        Line {
            record: if record.digest().is_some() { "digest" } else { "packet" },
            time: packet::date(utc_ns),
            utc_ns,
            device,
            queue: record.queue(),
            direction: if record.is_egress() { "egress" } else { "ingress" },
            wire_len: record.wire_len(),
            cap_len: record.data().len(),
            l3: layer(header.l3),
            src: headers.map(|headers| headers.src),
            dst: headers.map(|headers| headers.dst),
            src_port: port(|(src, _)| src),
            dst_port: port(|(_, dst)| dst),
            protocol: protocol(header.l3, header.proto),
            vlan: (header.flags & flags::VLAN != 0).then_some(header.vlan_tci & 0xfff),
            hash: header.hash,
            marks,
            rule: record.rule(),
            rules: if record.rules().nth(1).is_some() { record.rules().collect() } else { Vec::new() },
            tag: record.tag(),
            patterns: record.patterns().collect(),
            note: record.note().map(hex),
            link: if style.link { packet::link(record) } else { None },
            application: if style.application {
                record.application().and_then(application::Fields::new)
            } else {
                None
            },
            detail: (style.verbose > 0)
                .then(|| packet::detail(record, style.verbose > 1))
                .filter(|detail| !detail.is_empty()),
        }
    }

    /// The line for people, without its time and its end.
    fn text(&self, into: &mut String) {
        let digest = if self.record == "digest" { " digest" } else { "" };
        let way = if self.direction == "egress" { " >" } else { "" };
        let _ = write!(into, "{}@{}{way}{digest}", printable(self.device), self.queue);
        if let Some(link) = &self.link {
            let _ = write!(into, " {}", printable(link));
        }
        if let Some(vlan) = self.vlan {
            let _ = write!(into, " vlan {vlan}");
        }
        if let Some(l3) = self.l3 {
            let _ = write!(into, " {l3}");
        }
        if let Some(protocol) = self.protocol {
            match name(protocol) {
                Some(name) => into.push_str(name),
                None => _ = write!(into, " protocol {protocol}"),
            }
        }
        if let (Some(src), Some(dst)) = (self.src, self.dst) {
            let ports = self.src_port.zip(self.dst_port);
            let end = |address: std::net::IpAddr, port: Option<u16>| match port {
                Some(port) => std::net::SocketAddr::new(address, port).to_string(),
                None => address.to_string(),
            };
            let (from, to) = (end(src, ports.map(|ports| ports.0)), end(dst, ports.map(|ports| ports.1)));
            let _ = write!(into, " {from} > {to}");
        }
        let _ = write!(into, " {} bytes", self.wire_len);
        for mark in self.marks {
            let _ = write!(into, " {mark}");
        }
        if let Some(rule) = self.rule {
            let _ = write!(into, " rule {rule}");
        }
        for (number, id) in self.rules.iter().enumerate() {
            let _ = write!(into, "{}{id}", if number == 0 { " hits " } else { "," });
        }
        if let Some(tag) = self.tag {
            let _ = write!(into, " tag {tag}");
        }
        for (number, id) in self.patterns.iter().enumerate() {
            let _ = write!(into, "{}{id}", if number == 0 { " patterns " } else { "," });
        }
        if let Some(note) = &self.note {
            let _ = write!(into, " note {note}");
        }
        if let Some(application) = &self.application {
            application.text(into);
        }
        if let Some(detail) = &self.detail {
            let _ = write!(into, ": {}", printable(detail));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    text
}

fn layer(number: u8) -> Option<&'static str> {
    match number {
        l3::ARP => Some("arp"),
        l3::IPV4 => Some("ipv4"),
        l3::IPV6 => Some("ipv6"),
        _ => None,
    }
}

/// The protocol number of the transport header, for IP packets.
fn protocol(layer: u8, proto: u8) -> Option<u8> {
    matches!(layer, l3::IPV4 | l3::IPV6).then_some(proto)
}

/// IANA's keyword of common protocols.
fn name(protocol: u8) -> Option<&'static str> {
    match protocol {
        1 => Some(" icmp"),
        2 => Some(" igmp"),
        6 => Some(" tcp"),
        17 => Some(" udp"),
        47 => Some(" gre"),
        50 => Some(" esp"),
        58 => Some(" icmpv6"),
        132 => Some(" sctp"),
        _ => None,
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    let (style, clock) = (args.style(), args.clock()?);
    let json = style.json;
    args.source.headers_only = style.dump.is_none() && !style.application;
    args.source.plugin_records = true;
    let plugins = args.source.ruled.plugin_names();
    let endpoint = args.metrics.open(&mut args.source)?;
    let capture =
        args.source.open(&args.source.expression()?, args.workers, args.steering, args.balance, None)?;
    let (interfaces, devices) = (capture.interfaces(), capture.devices());
    let stream = if json { Stream::Stdout } else { Stream::Stderr };
    let mut reporter = Around { report: Report::new(json, capture.engine(), stream), json };
    let shower = |worker: &Worker| {
        Ok(Shower {
            style,
            clock: clock.clone(),
            time: worker.timebase(),
            interfaces: interfaces.clone(),
            plugins: plugins.clone(),
            names: devices.iter().map(|device| device.name.clone()).collect(),
            shown: String::new(),
        })
    };
    let mut metered = Metered::new(endpoint, &mut reporter)?;
    let outcome = run_loop::run(capture, &args.source.limits(), shower, &mut metered)?;
    drop(metered);
    let mut report = reporter.report;
    report.ruled(outcome.rules);
    let shown = report.last(&outcome.ledger, outcome.elapsed);
    outcome.failure.map_or(shown, Err)
}

/// Output besides the packets: for people only the beginning and the end.
struct Around {
    report: Report,
    json: bool,
}

impl Reporter for Around {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if self.json { self.report.interval(ledger, elapsed) } else { Ok(()) }
    }
}

/// Shows the records of one worker, a batch at a time.
struct Shower {
    style: Style,
    clock: Clock,
    time: Timebase,
    interfaces: Interfaces,
    /// Names of the capture's plug-ins.
    plugins: Vec<String>,
    /// Names by device; those of a file's interfaces are added when they appear.
    names: Vec<String>,
    shown: String,
}

/// Maximum bytes of text that are buffered before they are written: batches may be long.
const KEPT: usize = 64 << 10;

impl Shower {
    /// Adds the names up to this device.
    fn learn(&mut self, device: usize) {
        while device >= self.names.len() {
            let interface = self.interfaces.get(self.names.len(), 0);
            let name = interface.map(|interface| interface.device().to_owned());
            self.names.push(name.unwrap_or_default());
        }
    }
}

impl Handler for Shower {
    type Error = anyhow::Error;

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let utc_ns = self.time.utc_ns(record);
        self.learn(record.device());
        if record.plugin().is_some() {
            self.plugin_record(record, utc_ns)?;
            return if self.shown.len() < KEPT { Ok(()) } else { self.pause(false) };
        }
        let set = record.header().flags;
        let mut marks: Vec<&'static str> =
            MARKS.iter().filter(|(bit, _)| set & bit != 0).map(|(_, mark)| *mark).collect();
        if record.has_more_patterns() {
            marks.push(MORE_PATTERNS);
        }
        if record.has_more_rules() {
            marks.push(MORE_RULES);
        }
        let line = Line::new(record, utc_ns, &self.names[record.device()], &marks, self.style);
        if self.style.json {
            self.shown += &to_json(&line)?;
        } else {
            self.clock.write(&mut self.shown, utc_ns);
            line.text(&mut self.shown);
            if let Some((style, from_link)) = self.style.dump {
                self.shown += &packet::dump(record, style, from_link);
            }
        }
        self.shown.push('\n');
        if self.shown.len() < KEPT { Ok(()) } else { self.pause(false) }
    }

    fn pause(&mut self, _: bool) -> Result<()> {
        if self.shown.is_empty() {
            return Ok(());
        }
        out::print(&self.shown)?;
        self.shown.clear();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.pause(false)
    }
}
