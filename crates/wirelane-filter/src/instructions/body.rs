//! One filter for one kind of packet.
//!
//! R8 is the accumulator and R9 the index. R6 and R7 are the first byte of the packet's linear part and the end of it.
//! Parameters stay in R1 (context), R3 (length) and R4 (direction) in [`Kind::Fast`], which calls the helper at misses
//! only; otherwise they are on the stack.

use wirelane_bpf::filter::{MEMORY, Step, op};

use super::Context;
use super::assemble::{
    Assembly, FRAME, Label, Operand, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg, Width, alu, jump,
};

/// Offsets up to here are read from the linear part.
const LINEAR: u32 = 0x3fff;
/// Loads at fixed offsets that end up to here are checked together, once for each packet.
const HEAD: u32 = 256;
/// Bytes before a tag, and end of the tag (`WL_MACS`, `WL_PUT_BACK`).
const TAG: u32 = 12;
const TAG_END: u32 = 16;

// Stack, relative to its end.
const CONTEXT: i16 = -8;
const LENGTH: i16 = -16;
const DIRECTION: i16 = -24;
const TAG_BYTES: i16 = -32;
const LOADED: i16 = -40;
const AT: i16 = -48;
const BYTES: i16 = -56;
const WORDS: i16 = -60;

/// Which packets a body is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first `head` bytes are in the linear part, and no tag is put back.
    Fast { head: u32 },
    /// No tag is put back.
    Loads,
    /// A tag is put back: what follows it is 4 bytes further in the packet than in memory.
    Tagged,
}

/// The continuation of a step.
enum Flow {
    End,
    To(usize, usize),
}

/// Whether a load from here fails for every packet: none has 2 GiB.
fn outside(step: &Step) -> bool {
    u64::from(step.value) + u64::from(size(step)) > i32::MAX as u64
}

fn size(step: &Step) -> u32 {
    if step.op == op::HEADER { 1 } else { step.size.into() }
}

fn flow(steps: &[Step], at: usize) -> Option<Flow> {
    let step = &steps[at];
    let divides = matches!(step.op, op::DIVIDE | op::MODULO);
    Some(match step.op {
        op::REFUSE | op::ACCEPT | op::IF_A => Flow::End,
        op::LOAD if !matches!(step.size, 1 | 2 | 4) => return None,
        // Words of memory at an index: expressions have none.
        op::A_RECALL | op::X_RECALL | op::KEEP_A if step.with_x != 0 => return None,
        op::LOAD | op::HEADER if outside(step) => Flow::End,
        _ if divides && step.with_x == 0 && step.value == 0 => Flow::End,
        op::EQUAL..=op::SOME_BIT => Flow::To(at + usize::from(step.yes), at + usize::from(step.no)),
        op::LOAD..=op::GO => Flow::To(at + usize::from(step.yes), at + usize::from(step.yes)),
        _ => Flow::End,
    })
}

/// Steps that a packet can reach: the kernel refuses code that cannot be reached.
pub(super) struct Reachable(Vec<bool>);

impl Reachable {
    /// `None`: a step leads back or out of the filter, has an invalid size, or an operand that expressions never have.
    pub(super) fn of(steps: &[Step]) -> Option<Reachable> {
        let mut reached = vec![false; steps.len()];
        *reached.first_mut()? = true;
        for at in 0..steps.len() {
            if !reached[at] {
                continue;
            }
            if let Flow::To(yes, no) = flow(steps, at)? {
                for to in [yes, no] {
                    if to <= at {
                        return None;
                    }
                    *reached.get_mut(to)? = true;
                }
            }
        }
        Some(Reachable(reached))
    }

    fn steps<'a>(&self, steps: &'a [Step]) -> impl Iterator<Item = (usize, &'a Step)> {
        let reached = self.0.clone();
        steps.iter().enumerate().filter(move |(at, _)| reached[*at])
    }

    /// Bytes that loads at fixed offsets need, up to [`HEAD`].
    pub(super) fn head(&self, steps: &[Step]) -> u32 {
        let fixed = self.steps(steps).filter(|(_, step)| {
            matches!(step.op, op::LOAD | op::HEADER) && step.with_x == 0 && !outside(step)
        });
        fixed.map(|(_, step)| step.value + size(step)).filter(|end| *end <= HEAD).max().unwrap_or(0)
    }
}

/// A load that has left the fast path.
struct Miss {
    from: Label,
    back: Label,
    to: Reg,
    size: u32,
    /// The offset; `None`: it is in R2, and not compared with the length yet.
    at: Option<u32>,
}

pub(super) struct Body<'a> {
    code: &'a mut Assembly,
    context: Context,
    kind: Kind,
    refuse: Label,
    misses: Vec<Miss>,
}

