//! eBPF instructions and jumps to labels (the kernel's Documentation/bpf/standardization/instruction-set.rst).

/// An instruction as the kernel reads it (`struct bpf_insn`).
pub(super) type Bytes = [u8; 8];

/// A register.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reg(pub(super) u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R5: Reg = Reg(5);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const FRAME: Reg = Reg(10);

/// Second operand.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    /// A number, of which 64-bit operations extend the sign.
    Is(u32),
    Of(Reg),
}

/// Operations of both widths (`BPF_ADD` and so on).
pub(super) mod alu {
    pub(in super::super) const ADD: u8 = 0x00;
    pub(in super::super) const SUBTRACT: u8 = 0x10;
    pub(in super::super) const MULTIPLY: u8 = 0x20;
    pub(in super::super) const DIVIDE: u8 = 0x30;
    pub(in super::super) const OR: u8 = 0x40;
    pub(in super::super) const AND: u8 = 0x50;
    pub(in super::super) const LEFT: u8 = 0x60;
    pub(in super::super) const RIGHT: u8 = 0x70;
    pub(in super::super) const NEGATE: u8 = 0x80;
    pub(in super::super) const MODULO: u8 = 0x90;
    pub(in super::super) const XOR: u8 = 0xa0;
    pub(in super::super) const MOVE: u8 = 0xb0;
}

/// Unsigned comparisons (`BPF_JEQ` and so on).
pub(super) mod jump {
    pub(in super::super) const EQUAL: u8 = 0x10;
    pub(in super::super) const GREATER: u8 = 0x20;
    pub(in super::super) const AT_LEAST: u8 = 0x30;
    pub(in super::super) const SOME_BIT: u8 = 0x40;
    pub(in super::super) const NOT_EQUAL: u8 = 0x50;
    pub(in super::super) const LESS: u8 = 0xa0;
    pub(in super::super) const AT_MOST: u8 = 0xb0;
}

/// Width of an operation or comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// The lower half; an operation sets the upper half to 0.
    Word,
    Double,
}

/// A position in the code that may not be known yet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// Code under construction.
#[derive(Default)]
pub(super) struct Assembly {
    code: Vec<Bytes>,
    /// Positions of labels.
    labels: Vec<Option<usize>>,
    /// Jumps whose distance is filled in at the end.
    jumps: Vec<(usize, Label)>,
}

impl Assembly {
    pub(super) fn len(&self) -> usize {
        self.code.len()
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts the label in front of the next instruction.
    pub(super) fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Whether some jump leads to the label.
    pub(super) fn is_used(&self, label: Label) -> bool {
        self.jumps.iter().any(|(_, to)| *to == label)
    }

    fn push(&mut self, code: u8, to: Reg, from: Reg, offset: i16, number: u32) {
        let (offset, number) = (offset.to_le_bytes(), number.to_le_bytes());
        let registers = from.0 << 4 | to.0;
        self.code.push([code, registers, offset[0], offset[1], number[0], number[1], number[2], number[3]]);
    }

    pub(super) fn operate(&mut self, width: Width, operation: u8, to: Reg, operand: Operand) {
        let class = if width == Width::Word { 0x04 } else { 0x07 };
        match operand {
            Operand::Is(number) => self.push(class | operation, to, R0, 0, number),
            Operand::Of(from) => self.push(class | operation | 0x08, to, from, 0, 0),
        }
    }

    pub(super) fn set(&mut self, to: Reg, operand: Operand) {
        self.operate(Width::Word, alu::MOVE, to, operand);
    }

    /// Copies all of a register: an address or a number of 64 bits.
    pub(super) fn copy(&mut self, to: Reg, from: Reg) {
        self.operate(Width::Double, alu::MOVE, to, Operand::Of(from));
    }

    pub(super) fn add(&mut self, to: Reg, operand: Operand) {
        self.operate(Width::Double, alu::ADD, to, operand);
    }

    /// Loads `size` (1, 2, 4 or 8) bytes, without conversion.
    pub(super) fn load(&mut self, size: u32, to: Reg, base: Reg, offset: i16) {
        self.push(0x61 | size_code(size), to, base, offset, 0);
    }

    /// Stores the lower `size` (1, 2, 4 or 8) bytes of a register.
    pub(super) fn store(&mut self, size: u32, base: Reg, offset: i16, from: Reg) {
        self.push(0x63 | size_code(size), base, from, offset, 0);
    }

    /// Converts the lower `size` (1, 2 or 4) bytes from network order, and sets the other bytes to 0.
    pub(super) fn order_bytes(&mut self, size: u32, register: Reg) {
        if size > 1 {
            self.push(0xdc, register, R0, 0, 8 * size);
        }
    }

    pub(super) fn jump_if(&mut self, width: Width, comparison: u8, one: Reg, other: Operand, to: Label) {
        let class = if width == Width::Word { 0x06 } else { 0x05 };
        self.jumps.push((self.code.len(), to));
        match other {
            Operand::Is(number) => self.push(class | comparison, one, R0, 0, number),
            Operand::Of(register) => self.push(class | comparison | 0x08, one, register, 0, 0),
        }
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, R0, R0, 0, 0);
    }

    pub(super) fn call(&mut self, helper: u32) {
        self.push(0x85, R0, R0, 0, helper);
    }

    /// Returns this number.
    pub(super) fn finish(&mut self, result: u32) {
        self.set(R0, Operand::Is(result));
        self.leave();
    }

    /// Returns R0.
    pub(super) fn leave(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    /// The code with the distances of jumps; `None` where one is too long, or leads nowhere.
    pub(super) fn done(mut self) -> Option<Vec<Bytes>> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0]?;
            let distance = i16::try_from(to as i64 - at as i64 - 1).ok()?;
            self.code[at][2..4].copy_from_slice(&distance.to_le_bytes());
        }
        Some(self.code)
    }
}

fn size_code(size: u32) -> u8 {
    match size {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    }
}
