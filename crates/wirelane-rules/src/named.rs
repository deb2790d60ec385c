//! Named sets with a million entries and more, and the tests that use them.

use serde::{Deserialize, Serialize};
use wirelane_bpf::members::of;
use wirelane_bpf::rules::{MAX_MEMBERS, MAX_PREFIXES};

use super::bloom::BloomSize;
use super::check::{Fault, Which};
use super::names::{nearest, shown};
use super::{Entries, Rule, RuleSet, Test};

/// Maximum number of sets of one rule set.
const MOST_SETS: usize = 64;
/// Maximum number of entries of a set.
const MOST_ENTRIES: u64 = 1 << 26;
/// Maximum number of characters of a set's name.
const LONGEST_NAME: usize = 64;
/// Range of permitted false-positive rates.
const SHARES: std::ops::RangeInclusive<f64> = 1e-6..=0.5;

/// A set of addresses, networks, ports or flows for membership tests of rules ([`Test::SrcIn`] and so on).
///
/// The kernel uses a bloom filter, which has false positives; native evaluation and [`RuleSet::explain`] use the exact
/// set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NamedSet {
    /// The name that rules use: letters, digits, `-` and `_`.
    pub name: String,
    /// The entries.
    pub entries: Entries,
    /// Maximum false-positive rate, 0.000001 to 0.5.
    pub false_positives: f64,
    /// Confirms hits of the bloom filter in a table of all entries, so that there are no false positives.
    #[serde(default)]
    pub confirm: bool,
}

impl NamedSet {
    /// Default false-positive rate.
    pub const FALSE_POSITIVES: f64 = 0.001;

    /// The size of its bloom filter.
    pub fn bloom(&self) -> BloomSize {
        // The share is that of one side of a packet, also if several prefix lengths are looked up for it.
        BloomSize::of(self.entries.count(), self.false_positives / self.entries.lookups() as f64)
    }

    /// Expected false-positive rate of the bloom filter, for one side of a packet.
    pub fn expected_false_positives(&self) -> f64 {
        let of_one = self.bloom().false_positives(self.entries.count());
        1.0 - (1.0 - of_one).powf(self.entries.lookups() as f64)
    }

    /// Bytes of kernel memory for the set.
    pub fn kernel_bytes(&self) -> u64 {
        let exact = if self.confirm { exact_bytes(self.entries.count()) } else { 0 };
        self.bloom().bytes().saturating_add(exact)
    }
}

/// Bytes of an exact table with this many entries: the entries as allocated by the kernel, and the buckets.
pub fn exact_bytes(entries: u64) -> u64 {
    let buckets = entries.checked_next_power_of_two().unwrap_or(u64::MAX);
    entries.saturating_mul(128).saturating_add(buckets.saturating_mul(16))
}

/// The field that a test looks up ([`of`]), and the names of the sets; `None`: the test uses no set.
pub(super) fn asked(test: &Test) -> Option<(u8, &[String])> {
    match test {
        Test::SrcIn(names) => Some((of::SRC, names)),
        Test::DstIn(names) => Some((of::DST, names)),
        Test::HostIn(names) => Some((of::SRC | of::DST, names)),
        Test::FlowIn(names) => Some((of::FLOW, names)),
        _ => None,
    }
}

/// The test that looks up this field in these sets.
pub(super) fn test_of(what: u8, names: Vec<String>) -> Test {
    match what {
        of::SRC => Test::SrcIn(names),
        of::DST => Test::DstIn(names),
        of::FLOW => Test::FlowIn(names),
        _ => Test::HostIn(names),
    }
}

/// The name of a test's field in a rule file.
pub(super) fn field_of(what: u8) -> &'static str {
    match what {
        of::SRC => "src-in",
        of::DST => "dst-in",
        of::FLOW => "flow-in",
        _ => "host-in",
    }
}

/// The same field of the other side; the field itself where it is of both sides.
pub(super) fn opposite(what: u8) -> u8 {
    match what {
        of::SRC => of::DST,
        of::DST => of::SRC,
        other => other,
    }
}

/// The distinct tests of named sets in these rules: the field and the set's name. Each test is a bit of
/// [`wirelane_bpf::rules::dim::SETS`], in this order. A rule for both ways has the tests of both.
pub(super) fn tests<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Vec<(u8, &'r str)> {
    let mut tests = Vec::new();
    for rule in rules {
        for (what, names) in rule.conditions.iter().filter_map(|condition| asked(&condition.test)) {
            let back = rule.both_ways.then(|| opposite(what));
            for name in names {
                for what in [Some(what), back].into_iter().flatten() {
                    let test = (what, name.as_str());
                    if !tests.contains(&test) {
                        tests.push(test);
                    }
                }
            }
        }
    }
    tests
}

impl RuleSet {
    /// The named set with this name.
    pub fn named(&self, name: &str) -> Option<&NamedSet> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// The distinct tests of named sets, with the sets.
    pub fn named_tests(&self) -> Vec<(u8, &NamedSet)> {
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let tests = tests(rules).into_iter();
        tests.filter_map(|(what, name)| self.named(name).map(|set| (what, set))).collect()
    }

    /// The named sets that rules use.
    pub fn sets_in_use(&self) -> impl Iterator<Item = &NamedSet> {
        let tests = tests(&self.rules);
        self.sets.iter().filter(move |set| tests.iter().any(|(_, name)| *name == set.name))
    }

