//! Generated calls for tests: SIP messages, RTP packets, capture files of them; and the results of `wirelane voip` for
//! a file.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use crate::frames::ethernet;
use crate::numbers::column;
use crate::recordings::{write_header, write_packet};
use crate::wirelane_binary;

/// Packets with their times.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    packets: Vec<(u64, Vec<u8>)>,
}

fn frame(from: SocketAddr, to: SocketAddr, proto: u8, transport: &[u8]) -> Vec<u8> {
    match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0];
            packet[2..4].copy_from_slice(&(20 + transport.len() as u16).to_be_bytes());
            packet.extend(src.octets().into_iter().chain(dst.octets()));
            packet.extend(transport);
            ethernet(0x0800, &packet)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, proto, 64];
            packet[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
            packet.extend(src.octets().into_iter().chain(dst.octets()));
            packet.extend(transport);
            ethernet(0x86dd, &packet)
        }
        _ => panic!("a packet has addresses of one family"),
    }
}

impl Scene {
    /// An empty scene.
    pub fn new() -> Scene {
        Scene::default()
    }

    /// Number of packets so far.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True if the scene has no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Adds a frame at this time, in microseconds.
    pub fn frame(&mut self, at_us: u64, frame: Vec<u8>) {
        self.packets.push((at_us * 1000, frame));
    }

    /// Adds a datagram at this time, in microseconds.
    pub fn udp(&mut self, at_us: u64, from: &str, to: &str, payload: &[u8]) {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut transport = Vec::new();
        for number in [from.port(), to.port(), 8 + payload.len() as u16, 0] {
            transport.extend(number.to_be_bytes());
        }
        transport.extend(payload);
        self.frame(at_us, frame(from, to, 17, &transport));
    }

