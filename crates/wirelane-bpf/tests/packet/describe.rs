//! Formats a parse result as one line of text, the format of the packet tables.

use std::net::{Ipv4Addr, Ipv6Addr};

use wirelane_bpf::layout::{Ip, NO_OFFSET, Parsed, flags, ip_flags, l3, tunnel};

/// Formats all valid fields. Absent fields are omitted.
pub fn describe(parsed: &Parsed) -> String {
    let mut words = Vec::new();
    if parsed.eth_type != 0 {
        words.push(format!("type {:04x}", parsed.eth_type));
    }
    if parsed.vlan_count != 0 {
        let tags = &parsed.vlan_tci[..usize::from(parsed.vlan_count.min(2))];
        words.push(format!("vlan x{} {tags:?}", parsed.vlan_count));
    }
    if parsed.mpls_count != 0 {
        words.push(format!("mpls x{} {}", parsed.mpls_count, parsed.mpls_label));
    }
    words.extend(names(parsed.flags, &PACKET_FLAGS).map(str::to_owned));
    words.push(format!("| {}", describe_ip(&parsed.outer)));
    if parsed.tunnel != tunnel::NONE {
        let name = TUNNELS[usize::from(parsed.tunnel)];
        words.push(format!("| {name} {}", parsed.tunnel_id));
    }
    if parsed.flags & flags::TUNNEL != 0 {
        words.push(format!("| {}", describe_ip(&parsed.inner)));
    }
    words.join(" ")
}

const TUNNELS: [&str; 19] = [
    "",
    "ipip",
    "gre",
    "vxlan",
    "geneve",
    "gtpu",
    "erspan",
    "pptp",
    "l2tp",
    "vxlan-gpe",
    "teredo",
    "mpls",
    "etherip",
    "lisp",
    "capwap",
    "tzsp",
    "gue",
    "ayiya",
    "nsh",
];

const PACKET_FLAGS: [(u16, &str); 3] =
    [(flags::CUT, "CUT"), (flags::MALFORMED, "MALFORMED"), (flags::DEEP, "DEEP")];

const IP_FLAGS: [(u16, &str); 4] = [
    (ip_flags::FRAGMENT as u16, "FRAGMENT"),
    (ip_flags::LATER as u16, "LATER"),
    (ip_flags::OPTIONS as u16, "OPTIONS"),
    (ip_flags::OPAQUE as u16, "OPAQUE"),
];

fn names(bits: u16, table: &[(u16, &'static str)]) -> impl Iterator<Item = &'static str> {
    table.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, name)| *name)
}

fn describe_ip(ip: &Ip) -> String {
    let (name, src, dst) = match ip.l3 {
        l3::NONE => return "none".to_owned(),
        l3::IPV6 => ("ip6", Ipv6Addr::from(ip.src).to_string(), Ipv6Addr::from(ip.dst).to_string()),
        other => {
            let text = |a: [u8; 16]| Ipv4Addr::new(a[0], a[1], a[2], a[3]).to_string();
            (if other == l3::ARP { "arp" } else { "ip4" }, text(ip.src), text(ip.dst))
        }
    };
    let mut text = format!("{name} {src} > {dst}");
    if ip.l3 != l3::ARP {
        text += &format!(" proto {} tos {} ttl {}", ip.proto, ip.tos, ip.ttl);
    }
    text += &format!(" len {}", ip.l3_len);
    if ip.flags & ip_flags::PORTS != 0 {
        text += &format!(" ports {} > {}", u16::from_be(ip.src_port), u16::from_be(ip.dst_port));
    }
    if ip.flags & ip_flags::TCP != 0 {
        text += &format!(" tcp {:02x} {} {} {}", ip.tcp_flags, ip.tcp_seq, ip.tcp_ack, ip.tcp_window);
    }
    if ip.flags & ip_flags::ICMP != 0 {
        text += &format!(" icmp {}/{}", ip.icmp_type, ip.icmp_code);
    }
    if ip.flags & ip_flags::FRAGMENT != 0 {
        text += &format!(" frag {:x} at {}", ip.frag_id, ip.frag_off);
    }
    for name in names(ip.flags.into(), &IP_FLAGS) {
        text += &format!(" {name}");
    }
    let offset = |at: u16| if at == NO_OFFSET { "-".to_owned() } else { at.to_string() };
    text + &format!(" @{}/{}/{}", offset(ip.l3_off), offset(ip.l4_off), offset(ip.payload_off))
}
