//! Searches a payload, pattern by pattern.

use serde::Serialize;
use wirelane_bpf::layout::{NO_OFFSET, flags, ip_flags};
use wirelane_bpf::search::{BLOCK, FOUND, MAX_BYTES, MAX_OUTPUTS};

use super::{Seen, sip};
use crate::Patterns;
use crate::patterns::{Role, Sought};

/// Result of a payload search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched {
    /// The ids that are reported in the record.
    pub ids: [u32; FOUND],
    /// More patterns were found than the record has space for.
    pub more: bool,
    /// The payload was searched incompletely.
    pub half: bool,
    /// Number of bytes searched.
    pub bytes: usize,
    /// All matches, in the order in which they were found.
    pub found: Vec<FoundPattern>,
}

/// A pattern found in a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundPattern {
    /// The name by which rules refer to the pattern.
    pub name: String,
    /// Id of the pattern; 0 for a field of an application protocol.
    pub id: u32,
    /// The pattern, as text or in hexadecimal digits.
    pub pattern: String,
    /// Offset of the pattern in the payload, from 0.
    pub at: usize,
}

impl FoundPattern {
    /// The name, and the id if the pattern has one.
    pub(super) fn words(&self) -> String {
        if self.id == 0 { self.name.clone() } else { format!("{} {}", self.name, self.id) }
    }
}

impl Searched {
    /// Whether a pattern with one of these names was found.
    pub fn has(&self, names: &[String]) -> bool {
        self.found.iter().any(|found| names.contains(&found.name))
    }
}

/// A position at which a pattern ends; sorts in the order of the search.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct End {
    block: usize,
    nocase: bool,
    end: usize,
    length: std::cmp::Reverse<usize>,
    /// Index among all patterns.
    number: usize,
}

/// Searches the payload of a packet for these patterns.
pub(super) fn search(seen: &Seen<'_>, sought: &[Sought]) -> Searched {
    let mut searched = Searched::default();
    let all: Vec<(&Patterns, Role, u32, &[u8])> = sought
        .iter()
        .flat_map(|Sought { patterns, role, .. }| {
            patterns.ids().map(move |(id, pattern)| (patterns, *role, id, &pattern.0[..]))
        })
        .collect();
    let ends = all.iter().map(|(patterns, _, _, bytes)| patterns.ends(bytes.len()));
    let Some(reach) = ends.map(|(_, last)| last as usize).max() else { return searched };
    let Some(payload) = payload(seen, reach, &mut searched) else { return searched };
    searched.bytes = payload.len();
    let mut found: Vec<End> = Vec::new();
    for (number, (patterns, _, _, bytes)) in all.iter().enumerate() {
        let nocase = patterns.nocase;
        let same = |part: &[u8]| if nocase { part.eq_ignore_ascii_case(bytes) } else { part == *bytes };
        let places = payload.windows(bytes.len()).enumerate().filter(|(_, part)| same(part));
        found.extend(places.map(|(at, _)| {
            let end = at + bytes.len();
            End { block: (end - 1) / BLOCK, nocase, end, length: std::cmp::Reverse(bytes.len()), number }
        }));
    }
    found.sort();
    if found.len() > MAX_OUTPUTS {
        found.truncate(MAX_OUTPUTS);
        searched.half = true;
    }
    for End { end, number, .. } in found {
        let (patterns, role, id, bytes) = all[number];
        let (from, last) = patterns.ends(bytes.len());
        let counts = match role {
            Role::Anywhere => (from as usize..=last as usize).contains(&end),
            Role::Within(header) => sip::values(payload, header)
                .iter()
                .any(|value| value.start + bytes.len() <= end && end <= value.end),
            // The pattern begins with the end of the line before.
            Role::Head => sip::lines(payload).contains(&(end - bytes.len() + 1)),
            // Only counts towards the maximum number of matches.
            Role::Gate(_) => false,
        };
        if !counts {
            continue;
        }
        match searched.ids.iter_mut().find(|known| [0, id].contains(known)) {
            Some(place) => *place = id,
            None => searched.more |= id != 0,
        }
        let pattern = crate::Pattern(bytes.to_vec()).to_string();
        searched.found.push(FoundPattern { name: patterns.name.clone(), id, pattern, at: end - bytes.len() });
    }
    searched
}

/// The bytes to search: at most `reach`, and at most the maximum length of a search.
fn payload<'p>(seen: &Seen<'p>, reach: usize, searched: &mut Searched) -> Option<&'p [u8]> {
    let ip = seen.ip();
    let from = usize::from(ip.payload_off);
    if ip.payload_off == NO_OFFSET {
        let cut = seen.packet.parsed.flags & (flags::CUT | flags::DEEP) != 0;
        searched.half = cut || ip.flags & ip_flags::LATER != 0;
        return None;
    }
    let wire = seen.facts.wire_len as usize;
    let end = match ip.l3_len {
        0 => wire,
        length => wire.min(usize::from(ip.l3_off) + length as usize),
    };
    let wanted = end.saturating_sub(from).min(reach);
    let behind = seen.packet.data.get(from..).unwrap_or_default();
    let bytes = wanted.min(MAX_BYTES).min(behind.len());
    searched.half = bytes < wanted;
    behind.get(..bytes)
}
