#!/usr/bin/env python3
"""Writes captures of one packet each, in every encapsulation that Wirelane parses: encapsulations.py FOLDER.

One file for each link type, LINKTYPE.pcap, and names.tsv with a line for each packet: link type, number, name, and what
is expected. "outer": the addresses below are the outermost ones; "tunnel": they are inside a tunnel; "outer-alone" and
"tunnel-alone": the same, but tshark is not asked, as it needs to be configured for this encapsulation; "opaque": nothing is
found inside; "none": no network layer is found.

What is carried is UDP from 10.0.0.1:40001 to 10.0.0.2:40002, or the same of IPv6 (fd00::1 to fd00::2). What carries a
tunnel is IP from 192.0.2.1 to 192.0.2.2, or from 2001:db8::1 to 2001:db8::2.
"""
import itertools
import pathlib
import struct
import sys
import zlib

from scapy.contrib.chdlc import CHDLC
from scapy.contrib.erspan import ERSPAN_I, ERSPAN_II, ERSPAN_III, ERSPAN_PlatformSpecific
from scapy.contrib.etherip import EtherIP
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.contrib.gtp import GTP_U_Header, GTPPDUSessionContainer
from scapy.contrib.macsec import MACsec
from scapy.contrib.mpls import MPLS
from scapy.contrib.nsh import NSH
from scapy.contrib.spbm import SPBM
from scapy.contrib.tzsp import TZSP, TZSPTagEnd, TZSPTagRawRSSIByte
from scapy.layers.dot11 import Dot11, Dot11QoS, RadioTap
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrSegmentRouting
from scapy.layers.ipsec import AH
from scapy.layers.l2 import GRE, GRE_PPTP, LLC, SNAP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Dot3, Ether, Loopback
from scapy.layers.l2tp import L2TP
from scapy.layers.ppp import HDLC, PPP, PPPoE
from scapy.layers.vxlan import VXLAN

MAC = {"src": "00:1b:21:00:00:01", "dst": "00:1b:21:00:00:02"}


def ip():
    return IP(src="10.0.0.1", dst="10.0.0.2", id=7) / UDP(sport=40001, dport=40002) / b"payload"


def ip6():
    return IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=40001, dport=40002) / b"payload"


def eth(payload=None, **fields):
    return Ether(**MAC, **fields) / (ip() if payload is None else payload)


def typed(kind, data):
    """A frame with this EtherType."""
    return Ether(**MAC, type=kind) / bytes(data)


def out(**fields):
    return Ether(**MAC) / IP(src="192.0.2.1", dst="192.0.2.2", id=8, **fields)


def out6(**fields):
    return Ether(**MAC) / IPv6(src="2001:db8::1", dst="2001:db8::2", **fields)


sources = itertools.count(41000)


def udp(port, data, source=None):
    """A datagram to this port, and from one of its own, as tshark remembers conversations."""
    return out() / UDP(sport=source or next(sources), dport=port) / bytes(data)


def be16(value):
    return struct.pack(">H", value)


def be32(value):
    return struct.pack(">I", value)


def le16(value):
    return struct.pack("<H", value)


def le32(value):
    return struct.pack("<I", value)


def crc16(data):
    """The check of DOCSIS's header (CRC-16 of X.25)."""
    check = 0xFFFF
    for byte in data:
        check ^= byte
        for _ in range(8):
            check = check >> 1 ^ (0x8408 if check & 1 else 0)
    return check ^ 0xFFFF


def etype(packet):
    """The EtherType of IP, and the packet."""
    return be16(0x0800 if isinstance(packet, IP) else 0x86DD) + bytes(packet)


def snap(packet):
    return b"\xaa\xaa\x03\0\0\0" + etype(packet)


def wlan(control, body, **fields):
    return Dot11(FCfield=control, type=2, addr1=MAC["dst"], addr2=MAC["src"], addr3=MAC["dst"], **fields) / body


