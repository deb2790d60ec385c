//! Generates filter expressions from all primitives of pcap-filter(7).

use wirelane_bpf::layout::flags;
use wirelane_bpf::native;

use super::Dice;
use super::packets::Capture;
use wirelane_bpf::linktype;

/// Values for expressions, taken from packets, so that some packets are accepted and some are not.
pub(super) struct Values {
    addresses4: Vec<String>,
    addresses6: Vec<String>,
    ports: Vec<u16>,
    macs: Vec<String>,
}

impl Values {
    /// Values of the packets of some captures, and some fixed ones.
    pub(super) fn of(captures: &[Capture]) -> Values {
        let mut values = Values {
            addresses4: ["127.0.0.1", "10.0.0.1", "192.168.1.1", "255.255.255.255", "0.0.0.0"]
                .map(Into::into)
                .into(),
            addresses6: ["fe80::1", "::1", "ff02::1", "2001:db8::1"].map(Into::into).into(),
            ports: vec![53, 80, 443, 5060, 1024, 65535, 0],
            macs: ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"].map(Into::into).into(),
        };
        for capture in captures {
            let Some(packet) = capture.packets.iter().find(|packet| packet.link == linktype::ETHERNET) else {
                continue;
            };
            if let Some(mac) = packet.data.first_chunk::<6>() {
                values.macs.push(mac.map(|byte| format!("{byte:02x}")).join(":"));
            }
            let parsed = native::parse(wirelane_bpf::layout::LinkType::Ethernet, &packet.data, false);
            let ip = &parsed.outer;
            let addresses = [ip.src, ip.dst];
            match ip.l3 {
                4 => values.addresses4.extend(addresses.iter().map(|address| {
                    let four: [u8; 4] = address[12..].try_into().expect("four bytes");
                    std::net::Ipv4Addr::from(four).to_string()
                })),
                6 => values
                    .addresses6
                    .extend(addresses.iter().map(|address| std::net::Ipv6Addr::from(*address).to_string())),
                _ => {}
            }
            if parsed.flags & flags::FRAGMENT == 0 && ip.src_port != 0 {
                values.ports.extend([ip.src_port, ip.dst_port]);
            }
        }
        values
    }
}

/// A generator of one kind of primitive.
type Maker = fn(&mut Dice, &Values) -> String;

/// Kinds of primitives that most link types accept.
const COMMON: &[Maker] = &[
    |dice, _| dice.pick(PROTOCOLS).to_string(),
    host,
    host,
    net,
    port,
    port,
    |dice, values| format!("{}{}portrange {}", of_ports(dice), way(dice), range(dice, values)),
    |dice, _| format!("{} {}", dice.one(&["less", "greater"]), dice.below(1600)),
    |dice, _| format!("len {} {}", relation(dice), dice.below(1600)),
    |dice, _| format!("{}proto {}", dice.one(&["ip ", "ip6 ", ""]), dice.pick(NUMBERS)),
    |dice, _| {
        format!("{} {}", dice.one(&["ip", "ip6"]), dice.one(&["multicast", "proto \\tcp", "proto \\udp"]))
    },
    |dice, _| dice.one(&["ip broadcast", "ip host 255.255.255.255"]).to_string(),
    comparison,
    comparison,
    comparison,
];

