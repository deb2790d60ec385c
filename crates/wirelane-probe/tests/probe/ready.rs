//! Each ready-made probe on traffic that it should detect, and on similar traffic that it should not.

use serde_json::Value;
use wirelane_probe::ready;

use crate::traffic::*;

fn said(name: &str, mut frames: Vec<Timed>) -> Said {
    frames.sort_by_key(|frame| frame.0);
    probe(ready(name).unwrap(), &frames)
}

fn row<'v>(said: &'v Said, measurement: &str, field: &str, is: &str) -> &'v Value {
    let rows = said.of(measurement, true).into_iter().flat_map(|total| total["rows"].as_array().unwrap());
    let mut rows = rows.filter(|row| row[field] == is);
    rows.next().unwrap_or_else(|| panic!("no {is} in {measurement}"))
}

/// Battery: I10
#[test]
fn syn_flood() {
    let flood = |second: u64| {
        (0..2000u32).map(move |n| {
            (second * SECOND + u64::from(n) * MS / 2, tcp(host(n), host(9), (n as u16, 80), SYN, n, 0))
        })
    };
    // Two seconds of the flood, then six seconds of silence with one packet at the end.
    let mut frames: Vec<Timed> = flood(0).chain(flood(1)).collect();
    frames.push((8 * SECOND, udp(host(1), host(2), (1, 2), 10)));
    let positive = said("syn-flood", frames);
    assert_eq!(
        positive.alarms(),
        [format!("syn-flood raised {}", shown(host(9))), format!("syn-flood cleared {}", shown(host(9)))]
    );
    assert_eq!(positive.logs.len(), 2);
    let distinct = row(&positive, "syns", "dst", &shown(host(9)))["distinct_src"].as_f64().unwrap();
    assert!((distinct - 2000.0).abs() < 200.0, "{distinct}");
    // As many packets, of established connections, and their SYNs to many servers.
    let negative = (0..2000u32).flat_map(|n| {
        let at = u64::from(n) * MS / 2;
        [
            (at, tcp(host(n), host(9), (n as u16, 80), ACK, n, 10)),
            (at, tcp(host(9), host(n), (80, n as u16), SYN_ACK, n, 0)),
            (at, tcp(host(n), host(100 + n % 10), (n as u16, 80), SYN, n, 0)),
        ]
    });
    assert_eq!(said("syn-flood", negative.collect()).alarms(), [""; 0]);
}

/// Battery: I10
#[test]
fn port_scan() {
    let ports =
        (0..1000u32).map(|n| (u64::from(n) * MS, tcp(host(1), host(9), (40_000, n as u16), SYN, n, 0)));
    let sweep =
        (0..1000u32).map(|n| (u64::from(n) * MS, tcp(host(2), host(5000 + n), (40_000, 22), SYN, n, 0)));
    let positive = said("port-scan", ports.chain(sweep).collect());
    let expected = [
        format!("port-scan raised {} {}", shown(host(1)), shown(host(9))),
        format!("host-sweep raised {}", shown(host(2))),
    ];
    assert_eq!(positive.alarms(), expected);
    // A proxy: as many connections, to ten ports of ten servers; and responses from closed ports.
    let negative = (0..2000u32).flat_map(|n| {
        let at = u64::from(n) * MS;
        [
            (at, tcp(host(1), host(10 + n % 10), (n as u16, 80 + (n % 10) as u16), SYN, n, 0)),
            (at, tcp(host(9), host(1), (n as u16, 40_000), 0x14, n, 0)),
        ]
    });
    assert_eq!(said("port-scan", negative.collect()).alarms(), [""; 0]);
}

/// Battery: I10
#[test]
fn bandwidth_by_network() {
    // Six seconds of 80,000 packets of 1,442 bytes would be a large file: the threshold of the alarm is lowered
    // instead.
    let text =
        ready("bandwidth").unwrap().replace("800_000_000", "800_000").replace("600_000_000", "600_000");
    let packets = |seconds: u64, each: u32| -> Vec<Timed> {
        let times = (0..seconds).flat_map(move |second| (0..each).map(move |n| (second, n)));
        times
            .map(|(second, n)| {
                (
                    second * SECOND + u64::from(n) * MS,
                    udp(host(0x100 + n % 50), host(0x900 + n % 3), (1, 2), 1400),
                )
            })
            .collect()
    };
    let positive = probe(&text, &packets(6, 100));
    assert_eq!(positive.alarms(), ["heavy-network raised 10.0.9.0/24"]);
    let sent = row(&positive, "sent", "src_net", "10.0.1.0/24");
    assert_eq!((&sent["packets"], &sent["bytes"]), (&600.into(), &(600 * 1442).into()));
    // Four seconds are too short, and 60 packets per second too few.
    assert_eq!(probe(&text, &packets(4, 100)).alarms(), [""; 0]);
    assert_eq!(probe(&text, &packets(10, 60)).alarms(), [""; 0]);
    assert_eq!(said("bandwidth", packets(6, 100)).alarms(), [""; 0]);
}