def ethernet_tags():
    yield "plain", "outer", eth()
    yield "IPv6", "outer", eth(ip6())
    yield "802.1Q", "outer", Ether(**MAC) / Dot1Q(vlan=5) / ip()
    yield "802.1ad", "outer", Ether(**MAC) / Dot1AD(vlan=5) / Dot1Q(vlan=6) / ip()
    yield "QinQ 0x9100", "outer", typed(0x9100, be16(5) + be16(0x8100) + be16(6) + etype(ip()))
    yield "QinQ 0x9200", "outer-alone", typed(0x9200, be16(5) + be16(0x8100) + be16(6) + etype(ip()))
    yield "QinQ 0x9300", "outer-alone", typed(0x9300, be16(5) + be16(0x8100) + be16(6) + etype(ip()))
    yield "five VLAN tags", "outer", Ether(**MAC) / Dot1Q(vlan=1) / Dot1Q(vlan=2) / Dot1Q(vlan=3) / Dot1Q(vlan=4) / Dot1Q(vlan=5) / ip()
    yield "priority tag before IPv6", "outer", Ether(**MAC) / Dot1Q(vlan=0, prio=3) / ip6()
    yield "E-TAG", "outer", typed(0x893F, b"\x00\x00\x10\x05\x00\x00" + etype(ip()))
    yield "E-TAG, then 802.1Q", "outer", typed(0x893F, b"\x00\x00\x10\x05\x00\x00" + be16(0x8100) + be16(9) + etype(ip()))
    yield "VN-tag", "outer", typed(0x8926, b"\x00\x09\x80\x00" + etype(ip()))
    yield "VN-tag, then 802.1Q", "outer", typed(0x8926, b"\x00\x09\x80\x00" + be16(0x8100) + be16(9) + etype(ip6()))
    yield "802.1ah", "outer", Ether(**MAC) / Dot1AD(vlan=5) / SPBM(isid=0x1234) / eth()
    yield "802.1ah without B-TAG", "outer", typed(0x88E7, be32(0x1234) + bytes(eth()))
    yield "802.1ah, customer's 802.1Q", "outer", typed(0x88E7, be32(0x1234) + bytes(Ether(**MAC) / Dot1Q(vlan=7) / ip6()))
    yield "MACsec without encryption", "outer", Ether(**MAC) / MACsec(SC=0, E=0, C=0, AN=0, SL=0, PN=1, type=0x0800) / (bytes(ip()) + b"I" * 16)
    yield "MACsec without encryption, SCI", "outer", Ether(**MAC) / MACsec(SC=1, E=0, C=0, SCI=b"\2\0\0\0\0\1\0\1", PN=1, type=0x0800) / (bytes(ip()) + b"I" * 16)
    yield "MACsec, encrypted", "none", typed(0x88E5, b"\x2c\0\0\0\0\1" + b"\2\0\0\0\0\1\0\1" + etype(ip()) + b"I" * 16)
    yield "Cisco metadata", "outer", typed(0x8909, b"\1\1\0\1\0\5" + etype(ip()))
    yield "HSR", "outer", typed(0x892F, b"\x00\x2e\0\1" + etype(ip()))
    yield "R-TAG", "outer-alone", typed(0xF1C1, b"\0\0\0\1" + etype(ip()))
    yield "FabricPath", "outer", Ether(dst="00:1b:21:00:00:02", src="00:1b:21:00:00:01", type=0x8903) / (be16(0x0040) + bytes(eth()))
    yield "TRILL", "outer", typed(0x22F3, be16(0x001F) + be16(1) + be16(2) + bytes(eth()))
    yield "TRILL with options", "outer", typed(0x22F3, be16(0x005F) + be16(1) + be16(2) + b"\0" * 4 + bytes(eth()))
    yield "EDSA", "outer-alone", typed(0xDADA, b"\0\0\xc0\0\0\0" + etype(ip()))
    yield "NSH", "outer", Ether(**MAC) / NSH(mdtype=1, nextproto=1, context_header=b"\0" * 16) / ip()
    yield "NSH, IPv6", "outer", Ether(**MAC, type=0x894F) / NSH(mdtype=1, nextproto=2, context_header=b"\0" * 16) / ip6()
    yield "NSH, Ethernet", "outer", Ether(**MAC, type=0x894F) / NSH(mdtype=2, nextproto=3, length=2) / eth()
    batman = b"\x40\x0f\x32\x01" + bytes.fromhex("020000000002")
    yield "batman-adv unicast", "outer", typed(0x4305, batman + bytes(eth()))
    yield "batman-adv unicast with four addresses", "outer", typed(0x4305, b"\x42" + batman[1:] + bytes.fromhex("020000000001") + b"\1\0" + bytes(eth()))
    yield "batman-adv broadcast", "outer", typed(0x4305, b"\x01\x0f\x32\x00" + be32(1) + bytes.fromhex("020000000001") + bytes(eth()))
    yield "Transparent Ethernet Bridging", "outer", typed(0x6558, bytes(eth()))
    yield "LLC and SNAP", "outer", Dot3(**MAC) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0, code=0x0800) / ip()
    yield "LLC and SNAP, then 802.1Q", "outer", Dot3(**MAC) / LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(OUI=0, code=0x8100) / (be16(5) + etype(ip()))
    yield "LLC's SAP of IP", "outer", Dot3(**MAC) / LLC(dsap=6, ssap=6, ctrl=3) / bytes(ip())
    yield "LLC and NLPID", "outer", Dot3(**MAC) / (b"\xfe\xfe\x03\xcc" + bytes(ip()))
    yield "LLC in a jumbo frame", "outer", typed(0x8870, snap(ip()))
    yield "SNAP of a bridged frame", "outer", Dot3(**MAC) / (b"\xaa\xaa\x03\0\x80\xc2\0\7\0\0" + bytes(eth()))


