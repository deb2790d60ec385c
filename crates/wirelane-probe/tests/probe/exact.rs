//! Exact values are exact, estimates are within their error, and memory is bounded.

use serde_json::json;

use crate::traffic::*;

/// Three seconds of five hosts that send to one, each as often as its number.
fn hosts() -> Vec<Timed> {
    let mut frames = Vec::new();
    for second in 0..3u64 {
        for number in 1..=5u32 {
            for turn in 0..number {
                let at = second * SECOND + u64::from(number * 10 + turn) * MS;
                frames.push((at, udp(host(number), host(100), (1000 + number as u16, 53), 100)));
            }
        }
    }
    frames
}

#[test]
fn packets_bytes_and_rates_are_exact_by_key_and_interval() {
    let said = probe(
        "[[measurement]]\nname = \"m\"\nkey = [\"src\", \"dst-port\"]\n\
         values = [\"packets\", \"bytes\", \"pps\", \"bps\", \"keys\", \"entropy\"]",
        &hosts(),
    );
    let intervals = said.of("m", false);
    assert_eq!(intervals.len(), 3);
    let bytes = 14 + 20 + 8 + 100;
    for (second, interval) in intervals.iter().enumerate() {
        let start = format!("{}.000000000", 1_700_000_000 + second);
        assert_eq!(
            (&interval["start"], &interval["packets"], &interval["keys"]),
            (&json!(start), &json!(15), &json!(5))
        );
        assert_eq!(interval["bytes"], json!(15 * bytes));
        let rows = interval["rows"].as_array().unwrap();
        for (row, number) in rows.iter().zip((1..=5u32).rev()) {
            assert_eq!((&row["src"], &row["dst_port"]), (&json!(shown(host(number))), &json!("53")));
            assert_eq!((&row["packets"], &row["bytes"]), (&json!(number), &json!(number * bytes)));
            assert_eq!(
                (&row["pps"], &row["bps"]),
                (&json!(f64::from(number)), &json!(f64::from(number * bytes * 8)))
            );
        }
        let entropy: f64 = (1..=5).map(|n| f64::from(n) / 15.0).map(|p| -p * p.log2()).sum();
        assert!((interval["entropy"].as_f64().unwrap() - entropy).abs() < 1e-9);
    }
    let [total] = said.of("m", true)[..] else { panic!() };
    assert_eq!((&total["packets"], &total["rows"][0]["packets"]), (&json!(45), &json!(15)));
    assert_eq!((said.totals.intervals, said.totals.late), (3, 0));
}

/// Battery: L6
#[test]
fn keys_without_room_are_counted_in_other_and_packets_without_key_apart() {
    let mut frames: Vec<Timed> =
        (0..1000u32).map(|n| (u64::from(n) * MS / 2, udp(host(n), host(5000), (7, 9), 10))).collect();
    frames.push((600 * MS, arp(1, host(1))));
    frames.push((601 * MS, arp(1, host(2))));
    let text = "[[measurement]]\nname = \"m\"\nkey = [\"src\", \"dst-port\"]\nkeys = 100\nshow = 1000\nvalues = [\"packets\"]";
    let said = probe(text, &frames);
    let [interval] = said.of("m", false)[..] else { panic!() };
    assert_eq!((&interval["packets"], &interval["keys"]), (&json!(1002), &json!(100)));
    assert_eq!((&interval["other"]["packets"], &interval["without_key"]), (&json!(900), &json!(2)));
    assert_eq!(interval["rows"].as_array().unwrap().len(), 100);
}

#[test]
fn distinct_values_are_within_the_stated_error_and_exact_bounds_hold_for_the_greatest() {
    let mut frames = Vec::new();
    for number in 0..20_000u32 {
        frames.push((u64::from(number) * 10_000, udp(host(number), host(1 << 20), (number as u16, 53), 10)));
        if number % 4 == 0 {
            frames.push((u64::from(number) * 10_000 + 1, udp(host(7), host(1 << 20), (1, 53), 10)));
        }
    }
    let text = "[[measurement]]\nname = \"m\"\nvalues = [\"distinct-src\", \"distinct-dst\", \"flows\", \"top-src\", \"lengths\", \"gaps\"]";
    let said = probe(text, &frames);
    let [interval] = said.of("m", false)[..] else { panic!() };
    let row = &interval["rows"][0];
    let error = interval["error_percent"].as_f64().unwrap();
    assert_eq!(error, 0.81);
    for (value, expected) in [("distinct_src", 20_000.0), ("flows", 20_000.0), ("distinct_dst", 1.0)] {
        let off = (row[value].as_f64().unwrap() - expected).abs() / expected;
        assert!(off * 100.0 < 3.0 * error, "{value}: {}", row[value]);
    }
    let top = &row["top_src"][0];
    assert_eq!(top["key"], json!(shown(host(7))));
    let (count, wrong) = (top["packets"].as_u64().unwrap(), top["error"].as_u64().unwrap());
    assert!(count - wrong <= 5001 && 5001 <= count, "{top}");
    assert_eq!(row["lengths"], json!({"32-63": 25_000}));
    // 1 ns after it, 10 µs after it, or the rest of the 10 µs.
    assert_eq!(row["gaps"], json!({"1": 5000, "8192-16383": 19_999}));
}

#[test]
fn several_workers_come_to_what_one_comes_to() {
    let mut frames = hosts();
    frames.extend((0..2000u32).map(|n| (u64::from(n) * MS, udp(host(n % 300), host(7), (n as u16, 80), 50))));
    frames.sort_by_key(|frame| frame.0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, &frames);
    let text = "[[measurement]]\nname = \"m\"\nkey = [\"pair\"]\nshow = 1000\n\
        values = [\"packets\", \"distinct-dst-port\", \"one-way\"]\n\
        [[measurement]]\nname = \"b\"\nvalues = [\"peak-packets\", \"peak-bytes\", \"flows\", \"lengths\"]\n";
    let one = probe_files(config(text), std::slice::from_ref(&path), 1, |_, _| {});
    let four = probe_files(config(text), &[path], 4, |_, _| {});
    assert_eq!(one.shown, four.shown);
    assert_eq!((one.totals.packets, one.totals.intervals), (four.totals.packets, four.totals.intervals));
}

#[test]
fn late_packets_and_long_silences_are_counted() {
    let packet = |ms: u64| (ms * MS, udp(host(1), host(2), (1, 2), 10));
    let mut frames = vec![packet(0), packet(2500), packet(1900), packet(2600)];
    frames.push(packet(1000 * 1000));
    let said = probe("[[measurement]]\nname = \"m\"\nvalues = [\"packets\"]", &frames);
    let packets: Vec<u64> = said.of("m", false).iter().map(|one| one["packets"].as_u64().unwrap()).collect();
    assert_eq!((packets.len(), &packets[..4]), (3 + 60 + 1, &[1, 0, 3, 0][..]));
    assert_eq!(packets[63], 1);
    assert_eq!((said.totals.late, said.totals.skipped_intervals), (1, 1000 - 3 - 60));
}
