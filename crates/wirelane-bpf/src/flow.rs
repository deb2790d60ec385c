//! The flows of `bpf/lib/flow.h`, compiled natively; the C header is the source of these structs.

pub use crate::abi::{Flow, FlowKey, FlowPacket, FlowTimeouts as Timeouts};
use crate::abi::{
    wl_native_application, wl_native_flow_cut, wl_native_flow_cut_by_part, wl_native_flow_expired,
    wl_native_flow_key, wl_native_flow_merge, wl_native_flow_update,
};
use crate::layout::Ip;

/// The VLAN id of packets without a tag (`WL_FLOW_NO_VLAN`).
pub const NO_VLAN: u16 = crate::abi::WL_FLOW_NO_VLAN as u16;
/// A segment that steps back within this time was reordered, in nanoseconds (`WL_FLOW_REORDER_NS`).
pub const REORDER_NS: u64 = crate::abi::WL_FLOW_REORDER_NS as u64;
/// Bit of [`FlowKey::flags`]: the packets were leaving the device (`WL_FLOW_KEY_EGRESS`).
pub const KEY_EGRESS: u8 = crate::abi::WL_FLOW_KEY_EGRESS as u8;
/// Bit of [`FlowKey::flags`]: the packets had ports, which may be 0 (`WL_FLOW_KEY_PORTS`). Only in parts that end with
/// intervals ([`crate::flow_cache::Splits::with_intervals`]), whose keys also have the addresses of ARP.
pub const KEY_PORTS: u8 = crate::abi::WL_FLOW_KEY_PORTS as u8;

/// Bits of [`Flow::flags`].
pub mod flow_flags {
    /// [`super::Flow::syn_ns`] is valid.
    pub const SYN: u16 = crate::abi::WL_FLOW_SYN as u16;
    /// [`super::Flow::syn_ns`] is that of a SYN with ACK.
    pub const SYNACK: u16 = crate::abi::WL_FLOW_SYNACK as u16;
    /// [`super::Flow::ack_ns`] is valid.
    pub const ACK: u16 = crate::abi::WL_FLOW_ACK as u16;
    /// The fields of TCP are valid.
    pub const TCP: u16 = crate::abi::WL_FLOW_TCP as u16;
    /// The fields of segments that consume sequence numbers are valid.
    pub const DATA: u16 = crate::abi::WL_FLOW_DATA as u16;
    /// [`super::Flow::mpls_label`] is valid.
    pub const MPLS: u16 = crate::abi::WL_FLOW_MPLS as u16;
    /// The TTLs are valid: the packets are IP.
    pub const TTL: u16 = crate::abi::WL_FLOW_TTL as u16;
}

/// Numbers of [`Flow::application`] (`enum wl_application`).
pub mod applications {
    /// See `WL_APP_UNKNOWN`.
    pub const UNKNOWN: u8 = crate::abi::WL_APP_UNKNOWN as u8;
    /// See `WL_APP_TLS`.
    pub const TLS: u8 = crate::abi::WL_APP_TLS as u8;
    /// See `WL_APP_DTLS`.
    pub const DTLS: u8 = crate::abi::WL_APP_DTLS as u8;
    /// See `WL_APP_HTTP`.
    pub const HTTP: u8 = crate::abi::WL_APP_HTTP as u8;
    /// See `WL_APP_HTTP2`.
    pub const HTTP2: u8 = crate::abi::WL_APP_HTTP2 as u8;
    /// See `WL_APP_SSH`.
    pub const SSH: u8 = crate::abi::WL_APP_SSH as u8;
    /// See `WL_APP_DNS`.
    pub const DNS: u8 = crate::abi::WL_APP_DNS as u8;
    /// See `WL_APP_MDNS`.
    pub const MDNS: u8 = crate::abi::WL_APP_MDNS as u8;
    /// See `WL_APP_LLMNR`.
    pub const LLMNR: u8 = crate::abi::WL_APP_LLMNR as u8;
    /// See `WL_APP_QUIC`.
    pub const QUIC: u8 = crate::abi::WL_APP_QUIC as u8;
    /// See `WL_APP_SIP`.
    pub const SIP: u8 = crate::abi::WL_APP_SIP as u8;
    /// See `WL_APP_RTSP`.
    pub const RTSP: u8 = crate::abi::WL_APP_RTSP as u8;
    /// See `WL_APP_STUN`.
    pub const STUN: u8 = crate::abi::WL_APP_STUN as u8;
    /// See `WL_APP_BITTORRENT`.
    pub const BITTORRENT: u8 = crate::abi::WL_APP_BITTORRENT as u8;
    /// See `WL_APP_SMB1`.
    pub const SMB1: u8 = crate::abi::WL_APP_SMB1 as u8;
    /// See `WL_APP_SMB2`.
    pub const SMB2: u8 = crate::abi::WL_APP_SMB2 as u8;
    /// See `WL_APP_RDP`.
    pub const RDP: u8 = crate::abi::WL_APP_RDP as u8;
    /// See `WL_APP_NTP`.
    pub const NTP: u8 = crate::abi::WL_APP_NTP as u8;
    /// See `WL_APP_DHCP`.
    pub const DHCP: u8 = crate::abi::WL_APP_DHCP as u8;
    /// See `WL_APP_MQTT`.
    pub const MQTT: u8 = crate::abi::WL_APP_MQTT as u8;
    /// See `WL_APP_SMTP`.
    pub const SMTP: u8 = crate::abi::WL_APP_SMTP as u8;
    /// See `WL_APP_POSTGRESQL`.
    pub const POSTGRESQL: u8 = crate::abi::WL_APP_POSTGRESQL as u8;
    /// See `WL_APP_SSDP`.
    pub const SSDP: u8 = crate::abi::WL_APP_SSDP as u8;
    /// See `WL_APP_BGP`.
    pub const BGP: u8 = crate::abi::WL_APP_BGP as u8;
}