def ppp_and_mpls():
    session = {"code": 0, "sessionid": 1}
    yield "PPP's EtherType", "outer-alone", typed(0x880B, b"\0\x21" + bytes(ip()))
    yield "PPPoE", "outer", Ether(**MAC, type=0x8864) / PPPoE(**session) / PPP(proto=0x21) / ip()
    yield "PPPoE, IPv6", "outer", Ether(**MAC, type=0x8864) / PPPoE(**session) / PPP(proto=0x57) / ip6()
    pppoe = lambda data: typed(0x8864, b"\x11\0\0\1" + be16(len(data)) + data)  # noqa: E731
    yield "PPPoE, protocol of one byte", "outer", pppoe(b"\x21" + bytes(ip()))
    yield "PPPoE, protocol of one byte, IPv6", "outer", pppoe(b"\x57" + bytes(ip6()))
    yield "PPPoE in 802.1Q", "outer", Ether(**MAC) / Dot1Q(vlan=5, type=0x8864) / PPPoE(**session) / PPP(proto=0x21) / ip()
    yield "PPPoE, MPLS", "outer", pppoe(b"\x02\x81" + bytes(MPLS(label=5, s=1, ttl=9)) + bytes(ip()))
    yield "PPPoE, a whole packet of multilink", "outer", pppoe(b"\x00\x3d\xc0\0\0\1\x00\x21" + bytes(ip()))
    yield "PPPoE, a bridged frame", "outer", pppoe(b"\x00\x31\x00\x01" + bytes(eth()))
    yield "MPLS", "outer", Ether(**MAC) / MPLS(label=16, s=1, ttl=9) / ip()
    yield "MPLS, three labels, IPv6", "outer", Ether(**MAC) / MPLS(label=16, s=0, ttl=9) / MPLS(label=17, s=0, ttl=9) / MPLS(label=18, s=1, ttl=9) / ip6()
    yield "MPLS multicast", "outer", typed(0x8848, bytes(MPLS(label=16, s=1, ttl=9)) + bytes(ip()))
    label = bytes(MPLS(label=16, s=1, ttl=9))
    yield "MPLS pseudowire with control word", "outer", typed(0x8847, label + be32(5) + bytes(eth()))
    yield "MPLS pseudowire without control word", "outer", typed(0x8847, label + bytes(eth()))
    yield "MPLS pseudowire with control word and 802.1Q", "outer", typed(0x8847, label + be32(0) + bytes(Ether(**MAC) / Dot1Q(vlan=5) / ip6()))
    yield "MPLS pseudowire without control word, 802.1Q", "outer", typed(0x8847, label + bytes(Ether(**MAC) / Dot1Q(vlan=5) / ip()))
    yield "MPLS pseudowire with control word, QinQ", "outer", typed(0x8847, label + be32(0) + bytes(Ether(**MAC) / Dot1AD(vlan=5) / Dot1Q(vlan=6) / ip()))


