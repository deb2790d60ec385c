//! Patterns to search payloads for, a thousand and more at once, and the names by which rules refer to them.

mod application;
mod automaton;
mod faults;
mod sip;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wirelane_bpf::search::{Page, Search};

pub use self::application::Application;
pub(super) use self::application::{OF_TEXTS, RTP_TYPE};
pub use self::sip::SipHeader;
use self::sip::{Gate, gates};
pub(super) use self::sip::{METHODS, RESPONSE, SCHEMES};
use super::names::shown;
use super::plugins;
use super::{Rule, RuleSet, Test};

/// Maximum length of a pattern in bytes.
pub(super) const LONGEST: usize = 128;
/// Maximum number of patterns of one rule set.
pub(super) const MOST_PATTERNS: usize = 65_536;
/// The highest id of a pattern: records have 31 bits for it.
pub(super) const LAST_ID: u32 = 0x7fff_ffff;

/// Patterns with a name that rules refer to ([`Test::Payload`]). Several entries may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Patterns {
    /// The name that rules use: letters, digits, `-` and `_`.
    pub name: String,
    /// The id of the first pattern, from 1; the others have consecutive ids. Pattern ids are unique within a rule set.
    pub id: u32,
    /// The patterns.
    pub patterns: Arc<[Pattern]>,
    /// Ignore the case of ASCII letters.
    #[serde(default)]
    pub nocase: bool,
    /// The first byte of the payload at which a pattern may begin, from 0.
    #[serde(default)]
    pub offset: u32,
    /// Maximum distance in bytes from `offset` to the end of a pattern; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

/// Scope or purpose of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The pattern matches anywhere.
    Anywhere,
    /// The pattern matches only in the value of this header field, in the first lines of a SIP message.
    Within(SipHeader),
    /// The pattern matches only in the head of a SIP message, behind its first line.
    Head,
    /// The pattern is not reported: it delimits the values of header fields.
    Gate(Gate),
}

/// Patterns with the bits and the role of their search.
#[derive(Clone, Debug, PartialEq)]
pub struct Sought {
    /// Bits of [`wirelane_bpf::rules::dim::PAYLOAD`].
    pub(super) bits: u8,
    pub(super) role: Role,
    pub(super) patterns: Patterns,
}

/// The bytes of a pattern. Serialized as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(pub Vec<u8>);

impl Pattern {
    /// Parses pairs of hexadecimal digits, with optional blanks between them.
    ///
    /// # Errors
    /// A description of the syntax error.
    pub fn of_hex(text: &str) -> Result<Pattern, String> {
        let digits: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let not_hex = |letter: &&char| !letter.is_ascii_hexdigit();
        if let Some(letter) = digits.iter().find(not_hex) {
            return Err(format!(
                "'{}' is not a hexadecimal digit; write \"de ad be ef\"",
                letter.escape_debug()
            ));
        }
        if digits.len() % 2 == 1 {
            return Err(format!("'{}' has an odd number of digits; each byte has two", shown(text)));
        }
        let number = |letter: char| letter.to_digit(16).unwrap_or(0) as u8;
        Ok(Pattern(digits.chunks_exact(2).map(|pair| number(pair[0]) << 4 | number(pair[1])).collect()))
    }

    /// The fault of the pattern, if any.
    pub(super) fn fault(&self) -> Option<String> {
        match self.0.len() {
            0 => Some("the pattern is empty, and would be found everywhere".to_owned()),
            1..=LONGEST => None,
            length => Some(format!("the pattern has {length} bytes, more than {LONGEST}")),
        }
    }

    fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// As text if printable, otherwise in hexadecimal digits.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.iter().all(|byte| (0x20..0x7f).contains(byte)) {
            true => write!(f, "\"{}\"", self.0.escape_ascii()),
            false => f.write_str(&self.to_hex()),
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
        Pattern::of_hex(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Patterns {
    /// The patterns with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (u32, &Pattern)> {
        // Ids beyond the last id are reported by the checks.
        let id = |at: usize| if self.id == 0 { 0 } else { self.id.saturating_add(at as u32) };
        self.patterns.iter().enumerate().map(move |(at, pattern)| (id(at), pattern))
    }

    /// The range of payload offsets at which a pattern of this length may end.
    pub(super) fn ends(&self, length: usize) -> (u32, u32) {
        let last = self.depth.map_or(u32::MAX, |depth| self.offset.saturating_add(depth));
        (self.offset.saturating_add(length as u32), last)
    }
}

/// The names that a test searches the payload for, including those of plug-ins.
pub(super) fn asked(test: &Test) -> Option<Cow<'_, [String]>> {
    match test {
        Test::Payload(names) => Some(Cow::Borrowed(names)),
        Test::Application(application) => Some(Cow::Owned(vec![application.name()])),
        _ => plugins::keys(test).map(Cow::Owned),
    }
}

