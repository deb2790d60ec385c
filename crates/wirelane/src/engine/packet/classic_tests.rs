//! The programs, run by an interpreter of classic BPF on packets with known sockets.

use super::*;

/// Metadata of a packet in the kernel.
#[derive(Clone, Copy, Default)]
struct Facts {
    protocol: u32,
    kind: u32,
    queue: u32,
}

/// Runs a program as the kernel does: a load outside of the packet ends it with 0.
fn run(program: &[libc::sock_filter], packet: &[u8], facts: Facts) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [None; 16], 0);
    let load = |offset: u32, bytes: usize| -> Option<u32> {
        let part = packet.get(offset as usize..)?.get(..bytes)?;
        Some(part.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    loop {
        let libc::sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let jump = |condition: bool| usize::from(if condition { jt } else { jf });
        match code {
            LD_W_ABS if k == SKF_AD_PROTOCOL => a = facts.protocol,
            LD_W_ABS if k == SKF_AD_PKTTYPE => a = facts.kind,
            LD_W_ABS if k == SKF_AD_QUEUE => a = facts.queue,
            LD_W_IND | LD_H_IND | LD_B_IND => {
                let bytes = match code {
                    LD_W_IND => 4,
                    LD_H_IND => 2,
                    _ => 1,
                };
                let Some(value) = load(x.wrapping_add(k), bytes) else { return 0 };
                a = value;
            }
            LD_W_LEN => a = packet.len() as u32,
            LD_MEM => a = memory[k as usize].expect("read before it was written"),
            LDX_MEM => x = memory[k as usize].expect("read before it was written"),
            LD_IMM => a = k,
            LDX_IMM => x = k,
            ST => memory[k as usize] = Some(a),
            ADD_K => a = a.wrapping_add(k),
            ADD_X => a = a.wrapping_add(x),
            SUB_K => a = a.wrapping_sub(k),
            MUL_K => a = a.wrapping_mul(k),
            AND_K => a &= k,
            LSH_K => a <<= k,
            RSH_K => a >>= k,
            MOD_K => a %= k,
            XOR_X => a ^= x,
            TAX => x = a,
            TXA => a = x,
            JA => at += k as usize,
            JEQ_K => at += jump(a == k),
            JGT_K => at += jump(a > k),
            JGE_X => at += jump(a >= x),
            JSET_K => at += jump(a & k != 0),
            RET_K => return k,
            RET_A => return a,
            other => panic!("instruction {other:#x}"),
        }
    }
}

/// An IPv4 packet from its network header on; `fragment`: flags and offset.
fn ipv4(ends: [u8; 2], ports: [u16; 2], fragment: u16, options: usize) -> Vec<u8> {
    let mut packet = vec![0; 20 + options];
    packet[0] = 0x40 | (5 + options as u8 / 4);
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet[9] = 17;
    packet[15] = ends[0];
    packet[19] = ends[1];
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet.extend([0; 4]);
    packet
}

/// The same with IPv6, after these extension headers.
fn ipv6(ends: [u8; 2], ports: [u16; 2], extensions: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[23] = ends[0];
    packet[39] = ends[1];
    let mut chain: Vec<u8> = extensions.to_vec();
    chain.push(17);
    packet[6] = chain[0];
    for next in &chain[1..] {
        packet.extend([*next, 0, 0, 0, 0, 0, 0, 0]);
    }
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet.extend([0; 4]);
    packet
}

const WORKERS: u32 = 7;

fn demux(queues: &[u32], egress: bool) -> Vec<libc::sock_filter> {
    Demux { link: LinkType::Ethernet, egress, queues, workers: WORKERS }.program()
}

#[test]
fn directions_fragments_and_tags_meet() {
    let (rx, tx) = (demux(&[0], false), demux(&[0], true));
    let mut sockets = std::collections::BTreeSet::new();
    for end in 1..100u8 {
        let (ends, back) = ([end, 200], [200, end]);
        let (ports, there) = ([1000 + u16::from(end), 53], [53, 1000 + u16::from(end)]);
        let groups: [(u32, Vec<Vec<u8>>); 3] = [
            (0x0800, vec![ipv4(ends, ports, 0, 0), ipv4(back, there, 0, 0), ipv4(ends, ports, 0x4000, 8)]),
            // A first fragment, others, and those of the answer: their ports are ignored.
            (
                0x0800,
                vec![ipv4(ends, ports, 0x2000, 0), ipv4(ends, [7, 9], 5, 0), ipv4(back, [1, 2], 0x2001, 4)],
            ),
            (
                0x86dd,
                vec![ipv6(ends, ports, &[]), ipv6(back, there, &[0]), ipv6(back, there, &[60, 43, 0, 60])],
            ),
        ];
        for (kind, packets) in groups {
            let mut all = Vec::new();
            for packet in packets {
                // Received, with none, one or two tags left in it; transmitted, with a link header and tags.
                let tagged = |tags: usize| {
                    let mut bytes = Vec::new();
                    for tag in 0..tags {
                        let next = if tag + 1 == tags { kind as u16 } else { 0x8100 };
                        bytes.extend([0, 5]);
                        bytes.extend(next.to_be_bytes());
                    }
                    bytes.extend(&packet);
                    bytes
                };
                for tags in 0..=2 {
                    let protocol = [kind, 0x8100, 0x88a8][tags];
                    all.push(run(&rx, &tagged(tags), Facts { protocol, ..Facts::default() }));
                    let mut frame = vec![0; 12];
                    frame.extend((protocol as u16).to_be_bytes());
                    frame.extend(tagged(tags));
                    all.push(run(&tx, &frame, Facts::default()));
                }
            }
            assert!(all.iter().all(|socket| *socket == all[0] && *socket < WORKERS), "{kind:#x}: {all:?}");
            sockets.insert(all[0]);
        }
        let fragments = [ipv6(ends, ports, &[44]), ipv6(back, [5, 6], &[0, 44])];
        let [a, b] = fragments.map(|p| run(&rx, &p, Facts { protocol: 0x86dd, ..Facts::default() }));
        assert_eq!(a, b);
    }
    assert_eq!(sockets.len(), WORKERS as usize, "every worker has flows");
}

/// No load reaches beyond a packet's end: a failed load would give the packet to the first socket, whatever its queue.
#[test]
fn cut_packets_keep_their_queue() {
    for queues in [&[0, 1, 2, 3][..], &[1, 2], &[0, 3, 9]] {
        let program = demux(queues, false);
        for (protocol, whole) in [
            (0x0800, ipv4([1, 2], [3, 4], 0, 8)),
            (0x86dd, ipv6([1, 2], [3, 4], &[0, 60])),
            (0x8100, vec![0; 9]),
        ] {
            for length in 0..=whole.len() {
                for (at, queue) in queues.iter().enumerate() {
                    let facts = Facts { protocol, queue: queue + 1, ..Facts::default() };
                    let socket = run(&program, &whole[..length], facts);
                    assert_eq!(socket / WORKERS, at as u32, "{protocol:#x} cut at {length}, queue {queue}");
                }
            }
        }
        // A packet of another queue, or of no queue, goes to the first queue's sockets.
        for queue in [0, 1000] {
            let facts = Facts { queue, ..Facts::default() };
            let expected = queues.iter().position(|q| queue == 0 && *q == 0).unwrap_or(0);
            assert_eq!(run(&program, &[], facts) / WORKERS, expected as u32);
        }
    }
}

#[test]
fn filters_know_direction_and_queue() {
    let accepted =
        |filter: Filter, kind, queue| run(&filter.program(), &[], Facts { kind, queue, protocol: 0 });
    let rx = Filter { egress: false, queue: None, bytes: 99 };
    assert_eq!((accepted(rx, 0, 3), accepted(rx, OUTGOING, 3)), (99, 0));
    let tx = Filter { egress: true, ..rx };
    assert_eq!((accepted(tx, 0, 3), accepted(tx, OUTGOING, 3)), (0, 99));
    let one = Filter { queue: Some(2), ..rx };
    assert_eq!((accepted(one, 0, 3), accepted(one, 0, 2), accepted(one, 0, 0)), (99, 0, 0));
    let zero = Filter { queue: Some(0), ..rx };
    assert_eq!((accepted(zero, 0, 0), accepted(zero, 0, 1), accepted(zero, 0, 2)), (99, 99, 0));
    assert_eq!(run(&Filter::nothing(), &[], Facts::default()), 0);
}