def tunnels():
    yield "IP in IP", "tunnel", out() / ip()
    yield "6in4", "tunnel", out(proto=41) / ip6()
    yield "4in6", "tunnel", out6(nh=4) / ip()
    yield "6in6", "tunnel", out6(nh=41) / ip6()
    yield "6in6 behind destination options", "tunnel", out6(nh=60) / IPv6ExtHdrDestOpt(nh=41) / ip6()
    yield "SRv6, 4in6", "tunnel", out6(nh=43) / IPv6ExtHdrSegmentRouting(nh=4, addresses=["fd00::9"], segleft=0, lastentry=0) / ip()
    yield "SRv6, Ethernet", "tunnel-alone", out6(nh=43) / IPv6ExtHdrSegmentRouting(nh=143, addresses=["fd00::9"], segleft=0, lastentry=0) / eth()
    yield "AH around IP", "tunnel", out(proto=51) / AH(nh=4, payloadlen=4, icv=b"i" * 12) / ip()
    yield "GRE", "tunnel", out() / GRE() / ip()
    yield "GRE, IPv6", "tunnel", out() / GRE(proto=0x86DD) / ip6()
    yield "GRE with checksum, key and sequence", "tunnel", out() / GRE(chksum_present=1, key_present=1, seqnum_present=1, key=5, seqence_number=6) / ip()
    yield "GRE behind IPv6", "tunnel", out6(nh=47) / GRE() / ip()
    yield "GRE, MPLS", "tunnel", out() / GRE(proto=0x8847) / MPLS(label=16, s=1, ttl=9) / ip()
    yield "NVGRE", "tunnel", out() / GRE(key_present=1, key=0x1234, proto=0x6558) / eth()
    yield "GRE, Ethernet with 802.1Q", "tunnel", out() / GRE(proto=0x6558) / Ether(**MAC) / Dot1Q(vlan=5) / ip()
    yield "GRE, Ethernet by its old type", "tunnel", out() / GRE(proto=0x6400) / eth()
    yield "GRE, PPP", "tunnel", out() / GRE(proto=0x880B) / (b"\0\x21" + bytes(ip()))
    yield "GRE, NSH", "tunnel", out() / GRE(proto=0x894F) / NSH(mdtype=1, nextproto=1, context_header=b"\0" * 16) / ip()
    yield "GRE, WCCP", "tunnel", out() / GRE(proto=0x883E) / ip()
    yield "GRE, WCCP with a redirect header", "tunnel", out() / GRE(proto=0x883E) / (be32(0x80000001) + bytes(ip()))
    yield "ERSPAN I", "tunnel", out() / GRE(proto=0x88BE) / ERSPAN_I() / eth()
    yield "ERSPAN II", "tunnel", out() / GRE(proto=0x88BE, seqnum_present=1, seqence_number=1) / ERSPAN_II(ver=1, session_id=5) / eth()
    yield "ERSPAN III", "tunnel", out() / GRE(proto=0x22EB, seqnum_present=1, seqence_number=1) / ERSPAN_III(session_id=5) / eth()
    yield "ERSPAN III with the platform's header", "tunnel", out() / GRE(proto=0x22EB, seqnum_present=1, seqence_number=1) / ERSPAN_III(session_id=5, o=1) / ERSPAN_PlatformSpecific() / eth()
    carried = b"\xff\x03\x00\x21" + bytes(ip())
    yield "PPTP", "tunnel", out() / GRE_PPTP(seqnum_present=1, call_id=9, seqence_number=1, payload_len=len(carried)) / carried
    yield "PPTP with acknowledgement", "tunnel", out() / GRE_PPTP(seqnum_present=1, acknum_present=1, call_id=9, seqence_number=1, ack_number=1, payload_len=len(carried)) / carried
    yield "PPTP, compressed fields", "tunnel", out() / GRE_PPTP(seqnum_present=1, call_id=9, seqence_number=1, payload_len=1 + len(ip())) / (b"\x21" + bytes(ip()))
    yield "EtherIP", "tunnel", out() / EtherIP() / eth()
    yield "MPLS behind IP", "tunnel", out(proto=137) / (bytes(MPLS(label=16, s=1, ttl=9)) + bytes(ip()))
    yield "L2TPv3 behind IP", "tunnel-alone", out(proto=115) / (be32(7) + bytes(eth()))
    yield "L2TPv3 behind IP, default sublayer", "tunnel-alone", out(proto=115) / (be32(7) + be32(0x40000001) + bytes(eth()))
    yield "L2TPv3 behind IP, cookie of 4", "tunnel-alone", out(proto=115) / (be32(7) + b"cook" + bytes(eth()))
    yield "L2TPv3 behind IP, cookie of 8 and sublayer", "tunnel-alone", out(proto=115) / (be32(7) + b"cookiesx" + be32(0x40000001) + bytes(eth()))
    yield "L2TPv3 behind IP, HDLC", "tunnel-alone", out(proto=115) / (be32(7) + b"\x0f\0" + etype(ip()))
    yield "ESP", "opaque", out(proto=50) / (be32(1) + be32(1) + b"x" * 60)
    yield "IPComp", "opaque", out(proto=108) / (b"\4\0\0\2" + b"x" * 60)


