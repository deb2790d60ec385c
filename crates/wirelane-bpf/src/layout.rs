//! The Rust side of `bpf/lib/types.h`.
//!
//! The C header is the source: structs and constants are generated from it when this crate is built (build.rs).

pub use crate::abi::{Found, Hits, Ip, Note, Parsed, Record as RecordHeader, Tail};

/// First header of a packet: the link types of captures that Wirelane reads (`enum wl_link`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkType {
    /// Ethernet (LINKTYPE_ETHERNET).
    Ethernet = crate::abi::WL_LINK_ETHERNET as u8,
    /// Raw IP; the version nibble decides (LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6).
    Raw = crate::abi::WL_LINK_RAW as u8,
    /// Linux cooked capture v1 (LINKTYPE_LINUX_SLL).
    Sll = crate::abi::WL_LINK_SLL as u8,
    /// Linux cooked capture v2 (LINKTYPE_LINUX_SLL2).
    Sll2 = crate::abi::WL_LINK_SLL2 as u8,
    /// BSD loopback, address family in the byte order of the capturing host (LINKTYPE_NULL).
    Null = crate::abi::WL_LINK_NULL as u8,
    /// OpenBSD loopback, address family in network byte order (LINKTYPE_LOOP).
    Loop = crate::abi::WL_LINK_LOOP as u8,
    /// PPP or Cisco HDLC on a serial line, by the first byte (LINKTYPE_PPP, LINKTYPE_PPP_HDLC).
    Ppp = crate::abi::WL_LINK_PPP as u8,
    /// PPP behind a direction byte (LINKTYPE_PPP_WITH_DIR, LINKTYPE_PPP_PPPD).
    PppDirection = crate::abi::WL_LINK_PPP_DIRECTION as u8,
    /// PPPoE without an Ethernet header (LINKTYPE_PPP_ETHER).
    Pppoe = crate::abi::WL_LINK_PPPOE as u8,
    /// Cisco HDLC (LINKTYPE_C_HDLC).
    Chdlc = crate::abi::WL_LINK_CHDLC as u8,
    /// Cisco HDLC behind a direction byte (LINKTYPE_C_HDLC_WITH_DIR).
    ChdlcDirection = crate::abi::WL_LINK_CHDLC_DIRECTION as u8,
    /// Frame relay (LINKTYPE_FRELAY).
    FrameRelay = crate::abi::WL_LINK_FRELAY as u8,
    /// Frame relay behind a direction byte (LINKTYPE_FRELAY_WITH_DIR).
    FrameRelayDirection = crate::abi::WL_LINK_FRELAY_DIRECTION as u8,
    /// IEEE 802.11 (LINKTYPE_IEEE802_11).
    Wlan = crate::abi::WL_LINK_WLAN as u8,
    /// IEEE 802.11 behind radiotap (LINKTYPE_IEEE802_11_RADIOTAP).
    Radiotap = crate::abi::WL_LINK_RADIOTAP as u8,
    /// IEEE 802.11 behind Prism's header (LINKTYPE_IEEE802_11_PRISM).
    Prism = crate::abi::WL_LINK_PRISM as u8,
    /// IEEE 802.11 behind the AVS header (LINKTYPE_IEEE802_11_AVS).
    Avs = crate::abi::WL_LINK_AVS as u8,
    /// Per-packet information and the packet that it describes (LINKTYPE_PPI).
    Ppi = crate::abi::WL_LINK_PPI as u8,
    /// Token ring (LINKTYPE_IEEE802_5).
    TokenRing = crate::abi::WL_LINK_TOKEN_RING as u8,
    /// FDDI (LINKTYPE_FDDI).
    Fddi = crate::abi::WL_LINK_FDDI as u8,
    /// LLC of IEEE 802.2, or IP (LINKTYPE_ATM_RFC1483, LINKTYPE_ATM_CLIP).
    Llc = crate::abi::WL_LINK_LLC as u8,
    /// SunATM (LINKTYPE_SUNATM).
    SunAtm = crate::abi::WL_LINK_SUNATM as u8,
    /// IP over Fibre Channel (LINKTYPE_IP_OVER_FC).
    FibreChannel = crate::abi::WL_LINK_FIBRE_CHANNEL as u8,
    /// IP over InfiniBand (LINKTYPE_IPOIB).
    Ipoib = crate::abi::WL_LINK_IPOIB as u8,
    /// Linux's netfilter log (LINKTYPE_NFLOG).
    Nflog = crate::abi::WL_LINK_NFLOG as u8,
    /// OpenBSD's encapsulating interface (LINKTYPE_ENC).
    Enc = crate::abi::WL_LINK_ENC as u8,
    /// OpenBSD's packet filter log (LINKTYPE_PFLOG).
    Pflog = crate::abi::WL_LINK_PFLOG as u8,
    /// IP over IEEE 1394 (LINKTYPE_APPLE_IP_OVER_IEEE1394).
    Firewire = crate::abi::WL_LINK_FIREWIRE as u8,
    /// MPLS (LINKTYPE_MPLS).
    Mpls = crate::abi::WL_LINK_MPLS as u8,
    /// Endace's extensible record format (LINKTYPE_ERF).
    Erf = crate::abi::WL_LINK_ERF as u8,
    /// netANALYZER (LINKTYPE_NETANALYZER).
    NetAnalyzer = crate::abi::WL_LINK_NETANALYZER as u8,
    /// netANALYZER with the preamble of Ethernet (LINKTYPE_NETANALYZER_TRANSPARENT).
    NetAnalyzerPreamble = crate::abi::WL_LINK_NETANALYZER_PREAMBLE as u8,
    /// Ethernet with its preamble (LINKTYPE_ETHERNET_MPACKET).
    Mpacket = crate::abi::WL_LINK_MPACKET as u8,
    /// Ethernet with the tag of Broadcom's switches (LINKTYPE_DSA_TAG_BRCM).
    DsaBrcm = crate::abi::WL_LINK_DSA_BRCM as u8,
    /// Ethernet behind the tag of Broadcom's switches (LINKTYPE_DSA_TAG_BRCM_PREPEND).
    DsaBrcmPrepend = crate::abi::WL_LINK_DSA_BRCM_PREPEND as u8,
    /// Ethernet with the tag of Marvell's switches (LINKTYPE_DSA_TAG_DSA).
    Dsa = crate::abi::WL_LINK_DSA as u8,
    /// Ethernet with the longer tag of Marvell's switches (LINKTYPE_DSA_TAG_EDSA).
    Edsa = crate::abi::WL_LINK_EDSA as u8,
    /// Apple's packet tap and the packet that it describes (LINKTYPE_PKTAP).
    Pktap = crate::abi::WL_LINK_PKTAP as u8,
    /// Solaris' ipnet (LINKTYPE_IPNET).
    Ipnet = crate::abi::WL_LINK_IPNET as u8,
    /// DOCSIS (LINKTYPE_DOCSIS).
    Docsis = crate::abi::WL_LINK_DOCSIS as u8,
    /// Any other: carried and counted, not parsed.
    Other = crate::abi::WL_LINK_OTHER as u8,
}

