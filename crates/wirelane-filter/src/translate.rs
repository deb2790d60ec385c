//! Translates classic BPF, which libpcap generates, to the steps of `bpf/lib/filter.h`, one to one.
//!
//! Only where a program reads memory that it has not written on every way there are steps before them, which put 0 into
//! it: libpcap makes such programs (of `geneve 1 and udp or tcp`, for instance), whose verdict is by chance in its own
//! interpreter, and would be by the packet before in the kernel.
//!
//! Classic BPF is as the kernel's Documentation/networking/filter.rst and libpcap's `pcap/bpf.h` have it.

use wirelane_bpf::filter::{MAX_STEPS, MEMORY, Step, op};

/// One instruction of classic BPF, laid out as `struct bpf_insn` of pcap/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Classic {
    /// What it does.
    pub code: u16,
    /// How many instructions a conditional jump steps over where the condition holds.
    pub jt: u8,
    /// The same where it does not.
    pub jf: u8,
    /// Its operand.
    pub k: u32,
}

// Parts of an instruction's code.
const CLASS: u16 = 0x07;
const LD: u16 = 0x00;
const LDX: u16 = 0x01;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const RET: u16 = 0x06;
const MISC: u16 = 0x07;
const SIZE: u16 = 0x18;
const MODE: u16 = 0xe0;
const IMM: u16 = 0x00;
const ABS: u16 = 0x20;
const IND: u16 = 0x40;
const MEM: u16 = 0x60;
const LEN: u16 = 0x80;
const MSH: u16 = 0xa0;
const OPERATION: u16 = 0xf0;
const WITH_X: u16 = 0x08;
const RET_FROM: u16 = 0x18;
const RET_K: u16 = 0x00;
const RET_A: u16 = 0x10;
const TXA: u16 = 0x80;

/// Offsets from here on are not the packet's: Linux answers loads there with what it knows beside it
/// (`SKF_AD_OFF` in linux/filter.h). In files they are nowhere, and neither are others that are as large.
const BESIDE: u32 = 0xffff_f000;
/// Where they end (`SKF_AD_MAX`).
const BESIDE_END: u32 = BESIDE + 64;
/// Which way the packet goes (`SKF_AD_PKTTYPE`).
const DIRECTION: u32 = BESIDE + 4;
/// The number of the device (`SKF_AD_IFINDEX`).
const DEVICE: u32 = BESIDE + 8;

/// Translates a program. `live`: of a capture on devices, where packets have a direction.
///
/// # Errors
/// What cannot be expressed, in words that follow the expression.
pub(super) fn translate(program: &[Classic], live: bool) -> Result<Vec<Step>, String> {
    let cleared = read_unwritten(program);
    let count = cleared.count_ones() as usize + program.len();
    if count > MAX_STEPS {
        return Err(format!("it takes {count} steps, and there is room for {MAX_STEPS}"));
    }
    // The accumulator is 0 at the start.
    let clear = (0..MEMORY).filter(|word| cleared & (1 << word) != 0);
    let clear = clear.map(|value| Ok(Step { op: op::KEEP_A, yes: 1, no: 1, value, ..Step::default() }));
    let steps = program.iter().enumerate().map(|(at, classic)| step(*classic, program.len() - at, live));
    clear.chain(steps).collect()
}

/// The words of memory, a bit each, that a program reads on some way on which it has not written them (as
/// `check_load_and_stores()` of Linux's net/core/filter.c finds them).
pub(super) fn read_unwritten(program: &[Classic]) -> u16 {
    let mut found = 0;
    // What is written on every way that leads to an instruction.
    let mut written = vec![u16::MAX; program.len()];
    if let Some(first) = written.first_mut() {
        *first = 0;
    }
    for (at, &Classic { code, jt, jf, k }) in program.iter().enumerate() {
        let mut here = written[at];
        let word = 1u16.checked_shl(k).unwrap_or(0);
        match code & CLASS {
            ST | STX => here |= word,
            LD | LDX if code & MODE == MEM => found |= word & !here,
            _ => {}
        }
        let mut lead = |by: u32| {
            if let Some(next) = written.get_mut(at.saturating_add(1).saturating_add(by as usize)) {
                *next &= here;
            }
        };
        match code & CLASS {
            JMP if code & OPERATION == 0 => lead(k),
            JMP => {
                lead(jt.into());
                lead(jf.into());
            }
            RET => {}
            _ => lead(0),
        }
    }
    found
}

