//! An endless mix of real and hostile traffic with known results of an analysis.
//!
//! Conversations are scripts of frames, and many run at a time: complete HTTP transactions and calls, and between them
//! connections that are reset or never answered, scans, floods of UDP, of INVITEs and of fragments, and bytes that do
//! not form a message. No two conversations have the same addresses, ports or Call-ID.

use std::collections::VecDeque;
use std::io::{self, Write};

use crate::calls::{Scene, description, message, rtp};
use crate::recordings::{write_header, write_packet};

/// Number of concurrent conversations.
const AT_A_TIME: usize = 100;
/// RTP packets of a call in each direction.
const RTP_PACKETS: u64 = 25;
/// Transactions of a complete connection.
const TRANSACTIONS: u64 = 3;

/// Totals of the traffic sent.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sent {
    /// Frames.
    pub packets: u64,
    /// Bytes of these frames.
    pub bytes: u64,
    /// HTTP transactions with request and response.
    pub transactions: u64,
    /// HTTP requests without a response.
    pub unanswered: u64,
    /// Calls that were answered and ended.
    pub calls: u64,
    /// Calls without an answer.
    pub unanswered_calls: u64,
    /// RTP packets, all of which belong to calls.
    pub rtp_packets: u64,
    /// Fragments.
    pub fragments: u64,
}

/// Generator of the mix.
#[derive(Debug, Default)]
pub struct Mixture {
    scripts: Vec<VecDeque<Vec<u8>>>,
    conversations: u64,
    random: u64,
    sent: Sent,
    ending: bool,
}

impl Mixture {
    /// A generator from the start: two of them yield the same frames.
    pub fn new() -> Mixture {
        Mixture::default()
    }

    /// Totals of the frames so far; the conversations are complete after [`Mixture::end`] and the last frame.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Begins no further conversation: the frames end with the current ones.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// Writes a capture file of so many frames and the rest of its conversations, with this time between two frames.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&mut self, output: &mut dyn Write, frames: u64, gap_ns: u64) -> io::Result<()> {
        write_header(output)?;
        let mut at_ns = crate::recordings::NOON_NS;
        let last = self.sent.packets + frames;
        while let Some(frame) = self.next() {
            write_packet(output, at_ns, &frame)?;
            at_ns += gap_ns;
            if self.sent.packets == last {
                self.end();
            }
        }
        Ok(())
    }

    fn below(&mut self, most: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % most
    }

    /// The frames of the next conversation; adds its numbers to the totals.
    fn begin(&mut self) -> VecDeque<Vec<u8>> {
        let number = self.conversations;
        self.conversations += 1;
        let mut scene = Scene::new();
        let sent = &mut self.sent;
        match number % 10 {
            0 | 1 => {
                http(&mut scene, number, Ending::Whole);
                sent.transactions += TRANSACTIONS;
            }
            2 => {
                http(&mut scene, number, Ending::Reset);
                sent.unanswered += 1;
            }
            3 => {
                http(&mut scene, number, Ending::Never);
                sent.unanswered += 1;
            }
            4 => scan(&mut scene, number),
            5 => udp_flood(&mut scene, number),
            6 => {
                call(&mut scene, number);
                sent.calls += 1;
                sent.rtp_packets += 2 * RTP_PACKETS;
            }
            7 => sent.unanswered_calls += invite_flood(&mut scene, number),
            8 => sent.fragments += fragments(&mut scene, number),
            _ => garbage(&mut scene, number),
        }
        scene.into_frames().into()
    }
}

impl Iterator for Mixture {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        while !self.ending && self.scripts.len() < AT_A_TIME {
            let script = self.begin();
            self.scripts.push(script);
        }
        if self.scripts.is_empty() {
            return None;
        }
        let at = self.below(self.scripts.len());
        let frame = self.scripts[at].pop_front().expect("no script is empty");
        if self.scripts[at].is_empty() {
            self.scripts.swap_remove(at);
        }
        self.sent.packets += 1;
        self.sent.bytes += frame.len() as u64;
        Some(frame)
    }
}

/// An address and port that are unique to a conversation.
fn client(number: u64) -> String {
    let [.., a, b, c] = (number / 50_000).to_be_bytes();
    format!("10.{a}.{b}.{c}:{}", 10_000 + number % 50_000)
}

