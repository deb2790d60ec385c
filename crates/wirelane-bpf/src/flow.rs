//! Flows as `bpf/lib/flow.h` keeps them, compiled natively; the C header is the source of these structs.

use crate::layout::Ip;

/// The VLAN id of packets without a tag (`WL_FLOW_NO_VLAN`).
pub const NO_VLAN: u16 = 0xffff;
/// A segment that steps back within so many nanoseconds was overtaken (`WL_FLOW_REORDER_NS`).
pub const REORDER_NS: u64 = 3_000_000;
/// Bit of [`FlowKey::flags`]: the packets were leaving the device (`WL_FLOW_KEY_EGRESS`).
pub const KEY_EGRESS: u8 = 0x01;
/// Bit of [`FlowKey::flags`]: there were ports, which may be 0 (`WL_FLOW_KEY_PORTS`). Of parts that end with intervals
/// ([`crate::flow_cache::Splits::with_intervals`]) only, whose keys have the addresses of ARP as well.
pub const KEY_PORTS: u8 = 0x02;

/// Bits of [`Flow::flags`].
pub mod flow_flags {
    /// [`super::Flow::syn_ns`] is valid.
    pub const SYN: u16 = 0x0001;
    /// It is of a SYN with ACK.
    pub const SYNACK: u16 = 0x0002;
    /// [`super::Flow::ack_ns`] is valid.
    pub const ACK: u16 = 0x0004;
    /// The fields of TCP are valid.
    pub const TCP: u16 = 0x0008;
    /// Those of segments that take room in the sequence are valid.
    pub const DATA: u16 = 0x0010;
    /// [`super::Flow::mpls_label`] is valid.
    pub const MPLS: u16 = 0x0020;
    /// The TTLs are valid: the packets are IP.
    pub const TTL: u16 = 0x0040;
}

/// Numbers of [`Flow::application`] (`enum wl_application`).
pub mod applications {
    /// See `WL_APP_UNKNOWN`.
    pub const UNKNOWN: u8 = 0;
    /// See `WL_APP_TLS`.
    pub const TLS: u8 = 1;
    /// See `WL_APP_DTLS`.
    pub const DTLS: u8 = 2;
    /// See `WL_APP_HTTP`.
    pub const HTTP: u8 = 3;
    /// See `WL_APP_HTTP2`.
    pub const HTTP2: u8 = 4;
    /// See `WL_APP_SSH`.
    pub const SSH: u8 = 5;
    /// See `WL_APP_DNS`.
    pub const DNS: u8 = 6;
    /// See `WL_APP_MDNS`.
    pub const MDNS: u8 = 7;
    /// See `WL_APP_LLMNR`.
    pub const LLMNR: u8 = 8;
    /// See `WL_APP_QUIC`.
    pub const QUIC: u8 = 9;
    /// See `WL_APP_SIP`.
    pub const SIP: u8 = 10;
    /// See `WL_APP_RTSP`.
    pub const RTSP: u8 = 11;
    /// See `WL_APP_STUN`.
    pub const STUN: u8 = 12;
    /// See `WL_APP_BITTORRENT`.
    pub const BITTORRENT: u8 = 13;
    /// See `WL_APP_SMB1`.
    pub const SMB1: u8 = 14;
    /// See `WL_APP_SMB2`.
    pub const SMB2: u8 = 15;
    /// See `WL_APP_RDP`.
    pub const RDP: u8 = 16;
    /// See `WL_APP_NTP`.
    pub const NTP: u8 = 17;
    /// See `WL_APP_DHCP`.
    pub const DHCP: u8 = 18;
    /// See `WL_APP_MQTT`.
    pub const MQTT: u8 = 19;
    /// See `WL_APP_SMTP`.
    pub const SMTP: u8 = 20;
    /// See `WL_APP_POSTGRESQL`.
    pub const POSTGRESQL: u8 = 21;
    /// See `WL_APP_SSDP`.
    pub const SSDP: u8 = 22;
    /// See `WL_APP_BGP`.
    pub const BGP: u8 = 23;
}

/// Why a flow has ended (`enum wl_flow_end`): the numbers of IPFIX's flowEndReason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// Nothing came for the inactive timeout.
    Idle = 1,
    /// It was as old as the active timeout; it may go on as another flow.
    Active = 2,
    /// TCP said so.
    Ended = 3,
    /// The capture has ended.
    Forced = 4,
    /// Its place was needed.
    Resources = 5,
}

