//! Advice on how a device is captured: native XDP on a device that the host uses, a mirror port, conversations with
//! only one visible direction.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use wirelane::device::MacAddress;
use wirelane::{Capture, HookPoint, LinkType, Record};

/// Time from the first packet to the advice.
const AFTER: Duration = Duration::from_secs(4);
/// Maximum packets that are analysed.
const PACKETS: usize = 50_000;
/// Maximum conversations that are followed.
const CONVERSATIONS: usize = 1024;
/// Minimum packets of a conversation that counts: a scan's conversations have fewer.
const LEAST_PACKETS: u32 = 4;
/// Minimum number of conversations, or of packets for other hosts, for a piece of advice.
const LEAST: usize = 20;

/// Requests of the user on which advice depends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// The capture keeps packets from the host's network stack.
    pub exclusive: bool,
    /// Both directions of conversations are expected.
    pub conversations: bool,
}

/// Prints the advice that needs no traffic.
pub fn at_start(capture: &Capture, expected: Expected) {
    if expected.exclusive {
        return;
    }
    for device in capture.devices().iter().filter(|device| device.hook == Some(HookPoint::NativeXdp)) {
        tracing::warn!(
            "{}: native XDP switches off what joins received packets (LRO; on veth also GRO and TSO), which slows the \
             host's own TCP; capture the whole device by tc ('--hook tc', the default), or say '--exclusive' where the \
             device is the capture's own",
            device.name
        );
    }
}

type End = (IpAddr, u16);

/// Counts of a device.
#[derive(Debug)]
struct Seen {
    name: String,
    mac: MacAddress,
    /// Received packets that are addressed to another host.
    foreign: usize,
    /// Packets that the host received or sent.
    own: usize,
}

/// Analyses the first packets of a worker.
#[derive(Debug)]
pub struct Advisor {
    /// Index into `seen` by the records' device; `None` for devices without advice.
    devices: Vec<Option<usize>>,
    seen: Vec<Seen>,
    /// Whether both directions of conversations are expected.
    both: bool,
    since: Option<Instant>,
    packets: usize,
    /// Packets of each conversation, and their directions.
    conversations: HashMap<(End, End), (u32, u8)>,
}

impl Advisor {
    /// For one worker of a live capture.
    pub fn new(capture: &Capture, expected: Expected) -> Advisor {
        let mut seen: Vec<Seen> = Vec::new();
        let devices = capture.devices().into_iter().map(|device| {
            let mac = device.mac.filter(|_| device.link_type == LinkType::Ethernet && !expected.exclusive)?;
            let known = seen.iter().position(|seen| seen.name == device.name);
            Some(known.unwrap_or_else(|| {
                seen.push(Seen { name: device.name, mac, foreign: 0, own: 0 });
                seen.len() - 1
            }))
        });
        let devices = devices.collect();
        let both = expected.conversations;
        Advisor { devices, seen, both, since: None, packets: 0, conversations: HashMap::new() }
    }

    /// Analyses a record. False: it has seen enough and has printed its advice.
    pub fn record(&mut self, record: &Record<'_>) -> bool {
        self.packets += 1;
        if self.packets >= PACKETS || (self.packets.is_multiple_of(64) || self.packets < 64) && self.is_over()
        {
            for line in self.advice_lines() {
                tracing::warn!("{line}");
            }
            return false;
        }
        if let Some(Some(at)) = self.devices.get(record.device()) {
            let seen = &mut self.seen[*at];
            match record.data().first_chunk::<6>() {
                _ if record.is_egress() => seen.own += 1,
                Some(to) if *to == seen.mac.0 => seen.own += 1,
                // The lowest bit of the first byte marks a group address (IEEE 802).
                Some(to) if to[0] & 1 == 0 && *to != [0; 6] => seen.foreign += 1,
                _ => {}
            }
        }
        if self.both
            && let Some(headers) = record.headers().filter(|headers| headers.protocol == Some(6))
            && let Some((from, to)) = headers.ports
        {
            let (from, to) = ((headers.src, from), (headers.dst, to));
            let (key, direction) = if from < to { ((from, to), 1) } else { ((to, from), 2) };
            let room = self.conversations.len() < CONVERSATIONS;
            let conversation = match self.conversations.get_mut(&key) {
                Some(conversation) => conversation,
                None if room => self.conversations.entry(key).or_default(),
                None => return true,
            };
            *conversation = (conversation.0 + 1, conversation.1 | direction);
        }
        true
    }

    fn is_over(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now).elapsed() >= AFTER
    }

    fn advice_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for Seen { name, foreign, .. } in
            self.seen.iter().filter(|seen| seen.own == 0 && seen.foreign >= LEAST)
        {
            lines.push(format!(
                "{name} looks like a mirror port: {foreign} packets were for other hosts and none for this one; with \
                 --exclusive they are captured before the host's network stack, which saves its work for them"
            ));
        }
        let counted = || self.conversations.values().filter(|(packets, _)| *packets >= LEAST_PACKETS);
        let (all, alone) = (counted().count(), counted().filter(|(_, directions)| *directions != 3).count());
        if all >= LEAST && alone * 4 > all * 3 {
            lines.push(format!(
                "only one direction of {alone} of {all} TCP connections was seen: name the device that the other one \
                 passes, too (-i eth1,eth2), or have the switch mirror both directions"
            ));
        }
        lines
    }
}
