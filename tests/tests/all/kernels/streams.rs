//! RTP measured in the kernel, by one worker and by several, of the same packets at the same time: two captures on one
//! device, as each packet has one timestamp for both. Both report the same of a stream in every case.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::calls::{description, message};
use wirelane_tests::{Child, Finished, Lab};

use super::bench::{Bench as _, Guest, field};
use super::{LIMIT, require_root};

/// Calls; each has a stream, and some have two.
pub(super) const CALLS: u16 = 10;
/// Turns in which each call sends a packet.
const TURNS: u64 = 700;

/// Deterministic pseudo-random numbers (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn once_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }
}

/// One call's sender.
struct Talker {
    media: UdpSocket,
    to: SocketAddr,
    id: String,
    seq: u16,
    ts: u32,
    ssrc: u32,
    /// A packet that is sent after its successor.
    delayed: Option<Vec<u8>>,
}

impl Talker {
    fn packet(&self, first: u8, pt: u8) -> Vec<u8> {
        let mut packet = vec![first, pt];
        packet.extend(self.seq.to_be_bytes());
        packet.extend(self.ts.to_be_bytes());
        packet.extend(self.ssrc.to_be_bytes());
        packet.resize(52, 1);
        packet
    }

    fn send(&self, packet: &[u8]) -> u64 {
        self.media.send_to(packet, self.to).unwrap();
        1
    }

    /// Sends the packets of a turn and returns their number.
    fn turn(&mut self, turn: u64, dice: &mut Dice) -> u64 {
        self.seq = self.seq.wrapping_add(1);
        self.ts = self.ts.wrapping_add(160);
        // Losses: short gaps, and one longer than the window.
        if dice.once_in(60) {
            self.seq = self.seq.wrapping_add(1 + (dice.next() % 4) as u16);
        }
        if turn == 150 {
            self.seq = self.seq.wrapping_add(300);
        }
        // The sender restarts with another sequence number, or with another SSRC.
        if turn == 400 && self.ssrc.is_multiple_of(3) {
            self.seq = self.seq.wrapping_add(30_000);
        }
        if turn == 500 && self.ssrc % 3 == 1 {
            self.ssrc += 1000;
        }
        let (first, pt) = match dice.next() % 100 {
            // Telephone events, comfort noise, an undescribed dynamic type, and a static one.
            0..3 => (0x80, 101),
            3 => (0x80, 13),
            4 if turn > 200 => (0x80, 97),
            5 if turn > 300 => (0x80, 8),
            6 => (0x80, 0x80),
            // More contributing sources than fit into the packet.
            7 if turn > 20 => (0x8f, 0),
            _ => (0x80, 0),
        };
        let packet = self.packet(first, pt);
        let mut sent = 0;
        if self.delayed.is_none() && dice.once_in(30) {
            self.delayed = Some(packet);
            return sent;
        }
        sent += self.send(&packet);
        if dice.once_in(50) {
            sent += self.send(&packet);
        }
        if let Some(late) = self.delayed.take() {
            sent += self.send(&late);
        }
        if turn.is_multiple_of(100) {
            // A sender report on the RTP port (RFC 5761).
            let mut report = vec![0x80, 200, 0, 6];
            report.extend(self.ssrc.to_be_bytes());
            report.resize(28, 0);
            sent += self.send(&report);
        }
        sent
    }
}

