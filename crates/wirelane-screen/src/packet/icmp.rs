//! ICMP, ICMPv6 and ARP messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{long, word};

/// The fields of an ICMP message of `length` bytes.
pub(super) fn version_4(message: &[u8], length: usize) -> Option<String> {
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let inner = message.get(8..).unwrap_or_default();
    let destination = || inner.get(16..20).map(|four| Ipv4Addr::from([four[0], four[1], four[2], four[3]]));
    let echo = |name: &str| Some(format!("{name}, id {}, seq {}", word(message, 4)?, word(message, 6)?));
    let text = match (kind, code) {
        (0, _) => echo("echo reply")?,
        (8, _) => echo("echo request")?,
        (3, 0) => format!("net {} unreachable", destination()?),
        (3, 1) => format!("host {} unreachable", destination()?),
        (3, 2) => format!("{} protocol {} unreachable", destination()?, inner.get(9)?),
        (3, 3) => port_unreachable(inner, destination()?)?,
        (3, 4) => format!("{} unreachable - need to frag{}", destination()?, mtu(word(message, 6)?)),
        (3, 13) => format!("host {} unreachable - admin prohibited filter", destination()?),
        (3, _) => format!("{} unreachable - #{code}", destination()?),
        (4, _) => "source quench".to_owned(),
        (5, 0..=3) => {
            let tos = if code < 2 { "" } else { "-tos" };
            let what = if code % 2 == 0 { "net" } else { "host" };
            format!("redirect{tos} {} to {what} {}", destination()?, Ipv4Addr::from(long(message, 4)?))
        }
        (9, _) => "router advertisement".to_owned(),
        (10, _) => "router solicitation".to_owned(),
        (11, 0) => "time exceeded in-transit".to_owned(),
        (11, 1) => "ip reassembly time exceeded".to_owned(),
        (12, _) => "parameter problem".to_owned(),
        (13, _) => format!("time stamp query id {} seq {}", word(message, 4)?, word(message, 6)?),
        (14, _) => format!("time stamp reply id {} seq {}", word(message, 4)?, word(message, 6)?),
        _ => format!("type-#{kind}"),
    };
    Some(format!("ICMP {text}, length {length}"))
}

fn mtu(mtu: u16) -> String {
    if mtu == 0 { String::new() } else { format!(" (mtu {mtu})") }
}

fn port_unreachable(inner: &[u8], destination: Ipv4Addr) -> Option<String> {
    let header = usize::from(inner.first()? & 0xf) * 4;
    let port = word(inner, header + 2)?;
    Some(match inner.get(9)? {
        6 => format!("{destination} tcp port {port} unreachable"),
        17 => format!("{destination} udp port {port} unreachable"),
        protocol => format!("{destination} protocol {protocol} port {port} unreachable"),
    })
}

/// The fields of an ICMPv6 message of `length` bytes.
pub(super) fn version_6(message: &[u8], length: usize) -> Option<String> {
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let address = |at: usize| -> Option<Ipv6Addr> {
        let bytes: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes))
    };
    let echo = |name: &str| Some(format!("{name}, id {}, seq {}", word(message, 4)?, word(message, 6)?));
    let text = match (kind, code) {
        // The message contains the packet behind 8 bytes, with the destination at byte 24.
        (1, 0) => format!("destination unreachable, unreachable route {}", address(32)?),
        (1, 1) => {
            format!("destination unreachable, unreachable prohibited {}", address(32)?)
        }
        (1, 3) => format!("destination unreachable, unreachable address {}", address(32)?),
        (1, 4) => {
            format!("destination unreachable, unreachable port, {}", inner_port(message, address(32)?)?)
        }
        (1, _) => format!("destination unreachable, unknown unreach code ({code})"),
        (2, _) => format!("packet too big, mtu {}", long(message, 4)?),
        (3, 0) => format!("time exceeded in-transit for {}", address(32)?),
        (3, 1) => "ip6 reassembly time exceeded".to_owned(),
        (4, _) => "parameter problem".to_owned(),
        (128, _) => echo("echo request")?,
        (129, _) => echo("echo reply")?,
        (130, _) => "multicast listener query".to_owned(),
        (131, _) => "multicast listener report".to_owned(),
        (132, _) => "multicast listener done".to_owned(),
        (133, _) => "router solicitation".to_owned(),
        (134, _) => "router advertisement".to_owned(),
        (135, _) => format!("neighbor solicitation, who has {}", address(8)?),
        (136, _) => format!("neighbor advertisement, tgt is {}", address(8)?),
        (137, _) => format!("redirect, {} to {}", address(24)?, address(8)?),
        (143, _) => "multicast listener report v2".to_owned(),
        _ => format!("unknown type ({kind})"),
    };
    Some(format!("ICMP6, {text}, length {length}"))
}

fn inner_port(message: &[u8], destination: Ipv6Addr) -> Option<String> {
    let port = word(message, 8 + 40 + 2)?;
    Some(match message.get(8 + 6)? {
        6 => format!("{destination} tcp port {port}"),
        17 => format!("{destination} udp port {port}"),
        next => format!("{destination} next header {next} port {port}"),
    })
}

/// The question or answer of an ARP message over Ethernet and IPv4.
pub(super) fn arp(message: &[u8]) -> Option<String> {
    if message.get(..6)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let (sender, target) = (address(message, 14)?, address(message, 24)?);
    match word(message, 6)? {
        1 => Some(format!("Request who-has {target} tell {sender}")),
        2 => {
            let mac = super::link::mac(message.get(8..14)?);
            Some(format!("Reply {sender} is-at {mac}"))
        }
        operation => Some(format!("operation {operation}")),
    }
}

fn address(message: &[u8], at: usize) -> Option<IpAddr> {
    long(message, at).map(|bits| Ipv4Addr::from(bits).into())
}