/// The distinct names that these rules search payloads for. Each is a bit of [`wirelane_bpf::rules::dim::PAYLOAD`], in
/// this order.
pub(super) fn names<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Vec<String> {
    let mut names = Vec::new();
    for condition in rules.into_iter().flat_map(|rule| &rule.conditions) {
        for name in asked(&condition.test).unwrap_or_default().iter() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    names
}

impl RuleSet {
    /// The set's rules in the order of their ids.
    fn in_order(&self) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        rules
    }

    /// The names that rules search payloads for, in the order of their bits.
    pub fn pattern_names(&self) -> Vec<String> {
        names(self.in_order())
    }

    /// The patterns of the fields of application protocols that rules test.
    fn application_patterns(&self) -> Vec<(Patterns, Role)> {
        let mut all: Vec<&Application> = Vec::new();
        for condition in self.in_order().into_iter().flat_map(|rule| &rule.conditions) {
            if let Test::Application(application) = &condition.test
                && all.iter().all(|other| other.name() != application.name())
            {
                all.push(application);
            }
        }
        let each = |application: &&Application| {
            application
                .patterns()
                .into_iter()
                .map(|patterns| (patterns, application.role()))
                .collect::<Vec<_>>()
        };
        let mut sought: Vec<(Patterns, Role)> = all.iter().flat_map(each).collect();
        if all.iter().any(|application| application.role() != Role::Anywhere) {
            sought.extend(gates().into_iter().map(|(patterns, gate)| (patterns, Role::Gate(gate))));
        }
        sought
    }

    /// The patterns that rules use, and the patterns that delimit their header fields.
    pub fn patterns_in_use(&self) -> Vec<Sought> {
        let names = self.pattern_names();
        let bit = |patterns: &Patterns| names.iter().position(|name| *name == patterns.name);
        let own = self.patterns.iter().cloned().map(|patterns| (patterns, Role::Anywhere));
        let sought = |(patterns, role): (Patterns, Role)| {
            let bits = if let Role::Gate(_) = role { 0 } else { 1 << bit(&patterns)? };
            Some(Sought { bits, role, patterns })
        };
        own.chain(self.application_patterns()).filter_map(sought).collect()
    }

    /// The automata for the set's payload search. The set must be valid.
    pub fn search(&self) -> Arc<Search> {
        automaton::of(self.patterns_in_use())
    }

    /// Lower bound of the memory for the search in bytes, computed without building the automata.
    pub fn search_bytes(&self) -> u64 {
        let used = self.patterns_in_use();
        bytes_of(automaton::states(&used.iter().map(|sought| &sought.patterns).collect::<Vec<_>>()))
    }

    /// A report on the set's patterns, one line per name.
    pub fn pattern_lines(&self) -> Vec<PatternLine> {
        let used = self.pattern_names();
        let mut names: Vec<&str> = Vec::new();
        for Patterns { name, .. } in &self.patterns {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let line = |name: &str| {
            let all: Vec<&Patterns> = self.patterns.iter().filter(|patterns| patterns.name == name).collect();
            let states = automaton::states(&all);
            PatternLine {
                name: name.to_owned(),
                patterns: all.iter().map(|patterns| patterns.patterns.len() as u64).sum(),
                in_use: used.iter().any(|one| one == name),
                states,
                bytes: bytes_of(states),
            }
        };
        names.into_iter().map(line).collect()
    }
}

/// Bytes of this many states.
fn bytes_of(states: u64) -> u64 {
    states.div_ceil(wirelane_bpf::search::PAGE as u64) * size_of::<Page>() as u64
}

/// A capture's report on the patterns of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatternLine {
    /// Name.
    pub name: String,
    /// Number of patterns.
    pub patterns: u64,
    /// Whether a rule uses the patterns.
    pub in_use: bool,
    /// States of an automaton for these patterns alone.
    pub states: u64,
    /// Bytes of these states.
    pub bytes: u64,
}