def udp_tunnels():
    yield "VXLAN", "tunnel", out() / UDP(sport=next(sources), dport=4789) / VXLAN(vni=0x1234, flags=8) / eth()
    yield "VXLAN with a group", "tunnel", udp(4789, b"\x88\0\0\5" + be32(0x123400) + bytes(eth()))
    yield "VXLAN behind IPv6", "tunnel", out6() / UDP(sport=next(sources), dport=4789) / VXLAN(vni=0x1234, flags=8) / eth()
    yield "VXLAN on Linux's port", "tunnel-alone", udp(8472, bytes(VXLAN(vni=0x1234, flags=8) / eth()))
    yield "VXLAN in VXLAN", "tunnel", udp(4789, bytes(VXLAN(vni=1, flags=8)) + bytes(out() / UDP(sport=5, dport=4789) / VXLAN(vni=2, flags=8) / eth()))
    for number, packet in ((1, ip()), (2, ip6()), (3, eth()), (4, NSH(mdtype=1, nextproto=1, context_header=b"\0" * 16) / ip())):
        yield f"VXLAN-GPE, next protocol {number}", "tunnel", udp(4790, b"\x0c\0\0" + bytes([number]) + be32(0x123400) + bytes(packet))
    yield "Geneve", "tunnel", out() / UDP(sport=next(sources), dport=6081) / GENEVE(vni=0x1234, proto=0x6558) / eth()
    yield "Geneve, IP, options", "tunnel", out() / UDP(sport=next(sources), dport=6081) / GENEVE(vni=5, proto=0x0800, options=[GeneveOptions(data=b"12345678")]) / ip()
    yield "GTP-U", "tunnel", out() / UDP(sport=2152, dport=2152) / GTP_U_Header(teid=5) / ip()
    yield "GTP-U, answered from another port", "tunnel", udp(40003, bytes(GTP_U_Header(teid=5) / ip()), source=2152)
    yield "GTP-U with sequence number", "tunnel", out() / UDP(sport=2152, dport=2152) / GTP_U_Header(teid=5, S=1, seq=7) / ip6()
    yield "GTP-U with an extension header", "tunnel", out() / UDP(sport=2152, dport=2152) / GTP_U_Header(teid=5) / GTPPDUSessionContainer(type=1, QFI=5) / ip()
    rest = b"\0\1\0\xc0" + b"\1\0\1\x85" + b"\1\1\5\0" + bytes(ip())
    yield "GTP-U with two extension headers", "tunnel", udp(2152, b"\x34\xff" + be16(len(rest)) + be32(5) + rest)
    rest = b"\xff\x03\x00\x21" + bytes(ip())
    yield "GTP-U, PPP", "tunnel-alone", udp(2152, b"\x30\xff" + be16(len(rest)) + be32(5) + rest)
    yield "L2TP", "tunnel", out() / UDP(sport=1701, dport=1701) / L2TP(hdr=["length"], version=2, tunnel_id=1, session_id=2) / HDLC() / PPP(proto=0x21) / ip()
    yield "L2TP without length", "tunnel", udp(1701, be16(2) + be16(1) + be16(2) + b"\xff\x03\x00\x21" + bytes(ip()))
    yield "L2TP, sequence and offset", "tunnel", udp(1701, be16(0x0A02) + be16(1) + be16(2) + be32(1) + be16(4) + b"pads" + b"\x00\x57" + bytes(ip6()))
    yield "L2TP, compressed fields", "tunnel", udp(40003, be16(2) + be16(1) + be16(2) + b"\x21" + bytes(ip()), source=1701)
    yield "L2TPv3 behind UDP", "tunnel-alone", udp(1701, be16(3) + be16(0) + be32(7) + bytes(eth()))
    yield "Teredo", "tunnel", udp(3544, ip6())
    yield "Teredo from the server", "tunnel", udp(40003, ip6(), source=3544)
    yield "Teredo with an origin", "tunnel", udp(40003, b"\0\0" + be16(0xFFFF) + be32(0x01020304) + bytes(ip6()), source=3544)
    yield "Teredo with authentication and an origin", "tunnel", udp(40003, b"\0\1\0\0" + b"n" * 8 + b"\0" + b"\0\0" + be16(0xFFFF) + be32(1) + bytes(ip6()), source=3544)
    yield "MPLS behind UDP", "tunnel", udp(6635, bytes(MPLS(label=16, s=1, ttl=9)) + bytes(ip()))
    yield "GRE behind UDP", "tunnel", udp(4754, bytes(GRE() / ip()))
    yield "LISP", "tunnel", udp(4341, b"\x08\0\0\0" + be32(0x100) + bytes(ip()))
    yield "LISP, IPv6", "tunnel", udp(4341, b"\xc0\0\0\1" + be32(1) + bytes(ip6()))
    data = bytes(wlan("from-DS", b"")) + snap(ip())
    swapped = data[1::-1] + data[2:]
    capwap = lambda native, body: udp(5247, be32(2 << 19 | 1 << 9 | native << 8) + be32(0) + body)  # noqa: E731
    yield "CAPWAP, IEEE 802.3", "tunnel", capwap(0, bytes(eth()))
    yield "CAPWAP, IEEE 802.11, control swapped", "tunnel", capwap(1, swapped)
    yield "CAPWAP, IEEE 802.11", "tunnel-alone", capwap(1, data)
    yield "TZSP", "tunnel", udp(37008, bytes(TZSP(type=0, encapsulated_protocol=1) / TZSPTagEnd() / eth()))
    yield "TZSP with tags, IEEE 802.11", "tunnel", udp(37008, bytes(TZSP(type=0, encapsulated_protocol=18) / TZSPTagRawRSSIByte(raw_rssi=1) / TZSPTagEnd()) + data)
    yield "GUE", "tunnel-alone", udp(6080, b"\0\4\0\0" + bytes(ip()))
    yield "GUE, version 1", "tunnel-alone", udp(6080, ip())
    yield "AYIYA", "tunnel", udp(5072, b"\x41\x52\x11\x29" + be32(1) + b"i" * 16 + b"s" * 20 + bytes(ip6()))


