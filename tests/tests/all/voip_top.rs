//! `wirelane voip --top` on a terminal, with calls of sipp: the ladder, a message, the filter, a saved call.

use std::process::{Command, Stdio};

use wirelane_tests::terminal::Terminal;
use wirelane_tests::{Lab, require_root};

const NAME: &str = "a_call_of_sipp_is_on_the_screen_and_is_saved_for_tshark";

/// True if the program is installed; otherwise a message says that the test is skipped.
fn is_there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("left out: {NAME} (no {program}: scripts/setup)");
    }
    found.status.success()
}

/// The start lines of SIP messages in a file, by tshark.
fn tshark(file: &std::path::Path) -> Vec<String> {
    let fields = ["-T", "fields", "-E", "separator=|", "-e", "sip.Method", "-e", "sip.Status-Code"];
    let output = Command::new("tshark").arg("-r").arg(file).args(fields).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.trim_matches('|').to_owned()).collect()
}

#[test]
fn a_call_of_sipp_is_on_the_screen_and_is_saved_for_tshark() {
    if !require_root(NAME) || !is_there("sipp") || !is_there("tshark") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let (uac, uas) = (lab.sender().clone(), lab.receiver().clone());
    let words = ["voip", "-i", &uas.device, "--top", "--direction", "both", "--interval", "0.2"];
    let mut terminal =
        Terminal::start(&lab, 80, 24, &[&words[..], &["--save-selected", saved.to_str().unwrap()]].concat());
    terminal.until_text("no call yet");
    let sipp = |end: &wirelane_tests::End, words: &[&str]| {
        lab.command(&end.namespace, "sipp")
            .args(words)
            .args(["-i", &end.address.to_string(), "-m", "3", "-nostdin", "-timeout", "60"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut answers = sipp(&uas, &["-sn", "uas", "-p", "5060"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let target = format!("{}:5060", uas.address);
    let mut asks = sipp(&uac, &["-sn", "uac", &target, "-p", "5070", "-r", "3", "-d", "300"]);
    assert!(asks.wait().unwrap().success() && answers.wait().unwrap().success());
    let ladder = ["INVITE", "180 Ringing", "200 OK", "ACK", "BYE", "200 OK"];
    // The messages of the selected call in the order of time, with rising times.
    let in_order = |rows: &[String]| {
        let steps: Vec<&String> = rows.iter().filter(|row| row.trim_start().starts_with('+')).collect();
        let times: Vec<f64> =
            steps.iter().map(|row| row.split_whitespace().next().unwrap().parse().unwrap()).collect();
        steps.len() == ladder.len()
            && steps.iter().zip(ladder).all(|(row, what)| row.contains(what))
            && times.is_sorted()
    };
    terminal.until_text("3 ended");
    for (columns, rows) in [(80, 24), (160, 50)] {
        terminal.resize(columns, rows);
        terminal.until("the whole ladder", in_order);
        println!("{}", terminal.rows().join("\n"));
    }
    // The call is opened at its third message.
    terminal.type_in("\rjj");
    terminal.until_text("message 3 of 6");
    terminal.until_text("SIP/2.0 200 OK");
    terminal.until_text("CSeq: 1 INVITE");
    println!("{}", terminal.rows().join("\n"));
    terminal.resize(80, 24);
    terminal.until("80 columns", |rows| rows[0].chars().count() == 80 && rows[0].ends_with("q ends"));
    terminal.until_text("message 3 of 6");
    println!("{}", terminal.rows().join("\n"));
    terminal.type_in("s");
    terminal.until_text("saved 6 messages to ");
    terminal.type_in("\u{1b}");
    terminal.until_text("SIP messages");
    // A filter without calls, and the end of it: 'q' is text then.
    terminal.type_in("/q");
    terminal.until_text("0 of 3");
    terminal.type_in("\u{1b}?");
    terminal.until_text("end the capture");
    println!("{}", terminal.rows().join("\n"));
    // No size of the terminal ends the capture.
    for (columns, rows) in [(1, 1), (2, 40), (300, 2), (80, 24)] {
        terminal.resize(columns, rows);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    terminal.type_in("x");
    terminal.until_text("3 ended");
    terminal.type_in("q");
    let (status, rows) = terminal.ended();
    let text = rows.join("\n");
    assert!(status.success() && text.contains("the ledger balances"), "{status} {text}");
    let files: Vec<_> = std::fs::read_dir(&saved).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(tshark(&files[0]), ["INVITE", "180", "200", "ACK", "BYE", "200"]);
}