/// Battery: I10
#[test]
fn dns_amplification() {
    let answers = |length: usize| -> Vec<Timed> {
        (0..500u32).map(|n| (u64::from(n) * MS, udp(host(3000 + n), host(9), (53, 4444), length))).collect()
    };
    let positive = said("dns-amplification", answers(1200));
    assert_eq!(positive.alarms(), [format!("dns-amplification raised {}", shown(host(9)))]);
    let distinct = row(&positive, "large-answers", "dst", &shown(host(9)))["distinct_src"].as_f64().unwrap();
    assert!((distinct - 500.0).abs() < 50.0, "{distinct}");
    // Many responses of usual size; large ones to many receivers; large ones of another protocol.
    let mut negative = answers(120);
    negative
        .extend((0..500u32).map(|n| (u64::from(n) * MS, udp(host(9), host(100 + n % 50), (53, 4444), 1200))));
    negative
        .extend((0..500u32).map(|n| (u64::from(n) * MS, udp(host(3000 + n), host(9), (443, 4444), 1200))));
    assert_eq!(said("dns-amplification", negative).alarms(), [""; 0]);
}

/// Battery: I10
#[test]
fn arp_spoofing() {
    // Each host with its own address, repeatedly.
    let honest: Vec<Timed> =
        (0..200u32).map(|n| (u64::from(n) * 200 * MS, arp(10 + (n % 5) as u8, host(10 + n % 5)))).collect();
    // A host that probes for an address that it does not have yet (RFC 5227), and another one.
    let probing = [(SECOND, arp(77, 0)), (2 * SECOND, arp(78, 0))];
    let mut negative = honest.clone();
    negative.extend(probing);
    assert_eq!(said("arp-spoofing", negative).alarms(), [""; 0]);
    // Another host claims, twenty seconds later, to be 10.0.0.12.
    let mut positive = honest;
    positive.push((21 * SECOND, arp(99, host(12))));
    positive.push((75 * SECOND, arp(11, host(11))));
    let positive = said("arp-spoofing", positive);
    assert_eq!(positive.alarms(), ["arp-spoofing raised 10.0.0.12", "arp-spoofing cleared 10.0.0.12"]);
    // A host takes over in another interval than the last one of the previous host.
    let taken_over = vec![(0, arp(10, host(1))), (15 * SECOND, arp(11, host(1)))];
    assert_eq!(said("arp-spoofing", taken_over).alarms(), ["arp-spoofing raised 10.0.0.1"]);
}

/// Battery: I10
#[test]
fn microbursts() {
    // 500 packets of 1,442 bytes within a millisecond of a second with 100 others.
    let burst = |ns: u64| (0..500u64).map(move |n| (300 * MS + n * ns, udp(host(1), host(2), (1, 2), 1400)));
    let others = (0..100u64).map(|n| (n * 10 * MS, udp(host(3), host(4), (1, 2), 100)));
    let positive = said("microbursts", burst(1_900).chain(others.clone()).collect());
    assert_eq!(positive.alarms(), ["microburst raised"]);
    let [total] = positive.of("bursts", true)[..] else { panic!() };
    // Including the other packet at 300 ms.
    assert_eq!(
        (&total["rows"][0]["peak_packets"], &total["rows"][0]["peak_bytes"]),
        (&501.into(), &(500 * 1442 + 142).into())
    );
    // The same number, spread over half a second.
    let negative = said("microbursts", burst(1_000_000).chain(others).collect());
    assert_eq!(negative.alarms(), [""; 0]);
    assert_eq!(negative.of("bursts", true)[0]["rows"][0]["peak_packets"], 2);
}

/// Battery: I10
#[test]
fn one_way_traffic() {
    let there = |back: u32| -> Vec<Timed> {
        let mut frames: Vec<Timed> =
            (0..300u32).map(|n| (u64::from(n) * MS, tcp(host(1), host(2), (1, 80), ACK, n, 5))).collect();
        frames.extend((0..back).map(|n| (u64::from(n) * MS, tcp(host(2), host(1), (80, 1), ACK, n, 0))));
        frames
    };
    let positive = said("one-way", there(0));
    assert_eq!(positive.alarms(), ["one-way raised 10.0.0.1 10.0.0.2"]);
    // One response is sufficient; multicast groups do not respond; a few packets may have no response.
    assert_eq!(said("one-way", there(1)).alarms(), [""; 0]);
    let multicast = (0..300u32).map(|n| (u64::from(n) * MS, udp(host(1), 0xe000_00fb, (5353, 5353), 100)));
    let few = (0..50u32).map(|n| (u64::from(n) * MS, udp(host(5), host(6), (1, 2), 100)));
    assert_eq!(said("one-way", multicast.chain(few).collect()).alarms(), [""; 0]);
}

/// Battery: I10
#[test]
fn tcp_retransmissions() {
    // Every tenth segment is repeated, or no segment.
    let segments = |every: u32| -> Vec<Timed> {
        let mut frames = Vec::new();
        for n in 0..1000u32 {
            let segment = || tcp(host(1), host(2), (1000, 80), ACK, 7 + n * 100, 100);
            frames.push((u64::from(n) * MS, segment()));
            if n % every == 0 {
                frames.push((u64::from(n) * MS + MS / 2, segment()));
            }
            frames.push((u64::from(n) * MS + MS / 4, tcp(host(2), host(1), (80, 1000), ACK, 5, 0)));
        }
        frames
    };
    let positive = said("retransmissions", segments(10));
    assert_eq!(positive.alarms(), ["retransmissions raised"]);
    let row = &positive.of("segments", true)[0]["rows"][0];
    assert_eq!(
        (&row["segments"], &row["retransmissions"], &row["packets"]),
        (&1100.into(), &100.into(), &2100.into())
    );
    let negative = said("retransmissions", segments(100));
    assert_eq!(negative.alarms(), [""; 0], "one of a hundred is as it should be");
    assert_eq!(negative.of("by-pair", true)[0]["rows"][0]["retransmissions"], 10);
}