def serial_links():
    ppp, chdlc = b"\x00\x21" + bytes(ip()), bytes(CHDLC(proto=0x0800) / ip())
    for link in (9, 50):
        yield link, "PPP without address", "outer", ppp
        yield link, "PPP", "outer", b"\xff\x03" + ppp
        yield link, "PPP, IPv6", "outer", b"\xff\x03\x00\x57" + bytes(ip6())
        yield link, "PPP, protocol of one byte", "outer", b"\xff\x03\x21" + bytes(ip())
        yield link, "PPP, all compressed", "outer", b"\x21" + bytes(ip())
        yield link, "PPP, MPLS", "outer", b"\xff\x03\x02\x81" + bytes(MPLS(label=5, s=1, ttl=9)) + bytes(ip())
        yield link, "PPP, LCP", "none", b"\xff\x03\xc0\x21\1\1\0\4"
        yield link, "Cisco HDLC", "outer", chdlc
    yield 51, "PPPoE", "outer", bytes(PPPoE(code=0, sessionid=1) / PPP(proto=0x21) / ip())
    yield 204, "PPP with direction", "outer", b"\0\xff\x03" + ppp
    yield 204, "PPP with direction, sent", "outer", b"\1\xff\x03\x00\x57" + bytes(ip6())
    yield 166, "PPP of pppd", "outer-alone", b"\0\x03" + ppp
    yield 104, "Cisco HDLC", "outer", chdlc
    yield 104, "Cisco HDLC, IPv6", "outer", b"\x8f\0" + etype(ip6())
    yield 104, "Cisco HDLC, MPLS", "outer", b"\x0f\0\x88\x47" + bytes(MPLS(label=5, s=1, ttl=9)) + bytes(ip())
    yield 205, "Cisco HDLC with direction", "outer-alone", b"\1" + chdlc
    for link, before, evaluated in ((107, b"", "outer"), (206, b"\1", "outer-alone")):
        yield link, "frame relay, NLPID", evaluated, before + b"\x18\x41\x03\xcc" + bytes(ip())
        yield link, "frame relay, NLPID of IPv6", evaluated, before + b"\x18\x41\x03\x8e" + bytes(ip6())
        yield link, "frame relay, SNAP", evaluated, before + b"\x18\x41\x03\x00\x80\0\0\0" + etype(ip())
        yield link, "frame relay, bridged", evaluated, before + b"\x18\x41\x03\x00\x80\0\x80\xc2\0\7" + bytes(eth())
        yield link, "frame relay, Cisco", evaluated, before + b"\x18\x41" + etype(ip())
        yield link, "frame relay, address of 4 bytes", evaluated, before + b"\x18\x40\x00\x41\x03\xcc" + bytes(ip())