/// Reason for the end of a flow (`enum wl_flow_end`): the numbers of IPFIX's flowEndReason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// No packet arrived during the inactive timeout.
    Idle = crate::abi::WL_FLOW_IDLE as u8,
    /// Its age reached the active timeout; it may continue as another flow.
    Active = crate::abi::WL_FLOW_ACTIVE as u8,
    /// TCP ended the connection.
    Ended = crate::abi::WL_FLOW_ENDED as u8,
    /// The capture has ended.
    Forced = crate::abi::WL_FLOW_FORCED as u8,
    /// Its entry was needed.
    Resources = crate::abi::WL_FLOW_RESOURCES as u8,
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

/// The application of a packet with these headers, from the first bytes behind them ([`applications`]); 0 if it is
/// uncertain. `length`: bytes of the datagram's payload, of which `payload` were captured. (`wl_application()`)
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
        // SAFETY: all three are live and have the layouts of C's structs; only
        // the key is written.
        unsafe { wl_native_flow_key(&mut key, ip, packet) };
        key
    }
}

impl Flow {
    /// Adds a packet of the flow's key to the flow, which may be empty. (`wl_flow_update()`)
    #[inline]
    pub fn update(&mut self, ip: &Ip, packet: &FlowPacket) {
        // SAFETY: as in `FlowKey::of`; only the flow is written.
        unsafe { wl_native_flow_update(self, ip, packet) };
    }

    /// Adds a part of the flow, which may be older or newer: lanes export their parts one after the other, independent
    /// of the order of their packets.
    pub fn join(&mut self, part: &Flow) {
        if part.first_ns < self.first_ns {
            let newer = std::mem::replace(self, *part);
            self.merge(&newer);
        } else {
            self.merge(part);
        }
    }

    /// Adds the part of the flow that follows this one; both have packets. (`wl_flow_merge()`)
    pub fn merge(&mut self, part: &Flow) {
        // SAFETY: as in `FlowKey::of`; the two do not overlap, as one is borrowed exclusively.
        unsafe { wl_native_flow_merge(self, part) };
    }

    /// The reason why the flow has ended at this time; `None`: it continues. (`wl_flow_expired()`)
    #[inline]
    pub fn expired(&self, now_ns: u64, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_expired(self, now_ns, timeouts) })
    }

    /// The reason why the flow ends before this packet of its key; `None`: the packet belongs to it. (`wl_flow_cut()`)
    #[inline]
    pub fn cut(&self, ip: &Ip, ts_ns: u64, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_cut(self, ip, ts_ns, timeouts) })
    }

    /// The reason why the flow ends before this part of its key; `None`: the part belongs to it.
    /// (`wl_flow_cut_by_part()`)
    pub fn cut_by_part(&self, part: &Flow, timeouts: &Timeouts) -> Option<EndReason> {
        // SAFETY: as in `FlowKey::of`; nothing is written.
        EndReason::of(unsafe { wl_native_flow_cut_by_part(self, part, timeouts) })
    }

    /// Whether TCP has ended the flow in its direction, by a FIN or a RST.
    pub fn has_ended(&self) -> bool {
        self.tcp_flags & 0x05 != 0
    }
}
