//! `wirelane flows --top` on a terminal: the content of its screen, and that the terminal is restored at any end.

use std::process::Command;

use wirelane_tests::numbers::send;
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root, wirelane_binary};

/// Packets of each flow on the screen.
fn packets(rows: &[String]) -> Vec<u64> {
    let flows = rows.iter().filter(|row| row.starts_with("UDP "));
    let last = |row: &String| row.split_whitespace().last().unwrap().replace(',', "").parse().unwrap();
    flows.map(last).collect()
}

/// Battery: S1
#[test]
fn the_screen_has_the_numbers_and_the_terminal_is_given_back() {
    if !require_root("the_screen_has_the_numbers_and_the_terminal_is_given_back") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    let collector =
        lab.enter(&lab.receiver().namespace, || std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let collector = format!("ipfix://{}", collector.as_ref().unwrap().local_addr().unwrap());
    let words = ["-i", device, "--interval", "0.2", "--inactive-timeout", "3", "--export", &collector, "udp"];
    let mut terminal = Terminal::start(
        &lab,
        80,
        24,
        &[&["flows", "--top", "--hook", "native", "--direction", "rx"][..], &words].concat(),
    );
    terminal.until_text(&format!("wirelane flows  {device}  engine ring"));
    send(&lab, 5000, &["--flows", "5", "--rate", "50000"]).unwrap();
    terminal.until_text("seen 5,000  filtered 0  absorbed 0  shed 0  lost 0");
    terminal.until_text("analysed 5,000  in flight 0");
    terminal.until_text("flows   5 now");
    terminal.until("device and queues", |rows| {
        let has = |name: String| rows.iter().any(|row| row.trim_start().starts_with(&name));
        has(format!("{device} ")) && has(format!("{device}@0")) && has(format!("{device}@1"))
    });
    // All flows with their totals.
    terminal.until("each flow has its packets", |rows| packets(rows) == [1000; 5]);
    let seen = terminal.rows();
    assert!(seen[0].ends_with("q ends") && seen[0].chars().count() == 80, "{seen:#?}");
    // No thread has rights, including the one that reads keys.
    let tasks = std::fs::read_dir(format!("/proc/{}/task", terminal.pid())).unwrap();
    let confined = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("status")).unwrap().contains("Seccomp:\t2")
    };
    assert!(tasks.map(confined).collect::<Vec<_>>().iter().all(|confined| *confined));
    // The flows end, and are exported to the collector.
    terminal.until_text("flows   0 now");
    terminal.until_text(&format!("to {collector}: 5 flows"));
    terminal.until_text("5 ended");
    // Each packet is one of a host at each of its ends.
    let sums = |rows: &[String], begin: &str| {
        rows.iter().any(|row| row.starts_with(begin) && row.contains(" 5,000 "))
    };
    terminal.type_in("h");
    terminal.until("hosts", |rows| rows.iter().any(|row| row.starts_with("host ") && row.contains("2 sv")));
    terminal.until("the packets of the sender", |rows| sums(rows, "10.0.0.1 "));
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("c");
    terminal.until("conversations", |rows| {
        rows.iter().any(|row| row.contains("conversation") && row.contains(" 5,000 "))
    });
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("as");
    terminal.until("applications", |rows| sums(rows, "UDP ") && rows.join("\n").contains("10 sv"));
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("?");
    terminal.until_text("these keys");
    terminal.type_in("?f");
    terminal.resize(60, 30);
    terminal.until("60 columns", |rows| rows[0].ends_with("q ends") && rows[0].chars().count() == 60);
    terminal.resize(120, 40);
    terminal.until("120 columns", |rows| rows[0].ends_with("q ends") && rows[0].chars().count() == 120);
    terminal.type_in("xq");
    let (status, rows) = terminal.ended();
    assert!(status.success(), "{status} {rows:#?}");
    let text = rows.join("\n");
    assert!(text.contains("5 flows of 5,000 packets"), "{text}");
    assert!(text.contains("the ledger balances"), "{text}");
}

/// Of flows that begin and end within one interval, those without a row of their own are in the row of the others.
#[test]
fn all_packets_are_in_the_sums_also_of_flows_that_end_within_an_interval() {
    if !require_root("all_packets_are_in_the_sums_also_of_flows_that_end_within_an_interval") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let words =
        ["-i", &lab.receiver().device, "--interval", "2", "--memory", "1", "--direction", "rx", "udp"];
    let mut terminal = Terminal::start(&lab, 80, 24, &[&["flows", "--top"], &words[..]].concat());
    terminal.until_text("flows   0 now");
    send(&lab, 20_000, &["--flows", "20000", "--rate", "50000"]).unwrap();
    terminal.until_text("analysed 20,000");
    terminal.type_in("a");
    terminal.until("the others, and all packets", |rows| {
        let has =
            |begin: &str, text: &str| rows.iter().any(|row| row.starts_with(begin) && row.contains(text));
        has("others ", "") && has("2 applications ", " 20,000 ")
    });
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
}

#[test]
fn whatever_ends_it_gives_the_terminal_back() {
    if !require_root("whatever_ends_it_gives_the_terminal_back") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let words = ["-i", &lab.receiver().device, "--interval", "0.2", "udp"];
    let start = || {
        let terminal = Terminal::start(
            &lab,
            80,
            24,
            &[&["flows", "--top", "--hook", "native", "--direction", "rx"][..], &words].concat(),
        );
        terminal.until_text("flows   0 now (of");
        terminal
    };
    let mut terminal = start();
    terminal.type_in("\u{3}");
    let (status, rows) = terminal.ended();
    assert!(
        status.success() && rows.join("\n").contains("the ledger balances"),
        "Ctrl-C: {status} {rows:#?}"
    );

    let terminal = start();
    let pid = terminal.pid().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let (status, rows) = terminal.ended();
    assert!(
        status.success() && rows.join("\n").contains("the ledger balances"),
        "SIGTERM: {status} {rows:#?}"
    );

    // The device is deleted: a failure, which is reported after the ledger, and the ledger has all earlier packets.
    let terminal = start();
    send(&lab, 1234, &["--flows", "3"]).unwrap();
    terminal.until_text("analysed 1,234");
    lab.exec(&lab.receiver().namespace, &["ip", "link", "delete", &lab.receiver().device]).unwrap();
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("the ledger balances") && text.contains("wirelane: device"), "{text}");
    assert!(text.contains("3 flows of 1,234 packets"), "{text}");
}

/// The screen needs a terminal and a live capture.
#[test]
fn no_screen_without_a_terminal() {
    for (words, message) in [
        (&["-i", "lo", "--top"][..], "standard output is not a terminal"),
        (&["-r", "x.pcap", "--top"], "cannot be used with"),
        (&["-i", "lo", "--top", "--json"], "cannot be used with"),
    ] {
        let mut command = Command::new(wirelane_binary().unwrap());
        let output = command.arg("flows").args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(message) && output.stdout.is_empty(), "{errors}");
    }
}
