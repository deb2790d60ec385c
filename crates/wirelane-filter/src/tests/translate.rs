//! Each instruction of classic BPF as a step, and instructions that cannot be translated. The effect of steps is
//! compared with libpcap's interpreter for the same instructions.

use wirelane_bpf::filter::{MAX_STEPS, Step, op};
use wirelane_bpf::native;

use super::super::translate::{Classic, translate};
use super::super::{Filter, Origin, libpcap};
use super::Dice;
use crate::Error;
use wirelane_bpf::linktype;

const fn classic(code: u16, jt: u8, jf: u8, k: u32) -> Classic {
    Classic { code, jt, jf, k }
}

const ACCEPT: Classic = classic(0x06, 0, 0, 262_144);
const REFUSE: Classic = classic(0x06, 0, 0, 0);

/// Translates one instruction that is followed by two more.
fn one(instruction: Classic, live: bool) -> Result<Step, String> {
    // After the steps that clear the memory that it reads.
    translate(&[instruction, ACCEPT, REFUSE], live).map(|steps| steps[steps.len() - 3])
}

#[test]
fn each_instruction_is_one_step() {
    let step = |op, with_x, size, value| Step { op, with_x, size, yes: 1, no: 1, value, ..Step::default() };
    let cases = [
        // Codes as in bpf_image() of libpcap and in Documentation/networking/filter.rst.
        (classic(0x20, 0, 0, 12), step(op::LOAD, 0, 4, 12)),
        (classic(0x28, 0, 0, 12), step(op::LOAD, 0, 2, 12)),
        (classic(0x30, 0, 0, 12), step(op::LOAD, 0, 1, 12)),
        (classic(0x40, 0, 0, 12), step(op::LOAD, 1, 4, 12)),
        (classic(0x48, 0, 0, 12), step(op::LOAD, 1, 2, 12)),
        (classic(0x50, 0, 0, 12), step(op::LOAD, 1, 1, 12)),
        (classic(0xb1, 0, 0, 14), step(op::HEADER, 0, 0, 14)),
        (classic(0x00, 0, 0, 7), step(op::A_IS, 0, 0, 7)),
        (classic(0x80, 0, 0, 0), step(op::A_LENGTH, 0, 0, 0)),
        (classic(0x60, 0, 0, 15), step(op::A_RECALL, 0, 0, 15)),
        (classic(0x01, 0, 0, 7), step(op::X_IS, 0, 0, 7)),
        (classic(0x81, 0, 0, 0), step(op::X_LENGTH, 0, 0, 0)),
        (classic(0x61, 0, 0, 3), step(op::X_RECALL, 0, 0, 3)),
        (classic(0x02, 0, 0, 3), step(op::KEEP_A, 0, 0, 3)),
        (classic(0x03, 0, 0, 3), step(op::KEEP_X, 0, 0, 3)),
        (classic(0x87, 0, 0, 0), step(op::A_IS, 1, 0, 0)),
        (classic(0x07, 0, 0, 0), step(op::X_IS_A, 0, 0, 0)),
        (classic(0x84, 0, 0, 0), step(op::NEGATE, 0, 0, 0)),
        (classic(0x06, 0, 0, 0), step(op::REFUSE, 0, 0, 0)),
        (classic(0x06, 0, 0, 1), step(op::ACCEPT, 0, 0, 1)),
        (classic(0x16, 0, 0, 0), step(op::IF_A, 0, 0, 0)),
    ];
    for (instruction, expected) in cases {
        assert_eq!(one(instruction, false), Ok(expected), "{instruction:?}");
        assert_eq!(one(instruction, true), Ok(expected), "{instruction:?}");
    }
    let arithmetic = [
        (0x00, op::ADD),
        (0x10, op::SUBTRACT),
        (0x20, op::MULTIPLY),
        (0x30, op::DIVIDE),
        (0x40, op::OR),
        (0x50, op::AND),
        (0x60, op::LEFT),
        (0x70, op::RIGHT),
        (0x90, op::MODULO),
        (0xa0, op::XOR),
    ];
    for (code, op) in arithmetic {
        assert_eq!(one(classic(0x04 | code, 0, 0, 9), false), Ok(step(op, 0, 0, 9)));
        assert_eq!(one(classic(0x0c | code, 0, 0, 0), false), Ok(step(op, 1, 0, 0)));
    }
    let jumps = [(0x10, op::EQUAL), (0x20, op::GREATER), (0x30, op::AT_LEAST), (0x40, op::SOME_BIT)];
    for (code, op) in jumps {
        let both = Step { yes: 1, no: 2, ..step(op, 0, 0, 9) };
        assert_eq!(one(classic(0x05 | code, 0, 1, 9), false), Ok(both));
        assert_eq!(one(classic(0x0d | code, 0, 1, 9), false), Ok(Step { with_x: 1, ..both }));
    }
    let go = Step { yes: 2, no: 2, ..step(op::GO, 0, 0, 1) };
    assert_eq!(one(classic(0x05, 0, 0, 1), false), Ok(go));
}

