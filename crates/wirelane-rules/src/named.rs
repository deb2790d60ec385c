//! Named sets of addresses or flows, with a million entries and more, and the tests that use them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wirelane_bpf::members::{Member, Membership, of};
use wirelane_bpf::rules::MAX_MEMBERS;

use super::bloom::BloomSize;
use super::check::{Fault, Which};
use super::names::{self, look_up, nearest, shown};
use super::text::protocol;
use super::{Addresses, Rule, RuleSet, Test};

/// Maximum number of sets of one rule set.
const MOST_SETS: usize = 64;
/// Maximum number of entries of a set.
const MOST_ENTRIES: u64 = 1 << 26;
/// Maximum number of characters of a set's name.
const LONGEST_NAME: usize = 64;
/// Range of permitted false-positive rates.
const SHARES: std::ops::RangeInclusive<f64> = 1e-6..=0.5;

/// A set of addresses or flows for membership tests of rules ([`Test::SrcIn`] and so on).
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
        BloomSize::of(self.entries.count(), self.false_positives)
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

/// The entries of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entries {
    /// Addresses, each address an entry.
    Address(Arc<Addresses>),
    /// Flows, matched in both directions.
    Flow(Arc<Flows>),
}

impl Entries {
    /// Number of entries.
    pub fn count(&self) -> u64 {
        match self {
            Entries::Flow(flows) => flows.0.len() as u64,
            Entries::Address(list) => {
                let four = list.v4().iter().map(|range| u64::from(range.end() - range.start()) + 1);
                let six = list
                    .v6()
                    .iter()
                    .map(|range| u64::try_from(range.end() - range.start()).unwrap_or(u64::MAX));
                let six = six.map(|more| more.saturating_add(1));
                four.chain(six).fold(0, u64::saturating_add)
            }
        }
    }

    /// The type of the entries.
    pub fn kind(&self) -> &'static str {
        match self {
            Entries::Address(_) => "address",
            Entries::Flow(_) => "flow",
        }
    }

    /// Calls `then` for every entry, in the kernel's representation.
    ///
    /// # Errors
    /// The first error of `then`.
    pub fn each<E>(&self, mut then: impl FnMut(&Member) -> Result<(), E>) -> Result<(), E> {
        match self {
            Entries::Flow(flows) => flows.0.iter().try_for_each(then),
            Entries::Address(list) => {
                let mut address = |address: IpAddr| then(&Member::address(address));
                let mut four = list.v4().iter().cloned().flatten();
                four.try_for_each(|bits| address(std::net::Ipv4Addr::from_bits(bits).into()))?;
                let mut six = list.v6().iter().cloned().flatten();
                six.try_for_each(|bits| address(std::net::Ipv6Addr::from_bits(bits).into()))
            }
        }
    }

    /// The membership test for native evaluation.
    pub fn membership(&self) -> Arc<dyn Membership> {
        match self {
            Entries::Address(list) => Arc::clone(list) as Arc<dyn Membership>,
            Entries::Flow(flows) => Arc::clone(flows) as Arc<dyn Membership>,
        }
    }
}

impl Membership for Addresses {
    fn has(&self, member: &Member) -> bool {
        self.contains(member.ends()[0].0)
    }
}

/// Flows: addresses, ports and a protocol, matched in both directions. As text, each flow is
/// `udp 192.0.2.1:53 198.51.100.2:4000`, or `icmp 192.0.2.1 198.51.100.2` for a protocol without ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows(Vec<Member>);

impl Flows {
    /// Parses flows.
    ///
    /// # Errors
    /// A description of the first syntax error.
    pub fn of<T: AsRef<str>>(flows: impl IntoIterator<Item = T>) -> Result<Flows, String> {
        flows.into_iter().map(|flow| flow.as_ref().parse::<Flow>()).collect()
    }
}

impl Membership for Flows {
    fn has(&self, member: &Member) -> bool {
        self.0.binary_search(member).is_ok()
    }
}

/// One flow as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow(Member);

impl From<Member> for Flow {
    fn from(flow: Member) -> Flow {
        Flow(flow)
    }
}

impl Flow {
    /// The flow between two endpoints.
    ///
    /// # Errors
    /// The reason why no packet can be of such a flow.
    pub fn between(one: (IpAddr, u16), other: (IpAddr, u16), protocol: u8) -> Result<Flow, String> {
        let ported = one.1 != 0 || other.1 != 0;
        if ported && !super::possible::WITH_PORTS.contains(&protocol) {
            return Err(format!("packets of protocol {protocol} have no ports"));
        }
        let flow = Member::flow(one, other, protocol);
        flow.map(Flow).ok_or_else(|| {
            format!("no packet goes from {} to {}: one is IPv4, the other IPv6", one.0, other.0)
        })
    }
}