    /// Reports faults of the named sets, and of the tests that use them. `elsewhere`: unknown names refer to sets of
    /// the capture that will use the rules.
    pub(super) fn named_faults(&self, elsewhere: bool, faults: &mut Vec<Fault>) {
        let mut fault = |rule, reason| faults.push(Fault { rule, reason, other: None });
        if self.sets.len() > MOST_SETS {
            fault(None, format!("there are {} named sets, more than {MOST_SETS}", self.sets.len()));
        }
        let all = tests(&self.rules);
        if all.len() > MAX_MEMBERS {
            let (what, name) = all[MAX_MEMBERS];
            fault(
                None,
                format!(
                    "the rules have {} different tests of named sets, more than {MAX_MEMBERS}: each set counts once for each \
                     of src-in, dst-in, host-in and flow-in that it is asked by, and for both of src-in and dst-in in a rule for both \
                     ways ({} = {} is one too many); put lists together in one set, or write host-in for src-in and dst-in",
                    all.len(),
                    field_of(what),
                    shown(name)
                ),
            );
        }
        for (index, rule) in self.rules.iter().enumerate() {
            for (what, names) in rule.conditions.iter().filter_map(|condition| asked(&condition.test)) {
                for name in names {
                    if let Some(reason) = self.unfit(what, name, elsewhere) {
                        fault(Some(Which::Wildcard(index)), reason);
                    }
                }
            }
        }
        for (index, set) in self.sets.iter().enumerate() {
            let mut fault = |reason| fault(Some(Which::Named(index)), reason);
            set.faults(&mut fault);
        }
        for (index, set) in self.sets.iter().enumerate() {
            if let Some(first) = self.sets[..index].iter().position(|other| other.name == set.name) {
                let reason = format!("there is a set '{}' already, made", shown(&set.name));
                let (rule, other) = (Some(Which::Named(index)), Some(Which::Named(first)));
                faults.push(Fault { rule, reason, other });
            }
        }
    }

    /// The reason why a test cannot use a set, if any.
    fn unfit(&self, what: u8, name: &str, elsewhere: bool) -> Option<String> {
        let Some(set) = self.named(name) else {
            let known: Vec<&str> = self.sets.iter().map(|set| set.name.as_str()).collect();
            let hint = match nearest(name, &known) {
                Some(near) => format!("did you mean '{}'?", shown(near)),
                None if known.is_empty() => "write it under [[sets]]".to_owned(),
                None => format!("defined: {}", shown(&known.join(", "))),
            };
            return (!elsewhere).then(|| format!("there is no set '{}'; {hint}", shown(name)));
        };
        let of_flows = matches!(set.entries, Entries::Flow(_));
        let by = if of_flows { "flow-in" } else { "src-in, dst-in or host-in" };
        (of_flows != (what == of::FLOW))
            .then(|| format!("'{}' is a set of {}: ask it by {by}", shown(name), set.entries.plural()))
    }
}

/// Checks whether a set or patterns can have this name.
///
/// # Errors
/// The reason why not.
pub(super) fn may_be_named(name: &str) -> Result<(), String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        let name = shown(name);
        return Err(format!("'{name}' cannot name a set: up to {LONGEST_NAME} letters, digits, - and _ can"));
    }
    Ok(())
}

impl NamedSet {
    /// Hint for a set with too many entries.
    fn too_many(&self) -> String {
        match &self.entries {
            Entries::Address(_) => {
                "each address of a prefix is an entry: write of = \"network\", or use wide prefixes as src, dst or host"
                    .to_owned()
            }
            Entries::Network(_) => format!(
                "prefixes of more than {MAX_PREFIXES} lengths are split: use wide prefixes as src, dst or host"
            ),
            _ => "split it into several sets".to_owned(),
        }
    }

    /// Reports faults of the set on its own.
    fn faults(&self, fault: &mut dyn FnMut(String)) {
        if let Err(reason) = may_be_named(&self.name) {
            fault(reason);
        }
        match self.entries.count() {
            0 => fault(format!("the set '{}' is empty: nothing is in it", shown(&self.name))),
            1..=MOST_ENTRIES => {}
            u64::MAX => fault(format!(
                "the set '{}' has more entries than can be counted; {}",
                shown(&self.name),
                self.too_many()
            )),
            count => fault(format!(
                "the set '{}' has {count} entries, more than {MOST_ENTRIES}; {}",
                shown(&self.name),
                self.too_many()
            )),
        }
        if !SHARES.contains(&self.false_positives) {
            fault(format!(
                "a share of {} false positives cannot be had: {} to {} can",
                self.false_positives,
                SHARES.start(),
                SHARES.end()
            ));
        }
    }
}

/// A capture's report on a named set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetLine {
    /// Name.
    pub name: String,
    /// `address`, `network`, `address-port`, `address-port-protocol` or `flow`.
    pub of: String,
    /// Number of entries; of networks, after they were joined, and split to few prefix lengths.
    pub entries: u64,
    /// Whether a rule uses the set.
    pub in_use: bool,
    /// Bytes of kernel memory, if rules are evaluated in the kernel.
    pub bytes: u64,
    /// Number of hash functions of the bloom filter.
    pub hash_functions: u32,
    /// Expected false-positive rate of the bloom filter, for one side of a packet.
    pub false_positives: f64,
    /// Whether hits of the bloom filter are confirmed, so that there are no false positives.
    pub confirm: bool,
}

impl RuleSet {
    /// A report on each named set, in the order of `sets`.
    pub fn set_lines(&self) -> Vec<SetLine> {
        let used: Vec<&str> = self.sets_in_use().map(|set| set.name.as_str()).collect();
        let line = |set: &NamedSet| {
            let (entries, bloom) = (set.entries.count(), set.bloom());
            SetLine {
                name: set.name.clone(),
                of: set.entries.kind().to_owned(),
                entries,
                in_use: used.contains(&set.name.as_str()),
                bytes: set.kernel_bytes(),
                hash_functions: bloom.hashes,
                false_positives: set.expected_false_positives(),
                confirm: set.confirm,
            }
        };
        self.sets.iter().map(line).collect()
    }
}