/// Makes calls and sends their packets, all from one end; returns the number of packets.
pub(super) fn talk(lab: &Lab, pace: Duration) -> u64 {
    let (ours, theirs) = (lab.sender().address.to_string(), lab.receiver().address.to_string());
    let mut dice = Dice(0x5eed);
    let signalling = UdpSocket::bind((&*ours, 5060)).unwrap();
    let mut sent = 0;
    let mut tell = |bytes: Vec<u8>| {
        signalling.send_to(&bytes, (&*theirs, 5060)).unwrap();
        sent += 1;
    };
    let head = |id: &str, cseq: &str| {
        ["Via: SIP/2.0/UDP x", "From: <sip:a@x>;tag=1", "To: <sip:b@x>;tag=2"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("Call-ID: {id}"), format!("CSeq: {cseq}")])
            .collect::<Vec<String>>()
    };
    let say = |start: &str, id: &str, cseq: &str, body: &str| {
        let lines = head(id, cseq);
        // An INVITE does not have the callee's tag.
        let lines = lines.iter().map(|line| match start.starts_with("INVITE") {
            true => line.trim_end_matches(";tag=2"),
            false => line,
        });
        message(start, &lines.collect::<Vec<&str>>(), body)
    };
    let (mut talkers, mut media) = (Vec::new(), 0);
    for call in 0..CALLS {
        let (id, from, to) = (format!("call-{call:02}"), 20_000 + 2 * call, 30_000 + 2 * call);
        tell(say("INVITE sip:b@x SIP/2.0", &id, "1 INVITE", &description(&ours, from)));
        tell(say("SIP/2.0 200 OK", &id, "1 INVITE", &description(&theirs, to)));
        let mut talker = Talker {
            media: UdpSocket::bind((&*ours, from)).unwrap(),
            to: format!("{theirs}:{to}").parse().unwrap(),
            id: id.clone(),
            // Wraps around in both counters.
            seq: 65_300,
            ts: u32::MAX - 30_000,
            ssrc: 100 + u32::from(call),
            delayed: None,
        };
        // Some send RTP before a rule for it can exist.
        if call % 2 == 0 {
            for _ in 0..5 {
                talker.seq = talker.seq.wrapping_add(1);
                talker.ts = talker.ts.wrapping_add(160);
                media += talker.send(&talker.packet(0x80, 0));
            }
        }
        tell(say("ACK sip:b@x SIP/2.0", &id, "1 ACK", ""));
        talkers.push(talker);
    }
    for turn in 0..TURNS {
        for talker in &mut talkers {
            media += talker.turn(turn, &mut dice);
        }
        std::thread::sleep(pace);
    }
    for talker in &talkers {
        tell(say("BYE sip:b@x SIP/2.0", &talker.id, "2 BYE", ""));
        tell(say("SIP/2.0 200 OK", &talker.id, "2 BYE", ""));
    }
    sent + media
}

/// Starts a command that listens on the lab's receiver.
pub(super) fn listen(lab: &Lab, hook: &str, analysis: &[&str]) -> Child {
    listen_by(lab, &["--hook", hook], analysis)
}

/// The same by these options of the capture.
fn listen_by(lab: &Lab, by: &[&str], analysis: &[&str]) -> Child {
    // How many packets arrive before the rules of their call depends on the time that this process gets.
    let words =
        ["voip", "-i", lab.device(), "--json", "--linger", "0.5", "--dtmf-digits", "--priority", "normal"];
    let interval = ["--quality-interval", "0.7"];
    let mut child = lab.wirelane(&[words.as_slice(), by, &interval, analysis].concat());
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Calls by id, without times: each process measures the offset of the clocks by itself.
fn calls_of(finished: &Finished) -> BTreeMap<String, Value> {
    calls_in(finished.lines.iter().map(String::as_str))
}

/// The same of these lines.
pub(super) fn calls_in<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, Value> {
    fn timeless(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for name in ["start", "end", "answer", "ack", "ringing", "call"] {
                    fields.remove(name);
                }
                fields.values_mut().for_each(timeless);
            }
            Value::Array(values) => values.iter_mut().for_each(timeless),
            _ => {}
        }
    }
    lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line.get("call_id").is_some())
        .map(|mut call| {
            timeless(&mut call);
            (call["call_id"].as_str().unwrap().to_owned(), call)
        })
        .collect()
}

fn sum(calls: &BTreeMap<String, Value>, name: &str) -> u64 {
    calls
        .values()
        .flat_map(|call| call["streams"].as_array().unwrap())
        .map(|stream| field(stream, name))
        .sum()
}

/// Options of the capture that is compared with one by one worker.
const KERNEL: [&str; 2] = ["--analysis", "kernel"];
const WORKERS: [&str; 2] = ["--workers", "2"];