#[test]
fn what_linux_knows_beside_the_packet_is_asked_of_devices_only() {
    const BESIDE: u32 = 0xffff_f000;
    let direction = one(classic(0x28, 0, 0, BESIDE + 4), true).unwrap();
    assert_eq!((direction.op, direction.yes, direction.no), (op::A_DIRECTION, 1, 1));
    let device = one(classic(0x20, 0, 0, BESIDE + 8), true).unwrap_err();
    assert!(device.contains("ifindex is not known here"), "{device}");
    // The VLAN tag (SKF_AD_VLAN_TAG) and the rest: our packets contain their tags.
    for other in [0, 12, 16, 20, 44, 48, 52, 56, 60, 63] {
        let reason = one(classic(0x20, 0, 0, BESIDE + other), true).unwrap_err();
        assert!(reason.contains(&format!("beside the packet ({other})")), "{reason}");
    }
    // In files, and after the end of the ancillary data, these are ordinary offsets outside of any packet.
    for (offset, live) in [(BESIDE + 4, false), (BESIDE + 8, false), (BESIDE + 64, true), (BESIDE - 1, true)]
    {
        let steps = translate(&[classic(0x20, 0, 0, offset), ACCEPT], live).unwrap();
        assert_eq!(steps[0].op, op::LOAD);
        assert!(!native::filter(&steps, &[0; 1500], 1500, true));
    }
}

#[test]
fn what_is_not_classic_bpf_is_refused() {
    let unknown = [
        classic(0x38, 0, 0, 12), // a load of eight bytes
        classic(0xa0, 0, 0, 12), // ld with MSH
        classic(0xe0, 0, 0, 0),  // a mode that is none
        classic(0x21, 0, 0, 0),  // ldx with ABS
        classic(0x60, 0, 0, 16), // memory that is not there
        classic(0x61, 0, 0, 16),
        classic(0x02, 0, 0, 16),
        classic(0x03, 0, 0, u32::MAX),
        classic(0xb4, 0, 0, 1), // arithmetic that is none
        classic(0x55, 0, 0, 1), // a jump that is none
        classic(0x15, 2, 0, 1), // jumps to behind the end
        classic(0x15, 0, 2, 1),
        classic(0x15, 255, 255, 1),
        classic(0x05, 0, 0, 2),
        classic(0x05, 0, 0, 0x7fff_ffff),
        classic(0x0e, 0, 0, 0), // returns x
    ];
    for instruction in unknown {
        let reason = one(instruction, true).unwrap_err();
        assert!(reason.contains("not known here"), "{instruction:?}: {reason}");
    }
    // A backward jump is libpcap's protochain.
    for back in [u32::MAX, 0x8000_0000] {
        let reason = one(classic(0x05, 0, 0, back), true).unwrap_err();
        assert!(reason.contains("protochain takes a loop"), "{reason}");
    }
}

#[test]
fn there_is_room_for_so_many_steps_and_no_more() {
    let load = classic(0x28, 0, 0, 12);
    let mut program = vec![load; MAX_STEPS - 1];
    program.push(ACCEPT);
    let steps = translate(&program, true).unwrap();
    assert_eq!(steps.len(), MAX_STEPS);
    assert!(native::filter(&steps, &[0; 60], 60, false), "all of them are walked");
    program.push(ACCEPT);
    let reason = translate(&program, true).unwrap_err();
    assert_eq!(reason, "it takes 4097 steps, and there is room for 4096");
}

/// A read of memory that was not written on every path returns 0, not data of an earlier packet.
#[test]
fn memory_is_zero_where_it_was_not_written() {
    let write = classic(0x02, 0, 0, 3);
    let read = classic(0x60, 0, 0, 3);
    // Read immediately; written on one of two paths; written on both.
    let program = |between: [Classic; 2]| {
        let [first, second] = between;
        [classic(0x30, 0, 0, 0), classic(0x15, 0, 2, 1), first, classic(0x05, 0, 0, 1), second, read, ACCEPT]
    };
    let none = classic(0x07, 0, 0, 0);
    for (program, cleared) in [
        (&[read, ACCEPT][..], true),
        (&program([write, none]), true),
        (&program([none, write]), true),
        (&program([none, none]), true),
        (&program([write, write]), false),
        (&[write, read, ACCEPT], false),
        (&[ACCEPT, read, ACCEPT], false),
    ] {
        let steps = translate(program, true).unwrap();
        assert_eq!(steps.len(), program.len() + usize::from(cleared), "{program:?}");
        if cleared {
            assert_eq!(steps[0], Step { op: op::KEEP_A, yes: 1, no: 1, value: 3, ..Step::default() });
        }
    }
    // An expression for which libpcap generates such a program.
    let filter = Filter::compile("geneve 1 and udp or ip[0] = 1", linktype::ETHERNET).unwrap();
    assert_eq!((filter.steps()[0].op, filter.steps()[0].yes), (op::KEEP_A, 1));
    // The maximum number of additional steps.
    let mut long = vec![read; MAX_STEPS - 1];
    long.push(ACCEPT);
    assert!(translate(&long, true).unwrap_err().starts_with("it takes 4097 steps"));
}

