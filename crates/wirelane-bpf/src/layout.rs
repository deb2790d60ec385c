//! The Rust side of `bpf/lib/types.h`.
//!
//! The C header is the source; these structs mirror it field by field, and the tests of this crate compare
//! size and every offset with what the C compiler says.

/// How a packet begins: the link types of captures that Wirelane reads (`enum wl_link`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkType {
    /// Ethernet (LINKTYPE_ETHERNET).
    Ethernet = 0,
    /// Raw IP; the version nibble says which (LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6).
    Raw = 1,
    /// Linux cooked capture v1 (LINKTYPE_LINUX_SLL).
    Sll = 2,
    /// Linux cooked capture v2 (LINKTYPE_LINUX_SLL2).
    Sll2 = 3,
    /// BSD loopback, address family in the byte order of the capturing host (LINKTYPE_NULL).
    Null = 4,
    /// OpenBSD loopback, address family in network byte order (LINKTYPE_LOOP).
    Loop = 5,
    /// PPP or Cisco HDLC on a serial line, by the first byte (LINKTYPE_PPP, LINKTYPE_PPP_HDLC).
    Ppp = 6,
    /// PPP behind a byte that says the direction (LINKTYPE_PPP_WITH_DIR, LINKTYPE_PPP_PPPD).
    PppDirection = 7,
    /// PPPoE without Ethernet in front (LINKTYPE_PPP_ETHER).
    Pppoe = 8,
    /// Cisco HDLC (LINKTYPE_C_HDLC).
    Chdlc = 9,
    /// Cisco HDLC behind a byte that says the direction (LINKTYPE_C_HDLC_WITH_DIR).
    ChdlcDirection = 10,
    /// Frame relay (LINKTYPE_FRELAY).
    FrameRelay = 11,
    /// Frame relay behind a byte that says the direction (LINKTYPE_FRELAY_WITH_DIR).
    FrameRelayDirection = 12,
    /// IEEE 802.11 (LINKTYPE_IEEE802_11).
    Wlan = 13,
    /// IEEE 802.11 behind radiotap (LINKTYPE_IEEE802_11_RADIOTAP).
    Radiotap = 14,
    /// IEEE 802.11 behind Prism's header (LINKTYPE_IEEE802_11_PRISM).
    Prism = 15,
    /// IEEE 802.11 behind the AVS header (LINKTYPE_IEEE802_11_AVS).
    Avs = 16,
    /// Per-packet information and what it names (LINKTYPE_PPI).
    Ppi = 17,
    /// Token ring (LINKTYPE_IEEE802_5).
    TokenRing = 18,
    /// FDDI (LINKTYPE_FDDI).
    Fddi = 19,
    /// LLC of IEEE 802.2, or IP (LINKTYPE_ATM_RFC1483, LINKTYPE_ATM_CLIP).
    Llc = 20,
    /// SunATM (LINKTYPE_SUNATM).
    SunAtm = 21,
    /// IP over Fibre Channel (LINKTYPE_IP_OVER_FC).
    FibreChannel = 22,
    /// IP over InfiniBand (LINKTYPE_IPOIB).
    Ipoib = 23,
    /// Linux's netfilter log (LINKTYPE_NFLOG).
    Nflog = 24,
    /// OpenBSD's encapsulating interface (LINKTYPE_ENC).
    Enc = 25,
    /// OpenBSD's packet filter log (LINKTYPE_PFLOG).
    Pflog = 26,
    /// IP over IEEE 1394 (LINKTYPE_APPLE_IP_OVER_IEEE1394).
    Firewire = 27,
    /// MPLS (LINKTYPE_MPLS).
    Mpls = 28,
    /// Endace's extensible record format (LINKTYPE_ERF).
    Erf = 29,
    /// netANALYZER (LINKTYPE_NETANALYZER).
    NetAnalyzer = 30,
    /// netANALYZER with the preamble of Ethernet (LINKTYPE_NETANALYZER_TRANSPARENT).
    NetAnalyzerPreamble = 31,
    /// Ethernet with its preamble (LINKTYPE_ETHERNET_MPACKET).
    Mpacket = 32,
    /// Ethernet with the tag of Broadcom's switches (LINKTYPE_DSA_TAG_BRCM).
    DsaBrcm = 33,
    /// Ethernet behind the tag of Broadcom's switches (LINKTYPE_DSA_TAG_BRCM_PREPEND).
    DsaBrcmPrepend = 34,
    /// Ethernet with the tag of Marvell's switches (LINKTYPE_DSA_TAG_DSA).
    Dsa = 35,
    /// Ethernet with the longer tag of Marvell's switches (LINKTYPE_DSA_TAG_EDSA).
    Edsa = 36,
    /// Apple's packet tap and what it names (LINKTYPE_PKTAP).
    Pktap = 37,
    /// Solaris' ipnet (LINKTYPE_IPNET).
    Ipnet = 38,
    /// DOCSIS (LINKTYPE_DOCSIS).
    Docsis = 39,
    /// Any other: carried and counted, not parsed.
    Other = 255,
}

