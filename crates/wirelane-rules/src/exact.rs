//! Exact-match rules: exact values of some fields.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use wirelane_bpf::layout::l3;
use wirelane_bpf::rules::{ExactKey, ExactValue, MAX_SHAPES, NO_VLAN, rule_flags};

use super::compile::{flag_of, verdict_of};
use super::egress_devices::Sends;
use super::{Action, RuleSet, Sample, SampleBy, Then};
use crate::{Error, Result};

/// A rule that matches exact values. A set may have a million of them, and they can be added and removed during a
/// capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExactRule {
    /// Id, from 1, unique within the set, wildcard rules included. (Rules inserted by a wildcard rule for a packet have
    /// the id of that rule.)
    pub id: u32,
    /// The values to match.
    pub fields: ExactFields,
    /// Action on a matching packet.
    pub action: Action,
    /// Whether wildcard rules are evaluated too. Exact-match rules of other shapes are not.
    pub then: Then,
    /// Maximum number of bytes of the packet to deliver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate: Option<u32>,
    /// Sampling of the matching packets; packets outside of the sample are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sample>,
    /// Tag for the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<u32>,
    /// Idle timeout in seconds since the last hit; 0: none.
    #[serde(default)]
    pub idle_s: u32,
    /// Hard timeout in seconds since the rule was added; 0: none.
    #[serde(default)]
    pub hard_s: u32,
    /// Egress device for a copy of the packet, as [`super::Rule::mirror`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// With [`Action::Redirect`]: egress device for the packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl ExactRule {
    /// A rule without modifiers and timeouts. Evaluation continues with wildcard rules only if the action does not
    /// decide about the packet.
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

    /// The rule's action with its egress devices.
    pub(super) fn sends(&self) -> Sends<'_> {
        Sends { action: self.action, mirror: self.mirror.as_deref(), to: self.to.as_deref() }
    }

    /// The rule's action in words, with its egress devices: `redirect to eth2`.
    pub fn does(&self) -> String {
        self.sends().words()
    }

    /// The rule's key and value in the kernel's table. `made_ns`: time of creation; `egress_devices`: those of the
    /// capture.
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

/// The fields of an exact-match rule. `None` matches any value; any other value requires that the packet has the field.
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
    /// The rule also matches packets of the other direction, with source and destination exchanged.
    #[serde(default)]
    pub both_ways: bool,
}

/// The outermost VLAN tag required by an exact-match rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExactVlan {
    /// No VLAN tag.
    Untagged,
    /// A VLAN tag with this id, 0 to 4095.
    Id(u16),
}

/// An address as it is stored in a key: IPv4 in the first 4 bytes.
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

/// The shapes of a set's exact-match rules, of the rules that its wildcard rules insert, and of `others`, in lookup
/// order: most fields first.
///
/// # Errors
/// [`Error::BadOption`]: more than `MAX_SHAPES` shapes.
pub fn shapes(set: &RuleSet, others: &[Shape]) -> Result<Vec<Shape>> {
    let all = own_shapes(set).into_iter().chain(others.iter().copied()).collect();
    let shapes = in_order(all);
    if shapes.len() > MAX_SHAPES {
        return Err(Error::BadOption { option: "rules", reason: too_many_shapes(shapes.len()) });
    }
    Ok(shapes)
}

/// The shapes of a set's exact-match rules and of the rules that its wildcard rules insert.
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

/// The fields of an exact-match rule as a bit set, with the kernel's values (`WL_SHAPE_*`).
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
    /// VLAN tag, or its absence.
    pub const VLAN: Shape = Shape(32);
    /// MPLS label.
    pub const MPLS: Shape = Shape(64);
    /// Tunnel id.
    pub const TUNNEL: Shape = Shape(128);
    /// Source and destination may be exchanged.
    pub const BOTH_WAYS: Shape = Shape(256);

    /// Whether the shape contains all bits of `other`.
    pub fn has(self, other: Shape) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both shapes.
    #[must_use]
    pub const fn with(self, other: Shape) -> Shape {
        Shape(self.0 | other.0)
    }
}

impl ExactFields {
    /// The key of a rule with these fields in the kernel's hash table.
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

    /// The fields that are present.
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
