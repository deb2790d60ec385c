//! Names of field values in rule files, and suggestions for unknown names.

use super::Kind;

/// IP protocols (IANA, Assigned Internet Protocol Numbers), with their common names.
pub(super) const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmp6", 58),
    ("icmpv6", 58),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", 132),
    ("udplite", 136),
];

/// Differentiated services code points (RFC 2474, RFC 2597, RFC 3246, RFC 5865, RFC 8622).
pub(super) const DSCPS: &[(&str, u8)] = &[
    ("le", 1),
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("va", 44),
    ("ef", 46),
];

/// EtherTypes (IEEE, RFC 7042).
pub(super) const ETHERTYPES: &[(&str, u16)] = &[
    ("ipv4", 0x0800),
    ("arp", 0x0806),
    ("ipv6", 0x86dd),
    ("slow", 0x8809),
    ("eapol", 0x888e),
    ("profinet", 0x8892),
    ("goose", 0x88b8),
    ("sv", 0x88ba),
    ("lldp", 0x88cc),
    ("ptp", 0x88f7),
];

/// Kinds of packets.
pub(super) const KINDS: &[(&str, Kind)] = &[
    ("ipv4", Kind::Ipv4),
    ("ipv6", Kind::Ipv6),
    ("arp", Kind::Arp),
    ("fragment", Kind::Fragment),
    ("first-fragment", Kind::FirstFragment),
    ("later-fragment", Kind::LaterFragment),
    ("tunnel", Kind::Tunnel),
];

/// TCP flags (RFC 9293, RFC 3168): letter, name, bit.
pub(super) const TCP_FLAGS: &[(char, &str, u8)] = &[
    ('F', "fin", 0x01),
    ('S', "syn", 0x02),
    ('R', "rst", 0x04),
    ('P', "psh", 0x08),
    ('A', "ack", 0x10),
    ('U', "urg", 0x20),
    ('E', "ece", 0x40),
    ('W', "cwr", 0x80),
];

/// A text from a file or a user for a message: escaped for terminals, and truncated if long.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 64;
    let cut = if text.chars().nth(MOST).is_some() { "..." } else { "" };
    text.chars().take(MOST).flat_map(char::escape_debug).chain(cut.chars()).collect()
}

/// The value with this name in a table.
pub(super) fn look_up<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// The name of a value in a table.
pub(super) fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> Option<&'static str> {
    table.iter().find(|(_, known)| known == value).map(|(name, _)| *name)
}

/// The known name nearest to `name`, if it is near enough to be meant.
pub(super) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    // A name that is this much longer than all known ones is near to none, and could be very long.
    let longest = known.iter().map(|known| known.len()).max().unwrap_or(0);
    if name.is_empty() || name.len() > longest + 2 {
        return None;
    }
    let begun = |known: &&&str| name.len() >= 3 && known.starts_with(name);
    if let Some(whole) = known.iter().find(begun) {
        return Some(whole);
    }
    let near = known.iter().map(|known| (distance(name, known), *known)).min()?;
    // Two letters are half of a short name.
    let most = if name.chars().count() <= 4 { 1 } else { 2 };
    (near.0 <= most).then_some(near.1)
}

/// Edit distance: the number of letters to insert, delete, change or transpose with the next to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let other = rows[i - 1][j].min(rows[i][j - 1]) + 1;
                let crossed = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let exchanged = if crossed { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                changed.min(other).min(exchanged)
            };
        }
    }
    rows[a.len()][b.len()]
}
