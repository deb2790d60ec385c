//! Any packet and any steps result in a verdict, without reads outside of the packet.

use wirelane_bpf::filter::{Step, op};
use wirelane_bpf::native;

use super::super::{Filter, Origin, libpcap};
use super::Dice;
use wirelane_bpf::linktype;

/// Expressions that read far into packets, by lengths in the packets.
const DEEP: &[&str] = &[
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "ip6 and tcp port 443 or ip6[ip6[4:2]] = 1",
    "vlan and vlan and ip and udp port 53",
    "mpls and mpls and host 10.0.0.1",
    "pppoes and ip6 and tcp",
    "geneve and ip and icmp",
    "ip[ip[ip[ip[0]]]] > 5 or len / ip[8] > 3",
    "ether[0xffffffff:4] = 0 or ether[0xfffffffc:1] = 1 or link[len:4] = 0",
    "isis or iso or atalk or ipx or netbeui or stp",
    "sctp portrange 1-5000 or icmp6[icmp6type] = icmp6-echo",
];

fn compiled(expression: &str) -> (Filter, Vec<super::super::translate::Classic>) {
    let text = std::ffi::CString::new(expression).unwrap();
    let classic = libpcap::compile(&text, linktype::ETHERNET, Origin::File).expect(expression);
    let filter = Filter::try_of(expression, linktype::ETHERNET, Origin::File).expect(expression);
    (filter, libpcap::oracle::defined(&classic))
}

/// An Ethernet frame that most of these expressions read far into.
fn frame(dice: &mut Dice) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..12).map(|_| dice.next() as u8).collect();
    for _ in 0..dice.below(3) {
        frame.extend(dice.pick(&[[0x81, 0, 0, 7], [0x88, 0xa8, 1, 0], [0x91, 0, 0, 1]]));
    }
    let kind: [u8; 2] = *dice.pick(&[[8, 0], [0x86, 0xdd], [0x88, 0x47], [0x88, 0x64], [8, 6], [0, 40]]);
    frame.extend(kind);
    let starts: [&[u8]; 7] = [
        &[0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6],
        &[0x4f, 0, 0xff, 0xff, 0, 0, 0x1f, 0xff, 0, 17],
        &[0x60, 0, 0, 0, 0xff, 0xff, 6, 64],
        &[0, 0x10, 0x11, 0x40, 0x45, 0],
        &[0x11, 0, 0, 7, 0, 60, 0, 0x21, 0x45],
        &[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b],
        &[0xfe, 0xfe, 3, 0x83],
    ];
    frame.extend(*dice.pick(&starts));
    let rest = dice.below(120);
    frame.extend((0..rest).map(|_| dice.next() as u8));
    frame
}

#[test]
fn cut_packets_and_lengths_that_lie_have_libpcaps_verdict() {
    let filters: Vec<_> = DEEP.iter().map(|expression| compiled(expression)).collect();
    let mut dice = Dice(7);
    let mut verdicts = 0;
    for _ in 0..400 {
        let whole = frame(&mut dice);
        for length in 0..=whole.len() {
            // In an allocation of its own size, so that a memory checker detects a read beyond its end.
            let cut: Box<[u8]> = whole[..length].into();
            let wire_len = *dice.pick(&[whole.len() as u32, length as u32, 0, u32::MAX]);
            let at = dice.below(filters.len());
            let (ours, classic) = &filters[at];
            let expected = libpcap::oracle::accepts(classic, &cut, wire_len);
            assert_eq!(ours.accepts(&cut, wire_len, false), expected, "{:?}: {cut:02x?}", DEEP[at]);
            verdicts += 1;
        }
    }
    assert!(verdicts > 20_000, "{verdicts}");
}

/// A captured length of 0, which is common in some files.
#[test]
fn a_packet_without_bytes_is_evaluated_by_its_length() {
    let accepts = |expression, wire_len| compiled(expression).0.accepts(&[], wire_len, false);
    assert!(accepts("len > 1000", 1500) && !accepts("len > 1000", 60));
    assert!(accepts("not tcp", 60) != accepts("not not tcp", 60) || !accepts("tcp", 60));
    assert!(!accepts("ether[0] = 0", 60) && !accepts("not ether[0] = 0", 60), "a load that fails refuses");
}

/// Steps that no translator generates: any bytes that another process may have written where an instance keeps filters.
/// Battery: I8
#[test]
fn any_steps_end_in_a_verdict() {
    let mut dice = Dice(99);
    let packet: Box<[u8]> = (0..200).map(|_| dice.next() as u8).collect();
    let mut verdicts = [0u64; 2];
    for round in 0..200_000 {
        let count = dice.below(60);
        let steps: Vec<Step> = (0..count)
            .map(|_| Step {
                op: if round % 4 == 0 { dice.next() as u8 } else { dice.below(31) as u8 },
                with_x: if dice.once_in(8) { dice.next() as u8 } else { dice.below(2) as u8 },
                size: if dice.once_in(8) { dice.next() as u8 } else { *dice.pick(&[1, 2, 4]) },
                yes: if dice.once_in(8) { dice.next() as u16 } else { dice.below(4) as u16 },
                no: if dice.once_in(8) { dice.next() as u16 } else { dice.below(4) as u16 },
                value: dice.word(),
                ..Step::default()
            })
            .collect();
        let wire_len = dice.word();
        let outgoing = dice.once_in(2);
        let verdict = native::filter(&steps, &packet[..dice.below(200)], wire_len, outgoing);
        verdicts[usize::from(verdict)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 1000), "{verdicts:?}");
}

#[test]
fn what_leads_nowhere_refuses() {
    let accept = Step { op: op::ACCEPT, yes: 1, no: 1, ..Step::default() };
    let go = |by| Step { op: op::GO, yes: by, no: by, ..Step::default() };
    let evaluated = |steps: &[Step]| native::filter(steps, &[0; 64], 64, false);
    assert!(
        evaluated(&[accept]) && evaluated(&[go(1), accept]) && evaluated(&[go(2), Step::default(), accept])
    );
    // No steps, a step that goes nowhere, one beyond the end, and no end.
    assert!(!evaluated(&[]));
    assert!(!evaluated(&[go(0), accept]));
    assert!(!evaluated(&[go(2), accept]) && !evaluated(&[go(65535), accept]));
    assert!(!evaluated(&[go(1), go(1)]));
}