#[derive(Clone, Copy, PartialEq)]
enum Ending {
    Whole,
    Reset,
    Never,
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const PSH_ACK: u8 = 0x18;
const FIN_ACK: u8 = 0x11;

fn http(scene: &mut Scene, number: u64, ending: Ending) {
    let (client, server) = (client(number), "172.16.0.1:80");
    scene.segment(&client, server, SYN, (0, 0), b"");
    scene.segment(server, &client, SYN | ACK, (0, 1), b"");
    let (mut sent, mut received) = (1, 1);
    let transactions = if ending == Ending::Whole { TRANSACTIONS } else { 1 };
    for transaction in 0..transactions {
        let request = format!("GET /{number}/{transaction} HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n");
        scene.segment(&client, server, PSH_ACK, (sent, received), request.as_bytes());
        sent += request.len() as u32;
        match ending {
            Ending::Reset => {
                scene.segment(server, &client, RST | ACK, (received, sent), b"");
                // A segment that was in flight when the connection was reset.
                scene.segment(&client, server, ACK, (sent, received), b"");
                return;
            }
            Ending::Never => return,
            Ending::Whole => {}
        }
        let body = vec![b'x'; 100 + number as usize % 1000];
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        scene.segment(server, &client, PSH_ACK, (received, sent), response.as_bytes());
        received += response.len() as u32;
        scene.segment(server, &client, PSH_ACK, (received, sent), &body);
        received += body.len() as u32;
        scene.segment(&client, server, ACK, (sent, received), b"");
    }
    scene.segment(&client, server, FIN_ACK, (sent, received), b"");
    scene.segment(server, &client, FIN_ACK, (received, sent + 1), b"");
    scene.segment(&client, server, ACK, (sent + 1, received + 1), b"");
}

fn scan(scene: &mut Scene, number: u64) {
    for port in 0..20 {
        scene.segment(
            &client(number),
            &format!("172.16.1.1:{}", 1 + port * 37),
            SYN,
            (number as u32, 0),
            b"",
        );
    }
}

fn udp_flood(scene: &mut Scene, number: u64) {
    for source in 0..30u64 {
        let [a, b, c] = [(number >> 8) as u8, number as u8, source as u8];
        scene.udp(0, &format!("11.{a}.{b}.{c}:{}", 1024 + number % 60_000), "172.16.2.1:9", &[b'x'; 18]);
    }
}

fn call(scene: &mut Scene, number: u64) {
    let (alice, bob) = ("192.0.2.1:5060", "192.0.2.2:5060");
    let id = format!("Call-ID: call-{number}@example.com");
    let (from, to) = ("From: <sip:alice@example.com>;tag=a", "To: <sip:bob@example.org>");
    let answered = "To: <sip:bob@example.org>;tag=b";
    let (near, far) = (media(number, 1), media(number, 2));
    let host =
        |media: &str| media.split_once(':').map(|(host, port)| (host.to_owned(), port.parse().unwrap()));
    let ((near_host, near_port), (far_host, far_port)) = (host(&near).unwrap(), host(&far).unwrap());
    let invite = ["CSeq: 1 INVITE", &id, from, to];
    let offer = description(&near_host, near_port);
    scene.udp(0, alice, bob, &message("INVITE sip:bob@example.org SIP/2.0", &invite, &offer));
    let ok = ["CSeq: 1 INVITE", &id, from, answered];
    let answer = description(&far_host, far_port);
    scene.udp(0, bob, alice, &message("SIP/2.0 200 OK", &ok, &answer));
    scene.udp(0, alice, bob, &message("ACK sip:bob SIP/2.0", &["CSeq: 1 ACK", &id, from, answered], ""));
    for packet in 0..RTP_PACKETS {
        scene.udp(0, &near, &far, &rtp(packet, number as u32));
        scene.udp(0, &far, &near, &rtp(packet, !number as u32));
    }
    let bye = ["CSeq: 2 BYE", &id, from, answered];
    scene.udp(0, alice, bob, &message("BYE sip:bob SIP/2.0", &bye, ""));
    scene.udp(0, bob, alice, &message("SIP/2.0 200 OK", &bye, ""));
}

/// Media address of one end of a call.
fn media(number: u64, end: u8) -> String {
    let call = number / 10;
    format!(
        "198.{}.{}.{end}:{}",
        18 + call / 256 / 20_000 % 2,
        call / 20_000 % 256,
        20_000 + 2 * (call % 20_000)
    )
}

fn invite_flood(scene: &mut Scene, number: u64) -> u64 {
    const CALLS: u64 = 20;
    for call in 0..CALLS {
        let id = format!("Call-ID: flood-{number}-{call}");
        let lines = ["CSeq: 1 INVITE", &id, "From: <sip:x@example.com>;tag=x", "To: <sip:y@example.com>"];
        scene.udp(0, "203.0.113.1:5060", "203.0.113.2:5060", &message("INVITE sip:y SIP/2.0", &lines, ""));
    }
    CALLS
}

/// First fragments without the rest of their datagram, and a datagram that is complete in two fragments.
fn fragments(scene: &mut Scene, number: u64) -> u64 {
    for datagram in 0..10u64 {
        let mut packet = vec![0x45, 0, 0, 84, 0, 0, 0x20, 0, 64, 17, 0, 0, 12, 0, 0, 1, 172, 16, 3, 1];
        packet[4..6].copy_from_slice(&((number * 10 + datagram) as u16).to_be_bytes());
        packet[13..15].copy_from_slice(&((number * 10 + datagram) >> 16).to_be_bytes()[6..]);
        packet.extend([b'z'; 64]);
        scene.frame(0, crate::frames::ethernet(0x0800, &packet));
    }
    let before = scene.len();
    scene.fragmented(0, &client(number), "172.16.3.2:7", &[b'f'; 2000], 1480);
    (10 + scene.len() - before) as u64
}

fn garbage(scene: &mut Scene, number: u64) {
    let bytes: Vec<u8> =
        (0..200u64).map(|at| ((number ^ at).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    scene.segment(&client(number), "172.16.4.1:80", PSH_ACK, (1, 1), &bytes);
    scene.segment(&client(number), "172.16.4.1:5060", PSH_ACK, (1, 1), &bytes);
    scene.segment(&client(number), "172.16.4.1:443", PSH_ACK, (1, 1), &bytes);
    scene.udp(0, &client(number), "172.16.4.1:53", &bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_each_time_and_ends() {
        let frames = |frames: u64| {
            let (mut mixture, mut file) = (Mixture::new(), Vec::new());
            mixture.write(&mut file, frames, 1000).unwrap();
            (mixture.sent(), file)
        };
        let ((sent, file), (again, same)) = (frames(20_000), frames(20_000));
        assert!(sent == again && file == same);
        assert!(sent.packets > 20_000 && sent.packets < 30_000, "{sent:?}");
        assert!(sent.transactions > 500 && sent.calls > 50 && sent.fragments > 500, "{sent:?}");
    }
}