impl<'a> Body<'a> {
    pub(super) fn new(code: &'a mut Assembly, context: Context, kind: Kind) -> Body<'a> {
        let refuse = code.label();
        Body { code, context, kind, refuse, misses: Vec::new() }
    }

    /// Emits the filter. Registers and stack are as the function's start left them.
    pub(super) fn emit(mut self, steps: &[Step], reachable: &Reachable) {
        self.code.set(R3, Operand::Of(R3));
        if !matches!(self.kind, Kind::Fast { .. }) {
            self.code.store(8, FRAME, CONTEXT, R1);
            self.code.store(8, FRAME, LENGTH, R3);
            self.code.store(8, FRAME, DIRECTION, R4);
            self.code.store(4, FRAME, TAG_BYTES, R5);
        }
        self.code.set(R8, Operand::Is(0));
        self.code.set(R9, Operand::Is(0));
        let labels: Vec<Label> = steps.iter().map(|_| self.code.label()).collect();
        for (at, step) in reachable.steps(steps) {
            self.code.here(labels[at]);
            self.step(step);
            let Some(Flow::To(yes, no)) = flow(steps, at) else { continue };
            self.go_on(step, at + 1, (yes, labels[yes]), (no, labels[no]));
        }
        for miss in std::mem::take(&mut self.misses) {
            self.code.here(miss.from);
            self.miss(&miss);
        }
        if self.code.is_used(self.refuse) {
            self.code.here(self.refuse);
            self.code.finish(0);
        }
    }

    fn go_on(&mut self, step: &Step, next: usize, yes: (usize, Label), no: (usize, Label)) {
        let other = if step.with_x != 0 { Operand::Of(R9) } else { Operand::Is(step.value) };
        let (comparison, negated) = match step.op {
            op::EQUAL => (jump::EQUAL, Some(jump::NOT_EQUAL)),
            op::GREATER => (jump::GREATER, Some(jump::AT_MOST)),
            op::AT_LEAST => (jump::AT_LEAST, Some(jump::LESS)),
            op::SOME_BIT => (jump::SOME_BIT, None),
            _ => {
                if yes.0 != next {
                    self.code.jump(yes.1);
                }
                return;
            }
        };
        match negated {
            _ if yes.0 == no.0 => {
                if yes.0 != next {
                    self.code.jump(yes.1);
                }
            }
            Some(negated) if yes.0 == next => self.code.jump_if(Width::Word, negated, R8, other, no.1),
            _ => {
                self.code.jump_if(Width::Word, comparison, R8, other, yes.1);
                if no.0 != next {
                    self.code.jump(no.1);
                }
            }
        }
    }

    /// Everything of a step except how it goes on.
    fn step(&mut self, step: &Step) {
        let value = if step.with_x != 0 { Operand::Of(R9) } else { Operand::Is(step.value) };
        let word = WORDS - 4 * (step.value & (MEMORY - 1)) as i16;
        match step.op {
            op::ACCEPT => self.code.finish(1),
            op::IF_A => {
                let nothing = self.code.label();
                self.code.set(R0, Operand::Is(0));
                self.code.jump_if(Width::Word, jump::EQUAL, R8, Operand::Is(0), nothing);
                self.code.set(R0, Operand::Is(1));
                self.code.here(nothing);
                self.code.leave();
            }
            op::LOAD | op::HEADER if outside(step) => self.code.finish(0),
            op::LOAD => self.packet(step, R8),
            op::HEADER => {
                self.packet(step, R9);
                self.code.operate(Width::Word, alu::AND, R9, Operand::Is(0xf));
                self.code.operate(Width::Word, alu::LEFT, R9, Operand::Is(2));
            }
            op::EQUAL..=op::SOME_BIT | op::GO => {}
            op::A_IS => self.code.set(R8, value),
            op::A_LENGTH => self.parameter(R8, R3, LENGTH),
            op::X_LENGTH => self.parameter(R9, R3, LENGTH),
            op::A_DIRECTION => self.parameter(R8, R4, DIRECTION),
            op::A_RECALL => self.code.load(4, R8, FRAME, word),
            op::X_RECALL => self.code.load(4, R9, FRAME, word),
            op::KEEP_A => self.code.store(4, FRAME, word, R8),
            op::KEEP_X => self.code.store(4, FRAME, word, R9),
            op::X_IS => self.code.set(R9, value),
            op::X_IS_A => self.code.set(R9, Operand::Of(R8)),
            op::ADD => self.code.operate(Width::Word, alu::ADD, R8, value),
            op::SUBTRACT => self.code.operate(Width::Word, alu::SUBTRACT, R8, value),
            op::MULTIPLY => self.code.operate(Width::Word, alu::MULTIPLY, R8, value),
            op::AND => self.code.operate(Width::Word, alu::AND, R8, value),
            op::OR => self.code.operate(Width::Word, alu::OR, R8, value),
            op::XOR => self.code.operate(Width::Word, alu::XOR, R8, value),
            op::NEGATE => self.code.operate(Width::Word, alu::NEGATE, R8, Operand::Is(0)),
            op::DIVIDE => self.divide(alu::DIVIDE, step),
            op::MODULO => self.divide(alu::MODULO, step),
            op::LEFT => self.shift(alu::LEFT, step),
            op::RIGHT => self.shift(alu::RIGHT, step),
            _ => self.code.finish(0),
        }
    }

    /// Copies a parameter that the fast path has in a register.
    fn parameter(&mut self, to: Reg, register: Reg, on_stack: i16) {
        match self.kind {
            Kind::Fast { .. } => self.code.set(to, Operand::Of(register)),
            _ => self.code.load(4, to, FRAME, on_stack),
        }
    }

    fn divide(&mut self, operation: u8, step: &Step) {
        if step.with_x != 0 {
            self.code.jump_if(Width::Word, jump::EQUAL, R9, Operand::Is(0), self.refuse);
            self.code.operate(Width::Word, operation, R8, Operand::Of(R9));
        } else if step.value == 0 {
            self.code.finish(0);
        } else {
            self.code.operate(Width::Word, operation, R8, Operand::Is(step.value));
        }
    }

    fn shift(&mut self, operation: u8, step: &Step) {
        if step.with_x != 0 {
            let (all, done) = (self.code.label(), self.code.label());
            self.code.jump_if(Width::Word, jump::GREATER, R9, Operand::Is(31), all);
            self.code.operate(Width::Word, operation, R8, Operand::Of(R9));
            self.code.jump(done);
            self.code.here(all);
            self.code.set(R8, Operand::Is(0));
            self.code.here(done);
        } else if step.value > 31 {
            self.code.set(R8, Operand::Is(0));
        } else {
            self.code.operate(Width::Word, operation, R8, Operand::Is(step.value));
        }
    }

    /// Loads bytes of the packet into `to`, or refuses the packet if it does not have them.
    fn packet(&mut self, step: &Step, to: Reg) {
        let (size, at, end) = (size(step), step.value, step.value + size(step));
        match (self.kind, step.with_x != 0) {
            (Kind::Fast { head }, false) if end <= head => {
                self.code.load(size, to, R6, at as i16);
                self.code.order_bytes(size, to);
            }
            (Kind::Fast { .. }, with_x) => self.linear(step, to, with_x),
            (Kind::Loads, false) => self.fixed(at, size, to),
            (Kind::Loads, true) => {
                self.offset(at, true);
                self.loaded(size, to);
            }
            (Kind::Tagged, false) if at >= TAG_END => self.fixed(at - (TAG_END - TAG), size, to),
            (Kind::Tagged, false) if end <= TAG => self.fixed(at, size, to),
            (Kind::Tagged, false) if at >= TAG && end <= TAG_END => {
                self.code.load(8, R3, FRAME, LENGTH);
                self.code.jump_if(Width::Double, jump::LESS, R3, Operand::Is(end), self.refuse);
                self.code.load(4, to, FRAME, TAG_BYTES);
                self.code.order_bytes(4, to);
                self.code.operate(Width::Word, alu::RIGHT, to, Operand::Is(8 * (TAG_END - end)));
                if size < 4 {
                    self.code.operate(Width::Word, alu::AND, to, Operand::Is((1 << (8 * size)) - 1));
                }
            }
            (Kind::Tagged, with_x) => {
                self.offset(at, with_x);
                if at >= TAG_END {
                    self.code.add(R2, Operand::Is((TAG_END - TAG).wrapping_neg()));
                    self.loaded(size, to);
                } else {
                    self.around_tag(size, to);
                }
            }
        }
    }

    /// R2 = the offset, which is compared with the length: greater ones are refused.
    fn offset(&mut self, at: u32, with_x: bool) {
        if with_x {
            self.code.set(R2, Operand::Of(R9));
            self.code.add(R2, Operand::Is(at));
        } else {
            self.code.set(R2, Operand::Is(at));
        }
        self.code.load(8, R3, FRAME, LENGTH);
        self.code.jump_if(Width::Double, jump::AT_LEAST, R2, Operand::Of(R3), self.refuse);
    }

    fn fixed(&mut self, at: u32, size: u32, to: Reg) {
        self.code.set(R2, Operand::Is(at));
        self.loaded(size, to);
    }

    /// Loads from the offset in R2 by the helper.
    fn loaded(&mut self, size: u32, to: Reg) {
        self.code.load(8, R1, FRAME, CONTEXT);
        self.help(size);
        self.code.jump_if(Width::Double, jump::NOT_EQUAL, R0, Operand::Is(0), self.refuse);
        self.code.load(size, to, FRAME, LOADED);
        self.code.order_bytes(size, to);
    }

    /// Calls the helper with the context in R1 and the offset in R2.
    fn help(&mut self, size: u32) {
        self.code.copy(R3, FRAME);
        self.code.add(R3, Operand::Is((LOADED as i32) as u32));
        self.code.set(R4, Operand::Is(size));
        self.code.call(self.context.helper());
    }

    /// Loads from the offset in R2 of a packet whose tag is put back, where the load may have bytes of the tag: byte by
    /// byte if it begins before the end of the tag.
    fn around_tag(&mut self, size: u32, to: Reg) {
        let (bytes, done) = (self.code.label(), self.code.label());
        self.code.jump_if(Width::Double, jump::LESS, R2, Operand::Is(TAG_END), bytes);
        self.code.add(R2, Operand::Is((TAG_END - TAG).wrapping_neg()));
        self.loaded(size, to);
        self.code.jump(done);
        self.code.here(bytes);
        self.code.store(8, FRAME, AT, R2);
        self.code.set(R0, Operand::Is(0));
        self.code.store(8, FRAME, BYTES, R0);
        for byte in 0..size {
            let (memory, in_tag, next) = (self.code.label(), self.code.label(), self.code.label());
            self.code.load(8, R2, FRAME, AT);
            self.code.add(R2, Operand::Is(byte));
            self.code.jump_if(Width::Double, jump::LESS, R2, Operand::Is(TAG), memory);
            self.code.jump_if(Width::Double, jump::LESS, R2, Operand::Is(TAG_END), in_tag);
            self.code.add(R2, Operand::Is((TAG_END - TAG).wrapping_neg()));
            self.code.here(memory);
            self.loaded(1, R0);
            self.code.jump(next);
            self.code.here(in_tag);
            self.code.load(8, R3, FRAME, LENGTH);
            self.code.jump_if(Width::Double, jump::AT_LEAST, R2, Operand::Of(R3), self.refuse);
            self.code.load(4, R0, FRAME, TAG_BYTES);
            self.code.add(R2, Operand::Is(TAG.wrapping_neg()));
            self.code.operate(Width::Double, alu::LEFT, R2, Operand::Is(3));
            self.code.operate(Width::Double, alu::RIGHT, R0, Operand::Of(R2));
            self.code.operate(Width::Double, alu::AND, R0, Operand::Is(0xff));
            self.code.here(next);
            self.code.load(8, R3, FRAME, BYTES);
            self.code.operate(Width::Double, alu::LEFT, R3, Operand::Is(8));
            self.code.operate(Width::Double, alu::OR, R3, Operand::Of(R0));
            self.code.store(8, FRAME, BYTES, R3);
        }
        self.code.load(8, to, FRAME, BYTES);
        self.code.here(done);
    }

    /// Loads from the linear part, or by the helper where it does not have the bytes.
    fn linear(&mut self, step: &Step, to: Reg, with_x: bool) {
        let (size, at) = (size(step), step.value);
        let (from, back) = (self.code.label(), self.code.label());
        self.code.set(R2, if with_x { Operand::Of(R9) } else { Operand::Is(at) });
        if with_x {
            self.code.add(R2, Operand::Is(at));
        }
        self.code.jump_if(Width::Double, jump::GREATER, R2, Operand::Is(LINEAR), from);
        self.code.copy(R0, R6);
        self.code.add(R0, Operand::Of(R2));
        self.code.copy(R5, R0);
        self.code.add(R5, Operand::Is(size));
        self.code.jump_if(Width::Double, jump::GREATER, R5, Operand::Of(R7), from);
        self.code.load(size, to, R0, 0);
        self.code.order_bytes(size, to);
        self.code.here(back);
        self.misses.push(Miss { from, back, to, size, at: (!with_x).then_some(at) });
    }

    fn miss(&mut self, miss: &Miss) {
        if let Some(at) = miss.at {
            self.code.set(R2, Operand::Is(at));
        }
        self.code.jump_if(Width::Double, jump::AT_LEAST, R2, Operand::Of(R3), self.refuse);
        self.code.store(8, FRAME, CONTEXT, R1);
        self.code.store(8, FRAME, LENGTH, R3);
        self.code.store(8, FRAME, DIRECTION, R4);
        self.help(miss.size);
        self.code.load(8, R1, FRAME, CONTEXT);
        self.code.load(8, R3, FRAME, LENGTH);
        self.code.load(8, R4, FRAME, DIRECTION);
        self.code.jump_if(Width::Double, jump::NOT_EQUAL, R0, Operand::Is(0), self.refuse);
        self.code.load(miss.size, miss.to, FRAME, LOADED);
        self.code.order_bytes(miss.size, miss.to);
        self.code.jump(miss.back);
    }
}
