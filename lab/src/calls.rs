//! Calls, for sensors that analyse VoIP: generated captures of signalling and media.
//!
//! Before a trial, each call is established: an INVITE and a 200 with descriptions of the media, and an ACK, at a rate
//! that any sensor can process. In the trial, both ends of all calls send in turn, packet by packet: RTP of G.711
//! (payload type 0), with correct sequence numbers and timestamps.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};

/// Maximum number of calls: the ends have addresses in two networks of /16, with 1,000 ports each.
pub const MOST: u32 = 1_000_000;
/// Bytes of a frame with 20 ms of G.711.
pub const FRAME: u16 = 214;
/// The smallest frame with a byte of audio, as Ethernet pads it.
pub const SMALLEST: u16 = 60;
/// Messages per second before a trial.
const MESSAGES_PER_SECOND: u64 = 10_000;
/// Length of the Ethernet, IPv4, UDP and RTP headers.
const HEADERS: u16 = 14 + 20 + 8 + 12;
const SIP: u16 = 5060;

/// Media of all calls in a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Media {
    /// Number of calls.
    pub calls: u32,
    /// Bytes of a frame.
    pub size: u16,
    /// Number of packets of all calls.
    pub packets: u64,
    /// Packets per second; `None`: all with the same time, to be sent at full speed.
    pub pps: Option<f64>,
}

/// An end of a call.
pub(crate) type End = (Ipv4Addr, u16);

/// Ends of caller and callee: even ports, as the next one is for RTCP.
pub(crate) fn ends(call: u32) -> [End; 2] {
    let (host, port) = (call / 1000, 10_000 + 2 * (call % 1000) as u16);
    [0x0a01_0000, 0x0a02_0000].map(|network| (Ipv4Addr::from(network + host), port))
}