/// Kinds of primitives that Ethernet accepts, and other link types may reject.
const OF_ETHERNET: &[Maker] = &[
    |dice, values| format!("ether {}{}", dice.one(&["host ", "src ", "dst "]), dice.pick(&values.macs)),
    |dice, _| format!("ether {}", dice.one(&["broadcast", "multicast"])),
    |dice, _| format!("ether proto {}", dice.pick(ETHERNET_PROTOCOLS)),
    |dice, _| {
        dice.one(&["aarp", "arp", "atalk", "decnet", "ipx", "iso", "lat", "moprc", "netbeui", "rarp", "stp"])
            .to_string()
    },
    |dice, _| {
        dice.one(&["esis", "isis", "clnp", "iih", "lsp", "snp", "csnp", "psnp", "l1", "l2"]).to_string()
    },
    |dice, _| format!("iso proto {}", dice.one(&["\\clnp", "\\esis", "\\isis", "131"])),
    |dice, _| format!("decnet {}host {}.{}", way(dice), dice.below(64), dice.below(1024)),
    |dice, values| format!("rarp {}host {}", way(dice), dice.pick(&values.addresses4)),
    |dice, values| format!("arp {}net {}", way(dice), network4(dice, values)),
    |dice, _| format!("ether[{}] {} {}", dice.below(80), relation(dice), dice.below(256)),
    |dice, _| format!("ether[{}:2] {} {}", dice.below(80), relation(dice), dice.below(65536)),
    |dice, _| format!("ether[{}:4] & {:#x} {} 0", dice.below(1520), dice.word(), dice.one(&["=", "!="])),
    // Primitives that change the header offsets of all following ones.
    |dice, values| format!("vlan{} and {}", perhaps(dice, 8), simple(dice, values)),
    |dice, values| format!("vlan and vlan{} and {}", perhaps(dice, 300), simple(dice, values)),
    |dice, values| format!("mpls{} and {}", perhaps(dice, 100), simple(dice, values)),
    |dice, _| format!("mpls{} and mpls{}", perhaps(dice, 100), perhaps(dice, 20)),
    |dice, values| format!("pppoes{} and {}", perhaps(dice, 20), simple(dice, values)),
    |dice, values| format!("geneve{} and {}", perhaps(dice, 20), simple(dice, values)),
    |dice, _| format!("{}{}", dice.one(&["vlan", "mpls", "pppoes", "geneve"]), perhaps(dice, 40)),
    |dice, _| dice.one(&["pppoed", "vlan 0", "not vlan", "vlan and not ip"]).to_string(),
];

/// Kinds of primitives for other link types, by LINKTYPE number.
fn of_link(link: u32) -> &'static [Maker] {
    match link {
        linktype::ETHERNET => OF_ETHERNET,
        // IEEE 802.11, plain and with the three headers that may precede it.
        105 | 119 | 127 | 163 | 192 => &[
            |dice, _| format!("type {}", dice.one(&["mgt", "ctl", "data"])),
            |dice, _| {
                format!("type mgt subtype {}", dice.one(&["beacon", "probe-req", "assocreq", "deauth"]))
            },
            |dice, _| format!("type ctl subtype {}", dice.one(&["ack", "rts", "cts", "ps-poll"])),
            |dice, _| format!("type data subtype {}", dice.one(&["data", "qos-data", "null"])),
            |dice, _| format!("subtype {}", dice.one(&["beacon", "ack", "qos-data", "probereq"])),
            |dice, _| format!("dir {}", dice.one(&["nods", "tods", "fromds", "dstods"])),
            |dice, values| {
                let role = dice.one(&["addr1", "addr2", "addr3", "addr4", "ra", "ta", "src", "dst", "host"]);
                format!("wlan {role} {}", dice.pick(&values.macs))
            },
            |dice, _| format!("wlan[{}] & {} != 0", dice.below(40), dice.below(256)),
            |dice, _| format!("radio[{}] {} {}", dice.below(16), relation(dice), dice.below(256)),
            |_, _| "wlan multicast or wlan broadcast".to_owned(),
        ],
        // ATM.
        100 | 123 => &[
            |dice, _| format!("vpi {} or vci {}", dice.below(8), dice.below(64)),
            |dice, _| {
                dice.one(&["lane", "oamf4s", "oamf4e", "oamf4", "oam", "metac", "bcc", "sc", "ilmic"])
                    .to_string()
            },
            |dice, _| dice.one(&["connectmsg", "metaconnect", "llc"]).to_string(),
        ],
        // SS7.
        139..=141 => &[
            |dice, _| dice.one(&["fisu", "lssu", "lsu", "msu", "hfisu", "hlssu", "hmsu"]).to_string(),
            |dice, _| format!("{} {}", dice.one(&["sio", "hsio"]), dice.below(256)),
            |dice, _| format!("{} {}", dice.one(&["opc", "dpc", "hopc", "hdpc"]), dice.below(16384)),
            |dice, _| format!("{} {}", dice.one(&["sls", "hsls"]), dice.below(16)),
        ],
        // OpenBSD's packet filter.
        117 => &[
            |dice, _| format!("{} {}", dice.one(&["on", "ifname"]), dice.one(&["en0", "lo", "vlan0"])),
            |dice, _| format!("{} {}", dice.one(&["rnum", "srnum"]), dice.below(50)),
            |dice, _| format!("reason {}", dice.one(&["match", "bad-offset", "fragment", "short", "memory"])),
            |dice, _| format!("action {}", dice.one(&["pass", "block", "nat", "rdr"])),
            |dice, _| format!("ruleset {}", dice.one(&["a", "authpf"])),
            |_, _| "inbound or outbound".to_owned(),
        ],
        // ARCnet, BACnet.
        7 | 129 | 165 => {
            &[|dice, _| format!("link {}${:x}", dice.one(&["host ", "src ", "dst "]), dice.below(256))]
        }
        _ => &[
            |dice, _| format!("link[{}] {} {}", dice.below(60), relation(dice), dice.below(256)),
            |dice, _| {
                dice.one(&["vlan", "mpls", "iso", "ether multicast", "inbound", "outbound"]).to_string()
            },
        ],
    }
}