impl LinkType {
    /// All but [`LinkType::Other`], by number. Devices have the first six, the others are of files.
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

    /// The link type with this number in a record, [`LinkType::Other`] for one that is not ours.
    pub fn from_code(code: u8) -> LinkType {
        LinkType::ALL.get(usize::from(code)).copied().unwrap_or(LinkType::Other)
    }
}

/// One network layer with its transport header (`struct wl_ip`). Addresses and ports are in network byte
/// order, everything else in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ip {
    /// Source address; IPv4 in the first 4 bytes, the rest zero. ARP: the sender's protocol address.
    pub src: [u8; 16],
    /// Destination address, the same way.
    pub dst: [u8; 16],
    /// Source port, network byte order; valid with [`ip_flags::PORTS`].
    pub src_port: u16,
    /// Destination port, network byte order; valid with [`ip_flags::PORTS`].
    pub dst_port: u16,
    /// Network layer: see [`l3`].
    pub l3: u8,
    /// IP protocol of the transport header, after extension headers.
    pub proto: u8,
    /// See [`ip_flags`].
    pub flags: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// TCP flags, valid with [`ip_flags::TCP`].
    pub tcp_flags: u8,
    /// ICMP or ICMPv6 type, valid with [`ip_flags::ICMP`].
    pub icmp_type: u8,
    /// ICMP or ICMPv6 code, valid with [`ip_flags::ICMP`].
    pub icmp_code: u8,
    /// Offset of the network header from the start of the packet; [`NO_OFFSET`] where there is none.
    pub l3_off: u16,
    /// Offset of the transport header, the same way.
    pub l4_off: u16,
    /// Offset of the first byte after the transport header, the same way.
    pub payload_off: u16,
    /// TCP window, valid with [`ip_flags::TCP`].
    pub tcp_window: u16,
    /// Length of the datagram in bytes as its header states it; 0 for a jumbogram.
    pub l3_len: u32,
    /// IPv4 identification or IPv6 fragment id, valid with [`ip_flags::FRAGMENT`].
    pub frag_id: u32,
    /// TCP sequence number, valid with [`ip_flags::TCP`].
    pub tcp_seq: u32,
    /// TCP acknowledgement number, valid with [`ip_flags::TCP`].
    pub tcp_ack: u32,
    /// Offset of this fragment in its datagram, in bytes.
    pub frag_off: u16,
    /// IPv4 identification plus UDP checksum, of what is there: what packets of a flow differ in.
    pub ident: u16,
}

/// Everything that the parser found in a packet (`struct wl_parsed`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Parsed {
    /// The outermost network layer.
    pub outer: Ip,
    /// The network layer inside the innermost tunnel that was entered; valid with [`flags::TUNNEL`].
    pub inner: Ip,
    /// EtherType after VLAN tags, MPLS and PPPoE, host order; 0 where the link has none.
    pub eth_type: u16,
    /// VLAN tags (TCI), outermost first, host order.
    pub vlan_tci: [u16; 2],
    /// Number of VLAN tags that were stepped over (may be more than two).
    pub vlan_count: u8,
    /// Number of MPLS labels that were stepped over.
    pub mpls_count: u8,
    /// The 20-bit label at the top of the MPLS stack, valid with [`flags::MPLS`].
    pub mpls_label: u32,
    /// VNI, TEID, GRE key, session or what else tells tunnels of a kind apart, host order; 0 where there is none.
    pub tunnel_id: u32,
    /// See [`flags`].
    pub flags: u16,
    /// Kind of the innermost tunnel that was entered: see [`tunnel`].
    pub tunnel: u8,
    /// The [`LinkType`] that the packet was parsed as.
    pub link: u8,
    #[doc(hidden)]
    pub pad: [u16; 2],
}

