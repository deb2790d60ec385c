//! `wirelane voip --top` on a terminal.

use std::process::Command;

use wirelane_tests::calls::{Scene, message};
use wirelane_tests::numbers::{LIMIT, last_of, wirelane};
use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root, wirelane_binary};

use super::scenes::{ALICE, BOB, INVITE, answered, by_tcp, head_of};

#[test]
fn calls_are_on_the_screen_and_the_terminal_is_given_back() {
    if !require_root("calls_are_on_the_screen_and_the_terminal_is_given_back") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let device = lab.receiver().device.as_str();
    let words = ["voip", "--top", "-i", device, "--interval", "0.2", "--linger", "1"];
    let mut terminal = Terminal::start(&lab, 80, 24, &words);
    terminal.until_text(&format!("wirelane voip  {device}  engine ring"));
    terminal.until_text("no call yet");
    let mut scene = Scene::new();
    answered(&mut scene);
    by_tcp(&mut scene);
    scene.udp(12_000_000, ALICE, BOB, &message(INVITE, &head_of("Call-ID: on@example.com"), ""));
    let (packets, file) = (scene.len(), folder.path().join("calls.pcap"));
    scene.write(&file).unwrap();
    let replayed =
        ["send", "-i", &lab.sender().device, "--json", "--speed", "max", "-r", file.to_str().unwrap()];
    last_of(&wirelane(&lab, &lab.sender().namespace, &replayed).unwrap().finish(LIMIT).unwrap()).unwrap();
    terminal.until_text("calls   1 go on, 3 ended");
    terminal.until_text(&format!("analysed {},{:03}", packets / 1000, packets % 1000));
    // The active call is the first row; ended ones follow.
    terminal.until("calls", |rows| {
        let states: Vec<&str> = rows[4..8].iter().filter_map(|row| row.split_whitespace().nth(3)).collect();
        states[0] == "trying"
            && states[1..].iter().all(|state| ["completed", "failed", "canceled"].contains(state))
    });
    terminal.until_text("+0.000  │");
    // Down to the answered call, in whichever row it is.
    for _ in 0..3 {
        if terminal.rows().join("\n").contains("to callee") {
            break;
        }
        terminal.type_in("\u{1b}[B");
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    terminal.until("the answered call", |rows| {
        let text = rows.join("\n");
        ["to callee 0x00000001", "to caller 0x00000002", " 180 Ringing ", " BYE ", "▶│", "│◀"]
            .iter()
            .all(|part| text.contains(part))
            && rows.iter().any(|row| row.contains("PCMU") && row.contains(" 490 ") && row.contains("   10 "))
    });
    println!("{}", terminal.rows().join("\n"));
    terminal.resize(120, 40);
    terminal.until("120 columns", |rows| rows[0].ends_with("q ends") && rows[0].chars().count() == 120);
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
    assert!(text.contains("4 calls: 1 canceled, 1 completed, 1 failed, 1 trying"), "{text}");

    for (words, message) in [
        (&["-i", "lo", "--top"][..], "standard output is not a terminal"),
        (&["-r", "x.pcap", "--top"], "cannot be used with"),
    ] {
        let output = Command::new(wirelane_binary().unwrap()).arg("voip").args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && errors.contains(message), "{errors}");
    }
}
