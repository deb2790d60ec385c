//! Programs for packet sockets, in classic BPF: which packets a socket accepts, and which socket of a group receives a
//! packet.
//!
//! Classic BPF, because it needs no privilege beyond the socket's (CAP_NET_RAW). It has no loops and no state, but it
//! can add, so a symmetric hash is possible: the sum of both addresses and both ports.
//! (Documentation/networking/filter.rst)

use wirelane_bpf::layout::LinkType;

// linux/bpf_common.h, linux/filter.h
const LD_W_ABS: u16 = 0x20;
const LD_W_IND: u16 = 0x40;
const LD_H_IND: u16 = 0x48;
const LD_B_IND: u16 = 0x50;
const LD_W_LEN: u16 = 0x80;
const LD_MEM: u16 = 0x60;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const LD_IMM: u16 = 0x00;
const ST: u16 = 0x02;
const ADD_K: u16 = 0x04;
const ADD_X: u16 = 0x0c;
const SUB_K: u16 = 0x14;
const MUL_K: u16 = 0x24;
const AND_K: u16 = 0x54;
const LSH_K: u16 = 0x64;
const RSH_K: u16 = 0x74;
const MOD_K: u16 = 0x94;
const XOR_X: u16 = 0xac;
const JA: u16 = 0x05;
const JEQ_K: u16 = 0x15;
const JGT_K: u16 = 0x25;
const JGE_X: u16 = 0x3d;
const JSET_K: u16 = 0x45;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;

/// Packet metadata of the kernel is loaded from negative offsets.
const SKF_AD_OFF: u32 = -0x1000i32 as u32;
const SKF_AD_PROTOCOL: u32 = SKF_AD_OFF;
const SKF_AD_PKTTYPE: u32 = SKF_AD_OFF.wrapping_add(4);
const SKF_AD_QUEUE: u32 = SKF_AD_OFF.wrapping_add(24);

/// `PACKET_OUTGOING` of linux/if_packet.h.
const OUTGOING: u32 = 4;

/// Words of scratch memory.
const QUEUE: u32 = 0;
const SUM: u32 = 1;
const OFFSET: u32 = 2;
const TYPE: u32 = 3;

/// Maximum number of IPv6 extension headers that are skipped.
const MOST_EXTENSIONS: usize = 4;

/// A jump target in a program.
#[derive(Clone, Copy)]
struct Label(usize);

/// A program under construction. Jumps go forward only, as classic BPF demands.
#[derive(Default)]
struct Code {
    code: Vec<libc::sock_filter>,
    /// Instruction index of each label, once it is known.
    labels: Vec<Option<usize>>,
    /// Jumps to be completed: (instruction, label if true, label if false).
    jumps: Vec<(usize, Option<Label>, Option<Label>)>,
}

impl Code {
    fn op(&mut self, code: u16, k: u32) {
        self.code.push(libc::sock_filter { code, jt: 0, jf: 0, k });
    }

    fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    fn here(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// A conditional jump; `None` continues with the next instruction.
    fn jump(&mut self, code: u16, k: u32, yes: Option<Label>, no: Option<Label>) {
        self.jumps.push((self.code.len(), yes, no));
        self.op(code, k);
    }

    fn goto(&mut self, label: Label) {
        self.jumps.push((self.code.len(), Some(label), None));
        self.op(JA, 0);
    }

    fn finish(mut self) -> Vec<libc::sock_filter> {
        for (at, yes, no) in self.jumps {
            let distance = |label: Option<Label>| {
                label.map_or(0, |label| self.labels[label.0].expect("every label is placed") - at - 1)
            };
            let (yes, no) = (distance(yes), distance(no));
            let instruction = &mut self.code[at];
            if instruction.code == JA {
                instruction.k = yes as u32;
            } else {
                instruction.jt = u8::try_from(yes).expect("the programs of this file are short");
                instruction.jf = u8::try_from(no).expect("the programs of this file are short");
            }
        }
        self.code
    }

    /// Loads the RX queue that the driver recorded; 0 without a record, as under tc.
    fn load_queue(&mut self) {
        let none = self.label();
        self.op(LD_W_ABS, SKF_AD_QUEUE);
        self.jump(JEQ_K, 0, Some(none), None);
        self.op(SUB_K, 1);
        self.here(none);
    }
}

/// Conditions under which a socket accepts a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    /// Whether to accept transmitted packets instead of received ones.
    pub(super) egress: bool,
    /// Accept only packets of this RX queue.
    pub(super) queue: Option<u32>,
    /// Maximum number of captured bytes of a packet.
    pub(super) bytes: u32,
}

