//! A line for each packet: the headers and the results of rules, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use wirelane::{Record, flags, l3};
use wirelane_screen::packet;
use wirelane_screen::table::printable;

use super::{Style, application};

/// One record of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
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

/// Marks of a record.
pub(super) fn marks(record: &Record<'_>) -> Vec<&'static str> {
    let set = record.header().flags;
    let mut marks: Vec<&'static str> =
        MARKS.iter().filter(|(bit, _)| set & bit != 0).map(|(_, mark)| *mark).collect();
    if record.has_more_patterns() {
        marks.push(MORE_PATTERNS);
    }
    if record.has_more_rules() {
        marks.push(MORE_RULES);
    }
    marks
}

impl<'a> Line<'a> {
    pub(super) fn new(
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

    /// The line as text, without its time and its end.
    pub(super) fn text(&self, into: &mut String) {
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

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
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