const PROTOCOLS: &[&str] = &[
    "ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6", "igmp", "igrp", "pim", "ah", "esp", "vrrp", "carp",
    "sctp",
];
const NUMBERS: &[&str] =
    &["0", "1", "2", "4", "6", "17", "41", "44", "47", "50", "51", "58", "89", "132", "255"];
const ETHERNET_PROTOCOLS: &[&str] = &[
    "\\ip",
    "\\ip6",
    "\\arp",
    "\\rarp",
    "\\atalk",
    "\\aarp",
    "\\decnet",
    "\\sca",
    "\\lat",
    "\\mopdl",
    "\\moprc",
    "\\iso",
    "\\stp",
    "\\ipx",
    "\\netbeui",
    "0x88cc",
    "0x8100",
    "2048",
    "1500",
    "0x42",
];

/// An expression for packets of this link type, of one to six primitives.
pub(super) fn expression(dice: &mut Dice, values: &Values, link: u32) -> String {
    let parts = 1 + dice.below(6);
    let mut text = String::new();
    let mut open = 0;
    for part in 0..parts {
        if part > 0 {
            text += dice.one(&[" and ", " or ", " && ", " || ", " and not ", " or not "]);
        }
        if dice.once_in(4) {
            text += dice.one(&["not ", "! ", "!"]);
        }
        if dice.once_in(3) {
            text += "(";
            open += 1;
        }
        let makers = if dice.once_in(3) { of_link(link) } else { COMMON };
        let primitive = dice.pick(makers)(dice, values);
        text += &primitive;
        if open > 0 && dice.once_in(2) {
            text += ")";
            open -= 1;
        }
    }
    text += &")".repeat(open);
    text
}

fn perhaps(dice: &mut Dice, below: usize) -> String {
    if dice.once_in(2) { String::new() } else { format!(" {}", dice.below(below)) }
}

fn way(dice: &mut Dice) -> &'static str {
    dice.one(&["", "", "src ", "dst ", "src or dst ", "src and dst "])
}

fn relation(dice: &mut Dice) -> &'static str {
    dice.one(&["=", "==", "!=", "<", ">", "<=", ">="])
}

/// A primitive without the name of a link type.
fn simple(dice: &mut Dice, values: &Values) -> String {
    match dice.below(5) {
        0 => dice.pick(PROTOCOLS).to_string(),
        1 => host(dice, values),
        2 => port(dice, values),
        3 => comparison(dice, values),
        _ => net(dice, values),
    }
}