/// The header of a record in a ring (`struct wl_record`), followed by [`RecordHeader::cap_len`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    /// Nanoseconds: `CLOCK_MONOTONIC` in live engines unless [`flags::HW_CLOCK`] is set, UTC in the
    /// engines `file` and `packet`.
    pub ts_ns: u64,
    /// Captured bytes that follow this header.
    pub cap_len: u32,
    /// Bytes that the packet had.
    pub wire_len: u32,
    /// Symmetric flow hash of the chosen (outer or inner) headers.
    pub hash: u32,
    /// The rule whose verdict holds, else the first that was hit; 0: none was.
    pub rule_id: u32,
    /// RX queue.
    pub queue: u16,
    /// See [`flags`].
    pub flags: u16,
    /// Offset of the network header; [`NO_OFFSET`] where there is none.
    pub l3_off: u16,
    /// Offset of the transport header, the same way.
    pub l4_off: u16,
    /// Offset of the first byte after the transport header, the same way.
    pub payload_off: u16,
    /// Outermost VLAN tag, valid with [`flags::VLAN`].
    pub vlan_tci: u16,
    /// Network layer: see [`l3`].
    pub l3: u8,
    /// IP protocol of the transport header.
    pub proto: u8,
    /// What the record is: see [`record_kind`].
    pub kind: u8,
    /// The [`LinkType`] of the bytes.
    pub link: u8,
}

/// What follows the captured bytes, padded to 8, of a record with [`flags::TAGGED`] or [`flags::GSO`] (`struct wl_tail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tail {
    /// What the rules have said of the packet.
    pub tag: u32,
    /// Payload of each packet on the wire of an aggregate, but the last, with [`flags::GSO`].
    pub segment_size: u16,
    /// Bytes before the payload, which each packet on the wire has.
    pub headers: u16,
}

impl Tail {
    /// Packets on the wire of a record of `wire_len` bytes (`wl_segments()`).
    pub fn segments(&self, wire_len: u32) -> u32 {
        match wire_len.checked_sub(self.headers.into()) {
            Some(payload) if self.segment_size != 0 => payload.div_ceil(self.segment_size.into()).max(1),
            _ => 1,
        }
    }

    /// Their bytes.
    pub fn wire_bytes(&self, wire_len: u32) -> u64 {
        u64::from(wire_len) + u64::from(self.segments(wire_len) - 1) * u64::from(self.headers)
    }
}

/// What follows that of a record with [`flags::FOUND`] (`struct wl_found`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Found {
    /// Ids of patterns, as they were found; 0 behind the last. The last has [`FOUND_MORE`] if more were.
    pub id: [u32; 4],
}

/// In the last of [`Found::id`]: more patterns were found (`WL_FOUND_MORE`).
pub const FOUND_MORE: u32 = 0x8000_0000;

/// In the first of [`Found::id`]: a [`Note`] follows (`WL_FOUND_NOTE`).
pub const FOUND_NOTE: u32 = 0x8000_0000;

/// The most bytes of a [`Note`].
pub const NOTE: usize = 32;

/// What follows a [`Found`] that says so (`struct wl_note`): what a plug-in has to say of the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Note {
    /// Bytes of `bytes` that are the note.
    pub len: u32,
    #[doc(hidden)]
    pub pad: u32,
    /// The note.
    pub bytes: [u8; NOTE],
}

/// Bytes of a [`RecordHeader`] in a ring.
pub const RECORD_HEADER: usize = size_of::<RecordHeader>();

/// The offset of a header that is not there.
pub const NO_OFFSET: u16 = 0xffff;

/// Values of [`RecordHeader::kind`].
pub mod record_kind {
    /// A packet.
    pub const PACKET: u8 = 1;
    /// Not a packet: what follows waits until the worker `hash` has read its ring of the same lane up to `ts_ns`.
    pub const BARRIER: u8 = 2;
    /// A packet, of which the chosen headers follow as an [`Ip`](super::Ip) instead of its bytes.
    pub const DIGEST: u8 = 3;
    /// Not a packet: a part of a flow follows ([`crate::flow_cache::FlowPart`]). `hash` is its epoch.
    pub const FLOW: u8 = 4;
    /// Not a packet: what has stayed below of HTTP follows ([`crate::http::HttpTold`]).
    pub const HTTP: u8 = 5;
}

/// Values of [`Ip::l3`] and [`RecordHeader::l3`].
pub mod l3 {
    /// No network layer was found.
    pub const NONE: u8 = 0;
    /// ARP.
    pub const ARP: u8 = 1;
    /// IPv4.
    pub const IPV4: u8 = 4;
    /// IPv6.
    pub const IPV6: u8 = 6;
}

