//! Entries of named sets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wirelane_bpf::members::{Member, Membership, of};
use wirelane_bpf::rules::MAX_PREFIXES;

use super::names::{self, look_up, shown};
use super::text::protocol;
use super::{Addresses, Networks};

/// The entries of a set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entries {
    /// Addresses, each address an entry.
    Address(Arc<Addresses>),
    /// Networks, each prefix an entry.
    Network(Arc<Networks>),
    /// Addresses with ports.
    AddressPort(Arc<Ends<false>>),
    /// Addresses with ports and protocols.
    AddressPortProtocol(Arc<Ends<true>>),
    /// Flows, matched in both directions.
    Flow(Arc<Flows>),
}

impl Entries {
    /// Number of entries.
    pub fn count(&self) -> u64 {
        match self {
            Entries::Flow(flows) => flows.0.len() as u64,
            Entries::AddressPort(ends) => ends.0.len() as u64,
            Entries::AddressPortProtocol(ends) => ends.0.len() as u64,
            Entries::Network(networks) => networks.entries(),
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

    /// The type of the entries, as in a rule file.
    pub fn kind(&self) -> &'static str {
        match self {
            Entries::Address(_) => "address",
            Entries::Network(_) => "network",
            Entries::AddressPort(_) => "address-port",
            Entries::AddressPortProtocol(_) => "address-port-protocol",
            Entries::Flow(_) => "flow",
        }
    }

    /// The entries in words.
    pub(super) fn plural(&self) -> &'static str {
        match self {
            Entries::Address(_) => "addresses",
            Entries::Network(_) => "networks",
            Entries::AddressPort(_) => "addresses with ports",
            Entries::AddressPortProtocol(_) => "addresses with ports and protocols",
            Entries::Flow(_) => "flows",
        }
    }

    /// The fields of one side that a look-up uses beside its address ([`of`]).
    pub(super) fn key(&self) -> u8 {
        match self {
            Entries::Address(_) | Entries::Flow(_) => 0,
            Entries::Network(_) => of::NETWORK,
            Entries::AddressPort(_) => of::PORT,
            Entries::AddressPortProtocol(_) => of::PORT | of::PROTO,
        }
    }

    /// The prefix lengths of networks, as in [`wirelane_bpf::rules::Set::prefix`].
    pub(super) fn prefixes(&self) -> [[u8; MAX_PREFIXES]; 2] {
        match self {
            Entries::Network(networks) => networks.lengths(),
            _ => Default::default(),
        }
    }

    /// Maximum number of look-ups for one side of a packet.
    pub fn lookups(&self) -> u64 {
        match self {
            Entries::Network(networks) => networks.lookups(),
            _ => 1,
        }
    }

    /// Calls `then` for every entry, in the kernel's representation.
    ///
    /// # Errors
    /// The first error of `then`.
    pub fn each<E>(&self, mut then: impl FnMut(&Member) -> Result<(), E>) -> Result<(), E> {
        match self {
            Entries::Flow(flows) => flows.0.iter().try_for_each(then),
            Entries::AddressPort(ends) => ends.0.iter().try_for_each(then),
            Entries::AddressPortProtocol(ends) => ends.0.iter().try_for_each(then),
            Entries::Network(networks) => networks.each(then),
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
            Entries::Network(networks) => Arc::clone(networks) as Arc<dyn Membership>,
            Entries::AddressPort(ends) => Arc::clone(ends) as Arc<dyn Membership>,
            Entries::AddressPortProtocol(ends) => Arc::clone(ends) as Arc<dyn Membership>,
            Entries::Flow(flows) => Arc::clone(flows) as Arc<dyn Membership>,
        }
    }
}

impl Membership for Addresses {
    fn has(&self, member: &Member) -> bool {
        self.contains(member.ends()[0].0)
    }
}

/// An IP protocol by name or number.
fn protocol_of(text: &str) -> Option<u8> {
    let number = || text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    look_up(names::PROTOCOLS, text).or_else(number)
}

/// An address with a port, `192.0.2.1:53` or `[2001:db8::1]:53`.
fn socket_of(text: &str) -> Option<SocketAddr> {
    // `parse` would accept a scope.
    text.parse().ok().filter(|_| !text.contains('%'))
}

/// Checks that packets of a protocol have ports.
fn has_ports(number: u8) -> Result<(), String> {
    if super::possible::WITH_PORTS.contains(&number) {
        return Ok(());
    }
    Err(format!("packets of protocol {number} have no ports"))
}