/// `left`: instructions from this one to the end.
fn step(classic: Classic, left: usize, live: bool) -> Result<Step, String> {
    let Classic { code, jt, jf, k } = classic;
    let unknown = || format!("libpcap made an instruction of it that is not known here: {code:#06x} {k:#x}");
    let plain = |op: u8| Step { op, yes: 1, no: 1, value: k, ..Step::default() };
    let memory = |op: u8| if k < MEMORY { Ok(plain(op)) } else { Err(unknown()) };
    let with_x = u8::from(code & WITH_X != 0);
    let forward = |by: u32| match u16::try_from(u64::from(by) + 1) {
        Ok(by) if usize::from(by) < left => Ok(by),
        _ => Err(unknown()),
    };
    Ok(match code & CLASS {
        LD => match code & MODE {
            ABS if live && (BESIDE..BESIDE_END).contains(&k) => beside(k)?,
            mode @ (ABS | IND) => {
                let size = match code & SIZE {
                    0x00 => 4,
                    0x08 => 2,
                    0x10 => 1,
                    _ => return Err(unknown()),
                };
                Step { size, with_x: u8::from(mode == IND), ..plain(op::LOAD) }
            }
            IMM => plain(op::A_IS),
            LEN => plain(op::A_LENGTH),
            MEM => memory(op::A_RECALL)?,
            _ => return Err(unknown()),
        },
        LDX => match code & MODE {
            MSH => plain(op::HEADER),
            IMM => plain(op::X_IS),
            LEN => plain(op::X_LENGTH),
            MEM => memory(op::X_RECALL)?,
            _ => return Err(unknown()),
        },
        ST => memory(op::KEEP_A)?,
        STX => memory(op::KEEP_X)?,
        ALU => {
            let op = match code & OPERATION {
                0x00 => op::ADD,
                0x10 => op::SUBTRACT,
                0x20 => op::MULTIPLY,
                0x30 => op::DIVIDE,
                0x40 => op::OR,
                0x50 => op::AND,
                0x60 => op::LEFT,
                0x70 => op::RIGHT,
                0x80 => op::NEGATE,
                0x90 => op::MODULO,
                0xa0 => op::XOR,
                _ => return Err(unknown()),
            };
            Step { with_x, ..plain(op) }
        }
        JMP => {
            let op = match code & OPERATION {
                0x00 => {
                    if (k as i32) < 0 {
                        return Err("protochain takes a loop, which a filter here cannot have".into());
                    }
                    let by = forward(k)?;
                    return Ok(Step { yes: by, no: by, ..plain(op::GO) });
                }
                0x10 => op::EQUAL,
                0x20 => op::GREATER,
                0x30 => op::AT_LEAST,
                0x40 => op::SOME_BIT,
                _ => return Err(unknown()),
            };
            Step { with_x, yes: forward(jt.into())?, no: forward(jf.into())?, ..plain(op) }
        }
        RET => match code & RET_FROM {
            RET_K if k == 0 => plain(op::REFUSE),
            RET_K => plain(op::ACCEPT),
            RET_A => plain(op::IF_A),
            _ => return Err(unknown()),
        },
        MISC if code & TXA != 0 => Step { with_x: 1, ..plain(op::A_IS) },
        MISC => plain(op::X_IS_A),
        _ => return Err(unknown()),
    })
}

/// A load of what Linux knows beside the packet.
fn beside(k: u32) -> Result<Step, String> {
    match k {
        DIRECTION => Ok(Step { op: op::A_DIRECTION, yes: 1, no: 1, ..Step::default() }),
        DEVICE => Err("ifindex is not known here: name the device with -i instead".into()),
        _ => Err(format!(
            "it asks the kernel for something beside the packet ({}) that is not known here",
            k.wrapping_sub(BESIDE)
        )),
    }
}
