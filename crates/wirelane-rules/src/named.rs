//! Named sets of addresses or flows, of a million entries and more, and the tests that ask them.

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

/// The most sets of one rule set.
const MOST_SETS: usize = 64;
/// The most entries of a set.
const MOST_ENTRIES: u64 = 1 << 26;
/// The most letters of a set's name.
const LONGEST_NAME: usize = 64;
/// The shares of false positives that can be asked for.
const SHARES: std::ops::RangeInclusive<f64> = 1e-6..=0.5;

/// A set that rules ask whether an address or a flow is in it ([`Test::SrcIn`] and so on).
///
/// In the kernel it is a bloom filter, which takes some entries for its own that are not; natively, and in
/// [`RuleSet::explain`], it is asked itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NamedSet {
    /// What rules call it: letters, digits, `-` and `_`.
    pub name: String,
    /// What is in it.
    pub entries: Entries,
    /// The largest share of what is not in it that may be taken for an entry, 0.000001 to 0.5.
    pub false_positives: f64,
    /// What is taken for an entry is looked up in a table of all entries, so that nothing is by mistake.
    #[serde(default)]
    pub confirm: bool,
}

impl NamedSet {
    /// The share of false positives where nobody says another.
    pub const FALSE_POSITIVES: f64 = 0.001;

    /// The size of its bloom filter.
    pub fn bloom(&self) -> BloomSize {
        BloomSize::of(self.entries.count(), self.false_positives)
    }

    /// Bytes that it takes in the kernel.
    pub fn kernel_bytes(&self) -> u64 {
        let exact = if self.confirm { exact_bytes(self.entries.count()) } else { 0 };
        self.bloom().bytes().saturating_add(exact)
    }
}

/// Bytes of a table of so many entries: the entries as the kernel's allocator gives them, and the buckets.
pub fn exact_bytes(entries: u64) -> u64 {
    let buckets = entries.checked_next_power_of_two().unwrap_or(u64::MAX);
    entries.saturating_mul(128).saturating_add(buckets.saturating_mul(16))
}

/// What is in a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entries {
    /// Addresses, each an entry of its own.
    Address(Arc<Addresses>),
    /// Flows, either way round.
    Flow(Arc<Flows>),
}

impl Entries {
    /// How many there are.
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

    /// What it is a set of.
    pub fn kind(&self) -> &'static str {
        match self {
            Entries::Address(_) => "address",
            Entries::Flow(_) => "flow",
        }
    }

    /// Calls `then` for every entry, as the kernel has it.
    ///
    /// # Errors
    /// The first of `then`.
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

    /// What answers for it natively.
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

/// Flows: addresses, ports and a protocol, either way round. As text each is `udp 192.0.2.1:53 198.51.100.2:4000`, or
/// `icmp 192.0.2.1 198.51.100.2` of a protocol without ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows(Vec<Member>);

impl Flows {
    /// Those that are written so.
    ///
    /// # Errors
    /// What is wrong with the first that is none.
    pub fn of<T: AsRef<str>>(flows: impl IntoIterator<Item = T>) -> Result<Flows, String> {
        flows.into_iter().map(|flow| flow.as_ref().parse::<Flow>()).collect()
    }
}

impl Membership for Flows {
    fn has(&self, member: &Member) -> bool {
        self.0.binary_search(member).is_ok()
    }
}

/// One flow, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow(Member);

impl From<Member> for Flow {
    fn from(flow: Member) -> Flow {
        Flow(flow)
    }
}

impl Flow {
    /// The flow between two ends.
    ///
    /// # Errors
    /// Why there is none.
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

/// What a test looks for ([`of`]), and the names of the sets in which; `None`: it asks no set.
pub(super) fn asked(test: &Test) -> Option<(u8, &[String])> {
    match test {
        Test::SrcIn(names) => Some((of::SRC, names)),
        Test::DstIn(names) => Some((of::DST, names)),
        Test::HostIn(names) => Some((of::SRC | of::DST, names)),
        Test::FlowIn(names) => Some((of::FLOW, names)),
        _ => None,
    }
}

/// The test that looks for this in these sets.
pub(super) fn test_of(what: u8, names: Vec<String>) -> Test {
    match what {
        of::SRC => Test::SrcIn(names),
        of::DST => Test::DstIn(names),
        of::FLOW => Test::FlowIn(names),
        _ => Test::HostIn(names),
    }
}

/// The name of what a test looks for, in a rule file.
pub(super) fn field_of(what: u8) -> &'static str {
    match what {
        of::SRC => "src-in",
        of::DST => "dst-in",
        of::FLOW => "flow-in",
        _ => "host-in",
    }
}

/// The tests of named sets that these rules ask: what is looked for, and the set's name. Each is a bit of
/// [`wirelane_bpf::rules::dim::SETS`], in this order.
pub(super) fn tests<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> Vec<(u8, &'r str)> {
    let mut tests = Vec::new();
    let conditions = rules.into_iter().flat_map(|rule| &rule.conditions);
    for (what, names) in conditions.filter_map(|condition| asked(&condition.test)) {
        for name in names {
            let test = (what, name.as_str());
            if !tests.contains(&test) {
                tests.push(test);
            }
        }
    }
    tests
}

impl RuleSet {
    /// The named set of this name.
    pub fn named(&self, name: &str) -> Option<&NamedSet> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// The tests of named sets, with the sets.
    pub fn named_tests(&self) -> Vec<(u8, &NamedSet)> {
        let mut rules: Vec<&Rule> = self.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let tests = tests(rules).into_iter();
        tests.filter_map(|(what, name)| self.named(name).map(|set| (what, set))).collect()
    }

    /// The named sets that rules ask.
    pub fn sets_in_use(&self) -> impl Iterator<Item = &NamedSet> {
        let tests = tests(&self.rules);
        self.sets.iter().filter(move |set| tests.iter().any(|(_, name)| *name == set.name))
    }

    /// What is wrong with the named sets, and with the tests that ask them. `elsewhere`: sets that are not here are those
    /// of whoever is given the rules.
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
                     of src-in, dst-in, host-in and flow-in that it is asked by ({} = {} is one too many); put lists \
                     together in one set, or write host-in for src-in and dst-in",
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

    /// Why a set cannot be asked, if it cannot.
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

/// Whether rules can ask a set, or for patterns, by this name.
///
/// # Errors
/// Why they cannot.
pub(super) fn may_be_named(name: &str) -> Result<(), String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        let name = shown(name);
        return Err(format!("'{name}' cannot name a set: up to {LONGEST_NAME} letters, digits, - and _ can"));
    }
    Ok(())
}

impl NamedSet {
    /// What is wrong with the set on its own.
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

/// What to do about a set with too many entries.
const TOO_MANY: &str = "each address of a prefix is an entry: use wide prefixes as src, dst or host";

/// What a capture says of a named set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetLine {
    /// Its name.
    pub name: String,
    /// `address` or `flow`.
    pub of: String,
    /// How many entries it has.
    pub entries: u64,
    /// Some rule asks it.
    pub in_use: bool,
    /// Bytes that it takes in the kernel, where that evaluates.
    pub bytes: u64,
    /// Hash functions of its bloom filter.
    pub hash_functions: u32,
    /// The share of what is not in it that the bloom filter is expected to take for an entry.
    pub false_positives: f64,
    /// What the bloom filter says yes to is looked up, so that there are none.
    pub confirm: bool,
}

impl RuleSet {
    /// What can be said of its named sets, in their order.
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