impl Filter {
    /// The filter as a program for `SO_ATTACH_FILTER`.
    pub(super) fn program(self) -> Vec<libc::sock_filter> {
        let mut code = Code::default();
        let refuse = code.label();
        code.op(LD_W_ABS, SKF_AD_PKTTYPE);
        if self.egress {
            code.jump(JEQ_K, OUTGOING, None, Some(refuse));
        } else {
            code.jump(JEQ_K, OUTGOING, Some(refuse), None);
        }
        if let Some(queue) = self.queue {
            code.load_queue();
            code.jump(JEQ_K, queue, None, Some(refuse));
        }
        code.op(RET_K, self.bytes);
        code.here(refuse);
        code.op(RET_K, 0);
        code.finish()
    }

    /// The filter that accepts nothing.
    pub(super) fn nothing() -> Vec<libc::sock_filter> {
        let mut code = Code::default();
        code.op(RET_K, 0);
        code.finish()
    }
}

/// Selects the socket of a fanout group for a packet: there is one for each RX queue and worker, or for each queue.
#[derive(Clone, Debug)]
pub(super) struct Demux<'a> {
    pub(super) link: LinkType,
    pub(super) egress: bool,
    /// The RX queues with sockets, in the order of the sockets.
    pub(super) queues: &'a [u32],
    /// Number of sockets of each queue; the flow hash selects one.
    pub(super) workers: u32,
}

impl Demux<'_> {
    /// The selection as a program for `PACKET_FANOUT_DATA`: it returns the number of the socket.
    ///
    /// The flow is hashed by the outer addresses, and for packets that are not fragments also by the ports. When a load
    /// fails the kernel takes the program's answer to be 0, so every load is preceded by a check of the length.
    pub(super) fn program(&self) -> Vec<libc::sock_filter> {
        let mut code = Code::default();
        self.load_socket_of_queue(&mut code);
        if self.workers == 1 {
            code.op(RET_A, 0);
            return code.finish();
        }
        code.op(ST, QUEUE);
        self.hash(&mut code);
        // Sums of addresses differ in few bits: spread them over the word.
        code.op(MUL_K, 0x9e37_79b1);
        code.op(TAX, 0);
        code.op(RSH_K, 15);
        code.op(XOR_X, 0);
        code.op(MUL_K, 0x85eb_ca6b);
        code.op(RSH_K, 16);
        code.op(MOD_K, self.workers);
        code.op(LDX_MEM, QUEUE);
        code.op(ADD_X, 0);
        code.op(RET_A, 0);
        code.finish()
    }

    /// Leaves the number of the queue's first socket in the accumulator. A packet of another queue goes to the sockets
    /// of the first queue, and is refused there unless all queues are captured.
    fn load_socket_of_queue(&self, code: &mut Code) {
        if self.queues.len() < 2 {
            return code.op(LD_IMM, 0);
        }
        code.load_queue();
        let last = self.queues.len() as u32 - 1;
        if self.queues.iter().zip(self.queues[0]..).all(|(queue, expected)| *queue == expected) {
            let known = code.label();
            code.op(SUB_K, self.queues[0]);
            code.jump(JGT_K, last, None, Some(known));
            code.op(LD_IMM, 0);
            code.here(known);
        } else {
            let done = code.label();
            for (at, queue) in self.queues.iter().enumerate() {
                let next = code.label();
                code.jump(JEQ_K, *queue, None, Some(next));
                code.op(LD_IMM, at as u32);
                code.goto(done);
                code.here(next);
            }
            code.op(LD_IMM, 0);
            code.here(done);
        }
        code.op(MUL_K, self.workers);
    }

    /// Leaves a symmetric hash of the flow in the accumulator.
    fn hash(&self, code: &mut Code) {
        // A received packet begins with its network header, a transmitted one with its link header.
        let ethernet = self.egress && self.link == LinkType::Ethernet;
        let start = if ethernet { 14 } else { 0 };
        code.op(LDX_IMM, start);
        if ethernet {
            code.op(LDX_IMM, 0);
            code.op(LD_H_IND, 12);
            code.op(LDX_IMM, start);
        } else {
            code.op(LD_W_ABS, SKF_AD_PROTOCOL);
        }
        // X: offset of the next header; A: its type.
        let (ipv4, ipv6, other, done) = (code.label(), code.label(), code.label(), code.label());
        for _ in 0..2 {
            let (tag, none) = (code.label(), code.label());
            code.op(ST, TYPE);
            code.jump(JEQ_K, 0x8100, Some(tag), None);
            code.jump(JEQ_K, 0x88a8, Some(tag), Some(none));
            code.here(tag);
            require(code, 4, other);
            code.op(LD_H_IND, 2);
            code.op(ST, TYPE);
            code.op(TXA, 0);
            code.op(ADD_K, 4);
            code.op(TAX, 0);
            code.op(LD_MEM, TYPE);
            code.here(none);
        }
        code.op(ST, TYPE);
        let is_ipv4 = code.label();
        code.jump(JEQ_K, 0x0800, Some(is_ipv4), None);
        let is_ipv6 = code.label();
        code.jump(JEQ_K, 0x86dd, Some(is_ipv6), None);
        code.goto(other);
        code.here(is_ipv4);
        code.goto(ipv4);
        code.here(is_ipv6);
        code.goto(ipv6);

        code.here(ipv4);
        hash_ipv4(code, other, done);
        code.here(ipv6);
        hash_ipv6(code, other, done);
        // Neither: hash by the packet's type alone, as the other engines do.
        code.here(other);
        code.op(LD_MEM, TYPE);
        code.op(ST, SUM);
        code.here(done);
        code.op(LD_MEM, SUM);
    }
}

