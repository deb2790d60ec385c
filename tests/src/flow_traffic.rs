//! Packets of flows of all kinds, for tests that compare two implementations of flows.

use std::fs;
use std::path::Path;

use crate::frames::ethernet;
use crate::recordings::{write_header, write_packet};

/// First bytes of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Spoken {
    /// Name of the application.
    pub name: &'static str,
    /// IP protocol: 6 or 17.
    pub proto: u8,
    /// Usual port.
    pub port: u16,
    begins: &'static [u8],
    /// Length of the payload, which is filled with zeros.
    length: usize,
}

impl Spoken {
    /// The shortest payload by which the protocol is detected.
    pub fn payload(&self) -> Vec<u8> {
        let mut payload = self.begins.to_vec();
        payload.resize(self.length.max(payload.len()), 0);
        payload
    }
}

const fn spoken(name: &'static str, proto: u8, port: u16, begins: &'static [u8], length: usize) -> Spoken {
    Spoken { name, proto, port, begins, length }
}

const QUESTION: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

/// All protocols that are detected by their first bytes (`crates/wirelane-bpf/bpf/lib/application.h`).
pub const SPOKEN: [Spoken; 23] = [
    spoken("TLS", 6, 443, b"\x16\x03\x01\0\xc8\x01\0\0\xc4\x03\x03", 60),
    spoken("DTLS", 17, 4433, b"\x16\xfe\xfd\0\0\0\0\0\0\0\0\0\x30\x01", 61),
    spoken("HTTP", 6, 80, b"GET /index.html HTTP/1.1\r\n\r\n", 0),
    spoken("HTTP2", 6, 8080, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0),
    spoken("SSH", 6, 22, b"SSH-2.0-a\r\n", 0),
    spoken("DNS", 17, 53, QUESTION, 0),
    spoken("MDNS", 17, 5353, QUESTION, 0),
    spoken("LLMNR", 17, 5355, QUESTION, 0),
    spoken("QUIC", 17, 443, b"\xc0\0\0\0\x01\x08", 90),
    spoken("SIP", 17, 5060, b"REGISTER sip:a SIP/2.0\r\n", 0),
    spoken("RTSP", 6, 554, b"GET_PARAMETER rtsp://a RTSP/1.0\r\n", 0),
    spoken("STUN", 17, 3478, b"\0\x01\0\0\x21\x12\xa4\x42", 20),
    spoken("BitTorrent", 6, 6881, b"\x13BitTorrent protocol", 28),
    spoken("SMBv1", 6, 139, b"\0\0\0\x20\xffSMB", 36),
    spoken("SMBv23", 6, 445, b"\0\0\0\x40\xfeSMB\x40\0", 68),
    spoken("RDP", 6, 3389, b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0\x08\0", 19),
    spoken("NTP", 17, 123, b"\x23", 48),
    spoken("DHCP", 17, 67, b"\x01\x01\x06", 244),
    spoken("MQTT", 6, 1883, b"\x10\x10\0\x04MQTT\x04", 18),
    spoken("SMTP", 6, 25, b"EHLO a\r\n", 0),
    spoken("PostgreSQL", 6, 5432, b"\0\0\0\x10\0\x03\0\0user\0a\0\0", 0),
    spoken("SSDP", 17, 1900, b"M-SEARCH * HTTP/1.1\r\n", 0),
    spoken("BGP", 6, 179, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\x13\x04", 0),
];

/// Deterministic pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// An IPv4 packet.
fn ipv4(numbers: &mut Numbers, proto: u8, fragment: u16, transport: &[u8]) -> Vec<u8> {
    let mut packet =
        vec![0x45, numbers.one_of(&[0, 0, 8]), 0, 0, 0, 7, 0, 0, numbers.one_of(&[64, 64, 63]), proto, 0, 0];
    packet[2..4].copy_from_slice(&(20 + transport.len() as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet.extend([10, 0, 0, numbers.below(4) as u8, 10, 0, 1, numbers.below(4) as u8]);
    packet.extend(transport);
    packet
}

/// A frame of some flow: TCP that begins, ends, retransmits and begins anew, UDP, each with and without a detectable
/// protocol, ICMP, fragments, tunnels, tags, IPv6 and other protocols than IP.
fn frame(numbers: &mut Numbers) -> Vec<u8> {
    let source = numbers.one_of(&[1000u16, 1001, 1002]).to_be_bytes();
    let mut said = |proto: u8| {
        let (port, payload) = match numbers.below(4) {
            0 => {
                let of: Vec<&Spoken> = SPOKEN.iter().filter(|spoken| spoken.proto == proto).collect();
                let spoken = of[numbers.below(of.len() as u64) as usize];
                (spoken.port, spoken.payload())
            }
            _ => (numbers.one_of(&[80u16, 443]), vec![7; numbers.below(60) as usize]),
        };
        ([source, port.to_be_bytes()].concat(), payload)
    };
    let ((ports, payload), (udp_ports, udp_payload)) = (said(6), said(17));
    let mut tcp = [ports, vec![0, 0, 0, numbers.below(200) as u8, 0, 0, 0, 0, 0x50]].concat();
    tcp.extend([numbers.one_of(&[0x10, 0x10, 0x10, 0x10, 0x18, 0x02, 0x12, 0x11, 0x04]), 1, 0, 0, 0, 0, 0]);
    tcp.extend(&payload);
    let mut udp = [udp_ports, (8 + udp_payload.len() as u16).to_be_bytes().to_vec(), vec![0, 0]].concat();
    udp.extend(&udp_payload);
    let icmp = vec![numbers.one_of(&[8, 0, 3]), 0, 0, 0, 0, 1, 0, 1];
    match numbers.below(16) {
        0..=6 => ethernet(0x0800, &ipv4(numbers, 6, 0, &tcp)),
        7 | 8 => ethernet(0x0800, &ipv4(numbers, 17, 0, &udp)),
        9 => ethernet(0x0800, &ipv4(numbers, 1, 0, &icmp)),
        // The first of two fragments, and the second.
        10 => ethernet(0x0800, &ipv4(numbers, 17, 0x2000, &udp)),
        11 => ethernet(0x0800, &ipv4(numbers, 17, 0x0009, &udp)),
        // GRE with a key.
        12 => {
            let inside = ipv4(numbers, 17, 0, &udp);
            let gre = [vec![0x20, 0, 8, 0, 0, 0, 0, numbers.below(2) as u8], inside].concat();
            ethernet(0x0800, &ipv4(numbers, 47, 0, &gre))
        }
        13 => {
            let tagged = [vec![0, numbers.below(3) as u8, 8, 0], ipv4(numbers, 6, 0, &tcp)].concat();
            ethernet(0x8100, &tagged)
        }
        14 => {
            let mut packet = vec![0x60, 0, 0, 0, 0, tcp.len() as u8, 6, 64];
            let address = |last: u64| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last as u8];
            packet.extend(address(numbers.below(2)).into_iter().chain(address(9)).chain(tcp));
            ethernet(0x86dd, &packet)
        }
        _ => ethernet(
            0x0806,
            &[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2],
        ),
    }
}

/// Frames over some seconds, with silences around the timeouts of a second.
///
/// # Errors
/// If the file cannot be written.
pub fn make_capture(path: &Path, frames: usize) -> std::io::Result<()> {
    let mut output = Vec::new();
    write_header(&mut output)?;
    let (mut numbers, mut at_ns) = (Numbers(7), 0);
    for n in 0..frames {
        at_ns += match n % (frames / 3) {
            0 => 1_300_000_000,
            _ => numbers.below(3_000_000),
        };
        write_packet(&mut output, at_ns, &frame(&mut numbers))?;
    }
    fs::write(path, output)
}
