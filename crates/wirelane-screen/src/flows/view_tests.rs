//! Tests of the layout.

use std::sync::Arc;

use wirelane_analysis::flows::FlowKey;

use super::*;
use crate::flows::{Shared, TopModel};
use crate::terminal::{self, Key as Typed, TopModel as _};

/// The screen of a model.
fn screen(view: View) -> terminal::Shown<TopModel> {
    let model = TopModel::new(Arc::new(Shared::new(Duration::from_secs(1))), None);
    model.told().live = view;
    terminal::Shown {
        title: "eth1  engine ring".into(),
        elapsed: Duration::ZERO,
        ledger: Counters::default(),
        balances: true,
        model: Arc::new(model),
        message: Some("WARN a collector is away".into()),
    }
}

fn drawn(view: &View, columns: u16, rows: u16) -> Vec<String> {
    terminal::drawn(&screen(view.clone()), columns, rows)
}

fn view() -> View {
    let line = |name: &str, is_queue, pps| Line {
        name: name.into(),
        is_queue,
        rates: Rates { pps, bps: pps * 512.0 },
        lost: 7,
        shed: 0,
        history: vec![0, 1000, pps as u64],
    };
    let mut key = FlowKey { l3: 4, proto: 6, ..FlowKey::default() };
    key.src[..4].copy_from_slice(&[192, 168, 100, 200]);
    key.dst[..4].copy_from_slice(&[203, 100, 113, 254]);
    (key.src_port, key.dst_port) = (54321u16.to_be(), 65535u16.to_be());
    let row = |number: u64| Row {
        key: Key::Flow(FlowKey { vlan: number as u16, ..key }),
        application: "BitTorrent",
        packets: 123_456,
        bytes: 99_999_999,
        rates: [384_000.0 - number as f64, 38_400.0, 9600.0],
    };
    let flows: Vec<Row> = (0..30).map(row).collect();
    let named = |key, packets, rates| Row { key, application: "", packets, bytes: packets * 100, rates };
    let address = |last| std::net::IpAddr::from([192, 0, 2, last]);
    let hosts = vec![
        named(Key::Host(address(1)), 10, [1.0, 2.0, 3.0]),
        named(Key::Host(address(2)), 20, [0.5, 9.0, 3.0]),
        named(Key::Rest, 30, [0.0; 3]),
    ];
    let pairs = vec![named(Key::Pair(address(1), address(2)), 15, [1.0, 2.0, 3.0])];
    let applications = vec![named(Key::Application("DNS".into()), 15, [1.0, 2.0, 3.0])];
    let mut counts = OutputCounts::default();
    counts.target = "ipfix://192.0.2.1:4739".into();
    (counts.flows, counts.unsent_flows) = (1234, 5);
    View {
        elapsed: Duration::from_secs(3723),
        lines: vec![line("eth1", false, 3000.0), line("eth1@0", true, 1000.0), line("eth1@1", true, 2000.0)],
        ledger: Counters { seen: 12_345_678, lost: 21, nic_missed: Some(3), ..Counters::default() },
        balances: true,
        live: 42,
        room: 1_000_000,
        ended: Totals { flows: 9, by_reason: [0, 4, 5, 0, 0, 0], ..Totals::default() },
        ended_per_s: 2.0,
        unsampled: 0,
        rows: [flows, hosts, pairs, applications],
        outputs: vec![(10.0, counts)],
    }
}

#[test]
fn all_of_it_is_on_a_small_terminal() {
    let rows = drawn(&view(), 80, 24);
    let expected = [
        "wirelane flows  eth1  engine ring                      01:02:03  ?: keys  q ends",
        "device           packet/s    bit/s     lost     shed             packet/s before",
        "eth1                3.00k    1.54M        7        0   ▂█",
        "  eth1@0            1.00k     512k        7        0   ██",
        "  eth1@1            2.00k    1.02M        7        0   ▄█",
        "ledger  seen 12,345,678  filtered 0  absorbed 0  shed 0  lost 21  delivered 0",
        "        analysed 0  in flight 0  bytes 0  missed 3",
        "to ipfix://192.0.2.1:4739: 1,234 flows (10/s), 5 unsent",
        "flows   42 now (of 1.00M), 9 ended (2/s): 4 idle, 5 active",
        "prot  source                 destination             2 sv  10 s  40 s   packets",
        "TCP   192.168.100.200:54321  203.100.113.254:65535   384k 38.4k 9.60k   123,456",
    ];
    for (row, text) in rows.iter().zip(expected) {
        assert_eq!(row.trim_end(), text, "{rows:#?}");
    }
    assert!(rows[21].starts_with("TCP "), "as many as there is room for: {rows:#?}");
    assert!(rows[22].starts_with("1 to 12 of 30 flows  ") && rows[22].contains(" bit/s "), "{rows:#?}");
    assert_eq!(rows[23].trim_end(), "WARN a collector is away");
}