    /// Adds a datagram in fragments of so many bytes, a multiple of 8, over IPv4.
    pub fn fragmented(&mut self, at_us: u64, from: &str, to: &str, payload: &[u8], size: usize) {
        let mut whole = Scene::new();
        whole.udp(at_us, from, to, payload);
        let datagram = &whole.packets[0].1[34..];
        let count = datagram.len().div_ceil(size);
        for (number, part) in datagram.chunks(size).enumerate() {
            let mut frame = whole.packets[0].1[..34].to_vec();
            frame[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
            frame[18..20].copy_from_slice(&(self.packets.len() as u16 - number as u16 + 1).to_be_bytes());
            let more = if number + 1 < count { 0x2000 } else { 0 };
            frame[20..22].copy_from_slice(&(more | (number * size / 8) as u16).to_be_bytes());
            frame.extend(part);
            frame.resize(frame.len().max(60), 0);
            self.frame(at_us, frame);
        }
    }

    /// Adds a TCP segment at this time, in microseconds.
    pub fn tcp(&mut self, at_us: u64, from: &str, to: &str, seq: u32, data: &[u8]) {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        transport.extend(seq.to_be_bytes());
        transport.extend([0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        transport.extend(data);
        self.frame(at_us, frame(from, to, 6, &transport));
    }

    /// Adds a TCP segment with these flags, sequence number and acknowledgement.
    pub fn segment(&mut self, from: &str, to: &str, flags: u8, (seq, ack): (u32, u32), data: &[u8]) {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
        transport.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
        transport.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        transport.extend(data);
        self.frame(0, frame(from, to, 6, &transport));
    }

    /// The frames in the order in which they were added, without times.
    pub fn into_frames(self) -> Vec<Vec<u8>> {
        self.packets.into_iter().map(|(_, frame)| frame).collect()
    }

    /// Writes a capture file, in the order of time.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(mut self, path: &Path) -> Result<()> {
        self.packets.sort_by_key(|(at, _)| *at);
        let mut output = BufWriter::new(File::create(path)?);
        write_header(&mut output)?;
        for (at, frame) in &self.packets {
            write_packet(&mut output, *at, frame)?;
        }
        output.flush()?;
        Ok(())
    }
}

/// A SIP message: its first line, the lines of its head, its body.
pub fn message(start: &str, lines: &[&str], body: &str) -> Vec<u8> {
    let mut text = format!("{start}\r\n");
    lines.iter().for_each(|line| text += &format!("{line}\r\n"));
    if !body.is_empty() {
        text += "Content-Type: application/sdp\r\n";
    }
    (text + &format!("Content-Length: {}\r\n\r\n{body}", body.len())).into_bytes()
}

/// A description of one audio media of G.711 and telephone events.
pub fn description(address: &str, port: u16) -> String {
    let family = if address.contains(':') { 6 } else { 4 };
    format!(
        "v=0\r\no=- 1 1 IN IP{family} {address}\r\ns=-\r\nc=IN IP{family} {address}\r\nt=0 0\r\n\
         m=audio {port} RTP/AVP 0 101\r\na=rtpmap:0 PCMU/8000\r\na=rtpmap:101 telephone-event/8000\r\n"
    )
}

/// An RTP packet of 20 ms of G.711: its number, from which its timestamp follows.
pub fn rtp(number: u64, ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend((number as u16).to_be_bytes());
    packet.extend(((number * 160) as u32).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.resize(172, 0xff);
    packet
}

/// Output of `wirelane voip --json`.
pub struct Results {
    /// Calls, with their streams.
    pub calls: Vec<Value>,
    /// Streams that do not belong to a call.
    pub streams: Vec<Value>,
    /// The last object: the ledger and the totals.
    pub last: Value,
}

/// Runs `wirelane voip` over a file and checks that every packet is in one column of its counts and every RTP packet in
/// one stream.
///
/// # Panics
/// If the command fails, or the counts are not exact.
pub fn voip(file: &Path, options: &[&str]) -> Results {
    let binary = wirelane_binary().unwrap();
    // An address space limit, in case a bound does not hold.
    let limit = "ulimit -v 700000; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limit, "sh", binary.to_str().unwrap(), "voip", "--json", "-r", file.to_str().unwrap()])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.bytes().any(|byte| byte < 0x20 && byte != b'\n' || byte == 0x7f));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap().clone();
    assert_eq!(last["final"], true);
    let with =
        |field: &str| lines.iter().filter(|line| line.get(field).is_some()).cloned().collect::<Vec<_>>();
    let results = Results { calls: with("call_id"), streams: with("stream"), last };
    results.check();
    results
}

impl Results {
    /// Checks that every packet is in one column, and every RTP packet in one stream.
    fn check(&self) {
        let last = &self.last;
        let packets: u64 =
            ["signalling_packets", "rtp_packets", "rtcp_packets", "fragment_packets", "other_packets"]
                .iter()
                .map(|name| column(last, name))
                .sum();
        assert_eq!(packets, column(last, "analysed"), "{last}");
        let all = self.all_streams();
        let streams: u64 = all.iter().map(|stream| column(stream, "packets")).sum();
        assert_eq!(
            streams + column(last, "rtp_left_out") + column(last, "rtp_malformed"),
            column(last, "rtp_packets")
        );
        for stream in all {
            let of = |name: &str| column(stream, name);
            assert_eq!(
                of("packets"),
                of("expected") - of("lost") + of("duplicate") + of("stray"),
                "{stream}"
            );
        }
        assert_eq!(self.calls.len() as u64, column(last, "calls"));
    }

    /// All streams: those of calls and the others.
    pub fn all_streams(&self) -> Vec<&Value> {
        let of_calls = self.calls.iter().flat_map(|call| call["streams"].as_array().unwrap());
        of_calls.chain(&self.streams).collect()
    }

    /// The call with this Call-ID.
    ///
    /// # Panics
    /// If there is no such call.
    pub fn call(&self, id: &str) -> &Value {
        self.calls.iter().find(|call| call["call_id"] == id).unwrap_or_else(|| panic!("no {id}"))
    }
}