/// Jumps to `cut` unless this many bytes follow at X; X is kept.
fn require(code: &mut Code, bytes: u32, cut: Label) {
    let (enough, cut_here) = (code.label(), code.label());
    code.op(TXA, 0);
    code.op(ST, OFFSET);
    code.op(ADD_K, bytes);
    code.op(TAX, 0);
    code.op(LD_W_LEN, 0);
    code.jump(JGE_X, 0, Some(enough), Some(cut_here));
    // Conditional jumps reach 255 instructions, this one reaches any distance.
    code.here(cut_here);
    code.goto(cut);
    code.here(enough);
    code.op(LDX_MEM, OFFSET);
}

/// Adds the word at X + `offset` to the sum.
fn add_word(code: &mut Code, offset: u32) {
    code.op(LD_W_IND, offset);
    add_accumulator(code);
}

/// Adds A to the sum; X is kept.
fn add_accumulator(code: &mut Code) {
    code.op(ST, TYPE);
    code.op(TXA, 0);
    code.op(ST, OFFSET);
    code.op(LDX_MEM, SUM);
    code.op(LD_MEM, TYPE);
    code.op(ADD_X, 0);
    code.op(ST, SUM);
    code.op(LDX_MEM, OFFSET);
}

fn hash_ipv4(code: &mut Code, other: Label, done: Label) {
    require(code, 20, other);
    code.op(LD_IMM, 0);
    code.op(ST, SUM);
    add_word(code, 12);
    add_word(code, 16);
    let (fragment, ports) = (code.label(), code.label());
    code.op(LD_H_IND, 6);
    code.jump(JSET_K, 0x3fff, Some(fragment), None);
    code.op(LD_B_IND, 9);
    jump_if_ports(code, ports);
    code.here(fragment);
    code.goto(done);
    code.here(ports);
    // X: offset after the header and its options.
    code.op(LD_B_IND, 0);
    code.op(AND_K, 15);
    code.op(LSH_K, 2);
    code.op(ADD_X, 0);
    code.op(TAX, 0);
    add_ports(code, done);
}

fn hash_ipv6(code: &mut Code, other: Label, done: Label) {
    require(code, 40, other);
    code.op(LD_IMM, 0);
    code.op(ST, SUM);
    for word in 0..8 {
        add_word(code, 8 + 4 * word);
    }
    let ports = code.label();
    code.op(LD_B_IND, 6);
    code.op(ST, TYPE);
    code.op(TXA, 0);
    code.op(ADD_K, 40);
    code.op(TAX, 0);
    code.op(LD_MEM, TYPE);
    for turn in 0..=MOST_EXTENSIONS {
        // A: type of the header at X.
        jump_if_ports(code, ports);
        if turn == MOST_EXTENSIONS {
            break;
        }
        let (extension, end) = (code.label(), code.label());
        for header in [0, 43, 60] {
            code.jump(JEQ_K, header, Some(extension), None);
        }
        code.here(end);
        code.goto(done);
        code.here(extension);
        require(code, 8, done);
        code.op(LD_B_IND, 0);
        code.op(ST, TYPE);
        code.op(LD_B_IND, 1);
        code.op(ADD_K, 1);
        code.op(LSH_K, 3);
        code.op(ADD_X, 0);
        code.op(TAX, 0);
        code.op(LD_MEM, TYPE);
    }
    code.goto(done);
    code.here(ports);
    add_ports(code, done);
}

/// Jumps to `ports` where the protocol in A is one whose header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
/// Falls through otherwise.
fn jump_if_ports(code: &mut Code, ports: Label) {
    let (yes, no) = (code.label(), code.label());
    for protocol in [6, 17, 33, 132] {
        code.jump(JEQ_K, protocol, Some(yes), None);
    }
    code.jump(JEQ_K, 136, Some(yes), Some(no));
    code.here(yes);
    code.goto(ports);
    code.here(no);
}

/// Adds the ports at X to the sum, and jumps to `done`.
fn add_ports(code: &mut Code, done: Label) {
    require(code, 4, done);
    for offset in [0, 2] {
        code.op(LD_H_IND, offset);
        add_accumulator(code);
    }
    code.goto(done);
}

#[cfg(test)]
#[path = "classic_tests.rs"]
mod tests;