/// Frames that establish a call: INVITE, 200 and ACK.
pub(crate) fn signalling(call: u32) -> [Vec<u8>; 3] {
    let [(caller, caller_port), (callee, callee_port)] = ends(call);
    let message = |request: &str, method: &str, tag: &str, media: Option<End>| {
        let body = media.map_or(String::new(), |(address, port)| {
            format!(
                "v=0\r\no=- 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\n\
                 m=audio {port} RTP/AVP 0\r\na=rtpmap:0 PCMU/8000\r\n"
            )
        });
        let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
        format!(
            "{request}\r\nVia: SIP/2.0/UDP {caller}:{SIP};branch=z9hG4bK{call}\r\n\
             From: <sip:caller{call}@{caller}>;tag=1\r\nTo: <sip:callee{call}@{callee}>{tag}\r\n\
             Call-ID: {call}@{caller}\r\nCSeq: 1 {method}\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let uri = format!("sip:callee{call}@{callee} SIP/2.0");
    let invite = message(&format!("INVITE {uri}"), "INVITE", "", Some((caller, caller_port)));
    let answer = message("SIP/2.0 200 OK", "INVITE", ";tag=2", Some((callee, callee_port)));
    let ack = message(&format!("ACK {uri}"), "ACK", ";tag=2", None);
    let [caller, callee] = [(caller, SIP), (callee, SIP)];
    [([caller, callee], invite), ([callee, caller], answer), ([caller, callee], ack)]
        .map(|(way, text)| datagram(way, text.as_bytes()))
}

/// Writes the messages that establish this many calls.
pub fn write_signalling(path: &Path, calls: u32) -> Result<()> {
    let mut file = Capture::create(path)?;
    let gap_ns = 1_000_000_000 / MESSAGES_PER_SECOND;
    for (number, frame) in (0..).zip((0..calls).flat_map(signalling)) {
        file.packet(number * gap_ns, &frame)?;
    }
    file.finish()
}

/// Writes the media of the calls.
pub fn write_media(path: &Path, media: &Media) -> Result<()> {
    let mut file = Capture::create(path)?;
    let talkers = 2 * media.calls;
    let audio = usize::from(media.size.saturating_sub(HEADERS));
    let mut frames: Vec<Vec<u8>> = (0..talkers)
        .map(|talker| {
            let [caller, callee] = ends(talker / 2);
            let way = if talker % 2 == 0 { [caller, callee] } else { [callee, caller] };
            let mut rtp = vec![0x80, 0, 0, 0, 0, 0, 0, 0];
            rtp.extend((talker + 1).to_be_bytes());
            // Silence in the encoding of payload type 0.
            rtp.resize(rtp.len() + audio, 0xff);
            datagram(way, &rtp)
        })
        .collect();
    let gap_ns = media.pps.map_or(0.0, |pps| 1e9 / pps);
    for number in 0..media.packets {
        let turn = (number / u64::from(talkers)) as u32;
        let frame = &mut frames[(number % u64::from(talkers)) as usize];
        frame[44..46].copy_from_slice(&(turn as u16).to_be_bytes());
        frame[46..50].copy_from_slice(&turn.wrapping_mul(audio as u32).to_be_bytes());
        file.packet((number as f64 * gap_ns) as u64, frame)?;
    }
    file.finish()
}

/// Ethernet, IPv4 and UDP around a payload.
pub(crate) fn datagram([(src, src_port), (dst, dst_port)]: [End; 2], payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((28 + payload.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(src.octets().into_iter().chain(dst.octets()));
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend(ip);
    // Without a UDP checksum, which IPv4 allows.
    for word in [src_port, dst_port, 8 + payload.len() as u16, 0] {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

/// A pcap file with nanoseconds, for generated traffic.
pub(crate) struct Capture(BufWriter<File>);

impl Capture {
    pub(crate) fn create(path: &Path) -> Result<Capture> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut file = Capture(BufWriter::with_capacity(1 << 20, file));
        // Magic number, version 2.4, time zone 0, accuracy 0, snap length, Ethernet (pcap-savefile(5)).
        file.words(&[0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1])?;
        Ok(file)
    }

    pub(crate) fn packet(&mut self, at_ns: u64, frame: &[u8]) -> Result<()> {
        let length = frame.len() as u32;
        self.words(&[(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, length, length])?;
        self.0.write_all(frame).context("writing a capture")
    }

    fn words(&mut self, words: &[u32]) -> Result<()> {
        for word in words {
            self.0.write_all(&word.to_le_bytes()).context("writing a capture")?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.0.flush().context("writing a capture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(path: &Path) -> Vec<(u64, Vec<u8>)> {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut packets) = (24, Vec::new());
        while at < bytes.len() {
            let length = word(at + 8) as usize;
            let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
            packets.push((time, bytes[at + 16..at + 16 + length].to_vec()));
            at += 16 + length;
        }
        packets
    }

    #[test]
    fn calls_begin_and_speak_in_turn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        write_signalling(&path, 2).unwrap();
        let said = packets(&path);
        assert_eq!(said.len(), 6);
        assert_eq!((said[0].0, said[5].0), (0, 500_000));
        let text = String::from_utf8_lossy(&said[3].1[42..]).into_owned();
        assert!(text.starts_with("INVITE sip:callee1@10.2.0.0 SIP/2.0\r\n"), "{text}");
        assert!(
            text.contains("m=audio 10002 RTP/AVP 0\r\n") && text.contains("c=IN IP4 10.1.0.0\r\n"),
            "{text}"
        );
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{text}");

        write_media(&path, &Media { calls: 2, size: 124, packets: 9, pps: Some(1000.0) }).unwrap();
        let said = packets(&path);
        assert_eq!(said.len(), 9);
        let (time, frame) = &said[8];
        assert_eq!((*time, frame.len()), (8_000_000, 124));
        // Third packet of the first talker.
        assert_eq!(frame[42..54], [0x80, 0, 0, 2, 0, 0, 0, 140, 0, 0, 0, 1]);
        assert_eq!(
            (&frame[26..34], &frame[34..38]),
            (&[10, 1, 0, 0, 10, 2, 0, 0][..], &[39, 16, 39, 16][..])
        );
        assert_eq!(said[3].1[26..34], [10, 2, 0, 0, 10, 1, 0, 0]);
        // The sum over an IPv4 header with its checksum is all ones.
        let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn all_calls_have_ends_of_their_own() {
        let last = ends(MOST - 1);
        assert_eq!(last, [(Ipv4Addr::new(10, 1, 3, 231), 11_998), (Ipv4Addr::new(10, 2, 3, 231), 11_998)]);
    }
}
