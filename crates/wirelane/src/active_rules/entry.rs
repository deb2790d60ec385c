//! Exact-match rules as entries of a table, and back.
//!
//! The shape in an entry's key has a number above its bits, the **epoch**: a packet is looked up with the shapes of the
//! set that it is evaluated by, so it meets the exact-match rules of that set and of no other. Replacing a whole set
//! puts the new exact-match rules beside the old ones, with the next number; the switch to the new set activates the
//! new ones, all at once, and deactivates the old ones.

use std::net::IpAddr;

use wirelane_bpf::layout::l3;
use wirelane_bpf::rules::{ExactKey, ExactValue, NO_VLAN, rule_flags, shape};

use wirelane_rules::action_of;
use wirelane_rules::egress_devices::named;
use wirelane_rules::{ExactFields, ExactRule, ExactVlan, Sample, SampleBy, Then};

/// Bit position of the epoch in a shape.
const EPOCH_SHIFT: u32 = 16;
/// Number of epochs before they wrap.
const EPOCHS: u32 = 1 << 15;
/// The bits of a shape that denote fields.
const FIELDS: u32 = (1 << EPOCH_SHIFT) - 1;

/// The epoch that follows this one.
pub(super) fn after(epoch: u32) -> u32 {
    (epoch + 1) % EPOCHS
}

/// The shape with this epoch.
pub(super) fn in_epoch(shape: u32, epoch: u32) -> u32 {
    shape & FIELDS | epoch << EPOCH_SHIFT
}

/// The epoch of an entry.
pub(super) fn epoch_of(key: &ExactKey) -> u32 {
    key.shape >> EPOCH_SHIFT
}

/// The lookup key of these fields.
pub(super) fn key(fields: &ExactFields, epoch: u32) -> ExactKey {
    let key = fields.key();
    ExactKey { shape: in_epoch(key.shape, epoch), ..key }
}

/// The key of the other direction, where the rule matches both directions and the keys differ. A rule with one side
/// only, of addresses or of ports, has one key: that of the other direction has another shape.
pub(super) fn turned(key: &ExactKey) -> Option<ExactKey> {
    let has = |bit: u32| key.shape & bit != 0;
    let alike = has(shape::SRC) == has(shape::DST) && has(shape::SRC_PORT) == has(shape::DST_PORT);
    if !has(shape::BOTH) || !alike {
        return None;
    }
    let turned =
        ExactKey { src: key.dst, dst: key.src, src_port: key.dst_port, dst_port: key.src_port, ..*key };
    (turned != *key).then_some(turned)
}

/// The fields of an entry's key.
pub(super) fn fields(key: &ExactKey) -> ExactFields {
    let has = |bit: u32| key.shape & bit != 0;
    let address = |bytes: &[u8; 16]| match (key.l3, bytes.first_chunk::<4>()) {
        (l3::IPV4, Some(v4)) => IpAddr::from(*v4),
        _ => IpAddr::from(*bytes),
    };
    ExactFields {
        src: has(shape::SRC).then(|| address(&key.src)),
        dst: has(shape::DST).then(|| address(&key.dst)),
        src_port: has(shape::SRC_PORT).then(|| u16::from_be(key.src_port)),
        dst_port: has(shape::DST_PORT).then(|| u16::from_be(key.dst_port)),
        protocol: has(shape::PROTO).then_some(key.proto),
        vlan: has(shape::VLAN).then_some(match key.vlan {
            NO_VLAN => ExactVlan::Untagged,
            id => ExactVlan::Id(id),
        }),
        mpls: has(shape::MPLS).then_some(key.mpls),
        tunnel: has(shape::TUNNEL).then_some(key.tunnel),
        both_ways: has(shape::BOTH),
    }
}

/// The rule that an entry represents.
pub(super) fn rule(key: &ExactKey, value: &ExactValue, egress_devices: &[String]) -> ExactRule {
    let by = if value.flags & rule_flags::SAMPLE_PACKET != 0 { SampleBy::Packet } else { SampleBy::Flow };
    ExactRule {
        id: value.id,
        fields: fields(key),
        action: action_of(value.verdict),
        then: if value.flags & rule_flags::CONTINUE != 0 { Then::Continue } else { Then::Stop },
        truncate: (value.truncate != 0).then_some(value.truncate),
        sample: (value.sample > 1).then_some(Sample { one_in: value.sample, by }),
        tag: (value.flags & rule_flags::TAG != 0).then_some(value.tag),
        idle_s: value.idle_s,
        hard_s: value.hard_s,
        mirror: named(egress_devices, value.mirror.into()).pop(),
        to: named(egress_devices, value.to.into()).pop(),
    }
}