def radio_links():
    data = bytes(wlan("to-DS", b"")) + snap(ip())
    qos = bytes(wlan("from-DS", b"", subtype=8)) + b"\0\0" + snap(ip6())
    four = bytes(Dot11(FCfield="to-DS+from-DS", type=2, addr1=MAC["dst"], addr2=MAC["src"], addr3=MAC["dst"], addr4=MAC["src"])) + snap(ip())
    htc = bytes(wlan("from-DS+order", b"", subtype=8)) + b"\0\0" + b"\0" * 4 + snap(ip())
    frame = snap(ip())
    msdu = bytes(wlan("from-DS", b"", subtype=8)) + b"\x80\0" + bytes.fromhex("020000000002020000000001") + be16(len(frame)) + frame
    for name, expected, packet in (("data", "outer", data), ("QoS data", "outer", qos), ("four addresses", "outer", four),
                                   ("HT control", "outer", htc), ("A-MSDU", "outer", msdu),
                                   ("encrypted", "none", bytes(wlan("from-DS+protected", b"")) + b"\0" * 60),
                                   ("null function", "none", bytes(wlan("to-DS", b"", subtype=4))),
                                   ("beacon", "none", bytes(Dot11(type=0, subtype=8)) + b"\0" * 40)):
        yield 105, name, expected, packet
        yield 127, f"radiotap, {name}", expected, bytes(RadioTap(present="Flags+Rate", Flags=0, Rate=2)) + packet
        yield 163, f"AVS, {name}", expected, be32(0x80211001) + be32(64) + b"\0" * 56 + packet
        yield 119, f"Prism, {name}", expected, le32(0x44) + le32(144) + b"wlan0".ljust(16, b"\0") + b"\0" * 120 + packet
        yield 192, f"PPI, {name}", expected, b"\0\0" + le16(8) + le32(105) + packet
    padded = bytes(wlan("from-DS", b"", subtype=8)) + b"\0\0" + b"\0\0" + snap(ip())
    yield 127, "radiotap, padded header", "outer", bytes(RadioTap(present="TSFT+Flags", mac_timestamp=1, Flags=0x20)) + padded


