//! NetFlow version 5: IPv4, 32-bit counters. Cisco's "NetFlow Export Datagram Format" is its only specification.

use wirelane_analysis::flows::FlowRecord;
use wirelane_bpf::layout::l3;

use super::encode::{Context, Encoder, Message, one_way};
use super::fields::interfaces;
use super::netflow9::boot_ms;

const HEADER: usize = 24;
const RECORD: usize = 48;
/// Maximum records of a message.
const MOST: usize = 30;

/// Encodes NetFlow 5 messages.
pub(super) struct Netflow5 {
    most: usize,
    message: Message,
    /// Number of records before the current message.
    sequence: u32,
    boot_ms: Option<u64>,
}

impl Netflow5 {
    /// For messages of this size.
    pub fn new(most: usize) -> Netflow5 {
        let most = ((most - HEADER) / RECORD).clamp(1, MOST);
        Netflow5 { most, message: Message::default(), sequence: 0, boot_ms: None }
    }

    fn finish(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        if self.message.records == 0 {
            return;
        }
        let mut message = std::mem::take(&mut self.message);
        let boot_ms = self.boot_ms.unwrap_or_default();
        let now_ms = context.now_ns / 1_000_000;
        // A mode (1: one packet of this many, deterministic) and 14 bits.
        let sampling = match context.settings.sampling {
            1 => 0,
            every => 0x4000 | every.min(0x3fff),
        };
        let header = [
            (5 << 16) | message.records,
            now_ms.wrapping_sub(boot_ms) as u32,
            (now_ms / 1000) as u32,
            (context.now_ns % 1_000_000_000) as u32,
            self.sequence,
            (context.settings.domain & 0xffff) << 16 | sampling,
        ];
        for (place, word) in message.bytes.chunks_exact_mut(4).zip(header) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(message.records);
        out.push(message);
    }

    fn put(&mut self, way: &FlowRecord, packets: u32, octets: u32, device: u32) {
        let (key, flow) = (&way.key, &way.flow);
        let boot_ms = self.boot_ms.unwrap_or_default();
        let uptime = |ns: u64| (ns / 1_000_000).wrapping_sub(boot_ms) as u32;
        let bytes = &mut self.message.bytes;
        bytes.extend(&key.src[..4]);
        bytes.extend(&key.dst[..4]);
        // The next hop, which a probe does not know.
        bytes.extend([0; 4]);
        let (ingress, egress) = interfaces(way, device);
        for interface in [ingress, egress] {
            bytes.extend((interface.min(0xffff) as u16).to_be_bytes());
        }
        bytes.extend(packets.to_be_bytes());
        bytes.extend(octets.to_be_bytes());
        bytes.extend(uptime(flow.first_ns).to_be_bytes());
        bytes.extend(uptime(flow.last_ns).to_be_bytes());
        bytes.extend(way.source_port().to_be_bytes());
        bytes.extend(way.destination_port().to_be_bytes());
        bytes.extend([0, flow.tcp_flags, key.proto, flow.tos]);
        // Autonomous systems and masks, which a probe does not know either.
        bytes.extend([0; 8]);
        self.message.records += 1;
    }
}

impl Encoder for Netflow5 {
    fn flow(&mut self, flow: &FlowRecord, context: &Context<'_>, out: &mut Vec<Message>) -> bool {
        if flow.key.l3 != l3::IPV4 {
            return false;
        }
        self.boot_ms.get_or_insert_with(|| boot_ms(flow));
        for (number, way) in one_way(flow).enumerate() {
            // Values beyond 32 bits are split into several records: none without packets, as every packet has some
            // bytes of the 4 GiB.
            let (packets, octets) = (way.flow.packets, way.flow.bytes);
            let parts = packets.max(octets).div_ceil(u32::MAX.into()).max(1);
            for part in 0..parts {
                if self.message.records as usize == self.most {
                    self.finish(context, out);
                }
                if self.message.records == 0 {
                    self.message.bytes.resize(HEADER, 0);
                }
                let share = |of: u64| (of / parts + u64::from(part < of % parts)) as u32;
                self.put(&way, share(packets), share(octets), context.naming.index(flow));
            }
            if number == 0 {
                self.message.flows += 1;
                self.message.packets += flow.packets();
                self.message.octets += flow.bytes();
            }
        }
        true
    }

    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>) {
        self.finish(context, out);
    }

    fn preamble(&mut self, _: &Context<'_>) -> Option<Message> {
        None
    }
}
