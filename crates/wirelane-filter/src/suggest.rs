//! Suggestions for unknown words of a filter expression.

/// Words of the language, pcap-filter(7).
const WORDS: &[&str] = &[
    "and",
    "arp",
    "atalk",
    "broadcast",
    "carp",
    "clns",
    "decnet",
    "dst",
    "esis",
    "ether",
    "fddi",
    "gateway",
    "geneve",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "ifname",
    "igmp",
    "igrp",
    "inbound",
    "inner",
    "ip",
    "ip6",
    "ipx",
    "isis",
    "iso",
    "less",
    "link",
    "llc",
    "mask",
    "mpls",
    "multicast",
    "net",
    "netbeui",
    "not",
    "on",
    "or",
    "outbound",
    "pim",
    "port",
    "portrange",
    "pppoed",
    "pppoes",
    "proto",
    "protochain",
    "rarp",
    "rset",
    "rulenum",
    "sctp",
    "src",
    "stp",
    "subtype",
    "tcp",
    "tr",
    "type",
    "udp",
    "vlan",
    "vrrp",
    "vxlan",
    "wlan",
    "ah",
];

/// Names of ports that people write, services(5).
const SERVICES: &[&str] = &[
    "bgp",
    "bootpc",
    "bootps",
    "domain",
    "ftp",
    "http",
    "https",
    "imap",
    "imaps",
    "ldap",
    "mysql",
    "ntp",
    "pop3",
    "postgresql",
    "rtsp",
    "sip",
    "smtp",
    "snmp",
    "ssh",
    "sunrpc",
    "syslog",
    "telnet",
    "tftp",
];

/// Operators of Wireshark's display filters, and ours.
const OPERATORS: &[(&str, &str)] =
    &[("==", "="), ("eq", "="), ("contains", "port, host or net"), ("ne", "!=")];

/// First parts of the names of fields in Wireshark's display filters.
const LAYERS: &[&str] =
    &["arp", "dns", "eth", "frame", "http", "icmp", "ip", "ipv6", "rtp", "sip", "tcp", "tls", "udp", "vlan"];

/// Advice on the word at this position; `None` if there is nothing like it.
pub(super) fn suggestion(expression: &str, at: usize) -> Option<String> {
    let word = word(expression, at)?;
    let lower = word.to_ascii_lowercase();
    if lower.starts_with('-') {
        return Some(format!("'{word}' is an option: write it before the expression"));
    }
    // `ip.addr == 10.0.0.1`, `tcp.port`: the mark is at the name or at the operator.
    let before = expression.get(..at)?.split_whitespace().last().unwrap_or_default();
    let is_field = |name: &str| name.split_once('.').is_some_and(|(layer, _)| LAYERS.contains(&layer));
    if is_field(&lower) || is_field(before) {
        return Some(format!(
            "'{word}' is of a display filter of Wireshark: write host ADDRESS, or tcp port NUMBER"
        ));
    }
    if WORDS.contains(&word) {
        return None;
    }
    if WORDS.contains(&lower.as_str()) {
        return Some(format!("'{word}': words are in lower case: '{lower}'"));
    }
    if let Some((_, ours)) = OPERATORS.iter().find(|(theirs, _)| *theirs == lower) {
        return Some(format!("'{word}': write {ours}"));
    }
    if let Some(value) = word.strip_prefix('=').filter(|_| WORDS.contains(&before)) {
        return Some(format!("'{before}{word}': write '{before} {value}'"));
    }
    if let Some((first, rest)) = word.split_once(',') {
        return Some(format!("'{word}': a list is written as '{first} or {}'", rest.replace(',', " or ")));
    }
    let letters = lower.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let starts = lower.starts_with(|first: char| first.is_ascii_alphabetic());
    if !letters || !starts || !(2..=12).contains(&lower.len()) {
        return None;
    }
    let most = if lower.len() < 4 { 1 } else { 2 };
    let distance = |known: &&str| strsim::damerau_levenshtein(known, &lower);
    let words = if matches!(before, "port" | "portrange") { SERVICES } else { WORDS };
    let nearest = words.iter().copied().min_by_key(distance)?;
    (distance(&nearest) <= most).then(|| format!("'{word}': did you mean '{nearest}'?"))
}

/// The word at this position: up to the next blank or parenthesis.
fn word(expression: &str, at: usize) -> Option<&str> {
    let rest = expression.get(at..)?;
    let end = rest.find(|c: char| c.is_whitespace() || "()[]!&|".contains(c)).unwrap_or(rest.len());
    let word = &rest[..end];
    (!word.is_empty() && word.len() <= 40 && word.bytes().all(|byte| byte.is_ascii_graphic())).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_have_a_likely_right_one() {
        for (expression, wrong, expected) in [
            ("tcp prot 80", "prot", "'prot': did you mean 'port'?"),
            ("tpc port 80", "tpc", "'tpc': did you mean 'tcp'?"),
            ("hsot 1.2.3.4", "hsot", "'hsot': did you mean 'host'?"),
            ("udp adn port 53", "adn", "'adn': did you mean 'and'?"),
            ("tcp port htpp", "htpp", "'htpp': did you mean 'http'?"),
            ("TCP port 80", "TCP", "'TCP': words are in lower case: 'tcp'"),
            ("port=80", "=80", "'port=80': write 'port 80'"),
            ("port 80,443,8080", "80,443,8080", "'80,443,8080': a list is written as '80 or 443 or 8080'"),
            (
                "ip.addr == 10.0.0.1",
                "ip.addr",
                "'ip.addr' is of a display filter of Wireshark: write host ADDRESS, or tcp port NUMBER",
            ),
            (
                "tcp.port == 80",
                "==",
                "'==' is of a display filter of Wireshark: write host ADDRESS, or tcp port NUMBER",
            ),
            ("host a -c 5", "-c", "'-c' is an option: write it before the expression"),
        ] {
            let at = expression.find(wrong).unwrap();
            assert_eq!(suggestion(expression, at).as_deref(), Some(expected), "{expression}");
        }
        for (expression, at) in
            [("tcp port", 8), ("host example", 5), ("tcp tcp", 4), ("a\u{1b}b", 0), ("ä", 1)]
        {
            assert_eq!(suggestion(expression, at), None, "{expression}");
        }
    }
}