def other_links():
    frame = bytes(eth())
    check = le32(zlib.crc32(frame))
    yield 101, "raw", "outer", bytes(ip())
    yield 228, "IPv4", "outer", bytes(ip())
    yield 229, "IPv6", "outer", bytes(ip6())
    yield 12, "raw, old number", "outer", bytes(ip6())
    yield 113, "cooked", "outer", bytes(CookedLinux(proto=0x0800) / ip())
    yield 113, "cooked, 802.1Q", "outer", bytes(CookedLinux(proto=0x8100) / Dot1Q(vlan=5) / ip())
    yield 276, "cooked 2", "outer", bytes(CookedLinuxV2(proto=0x86DD) / ip6())
    for family in (2, 10, 24, 28, 30):
        yield 0, f"null, family {family}", "outer" if family != 10 else "outer-alone", le32(family) + bytes(ip() if family == 2 else ip6())
        yield 108, f"loop, family {family}", "outer" if family != 10 else "outer-alone", be32(family) + bytes(ip() if family == 2 else ip6())
    yield 0, "null, big-endian", "outer", bytes(Loopback(type=2) / ip()) if False else be32(2) + bytes(ip())
    yield 6, "token ring", "outer", b"\x10\x40" + b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1" + snap(ip())
    yield 6, "token ring with a route", "outer", b"\x10\x40" + b"\2\0\0\0\0\2" + b"\x82\0\0\0\0\1" + b"\x06\x10\0\x11\0\x21" + snap(ip())
    yield 10, "FDDI", "outer", b"\x50" + b"\2\0\0\0\0\2" + b"\2\0\0\0\0\1" + snap(ip())
    yield 100, "RFC 1483", "outer", snap(ip())
    yield 100, "RFC 1483, NLPID", "outer", b"\xfe\xfe\x03\xcc" + bytes(ip())
    yield 100, "RFC 1483, bridged", "outer", b"\xaa\xaa\x03\0\x80\xc2\0\7\0\0" + frame
    yield 106, "classical IP over ATM", "outer", bytes(ip())
    yield 123, "SunATM, LLC", "outer", b"\x02\0\0\x21" + snap(ip())
    yield 122, "IP over Fibre Channel", "outer", b"\x10\0\2\0\0\0\0\2\x10\0\2\0\0\0\0\1" + snap(ip())
    yield 242, "IPoIB", "outer", b"\0" * 40 + etype(ip())[:2] + b"\0\0" + bytes(ip())
    for family, packet in ((2, ip()), (10, ip6())):
        payload = bytes(packet)
        yield 239, f"NFLOG, family {family}", "outer", bytes([family, 0, 0, 5]) + le16(8) + le16(1) + b"\x08\0\1\0" + le16(5) + le16(10) + b"x\0\0\0" + le16(4 + len(payload)) + le16(9) + payload
    yield 109, "enc", "outer", le32(2) + b"\0" * 8 + bytes(ip())
    yield 117, "pflog", "outer", b"\x3d\2\0\0" + b"em0".ljust(16, b"\0") + b"\0" * 44 + bytes(ip())
    yield 138, "IP over IEEE 1394", "outer", b"\2" * 8 + b"\1" * 8 + etype(ip())
    yield 219, "MPLS", "outer-alone", bytes(MPLS(label=5, s=1, ttl=9)) + bytes(ip())
    erf = lambda kind, data, more=b"": b"\0" * 8 + bytes([kind, 4]) + be16(16 + len(more) + len(data)) + be16(0) + be16(len(data)) + more + data  # noqa: E731
    yield 197, "ERF, Ethernet", "outer", erf(2, b"\0\0" + frame)
    yield 197, "ERF, Ethernet, extension header", "outer", erf(0x82, b"\0\0" + frame, b"\x03" + b"\0" * 7)
    yield 197, "ERF, HDLC", "outer", erf(1, b"\x0f\0" + etype(ip()))
    yield 197, "ERF, PPP", "outer", erf(1, b"\xff\x03\0\x21" + bytes(ip()))
    yield 197, "ERF, IPv4", "outer", erf(22, bytes(ip()))
    yield 197, "ERF, IPv6", "outer", erf(23, bytes(ip6()))
    yield 240, "netANALYZER", "outer", b"\0\4\0\0" + frame + check
    yield 241, "netANALYZER, transparent", "outer-alone", b"\0\4\0\0" + b"\x55" * 7 + b"\xd5" + frame + check
    yield 274, "mPacket", "outer", b"\x55" * 7 + b"\xd5" + frame + check
    yield 281, "Broadcom's tag", "outer-alone", frame[:12] + b"\x20\0\0\1" + frame[12:]
    yield 282, "Broadcom's tag before the frame", "outer-alone", b"\x20\0\0\1" + frame
    yield 284, "DSA", "outer-alone", frame[:12] + b"\xc0\0\0\0" + frame[12:]
    yield 285, "EDSA", "outer-alone", frame[:12] + b"\xda\xda\0\0\xc0\0\0\0" + frame[12:]
    pktap = lambda link, data: le32(108) + le32(1) + le32(link) + b"en0".ljust(24, b"\0") + le32(1) + b"\0" * 68 + data  # noqa: E731
    yield 258, "PKTAP, Ethernet", "outer", pktap(1, frame)
    yield 258, "PKTAP, null", "outer", pktap(0, le32(2) + bytes(ip()))
    yield 226, "ipnet", "outer", b"\1\2" + be16(1) + be32(len(ip())) + be32(1) + be32(1) + be32(0) + be32(0) + bytes(ip())
    yield 143, "DOCSIS", "outer", b"\0\0" + be16(len(frame)) + le16(crc16(b"\0\0" + be16(len(frame)))) + frame + check


def all_packets():
    for group in (ethernet_tags, ppp_and_mpls, tunnels, udp_tunnels):
        for name, expected, packet in group():
            yield 1, name, expected, bytes(packet)
    for group in (serial_links, radio_links, other_links):
        yield from group()


def main():
    folder = pathlib.Path(sys.argv[1])
    files, names = {}, []
    for link, name, expected, packet in all_packets():
        packets = files.setdefault(link, [])
        packets.append(packet)
        names.append(f"{link}\t{len(packets)}\t{name}\t{expected}\n")
    for link, packets in files.items():
        with open(folder / f"{link}.pcap", "wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link))
            for number, packet in enumerate(packets):
                file.write(struct.pack("<IIII", 1_700_000_000 + number, 0, len(packet), len(packet)) + packet)
    (folder / "names.tsv").write_text("".join(names))


main()