/// Values of [`Parsed::tunnel`].
pub mod tunnel {
    /// No tunnel.
    pub const NONE: u8 = 0;
    /// IPv4 or IPv6 in IPv4 or IPv6.
    pub const IPIP: u8 = 1;
    /// GRE (RFC 2784, RFC 2890).
    pub const GRE: u8 = 2;
    /// VXLAN (RFC 7348).
    pub const VXLAN: u8 = 3;
    /// Geneve (RFC 8926).
    pub const GENEVE: u8 = 4;
    /// GTP-U (3GPP TS 29.281).
    pub const GTPU: u8 = 5;
    /// ERSPAN I, II and III.
    pub const ERSPAN: u8 = 6;
    /// PPTP: PPP behind GRE of version 1 (RFC 2637).
    pub const PPTP: u8 = 7;
    /// L2TP (RFC 2661, RFC 3931).
    pub const L2TP: u8 = 8;
    /// VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe).
    pub const VXLAN_GPE: u8 = 9;
    /// Teredo (RFC 4380).
    pub const TEREDO: u8 = 10;
    /// MPLS behind IP or UDP (RFC 4023, RFC 7510).
    pub const MPLS: u8 = 11;
    /// Ethernet behind IP: EtherIP (RFC 3378), and protocol 143 (RFC 8986).
    pub const ETHERIP: u8 = 12;
    /// LISP (RFC 9300).
    pub const LISP: u8 = 13;
    /// CAPWAP's data (RFC 5415).
    pub const CAPWAP: u8 = 14;
    /// TaZmen sniffer protocol.
    pub const TZSP: u8 = 15;
    /// Generic UDP encapsulation (draft-ietf-intarea-gue).
    pub const GUE: u8 = 16;
    /// AYIYA (draft-massar-v6ops-ayiya).
    pub const AYIYA: u8 = 17;
    /// A network service header behind IP (RFC 8300).
    pub const NSH: u8 = 18;
}

/// Bits of [`Ip::flags`].
pub mod ip_flags {
    /// One fragment of a datagram, the first one included.
    pub const FRAGMENT: u8 = 0x01;
    /// Not the first fragment: no transport header.
    pub const LATER: u8 = 0x02;
    /// The ports are valid.
    pub const PORTS: u8 = 0x04;
    /// The TCP fields are valid.
    pub const TCP: u8 = 0x08;
    /// The ICMP fields are valid.
    pub const ICMP: u8 = 0x10;
    /// IPv4 options or IPv6 extension headers were stepped over.
    pub const OPTIONS: u8 = 0x20;
    /// The chain ends in something encrypted or unknown before a transport header.
    pub const OPAQUE: u8 = 0x40;
}

/// Bits of [`Parsed::flags`] (low byte) and [`RecordHeader::flags`] (both bytes).
pub mod flags {
    /// The captured bytes end before the headers do.
    pub const CUT: u16 = 0x01;
    /// A header contradicts itself.
    pub const MALFORMED: u16 = 0x02;
    /// More headers than the parser follows.
    pub const DEEP: u16 = 0x04;
    /// There is a tunnel, and its inside was parsed.
    pub const TUNNEL: u16 = 0x08;
    /// There is a VLAN tag.
    pub const VLAN: u16 = 0x10;
    /// There is an MPLS label.
    pub const MPLS: u16 = 0x20;
    /// The chosen headers are of a fragment (records only).
    pub const FRAGMENT: u16 = 0x40;
    /// The chosen headers are the inner ones (records only).
    pub const INNER: u16 = 0x80;
    /// The packet was cut at the snap length, or to what a rule wants of it (records only).
    pub const SNAPPED: u16 = 0x0100;
    /// The packet was leaving the device (records only).
    pub const EGRESS: u16 = 0x0200;
    /// A segmentation-offload packet, longer than anything on the wire (records only).
    pub const GSO: u16 = 0x0400;
    /// The timestamp is the card's clock (records only).
    pub const HW_CLOCK: u16 = 0x0800;
    /// The timestamp is one reading for all packets that the kernel handled in one go (records only).
    pub const BATCH_CLOCK: u16 = 0x1000;
    /// A tag follows the captured bytes and their padding: a [`super::Tail`] (records only).
    pub const TAGGED: u16 = 0x2000;
    /// Patterns were found in the payload, or a plug-in has left a note: a [`super::Found`] follows the tag, or what the tag would follow (records
    /// only).
    pub const FOUND: u16 = 0x4000;
    /// Not all of the payload was searched, or not all plug-ins were asked, that should have been (records only).
    pub const HALF_SEARCHED: u16 = 0x8000;
}