fn host(dice: &mut Dice, values: &Values) -> String {
    let way = way(dice);
    match dice.below(4) {
        0 => format!("{way}host {}", dice.pick(&values.addresses6)),
        1 => format!("ip6 {way}host {}", dice.pick(&values.addresses6)),
        2 => format!("ip {way}host {}", dice.pick(&values.addresses4)),
        _ => format!("{way}host {}", dice.pick(&values.addresses4)),
    }
}

fn network4(dice: &mut Dice, values: &Values) -> String {
    let address: std::net::Ipv4Addr = dice.pick(&values.addresses4).parse().expect("we made it");
    let length = dice.below(33) as u32;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    let network = std::net::Ipv4Addr::from(u32::from(address) & mask);
    match dice.below(3) {
        0 => format!("{network} mask {}", std::net::Ipv4Addr::from(mask)),
        1 => network.octets()[..1 + dice.below(3)].iter().map(u8::to_string).collect::<Vec<_>>().join("."),
        _ => format!("{network}/{length}"),
    }
}

fn net(dice: &mut Dice, values: &Values) -> String {
    let way = way(dice);
    if dice.once_in(3) {
        let address: std::net::Ipv6Addr = dice.pick(&values.addresses6).parse().expect("we made it");
        let length = dice.below(129) as u32;
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        let network = std::net::Ipv6Addr::from(u128::from(address) & mask);
        return format!("{way}net {network}/{length}");
    }
    format!("{way}net {}", network4(dice, values))
}

fn of_ports(dice: &mut Dice) -> &'static str {
    dice.one(&["", "", "tcp ", "udp ", "sctp "])
}

fn port(dice: &mut Dice, values: &Values) -> String {
    format!("{}{}port {}", of_ports(dice), way(dice), dice.pick(&values.ports))
}

fn range(dice: &mut Dice, values: &Values) -> String {
    let ends = [*dice.pick(&values.ports), *dice.pick(&values.ports)];
    // libpcap swaps them if the first is larger.
    format!("{}-{}", ends[0], ends[1])
}

/// Two arithmetic expressions, compared.
fn comparison(dice: &mut Dice, _: &Values) -> String {
    format!("{} {} {}", arithmetic(dice, 3), relation(dice), arithmetic(dice, 1))
}

const BYTES_OF: &[&str] = &["ip", "ip6", "tcp", "udp", "icmp", "icmp6", "igmp", "sctp", "link", "arp", "ip"];
const OFFSETS: &[&str] = &["tcpflags", "12", "13", "icmptype", "icmpcode", "icmp6type", "icmp6code"];
const NAMED: &[&str] = &[
    "tcp-syn",
    "tcp-ack",
    "tcp-fin",
    "tcp-rst",
    "tcp-push",
    "tcp-urg",
    "icmp-echo",
    "icmp-echoreply",
    "icmp-unreach",
    "icmp6-echo",
    "icmp6-neighborsolicit",
    "tcp-ece",
    "tcp-cwr",
];

fn arithmetic(dice: &mut Dice, depth: usize) -> String {
    let choice = if depth == 0 { dice.below(4) } else { dice.below(12) };
    match choice {
        0 => dice.below(2000).to_string(),
        1 => format!("{:#x}", dice.word()),
        2 => "len".to_owned(),
        3 => dice.pick(NAMED).to_string(),
        4..=6 => format!("{}[{}:{}]", dice.pick(BYTES_OF), dice.below(48), dice.one(&["1", "2", "4"])),
        7 => format!("tcp[{}] & {}", dice.pick(OFFSETS), dice.pick(NAMED)),
        8 => format!("{}[{}]", dice.pick(BYTES_OF), arithmetic(dice, depth - 1)),
        _ => {
            let operation = dice.one(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
            // libpcap does not compile a constant 0 or a shift of more than 31 here; both have their own tests.
            let right = match operation {
                "/" | "%" => (1 + dice.below(9)).to_string(),
                "<<" | ">>" => dice.below(32).to_string(),
                _ => arithmetic(dice, depth - 1),
            };
            format!("({} {operation} {right})", arithmetic(dice, depth - 1))
        }
    }
}
