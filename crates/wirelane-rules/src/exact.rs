//! Exact-match rules: exact values of some fields.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use wirelane_bpf::layout::l3;
use wirelane_bpf::rules::{ExactKey, ExactValue, MAX_SHAPES, NO_VLAN, rule_flags};

use super::compile::{flag_of, verdict_of};
use super::egress_devices::Sends;
use super::{Action, RuleSet, Sample, SampleBy, Then};
use crate::{Error, Result};

/// A rule that asks for exact values. There may be a million of them, and they come and go while packets flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExactRule {
    /// From 1; no two rules of a set have the same, wildcard rules included. (Rules that were made of packets have the
    /// id of the rule that made them.)
    pub id: u32,
    /// The values.
    pub fields: ExactFields,
    /// What becomes of a packet that fits.
    pub action: Action,
    /// Whether wildcard rules are asked too. Exact-match rules of other shapes are not.
    pub then: Then,
    /// Deliver at most so many bytes of the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<u32>,
    /// Take only some of the packets that fit; the others are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// A number for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<u32>,
    /// It ends when it was not hit for so many seconds; 0: never.
    #[serde(default)]
    pub idle_s: u32,
    /// It ends so many seconds after it was made; 0: never.
    #[serde(default)]
    pub hard_s: u32,
    /// Send a copy of the packet to this egress device, as [`super::Rule::mirror`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// With [`Action::Redirect`]: the egress device that the packet is sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl ExactRule {
    /// A rule without modifiers that never ends, which goes on to wildcard rules only if its action says nothing about
    /// the packet.
    pub fn new(id: u32, fields: ExactFields, action: Action) -> ExactRule {
        ExactRule {
            id,
            fields,
            action,
            then: Then::after(action),
            truncate: None,
            sample: None,
            tag: None,
            idle_s: 0,
            hard_s: 0,
            mirror: None,
            to: None,
        }
    }

    /// What it sends, and where to.
    pub(super) fn sends(&self) -> Sends<'_> {
        Sends { action: self.action, mirror: self.mirror.as_deref(), to: self.to.as_deref() }
    }

    /// Its action, with the devices that it sends packets to: `redirect to eth2`.
    pub fn does(&self) -> String {
        self.sends().words()
    }

    /// What the kernel keeps of it, made at this time, where these are the capture's egress devices.
    pub fn entry(&self, made_ns: u64, egress_devices: &[String]) -> (ExactKey, ExactValue) {
        let (mirror, to) = self.sends().bits(egress_devices);
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        let by_packet = self.sample.is_some_and(|sample| sample.by == SampleBy::Packet);
        let value = ExactValue {
            made_ns,
            id: self.id,
            verdict: verdict_of(self.action),
            flags: flag_of(self.then)
                | flag(self.tag.is_some(), rule_flags::TAG)
                | flag(by_packet, rule_flags::SAMPLE_PACKET),
            truncate: self.truncate.unwrap_or(0),
            sample: self.sample.map_or(0, |sample| sample.one_in),
            tag: self.tag.unwrap_or(0),
            idle_s: self.idle_s,
            hard_s: self.hard_s,
            mirror,
            to,
            ..ExactValue::default()
        };
        (self.fields.key(), value)
    }
}

/// What an exact-match rule asks. A field that is `None` may have any value; one that is not must be in the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExactFields {
    /// Source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<IpAddr>,
    /// Destination address; of the same family as the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<IpAddr>,
    /// Source port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
    /// IP protocol of the transport header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Outermost VLAN tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<ExactVlan>,
    /// MPLS label at the top of the stack, 20 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mpls: Option<u32>,
    /// VNI, TEID or GRE key of the innermost tunnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<u32>,
    /// Packets of the other direction fit too: source and destination may be exchanged.
    #[serde(default)]
    pub both_ways: bool,
}

/// The outermost VLAN tag that an exact-match rule asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExactVlan {
    /// None.
    Untagged,
    /// One with this VLAN id, 0 to 4095.
    Id(u16),
}

/// An address as it stands in a key: IPv4 in the first 4 bytes.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// The shapes of a set's exact-match rules, of those that its rules make, and of `others`, in the order in which they are
/// looked for: that with the most fields first.
///
/// # Errors
/// [`Error::BadOption`]: there are too many.
pub fn shapes(set: &RuleSet, others: &[Shape]) -> Result<Vec<Shape>> {
    let all = own_shapes(set).into_iter().chain(others.iter().copied()).collect();
    let shapes = in_order(all);
    if shapes.len() > MAX_SHAPES {
        return Err(Error::BadOption { option: "rules", reason: too_many_shapes(shapes.len()) });
    }
    Ok(shapes)
}