/// Expressions that libpcap compiles and that cannot be translated.
#[test]
fn expressions_that_cannot_be_translated_say_why() {
    let cases = [
        ("ip6 protochain 6", "protochain takes a loop"),
        ("tcp and protochain \\udp", "protochain takes a loop"),
        ("ifindex 2", "ifindex is not known here: name the device with -i"),
    ];
    for (expression, expected) in cases {
        let error = Filter::of(expression, linktype::ETHERNET, Origin::Live).unwrap_err();
        let Error { reason, at, .. } = &error;
        assert!(reason.contains(expected), "{expression}: {reason}");
        assert!(*at <= expression.len());
    }
}

/// Bytes that partly look like a packet.
fn packet(dice: &mut Dice) -> Vec<u8> {
    let length = *dice.pick(&[0, 1, 2, 3, 14, 20, 34, 60, 61, 64, 128, 300]);
    (0..length).map(|_| if dice.once_in(2) { dice.below(8) as u8 } else { dice.next() as u8 }).collect()
}

/// A valid program for libpcap's interpreter: jumps lead forward and stay within it, memory exists, no division by a
/// constant 0 or shift by a constant above 31, and the last instruction is a return.
fn program(dice: &mut Dice) -> Vec<Classic> {
    let length = 1 + dice.below(40);
    let mut program: Vec<Classic> = (0..length)
        .map(|at| {
            let left = length - at;
            let jump = |dice: &mut Dice| dice.below(left.min(6)) as u8;
            let offset = |dice: &mut Dice| if dice.once_in(16) { dice.word() } else { dice.below(64) as u32 };
            match dice.below(20) {
                0..=2 => classic(*dice.pick(&[0x20, 0x28, 0x30]), 0, 0, offset(dice)),
                3..=4 => classic(*dice.pick(&[0x40, 0x48, 0x50]), 0, 0, offset(dice)),
                5 => classic(0xb1, 0, 0, offset(dice)),
                6 => classic(*dice.pick(&[0x00, 0x01]), 0, 0, dice.word()),
                7 => classic(*dice.pick(&[0x80, 0x81, 0x87, 0x07, 0x84]), 0, 0, 0),
                8..=9 => classic(*dice.pick(&[0x60, 0x61, 0x02, 0x03]), 0, 0, dice.below(16) as u32),
                10..=11 => {
                    let operation = *dice.pick(&[0x00, 0x10, 0x20, 0x40, 0x50, 0xa0]);
                    classic(0x04 | operation | *dice.pick(&[0, 8]), 0, 0, dice.word())
                }
                12 => classic(*dice.pick(&[0x34, 0x94]), 0, 0, dice.word().max(1)),
                13 => classic(*dice.pick(&[0x64, 0x74]), 0, 0, dice.below(32) as u32),
                14 => classic(*dice.pick(&[0x3c, 0x9c, 0x6c, 0x7c]), 0, 0, 0),
                15 => classic(0x05, 0, 0, u32::from(jump(dice))),
                16..=18 => {
                    let code = *dice.pick(&[0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d]);
                    classic(code, jump(dice), jump(dice), dice.word())
                }
                _ if dice.once_in(3) => *dice.pick(&[ACCEPT, REFUSE, classic(0x16, 0, 0, 0)]),
                _ => classic(0x50, 0, 0, dice.below(8) as u32),
            }
        })
        .collect();
    program.push(*dice.pick(&[ACCEPT, ACCEPT, REFUSE, classic(0x16, 0, 0, 0)]));
    program
}

/// Far more programs than libpcap's compiler generates.
#[test]
fn any_program_of_classic_bpf_has_libpcaps_verdict() {
    let mut dice = Dice(41);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..30_000 {
        let program = program(&mut dice);
        let steps = translate(&program, false).unwrap_or_else(|reason| panic!("{program:?}: {reason}"));
        let program = libpcap::oracle::defined(&program);
        assert_eq!(steps.len(), program.len());
        for _ in 0..4 {
            let packet = packet(&mut dice);
            let wire_len = packet.len() as u32 + dice.below(3) as u32 * 700;
            let expected = libpcap::oracle::accepts(&program, &packet, wire_len);
            let verdict = native::filter(&steps, &packet, wire_len, false);
            assert_eq!(verdict, expected, "{program:?} {packet:?} {wire_len}: right is libpcap");
            if expected { accepted += 1 } else { refused += 1 }
        }
    }
    println!("{accepted} accepted, {refused} refused, each as by libpcap");
    assert!(accepted > 20_000 && refused > 20_000);
}