impl LinkType {
    /// All except [`LinkType::Other`], by number. Devices have the first six, the others occur in files only.
    pub const ALL: [LinkType; 40] = [
        LinkType::Ethernet,
        LinkType::Raw,
        LinkType::Sll,
        LinkType::Sll2,
        LinkType::Null,
        LinkType::Loop,
        LinkType::Ppp,
        LinkType::PppDirection,
        LinkType::Pppoe,
        LinkType::Chdlc,
        LinkType::ChdlcDirection,
        LinkType::FrameRelay,
        LinkType::FrameRelayDirection,
        LinkType::Wlan,
        LinkType::Radiotap,
        LinkType::Prism,
        LinkType::Avs,
        LinkType::Ppi,
        LinkType::TokenRing,
        LinkType::Fddi,
        LinkType::Llc,
        LinkType::SunAtm,
        LinkType::FibreChannel,
        LinkType::Ipoib,
        LinkType::Nflog,
        LinkType::Enc,
        LinkType::Pflog,
        LinkType::Firewire,
        LinkType::Mpls,
        LinkType::Erf,
        LinkType::NetAnalyzer,
        LinkType::NetAnalyzerPreamble,
        LinkType::Mpacket,
        LinkType::DsaBrcm,
        LinkType::DsaBrcmPrepend,
        LinkType::Dsa,
        LinkType::Edsa,
        LinkType::Pktap,
        LinkType::Ipnet,
        LinkType::Docsis,
    ];

    /// The link type with this number in a record, [`LinkType::Other`] for unknown numbers.
    pub fn from_code(code: u8) -> LinkType {
        LinkType::ALL.get(usize::from(code)).copied().unwrap_or(LinkType::Other)
    }
}

impl Tail {
    /// Packets on the wire of a record of `wire_len` bytes (`wl_segments()`).
    pub fn segments(&self, wire_len: u32) -> u32 {
        match wire_len.checked_sub(self.headers.into()) {
            Some(payload) if self.segment_size != 0 => payload.div_ceil(self.segment_size.into()).max(1),
            _ => 1,
        }
    }

    /// Bytes of these packets on the wire.
    pub fn wire_bytes(&self, wire_len: u32) -> u64 {
        u64::from(wire_len) + u64::from(self.segments(wire_len) - 1) * u64::from(self.headers)
    }
}

/// Flag in the last of [`Found::id`]: more patterns were found (`WL_FOUND_MORE`).
pub const FOUND_MORE: u32 = crate::abi::WL_FOUND_MORE;