/// Results of a capture with these options and of one without, and the number of packets sent. `still`: all of them from
/// one CPU.
fn both(
    lab: &Lab,
    hook: &str,
    analysis: &[&str],
    pace: Duration,
    still: bool,
) -> ([BTreeMap<String, Value>; 2], [Value; 2], u64) {
    let (other, user) = (listen(lab, hook, analysis), listen(lab, hook, &[]));
    // A guest is emulated: the process has the time of each turn to write the rules of a call.
    let pace = if Guest::is_here() { 3 * pace } else { pace };
    let talk = || {
        if still {
            stay_on_one_cpu();
        }
        talk(lab, pace)
    };
    let sent = lab.enter(&lab.sender().namespace, talk).unwrap();
    // Until the linger time of ended calls is over.
    std::thread::sleep(Duration::from_millis(1500));
    let end = |child: Child| {
        let finished = child.terminate(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        assert_eq!(finished.complaints(), [""; 0]);
        (calls_of(&finished), finished.last_json().unwrap())
    };
    let ((other, of_other), (user, of_user)) = (end(other), end(user));
    ([other, user], [of_other, of_user], sent)
}

/// Asserts that every packet is in one column of the ledger and of the counts.
fn hold(last: &Value, sent: u64) {
    // Neighbour discovery on the device is seen, too.
    assert!(field(last, "seen") >= sent, "{sent} sent: {last}");
    assert_eq!((field(last, "lost"), field(last, "shed"), field(last, "filtered")), (0, 0, 0), "{last}");
    assert_eq!(field(last, "seen"), field(last, "absorbed") + field(last, "analysed"), "{last}");
    assert_eq!(field(last, "absorbed"), field(last, "rtp_absorbed"), "{last}");
    let classes = ["signalling_packets", "rtp_packets", "rtcp_packets", "fragment_packets", "other_packets"];
    assert_eq!(classes.iter().map(|name| field(last, name)).sum::<u64>(), field(last, "seen"), "{last}");
}

/// Binds the calling thread to one CPU: its packets over a veth pair arrive there, by tc and generic XDP on one lane.
pub(super) fn stay_on_one_cpu() {
    let cpu = wirelane::device::allowed_cpus()[0].to_string();
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap();
    let output = Command::new("taskset").args(["-pc", &cpu, thread]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Asserts that both report the same of every stream, field by field, and that most packets were measured in the
/// kernel.
fn are_equal(hook: &str, pace: Duration) {
    let lab = Lab::new(1).unwrap();
    let ([kernel, user], [of_kernel, of_user], sent) = both(&lab, hook, &KERNEL, pace, true);
    hold(&of_kernel, sent);
    hold(&of_user, sent);
    assert_eq!(kernel.len(), usize::from(CALLS));
    for (id, call) in &kernel {
        assert_eq!(call, &user[id]);
    }
    assert_eq!(of_kernel["rtp_packets"], of_user["rtp_packets"]);
    assert_eq!(of_kernel["rtp_malformed"], of_user["rtp_malformed"]);
    // Every kind of event occurred.
    for name in ["lost", "duplicate", "out_of_order", "malformed", "restarts", "dtmf_events", "comfort_noise"]
    {
        assert!(sum(&kernel, name) > 2, "{name}: {kernel:?}");
    }
    assert!(kernel.values().any(|call| field(call, "ssrc_changes") > 0));
    let (absorbed, rtp) = (field(&of_kernel, "rtp_absorbed"), field(&of_kernel, "rtp_packets"));
    let least = if Guest::is_here() { rtp / 4 } else { rtp / 2 };
    assert!(absorbed > least, "{absorbed} of {rtp}");
    assert_eq!((field(&of_kernel, "streams_without_room"), field(&of_kernel, "places_without_rule")), (0, 0));
    println!("{hook}: {absorbed} of {rtp} RTP packets stayed in the kernel");
}

/// Battery: I10
#[test]
fn streams_in_the_kernel_are_those_of_user_space_native() {
    if require_root("streams_in_the_kernel_are_those_of_user_space_native") {
        are_equal("native", Duration::from_millis(4));
    }
}

/// Battery: I10
#[test]
fn streams_in_the_kernel_are_those_of_user_space_generic() {
    let test = "streams_in_the_kernel_are_those_of_user_space_generic";
    if require_root(test) && !Guest::leaves_out(test) {
        are_equal("generic", Duration::from_millis(3));
    }
}

/// Battery: I10
#[test]
fn streams_in_the_kernel_are_those_of_user_space_tc() {
    let test = "streams_in_the_kernel_are_those_of_user_space_tc";
    if require_root(test) && !Guest::leaves_out(test) {
        are_equal("tc", Duration::from_millis(3));
    }
}

/// Lanes that are CPUs process packets of one stream, and of its call, concurrently: their order is not defined, but
/// all are counted.
#[test]
fn streams_of_several_lanes_are_counted_whole() {
    let test = "streams_of_several_lanes_are_counted_whole";
    if !require_root(test) || Guest::leaves_out(test) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let ([kernel, user], [of_kernel, of_user], sent) =
        both(&lab, "tc", &KERNEL, Duration::from_millis(2), false);
    hold(&of_kernel, sent);
    hold(&of_user, sent);
    assert_eq!((kernel.len(), user.len()), (usize::from(CALLS), usize::from(CALLS)));
    for calls in [&kernel, &user] {
        let all = |name| sum(calls, name);
        assert_eq!(all("packets"), all("expected") - all("lost") + all("duplicate") + all("stray"));
    }
    assert!(field(&of_kernel, "rtp_absorbed") > 0, "{of_kernel}");
}

#[test]
fn streams_without_room_are_measured_in_user_space() {
    if !require_root("streams_without_room_are_measured_in_user_space") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let small = listen(&lab, "native", &["--analysis", "kernel", "--streams", "3"]);
    let sent = lab.enter(&lab.sender().namespace, || talk(&lab, Duration::from_millis(1))).unwrap();
    let finished = small.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    hold(&last, sent);
    assert!(field(&last, "streams_without_room") >= u64::from(CALLS) - 3, "{last}");
    assert!(field(&last, "rtp_absorbed") > 0, "{last}");
    assert_eq!(calls_of(&finished).len(), usize::from(CALLS));
}

/// Asserts that two workers report what one does, field by field.
fn workers_are_equal(hook: &str, queues: u32, pace: Duration) {
    let lab = Lab::new(queues).unwrap();
    let ([several, one], [of_several, of_one], sent) = both(&lab, hook, &WORKERS, pace, true);
    for (last, who) in [(&of_several, "several"), (&of_one, "one")] {
        assert!(field(last, "seen") >= sent, "{who}: {sent} sent: {last}");
        assert_eq!(
            (field(last, "lost"), field(last, "shed"), field(last, "filtered")),
            (0, 0, 0),
            "{who}: {last}"
        );
        let classes =
            ["signalling_packets", "rtp_packets", "rtcp_packets", "fragment_packets", "other_packets"];
        let sum: u64 = classes.iter().map(|name| field(last, name)).sum();
        assert_eq!(
            (sum, field(last, "analysed")),
            (field(last, "seen"), field(last, "seen")),
            "{who}: {last}"
        );
    }
    assert_eq!(several.len(), usize::from(CALLS));
    for (id, call) in &several {
        assert_eq!(call, &one[id]);
    }
    for name in [
        "sip_messages",
        "signalling_packets",
        "rtp_packets",
        "rtcp_packets",
        "rtp_malformed",
        "sip_retransmitted",
    ] {
        assert_eq!(field(&of_several, name), field(&of_one, name), "{name}");
    }
    for name in ["lost", "duplicate", "out_of_order", "malformed", "restarts", "dtmf_events", "comfort_noise"]
    {
        assert!(sum(&several, name) > 2, "{name}: {several:?}");
    }
}

#[test]
fn calls_of_several_workers_are_those_of_one_native() {
    let test = "calls_of_several_workers_are_those_of_one_native";
    if require_root(test) && !Guest::leaves_out(test) {
        workers_are_equal("native", 4, Duration::from_millis(3));
    }
}

#[test]
fn calls_of_several_workers_are_those_of_one_tc() {
    let test = "calls_of_several_workers_are_those_of_one_tc";
    if require_root(test) && !Guest::leaves_out(test) {
        workers_are_equal("tc", 1, Duration::from_millis(3));
    }
}

/// Packet sockets stamp packets each by itself, so times differ; everything that is counted is equal.
#[test]
fn calls_of_several_workers_are_those_of_one_by_packet_sockets() {
    let test = "calls_of_several_workers_are_those_of_one_by_packet_sockets";
    if !require_root(test) || Guest::leaves_out(test) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let by = ["--engine", "packet"];
    let children = [listen_by(&lab, &by, &WORKERS), listen_by(&lab, &by, &[])];
    let sent = lab.enter(&lab.sender().namespace, || talk(&lab, Duration::from_millis(3))).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let [several, one] = children.map(|child| child.terminate(LIMIT).unwrap());
    let (last, last_of_one) = (several.last_json().unwrap(), one.last_json().unwrap());
    assert!(field(&last, "analysed") >= sent && field(&last, "lost") == 0, "{last}");
    for name in
        ["sip_messages", "signalling_packets", "rtp_packets", "rtcp_packets", "rtp_malformed", "streams"]
    {
        assert_eq!(field(&last, name), field(&last_of_one, name), "{name}");
    }
    let (several, one) = (calls_of(&several), calls_of(&one));
    assert_eq!(several.keys().collect::<Vec<_>>(), one.keys().collect::<Vec<_>>());
    for name in
        ["packets", "lost", "duplicate", "out_of_order", "malformed", "restarts", "dtmf_events", "stray"]
    {
        assert_eq!(sum(&several, name), sum(&one, name), "{name}");
    }
}