/// The shapes of a set's exact-match rules and of those that its rules make.
pub(super) fn own_shapes(set: &RuleSet) -> Vec<Shape> {
    let made = set.rules.iter().filter_map(|rule| rule.insert.map(|insert| insert.shape));
    in_order(set.exact.iter().map(|rule| rule.fields.shape()).chain(made).collect())
}

fn in_order(mut shapes: Vec<Shape>) -> Vec<Shape> {
    let fields = |shape: &Shape| (shape.0 & !Shape::BOTH_WAYS.0).count_ones();
    shapes.sort_by_key(|shape| (std::cmp::Reverse(fields(shape)), *shape));
    shapes.dedup();
    shapes
}

pub(super) fn too_many_shapes(there_are: usize) -> String {
    format!(
        "the exact-match rules have {there_are} different sets of fields, more than {MAX_SHAPES}: give some of them more \
         or fewer fields, or write them as [[rule]]"
    )
}

/// Which fields an exact-match rule has: a set of bits, as the kernel side has them (`WL_SHAPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub u32);

impl Shape {
    /// Source address.
    pub const SRC: Shape = Shape(1);
    /// Destination address.
    pub const DST: Shape = Shape(2);
    /// Source port.
    pub const SRC_PORT: Shape = Shape(4);
    /// Destination port.
    pub const DST_PORT: Shape = Shape(8);
    /// IP protocol.
    pub const PROTOCOL: Shape = Shape(16);
    /// VLAN tag, or that there is none.
    pub const VLAN: Shape = Shape(32);
    /// MPLS label.
    pub const MPLS: Shape = Shape(64);
    /// Tunnel id.
    pub const TUNNEL: Shape = Shape(128);
    /// Source and destination may be exchanged.
    pub const BOTH_WAYS: Shape = Shape(256);

    /// Whether all bits of `other` are in it.
    pub fn has(self, other: Shape) -> bool {
        self.0 & other.0 == other.0
    }

    /// It with the bits of `other`.
    #[must_use]
    pub fn with(self, other: Shape) -> Shape {
        Shape(self.0 | other.0)
    }
}

impl ExactFields {
    /// What the kernel finds a rule with these fields by.
    pub fn key(&self) -> ExactKey {
        let family = match self.src.or(self.dst) {
            None => 0,
            Some(IpAddr::V4(_)) => l3::IPV4,
            Some(IpAddr::V6(_)) => l3::IPV6,
        };
        ExactKey {
            src: self.src.map_or([0; 16], octets),
            dst: self.dst.map_or([0; 16], octets),
            src_port: self.src_port.unwrap_or(0).to_be(),
            dst_port: self.dst_port.unwrap_or(0).to_be(),
            vlan: match self.vlan {
                None => 0,
                Some(ExactVlan::Untagged) => NO_VLAN,
                Some(ExactVlan::Id(id)) => id,
            },
            proto: self.protocol.unwrap_or(0),
            l3: family,
            mpls: self.mpls.unwrap_or(0),
            tunnel: self.tunnel.unwrap_or(0),
            shape: self.shape().0,
        }
    }

    /// The same fields of a packet in the other direction.
    #[must_use]
    pub fn exchanged(mut self) -> ExactFields {
        std::mem::swap(&mut self.src, &mut self.dst);
        std::mem::swap(&mut self.src_port, &mut self.dst_port);
        self
    }

    /// Which of them there are.
    pub fn shape(&self) -> Shape {
        let bit = |there: bool, bit: Shape| if there { bit } else { Shape(0) };
        Shape(0)
            .with(bit(self.src.is_some(), Shape::SRC))
            .with(bit(self.dst.is_some(), Shape::DST))
            .with(bit(self.src_port.is_some(), Shape::SRC_PORT))
            .with(bit(self.dst_port.is_some(), Shape::DST_PORT))
            .with(bit(self.protocol.is_some(), Shape::PROTOCOL))
            .with(bit(self.vlan.is_some(), Shape::VLAN))
            .with(bit(self.mpls.is_some(), Shape::MPLS))
            .with(bit(self.tunnel.is_some(), Shape::TUNNEL))
            .with(bit(self.both_ways, Shape::BOTH_WAYS))
    }
}