/// Flag in the first of [`Found::id`]: a [`Note`] follows (`WL_FOUND_NOTE`).
pub const FOUND_NOTE: u32 = crate::abi::WL_FOUND_NOTE;

/// Flag in the second of [`Found::id`]: a [`Hits`] follows (`WL_FOUND_HITS`).
pub const FOUND_HITS: u32 = crate::abi::WL_FOUND_HITS;

/// Flag in the third of [`Found::id`], with [`FOUND_HITS`]: the packet hit more rules than a [`Hits`] has, or later rules
/// were not evaluated (`WL_FOUND_MORE_HITS`).
pub const FOUND_MORE_HITS: u32 = crate::abi::WL_FOUND_MORE_HITS;

/// Maximum length of a [`Note`] in bytes.
pub const NOTE: usize = crate::abi::PLUGIN_NOTE as usize;

/// Bytes of a [`RecordHeader`] in a ring.
pub const RECORD_HEADER: usize = crate::abi::WL_RECORD_HEADER as usize;

/// The offset of a missing header.
pub const NO_OFFSET: u16 = crate::abi::WL_NO_OFFSET as u16;

/// Values of [`RecordHeader::kind`].
pub mod record_kind {
    /// A packet.
    pub const PACKET: u8 = crate::abi::WL_RECORD_PACKET as u8;
    /// A barrier: the following records wait until the worker `hash` has read its ring of the same lane up to `ts_ns`.
    pub const BARRIER: u8 = crate::abi::WL_RECORD_BARRIER as u8;
    /// A packet, of which the chosen headers follow as an [`Ip`](super::Ip) instead of its bytes.
    pub const DIGEST: u8 = crate::abi::WL_RECORD_DIGEST as u8;
    /// Not a packet: a part of a flow follows ([`crate::flow_cache::FlowPart`]). `hash` is its epoch.
    pub const FLOW: u8 = crate::abi::WL_RECORD_FLOW as u8;
    /// Not a packet: a report of skipped HTTP bytes follows ([`crate::http::SkippedBytes`]).
    pub const HTTP: u8 = crate::abi::WL_RECORD_HTTP as u8;
    /// A record of a plug-in.
    pub const PLUGIN: u8 = crate::abi::WL_RECORD_PLUGIN as u8;
    /// A packet that was also added to its RTP stream in the lane.
    pub const MEASURED: u8 = crate::abi::WL_RECORD_MEASURED as u8;
}

/// Values of [`Ip::l3`] and [`RecordHeader::l3`].
pub mod l3 {
    /// No network layer was found.
    pub const NONE: u8 = crate::abi::WL_L3_NONE as u8;
    /// ARP.
    pub const ARP: u8 = crate::abi::WL_L3_ARP as u8;
    /// IPv4.
    pub const IPV4: u8 = crate::abi::WL_L3_IPV4 as u8;
    /// IPv6.
    pub const IPV6: u8 = crate::abi::WL_L3_IPV6 as u8;
}

/// Values of [`Parsed::tunnel`].
pub mod tunnel {
    /// No tunnel.
    pub const NONE: u8 = crate::abi::WL_TUNNEL_NONE as u8;
    /// IPv4 or IPv6 in IPv4 or IPv6.
    pub const IPIP: u8 = crate::abi::WL_TUNNEL_IPIP as u8;
    /// GRE (RFC 2784, RFC 2890).
    pub const GRE: u8 = crate::abi::WL_TUNNEL_GRE as u8;
    /// VXLAN (RFC 7348).
    pub const VXLAN: u8 = crate::abi::WL_TUNNEL_VXLAN as u8;
    /// Geneve (RFC 8926).
    pub const GENEVE: u8 = crate::abi::WL_TUNNEL_GENEVE as u8;
    /// GTP-U (3GPP TS 29.281).
    pub const GTPU: u8 = crate::abi::WL_TUNNEL_GTPU as u8;
    /// ERSPAN I, II and III.
    pub const ERSPAN: u8 = crate::abi::WL_TUNNEL_ERSPAN as u8;
    /// PPTP: PPP behind GRE of version 1 (RFC 2637).
    pub const PPTP: u8 = crate::abi::WL_TUNNEL_PPTP as u8;
    /// L2TP (RFC 2661, RFC 3931).
    pub const L2TP: u8 = crate::abi::WL_TUNNEL_L2TP as u8;
    /// VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe).
    pub const VXLAN_GPE: u8 = crate::abi::WL_TUNNEL_VXLAN_GPE as u8;
    /// Teredo (RFC 4380).
    pub const TEREDO: u8 = crate::abi::WL_TUNNEL_TEREDO as u8;
    /// MPLS behind IP or UDP (RFC 4023, RFC 7510).
    pub const MPLS: u8 = crate::abi::WL_TUNNEL_MPLS as u8;
    /// Ethernet behind IP: EtherIP (RFC 3378), and protocol 143 (RFC 8986).
    pub const ETHERIP: u8 = crate::abi::WL_TUNNEL_ETHERIP as u8;
    /// LISP (RFC 9300).
    pub const LISP: u8 = crate::abi::WL_TUNNEL_LISP as u8;
    /// CAPWAP's data (RFC 5415).
    pub const CAPWAP: u8 = crate::abi::WL_TUNNEL_CAPWAP as u8;
    /// TaZmen sniffer protocol.
    pub const TZSP: u8 = crate::abi::WL_TUNNEL_TZSP as u8;
    /// Generic UDP encapsulation (draft-ietf-intarea-gue).
    pub const GUE: u8 = crate::abi::WL_TUNNEL_GUE as u8;
    /// AYIYA (draft-massar-v6ops-ayiya).
    pub const AYIYA: u8 = crate::abi::WL_TUNNEL_AYIYA as u8;
    /// A network service header behind IP (RFC 8300).
    pub const NSH: u8 = crate::abi::WL_TUNNEL_NSH as u8;
}