impl EndReason {
    fn of(code: u32) -> Option<EndReason> {
        match code {
            1 => Some(EndReason::Idle),
            2 => Some(EndReason::Active),
            3 => Some(EndReason::Ended),
            4 => Some(EndReason::Forced),
            5 => Some(EndReason::Resources),
            _ => None,
        }
    }
}

/// What makes packets one flow (`struct wl_flow_key`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// Source address as in [`Ip::src`]; zero of what is no IP.
    pub src: [u8; 16],
    /// Destination address, the same way.
    pub dst: [u8; 16],
    /// Source port, network byte order; 0 where there is none, of later fragments, and of ICMP.
    pub src_port: u16,
    /// Destination port, the same way; of ICMP type and code, the type first.
    pub dst_port: u16,
    /// [`crate::layout::l3`]; NONE of all that is no IP.
    pub l3: u8,
    /// IP protocol.
    pub proto: u8,
    /// EtherType of what is no IP, else 0.
    pub eth_type: u16,
    /// The outermost VLAN id, or [`NO_VLAN`].
    pub vlan: u16,
    /// Index of the device in its capture.
    pub device: u16,
    /// VNI, TEID or GRE key, where the addresses are those inside a tunnel.
    pub tunnel_id: u32,
    /// [`crate::layout::tunnel`], the same.
    pub tunnel: u8,
    /// [`KEY_EGRESS`].
    pub flags: u8,
    #[doc(hidden)]
    pub pad: [u8; 6],
}

/// What the packets of a flow come to (`struct wl_flow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on, as it states them; of what is no IP, of whole packets.
    pub bytes: u64,
    /// Bytes of whole packets, as on the wire.
    pub wire_bytes: u64,
    /// The earliest time, in nanoseconds.
    pub first_ns: u64,
    /// The latest.
    pub last_ns: u64,
    /// Time of the last SYN before [`Flow::ack_ns`].
    pub syn_ns: u64,
    /// Time of the first segment with ACK and neither SYN nor RST.
    pub ack_ns: u64,
    /// Time of the first segment that takes room in the sequence.
    pub first_data_ns: u64,
    /// Time of the last one.
    pub last_data_ns: u64,
    /// TCP sequence number of the first packet.
    pub first_seq: u32,
    /// Of the last one.
    pub last_seq: u32,
    /// Of the first segment that takes room in the sequence.
    pub first_data_seq: u32,
    /// Behind the last one.
    pub next_seq: u32,
    /// Segments that begin before the end of the one before them, and are not reordered.
    pub retransmitted: u32,
    /// The same, within [`REORDER_NS`] of it.
    pub reordered: u32,
    /// Packets that were one fragment of a datagram.
    pub fragments: u32,
    /// Least of what [`Flow::bytes`] adds up.
    pub min_length: u32,
    /// Most of it.
    pub max_length: u32,
    /// MPLS label at the top, of the first packet that had one.
    pub mpls_label: u32,
    /// RX queue of the first packet.
    pub queue: u16,
    /// [`flow_flags`].
    pub flags: u16,
    /// Type of service or traffic class of the first packet.
    pub tos: u8,
    /// Least TTL.
    pub min_ttl: u8,
    /// Greatest TTL.
    pub max_ttl: u8,
    /// TCP flags of all packets.
    pub tcp_flags: u8,
    /// TCP flags of the first one.
    pub first_tcp_flags: u8,
    /// What speaks, by the first bytes of a payload that were certain ([`applications`]); 0: none were.
    pub application: u8,
    #[doc(hidden)]
    pub pad: [u8; 6],
}

/// What is known of a packet beside its chosen headers (`struct wl_flow_packet`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowPacket {
    /// Its time in nanoseconds.
    pub ts_ns: u64,
    /// Its length on the wire in bytes.
    pub wire_len: u32,
    /// VNI, TEID or GRE key.
    pub tunnel_id: u32,
    /// MPLS label at the top, valid with [`crate::layout::flags::MPLS`].
    pub mpls_label: u32,
    /// EtherType.
    pub eth_type: u16,
    /// Outermost VLAN tag, valid with [`crate::layout::flags::VLAN`].
    pub vlan_tci: u16,
    /// [`crate::layout::flags`].
    pub flags: u16,
    /// Index of the device in its capture.
    pub device: u16,
    /// RX queue.
    pub queue: u16,
    /// [`crate::layout::tunnel`], with [`crate::layout::flags::INNER`].
    pub tunnel: u8,
    /// What speaks in it ([`application_of`]), where its payload was looked at.
    pub application: u8,
    /// Payload of each packet on the wire of an aggregate (GRO, GSO), but the last; 0: it is none.
    pub segment_size: u16,
    /// Bytes before the payload, which each packet on the wire of an aggregate has.
    pub headers: u16,
    #[doc(hidden)]
    pub pad: u32,
}