/// Whether the entry was made by a packet.
pub(super) fn is_made(value: &ExactValue) -> bool {
    value.flags & rule_flags::MADE != 0
}

/// Whether the entry has expired, by the same test as bpf/lib/rules.h.
pub(super) fn has_expired(value: &ExactValue, now_ns: u64) -> bool {
    let passed = |since: u64, seconds: u32| {
        seconds != 0 && now_ns.saturating_sub(since) >= u64::from(seconds) * 1_000_000_000
    };
    passed(value.last_ns.max(value.made_ns), value.idle_s) || passed(value.made_ns, value.hard_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirelane_rules::Action;

    #[test]
    fn an_entry_is_the_rule_that_it_was_made_of() {
        let all = ExactRule {
            id: 7,
            fields: ExactFields {
                src: Some("192.0.2.1".parse().unwrap()),
                dst: Some("192.0.2.2".parse().unwrap()),
                src_port: Some(0x1234),
                dst_port: Some(0),
                protocol: Some(17),
                vlan: Some(ExactVlan::Untagged),
                mpls: Some(0xfffff),
                tunnel: Some(u32::MAX),
                both_ways: true,
            },
            action: Action::Redirect,
            then: Then::Continue,
            truncate: Some(96),
            sample: Some(Sample { one_in: 10, by: SampleBy::Packet }),
            tag: Some(0),
            idle_s: 3,
            hard_s: u32::MAX,
            mirror: Some("eth3".to_owned()),
            to: Some("eth2".to_owned()),
        };
        let fields = ExactFields {
            dst: Some("2001:db8::1".parse().unwrap()),
            vlan: Some(ExactVlan::Id(0)),
            ..ExactFields::default()
        };
        let few = ExactRule::new(8, fields, Action::Drop);
        let egress_devices = ["eth1", "eth2", "eth3"].map(str::to_owned);
        for one in [all, few] {
            let (key, (_, value)) = (key(&one.fields, 5), one.entry(99, &egress_devices));
            assert_eq!(rule(&key, &value, &egress_devices), one);
            assert_eq!(epoch_of(&key), 5);
            assert_eq!(key.shape & FIELDS, one.fields.shape().0);
            assert!(!is_made(&value));
        }
    }

    #[test]
    fn a_rule_for_both_ways_has_another_key() {
        let one_way = ExactFields {
            src: Some("192.0.2.1".parse().unwrap()),
            dst: Some("192.0.2.2".parse().unwrap()),
            src_port: Some(1024),
            dst_port: Some(53),
            ..ExactFields::default()
        };
        assert_eq!(turned(&key(&one_way, 1)), None);
        let both = ExactFields { both_ways: true, ..one_way };
        assert_eq!(turned(&key(&ExactFields { src_port: None, ..both }, 1)), None, "it has one key");
        let back = turned(&key(&both, 1)).unwrap();
        assert_eq!((back.dst, back.src_port), (key(&both, 1).src, 53u16.to_be()));
        assert_eq!(turned(&back), Some(key(&both, 1)));
        let same = ExactFields { src: both.src, dst: both.src, both_ways: true, ..ExactFields::default() };
        assert_eq!(turned(&key(&same, 1)), None, "whichever way it goes");
    }

    #[test]
    fn epochs_go_round_and_leave_the_fields_alone() {
        assert_eq!(after(EPOCHS - 1), 0);
        assert_eq!(in_epoch(in_epoch(0x1ff, 3), EPOCHS - 1) & FIELDS, 0x1ff);
    }

    #[test]
    fn a_rule_ends_when_its_time_has_come_and_not_before() {
        let second = 1_000_000_000;
        let idle = ExactValue { made_ns: 5, idle_s: 2, ..ExactValue::default() };
        assert!(!has_expired(&idle, 4 + 2 * second) && has_expired(&idle, 5 + 2 * second));
        let hit = ExactValue { last_ns: second, ..idle };
        assert!(!has_expired(&hit, 3 * second - 1) && has_expired(&hit, 3 * second));
        let hard = ExactValue { made_ns: 5, last_ns: 9 * second, hard_s: 1, ..ExactValue::default() };
        assert!(!has_expired(&hard, second) && has_expired(&hard, second + 5));
        assert!(!has_expired(&ExactValue::default(), u64::MAX), "one without an age stays");
        assert!(!has_expired(&idle, 0), "a clock that is behind");
    }
}