/// Addresses with ports, with `PROTOCOL` also with a protocol. As text, each is `192.0.2.1:53`, or
/// `udp 192.0.2.1:53`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends<const PROTOCOL: bool>(Vec<Member>);

impl<const PROTOCOL: bool> Ends<PROTOCOL> {
    /// Parses entries.
    ///
    /// # Errors
    /// A description of the first syntax error.
    pub fn of<T: AsRef<str>>(ends: impl IntoIterator<Item = T>) -> Result<Ends<PROTOCOL>, String> {
        ends.into_iter().map(|end| end.as_ref().parse::<End<PROTOCOL>>()).collect()
    }
}

impl<const PROTOCOL: bool> Membership for Ends<PROTOCOL> {
    fn has(&self, member: &Member) -> bool {
        self.0.binary_search(member).is_ok()
    }
}

/// One address with a port as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End<const PROTOCOL: bool>(Member);

impl<const PROTOCOL: bool> End<PROTOCOL> {
    /// The entry of a port, of this protocol if entries have one.
    ///
    /// # Errors
    /// The reason why no packet can have it.
    pub fn at(address: IpAddr, port: u16, protocol: u8) -> Result<End<PROTOCOL>, String> {
        if PROTOCOL {
            has_ports(protocol)?;
        }
        Ok(End(Member::end(address, port, if PROTOCOL { protocol } else { 0 })))
    }
}

impl<const PROTOCOL: bool> FromIterator<End<PROTOCOL>> for Ends<PROTOCOL> {
    fn from_iter<I: IntoIterator<Item = End<PROTOCOL>>>(ends: I) -> Ends<PROTOCOL> {
        Ends(in_order(ends.into_iter().map(|end| end.0)))
    }
}

impl<const PROTOCOL: bool> FromStr for End<PROTOCOL> {
    type Err = String;

    fn from_str(text: &str) -> Result<End<PROTOCOL>, String> {
        let form = || match PROTOCOL {
            false => format!(
                "'{}' is not an address with a port; write \"192.0.2.1:53\" or \"[2001:db8::1]:53\"",
                shown(text)
            ),
            true => format!(
                "'{}' is not an address with a port and a protocol; write \"udp 192.0.2.1:53\" or \"tcp [2001:db8::1]:80\"",
                shown(text)
            ),
        };
        let mut words = text.split_ascii_whitespace();
        let number = match PROTOCOL {
            true => words.next().and_then(protocol_of).ok_or_else(form)?,
            false => 0,
        };
        let end = words.next().and_then(socket_of).filter(|_| words.next().is_none()).ok_or_else(form)?;
        End::at(end.ip(), end.port(), number)
    }
}

impl<const PROTOCOL: bool> fmt::Display for End<PROTOCOL> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, port) = self.0.ends()[0];
        if PROTOCOL {
            write!(f, "{} ", protocol(self.0.proto))?;
        }
        write!(f, "{}", SocketAddr::new(address, port))
    }
}

impl<const PROTOCOL: bool> Serialize for Ends<PROTOCOL> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|end| End::<PROTOCOL>(*end).to_string()))
    }
}

impl<'de, const PROTOCOL: bool> Deserialize<'de> for Ends<PROTOCOL> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ends<PROTOCOL>, D::Error> {
        Ends::of(Vec::<String>::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Entries in order, each once.
fn in_order(entries: impl Iterator<Item = Member>) -> Vec<Member> {
    let mut all: Vec<Member> = entries.collect();
    all.sort_unstable();
    all.dedup();
    all
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
        if one.1 != 0 || other.1 != 0 {
            has_ports(protocol)?;
        }
        let flow = Member::flow(one, other, protocol);
        flow.map(Flow).ok_or_else(|| {
            format!("no packet goes from {} to {}: one is IPv4, the other IPv6", one.0, other.0)
        })
    }
}

impl FromIterator<Flow> for Flows {
    fn from_iter<I: IntoIterator<Item = Flow>>(flows: I) -> Flows {
        Flows(in_order(flows.into_iter().map(|flow| flow.0)))
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
        let protocol =
            protocol_of(protocol).ok_or_else(|| format!("{}: the first word is not a protocol", form()))?;
        let end = |text: &str| match (text.parse::<IpAddr>(), socket_of(text)) {
            (Ok(address), _) => Ok((address, 0)),
            (_, Some(end)) => Ok((end.ip(), end.port())),
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