impl FromIterator<Flow> for Flows {
    fn from_iter<I: IntoIterator<Item = Flow>>(flows: I) -> Flows {
        let mut all: Vec<Member> = flows.into_iter().map(|flow| flow.0).collect();
        all.sort_unstable();
        all.dedup();
        Flows(all)
    }
}

impl FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> Result<Flow, String> {
        let form = || {
            format!(
                "'{}' is not a flow; write \"udp 192.0.2.1:53 198.51.100.2:4000\", \"tcp [2001:db8::1]:80 [2001:db8::2]:4000\" \
                 or \"icmp 192.0.2.1 198.51.100.2\"",
                shown(text)
            )
        };
        let mut words = text.split_ascii_whitespace();
        let mut word = || words.next().ok_or_else(form);
        let (protocol, one, other) = (word()?, word()?, word()?);
        if words.next().is_some() {
            return Err(form());
        }
        let number = || protocol.parse().ok().filter(|_| protocol.bytes().all(|byte| byte.is_ascii_digit()));
        let protocol = look_up(names::PROTOCOLS, protocol).or_else(number);
        let protocol = protocol.ok_or_else(|| format!("{}: the first word is not a protocol", form()))?;
        let end = |text: &str| match (text.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(address), _) => Ok((address, 0)),
            (_, Ok(end)) if !text.contains('%') => Ok((end.ip(), end.port())),
            _ => Err(form()),
        };
        Flow::between(end(one)?, end(other)?, protocol)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.0.ends();
        write!(f, "{}", protocol(self.0.proto))?;
        let ported = ends.iter().any(|(_, port)| *port != 0);
        ends.iter().try_for_each(|(address, port)| match ported {
            true => write!(f, " {}", SocketAddr::new(*address, *port)),
            false => write!(f, " {address}"),
        })
    }
}

impl Serialize for Flows {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|flow| Flow(*flow).to_string()))
    }
}

impl<'de> Deserialize<'de> for Flows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flows, D::Error> {
        Flows::of(Vec::<String>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
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
                Some(near) => format!("did you mean '{near}'?"),
                None if known.is_empty() => "write it under [[sets]]".to_owned(),
                None => format!("defined: {}", known.join(", ")),
            };
            return (!elsewhere).then(|| format!("there is no set '{}'; {hint}", shown(name)));
        };
        match (&set.entries, what) {
            (Entries::Flow(_), of::FLOW) => None,
            (Entries::Address(_), of::FLOW) => {
                Some(format!("'{}' is a set of addresses: ask it by src-in, dst-in or host-in", shown(name)))
            }
            (Entries::Flow(_), _) => Some(format!("'{}' is a set of flows: ask it by flow-in", shown(name))),
            _ => None,
        }
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
    /// Reports faults of the set on its own.
    fn faults(&self, fault: &mut dyn FnMut(String)) {
        if let Err(reason) = may_be_named(&self.name) {
            fault(reason);
        }
        match self.entries.count() {
            0 => fault(format!("the set '{}' is empty: nothing is in it", shown(&self.name))),
            1..=MOST_ENTRIES => {}
            u64::MAX => fault(format!(
                "the set '{}' has more entries than can be counted; {TOO_MANY}",
                shown(&self.name)
            )),
            count => fault(format!(
                "the set '{}' has {count} entries, more than {MOST_ENTRIES}; {TOO_MANY}",
                shown(&self.name)
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

/// Hint for a set with too many entries.
const TOO_MANY: &str = "each address of a prefix is an entry: use wide prefixes as src, dst or host";

/// A capture's report on a named set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetLine {
    /// Name.
    pub name: String,
    /// `address` or `flow`.
    pub of: String,
    /// Number of entries.
    pub entries: u64,
    /// Whether a rule uses the set.
    pub in_use: bool,
    /// Bytes of kernel memory, if rules are evaluated in the kernel.
    pub bytes: u64,
    /// Number of hash functions of the bloom filter.
    pub hash_functions: u32,
    /// Expected false-positive rate of the bloom filter.
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
                false_positives: bloom.false_positives(entries),
                confirm: set.confirm,
            }
        };
        self.sets.iter().map(line).collect()
    }
}