/// Bits of [`Ip::flags`].
pub mod ip_flags {
    /// One fragment of a datagram, the first one included.
    pub const FRAGMENT: u8 = crate::abi::WL_IP_FRAGMENT as u8;
    /// Not the first fragment: no transport header.
    pub const LATER: u8 = crate::abi::WL_IP_LATER as u8;
    /// The ports are valid.
    pub const PORTS: u8 = crate::abi::WL_IP_PORTS as u8;
    /// The TCP fields are valid.
    pub const TCP: u8 = crate::abi::WL_IP_TCP as u8;
    /// The ICMP fields are valid.
    pub const ICMP: u8 = crate::abi::WL_IP_ICMP as u8;
    /// IPv4 options or IPv6 extension headers were skipped.
    pub const OPTIONS: u8 = crate::abi::WL_IP_OPTIONS as u8;
    /// The chain ends in something encrypted or unknown before a transport header.
    pub const OPAQUE: u8 = crate::abi::WL_IP_OPAQUE as u8;
}

/// Bits of [`Parsed::flags`] (low byte) and [`RecordHeader::flags`] (both bytes).
pub mod flags {
    /// The captured bytes end before the headers do.
    pub const CUT: u16 = crate::abi::WL_PKT_CUT as u16;
    /// A header contradicts itself.
    pub const MALFORMED: u16 = crate::abi::WL_PKT_MALFORMED as u16;
    /// More headers than the parser follows.
    pub const DEEP: u16 = crate::abi::WL_PKT_DEEP as u16;
    /// There is a tunnel, and its contents were parsed.
    pub const TUNNEL: u16 = crate::abi::WL_PKT_TUNNEL as u16;
    /// There is a VLAN tag.
    pub const VLAN: u16 = crate::abi::WL_PKT_VLAN as u16;
    /// There is an MPLS label.
    pub const MPLS: u16 = crate::abi::WL_PKT_MPLS as u16;
    /// The chosen headers are of a fragment (records only).
    pub const FRAGMENT: u16 = crate::abi::WL_PKT_FRAGMENT as u16;
    /// The chosen headers are the inner ones (records only).
    pub const INNER: u16 = crate::abi::WL_PKT_INNER as u16;
    /// The packet was truncated to the snap length, or by a rule (records only).
    pub const SNAPPED: u16 = crate::abi::WL_REC_SNAPPED as u16;
    /// The packet was leaving the device (records only).
    pub const EGRESS: u16 = crate::abi::WL_REC_EGRESS as u16;
    /// A segmentation-offload packet, longer than any packet on the wire (records only).
    pub const GSO: u16 = crate::abi::WL_REC_GSO as u16;
    /// The timestamp is the card's clock (records only).
    pub const HW_CLOCK: u16 = crate::abi::WL_REC_HW_CLOCK as u16;
    /// The timestamp is one clock read for all packets of a batch (records only).
    pub const BATCH_CLOCK: u16 = crate::abi::WL_REC_BATCH_CLOCK as u16;
    /// A tag follows the captured bytes and their padding: a [`super::Tail`] (records only).
    pub const TAGGED: u16 = crate::abi::WL_REC_TAGGED as u16;
    /// Patterns were found in the payload, or a plug-in has left a note: a [`super::Found`] follows the tag, or its
    /// place if there is no tag (records only).
    pub const FOUND: u16 = crate::abi::WL_REC_FOUND as u16;
    /// The payload was not searched completely, or a plug-in was not run (records only).
    pub const HALF_SEARCHED: u16 = crate::abi::WL_REC_HALF_SEARCHED as u16;
}