/// How long a flow is kept, in nanoseconds (`struct wl_flow_timeouts`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Timeouts {
    /// From its first packet on, in steps of a grid of time: an active timeout has 32 to 64 of them, and a flow is
    /// that old, give or take less than one.
    pub active_ns: u64,
    /// From its last packet on.
    pub idle_ns: u64,
    /// The same, where TCP has ended it.
    pub ended_ns: u64,
}

unsafe extern "C" {
    fn wl_native_flow_key(key: *mut FlowKey, ip: *const Ip, packet: *const FlowPacket);
    fn wl_native_flow_update(flow: *mut Flow, ip: *const Ip, packet: *const FlowPacket);
    fn wl_native_flow_merge(flow: *mut Flow, part: *const Flow);
    fn wl_native_flow_expired(flow: *const Flow, now_ns: u64, timeouts: *const Timeouts) -> u32;
    fn wl_native_application(payload: *const u8, captured: usize, length: u32, ip: *const Ip) -> u32;
    fn wl_native_flow_cut_by_part(flow: *const Flow, part: *const Flow, timeouts: *const Timeouts) -> u32;
    fn wl_native_flow_cut(flow: *const Flow, ip: *const Ip, ts_ns: u64, timeouts: *const Timeouts) -> u32;
}

/// What speaks in a packet with these headers, by the first bytes behind them ([`applications`]); 0 where those are not
/// certain. `length`: bytes that the datagram has there, of which these were captured. (`wl_application()`)
#[inline]
pub fn application_of(payload: &[u8], length: u32, ip: &Ip) -> u8 {
    // SAFETY: the payload's pointer and length are those of one slice, from which C reads, `ip` is live and has the
    // layout of C's struct, and nothing is written or kept.
    let number = unsafe { wl_native_application(payload.as_ptr(), payload.len(), length, ip) };
    number as u8
}

impl FlowKey {
    /// The key of a packet with these chosen headers. (`wl_flow_key_of()`)
    pub fn of(ip: &Ip, packet: &FlowPacket) -> FlowKey {
        let mut key = FlowKey::default();
        // SAFETY: all three are live and have the layouts of C's structs, which a test compares field by field; only
        // the key is written.
        unsafe { wl_native_flow_key(&mut key, ip, packet) };
        key
    }
}

impl Flow {
    /// Adds a packet of the flow's key; the first one finds no packets. (`wl_flow_update()`)
    #[inline]
    pub fn update(&mut self, ip: &Ip, packet: &FlowPacket) {
        // SAFETY: as in `FlowKey::of`; only the flow is written.
        unsafe { wl_native_flow_update(self, ip, packet) };
    }

    /// Adds a part of it, which may be older or newer: lanes hand on their parts one after the other, whenever their
    /// packets came.
    pub fn join(&mut self, part: &Flow) {
        if part.first_ns < self.first_ns {
            let newer = std::mem::replace(self, *part);
            self.merge(&newer);
        } else {
            self.merge(part);
        }
    }

    /// Adds the part of the flow that follows on this one; both have packets. (`wl_flow_merge()`)
    pub fn merge(&mut self, part: &Flow) {
        // SAFETY: as in `FlowKey::of`; the two do not overlap, as one is borrowed exclusively.
        unsafe { wl_native_flow_merge(self, part) };
    }

    /// Why it is over at this time; `None`: it goes on. (`wl_flow_expired()`)
    #[inline]
    pub fn expired(&self, now_ns: u64, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_expired(self, now_ns, timeouts) })
    }

    /// Why it ends before this packet of its key; `None`: the packet belongs to it. (`wl_flow_cut()`)
    #[inline]
    pub fn cut(&self, ip: &Ip, ts_ns: u64, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_cut(self, ip, ts_ns, timeouts) })
    }

    /// Why it ends before this part of its key; `None`: the part belongs to it. (`wl_flow_cut_by_part()`)
    pub fn cut_by_part(&self, part: &Flow, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_cut_by_part(self, part, timeouts) })
    }

    /// Whether TCP has ended it in its direction: a FIN or a RST was in it.
    pub fn has_ended(&self) -> bool {
        self.tcp_flags & 0x05 != 0
    }
}
