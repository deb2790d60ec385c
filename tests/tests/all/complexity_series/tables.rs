//! Series for rule files, hash tables, pcapng interfaces, descriptions, RTCP and IPv6 fragments.
//!
//! Filter expressions have no series: libpcap compiles them, in a time that grows with the cube of the terms, so their
//! length is bounded instead (I8).

use std::fmt::Write as _;
use std::path::Path;

use wirelane::LinkType;
use wirelane_bpf::native;

use super::*;

const RTCP: &str = "10.0.0.1:6001";

/// A pcapng block.
fn block(output: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = (12 + body.len() as u32).to_le_bytes();
    output.extend([&kind.to_le_bytes()[..], &length, body, &length].concat());
}

/// A file of so many interfaces, with a packet of each.
fn interfaces(n: usize, path: &Path) {
    let mut bytes = Vec::new();
    block(&mut bytes, 0x0a0d_0d0a, &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    (0..n).for_each(|_| block(&mut bytes, 1, &[1, 0, 0, 0, 0, 0, 4, 0]));
    // Four packets an interface: a file has at most 65,536 interfaces, so a series cannot start at more than 8,192.
    for interface in (0..n as u32).cycle().take(4 * n) {
        let head = [interface, 0, 0, 60, 60].map(u32::to_le_bytes);
        block(&mut bytes, 6, &[head.as_flattened(), &[0; 60]].concat());
    }
    std::fs::write(path, bytes).unwrap();
}

/// IPv6 datagrams from so many sources with one flow hash under the seed of files (`lib/hash.h`): the second half of an
/// address is chosen for the first.
fn of_one_hash(n: usize) -> Vec<Vec<u8>> {
    let mix = |value: u64| {
        let value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value ^ value >> 32
    };
    let frame = |number: u64| {
        let mut packet = vec![0x60, 0, 0, 0, 0, 9, 17, 64];
        packet.extend(number.to_ne_bytes());
        // The port is 0.
        packet.extend(7u64.wrapping_sub(mix(number)).to_ne_bytes());
        packet.extend(1u128.to_be_bytes());
        packet.extend([0, 0, 0, 9, 0, 9, 0, 0, b'x']);
        ethernet(0x86dd, &packet)
    };
    let frames: Vec<Vec<u8>> = (0..n as u64).map(frame).collect();
    let hash = |frame: &[u8]| native::flow_hash(&native::parse(LinkType::Ethernet, frame, false).outer, 0);
    assert!(frames.iter().all(|frame| hash(frame) == hash(&frames[0])), "the hashes differ");
    frames
}

/// A fragment of an IPv6 datagram.
fn fragment6(source: u32, id: u32, offset: usize, more: bool, bytes: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((8 + bytes.len() as u16).to_be_bytes());
    packet.extend([44, 64]);
    packet.extend((0xfd00_u128 << 112 | u128::from(source)).to_be_bytes());
    packet.extend((0xfd00_u128 << 112 | 0xffff_ffff).to_be_bytes());
    packet.extend([17, 0]);
    packet.extend((offset as u16 & !7 | u16::from(more)).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(bytes);
    ethernet(0x86dd, &packet)
}

/// An RTCP receiver report with so many blocks (RFC 3550, 6.4.2), each of a stream of its own.
fn report(blocks: usize, first: usize) -> Vec<u8> {
    let mut packet = vec![0x80 | blocks as u8, 201];
    packet.extend((1 + 6 * blocks as u16).to_be_bytes());
    packet.extend([0, 0, 0, 1]);
    for number in first..first + blocks {
        packet.extend((number as u32).to_be_bytes());
        packet.extend([0; 20]);
    }
    packet
}

/// A call with media at [`RTCP`]'s host, and these datagrams for its RTCP.
fn controlled(datagrams: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    scene(|scene| {
        scene.udp(0, CLIENT, SIP, &invite("one", 1, "", &description("10.0.0.1", 6000)));
        datagrams.for_each(|datagram| scene.udp(0, "10.0.0.2:7001", RTCP, &datagram));
    })
}

/// So many rules, one per number.
fn rules(n: usize, rule: impl Fn(usize) -> String) -> String {
    (0..n).fold(String::new(), |mut text, number| {
        writeln!(text, "[[rule]]\nid = {}\naction = \"pass\"\n{}", number + 1, rule(number)).unwrap();
        text
    })
}

pub(super) const TABLES: [Series; 15] = [
    Series {
        name: "rules: a network each",
        words: &["count"],
        elements: 500,
        make: Make::Rules(|n| rules(n, |k| format!("src = \"10.{}.{}.0/24\"", k >> 8, k & 255))),
    },
    Series {
        name: "rules: a network and a range of ports each",
        words: &["count"],
        elements: 500,
        make: Make::Rules(|n| {
            rules(n, |k| {
                format!("src = \"10.{}.{}.0/24\"\ndst-port = \"{}-{}\"", k >> 8, k & 255, k + 1, k + 1000)
            })
        }),
    },
    Series {
        name: "rules: five fields each",
        words: &["count"],
        elements: 500,
        make: Make::Rules(|n| {
            rules(n, |k| {
                format!(
                    "src = \"10.0.{}.{}\"\ndst = \"10.1.0.1\"\nsrc-port = 5\ndst-port = 53\nprotocol = \"udp\"",
                    k >> 8,
                    k & 255
                )
            })
        }),
    },
    Series {
        name: "exact-match rules inserted by tuples of one hash",
        words: &["count"],
        elements: 4000,
        make: Make::Ruled(
            "[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"pass\"\ninsert = { fields = [\"src\", \"dst\", \"src-port\", \
             \"dst-port\", \"protocol\"], action = \"pass\" }\n",
            of_one_hash,
        ),
    },
    Series {
        name: "flows: tuples of one hash",
        words: &["flows", "--quiet"],
        elements: 4000,
        make: Make::Frames(of_one_hash),
    },
    Series {
        name: "probe: tuples of one hash",
        words: &["probe", "--ready", "port-scan", "--quiet"],
        elements: 16_000,
        make: Make::Frames(of_one_hash),
    },
    Series { name: "pcapng: interfaces", words: &["count"], elements: 8000, make: Make::File(interfaces) },
    Series {
        name: "voip: attributes of a description",
        words: &["voip", "--quiet"],
        elements: 20_000,
        make: Make::Frames(|n| {
            let attributes = "a=rtpmap:0 PCMU/8000\r\n".repeat(2000);
            let body = description("10.0.0.1", 6000) + &attributes;
            scene(|scene| {
                (0..n / 2000).for_each(|k| scene.udp(0, CLIENT, SIP, &invite("one", k, "", &body)));
            })
        }),
    },
    Series {
        name: "voip: media lines of one description",
        words: &["voip", "--quiet"],
        elements: 300,
        make: Make::Frames(|n| {
            let body = description("10.0.0.1", 6000) + &"m=audio 2 RTP/AVP 0\r\n".repeat(n);
            scene(|scene| {
                (0..400).for_each(|k| scene.udp(0, CLIENT, SIP, &invite(&format!("{k}"), 1, "", &body)));
            })
        }),
    },
    Series {
        name: "voip: RTCP report blocks of streams of their own",
        words: &["voip", "--quiet"],
        elements: 31_000,
        make: Make::Frames(|n| controlled((0..n / 31).map(|number| report(31, 31 * number)))),
    },
    Series {
        name: "voip: RTCP packets of compound packets",
        words: &["voip", "--quiet"],
        elements: 160_000,
        make: Make::Frames(|n| controlled((0..n / 4000).map(|_| report(0, 0).repeat(4000)))),
    },
    Series {
        name: "voip: RTCP packets of one compound packet",
        words: &["voip", "--quiet"],
        elements: 1000,
        make: Make::Frames(|n| controlled((0..300).map(|_| report(0, 0).repeat(n)))),
    },
    Series {
        name: "voip: IPv6 fragments in the worst order",
        words: &["voip", "--quiet"],
        elements: 4000,
        make: Make::Frames(|n| {
            let datagram = |id| (0..100).rev().map(move |at| fragment6(0, id, at * 8, at < 99, &[b'z'; 8]));
            (0..n / 100).flat_map(|id| datagram(id as u32)).collect()
        }),
    },
    Series {
        name: "voip: first IPv6 fragments",
        words: &["voip", "--quiet"],
        elements: 5000,
        make: Make::Frames(|n| {
            (0..n).map(|id| fragment6(id as u32, id as u32, 0, true, &[b'z'; 64])).collect()
        }),
    },
    Series {
        name: "voip: overlapping IPv6 fragments",
        words: &["voip", "--quiet"],
        elements: 1000,
        make: Make::Frames(|n| {
            (0..n).map(|at| fragment6(0, 7, at * 40 % 60_000, true, &[b'z'; 64])).collect()
        }),
    },
];