#[test]
fn a_wide_terminal_has_whole_addresses_and_bytes() {
    let rows = drawn(&view(), 132, 40);
    let row = rows.iter().find(|row| row.starts_with("TCP")).unwrap();
    assert!(row.contains(" 192.168.100.200:54321 ") && row.contains(" 203.100.113.254:65535 "), "{row}");
    assert!(row.trim_end().ends_with("99,999,999"), "{row}");
    assert!(row.contains(" BitTorrent "), "{row}");
}

#[test]
fn keys_choose_grouping_order_rows_and_pause() {
    let screen = screen(view());
    let model = &screen.model;
    let typed = |letters: &str| {
        for letter in letters.chars() {
            model.typed(Typed::Letter(letter));
        }
    };
    let rows = |begin: &str| -> Vec<String> {
        let rows = terminal::drawn(&screen, 80, 24).into_iter();
        rows.filter(|row| row.starts_with(begin)).map(|row| row.trim_end().to_owned()).collect()
    };
    typed("h");
    assert!(rows("192.0.2.")[0].starts_with("192.0.2.1 ") && rows("others").len() == 1);
    assert_eq!(rows("3 hosts"), ["3 hosts"], "no sum that counts packets twice");
    typed("s");
    assert!(rows("192.0.2.")[0].starts_with("192.0.2.2 "), "by 10 s");
    typed("/.1");
    model.typed(Typed::Enter);
    assert_eq!(rows("192.0.2.").len(), 1, "filtered");
    assert_eq!(rows("/.1   only rows with this text").len(), 1);
    typed("/");
    model.typed(Typed::Escape);
    typed("g");
    assert_eq!(rows("192.0.2.1 ").len(), 1, "one conversation");
    typed("a");
    assert_eq!(rows("DNS ").len(), 1);
    typed("fp");
    model.typed(Typed::End);
    assert!(rows("19 to 30 of 30 flows ").len() == 1, "{:#?}", terminal::drawn(&screen, 80, 24));
    model.told().live = View::default();
    assert!(rows("wirelane flows")[0].contains("PAUSED") && !rows("TCP ").is_empty());
    typed("p");
    assert!(rows("TCP ").is_empty());
    typed("?");
    assert!(terminal::drawn(&screen, 80, 24).join("\n").contains("sort by the next column"));
}

#[test]
fn names_of_devices_are_whole() {
    let mut view = view();
    view.lines[0].name = "enp130s0f1np1.4094 tx".into();
    for columns in [80, 160] {
        let rows = drawn(&view, columns, 24);
        assert!(rows[2].starts_with("enp130s0f1np1.4094 tx    3.00k "), "{rows:#?}");
    }
}

#[test]
fn more_than_fits_is_said_and_nothing_panics_at_any_size() {
    let mut view = view();
    view.lines = (0..40).map(|queue| Line { name: format!("eth1@{queue}"), ..Line::default() }).collect();
    view.outputs = vec![view.outputs[0].clone(); 9];
    view.balances = false;
    let rows = drawn(&view, 80, 24);
    assert!(rows.iter().any(|row| row.contains("and ") && row.contains(" more")), "{rows:#?}");
    assert!(rows.iter().any(|row| row.contains("IT DOES NOT BALANCE")), "{rows:#?}");
    assert!(rows.iter().any(|row| row.starts_with("TCP")), "flows keep their place: {rows:#?}");
    for columns in (1..90).step_by(8) {
        for rows in (1..30).step_by(3) {
            drawn(&view, columns, rows);
        }
    }
}

/// Names of devices, files and collectors may contain anything.
#[test]
fn names_cannot_steer_the_terminal() {
    let mut view = view();
    let hostile = "e\u{1b}[2J\u{7}\r\n\u{9b}31m";
    view.lines[0].name = hostile.into();
    view.outputs[0].1.target = hostile.into();
    view.outputs[0].1.error = Some(hostile.into());
    let mut screen = screen(view);
    (screen.title, screen.message) = (hostile.into(), Some(hostile.into()));
    let text = terminal::drawn(&screen, 100, 24).join("\n");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    assert!(text.contains("e\\u{1b}[2J\\u{7}"), "{text}");
}
